package session

/*
#include "api.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
)

// read copies a value out of the library's memory.
func read(name string, v *C.OrtValue) (Value, error) {
	if v == nil {
		return Value{}, nil
	}
	var t C.ort_type
	var present C.int
	if err := statusError(C.ort_describe(v, &t, &present)); err != nil {
		return Value{}, err
	}
	if present == 0 {
		return Value{}, nil
	}
	switch ort.ONNXType(t.kind) {
	case ort.ONNXTypeTensor:
		got, err := readTensor(name, v, &t)
		return Value{Tensor: got}, err
	case ort.ONNXTypeSequence:
		list, err := members(name, v)
		return Value{List: list}, err
	case ort.ONNXTypeMap:
		pair, err := members(name, v)
		if err != nil {
			return Value{}, err
		}
		if len(pair) != 2 || pair[0].Tensor == nil || pair[1].Tensor == nil {
			return Value{}, errors.New("a map without keys or values")
		}
		return Value{Keys: pair[0].Tensor, Values: pair[1].Tensor}, nil
	}
	return Value{}, fmt.Errorf("a %s cannot be read", kindOf(ort.ONNXType(t.kind)))
}

// members reads the members of a list, or the keys and the values of a map.
func members(name string, v *C.OrtValue) ([]Value, error) {
	var n C.size_t
	if err := statusError(C.ort_count(v, &n)); err != nil {
		return nil, err
	}
	all := make([]Value, 0, n) // never nil: an empty list is one
	for i := range int(n) {
		var member *C.OrtValue
		if err := statusError(C.ort_member(v, C.int(i), &member)); err != nil {
			return nil, err
		}
		got, err := read(name, member)
		C.ort_release(member)
		if err != nil {
			return nil, err
		}
		all = append(all, got)
	}
	return all, nil
}

func readTensor(name string, v *C.OrtValue, info *C.ort_type) (*tensor.Tensor, error) {
	t := &tensor.Tensor{Name: name, DType: dtypeOf(ort.TensorElementDataType(info.element)), Shape: shapeOf(info)}
	if t.DType == "" {
		return nil, fmt.Errorf("elements of the type %s cannot be read", ort.TensorElementDataType(info.element))
	}
	n, err := tensor.Count(t.Shape)
	if err != nil || n == 0 {
		return t, err
	}
	if t.DType == tensor.Bytes {
		return t, readStrings(t, v, int(n))
	}
	var data unsafe.Pointer
	if err := statusError(C.ort_data(v, &data)); err != nil {
		return nil, err
	}
	size := int(n) * t.DType.Size()
	t.Data = make([]byte, size)
	copy(t.Data, unsafe.Slice((*byte)(data), size))
	return t, nil
}

func shapeOf(info *C.ort_type) []int64 {
	shape := make([]int64, max(int(info.rank), 0))
	for d := range shape {
		shape[d] = int64(info.shape[d])
	}
	return shape
}

func readStrings(t *tensor.Tensor, v *C.OrtValue, n int) error {
	var length C.size_t
	if err := statusError(C.ort_string_bytes(v, &length)); err != nil {
		return err
	}
	buffer := make([]byte, int(length)+1)
	offsets := make([]C.size_t, n)
	if err := statusError(C.ort_get_strings(v, unsafe.Pointer(&buffer[0]), length, &offsets[0], C.size_t(n))); err != nil {
		return err
	}
	t.Data = make([]byte, 0, int(length)+4*n)
	for i, begin := range offsets {
		end := length
		if i+1 < n {
			end = offsets[i+1]
		}
		t.Data = tensor.AppendElement(t.Data, buffer[begin:end])
	}
	return nil
}
