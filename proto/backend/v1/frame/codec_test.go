package frame_test

import (
	"bytes"
	"strings"
	"testing"
	"unsafe"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
)

func TestCodecSendsFramesAsTheyAre(t *testing.T) {
	t.Parallel()
	payload := bytes.Repeat([]byte("x"), 10_000)
	for name, v := range map[string]any{"segments": frame.Buffers{payload[:5000], payload[5000:]}, "one piece": payload} {
		wire, err := frame.Codec{}.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if first := wire[0].ReadOnlyData(); &first[0] != &payload[0] {
			t.Errorf("%s: copied", name)
		}
		var got []byte
		if err := (frame.Codec{}).Unmarshal(wire, &got); err != nil || !bytes.Equal(got, payload) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
}

func TestCodecCarriesMessagesToo(t *testing.T) {
	t.Parallel()
	want := &backendv1.LoadRequest{ModelName: "m", BatchSize: 3}
	wire, err := frame.Codec{}.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got := &backendv1.LoadRequest{}
	if err := (frame.Codec{}).Unmarshal(wire, got); err != nil || !proto.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestCodecRefusesOtherValues(t *testing.T) {
	t.Parallel()
	if _, err := (frame.Codec{}).Marshal(7); err == nil {
		t.Error("a number was sent")
	}
	var n int
	if err := (frame.Codec{}).Unmarshal(mem.BufferSlice{}, &n); err == nil {
		t.Error("a number was received")
	}
}

// TestReceivedDataIsAligned: whatever comes before it, the data of a batch's first part begins where numbers may begin.
func TestReceivedDataIsAligned(t *testing.T) {
	t.Parallel()
	for length := range 16 {
		item := frame.Item{
			ID: strings.Repeat("i", length), Header: []frame.Field{{Name: "accept", Value: strings.Repeat("v", length/2)}, {Name: "x", Value: ""}},
			Parts: []frame.Part{{Name: "body", ContentType: strings.Repeat("c", length/3), Data: bytes.Repeat([]byte{1, 2, 3, 4}, 5000)}},
		}
		sent := frame.EncodeBatch(7, []frame.Item{item}).Join()
		for _, first := range []int{len(sent), 16 << 10, 40, 0} { // how much of it is in the first piece
			first = min(first, len(sent))
			var got []byte
			pieces := mem.BufferSlice{mem.SliceBuffer(sent[:first]), mem.SliceBuffer(sent[first:])}
			if err := (frame.Codec{}).Unmarshal(pieces, &got); err != nil || !bytes.Equal(got, sent) {
				t.Fatalf("%v, %d bytes, want %d", err, len(got), len(sent))
			}
			_, items, err := frame.DecodeBatch(got)
			if err != nil {
				t.Fatal(err)
			}
			if at := uintptr(unsafe.Pointer(&items[0].Parts[0].Data[0])); first > 1000 && at%8 != 0 { //nolint:gosec // its address is what is looked at
				t.Errorf("with an id of %d bytes the data lies at %x", length, at)
			}
		}
	}
}

// TestAnyBytesAreReceived: a frame that is none comes as it was sent, too.
func TestAnyBytesAreReceived(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		sent := append([]byte{1, 0, 0, 0, byte(rapid.IntRange(0, 2).Draw(t, "count")), 0, 0, 0}, rapid.SliceOfN(rapid.Byte(), 0, 120).Draw(t, "rest")...)
		for i := 16; i < len(sent); i++ {
			if rapid.Bool().Draw(t, "small") {
				sent[i] = 0
			}
		}
		var got []byte
		if err := (frame.Codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(sent)}, &got); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%x, %v, want %x", got, err, sent)
		}
	})
}
