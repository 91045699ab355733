package oip

import (
	"encoding/json"
	"maps"

	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/fault"
)

type (
	outTensor struct {
		Name   string          `json:"name"`
		DType  tensor.DType    `json:"datatype"`
		Shape  []int64         `json:"shape"`
		Params Parameters      `json:"parameters,omitempty"`
		Data   json.RawMessage `json:"data,omitempty"`
	}
	outRequested struct {
		Name   string     `json:"name"`
		Params Parameters `json:"parameters,omitempty"`
	}
	outRequest struct {
		ID      string         `json:"id,omitempty"`
		Model   string         `json:"model_name,omitempty"`
		Params  Parameters     `json:"parameters,omitempty"`
		Inputs  []outTensor    `json:"inputs"`
		Outputs []outRequested `json:"outputs,omitempty"`
	}
	outResponse struct {
		ID      string      `json:"id,omitempty"`
		Model   string      `json:"model_name"`
		Version string      `json:"model_version,omitempty"`
		Params  Parameters  `json:"parameters,omitempty"`
		Outputs []outTensor `json:"outputs"`
	}
)

// EncodeBinary writes a request for a backend that takes raw tensors: all of them raw, and all outputs wanted so. header is the length of the JSON.
func (r *Request) EncodeBinary() (body []byte, header int, err error) {
	out := outRequest{ID: r.ID, Params: maps.Clone(r.Params)}
	var tail [][]byte
	for i := range r.Inputs {
		t := &r.Inputs[i]
		if err := t.Resolve(); err != nil {
			return nil, 0, err
		}
		out.Inputs = append(out.Inputs, rawTensor(t))
		tail = append(tail, t.Data)
	}
	if out.Params == nil {
		out.Params = Parameters{}
	}
	out.Params[paramBinaryOutputs] = true
	for _, o := range r.Outputs {
		params := maps.Clone(o.Params)
		delete(params, paramClasses)
		delete(params, paramBinary)
		out.Outputs = append(out.Outputs, outRequested{Name: o.Name, Params: params})
	}
	return join(out, tail)
}

// rawTensor describes a tensor whose data is behind the JSON.
func rawTensor(t *Tensor) outTensor {
	params := maps.Clone(t.Params)
	if params == nil {
		params = Parameters{}
	}
	params[paramBinarySize] = int64(len(t.Data))
	return outTensor{Name: t.Name, DType: t.DType, Shape: shapeOrEmpty(t.Shape), Params: params}
}

// join writes the JSON and the raw tensors behind it.
func join(out any, tail [][]byte) (body []byte, header int, err error) {
	text, err := json.Marshal(out)
	if err != nil {
		return nil, 0, fault.New(fault.Internal, "the JSON cannot be written", err)
	}
	size := len(text)
	for _, d := range tail {
		size += len(d)
	}
	body = append(make([]byte, 0, size), text...)
	for _, d := range tail {
		body = append(body, d...)
	}
	return body, len(text), nil
}

// EncodeJSON writes a request for a backend that takes JSON only, as TorchServe's kservev2 envelope does. Elements of BYTES that are no text are base64.
func (r *Request) EncodeJSON(model string) ([]byte, error) {
	out := outRequest{ID: r.ID, Model: model, Params: r.Params}
	for i := range r.Inputs {
		t := &r.Inputs[i]
		o := outTensor{Name: t.Name, DType: t.DType, Shape: shapeOrEmpty(t.Shape), Params: t.Params, Data: t.JSON}
		if t.JSON == nil {
			var err error
			if o.Data, err = t.AppendJSON(nil); err != nil {
				return nil, fault.New(fault.BadRequest, err.Error(), nil)
			}
		}
		out.Inputs = append(out.Inputs, o)
	}
	for _, o := range r.Outputs {
		out.Outputs = append(out.Outputs, outRequested{Name: o.Name, Params: o.Params})
	}
	text, err := json.Marshal(out)
	if err != nil {
		return nil, fault.New(fault.Internal, "the JSON cannot be written", err)
	}
	return text, nil
}

// Encode writes a response, with the outputs raw that isBinary says. header is the length of the JSON, or -1 when nothing is raw.
func (r *Response) Encode(isBinary func(output string) bool) (body []byte, header int, err error) {
	out := outResponse{ID: r.ID, Model: r.Model, Version: r.Version, Params: r.Params, Outputs: make([]outTensor, 0, len(r.Outputs))}
	var tail [][]byte
	binary := false
	for i := range r.Outputs {
		t := &r.Outputs[i]
		if t.Shared != nil {
			out.Outputs = append(out.Outputs, outTensor{Name: t.Name, DType: t.DType, Shape: shapeOrEmpty(t.Shape), Params: t.Params})
			continue
		}
		if err := t.Resolve(); err != nil {
			return nil, 0, err
		}
		if isBinary(t.Name) {
			binary = true
			out.Outputs = append(out.Outputs, rawTensor(t))
			tail = append(tail, t.Data)
			continue
		}
		data, err := t.AppendJSON(nil)
		if err != nil {
			return nil, 0, fault.New(fault.HandlerFailed, err.Error(), nil)
		}
		out.Outputs = append(out.Outputs, outTensor{Name: t.Name, DType: t.DType, Shape: shapeOrEmpty(t.Shape), Params: t.Params, Data: data})
	}
	body, header, err = join(out, tail)
	if !binary {
		header = -1
	}
	return body, header, err
}

func shapeOrEmpty(shape []int64) []int64 {
	if shape == nil {
		return []int64{}
	}
	return shape
}
