package oip

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strconv"

	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/malformed"
)

// Bounds of what one request may have: far beyond real models, and far below what costs memory.
const (
	maxTensors    = 4096
	maxDimensions = 64
)

// The JSON objects of the protocol.
type (
	jsonTensor struct {
		Name   string                     `json:"name"`
		DType  string                     `json:"datatype"`
		Shape  []int64                    `json:"shape"`
		Params map[string]json.RawMessage `json:"parameters"`
		Data   json.RawMessage            `json:"data"`
	}
	jsonRequested struct {
		Name   string                     `json:"name"`
		Params map[string]json.RawMessage `json:"parameters"`
	}
	jsonRequest struct {
		ID      string                     `json:"id"`
		Params  map[string]json.RawMessage `json:"parameters"`
		Inputs  []jsonTensor               `json:"inputs"`
		Outputs []jsonRequested            `json:"outputs"`
	}
	jsonResponse struct {
		Model   string                     `json:"model_name"`
		Version json.RawMessage            `json:"model_version"`
		ID      json.RawMessage            `json:"id"`
		Params  map[string]json.RawMessage `json:"parameters"`
		Outputs []jsonTensor               `json:"outputs"`
	}
)

// Split cuts a body into JSON and raw tensors by the value of its HeaderLength header, "" for none. It says also whether the whole body is one
// raw tensor.
func Split(body []byte, header string) (text, tail []byte, raw bool, err error) {
	if header == "" {
		return body, nil, false, nil
	}
	n, err := strconv.ParseUint(header, 10, 63)
	switch {
	case err != nil || n > uint64(len(body)):
		return nil, nil, false, bad("inference header size should be in range (0, %d), got: %.40s", len(body), header)
	case n == 0:
		return nil, body, true, nil
	}
	return body[:n], body[n:], false, nil
}

// DecodeRequest reads a request: JSON, with raw tensors behind it when header, the value of HeaderLength, says so. Raw tensors share the body's
// memory.
func DecodeRequest(body []byte, header string) (*Request, error) {
	text, tail, raw, err := Split(body, header)
	switch {
	case err != nil:
		return nil, err
	case raw:
		return nil, bad("the body is a raw tensor, and nothing says of which input")
	}
	var j jsonRequest
	if err := json.Unmarshal(text, &j); err != nil {
		return nil, bad("failed to parse the request JSON buffer: %s", malformed.JSON(err))
	}
	if len(j.Inputs) == 0 {
		return nil, bad("the request has no inputs: an array of {name, shape, datatype, data} is needed")
	}
	if len(j.Inputs) > maxTensors || len(j.Outputs) > maxTensors {
		return nil, bad("the request has more than %d inputs or outputs", maxTensors)
	}
	r := &Request{ID: j.ID, Inputs: make([]Tensor, 0, len(j.Inputs))}
	for i := range j.Inputs {
		t, rest, err := decodeTensor(&j.Inputs[i], tail)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(r.Inputs, func(o Tensor) bool { return o.Name == t.Name }) {
			return nil, bad("input '%s' already exists in request", t.Name)
		}
		tail = rest
		r.Inputs = append(r.Inputs, t)
	}
	if len(tail) > 0 {
		return nil, bad("unexpected additional input data: %d bytes follow what the inputs' binary_data_size say", len(tail))
	}
	for i := range j.Outputs {
		o, err := decodeRequested(&j.Outputs[i])
		if err != nil {
			return nil, err
		}
		r.Outputs = append(r.Outputs, o)
	}
	if r.Params, err = parameters(j.Params, checkParameters, flag(paramBinaryOutputs)); err != nil {
		return nil, err
	}
	return r, nil
}

