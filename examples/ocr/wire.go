package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
)

// header is the part of an answer that is JSON.
type header struct {
	Outputs []part `json:"outputs"`
}

type part struct {
	Name       string         `json:"name"`
	DataType   tensor.DType   `json:"datatype"`
	Shape      []int64        `json:"shape"`
	Parameters map[string]int `json:"parameters"`
}

const (
	headerLength = "inference-header-content-length"
	sizeOf       = "binary_data_size"
)

// read gives the inputs of a request by their names: raw ones, or such in JSON. Each port has to be among them, with its type.
func read(item *handlersdk.Item, ports []handlersdk.Port) (map[string]tensor.Tensor, error) {
	body := item.Body().Data
	text := body
	if length := item.Get(headerLength); length != "" {
		n, err := strconv.Atoi(length)
		if err != nil || n < 0 || n > len(body) {
			return nil, fmt.Errorf("%s is %q", headerLength, length)
		}
		text = body[:n]
	}
	var request struct {
		Inputs []struct {
			Name       string                     `json:"name"`
			DataType   tensor.DType               `json:"datatype"`
			Shape      []int64                    `json:"shape"`
			Parameters map[string]json.RawMessage `json:"parameters"`
			Data       json.RawMessage            `json:"data"`
		} `json:"inputs"`
	}
	if err := json.Unmarshal(text, &request); err != nil {
		return nil, fmt.Errorf("a request of the Open Inference Protocol is wanted: %w", err)
	}
	all, rest := map[string]tensor.Tensor{}, body[len(text):]
	for _, in := range request.Inputs {
		t := tensor.Tensor{Name: in.Name, DType: in.DataType, Shape: in.Shape}
		var err error
		if in.Data != nil {
			t, err = tensor.ParseJSON(in.Name, in.DataType, in.Shape, in.Data)
		} else {
			var size int
			if err = json.Unmarshal(in.Parameters[sizeOf], &size); err != nil || size < 0 || size > len(rest) {
				return nil, fmt.Errorf("the input %s has neither data nor the %s of what is there", in.Name, sizeOf)
			}
			t.Data, rest = rest[:size], rest[size:]
			err = t.Check()
		}
		if err != nil {
			return nil, err
		}
		all[in.Name] = t
	}
	for _, port := range ports {
		t, there := all[port.Name]
		fits := there && t.DType == port.DataType && slices.EqualFunc(t.Shape, port.Shape, func(has, wants int64) bool { return wants < 0 || has == wants })
		if !fits {
			return nil, fmt.Errorf("the input %s has to be %s %v", port.Name, port.DataType, port.Shape)
		}
	}
	return all, nil
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
