package check

import (
	"errors"
	"fmt"
	"io"
)

// message is a protobuf message that lies in a file. Of what is skipped nothing is read.
type message struct {
	r     *window
	at    int64
	end   int64
	depth int
}

// field is one field of a message.
type field struct {
	number int
	value  uint64  // of a varint or of a fixed one
	body   message // of a field with a length
	length int64   // of the body; -1 for a field that is a number
}

var errProtobuf = errors.New("it is no protobuf message")

const deepestMessage = 32

// each calls visit with every field in turn, until one returns an error.
func (m message) each(visit func(f *field) error) error {
	if m.depth > deepestMessage {
		return fmt.Errorf("%w: it is nested too deeply", errProtobuf)
	}
	for m.at < m.end {
		key, err := m.varint()
		if err != nil {
			return err
		}
		f := field{number: int(key >> 3), length: -1}
		if key>>3 == 0 || key>>3 > 1<<29-1 {
			return fmt.Errorf("%w: there is no field %d", errProtobuf, key>>3)
		}
		if err := m.value(&f, int(key&7)); err != nil {
			return err
		}
		if err := visit(&f); err != nil {
			return err
		}
	}
	return nil
}

func (m *message) value(f *field, kind int) error {
	var err error
	switch kind {
	case 0:
		f.value, err = m.varint()
		return err
	case 1, 5:
		size := int64(8)
		if kind == 5 {
			size = 4
		}
		if m.end-m.at < size {
			return fmt.Errorf("%w: it is cut off", errProtobuf)
		}
		m.at += size
		return nil
	case 2:
		n, err := m.varint()
		if err != nil {
			return err
		}
		if n > uint64(m.end-m.at) {
			return fmt.Errorf("%w: it is cut off: a part of %d bytes is said to follow, and %d do", errProtobuf, n, m.end-m.at)
		}
		f.length = int64(n)
		f.body = message{r: m.r, at: m.at, end: m.at + f.length, depth: m.depth + 1}
		m.at += f.length
		return nil
	}
	return fmt.Errorf("%w: there is no wire type %d", errProtobuf, kind)
}

func (m *message) varint() (uint64, error) {
	var n uint64
	for shift := range 10 {
		if m.at >= m.end {
			return 0, fmt.Errorf("%w: it is cut off", errProtobuf)
		}
		c, err := m.r.at(m.at)
		if err != nil {
			return 0, err
		}
		m.at++
		n |= uint64(c&0x7f) << (7 * shift)
		if c < 0x80 {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%w: a number has no end", errProtobuf)
}

// text gives a field's body as text, cut off at a sensible length.
func (f *field) text() string {
	if f.length <= 0 {
		return ""
	}
	buf := make([]byte, min(f.length, longestName))
	for i := range buf {
		c, err := f.body.r.at(f.body.at + int64(i))
		if err != nil {
			return ""
		}
		buf[i] = c
	}
	return string(buf)
}

// window reads a file piece by piece, where it is asked to.
type window struct {
	r     io.ReaderAt
	start int64
	buf   []byte
	store [4096]byte
}

func (w *window) at(pos int64) (byte, error) {
	if pos < w.start || pos >= w.start+int64(len(w.buf)) {
		n, err := w.r.ReadAt(w.store[:], pos)
		if n == 0 {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
		w.start, w.buf = pos, w.store[:n]
	}
	return w.buf[pos-w.start], nil
}