// decodeTensor reads an input or output and takes its raw data off tail.
func decodeTensor(j *jsonTensor, tail []byte) (Tensor, []byte, error) {
	t := Tensor{Tensor: tensor.Tensor{Name: j.Name, Shape: j.Shape}}
	var err error
	if t.DType, err = tensor.ParseDType(j.DType); err != nil {
		return t, nil, bad("tensor '%s': %v", j.Name, err)
	}
	if j.Shape == nil {
		return t, nil, bad("tensor '%s' has no shape", j.Name)
	}
	if _, err := tensor.Count(j.Shape); err != nil || len(j.Shape) > maxDimensions {
		return t, nil, bad("tensor '%s': the shape is negative, or too large", j.Name)
	}
	if t.Params, err = parameters(j.Params, takeShared(&t.Shared)); err != nil {
		return t, nil, err
	}
	_, sized := t.Params[paramBinarySize]
	size, whole := t.Params.Int(paramBinarySize)
	if _, fraction := t.Params[paramBinarySize].(float64); fraction { // also 8.0, which backends do not take
		return t, nil, bad("tensor '%s': %s has to be a whole number of bytes, without a point or an exponent", j.Name, paramBinarySize)
	}
	switch {
	case t.Shared != nil && (sized || len(j.Data) > 0):
		return t, nil, bad("tensor '%s' is in shared memory, and has data beside it", j.Name)
	case t.Shared != nil:
		return t, tail, nil
	case len(j.Data) > 0 && !bytes.Equal(j.Data, []byte("null")):
		if sized {
			return t, nil, bad("tensor '%s' has both data and %s", j.Name, paramBinarySize)
		}
		t.JSON = j.Data
		return t, tail, nil
	case !sized:
		return t, nil, bad("tensor '%s' has neither data nor the parameter %s", j.Name, paramBinarySize)
	case !whole || size < 0 || size > int64(len(tail)):
		return t, nil, bad("tensor '%s': %s is %v, and %d bytes are there", j.Name, paramBinarySize, t.Params[paramBinarySize], len(tail))
	}
	delete(t.Params, paramBinarySize)
	t.Data, tail = tail[:size:size], tail[size:]
	if err := t.Check(); err != nil {
		return t, nil, fault.New(fault.BadRequest, err.Error(), nil)
	}
	return t, tail, nil
}

// RawRequest makes a request of a body that is the raw data of a model's only input. shape may have one -1, whose length follows from the data, and
// with batched a first one of 1. The bytes of a BYTES input are one element.
func RawRequest(body []byte, name, datatype string, shape []int64, batched bool) (*Request, error) {
	dtype, err := tensor.ParseDType(datatype)
	if err != nil {
		return nil, bad("input '%s': %v", name, err)
	}
	t := tensor.Tensor{Name: name, DType: dtype, Shape: slices.Clone(shape), Data: body}
	if batched && len(shape) > 0 && shape[0] < 0 {
		t.Shape[0] = 1
	}
	if dtype == tensor.Bytes {
		t.Data = tensor.AppendElement(make([]byte, 0, len(body)+4), body) //nolint:mnd // the length that comes before an element
	}
	known := int64(max(dtype.Size(), 1))
	open := -1
	for i, d := range t.Shape {
		switch {
		case d >= 0:
			known *= d
		case open >= 0 || dtype == tensor.Bytes:
			return nil, bad("input '%s' has the shape %v: a raw body can be taken only for one with at most one open dimension; send JSON", name, shape)
		default:
			open = i
		}
	}
	if open >= 0 && known > 0 {
		t.Shape[open] = int64(len(body)) / known
	}
	if err := t.Check(); err != nil {
		return nil, fault.New(fault.BadRequest, err.Error(), nil)
	}
	return &Request{Inputs: []Tensor{{Tensor: t}}, raw: true}, nil
}

// parameters reads the values of parameters. Arrays and objects have no type in the protocol; they are kept as their JSON text.
// The checks see them as json.RawMessage: a text that looks alike is something else.
func parameters(raw map[string]json.RawMessage, checks ...func(Parameters) error) (Parameters, error) {
	if len(raw) == 0 {
		return nil, nil //nolint:nilnil // a nil map is no parameters
	}
	p := make(Parameters, len(raw))
	for name, text := range raw {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		var v any
		if err := d.Decode(&v); err != nil {
			return nil, bad("parameter '%s': %v", name, err)
		}
		switch v := v.(type) {
		case nil:
		case bool, string:
			p[name] = v
		case json.Number:
			p[name] = number(string(v))
		default:
			p[name] = json.RawMessage(bytes.TrimSpace(text))
		}
	}
	for _, check := range checks {
		if err := check(p); err != nil {
			return nil, err
		}
	}
	for name, value := range p {
		if text, is := value.(json.RawMessage); is {
			p[name] = string(text)
		}
	}
	return p, nil
}

