// Package onnx is the native backend for ONNX models: a handler as anybody's, written with handlersdk.
package onnx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
)

// Options are what the process knows before it is given a model.
type Options struct {
	Library []string // where ONNX Runtime is looked for, the best first
	Threads int      // for a model that does not say; 0: one
	Config  string   // the file with the model's settings; "": the one in its folder
	Logger  *slog.Logger
}

// Handler runs one ONNX model.
type Handler struct {
	opts    Options
	model   handlersdk.Model
	session *session.Session
	names   []string // of the outputs
	task    task     // what the model is for; nil: tensors in, tensors out
	// turn is one batch's right to run the model; it guards proven.
	turn sync.Mutex
	// joins says that rows of several requests may go through the model together: all inputs have a first dimension of any length, and so have the outputs, as far as
	// the model knows. proven says that this was tried: the rows' answers were the same as alone.
	joins  atomic.Bool
	proven bool
	loops  bool // all inputs have a first dimension of one: several rows are given one by one
}

var (
	_ handlersdk.Handler     = (*Handler)(nil)
	_ handlersdk.Closer      = (*Handler)(nil)
	_ handlersdk.Featured    = (*Handler)(nil)
	_ handlersdk.Describer   = (*Handler)(nil)
	_ handlersdk.Overlapping = (*Handler)(nil)
)

// New makes a handler. Logger is required.
func New(opts Options) *Handler { return &Handler{opts: opts} }

// Initialize opens the model.
func (h *Handler) Initialize(_ context.Context, m handlersdk.Model) error {
	version, err := session.Init(h.opts.Library)
	if err != nil {
		return err
	}
	file, err := modelFile(m.Dir, m.Handler)
	if err != nil {
		return err
	}
	options, err := readOptions(cmp.Or(h.opts.Config, filepath.Join(m.Dir, settingsFile)))
	if err != nil {
		return err
	}
	if err := h.open(file, sessionOptions(options.session, h.opts.Threads, m.GPU)); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(file), err)
	}
	h.model = m
	for _, p := range h.session.Outputs {
		h.names = append(h.names, p.Name)
	}
	h.joins.Store(everyFirst(h.session.Inputs, -1) && everyFirst(h.session.Outputs, -1, 1))
	h.loops = everyFirst(h.session.Inputs, 1)
	if options.apart {
		h.joins.Store(false)
	}
	if h.task, err = h.newTask(&options); err != nil {
		return errors.Join(err, h.Close())
	}
	h.opts.Logger.Info("ONNX model opened", "file", filepath.Base(file), "onnxruntime", version, "inputs", describe(h.session.Inputs),
		"outputs", describe(h.session.Outputs), "batches", h.joins.Load())
	return nil
}

// open opens the model. Converters of LightGBM declare one label, and give one for each row: ONNX Runtime would write a warning in each run.
func (h *Handler) open(file string, o session.Options) (err error) {
	if h.session, err = session.Open(file, o); err != nil {
		return err
	}
	if !everyFirst(h.session.Inputs, -1) || !everyFirst(h.session.Outputs, -1, 1) || everyFirst(h.session.Outputs, -1) {
		return nil
	}
	if err := h.session.Close(); err != nil {
		return err
	}
	o.ErrorsOnly = true
	h.session, err = session.Open(file, o)
	return err
}

// modelFile finds the model in a folder: the file that is named, else model.onnx, else the only one.
func modelFile(dir, named string) (string, error) {
	if filepath.Ext(named) == ".onnx" {
		if !filepath.IsLocal(named) {
			return "", fmt.Errorf("the model's file %q is not in its folder", named)
		}
		return filepath.Join(dir, named), nil
	}
	file := filepath.Join(dir, "model.onnx")
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.onnx"))
	switch {
	case err != nil:
		return "", err
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0:
		return "", errors.New("there is no .onnx file in the model's folder")
	}
	return "", fmt.Errorf("there are %d .onnx files in the model's folder: name one of them model.onnx", len(found))
}

// sessionOptions fills in what the model does not say: its share of the processors, and the device that the server gives it.
func sessionOptions(o session.Options, threads, gpu int) session.Options {
	if o.IntraOp == 0 {
		o.IntraOp = threads
	}
	if gpu != handlersdk.NoGPU && o.Providers == nil {
		o.Providers = []session.Provider{{Name: "CUDA"}}
	}
	o.Providers = slices.Clone(o.Providers)
	for i := range o.Providers {
		o.Providers[i].Options = withDevice(o.Providers[i], gpu)
	}
	return o
}

