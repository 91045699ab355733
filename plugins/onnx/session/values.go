package session

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "api.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
)

// types pairs ONNX Runtime's element types with ours.
var types = []struct { //nolint:gochecknoglobals // a table, never changed
	ort   ort.TensorElementDataType
	dtype tensor.DType
}{
	{ort.TensorElementDataTypeFloat, tensor.FP32},
	{ort.TensorElementDataTypeDouble, tensor.FP64},
	{ort.TensorElementDataTypeFloat16, tensor.FP16},
	{ort.TensorElementDataTypeBFloat16, tensor.BF16},
	{ort.TensorElementDataTypeBool, tensor.Bool},
	{ort.TensorElementDataTypeUint8, tensor.Uint8},
	{ort.TensorElementDataTypeUint16, tensor.Uint16},
	{ort.TensorElementDataTypeUint32, tensor.Uint32},
	{ort.TensorElementDataTypeUint64, tensor.Uint64},
	{ort.TensorElementDataTypeInt8, tensor.Int8},
	{ort.TensorElementDataTypeInt16, tensor.Int16},
	{ort.TensorElementDataTypeInt32, tensor.Int32},
	{ort.TensorElementDataTypeInt64, tensor.Int64},
	{ort.TensorElementDataTypeString, tensor.Bytes},
}

func dtypeOf(t ort.TensorElementDataType) tensor.DType {
	for _, pair := range types {
		if pair.ort == t {
			return pair.dtype
		}
	}
	return ""
}

func elementOf(d tensor.DType) (ort.TensorElementDataType, bool) {
	for _, pair := range types {
		if pair.dtype == d {
			return pair.ort, true
		}
	}
	return 0, false
}

// Value is what a model takes and gives: a tensor, or, mostly from models of classical machine learning, a list of values or a map. The zero Value is none,
// which an optional input takes and an optional output may give.
type Value struct {
	Tensor       *tensor.Tensor
	List         []Value        // not nil for a list, which may be empty
	Keys, Values *tensor.Tensor // of a map: as many of the one as of the other
}

// Of makes a Value of a tensor.
func Of(t *tensor.Tensor) Value { return Value{Tensor: t} }

// IsNone says whether there is nothing.
func (v *Value) IsNone() bool { return v.Tensor == nil && v.List == nil && v.Keys == nil }

// statusError makes an error of what a call gave.
func statusError(status *C.OrtStatus) error {
	if status == nil {
		return nil
	}
	defer C.ort_release_status(status)
	return errors.New(C.GoString(C.ort_message(status)))
}

// givenValues holds values that were made for a run. Tensors share the memory of ours, which is pinned as long.
type givenValues struct {
	all  []*C.OrtValue
	pins runtime.Pinner
}

func (g *givenValues) release() {
	for _, v := range g.all {
		C.ort_release(v)
	}
	g.pins.Unpin()
}

func (g *givenValues) keep(v *C.OrtValue, status *C.OrtStatus) (*C.OrtValue, error) {
	if err := statusError(status); err != nil {
		return nil, err
	}
	g.all = append(g.all, v)
	return v, nil
}

// Kinds of values, by the library's numbers.
const (
	typeSequence = 2
	typeMap      = 3
)

func (g *givenValues) of(v *Value) (*C.OrtValue, error) {
	switch {
	case v.Tensor != nil:
		return g.tensor(v.Tensor)
	case v.List != nil:
		members := make([]*C.OrtValue, len(v.List))
		for i := range v.List {
			var err error
			if members[i], err = g.of(&v.List[i]); err != nil {
				return nil, err
			}
		}
		return g.collection(members, typeSequence)
	case v.Keys != nil && v.Values != nil:
		keys, err := g.tensor(v.Keys)
		if err != nil {
			return nil, err
		}
		values, err := g.tensor(v.Values)
		if err != nil {
			return nil, err
		}
		return g.collection([]*C.OrtValue{keys, values}, typeMap)
	}
	return nil, errors.New("there is no value")
}

func (g *givenValues) collection(members []*C.OrtValue, kind C.int) (*C.OrtValue, error) {
	if len(members) == 0 {
		return nil, errors.New("ONNX Runtime takes no empty sequence")
	}
	var v *C.OrtValue
	return g.keep(v, C.ort_collection(&members[0], C.size_t(len(members)), kind, &v))
}

func (g *givenValues) tensor(t *tensor.Tensor) (*C.OrtValue, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	if t.DType == tensor.Bytes {
		return g.strings(t)
	}
	element, known := elementOf(t.DType)
	if !known {
		return nil, fmt.Errorf("ONNX Runtime does not know the type %s", t.DType)
	}
	data := aligned(t.Data, t.DType.Size())
	if len(data) == 0 {
		data = make([]byte, t.DType.Size()) // an address, which even a tensor without elements has
	}
	g.pins.Pin(&data[0])
	var v *C.OrtValue
	status := C.ort_tensor(unsafe.Pointer(&data[0]), C.size_t(len(t.Data)), dims(t.Shape), C.size_t(len(t.Shape)), C.int(element), &v)
	return g.keep(v, status)
}

// dims gives the address of a shape.
func dims(shape []int64) *C.int64_t {
	return (*C.int64_t)(unsafe.SliceData(shape))
}

// aligned gives data at an address that is a multiple of size, as the library expects it.
func aligned(data []byte, size int) []byte {
	if size > 1 && uintptr(unsafe.Pointer(unsafe.SliceData(data)))%uintptr(size) != 0 {
		return slices.Clone(data) // the allocator aligns it
	}
	return data
}

func (g *givenValues) strings(t *tensor.Tensor) (*C.OrtValue, error) {
	elements, err := t.Elements()
	if err != nil {
		return nil, err
	}
	var v *C.OrtValue
	if v, err = g.keep(v, C.ort_strings(dims(t.Shape), C.size_t(len(t.Shape)), &v)); err != nil {
		return nil, err
	}
	for i, e := range elements {
		if err := statusError(C.ort_set_string(v, C.size_t(i), unsafe.Pointer(unsafe.SliceData(e)), C.size_t(len(e)))); err != nil {
			return nil, err
		}
	}
	return v, nil
}