func number(text string) any {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return n
	}
	f, _ := strconv.ParseFloat(text, 64) // JSON's own numbers; what is too large is infinite
	return f
}

// DecodeResponse reads a response as a backend gives it, which may leave out what the protocol wants: missing shapes are those of the data, and
// elements of BYTES may be any JSON.
func DecodeResponse(body []byte, header string) (*Response, error) {
	text, tail, raw, err := Split(body, header)
	if err != nil || raw {
		return nil, fault.New(fault.HandlerFailed, "the model's answer is cut wrongly: its "+HeaderLength+" does not fit", err)
	}
	var j jsonResponse
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&j); err != nil {
		return nil, notProtocol(errors.New(malformed.JSON(err)))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) || j.Outputs == nil {
		return nil, notProtocol(nil)
	}
	r := &Response{Model: j.Model, Version: textOf(j.Version), ID: textOf(j.ID)}
	if r.Params, err = parameters(j.Params); err != nil {
		return nil, notProtocol(err)
	}
	for i := range j.Outputs {
		var t Tensor
		if t, tail, err = decodeOutput(&j.Outputs[i], tail); err != nil {
			return nil, notProtocol(err)
		}
		r.Outputs = append(r.Outputs, t)
	}
	return r, nil
}

// decodeOutput reads an output and takes its raw data off tail.
func decodeOutput(o *jsonTensor, tail []byte) (Tensor, []byte, error) {
	if o.Shape == nil && len(o.Data) > 0 {
		var err error
		if o.Shape, err = shapeOf(o); err != nil {
			return Tensor{}, nil, err
		}
	}
	t, tail, err := decodeTensor(o, tail)
	if err == nil && t.Shared != nil {
		err = bad("output '%s' says that it is in shared memory, which the model has not", o.Name)
	}
	if err == nil && t.JSON != nil {
		if t.DType == tensor.Bytes {
			t.JSON = asTexts(t.JSON)
		}
		err = t.Resolve()
	}
	return t, tail, err
}

func notProtocol(err error) error {
	f := fault.New(fault.HandlerFailed, "the model's answer is not one of the Open Inference Protocol", err)
	if err != nil {
		f.Message += ": " + fault.Message(err)
	}
	f.Hint = `The handler has to answer {"outputs": [{"name", "shape", "datatype", "data"}]}; for Python handlers service_envelope=kservev2 does that.`
	f.Code = statusHandler
	return f
}

// statusHandler is what a wrong answer of a handler is told with: the server is well.
const statusHandler = 500

func shapeOf(o *jsonTensor) ([]int64, error) {
	dtype, err := tensor.ParseDType(o.DType)
	if err != nil {
		return nil, err
	}
	text := o.Data
	if dtype == tensor.Bytes {
		text = asTexts(text)
	}
	t, err := tensor.ParseJSON(o.Name, dtype, nil, text)
	return t.Shape, err
}

// asTexts makes a flat list of strings of a list of anything, as long as it is one.
func asTexts(list json.RawMessage) json.RawMessage {
	var members []json.RawMessage
	if json.Unmarshal(list, &members) != nil {
		return list
	}
	changed := false
	for i, m := range members {
		if len(m) > 0 && m[0] != '"' && m[0] != '[' {
			quoted, err := json.Marshal(string(m))
			if err != nil {
				return list
			}
			members[i], changed = quoted, true
		}
	}
	if !changed {
		return list
	}
	text, err := json.Marshal(members)
	if err != nil {
		return list
	}
	return text
}

// textOf gives a value's text, whatever its type is.
func textOf(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return ""
	}
	return string(raw)
}
