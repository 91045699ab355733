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
	protocol bool            // an Open Inference Protocol response
	id       json.RawMessage // of that request, nil for none
	npy      bool            // a .npy file
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
func (j *job) answer() (handlersdk.Result, error) {
	contentType := "application/json"
	var body []byte
	var err error
	switch {
	case j.reply.protocol:
		body, err = j.protocolAnswer()
	case j.reply.npy && len(j.outputs) == 1 && j.outputs[0].Tensor != nil:
		contentType = npyType
		t := *j.outputs[0].Tensor
		body, err = j.withoutBatch(&t).AppendNPY(nil)
	default:
		body, err = j.objectAnswer()
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
func (j *job) objectAnswer() ([]byte, error) {
	body := []byte{'{'}
	for i := range j.outputs {
		if i > 0 {
			body = append(body, ',')
		}
		name, err := json.Marshal(j.nameOf(i))
		if err != nil {
			return nil, err
		}
		body = append(append(body, name...), ':')
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

func (j *job) nameOf(i int) string {
	if t := j.outputs[i].Tensor; t != nil {
		return t.Name
	}
	return j.names[i]
}

// appendValue writes a value that may be a list or a map.
func appendValue(body []byte, v session.Value) ([]byte, error) {
	switch {
	case v.Tensor != nil:
		return v.Tensor.AppendNested(body)
	case v.Keys != nil:
		return appendMap(body, v)
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

// protocolAnswer is an Open Inference Protocol response. Lists and maps have no form there but a text for each row.
func (j *job) protocolAnswer() ([]byte, error) {
	type output struct {
		Name     string          `json:"name"`
		DataType tensor.DType    `json:"datatype"`
		Shape    []int64         `json:"shape"`
		Data     json.RawMessage `json:"data"`
	}
	response := struct {
		ID      json.RawMessage `json:"id,omitempty"`
		Model   string          `json:"model_name"`
		Version string          `json:"model_version"`
		Outputs []output        `json:"outputs"`
	}{ID: j.reply.id, Model: j.model.Name, Version: j.model.Version, Outputs: []output{}}
	for i := range j.outputs {
		t, err := j.asTensor(i)
		if err != nil {
			return nil, err
		}
		data, err := t.AppendJSON(nil)
		if err != nil {
			return nil, err
		}
		response.Outputs = append(response.Outputs, output{t.Name, t.DType, t.Shape, data})
	}
	return json.Marshal(response)
}

// asTensor gives an output as a tensor; a list becomes the JSON texts of its members.
func (j *job) asTensor(i int) (*tensor.Tensor, error) {
	v := j.outputs[i]
	if v.Tensor != nil {
		return v.Tensor, nil
	}
	members := v.List
	if v.Keys != nil {
		members = []session.Value{v}
	}
	t := &tensor.Tensor{Name: j.nameOf(i), DType: tensor.Bytes, Shape: []int64{int64(len(members))}}
	for _, m := range members {
		text, err := appendValue(nil, m)
		if err != nil {
			return nil, err
		}
		t.Data = tensor.AppendElement(t.Data, text)
	}
	return t, nil
}
