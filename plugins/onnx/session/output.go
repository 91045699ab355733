package session

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
)

// Value is what a model gives: a tensor, or, from models of classical machine learning, a list of values or a map.
type Value struct {
	Tensor       *tensor.Tensor
	List         []Value
	Keys, Values *tensor.Tensor // of a map: as many of the one as of the other
}

// read copies a value out of the library's memory.
func read(name string, v ort.Value) (Value, error) {
	switch x := v.(type) {
	case *ort.Sequence:
		return readList(name, x)
	case *ort.Map:
		return readMap(name, x)
	}
	t, err := readTensor(name, v)
	return Value{Tensor: t}, err
}

func readList(name string, list *ort.Sequence) (Value, error) {
	members, err := list.GetValues()
	if err != nil {
		return Value{}, fmt.Errorf("the output %q: %w", name, err)
	}
	all := make([]Value, 0, len(members)) // never nil: an empty list is one
	for _, m := range members {
		v, err := read(name, m)
		if err != nil {
			return Value{}, err
		}
		all = append(all, v)
	}
	return Value{List: all}, nil
}

func readMap(name string, m *ort.Map) (Value, error) {
	keys, values, err := m.GetKeysAndValues()
	if err != nil {
		return Value{}, fmt.Errorf("the output %q: %w", name, err)
	}
	k, errKeys := readTensor(name, keys)
	v, errValues := readTensor(name, values)
	return Value{Keys: k, Values: v}, errors.Join(errKeys, errValues)
}

func readTensor(name string, v ort.Value) (*tensor.Tensor, error) {
	t := &tensor.Tensor{Name: name, DType: dtypeOf(ort.TensorElementDataType(v.DataType())), Shape: slices.Clone([]int64(v.GetShape()))}
	if t.Shape == nil {
		t.Shape = []int64{}
	}
	switch x := v.(type) {
	case *ort.StringTensor:
		texts, err := x.GetContents()
		if err != nil {
			return nil, fmt.Errorf("the output %q: %w", name, err)
		}
		for _, text := range texts {
			t.Data = tensor.AppendElement(t.Data, []byte(text))
		}
	case *ort.CustomDataTensor:
		t.Data = slices.Clone(x.GetData())
	default:
		data, err := numbers(v)
		if err != nil {
			return nil, fmt.Errorf("the output %q: %w", name, err)
		}
		t.Data = data
	}
	return t, t.Check()
}

// numbers copies the elements of a numeric tensor.
func numbers(v ort.Value) ([]byte, error) {
	switch x := v.(type) {
	case *ort.Tensor[float32]:
		return bytesOf(x.GetData()), nil
	case *ort.Tensor[float64]:
		return bytesOf(x.GetData()), nil
	case *ort.Tensor[int8]:
		return bytesOf(x.GetData()), nil
	case *ort.Tensor[uint8]:
		return bytesOf(x.GetData()), nil
	case *ort.Tensor[int16]:
		return bytesOf(x.GetData()), nil
	case *ort.Tensor[uint16]:
		return bytesOf(x.GetData()), nil
	case *ort.Tensor[int32]:
		return bytesOf(x.GetData()), nil
	case *ort.Tensor[uint32]:
		return bytesOf(x.GetData()), nil
	case *ort.Tensor[int64]:
		return bytesOf(x.GetData()), nil
	case *ort.Tensor[uint64]:
		return bytesOf(x.GetData()), nil
	case *ort.Tensor[bool]:
		return bytesOf(x.GetData()), nil
	}
	return scalarBytes(v)
}

func scalarBytes(v ort.Value) ([]byte, error) {
	switch x := v.(type) {
	case *ort.Scalar[float32]:
		return bytesOf([]float32{x.GetData()}), nil
	case *ort.Scalar[float64]:
		return bytesOf([]float64{x.GetData()}), nil
	case *ort.Scalar[int8]:
		return bytesOf([]int8{x.GetData()}), nil
	case *ort.Scalar[uint8]:
		return bytesOf([]uint8{x.GetData()}), nil
	case *ort.Scalar[int16]:
		return bytesOf([]int16{x.GetData()}), nil
	case *ort.Scalar[uint16]:
		return bytesOf([]uint16{x.GetData()}), nil
	case *ort.Scalar[int32]:
		return bytesOf([]int32{x.GetData()}), nil
	case *ort.Scalar[uint32]:
		return bytesOf([]uint32{x.GetData()}), nil
	case *ort.Scalar[int64]:
		return bytesOf([]int64{x.GetData()}), nil
	case *ort.Scalar[uint64]:
		return bytesOf([]uint64{x.GetData()}), nil
	case *ort.Scalar[bool]:
		return bytesOf([]bool{x.GetData()}), nil
	}
	return nil, fmt.Errorf("a value of the kind %s cannot be read", v.GetONNXType())
}

// bytesOf copies the memory of numbers, little-endian as all machines that this is built for are.
func bytesOf[T any](values []T) []byte {
	if len(values) == 0 {
		return nil
	}
	return slices.Clone(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*int(unsafe.Sizeof(values[0])))) //nolint:gosec // its own memory
}
