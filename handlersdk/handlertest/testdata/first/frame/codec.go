package frame

import (
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

// Unmarshal implements encoding.CodecV2. A frame is copied once, into one piece that belongs to the receiver.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *[]byte:
		*m = data.Materialize()
		return nil
	case proto.Message:
		return proto.Unmarshal(data.Materialize(), m)
	default:
		return fmt.Errorf("cannot receive into a %T: neither a frame nor a message", v)
	}
}
