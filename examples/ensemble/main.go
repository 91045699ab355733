// Command ensemble has the two ends of a pipeline around an ONNX model that says what kind of file something is: started with the argument features it
// makes the model's input of a file's content, with labels it makes a name and a score of the model's output. examples/ensemble/README.md puts them together.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
)

func main() {
	slog.SetDefault(slog.New(handlersdk.NewLogHandler(nil)))
	handlersdk.Serve(&step{labels: len(os.Args) > 1 && os.Args[1] == "labels"})
}

// settings are what config.min.json of the model's package says.
type settings struct {
	Side    int      `json:"beg_size"`
	Block   int      `json:"block_size"`
	Padding uint32   `json:"padding_token"`
	Labels  []string `json:"target_labels_space"`
}

// step is one end of the pipeline.
type step struct {
	labels   bool
	settings settings
}

// Initialize implements handlersdk.Handler.
func (s *step) Initialize(_ context.Context, m handlersdk.Model) error {
	text, err := os.ReadFile(filepath.Join(m.Dir, "config.min.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &s.settings); err != nil {
		return fmt.Errorf("config.min.json: %w", err)
	}
	return nil
}

// Features implements handlersdk.Featured: tensors come and go as they are, not as JSON.
func (s *step) Features() []string { return []string{handlersdk.FeatureOIPBinary} }

// Describe implements handlersdk.Describer. The server compares it with the model's own description before the pipeline serves.
func (s *step) Describe() handlersdk.Description {
	width, labels := int64(2*s.settings.Side), int64(len(s.settings.Labels))
	if s.labels {
		return handlersdk.Description{
			MaxBatch: 64, Inputs: []handlersdk.Port{{Name: "scores", DataType: tensor.FP32, Shape: []int64{-1, labels}}},
			Outputs: []handlersdk.Port{{Name: "label", DataType: tensor.Bytes, Shape: []int64{-1}}, {Name: "score", DataType: tensor.FP32, Shape: []int64{-1}}},
		}
	}
	return handlersdk.Description{
		MaxBatch: 64, Inputs: []handlersdk.Port{{Name: "content", DataType: tensor.Bytes, Shape: []int64{-1}}},
		Outputs: []handlersdk.Port{{Name: "features", DataType: tensor.Int32, Shape: []int64{-1, width}}},
	}
}

// Handle implements handlersdk.Handler.
func (s *step) Handle(_ context.Context, items []handlersdk.Item) ([]handlersdk.Result, error) {
	results := make([]handlersdk.Result, len(items))
	for i := range items {
		in, err := read(&items[i])
		var out []tensor.Tensor
		switch {
		case err != nil:
		case s.labels:
			out, err = s.best(in)
		default:
			out, err = s.features(in)
		}
		if err != nil {
			results[i].Err = handlersdk.Errorf(badRequest, "%w", err)
			continue
		}
		results[i], results[i].Err = write(out)
	}
	return results, nil
}

const badRequest = 400

// best gives the label with the highest score of each row.
func (s *step) best(scores tensor.Tensor) ([]tensor.Tensor, error) {
	all, err := scores.Floats()
	n := len(s.settings.Labels)
	if err != nil || n == 0 || len(all)%n != 0 {
		return nil, fmt.Errorf("scores for %d labels are wanted, and there are %d numbers: %w", n, len(all), err)
	}
	rows := []int64{int64(len(all) / n)}
	label := tensor.Tensor{Name: "label", DType: tensor.Bytes, Shape: rows}
	var best []float32
	for ; len(all) > 0; all = all[n:] {
		at := 0
		for i := range n {
			if cmp.Less(all[at], all[i]) {
				at = i
			}
		}
		label.Data = tensor.AppendElement(label.Data, []byte(s.settings.Labels[at]))
		best = append(best, all[at])
	}
	return []tensor.Tensor{label, tensor.FromFloats("score", rows, best)}, nil
}

// space is what Python's bytes.strip takes for white space.
const space = " \t\n\r\x0b\x0c"

// features gives the model's input for files: their first and their last bytes, without the white space around them.
func (s *step) features(content tensor.Tensor) ([]tensor.Tensor, error) {
	files, err := content.Elements()
	if err != nil {
		return nil, err
	}
	side := s.settings.Side
	out := tensor.Tensor{Name: "features", DType: tensor.Int32, Shape: []int64{int64(len(files)), int64(2 * side)}}
	for _, file := range files {
		first := bytes.TrimLeft(file[:min(s.settings.Block, len(file))], space)
		last := bytes.TrimRight(file[max(0, len(file)-s.settings.Block):], space)
		first, last = first[:min(side, len(first))], last[max(0, len(last)-side):]
		for _, b := range first {
			out.Data = binary.LittleEndian.AppendUint32(out.Data, uint32(b))
		}
		for range 2*side - len(first) - len(last) {
			out.Data = binary.LittleEndian.AppendUint32(out.Data, s.settings.Padding)
		}
		for _, b := range last {
			out.Data = binary.LittleEndian.AppendUint32(out.Data, uint32(b))
		}
	}
	return []tensor.Tensor{out}, nil
}

// header is the part of a request or an answer that is JSON.
type header struct {
	Inputs  []part `json:"inputs,omitempty"`
	Outputs []part `json:"outputs,omitempty"`
}

type part struct {
	Name       string          `json:"name"`
	DataType   tensor.DType    `json:"datatype"`
	Shape      []int64         `json:"shape"`
	Parameters map[string]int  `json:"parameters,omitempty"`
	Data       json.RawMessage `json:"data,omitempty"`
}

const (
	headerLength = "inference-header-content-length"
	sizeOf       = "binary_data_size"
)

// read gives the only input of a request.
func read(item *handlersdk.Item) (tensor.Tensor, error) {
	body := item.Body().Data
	text := body
	if length := item.Get(headerLength); length != "" {
		n, err := strconv.Atoi(length)
		if err != nil || n < 0 || n > len(body) {
			return tensor.Tensor{}, fmt.Errorf("%s is %q", headerLength, length)
		}
		text = body[:n]
	}
	var request struct {
		Inputs []struct {
			part

			Parameters map[string]json.RawMessage `json:"parameters"`
		} `json:"inputs"`
	}
	if err := json.Unmarshal(text, &request); err != nil || len(request.Inputs) != 1 {
		return tensor.Tensor{}, errors.Join(errors.New("a request with one input is wanted"), err)
	}
	in := request.Inputs[0]
	t := tensor.Tensor{Name: in.Name, DType: in.DataType, Shape: in.Shape, Data: body[len(text):]}
	if in.Data != nil {
		return tensor.ParseJSON(in.Name, in.DataType, in.Shape, in.Data)
	}
	return t, t.Check()
}

// write makes an answer with raw tensors.
func write(outputs []tensor.Tensor) (handlersdk.Result, error) {
	var h header
	var raw []byte
	for i := range outputs {
		t := &outputs[i]
		h.Outputs = append(h.Outputs, part{Name: t.Name, DataType: t.DType, Shape: t.Shape, Parameters: map[string]int{sizeOf: len(t.Data)}})
		raw = append(raw, t.Data...)
	}
	text, err := json.Marshal(h)
	return handlersdk.Result{
		Header: []handlersdk.Field{{Name: "content-type", Value: "application/octet-stream"}, {Name: headerLength, Value: strconv.Itoa(len(text))}}, Body: append(text, raw...),
	}, err
}
