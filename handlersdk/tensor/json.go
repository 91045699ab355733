package tensor

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// maxDepth bounds how deep arrays may be nested.
const maxDepth = 32

// ParseJSON reads the elements of a tensor from a JSON array, flat or nested as the shape is, or from one value for a scalar. Elements of BYTES are
// strings. With a nil shape the nesting gives it. Name is only for errors.
func ParseJSON(name string, dtype DType, shape []int64, text []byte) (Tensor, error) {
	t := Tensor{Name: name, DType: dtype, Shape: shape}
	r := &reader{text: text, dtype: dtype}
	if n, err := Count(shape); err != nil {
		return t, fmt.Errorf("tensor %q: %w", name, err)
	} else if size := int64(dtype.Size()); size > 0 && shape != nil {
		r.data = make([]byte, 0, min(n*size, int64(len(text))*size))
	}
	if err := r.value(0); err != nil {
		return t, fmt.Errorf("tensor %q: %w", name, err)
	}
	if r.space(); r.at != len(r.text) {
		return t, fmt.Errorf("tensor %q: something follows the data at byte %d", name, r.at)
	}
	t.Data = r.data
	if shape == nil {
		t.Shape = r.shape
		return t, nil
	}
	n, _ := Count(shape) // it was counted above
	switch {
	case r.count != n:
		return t, fmt.Errorf("tensor %q: the shape %v has %d elements, and %d were given", name, shape, n, r.count)
	case len(r.shape) > 1 && !slices.Equal(r.shape, shape):
		return t, fmt.Errorf("tensor %q: the data is nested as %v, and the shape is %v", name, r.shape, shape)
	}
	return t, nil
}

// reader reads nested arrays of elements.
type reader struct {
	text  []byte
	at    int
	dtype DType
	data  []byte
	count int64
	shape []int64 // lengths of the arrays at each depth, -1 while not known
	leaf  int     // depth of the elements; only read once there was one
}

func (r *reader) space() {
	for r.at < len(r.text) {
		switch r.text[r.at] {
		case ' ', '\t', '\n', '\r':
			r.at++
		default:
			return
		}
	}
}

func (r *reader) value(depth int) error {
	r.space()
	if r.at >= len(r.text) {
		return errors.New("the data ends too early")
	}
	if r.text[r.at] == '[' {
		return r.array(depth)
	}
	if r.count > 0 && depth != r.leaf {
		return fmt.Errorf("arrays and elements are mixed at byte %d", r.at)
	}
	r.leaf = depth
	r.count++
	return r.element()
}

func (r *reader) array(depth int) error {
	if depth >= maxDepth {
		return fmt.Errorf("the data is nested deeper than %d", maxDepth)
	}
	if r.count > 0 && depth >= r.leaf {
		return fmt.Errorf("arrays and elements are mixed at byte %d", r.at)
	}
	if len(r.shape) == depth {
		r.shape = append(r.shape, -1)
	}
	begun := r.at
	r.at++
	n := int64(0)
	for {
		r.space()
		if r.at < len(r.text) && r.text[r.at] == ']' && n == 0 {
			r.at++
			break
		}
		if err := r.value(depth + 1); err != nil {
			return err
		}
		n++
		r.space()
		if r.at >= len(r.text) {
			return errors.New("the data ends within an array")
		}
		sign := r.text[r.at]
		r.at++
		if sign == ']' {
			break
		}
		if sign != ',' {
			return fmt.Errorf("there is %q at byte %d, and a comma or ] should be", sign, r.at-1)
		}
	}
	if r.shape[depth] >= 0 && r.shape[depth] != n {
		return fmt.Errorf("the array at byte %d has %d members, and others beside it have %d", begun, n, r.shape[depth])
	}
	r.shape[depth] = n
	return nil
}

// token gives the text of a number or a word.
func (r *reader) token() string {
	begun := r.at
	for r.at < len(r.text) {
		switch c := r.text[r.at]; {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '+', c == '-', c == '.':
			r.at++
			continue
		}
		break
	}
	return string(r.text[begun:r.at])
}

func (r *reader) element() error {
	begun := r.at
	if r.text[r.at] == '"' {
		return r.str()
	}
	word := r.token()
	wrong := func() error {
		if word == "" {
			word = string(r.text[begun:min(begun+1, len(r.text))])
		}
		return fmt.Errorf("%.40q at byte %d is no %s", word, begun, r.dtype)
	}
	if word == "" {
		return wrong()
	}
	switch r.dtype { //nolint:exhaustive // the others are integers
	case Bool:
		switch word {
		case "true", "1":
			r.data = append(r.data, 1)
		case "false", "0":
			r.data = append(r.data, 0)
		default:
			return wrong()
		}
	case FP16, BF16, FP32, FP64:
		f, err := strconv.ParseFloat(word, 64)
		if err != nil && (!errors.Is(err, strconv.ErrRange) || f == 0) || word[0] == '0' && len(word) > 1 && (word[1] == 'x' || word[1] == 'X') {
			return wrong()
		}
		r.float(f)
	case Bytes:
		return wrong()
	default:
		if !r.integer(word) {
			return wrong()
		}
	}
	return nil
}

func (r *reader) float(f float64) {
	switch r.dtype { //nolint:exhaustive // the floating ones
	case FP16:
		r.data = binary.LittleEndian.AppendUint16(r.data, FloatToHalf(float32(f)))
	case BF16:
		r.data = binary.LittleEndian.AppendUint16(r.data, floatToBrain(float32(f)))
	case FP32:
		r.data = binary.LittleEndian.AppendUint32(r.data, math.Float32bits(float32(f)))
	default:
		r.data = binary.LittleEndian.AppendUint64(r.data, math.Float64bits(f))
	}
}

