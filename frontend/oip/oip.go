// Package oip has the values of the Open Inference Protocol (version 2) and their forms over HTTP: JSON, and JSON with raw tensors behind it.
package oip

import (
	"encoding/json"
	"slices"

	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/fault"
)

// HeaderLength is the HTTP header that says how many bytes of a body are JSON; raw tensors follow them.
const HeaderLength = "Inference-Header-Content-Length"

// Names of parameters that the protocol and its extensions give a meaning.
const (
	paramBinarySize    = "binary_data_size"   // of an input or output: bytes of its raw data
	paramBinary        = "binary_data"        // of a requested output: it is wanted raw
	paramBinaryOutputs = "binary_data_output" // of a request: all outputs that do not say are wanted raw
	paramClasses       = "classification"     // of a requested output: so many of the best classes in its place
	paramRegion        = "shared_memory_region"
	paramRegionSize    = "shared_memory_byte_size"
	paramRegionOffset  = "shared_memory_offset"

	ParamPriority      = "priority"
	ParamTimeout       = "timeout" // microseconds
	ParamSequence      = "sequence_id"
	ParamSequenceStart = "sequence_start"
	ParamSequenceEnd   = "sequence_end"
	ParamEmptyFinal    = "triton_enable_empty_final_response" // of a streamed request: an answer without outputs ends it
	ParamFinal         = "triton_final_response"              // of a streamed answer: no other one follows
)

// Parameters are named values: bool, string, int64, uint64 (only beyond int64) or float64.
type Parameters map[string]any

// Bool gives a parameter that is a truth.
func (p Parameters) Bool(name string) (value, given bool) {
	value, given = p[name].(bool)
	return value, given
}

// Int gives a parameter that is a whole number, of whatever type.
func (p Parameters) Int(name string) (int64, bool) {
	switch v := p[name].(type) {
	case int64:
		return v, true
	case uint64:
		return int64(min(v, 1<<63-1)), true
	case float64:
		return int64(v), v == float64(int64(v))
	}
	return 0, false
}

// Tensor is an input or an output. Its elements are in Data, or still the JSON that they came as, until Resolve.
type Tensor struct {
	tensor.Tensor

	Params Parameters
	JSON   json.RawMessage // nil when Data holds the elements
	// Shared is where in shared memory an input's elements are, or an output's were written; Data then holds none. Nil: they are in the body.
	Shared *Shared
}

// Resolve reads the elements out of the JSON that they came as.
func (t *Tensor) Resolve() error {
	if t.JSON == nil {
		return nil
	}
	read, err := tensor.ParseJSON(t.Name, t.DType, t.Shape, t.JSON)
	if err != nil {
		return fault.New(fault.BadRequest, err.Error(), nil)
	}
	t.Tensor, t.JSON = read, nil
	return nil
}

// Requested is an output that a request asks for.
type Requested struct {
	Name   string
	Params Parameters
	Shared *Shared // where it is wanted in shared memory; nil: in the body
}

// Classes is how many of the best classes are wanted in the output's place, 0 for the output itself.
func (r *Requested) Classes() int64 {
	n, _ := r.Params.Int(paramClasses)
	return max(n, 0)
}

// Request asks for an inference.
type Request struct {
	ID      string // "" when the client gave none
	Params  Parameters
	Inputs  []Tensor
	Outputs []Requested // nil for all outputs
	raw     bool        // it was a raw binary request, whose outputs are all wanted raw
}

// IsBinary says whether an output is wanted raw.
func (r *Request) IsBinary(output string) bool {
	if i := slices.IndexFunc(r.Outputs, func(o Requested) bool { return o.Name == output }); i >= 0 {
		if yes, given := r.Outputs[i].Params.Bool(paramBinary); given {
			return yes
		}
	}
	yes, given := r.Params.Bool(paramBinaryOutputs)
	return yes || r.raw && !given
}

// WantsBinary says whether any output may be wanted raw.
func (r *Request) WantsBinary() bool {
	if yes, _ := r.Params.Bool(paramBinaryOutputs); yes || r.raw {
		return true
	}
	return slices.ContainsFunc(r.Outputs, func(o Requested) bool { yes, _ := o.Params.Bool(paramBinary); return yes })
}

// WantsClasses says whether the best classes are wanted in any output's place.
func (r *Request) WantsClasses() bool {
	return slices.ContainsFunc(r.Outputs, func(o Requested) bool { return o.Classes() > 0 })
}

// Rows is the length of the inputs' first dimension, 1 when there is none.
func (r *Request) Rows() int {
	if len(r.Inputs) == 0 || len(r.Inputs[0].Shape) == 0 {
		return 1
	}
	return int(min(max(r.Inputs[0].Shape[0], 1), 1<<31-1))
}

// Response is the answer to a request.
type Response struct {
	Model, Version, ID string // "" for what is not known or was not asked for
	Params             Parameters
	Outputs            []Tensor
}

// Select leaves only what was asked for, in that order, with classes where they were. labels are the classes' names by output; batched says that
// the first dimension of an output is that of the rows.
func (r *Response) Select(wanted []Requested, labels map[string][]string, batched func(output *Tensor) bool) error {
	if len(wanted) == 0 {
		return nil
	}
	chosen := make([]Tensor, 0, len(wanted))
	for i := range wanted {
		w := &wanted[i]
		at := slices.IndexFunc(r.Outputs, func(t Tensor) bool { return t.Name == w.Name })
		if at < 0 {
			return fault.Newf(fault.BadRequest, "unexpected inference output '%s' for model '%s'", w.Name, r.Model)
		}
		t := r.Outputs[at]
		if k := w.Classes(); k > 0 {
			if err := t.Resolve(); err != nil {
				return err
			}
			classes, err := Classify(&t.Tensor, k, labels[t.Name], batched(&t))
			if err != nil {
				return err
			}
			t = Tensor{Tensor: classes}
		}
		chosen = append(chosen, t)
	}
	r.Outputs = chosen
	return nil
}

func bad(format string, args ...any) error { return fault.Newf(fault.BadRequest, format, args...) }

// TextOutput is the name of the output that holds what a backend has answered as text.
const TextOutput = "text_output"

// TextResponse is a response with one output: a text that a backend has answered.
func TextResponse(text []byte) *Response {
	t := tensor.Tensor{Name: TextOutput, DType: tensor.Bytes, Shape: []int64{1}, Data: tensor.AppendElement(nil, text)}
	return &Response{Outputs: []Tensor{{Tensor: t}}}
}
