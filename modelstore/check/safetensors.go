package check

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
)

const (
	mostTensorHeader = 100_000_000 // bytes, safetensors' own limit
	mostHeaderRead   = 32 << 20    // bytes of a header that is read here
	lengthBytes      = 8
)

// tensorEntry is one tensor of a safetensors file's header.
type tensorEntry struct {
	Dtype   string    `json:"dtype"`
	Shape   []int64   `json:"shape"`
	Offsets *[2]int64 `json:"data_offsets"`
}

// readSafetensors looks at the header of a safetensors file, and whether its data are there.
func readSafetensors(r io.ReaderAt, size int64) error {
	var length [lengthBytes]byte
	if size < lengthBytes {
		return fmt.Errorf("it is %d bytes long, and the length of its header takes %d", size, lengthBytes)
	}
	if _, err := r.ReadAt(length[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	n := binary.LittleEndian.Uint64(length[:])
	switch {
	case n > mostTensorHeader:
		return fmt.Errorf("its header is said to be %d bytes long: it is no safetensors file", n)
	case n > uint64(size-lengthBytes):
		return fmt.Errorf("it is cut off: its header is %d bytes long, and %d are there", n, size-lengthBytes)
	}
	if n > mostHeaderRead {
		return errTooManyFields
	}
	text := make([]byte, n)
	if _, err := r.ReadAt(text, lengthBytes); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !bytes.HasPrefix(text, []byte("{")) {
		return errors.New("its header is no JSON object")
	}
	var header map[string]json.RawMessage
	if err := json.Unmarshal(text, &header); err != nil {
		return fmt.Errorf("its header is no JSON: %w", err)
	}
	return checkTensors(header, size-lengthBytes-int64(n))
}

func checkTensors(header map[string]json.RawMessage, data int64) error {
	end := int64(0)
	for name, raw := range header {
		if name == "__metadata__" {
			continue
		}
		var t tensorEntry
		if err := json.Unmarshal(raw, &t); err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		if err := t.check(); err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		end = max(end, t.Offsets[1])
	}
	switch {
	case end > data:
		return fmt.Errorf("it is cut off: its tensors take %d bytes, and %d are there", end, data)
	case end < data:
		return fmt.Errorf("%d bytes follow its last tensor", data-end)
	}
	return nil
}

func (t *tensorEntry) check() error {
	if t.Offsets == nil {
		return errors.New("it has no data_offsets")
	}
	begin, end := t.Offsets[0], t.Offsets[1]
	if begin < 0 || end < begin {
		return fmt.Errorf("its data_offsets are %d and %d", begin, end)
	}
	bitsEach := dtypeBits(t.Dtype)
	if bitsEach == 0 {
		return nil // a newer type: nothing to compare with
	}
	count := uint64(bitsEach)
	for _, n := range t.Shape {
		if n < 0 {
			return fmt.Errorf("its shape has the negative size %d", n)
		}
		high, low := bits.Mul64(count, uint64(n))
		if high != 0 {
			return errors.New("its shape is larger than any memory")
		}
		count = low
	}
	if want := (count + 7) / 8; want != uint64(end-begin) {
		return fmt.Errorf("its shape takes %d bytes, and its data are %d long", want, end-begin)
	}
	return nil
}

// dtypeBits is the size of a value, 0 for a type that is not known.
func dtypeBits(dtype string) int {
	switch dtype {
	case "F64", "I64", "U64", "C64":
		return 64
	case "F32", "I32", "U32":
		return 32
	case "F16", "BF16", "I16", "U16":
		return 16
	case "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0":
		return 8
	case "F4":
		return 4
	}
	return 0
}