// floatToBrain rounds to the nearest bfloat16, ties to even.
func floatToBrain(f float32) uint16 {
	bits := math.Float32bits(f)
	if f != f { //nolint:gocritic // not a number
		return uint16(bits>>16) | 0x40
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

// integer takes a whole number within the type's range; 3.0 is one, as for other servers.
func (r *reader) integer(word string) bool {
	size := r.dtype.Size()
	unsigned := r.dtype[0] == 'U'
	if unsigned {
		if n, err := strconv.ParseUint(word, 10, 8*size); err == nil {
			r.put(n, size)
			return true
		}
	} else if n, err := strconv.ParseInt(word, 10, 8*size); err == nil {
		r.put(uint64(n), size)
		return true
	}
	f, err := strconv.ParseFloat(word, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return false
	}
	n := int64(f)
	low, high := -int64(1)<<(8*size-1), int64(1)<<(8*size-1)-1
	if unsigned {
		low, high = 0, int64(1)<<min(8*size, 62)-1
	}
	if n < low || n > high {
		return false
	}
	r.put(uint64(n), size)
	return true
}

func (r *reader) put(n uint64, size int) {
	for range size {
		r.data = append(r.data, byte(n))
		n >>= 8
	}
}

// str reads a string, which only BYTES has.
func (r *reader) str() error {
	if r.dtype != Bytes {
		return fmt.Errorf("there is a string at byte %d, and the datatype is %s", r.at, r.dtype)
	}
	begun := r.at
	for r.at++; r.at < len(r.text) && r.text[r.at] != '"'; r.at++ {
		if r.text[r.at] == '\\' {
			r.at++
		}
	}
	if r.at >= len(r.text) {
		return errors.New("the data ends within a string")
	}
	r.at++
	var s string
	if err := json.Unmarshal(r.text[begun:r.at], &s); err != nil {
		return fmt.Errorf("the string at byte %d cannot be read: %w", begun, err)
	}
	r.data = AppendElement(r.data, []byte(s))
	return nil
}

// AppendJSON writes the elements as a flat JSON array. Elements of BYTES that are no UTF-8 text are written in base64. Numbers that JSON cannot write are
// null.
func (t *Tensor) AppendJSON(text []byte) ([]byte, error) {
	if err := t.Check(); err != nil {
		return text, err
	}
	text = append(text, '[')
	if t.DType == Bytes {
		elements, err := t.Elements()
		if err != nil {
			return text, err
		}
		for i, e := range elements {
			if i > 0 {
				text = append(text, ',')
			}
			if text, err = appendText(text, e); err != nil {
				return text, err
			}
		}
		return append(text, ']'), nil
	}
	size := t.DType.Size()
	for at := 0; at < len(t.Data); at += size {
		if at > 0 {
			text = append(text, ',')
		}
		text = t.appendNumber(text, at)
	}
	return append(text, ']'), nil
}

func (t *Tensor) appendNumber(text []byte, at int) []byte {
	switch t.DType { //nolint:exhaustive // the others are below
	case Bool:
		return strconv.AppendBool(text, t.Data[at] != 0)
	case Uint64:
		return strconv.AppendUint(text, binary.LittleEndian.Uint64(t.Data[at:]), 10)
	case Int64:
		return strconv.AppendInt(text, int64(binary.LittleEndian.Uint64(t.Data[at:])), 10)
	case FP16, BF16, FP32, FP64:
		f := t.number(at)
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return append(text, "null"...)
		}
		bits := 32
		if t.DType == FP64 {
			bits = 64
		}
		return strconv.AppendFloat(text, f, 'g', -1, bits)
	}
	return strconv.AppendInt(text, int64(t.number(at)), 10)
}

// usualDigits is about how many bytes a number has as a text, with its comma.
const usualDigits = 12

// AppendNested writes the elements as JSON arrays nested as the shape is; a scalar is one value.
func (t *Tensor) AppendNested(text []byte) ([]byte, error) {
	if err := t.Check(); err != nil {
		return text, err
	}
	var elements [][]byte
	if t.DType == Bytes {
		var err error
		if elements, err = t.Elements(); err != nil {
			return text, err
		}
	}
	if size := t.DType.Size(); size > 0 {
		text = slices.Grow(text, len(t.Data)/size*usualDigits)
	}
	at := 0
	return t.appendLevel(text, 0, &at, elements)
}

func (t *Tensor) appendLevel(text []byte, depth int, at *int, elements [][]byte) ([]byte, error) {
	if depth == len(t.Shape) {
		i := *at
		*at++
		if t.DType != Bytes {
			return t.appendNumber(text, i*t.DType.Size()), nil
		}
		return appendText(text, elements[i])
	}
	text = append(text, '[')
	if depth == len(t.Shape)-1 && t.DType != Bytes {
		return t.appendRow(text, int(t.Shape[depth]), at), nil
	}
	for i := range t.Shape[depth] {
		if i > 0 {
			text = append(text, ',')
		}
		var err error
		if text, err = t.appendLevel(text, depth+1, at, elements); err != nil {
			return text, err
		}
	}
	return append(text, ']'), nil
}

// appendRow writes the numbers of a row, and its end.
func (t *Tensor) appendRow(text []byte, n int, at *int) []byte {
	size := t.DType.Size()
	for i := range n {
		if i > 0 {
			text = append(text, ',')
		}
		text = t.appendNumber(text, (*at+i)*size)
	}
	*at += n
	return append(text, ']')
}

// appendText writes an element of BYTES.
func appendText(text, element []byte) ([]byte, error) {
	if !utf8.Valid(element) {
		element = []byte(base64.StdEncoding.EncodeToString(element))
	}
	quoted, err := json.Marshal(string(element))
	return append(text, quoted...), err
}