// withDevice adds the number of the device to the options of providers that have one.
func withDevice(p session.Provider, gpu int) map[string]string {
	options := map[string]string{}
	if gpu != handlersdk.NoGPU && hasDevices(p.Name) {
		options["device_id"] = strconv.Itoa(gpu)
	}
	maps.Copy(options, p.Options)
	return options
}

func hasDevices(provider string) bool {
	name := strings.ToLower(strings.TrimSuffix(provider, "ExecutionProvider"))
	return name == "cuda" || name == "tensorrt"
}

// everyFirst says whether there are ports and all have one of these first dimensions. What is no tensor is told by its rows after a run.
func everyFirst(ports []session.Port, first ...int64) bool {
	return len(ports) > 0 && !slices.ContainsFunc(ports, func(p session.Port) bool {
		return p.IsTensor() && (len(p.Shape) == 0 || !slices.Contains(first, p.Shape[0]))
	})
}

func describe(ports []session.Port) string {
	texts := make([]string, len(ports))
	for i := range ports {
		texts[i] = ports[i].Name + " " + describePort(&ports[i])
	}
	return strings.Join(texts, ", ")
}

func describePort(p *session.Port) string {
	switch {
	case p.IsTensor() && p.Shape == nil:
		return string(p.DType) + " of any shape"
	case p.IsTensor():
		return fmt.Sprint(p.DType, " ", p.Shape)
	}
	return p.Kind
}

// ReadsLong says whether a request may take long before it is what the model takes: a picture that is decoded, a text that is cut into tokens.
func (h *Handler) ReadsLong() bool { return h.task != nil }

// featureOptional is what a model announces of whose inputs some may be left out, or that takes others than it describes: it compares them by itself.
const featureOptional = "oip_optional"

// Features implements handlersdk.Featured.
func (h *Handler) Features() []string {
	features := []string{handlersdk.FeatureOIPBinary}
	if h.session != nil && (len(h.session.Defaults) > 0 || slices.ContainsFunc(h.session.Inputs, func(p session.Port) bool { return p.Optional })) {
		features = append(features, featureOptional)
	}
	return features
}

// manyRows is told of a model that takes any number of rows, when batchSize says nothing: what Triton makes of such a model. Nothing is bounded by it.
const manyRows = 4

// Describe implements handlersdk.Describer.
func (h *Handler) Describe() handlersdk.Description {
	d := handlersdk.Description{Platform: "onnxruntime_onnx", Inputs: describedPorts(h.session.Inputs), Outputs: describedPorts(h.session.Outputs)}
	d.Accepts = h.accepts()
	if h.joins.Load() {
		d.MaxBatch = manyRows
		if h.model.BatchSize > 1 {
			d.MaxBatch = h.model.BatchSize
		}
	}
	return d
}

// accepts are the media types of what /predictions takes.
func (h *Handler) accepts() []string {
	switch h.task.(type) {
	case *pictures:
		return []string{"image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/tiff", "multipart/form-data"}
	case *texts:
		return []string{"text/plain", jsonType}
	}
	if len(h.session.Inputs) != 1 {
		return []string{jsonType, "multipart/form-data"}
	}
	return []string{jsonType, npyType, binaryType, "multipart/form-data"}
}

// describedPorts are ports in the words of the Open Inference Protocol, where what is no tensor travels as texts.
func describedPorts(ports []session.Port) []handlersdk.Port {
	all := make([]handlersdk.Port, len(ports))
	for i := range ports {
		p := &ports[i]
		all[i] = handlersdk.Port{Name: p.Name, DataType: p.DType, Shape: p.Shape}
		if !p.IsTensor() {
			all[i].DataType, all[i].Shape = tensor.Bytes, []int64{-1}
		}
		if all[i].Shape == nil { // any: the protocol has no word for it
			all[i].Shape = []int64{-1}
		}
	}
	return all
}

// Close frees the model.
func (h *Handler) Close() error {
	if h.session == nil {
		return nil
	}
	return h.session.Close()
}
