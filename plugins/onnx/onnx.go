// Package onnx is the native backend for ONNX models: a handler as anybody's, written with handlersdk.
package onnx

import (
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

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
)

// Options are what the process knows before it is given a model.
type Options struct {
	Library []string // where ONNX Runtime is looked for, the best first
	Threads int      // for a model that does not say; 0: one
	Logger  *slog.Logger
}

// Handler runs one ONNX model.
type Handler struct {
	opts    Options
	model   handlersdk.Model
	session *session.Session
	names   []string // of the outputs
	// joins says that rows of several requests may go through the model together: all inputs and outputs have a first dimension of any length.
	joins bool
}

var (
	_ handlersdk.Handler = (*Handler)(nil)
	_ handlersdk.Closer  = (*Handler)(nil)
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
	settings, err := readSettings(m.Dir)
	if err != nil {
		return err
	}
	if settings.IntraOp == 0 {
		settings.IntraOp = h.opts.Threads
	}
	if m.GPU != handlersdk.NoGPU && settings.Providers == nil {
		settings.Providers = []session.Provider{{Name: "CUDA"}}
	}
	for i := range settings.Providers {
		settings.Providers[i].Options = withDevice(settings.Providers[i], m.GPU)
	}
	if h.session, err = session.Open(file, settings); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(file), err)
	}
	h.model = m
	for _, p := range h.session.Outputs {
		h.names = append(h.names, p.Name)
	}
	h.joins = joinable(h.session.Inputs) && joinable(h.session.Outputs)
	h.opts.Logger.Info("ONNX model opened", "file", filepath.Base(file), "onnxruntime", version, "inputs", describe(h.session.Inputs),
		"outputs", describe(h.session.Outputs), "batches", h.joins)
	return nil
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

// withDevice adds the number of the device to the options of providers that have one.
func withDevice(p session.Provider, gpu int) map[string]string {
	options := map[string]string{}
	if gpu != handlersdk.NoGPU && (p.Name == "CUDA" || p.Name == "TensorRT") {
		options["device_id"] = strconv.Itoa(gpu)
	}
	maps.Copy(options, p.Options)
	return options
}

// joinable says whether all ports have a first dimension of any length. What is no tensor is told by its rows after a run.
func joinable(ports []session.Port) bool {
	return !slices.ContainsFunc(ports, func(p session.Port) bool { return p.IsTensor() && (len(p.Shape) == 0 || p.Shape[0] != -1) })
}

func describe(ports []session.Port) string {
	texts := make([]string, len(ports))
	for i, p := range ports {
		texts[i] = p.Name + " " + p.Kind
		if p.IsTensor() {
			texts[i] = fmt.Sprint(p.Name, " ", p.DType, " ", p.Shape)
		}
	}
	return strings.Join(texts, ", ")
}

// Close frees the model.
func (h *Handler) Close() error {
	if h.session == nil {
		return nil
	}
	return h.session.Close()
}

// job is one request of a batch.
type job struct {
	inputs  []tensor.Tensor
	rows    int64
	single  bool // it came without a dimension for the batch, and its answer goes without one
	reply   reply
	model   *handlersdk.Model
	names   []string // of the outputs
	outputs []session.Value
	err     error
}

// Handle runs a batch. Requests whose rows fit together go through the model at once; each has its own error.
func (h *Handler) Handle(ctx context.Context, items []handlersdk.Item) ([]handlersdk.Result, error) {
	jobs := make([]*job, len(items))
	for i := range items {
		jobs[i] = h.read(&items[i])
	}
	for _, group := range h.groups(jobs) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		h.run(group)
	}
	results := make([]handlersdk.Result, len(jobs))
	for i, j := range jobs {
		if j.err == nil {
			results[i], j.err = j.answer()
		}
		if j.err != nil {
			results[i] = handlersdk.Result{Err: j.err}
		}
	}
	return results, nil
}

// groups puts the jobs together that may run at once.
func (h *Handler) groups(jobs []*job) [][]*job {
	var groups [][]*job
	for _, j := range jobs {
		if j.err != nil {
			continue
		}
		at := -1
		if h.joins {
			at = slices.IndexFunc(groups, func(g []*job) bool { return fits(g[0], j) })
		}
		if at < 0 {
			groups = append(groups, []*job{j})
		} else {
			groups[at] = append(groups[at], j)
		}
	}
	return groups
}

// fits says whether two jobs differ in their numbers of rows at most.
func fits(a, b *job) bool {
	for i := range a.inputs {
		if !slices.Equal(a.inputs[i].Shape[1:], b.inputs[i].Shape[1:]) {
			return false
		}
	}
	return true
}

// run runs jobs at once, or one after another when their answers cannot be told apart or one of them breaks the run.
func (h *Handler) run(group []*job) {
	if len(group) == 1 {
		group[0].outputs, group[0].err = h.session.Run(group[0].inputs)
		if group[0].err != nil {
			group[0].err = refused(group[0].err)
		}
		return
	}
	if h.runTogether(group) {
		return
	}
	for _, j := range group {
		h.run([]*job{j})
	}
}

func (h *Handler) runTogether(group []*job) bool {
	inputs := make([]tensor.Tensor, len(h.session.Inputs))
	rows := make([]int64, len(group))
	for i := range inputs {
		parts := make([]tensor.Tensor, len(group))
		for k, j := range group {
			parts[k], rows[k] = j.inputs[i], j.rows
		}
		var err error
		if inputs[i], err = tensor.Concat(parts); err != nil {
			return false
		}
	}
	outputs, err := h.session.Run(inputs)
	if err != nil {
		return false
	}
	all := make([][]session.Value, len(group))
	for _, v := range outputs {
		parts, ok := cut(v, rows)
		if !ok {
			return false
		}
		for k := range group {
			all[k] = append(all[k], parts[k])
		}
	}
	for k, j := range group {
		j.outputs = all[k]
	}
	return true
}

// cut gives each job its rows of an output. It fails when the output does not have one row for each.
func cut(v session.Value, rows []int64) ([]session.Value, bool) {
	parts := make([]session.Value, len(rows))
	switch {
	case v.Tensor != nil:
		tensors, err := v.Tensor.Split(rows)
		if err != nil {
			return nil, false
		}
		for i := range tensors {
			parts[i].Tensor = &tensors[i]
		}
	case v.List != nil:
		rest := v.List
		for i, n := range rows {
			if int64(len(rest)) < n {
				return nil, false
			}
			parts[i].List, rest = rest[:n:n], rest[n:]
		}
		if len(rest) > 0 {
			return nil, false
		}
	default:
		return nil, false
	}
	return parts, true
}

// refused is an error about what the client sent: the model did not take it.
func refused(err error) error { return handlersdk.Errorf(statusBadRequest, "%w", err) }
