package backendv1_test

import (
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
)

var record = flag.Bool("record", false, "write the files of messages that have none yet")

// recorded are messages as the first version of the protocol sends them. Their files are never changed: plugins that were built then are still in use.
func recorded() map[string]proto.Message {
	gpu := int32(0)
	return map[string]proto.Message{
		"v1-load-request": &backendv1.LoadRequest{
			ModelName: "m", ModelVersion: "1.0", ModelDir: "/models/m", Handler: "handler.py", Envelope: "json", Gpu: &gpu, BatchSize: 8,
			LimitMaxImagePixels: true, MaxResponseBytes: 6553500,
		},
		"v1-load-response":       &backendv1.LoadResponse{Features: []string{"concurrent", "python"}},
		"v1-load-response-empty": &backendv1.LoadResponse{},
		"v1-load-response-failure": &backendv1.LoadResponse{Failure: &backendv1.LoadFailure{
			Message: "no weights", Detail: "Traceback\nno weights", OutOfMemory: true,
		}},
		// The description came later, and changes nothing for who does not know it.
		"v1-load-response-described": &backendv1.LoadResponse{Features: []string{"oip_binary"}, DescriptionJson: []byte(`{"platform":"p"}`)},
	}
}

func TestRecordedMessages(t *testing.T) {
	for name, want := range recorded() {
		file := filepath.Join("testdata", name+".hex")
		if _, err := os.Stat(file); *record && os.IsNotExist(err) {
			text, err := proto.MarshalOptions{Deterministic: true}.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll("testdata", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(hex.EncodeToString(text)+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b, err := hex.DecodeString(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		got := want.ProtoReflect().New().Interface()
		if err := proto.Unmarshal(b, got); err != nil {
			t.Errorf("%s cannot be read any more: %v", name, err)
			continue
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s means something else now (-then +now):\n%s", name, diff)
		}
		// What is sent now is read by who was built then.
		now, err := proto.MarshalOptions{Deterministic: true}.Marshal(want)
		if err != nil || hex.EncodeToString(now) != strings.TrimSpace(string(text)) {
			t.Errorf("%s is sent as %x now, %v", name, now, err)
		}
		// A field of a later version is left out.
		later := protowire.AppendVarint(protowire.AppendTag(b, 1000, protowire.VarintType), 1)
		if err := proto.Unmarshal(later, got); err != nil {
			t.Errorf("%s of a later version: %v", name, err)
		}
		got.ProtoReflect().SetUnknown(nil)
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s of a later version:\n%s", name, diff)
		}
	}
}
