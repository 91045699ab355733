package tensor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const npyMagic = "\x93NUMPY"

// maxNPYHeader bounds the header of a .npy file.
const maxNPYHeader = 1 << 16

// IsNPY says whether data begins as a .npy file does.
func IsNPY(data []byte) bool { return bytes.HasPrefix(data, []byte(npyMagic)) }

var npyFields = struct{ descr, order, shape *regexp.Regexp }{ //nolint:gochecknoglobals // compiled once, never changed
	regexp.MustCompile(`'descr'\s*:\s*'([^']*)'`), regexp.MustCompile(`'fortran_order'\s*:\s*(True|False)`), regexp.MustCompile(`'shape'\s*:\s*\(([^)]*)\)`),
}

// ParseNPY reads an array as numpy.save writes it: numbers, booleans, and byte strings (S) and texts (U) as BYTES. The data may share memory with file.
func ParseNPY(name string, file []byte) (Tensor, error) {
	t := Tensor{Name: name}
	header, data, err := npyHeader(file)
	if err != nil {
		return t, err
	}
	descr, order, shape := npyFields.descr.FindStringSubmatch(header), npyFields.order.FindStringSubmatch(header), npyFields.shape.FindStringSubmatch(header)
	if descr == nil || order == nil || shape == nil {
		return t, errors.New("the .npy file's header cannot be read: it has no descr, fortran_order or shape")
	}
	if order[1] == "True" {
		return t, errors.New("the .npy file is in Fortran order; save numpy.ascontiguousarray of the array")
	}
	t.Shape = []int64{}
	for field := range strings.SplitSeq(shape[1], ",") {
		if field = strings.TrimSpace(field); field == "" {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSuffix(field, "L"), 10, 64)
		if err != nil {
			return t, fmt.Errorf("the .npy file's shape (%s) cannot be read", shape[1])
		}
		t.Shape = append(t.Shape, n)
	}
	count, err := Count(t.Shape)
	if err != nil {
		return t, err
	}
	return t, t.fillNPY(descr[1], count, data)
}

func npyHeader(file []byte) (header string, data []byte, err error) {
	const versions, short, long = 8, 10, 12
	if !IsNPY(file) || len(file) < long {
		return "", nil, errors.New("this is no .npy file")
	}
	n, at := int(binary.LittleEndian.Uint16(file[versions:])), short
	if file[6] >= 2 {
		wide := binary.LittleEndian.Uint32(file[versions:])
		if wide > maxNPYHeader {
			return "", nil, errors.New("the .npy file's header is too long")
		}
		n, at = int(wide), long
	}
	if len(file) < at+n {
		return "", nil, errors.New("the .npy file ends within its header")
	}
	return string(file[at : at+n]), file[at+n:], nil
}

// fillNPY takes the elements over.
func (t *Tensor) fillNPY(descr string, count int64, data []byte) error {
	if len(descr) < 2 {
		return fmt.Errorf("the .npy file's type %q is not known", descr)
	}
	order, kind := descr[0], descr[1:]
	types := map[string]DType{
		"b1": Bool, "u1": Uint8, "u2": Uint16, "u4": Uint32, "u8": Uint64, "i1": Int8, "i2": Int16, "i4": Int32, "i8": Int64, "f2": FP16, "f4": FP32, "f8": FP64,
	}
	if d, ok := types[kind]; ok {
		t.DType = d
		size := d.Size()
		if int64(len(data)) != count*int64(size) {
			return fmt.Errorf("the .npy file should have %d bytes of data and has %d", count*int64(size), len(data))
		}
		t.Data = data
		if order == '>' && size > 1 {
			t.Data = slices.Clone(data)
			for at := 0; at < len(t.Data); at += size {
				slices.Reverse(t.Data[at : at+size])
			}
		}
		return nil
	}
	width, err := strconv.ParseInt(kind[1:], 10, 32)
	if err != nil || width < 0 || kind[0] != 'S' && kind[0] != 'U' {
		return fmt.Errorf("the .npy file's type %q is not supported: numbers, booleans, byte strings (S) and texts (U) are", descr)
	}
	t.DType = Bytes
	return t.fillStrings(kind[0] == 'U', order == '>', width, count, data)
}

// fillStrings takes strings of a fixed width over, without the NULs that fill them up.
func (t *Tensor) fillStrings(wide, big bool, width, count int64, data []byte) error {
	const utf32 = 4
	step := width
	if wide {
		step *= utf32
	}
	if int64(len(data)) != count*step || step == 0 && count > int64(len(data)) {
		return fmt.Errorf("the .npy file should have %d bytes of data and has %d", count*step, len(data))
	}
	for at := int64(0); at < count*step; at += step {
		raw := data[at : at+step]
		if !wide {
			t.Data = AppendElement(t.Data, bytes.TrimRight(raw, "\x00"))
			continue
		}
		var text []rune
		for i := int64(0); i < step; i += utf32 {
			code := binary.LittleEndian.Uint32(raw[i:])
			if big {
				code = binary.BigEndian.Uint32(raw[i:])
			}
			text = append(text, rune(code))
		}
		t.Data = AppendElement(t.Data, []byte(strings.TrimRight(string(text), "\x00")))
	}
	return nil
}

// AppendNPY writes a numeric tensor as numpy.save does.
func (t *Tensor) AppendNPY(file []byte) ([]byte, error) {
	descr, ok := map[DType]string{
		Bool: "|b1", Uint8: "|u1", Uint16: "<u2", Uint32: "<u4", Uint64: "<u8", Int8: "|i1", Int16: "<i2", Int32: "<i4", Int64: "<i8", FP16: "<f2", FP32: "<f4",
		FP64: "<f8",
	}[t.DType]
	if !ok {
		return file, fmt.Errorf("tensor %q: %s has no .npy form", t.Name, t.DType)
	}
	if err := t.Check(); err != nil {
		return file, err
	}
	var shape strings.Builder
	for _, d := range t.Shape {
		fmt.Fprintf(&shape, "%d, ", d)
	}
	dims := strings.TrimSuffix(shape.String(), " ")
	if len(t.Shape) > 1 {
		dims = strings.TrimSuffix(dims, ",")
	}
	header := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, dims)
	const align, before = 64, 10
	pad := align - (before+len(header)+1)%align
	header += strings.Repeat(" ", pad%align) + "\n"
	file = append(file, npyMagic+"\x01\x00"...)
	file = binary.LittleEndian.AppendUint16(file, uint16(len(header)))
	file = append(file, header...)
	return append(file, t.Data...), nil
}
