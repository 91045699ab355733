package frame_test

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

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
