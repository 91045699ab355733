package onnx

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/malformed"
	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
)

// lengthHeader says how long the JSON part of an Open Inference Protocol body is, when tensors follow it as they are.
const lengthHeader = "inference-header-content-length"

const (
	jsonType   = "application/json"
	binaryType = "application/octet-stream"
)

// protocolReply says how an Open Inference Protocol request wants its answer.
type protocolReply struct {
	id     json.RawMessage // of the request, nil for none
	binary bool            // all outputs, unless each says otherwise
	each   map[string]bool // binary or not, by the output's name
}

func (p *protocolReply) isBinary(name string) bool {
	if b, said := p.each[name]; said {
		return b
	}
	return p.binary
}

// protocolRequest is a request of the protocol. What is not here is the frontend's.
type protocolRequest struct {
	ID         json.RawMessage `json:"id"`
	Parameters struct {
		BinaryOutput bool `json:"binary_data_output"`
	} `json:"parameters"`
	Inputs  []protocolInput `json:"inputs"`
	Outputs []struct {
		Name       string `json:"name"`
		Parameters struct {
			Binary *bool `json:"binary_data"`
		} `json:"parameters"`
	} `json:"outputs"`
}

type protocolInput struct {
	Name       string  `json:"name"`
	DataType   string  `json:"datatype"`
	Shape      []int64 `json:"shape"`
	Parameters struct {
		Size *int64 `json:"binary_data_size"`
	} `json:"parameters"`
	Data json.RawMessage `json:"data"`
}

// headerOf gives a header's value.
func headerOf(item *handlersdk.Item, name string) (string, bool) {
	for _, f := range item.Header {
		if strings.EqualFold(f.Name, name) {
			return f.Value, true
		}
	}
	return "", false
}

