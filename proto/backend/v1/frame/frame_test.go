package frame_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
)

var update = flag.Bool("update", false, "rewrite the golden frames")

func goldenBatch() frame.Buffers {
	return frame.EncodeBatch(0x0102030405060708, []frame.Item{
		{
			ID:       "a1",
			Deadline: 1_700_000_000_000_000_001,
			Header:   []frame.Field{{Name: "X-One", Value: "1"}, {Name: "x-one", Value: "é"}},
			Parts: []frame.Part{
				{Name: "body", ContentType: "application/json", Data: []byte(`{"x":1}`)},
				{Name: "empty"},
			},
		},
		{ID: "a2"},
	})
}

func goldenResults(kind frame.Kind) frame.Buffers {
	return frame.EncodeResults(kind, 7, []frame.Result{
		{Status: 201, Header: []frame.Field{{Name: "content-type", Value: "text/plain"}}, Body: []byte("hello")},
		{Status: 404, Failure: &frame.Failure{Reason: frame.ReasonHandlerFailed, Message: "no such thing", Detail: "Traceback\n"}},
	})
}

// The golden frames are what other implementations of the protocol test themselves against.
func TestGoldenFrames(t *testing.T) {
	t.Parallel()
	for name, got := range map[string]frame.Buffers{
		"batch":   goldenBatch(),
		"results": goldenResults(frame.KindResults),
		"piece":   goldenResults(frame.KindPiece),
		"cancel":  frame.EncodeCancel(42),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join("testdata", name+".hex")
			text := hexLines(got.Join())
			if *update {
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), text); diff != "" {
				t.Errorf("the bytes on the wire changed (-want +got):\n%s", diff)
			}
		})
	}
}

func hexLines(b []byte) string {
	var out strings.Builder
	for len(b) > 0 {
		n := min(32, len(b))
		out.WriteString(hex.EncodeToString(b[:n]) + "\n")
		b = b[n:]
	}
	return out.String()
}

var (
	textGen = rapid.OneOf(rapid.SampledFrom([]string{"", "content-type", "é\x00\n", strings.Repeat("long ", 1000)}), rapid.StringN(0, 5, -1))
	dataGen = rapid.OneOf(rapid.SliceOfN(rapid.Byte(), 0, 100), rapid.Map(rapid.IntRange(4000, 9000), func(n int) []byte {
		return bytes.Repeat([]byte{byte(n)}, n)
	}))
	fieldGen = rapid.Custom(func(t *rapid.T) frame.Field {
		return frame.Field{Name: textGen.Draw(t, "name"), Value: textGen.Draw(t, "value")}
	})
	itemGen = rapid.Custom(func(t *rapid.T) frame.Item {
		return frame.Item{
			ID:       textGen.Draw(t, "id"),
			Deadline: rapid.Int64().Draw(t, "deadline"),
			Header:   rapid.SliceOfN(fieldGen, 0, 4).Draw(t, "header"),
			Parts: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) frame.Part {
				return frame.Part{Name: textGen.Draw(t, "name"), ContentType: textGen.Draw(t, "type"), Data: dataGen.Draw(t, "data")}
			}), 0, 4).Draw(t, "parts"),
		}
	})
	resultGen = rapid.Custom(func(t *rapid.T) frame.Result {
		r := frame.Result{Status: rapid.Uint32().Draw(t, "status"), Header: rapid.SliceOfN(fieldGen, 0, 4).Draw(t, "header")}
		if rapid.Bool().Draw(t, "failed") {
			r.Failure = &frame.Failure{
				Reason:  frame.Reason(textGen.Draw(t, "reason")),
				Message: textGen.Draw(t, "message"), Detail: textGen.Draw(t, "detail"),
			}
		} else {
			r.Body = dataGen.Draw(t, "body")
		}
		return r
	})
)

// equal gives the difference; on the wire nothing and an empty list are the same.
func equal(a, b any) string {
	isBytes := func(x, y any) bool {
		_, ok1 := x.([]byte)
		_, ok2 := y.([]byte)
		return ok1 && ok2
	}
	lists := cmp.FilterValues(func(x, y any) bool { return !isBytes(x, y) }, cmpopts.EquateEmpty())
	return cmp.Diff(a, b, cmp.Comparer(bytes.Equal), lists)
}

func TestBatchRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		id, items := rapid.Uint64().Draw(t, "batch id"), rapid.SliceOfN(itemGen, 0, 5).Draw(t, "items")
		head, got, err := frame.DecodeBatch(frame.EncodeBatch(id, items).Join())
		if err != nil {
			t.Fatal(err)
		}
		if want := (frame.Head{Kind: frame.KindBatch, Count: uint32(len(items)), BatchID: id}); head != want {
			t.Errorf("head %+v, want %+v", head, want)
		}
		if diff := equal(items, got); diff != "" {
			t.Errorf("-sent +got:\n%s", diff)
		}
	})
}

func TestResultsRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]frame.Kind{frame.KindResults, frame.KindPiece}).Draw(t, "kind")
		id, results := rapid.Uint64().Draw(t, "batch id"), rapid.SliceOfN(resultGen, 0, 5).Draw(t, "results")
		head, got, err := frame.DecodeResults(frame.EncodeResults(kind, id, results).Join())
		if err != nil {
			t.Fatal(err)
		}
		if want := (frame.Head{Kind: kind, Count: uint32(len(results)), BatchID: id}); head != want {
			t.Errorf("head %+v, want %+v", head, want)
		}
		if diff := equal(results, got); diff != "" {
			t.Errorf("-sent +got:\n%s", diff)
		}
	})
}

func TestCancelRoundTrip(t *testing.T) {
	t.Parallel()
	head, err := frame.DecodeHead(frame.EncodeCancel(99).Join())
	if want := (frame.Head{Kind: frame.KindCancel, BatchID: 99}); err != nil || head != want {
		t.Errorf("%+v, %v; want %+v", head, err, want)
	}
}

// Every frame that is cut short is refused, wherever the cut is, and so is one with a byte too much.
func TestCutFramesAreRefused(t *testing.T) {
	t.Parallel()
	batch, results := goldenBatch().Join(), goldenResults(frame.KindResults).Join()
	for n := range batch {
		if _, _, err := frame.DecodeBatch(batch[:n]); !errors.Is(err, frame.ErrMalformed) {
			t.Errorf("batch cut to %d bytes: %v", n, err)
		}
	}
	for n := range results {
		if _, _, err := frame.DecodeResults(results[:n]); !errors.Is(err, frame.ErrMalformed) {
			t.Errorf("results cut to %d bytes: %v", n, err)
		}
	}
	if _, _, err := frame.DecodeBatch(append(batch, 0)); !errors.Is(err, frame.ErrMalformed) {
		t.Errorf("batch with a byte too much: %v", err)
	}
	if _, _, err := frame.DecodeResults(append(results, 0)); !errors.Is(err, frame.ErrMalformed) {
		t.Errorf("results with a byte too much: %v", err)
	}
}

func TestWrongFramesAreRefused(t *testing.T) {
	t.Parallel()
	head := func(kind, zero byte, n uint32) []byte {
		return []byte{kind, 0, zero, 0, byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24), 1, 0, 0, 0, 0, 0, 0, 0}
	}
	for name, tc := range map[string]struct {
		frame []byte
		text  string // in the error
	}{
		"a count that cannot be": {head(1, 0, 1<<32-1), "4294967295 items need at least"},
		"reserved bytes":         {head(1, 9, 0), "instead of zero"},
		"another kind":           {head(2, 0, 0), "kind 2 where [1] was expected"},
	} {
		_, _, err := frame.DecodeBatch(tc.frame)
		if !errors.Is(err, frame.ErrMalformed) || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, _, err := frame.DecodeResults(append(head(2, 0, 1), bytes.Repeat([]byte{7}, 64)...))
	if !errors.Is(err, frame.ErrMalformed) {
		t.Errorf("an outcome that is not known: %v", err)
	}
}

func TestInvalidTextIsMended(t *testing.T) {
	t.Parallel()
	_, items, err := frame.DecodeBatch(frame.EncodeBatch(1, []frame.Item{{ID: "a\xffb"}}).Join())
	if err != nil || items[0].ID != "a\uFFFDb" {
		t.Errorf("%+v, %v", items, err)
	}
}

// Neither direction copies a payload: the encoder's segments and the decoder's slices are the caller's own memory.
func TestPayloadsAreNotCopied(t *testing.T) {
	t.Parallel()
	payload := make([]byte, 1<<20)
	encoded := frame.EncodeBatch(1, []frame.Item{{Parts: []frame.Part{{Data: payload}, {Data: []byte("small")}, {Data: payload}}}})
	n := 0
	for _, s := range encoded {
		if len(s) == len(payload) && &s[0] == &payload[0] {
			n++
		}
	}
	if n != 2 {
		t.Errorf("%d of 2 payloads went into the frame without a copy", n)
	}
	joined := encoded.Join()
	_, items, err := frame.DecodeBatch(joined)
	if err != nil {
		t.Fatal(err)
	}
	items[0].Parts[0].Data[0] = 1
	if !bytes.Contains(joined, []byte{1, 0, 0, 0, 0, 0, 0, 0, 0}) || &items[0].Parts[2].Data[0] == &payload[0] {
		t.Error("the decoded data is not in the frame")
	}
	if c := cap(items[0].Parts[0].Data); c != len(payload) {
		t.Errorf("capacity %d lets an append write over the next part", c)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(goldenBatch().Join())
	f.Add(goldenResults(frame.KindResults).Join())
	f.Add(frame.EncodeCancel(1).Join())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		// What decodes must encode to something that decodes to the same.
		if head, items, err := frame.DecodeBatch(b); err == nil {
			_, again, err := frame.DecodeBatch(frame.EncodeBatch(head.BatchID, items).Join())
			if err != nil || equal(items, again) != "" {
				t.Errorf("%+v became %+v, %v", items, again, err)
			}
		}
		if head, results, err := frame.DecodeResults(b); err == nil {
			_, again, err := frame.DecodeResults(frame.EncodeResults(head.Kind, head.BatchID, results).Join())
			if err != nil || equal(results, again) != "" {
				t.Errorf("%+v became %+v, %v", results, again, err)
			}
		}
	})
}
