// Command magika-go is a Flambeau handler with an ONNX model inside: it says what kind of file a request's body is. Python has no part in it.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
)

func main() {
	slog.SetDefault(slog.New(handlersdk.NewLogHandler(nil)))
	threads, err := strconv.Atoi(os.Getenv("FLAMBEAU_THREADS")) //nolint:forbidigo // what the server tells
	if err != nil {
		threads = 1
	}
	handlersdk.Serve(&fileTypes{
		library: session.Candidates(os.Getenv("FLAMBEAU_ONNXRUNTIME"), os.Args[0], os.Getenv("FLAMBEAU_PYTHON_PREFIX")), threads: threads, //nolint:forbidigo // the same
	})
}

// settings are what config.min.json of the model's package says.
type settings struct {
	Side    int      `json:"beg_size"`
	Block   int      `json:"block_size"`
	Padding uint32   `json:"padding_token"`
	Labels  []string `json:"target_labels_space"`
}

type fileTypes struct {
	library  []string
	threads  int
	settings settings
	model    *session.Session
}

// answer is what a client gets.
type answer struct {
	Label string  `json:"label"`
	Score float64 `json:"score"`
}

// The model's own names.
const (
	input  = "bytes"
	output = "target_label"
)

// Initialize implements handlersdk.Handler.
func (f *fileTypes) Initialize(ctx context.Context, m handlersdk.Model) error {
	text, err := os.ReadFile(filepath.Join(m.Dir, "config.min.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &f.settings); err != nil {
		return fmt.Errorf("config.min.json: %w", err)
	}
	version, err := session.Init(f.library)
	if err != nil {
		return err
	}
	slog.InfoContext(ctx, "model is opened", "onnxruntime", version, "threads", f.threads)
	f.model, err = session.Open(filepath.Join(m.Dir, "model.onnx"), session.Options{IntraOp: f.threads})
	return err
}

// Close implements handlersdk.Closer.
func (f *fileTypes) Close() error {
	if f.model == nil {
		return nil
	}
	return f.model.Close()
}

// Handle implements handlersdk.Handler: a batch is one run of the model.
func (f *fileTypes) Handle(ctx context.Context, items []handlersdk.Item) ([]handlersdk.Result, error) {
	features := make([]byte, 0, len(items)*2*f.settings.Side*4)
	for i := range items {
		features = f.features(features, items[i].Body().Data)
	}
	in := &tensor.Tensor{Name: input, DType: tensor.Int32, Shape: []int64{int64(len(items)), int64(2 * f.settings.Side)}, Data: features}
	out, err := f.model.Run(ctx, []session.Input{{Name: input, Value: session.Of(in)}}, []string{output})
	if err != nil {
		return nil, err
	}
	labels := len(f.settings.Labels)
	scores := out[0].Tensor
	if scores == nil || scores.DType != tensor.FP32 || len(scores.Data) != len(items)*labels*4 {
		return nil, fmt.Errorf("the model gave %+v for %d files and %d labels", out[0], len(items), labels)
	}
	results := make([]handlersdk.Result, len(items))
	for i := range items {
		body, err := json.Marshal(f.best(scores.Data[i*labels*4:]))
		results[i] = handlersdk.Result{Header: []handlersdk.Field{{Name: "content-type", Value: "application/json"}}, Body: body, Err: err}
	}
	return results, nil
}

// best gives the label with the highest score.
func (f *fileTypes) best(scores []byte) answer {
	best := answer{Score: math.Inf(-1)}
	for i, label := range f.settings.Labels {
		if s := float64(math.Float32frombits(binary.LittleEndian.Uint32(scores[i*4:]))); cmp.Less(best.Score, s) {
			best = answer{label, s}
		}
	}
	return best
}

// space is what Python's bytes.strip takes for white space.
const space = " \t\n\r\x0b\x0c"

// features appends the model's input for one file: its first and its last bytes, without the white space around them.
func (f *fileTypes) features(to, content []byte) []byte {
	s := &f.settings
	first := bytes.TrimLeft(content[:min(s.Block, len(content))], space)
	last := bytes.TrimRight(content[max(0, len(content)-s.Block):], space)
	first, last = first[:min(s.Side, len(first))], last[max(0, len(last)-s.Side):]
	padding := 2*s.Side - len(first) - len(last)
	for _, b := range first {
		to = binary.LittleEndian.AppendUint32(to, uint32(b))
	}
	for range padding {
		to = binary.LittleEndian.AppendUint32(to, s.Padding)
	}
	for _, b := range last {
		to = binary.LittleEndian.AppendUint32(to, uint32(b))
	}
	return to
}
