package onnx

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
)

// reply says how a request wants its answer.
type reply struct {
	protocol *protocolReply // an Open Inference Protocol response
	npy      bool           // a .npy file
}

const npyType = "application/x-npy"

// read looks at what the client accepts.
func (r *reply) read(item *handlersdk.Item) {
	for _, f := range item.Header {
		if strings.EqualFold(f.Name, "accept") && strings.Contains(strings.ToLower(f.Value), npyType) {
			r.npy = true
		}
	}
}

// answer writes the outputs of a job.
func (h *Handler) answer(j *job) (handlersdk.Result, error) {
	contentType := jsonType
	var body []byte
	var err error
	switch {
	case j.reply.protocol != nil:
		return h.protocolAnswer(j)
	case h.task != nil:
		return h.taskAnswer(j)
	case j.reply.npy && len(j.outputs) == 1 && j.outputs[0].Tensor != nil:
		contentType = npyType
		t := *j.outputs[0].Tensor
		body, err = j.withoutBatch(&t).AppendNPY(nil)
	default:
		body, err = h.objectAnswer(j)
	}
	return handlersdk.Result{Header: []handlersdk.Field{{Name: "content-type", Value: contentType}}, Body: body}, err
}

// withoutBatch takes the dimension off that was added to the request.
func (j *job) withoutBatch(t *tensor.Tensor) *tensor.Tensor {
	if !j.single || len(t.Shape) == 0 || t.Shape[0] != 1 {
		return t
	}
	cut := *t
	cut.Shape = t.Shape[1:]
	return &cut
}

// objectAnswer is an object with nested arrays by the outputs' names.
func (h *Handler) objectAnswer(j *job) ([]byte, error) {
	body := []byte{'{'}
	for i, name := range h.namesOf(j) {
		if i > 0 {
			body = append(body, ',')
		}
		quoted, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		body = append(append(body, quoted...), ':')
		v := j.outputs[i]
		switch {
		case v.Tensor != nil:
			body, err = j.withoutBatch(v.Tensor).AppendNested(body)
		case j.single && len(v.List) == 1:
			body, err = appendValue(body, v.List[0])
		default:
			body, err = appendValue(body, v)
		}
		if err != nil {
			return nil, err
		}
	}
	return append(body, '}'), nil
}

// appendValue writes a value that may be a list or a map.
func appendValue(body []byte, v session.Value) ([]byte, error) {
	switch {
	case v.Tensor != nil:
		return v.Tensor.AppendNested(body)
	case v.Keys != nil:
		return appendMap(body, v)
	case v.List == nil:
		return append(body, "null"...), nil
	}
	body = append(body, '[')
	for i := range v.List {
		if i > 0 {
			body = append(body, ',')
		}
		var err error
		if body, err = appendValue(body, v.List[i]); err != nil {
			return nil, err
		}
	}
	return append(body, ']'), nil
}

// appendMap writes a map whose keys are integers or strings: JSON has strings only.
func appendMap(body []byte, v session.Value) ([]byte, error) {
	n := v.Keys.Rows()
	ones := make([]int64, n)
	for i := range ones {
		ones[i] = 1
	}
	keys, err := v.Keys.Split(ones)
	if err != nil {
		return nil, err
	}
	values, err := v.Values.Split(ones)
	if err != nil {
		return nil, err
	}
	body = append(body, '{')
	for i := range keys {
		if i > 0 {
			body = append(body, ',')
		}
		keys[i].Shape, values[i].Shape = nil, nil
		key, err := keys[i].AppendNested(nil)
		if err != nil {
			return nil, err
		}
		if key[0] != '"' {
			key = fmt.Appendf(nil, "%q", key)
		}
		body = append(append(body, key...), ':')
		if body, err = values[i].AppendNested(body); err != nil {
			return nil, err
		}
	}
	return append(body, '}'), nil
}