// protocolBody reads a body of the protocol; there is none when ok is false. tensors that follow the JSON part share the body's memory.
func (h *Handler) protocolBody(item *handlersdk.Item, body []byte, j *job) (found []tensor.Tensor, ok bool, err error) {
	text, said := headerOf(item, lengthHeader)
	if !said {
		if !h.looksLikeProtocol(body) {
			return nil, false, nil
		}
		found, err = h.protocol(body, nil, j)
		return found, true, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < 0 || n > len(body) {
		return nil, true, bad("%s is %.40q, and the body has %d bytes: it has to be the length of the body's JSON part", lengthHeader, text, len(body))
	}
	if n == 0 {
		found, err = h.rawBody(body, j)
		return found, true, err
	}
	found, err = h.protocol(body[:n], body[n:], j)
	return found, true, err
}

// looksLikeProtocol tells a request of the protocol from an object of arrays by the inputs' names.
func (h *Handler) looksLikeProtocol(body []byte) bool {
	if h.has("inputs") {
		return looksLikeRequest(body)
	}
	var members map[string]json.RawMessage // any object with inputs is meant to be one, however wrong
	return objectOf(body, &members) == nil && members["inputs"] != nil
}

// looksLikeRequest says whether a body has inputs with names and types.
func looksLikeRequest(body []byte) bool {
	text := bytes.TrimLeft(body, " \t\r\n")
	if len(text) == 0 || text[0] != '{' {
		return false
	}
	var request struct {
		Inputs []struct {
			Name     *string `json:"name"`
			DataType *string `json:"datatype"`
		} `json:"inputs"`
	}
	return json.Unmarshal(text, &request) == nil && len(request.Inputs) > 0 && request.Inputs[0].Name != nil && request.Inputs[0].DataType != nil
}

// rawBody takes a body for the elements of the only input; all outputs are answered the same way.
func (h *Handler) rawBody(body []byte, j *job) ([]tensor.Tensor, error) {
	j.reply.protocol = &protocolReply{binary: true}
	if len(h.session.Inputs) != 1 {
		return nil, bad("%s is 0, so that the body is one input's elements, and the model has %d inputs", lengthHeader, len(h.session.Inputs))
	}
	port := &h.session.Inputs[0]
	if port.DType == tensor.Bytes { // one text, as other servers take it
		if slices.ContainsFunc(port.Shape, func(d int64) bool { return d > 1 }) || port.Shape == nil {
			return nil, bad("the input %q has the shape %v and cannot be sent as one text", port.Name, port.Shape)
		}
		t := tensor.Tensor{Name: port.Name, DType: tensor.Bytes, Shape: slices.Repeat([]int64{1}, len(port.Shape)), Data: tensor.AppendElement(nil, body)}
		return []tensor.Tensor{t}, nil
	}
	t, ok := elements(port, body)
	if !ok {
		return nil, bad("the body has %d bytes, and they do not make up whole rows of the input %q, which is %s", len(body), port.Name, describePort(port))
	}
	return []tensor.Tensor{t}, nil
}

// protocol reads the JSON part and the tensors that follow it.
func (h *Handler) protocol(text, rest []byte, j *job) ([]tensor.Tensor, error) {
	j.reply.protocol = &protocolReply{each: map[string]bool{}}
	var request protocolRequest
	if err := json.Unmarshal(text, &request); err != nil {
		return nil, bad("the request is no JSON object of the Open Inference Protocol ({\"inputs\": [{\"name\", \"shape\", \"datatype\", \"data\"}]}): %s", malformed.JSON(err))
	}
	if len(request.ID) > 0 && string(request.ID) != "null" {
		j.reply.protocol.id = request.ID
	}
	j.reply.protocol.binary = request.Parameters.BinaryOutput
	for i := range request.Outputs {
		o := &request.Outputs[i]
		if !slices.Contains(h.names, o.Name) {
			return nil, bad("the model has no output %q; it has %s", o.Name, describe(h.session.Outputs))
		}
		if slices.Contains(j.wanted, o.Name) {
			return nil, bad("the output %q is asked for twice", o.Name)
		}
		j.wanted = append(j.wanted, o.Name)
		if o.Parameters.Binary != nil {
			j.reply.protocol.each[o.Name] = *o.Parameters.Binary
		}
	}
	var all []tensor.Tensor
	for i := range request.Inputs {
		t, err := h.protocolTensor(&request.Inputs[i], &rest)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	if len(rest) > 0 {
		return nil, bad("%d bytes follow the request's last tensor", len(rest))
	}
	return all, nil
}

// protocolTensor reads one input: its data, or its bytes off the front of rest.
func (h *Handler) protocolTensor(in *protocolInput, rest *[]byte) (tensor.Tensor, error) {
	t := tensor.Tensor{Name: in.Name, Shape: in.Shape}
	port, err := h.input(in.Name)
	if err != nil {
		return t, err
	}
	t.DType, err = tensor.ParseDType(in.DataType)
	switch {
	case err != nil:
		return t, bad("input %q: %w", in.Name, err)
	case !port.IsTensor():
		return t, bad("the input %q is a %s, for which the protocol has no form", port.Name, port.Kind)
	case t.DType != port.DType:
		return t, bad("input %q has the datatype %s, and the model wants %s", in.Name, t.DType, port.DType)
	case in.Shape == nil:
		return t, bad("input %q has no shape", in.Name)
	}
	if in.Parameters.Size == nil {
		if in.Data == nil {
			return t, bad("input %q has neither data nor the parameter binary_data_size", in.Name)
		}
		if t, err = tensor.ParseJSON(in.Name, t.DType, in.Shape, in.Data); err != nil {
			return t, bad("%w", err)
		}
		return t, nil
	}
	size := *in.Parameters.Size
	switch {
	case in.Data != nil:
		return t, bad("input %q has data and the parameter binary_data_size: one of them is enough", in.Name)
	case size < 0 || size > int64(len(*rest)):
		return t, bad("input %q has %d bytes by its parameter binary_data_size, and the body has %d more", in.Name, size, len(*rest))
	}
	t.Data, *rest = (*rest)[:size:size], (*rest)[size:]
	if err := t.Check(); err != nil {
		return t, bad("%w", err)
	}
	return t, nil
}

// protocolAnswer writes a response. Lists and maps have no form there but a text for each row.
func (h *Handler) protocolAnswer(j *job) (handlersdk.Result, error) {
	type parameters struct {
		Size int `json:"binary_data_size"`
	}
	type output struct {
		Name       string          `json:"name"`
		DataType   tensor.DType    `json:"datatype"`
		Shape      []int64         `json:"shape"`
		Parameters *parameters     `json:"parameters,omitempty"`
		Data       json.RawMessage `json:"data,omitempty"`
	}
	response := struct {
		ID      json.RawMessage `json:"id,omitempty"`
		Model   string          `json:"model_name"`
		Version string          `json:"model_version"`
		Outputs []output        `json:"outputs"`
	}{ID: j.reply.protocol.id, Model: h.model.Name, Version: h.model.Version, Outputs: []output{}}
	var raw []byte
	binary := false
	for i, name := range h.namesOf(j) {
		t, err := asTensor(name, &j.outputs[i])
		if err != nil {
			return handlersdk.Result{}, err
		}
		o := output{Name: name, DataType: t.DType, Shape: t.Shape}
		if j.reply.protocol.isBinary(name) {
			binary = true
			o.Parameters = &parameters{Size: len(t.Data)}
			raw = append(raw, t.Data...)
		} else if o.Data, err = t.AppendJSON(nil); err != nil {
			return handlersdk.Result{}, err
		}
		response.Outputs = append(response.Outputs, o)
	}
	body, err := json.Marshal(response)
	if err != nil {
		return handlersdk.Result{}, err
	}
	if !binary {
		return handlersdk.Result{Header: []handlersdk.Field{{Name: "content-type", Value: jsonType}}, Body: body}, nil
	}
	return handlersdk.Result{
		Header: []handlersdk.Field{{Name: "content-type", Value: binaryType}, {Name: lengthHeader, Value: strconv.Itoa(len(body))}}, Body: append(body, raw...),
	}, nil
}

// asTensor gives an output as a tensor; a list becomes the JSON texts of its members, and none a tensor without elements.
func asTensor(name string, v *session.Value) (*tensor.Tensor, error) {
	if v.Tensor != nil {
		return v.Tensor, nil
	}
	members := v.List
	if v.Keys != nil {
		members = []session.Value{*v}
	}
	t := &tensor.Tensor{Name: name, DType: tensor.Bytes, Shape: []int64{int64(len(members))}}
	for _, m := range members {
		text, err := appendValue(nil, m)
		if err != nil {
			return nil, err
		}
		t.Data = tensor.AppendElement(t.Data, text)
	}
	return t, nil
}
