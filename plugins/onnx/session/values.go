package session

import (
	"encoding/binary"
	"errors"
	"fmt"
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

// Run runs the model once: one tensor for each of Inputs, in their order, gives one Value for each of Outputs. The data of inputs is not copied.
func (s *Session) Run(inputs []tensor.Tensor) ([]Value, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.session == nil {
		return nil, errors.New("the model is closed")
	}
	if len(inputs) != len(s.Inputs) {
		return nil, fmt.Errorf("the model has %d inputs, and %d tensors were given", len(s.Inputs), len(inputs))
	}
	given := make([]ort.Value, 0, len(inputs))
	defer func() {
		for _, v := range given {
			_ = v.Destroy() // memory of this run, which nobody uses any more
		}
	}()
	for i := range inputs {
		v, err := valueOf(&inputs[i])
		if err != nil {
			return nil, err
		}
		given = append(given, v)
	}
	got := make([]ort.Value, len(s.Outputs))
	defer func() {
		for _, v := range got {
			if v != nil {
				_ = v.Destroy() // the same
			}
		}
	}()
	if err := s.session.Run(given, got); err != nil {
		return nil, fmt.Errorf("the model did not run: %w", err)
	}
	out := make([]Value, len(got))
	for i, v := range got {
		var err error
		if out[i], err = read(s.Outputs[i].Name, v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// valueOf makes a value of ONNX Runtime's that shares the tensor's memory.
func valueOf(t *tensor.Tensor) (ort.Value, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	if t.DType == tensor.Bytes {
		return stringsOf(t)
	}
	if n, _ := tensor.Count(t.Shape); n == 0 {
		return nil, fmt.Errorf("the input %q is empty: its shape is %v", t.Name, t.Shape)
	}
	if len(t.Shape) == 0 {
		return scalarOf(t)
	}
	for _, pair := range types {
		if pair.dtype == t.DType {
			v, err := ort.NewCustomDataTensor(t.Shape, aligned(t.Data, t.DType.Size()), pair.ort)
			if err != nil {
				return nil, fmt.Errorf("the input %q: %w", t.Name, err)
			}
			return v, nil
		}
	}
	return nil, fmt.Errorf("the input %q has the type %s, which ONNX Runtime does not know", t.Name, t.DType)
}

// aligned gives data at an address that is a multiple of size, as the library expects it.
func aligned(data []byte, size int) []byte {
	if size > 1 && uintptr(unsafe.Pointer(unsafe.SliceData(data)))%uintptr(size) != 0 { //nolint:gosec // looks at the address, nothing else
		return slices.Clone(data) // the allocator aligns it
	}
	return data
}

func stringsOf(t *tensor.Tensor) (ort.Value, error) {
	elements, err := t.Elements()
	if err != nil {
		return nil, err
	}
	if len(elements) == 0 {
		return nil, fmt.Errorf("the input %q is empty: its shape is %v", t.Name, t.Shape)
	}
	texts := make([]string, len(elements))
	for i, e := range elements {
		texts[i] = string(e)
	}
	v, err := ort.NewStringTensor(t.Shape)
	if err != nil {
		return nil, fmt.Errorf("the input %q: %w", t.Name, err)
	}
	if err := v.SetContents(texts); err != nil {
		return nil, errors.Join(fmt.Errorf("the input %q: %w", t.Name, err), v.Destroy())
	}
	return v, nil
}

// scalarOf makes a value without dimensions, which is a type of its own in the library's binding.
func scalarOf(t *tensor.Tensor) (ort.Value, error) {
	d := t.Data
	switch t.DType { //nolint:exhaustive // the others are below
	case tensor.Bool:
		return ort.NewScalar(d[0] != 0)
	case tensor.Uint8:
		return ort.NewScalar(d[0])
	case tensor.Int8:
		return ort.NewScalar(int8(d[0]))
	case tensor.Uint16:
		return ort.NewScalar(binary.LittleEndian.Uint16(d))
	case tensor.Int16:
		return ort.NewScalar(int16(binary.LittleEndian.Uint16(d)))
	case tensor.Uint32:
		return ort.NewScalar(binary.LittleEndian.Uint32(d))
	case tensor.Int32:
		return ort.NewScalar(int32(binary.LittleEndian.Uint32(d)))
	case tensor.Uint64:
		return ort.NewScalar(binary.LittleEndian.Uint64(d))
	case tensor.Int64:
		return ort.NewScalar(int64(binary.LittleEndian.Uint64(d)))
	case tensor.FP32:
		f, err := t.Floats()
		if err != nil {
			return nil, err
		}
		return ort.NewScalar(f[0])
	case tensor.FP64:
		return ort.NewScalar(*(*float64)(unsafe.Pointer(unsafe.SliceData(slices.Clone(d))))) //nolint:gosec // eight bytes, aligned
	}
	return nil, fmt.Errorf("the input %q is a scalar of the type %s, which cannot be handed over", t.Name, t.DType)
}
