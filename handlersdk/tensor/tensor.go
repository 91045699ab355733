// Package tensor has the typed arrays that models take and give: their raw form as it travels, and their JSON and .npy forms.
package tensor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// DType is the type of a tensor's elements, by its name in the Open Inference Protocol.
type DType string

// The types. Elements of Bytes have any length each; FP16 and BF16 have no JSON form in the protocol, and are written as numbers here.
const (
	Bool   DType = "BOOL"
	Uint8  DType = "UINT8"
	Uint16 DType = "UINT16"
	Uint32 DType = "UINT32"
	Uint64 DType = "UINT64"
	Int8   DType = "INT8"
	Int16  DType = "INT16"
	Int32  DType = "INT32"
	Int64  DType = "INT64"
	FP16   DType = "FP16"
	BF16   DType = "BF16"
	FP32   DType = "FP32"
	FP64   DType = "FP64"
	Bytes  DType = "BYTES"
)

// Size is the number of bytes of an element, 0 for Bytes, whose elements have their own.
func (d DType) Size() int {
	switch d {
	case Bool, Uint8, Int8:
		return 1
	case Uint16, Int16, FP16, BF16:
		return 2
	case Uint32, Int32, FP32:
		return 4
	case Uint64, Int64, FP64:
		return 8
	case Bytes:
		return 0
	}
	return -1
}

// IsKnown says whether there is such a type.
func (d DType) IsKnown() bool { return d.Size() >= 0 }

// ParseDType finds a type by its name, in any case; STRING is Bytes.
func ParseDType(name string) (DType, error) {
	d := DType(strings.ToUpper(name))
	if d == "STRING" {
		d = Bytes
	}
	if !d.IsKnown() {
		return "", fmt.Errorf("the datatype %q is none of BOOL, UINT8 to UINT64, INT8 to INT64, FP16, BF16, FP32, FP64, BYTES", name)
	}
	return d, nil
}

// Tensor is a typed array. Data has the elements row by row, little-endian, without gaps; BOOL takes a byte each, and an element of BYTES is its length in
// four bytes and then itself.
type Tensor struct {
	Name  string
	DType DType
	Shape []int64
	Data  []byte
}

// MaxElements bounds what a shape may ask for.
const MaxElements = 1 << 34

// Count multiplies a shape's dimensions: 1 for a scalar. It refuses negative ones and products beyond MaxElements.
func Count(shape []int64) (int64, error) {
	n := int64(1)
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("the shape %v has a negative dimension", shape)
		}
		if d > 0 && n > MaxElements/d {
			return 0, fmt.Errorf("the shape %v has too many elements", shape)
		}
		n *= d
	}
	return n, nil
}

// Check compares the data with type and shape.
func (t *Tensor) Check() error {
	if !t.DType.IsKnown() {
		return fmt.Errorf("tensor %q: there is no datatype %q", t.Name, t.DType)
	}
	n, err := Count(t.Shape)
	if err != nil {
		return fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	if size := t.DType.Size(); size > 0 {
		if int64(len(t.Data)) != n*int64(size) {
			return fmt.Errorf("tensor %q: %s of the shape %v are %d bytes, and there are %d", t.Name, t.DType, t.Shape, n*int64(size), len(t.Data))
		}
		return nil
	}
	found := int64(0)
	for rest := t.Data; len(rest) > 0; found++ {
		if _, rest, err = nextElement(rest); err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
	}
	if found != n {
		return fmt.Errorf("tensor %q: the shape %v has %d elements, and there are %d", t.Name, t.Shape, n, found)
	}
	return nil
}

const lengthBytes = 4

var errElement = errors.New("an element of BYTES is cut off: each is its length in four bytes, little-endian, and then itself")

func nextElement(data []byte) (element, rest []byte, err error) {
	if len(data) < lengthBytes {
		return nil, nil, errElement
	}
	n := binary.LittleEndian.Uint32(data)
	data = data[lengthBytes:]
	if uint64(n) > uint64(len(data)) {
		return nil, nil, errElement
	}
	return data[:n], data[n:], nil
}

// Elements gives the elements of a Bytes tensor; they share its memory.
func (t *Tensor) Elements() ([][]byte, error) {
	if t.DType != Bytes {
		return nil, fmt.Errorf("tensor %q is %s, not BYTES", t.Name, t.DType)
	}
	var all [][]byte
	for rest := t.Data; len(rest) > 0; {
		var e []byte
		var err error
		if e, rest, err = nextElement(rest); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		all = append(all, e)
	}
	return all, nil
}

// AppendElement adds an element of a Bytes tensor to its data.
func AppendElement(data, element []byte) []byte {
	data = binary.LittleEndian.AppendUint32(data, uint32(len(element)))
	return append(data, element...)
}

// FromFloats makes an FP32 tensor.
func FromFloats(name string, shape []int64, values []float32) Tensor {
	data := make([]byte, 0, 4*len(values))
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return Tensor{Name: name, DType: FP32, Shape: shape, Data: data}
}

// Floats gives the elements of a numeric tensor as float32.
func (t *Tensor) Floats() ([]float32, error) {
	size := t.DType.Size()
	if size <= 0 {
		return nil, fmt.Errorf("tensor %q is %s and has no numbers", t.Name, t.DType)
	}
	all := make([]float32, 0, len(t.Data)/size)
	for at := 0; at+size <= len(t.Data); at += size {
		all = append(all, float32(t.number(at)))
	}
	return all, nil
}

// number gives the element at a byte offset as a float64; 64-bit integers lose what does not fit.
func (t *Tensor) number(at int) float64 {
	d := t.Data[at:]
	switch t.DType {
	case Bool, Uint8:
		return float64(d[0])
	case Int8:
		return float64(int8(d[0]))
	case Uint16:
		return float64(binary.LittleEndian.Uint16(d))
	case Int16:
		return float64(int16(binary.LittleEndian.Uint16(d)))
	case FP16:
		return float64(HalfToFloat(binary.LittleEndian.Uint16(d)))
	case BF16:
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(d)) << 16))
	case Uint32:
		return float64(binary.LittleEndian.Uint32(d))
	case Int32:
		return float64(int32(binary.LittleEndian.Uint32(d)))
	case FP32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(d)))
	case Uint64:
		return float64(binary.LittleEndian.Uint64(d))
	case Int64:
		return float64(int64(binary.LittleEndian.Uint64(d)))
	case FP64:
		return math.Float64frombits(binary.LittleEndian.Uint64(d))
	case Bytes:
	}
	return 0
}

