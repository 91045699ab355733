package frame

import (
	"encoding/binary"
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// CodecName is the content subtype of the Execute stream.
const CodecName = "flambeau"

// Codec sends frames (Buffers, []byte) as they are and receives them into *[]byte. Protobuf messages are encoded as usual,
// so that a server can force this codec for all its services.
type Codec struct{}

var _ encoding.CodecV2 = Codec{}

// Name gives CodecName.
func (Codec) Name() string { return CodecName }

// Marshal implements encoding.CodecV2. It copies no payload.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case Buffers:
		out := make(mem.BufferSlice, len(m))
		for i, s := range m {
			out[i] = mem.SliceBuffer(s)
		}
		return out, nil
	case []byte:
		return mem.BufferSlice{mem.SliceBuffer(m)}, nil
	case proto.Message:
		b, err := proto.Marshal(m)
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	default:
		return nil, fmt.Errorf("cannot send a %T: neither a frame nor a message", v)
	}
}

// Unmarshal implements encoding.CodecV2. A frame is copied once, into one piece that belongs to the receiver; the data of its first part begins at a multiple of eight bytes,
// so that who takes it for numbers need not copy it again.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *[]byte:
		*m = materialize(data)
		return nil
	case proto.Message:
		return proto.Unmarshal(data.Materialize(), m)
	default:
		return fmt.Errorf("cannot receive into a %T: neither a frame nor a message", v)
	}
}

const alignment = 8

func materialize(data mem.BufferSlice) []byte {
	if len(data) == 0 {
		return nil
	}
	frame := aligned(data.Len(), data[0].ReadOnlyData())
	data.CopyTo(frame)
	return frame
}

// aligned gives room for a frame that begins like this.
func aligned(size int, begin []byte) []byte {
	shift := -firstData(begin) & (alignment - 1)
	frame := make([]byte, size+alignment) // the allocator aligns it
	return frame[shift : shift+size : shift+size]
}

// firstData gives where the data of a batch's first part begins, 0 if that is not among what has come first.
func firstData(begin []byte) int {
	if len(begin) < headSize || Kind(begin[0]) != KindBatch {
		return 0
	}
	at := headSize
	number := func() int {
		if len(begin)-at < 4 {
			at = len(begin)
			return 0
		}
		at += 4
		return int(binary.LittleEndian.Uint32(begin[at-4:]))
	}
	text := func() { at = min(at+min(number(), len(begin)), len(begin)) }
	text() // id
	at = min(at+8, len(begin))
	for range min(number(), len(begin)) {
		text()
		text()
	}
	number() // of parts
	text()
	text()
	if len(begin)-at < 8 {
		return 0
	}
	return at + 8
}
