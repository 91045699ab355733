package onnx

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/malformed"
	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
)

// statusBadRequest is HTTP's.
const statusBadRequest = 400

// explainHeader is True when an explanation is asked for, as handlers of TorchServe see it.
const explainHeader = "explain"

// bad is an error about what the client sent.
func bad(format string, args ...any) error {
	return handlersdk.Errorf(statusBadRequest, format, args...)
}

// read makes a job of a request.
func (h *Handler) read(item *handlersdk.Item) *job {
	j := &job{}
	if asked, _ := headerOf(item, explainHeader); asked == "True" {
		j.err = bad("there are no explanations of ONNX models: ask for predictions")
		return j
	}
	if h.task != nil && !h.isProtocol(item) {
		j.err = h.task.read(item, j)
		return j
	}
	found, err := h.tensors(item, j)
	if err != nil {
		j.err = err
		return j
	}
	j.err = h.arrange(j, found)
	return j
}

// isProtocol says whether a request is one of the Open Inference Protocol.
func (h *Handler) isProtocol(item *handlersdk.Item) bool {
	if _, said := headerOf(item, lengthHeader); said {
		return true
	}
	body, ok := only(item)
	return ok && looksLikeRequest(body.Data)
}

// tensors finds the tensors of a request: in one body, or in parts that are named like the inputs.
func (h *Handler) tensors(item *handlersdk.Item, j *job) ([]tensor.Tensor, error) {
	j.reply.read(item)
	if body, ok := only(item); ok {
		if found, ok, err := h.protocolBody(item, body.Data, j); ok {
			return found, err
		}
		return h.body(body)
	}
	if err := misread(item); err != nil {
		return nil, err
	}
	var all []tensor.Tensor
	for _, p := range item.Parts {
		port, err := h.input(p.Name)
		if err != nil {
			return nil, err
		}
		t, err := one(port, p.Data, isJSON(p.ContentType))
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

// only gives the one part that is a whole request.
func only(item *handlersdk.Item) (handlersdk.Part, bool) {
	if len(item.Parts) == 1 && (item.Parts[0].Name == fieldBody || item.Parts[0].Name == fieldData) {
		return item.Parts[0], true
	}
	return handlersdk.Part{}, false
}

func (h *Handler) input(name string) (*session.Port, error) {
	for _, ports := range [][]session.Port{h.session.Inputs, h.session.Defaults} {
		if i := slices.IndexFunc(ports, func(p session.Port) bool { return p.Name == name }); i >= 0 {
			return &ports[i], nil
		}
	}
	return nil, bad("the model has no input %q; it has %s", name, describe(append(slices.Clone(h.session.Inputs), h.session.Defaults...)))
}

// body reads a body: an object of arrays by the inputs' names, one array, a .npy file, or raw elements.
func (h *Handler) body(p handlersdk.Part) ([]tensor.Tensor, error) {
	var members map[string]json.RawMessage
	switch err := objectOf(p.Data, &members); {
	case members != nil:
		return h.object(members)
	case err != nil && (len(h.session.Inputs) != 1 || isJSON(p.ContentType)):
		return nil, bad("the body is no JSON: %s", malformed.JSON(err))
	}
	if len(h.session.Inputs) != 1 {
		return nil, bad(`the model has %d inputs: send an object with an array for each, such as {"NAME": [[…]]}; they are %s`, len(h.session.Inputs),
			describe(h.session.Inputs))
	}
	t, err := one(&h.session.Inputs[0], p.Data, isJSON(p.ContentType))
	return []tensor.Tensor{t}, err
}

// objectOf reads a JSON object; members stays nil for what does not begin as one.
func objectOf(data []byte, members *map[string]json.RawMessage) error {
	text := bytes.TrimLeft(data, " \t\r\n")
	if len(text) == 0 || text[0] != '{' || isBinary(text) {
		return nil
	}
	return json.Unmarshal(text, members)
}

// isBinary says whether data is no text, by its beginning: numbers as they lie in memory, for instance.
func isBinary(data []byte) bool {
	const enough = 64
	return bytes.IndexByte(data[:min(enough, len(data))], 0) >= 0
}

func (h *Handler) has(name string) bool {
	return slices.ContainsFunc(h.session.Inputs, func(p session.Port) bool { return p.Name == name })
}

func (h *Handler) object(members map[string]json.RawMessage) ([]tensor.Tensor, error) {
	var all []tensor.Tensor
	for name, value := range members {
		port, err := h.input(name)
		if err != nil {
			return nil, err
		}
		t, err := one(port, value, true)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

// isJSON says whether a media type is JSON's.
func isJSON(contentType string) bool { return strings.Contains(strings.ToLower(contentType), "json") }

// one reads one tensor: a .npy file, JSON, or the raw elements of a model whose rows have a length that is known. What is said to be JSON is never taken
// for elements: text that is cut off may well have their length.
func one(port *session.Port, data []byte, said bool) (tensor.Tensor, error) {
	if !port.IsTensor() {
		return tensor.Tensor{}, bad("the input %q is a %s, which cannot be sent", port.Name, port.Kind)
	}
	if tensor.IsNPY(data) {
		t, err := tensor.ParseNPY(port.Name, data)
		if err != nil {
			return t, bad("%w", err)
		}
		if t.DType != port.DType {
			return t, bad("the array for %q is %s, and the model wants %s", port.Name, t.DType, port.DType)
		}
		return t, nil
	}
	if !said && isBinary(data) {
		if raw, ok := elements(port, data); ok {
			return raw, nil
		}
	}
	text := bytes.TrimLeft(data, " \t\r\n")
	if len(text) == 0 {
		return tensor.Tensor{}, bad("there is nothing for the input %q", port.Name)
	}
	t, err := tensor.ParseJSON(port.Name, port.DType, nil, text)
	switch {
	case err == nil:
		return t, nil
	case said || port.DType.Size() > 1 && meansJSON(text):
		return t, bad("the data for %q is no JSON array that fits: %w", port.Name, err)
	}
	if raw, ok := elements(port, data); ok {
		return raw, nil
	}
	return t, bad("the data for %q is neither a .npy file, nor JSON (%w), nor raw elements of the model's shape %v", port.Name, err, port.Shape)
}

// meansJSON says whether somebody has most likely written JSON, be it cut off or wrong: numbers as they lie in memory are no text. Elements of one byte may
// well be one.
func meansJSON(text []byte) bool {
	return (text[0] == '[' || text[0] == '{') && utf8.Valid(text) && !bytes.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) && !unicode.IsSpace(r) })
}

// elements takes data for the elements of one or more rows, if their length is known and fits.
func elements(port *session.Port, data []byte) (tensor.Tensor, bool) {
	size := int64(port.DType.Size())
	if size <= 0 || len(port.Shape) == 0 || len(data) == 0 {
		return tensor.Tensor{}, false
	}
	row, err := tensor.Count(port.Shape[1:])
	if err != nil || row == 0 || int64(len(data))%(row*size) != 0 {
		return tensor.Tensor{}, false
	}
	t := tensor.Tensor{Name: port.Name, DType: port.DType, Shape: slices.Clone(port.Shape), Data: data}
	t.Shape[0] = int64(len(data)) / (row * size)
	return t, true
}

// arrange puts the tensors into the order of the model's inputs and checks their shapes. A dimension for the batch that is missing everywhere is added.
func (h *Handler) arrange(j *job, found []tensor.Tensor) error {
	byName := map[string]tensor.Tensor{}
	for _, t := range found {
		if _, twice := byName[t.Name]; twice {
			return bad("the input %q is there twice", t.Name)
		}
		byName[t.Name] = t
	}
	for i := range h.session.Inputs {
		port := &h.session.Inputs[i]
		t, ok := byName[port.Name]
		if !ok {
			if port.Optional {
				continue
			}
			return bad("the input %q is missing; the model has %s", port.Name, describe(h.session.Inputs))
		}
		if len(t.Shape)+1 == len(port.Shape) && (port.Shape[0] == -1 || port.Shape[0] == 1) && (len(j.inputs) == 0 || j.single) && j.reply.protocol == nil {
			j.single = true
			t.Shape = slices.Insert(slices.Clone(t.Shape), 0, 1)
		}
		if err := h.fitting(j, port, &t); err != nil {
			return err
		}
		j.inputs = append(j.inputs, session.Input{Name: port.Name, Value: session.Of(&t)})
	}
	return h.countRows(j, byName)
}

// countRows finds how many rows a request has, if it may be joined with others or has to be taken apart, and adds the inputs that have defaults.
func (h *Handler) countRows(j *job, byName map[string]tensor.Tensor) error {
	given := 0
	for i := range h.session.Defaults {
		port := &h.session.Defaults[i]
		t, ok := byName[port.Name]
		if !ok {
			continue
		}
		if err := h.fitting(j, port, &t); err != nil {
			return err
		}
		given++
		j.inputs = append(j.inputs, session.Input{Name: port.Name, Value: session.Of(&t)})
	}
	if given > 0 || len(j.inputs) == 0 || !h.joins.Load() && !j.loops {
		if j.loops {
			return bad("the model takes one row at a time, and only without values for the inputs that have defaults")
		}
		return nil // nobody knows what else has rows
	}
	first := &j.inputs[0]
	j.rows = first.Value.Tensor.Shape[0]
	for i := range j.inputs {
		if in := &j.inputs[i]; in.Value.Tensor.Shape[0] != j.rows {
			return bad("the inputs %q and %q have %d and %d rows", first.Name, in.Name, j.rows, in.Value.Tensor.Shape[0])
		}
	}
	return nil
}

// fitting compares a tensor's shape with the model's. Several rows for a model that takes one are given to it one by one.
func (h *Handler) fitting(j *job, port *session.Port, t *tensor.Tensor) error {
	if port.Shape == nil {
		return nil
	}
	ok := len(t.Shape) == len(port.Shape)
	for d := 0; ok && d < len(t.Shape); d++ {
		switch {
		case port.Shape[d] == -1 || port.Shape[d] == t.Shape[d]:
		case d == 0 && h.loops && t.Shape[0] > 1:
			j.loops = true
		default:
			ok = false
		}
	}
	if !ok {
		return bad("the input %q has the shape %v, and the model wants %v (-1 is any length)", port.Name, t.Shape, port.Shape)
	}
	return nil
}