// Rows is the length of the first dimension, 1 for a scalar.
func (t *Tensor) Rows() int64 {
	if len(t.Shape) == 0 {
		return 1
	}
	return t.Shape[0]
}

// Concat joins tensors along their first dimension. Names and types have to be the same, and all dimensions but the first.
func Concat(all []Tensor) (Tensor, error) {
	if len(all) == 0 {
		return Tensor{}, errors.New("there are no tensors to join")
	}
	joined := Tensor{Name: all[0].Name, DType: all[0].DType, Shape: slices.Clone(all[0].Shape)}
	if len(all) == 1 {
		joined.Data = all[0].Data
		return joined, nil
	}
	if len(joined.Shape) == 0 {
		return Tensor{}, fmt.Errorf("tensor %q is a scalar and has no dimension for a batch", joined.Name)
	}
	var bytes int
	joined.Shape[0] = 0
	for i := range all {
		t := &all[i]
		if t.DType != joined.DType || len(t.Shape) != len(joined.Shape) || !slices.Equal(t.Shape[1:], joined.Shape[1:]) {
			return Tensor{}, fmt.Errorf("tensors %q of %s %v and %s %v cannot be joined", joined.Name, joined.DType, all[0].Shape, t.DType, t.Shape)
		}
		joined.Shape[0] += t.Shape[0]
		bytes += len(t.Data)
	}
	joined.Data = make([]byte, 0, bytes)
	for i := range all {
		joined.Data = append(joined.Data, all[i].Data...)
	}
	return joined, nil
}

// Split cuts a tensor along its first dimension into parts of so many rows each, which share its memory.
func (t *Tensor) Split(rows []int64) ([]Tensor, error) {
	var sum int64
	for _, n := range rows {
		sum += n
	}
	if len(t.Shape) == 0 || t.Shape[0] != sum {
		return nil, fmt.Errorf("tensor %q of the shape %v cannot be cut into %d rows", t.Name, t.Shape, sum)
	}
	parts := make([]Tensor, 0, len(rows))
	rest := t.Data
	for _, n := range rows {
		shape := slices.Clone(t.Shape)
		shape[0] = n
		count, err := Count(shape)
		if err != nil {
			return nil, err
		}
		part := rest
		if size := t.DType.Size(); size > 0 {
			if int64(len(rest)) < count*int64(size) {
				return nil, t.Check()
			}
			part, rest = rest[:count*int64(size):count*int64(size)], rest[count*int64(size):]
		} else {
			for range count {
				if _, rest, err = nextElement(rest); err != nil {
					return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
				}
			}
			part = part[: len(part)-len(rest) : len(part)-len(rest)]
		}
		parts = append(parts, Tensor{Name: t.Name, DType: t.DType, Shape: shape, Data: part})
	}
	return parts, nil
}

// HalfToFloat widens an IEEE half-precision number.
func HalfToFloat(h uint16) float32 {
	sign, exponent, fraction := uint32(h>>15)<<31, uint32(h>>10)&0x1f, uint32(h)&0x3ff
	switch {
	case exponent == 0x1f: // infinite, or not a number
		return math.Float32frombits(sign | 0xff<<23 | fraction<<13)
	case exponent == 0 && fraction == 0:
		return math.Float32frombits(sign)
	case exponent == 0: // subnormal: it is normal in the wider type
		exponent = 127 - 15 + 1
		for fraction&0x400 == 0 {
			fraction <<= 1
			exponent--
		}
		return math.Float32frombits(sign | exponent<<23 | (fraction&0x3ff)<<13)
	}
	return math.Float32frombits(sign | (exponent+127-15)<<23 | fraction<<13)
}

// FloatToHalf rounds a number to the nearest half-precision one, ties to even.
func FloatToHalf(f float32) uint16 {
	bits := math.Float32bits(f)
	sign := uint16(bits>>16) & 0x8000
	exponent, fraction := int(bits>>23)&0xff, bits&0x7fffff
	switch {
	case exponent == 0xff && fraction != 0:
		return sign | 0x7e00
	case exponent == 0xff:
		return sign | 0x7c00
	}
	exponent -= 127 - 15
	if exponent >= 0x1f {
		return sign | 0x7c00
	}
	shift := 13
	if exponent <= 0 {
		if exponent < -10 {
			return sign
		}
		fraction |= 0x800000
		shift += 1 - exponent
		exponent = 0
	}
	half := uint32(exponent)<<10 + fraction>>shift
	if rest, tie := fraction&(1<<shift-1), uint32(1)<<(shift-1); rest > tie || rest == tie && half&1 == 1 {
		half++ // it may carry into the exponent, as it should
	}
	return sign | uint16(half)
}
