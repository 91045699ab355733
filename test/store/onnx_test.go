package store

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// message is a protobuf message that is being written.
type message []byte

func (m message) number(field protowire.Number, v uint64) message {
	return protowire.AppendVarint(protowire.AppendTag(m, field, protowire.VarintType), v)
}

func (m message) bytes(field protowire.Number, v []byte) message {
	return protowire.AppendBytes(protowire.AppendTag(m, field, protowire.BytesType), v)
}

func (m message) text(field protowire.Number, v string) message { return m.bytes(field, []byte(v)) }

// adds is an ONNX model that adds a number to each of a list: y = x + number, float32 [n].
func adds(number int) []byte {
	const float32Type, version, opset = 1, 8, 17
	port := func(name string) message {
		shape := message{}.bytes(1, message{}.text(2, "n"))
		return message{}.text(1, name).bytes(2, message{}.bytes(1, message{}.number(1, float32Type).bytes(2, shape)))
	}
	constant := message{}.number(2, float32Type).text(8, "c").bytes(9, binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(number))))
	node := message{}.text(1, "x").text(1, "c").text(2, "y").text(4, "Add")
	graph := message{}.bytes(1, node).text(2, "adds").bytes(5, constant).bytes(11, port("x")).bytes(12, port("y"))
	return message{}.number(1, version).bytes(7, graph).bytes(8, message{}.number(2, opset))
}

// added finds the number in an answer of such a model to [0].
func added(answer []byte) (int, error) {
	var body struct {
		Y []float64 `json:"y"`
	}
	if err := json.Unmarshal(answer, &body); err != nil || len(body.Y) != 1 {
		return 0, fmt.Errorf("%q, %w", answer, err)
	}
	return int(body.Y[0]), nil
}

// TestONNXSwapsUnderLoad replaces a bare ONNX file again and again under load: nothing fails, nothing old is answered once the new one serves, and in the end the server
// holds what it held in the beginning, the backends' processes among it.
func TestONNXSwapsUnderLoad(t *testing.T) {
	const warm, clients, least = 3, 4, 100 * time.Millisecond
	swaps := long(t, "FLAMBEAU_SWAPS", 50)
	box := e2e.NewBox(t)
	box.Put(t, model+".onnx", adds(0))
	s := start(t, box, "model_store_settle", "40", "default_workers_per_model", "1")
	ask := func() (int, string) {
		a, err := s.Ask(t.Context(), http.MethodPost, s.Inference+predict, []byte("[0]"), "Content-Type", "application/json")
		if err != nil || a.Status != http.StatusOK {
			return -1, fmt.Sprint(a.Status, " ", string(a.Body), " ", err)
		}
		n, err := added(a.Body)
		if err != nil {
			return -1, err.Error()
		}
		return n, ""
	}
	problem := ""
	if !e2e.Eventually(patience, func() bool {
		var n int
		n, problem = ask()
		return n == 0
	}) {
		t.Fatalf("%s: %s", problem, e2e.Lines(s.Events(t, "")))
	}
	load := s.StartLoad(t, e2e.LoadOptions{Clients: clients, Path: predict, Body: func() string { return "[0]" }, Number: added, Every: 5 * time.Millisecond})
	seen := watch(t, s, load)
	swap := func(number int) {
		t.Helper()
		content, began := adds(number), time.Now()
		seen.wrote(e2e.Digest(content), number)
		box.Put(t, model+".onnx", content)
		if !e2e.Eventually(patience, func() bool { return seen.serves(number) }) {
			t.Fatalf("number %d never served; %d requests failed; %s", number, load.Failed(), e2e.Lines(s.Events(t, "")))
		}
		e2e.Pause(t.Context(), time.Until(began.Add(least)))
	}
	for number := 1; number <= warm; number++ {
		swap(number)
	}
	e2e.Pause(t.Context(), time.Second)
	before := s.Resources(t)
	for number := warm + 1; number <= warm+swaps; number++ {
		swap(number)
	}
	after := settled(t, s, before)
	samples := load.Stop()
	seen.end()
	marks := seen.seen()
	t.Logf("%d swaps; %d requests, %d failed, %d answers too old", swaps, len(samples), len(e2e.Failures(samples)), len(e2e.Stale(samples, marks)))
	e2e.RequireNoFailure(t, samples)
	e2e.RequireFresh(t, samples, marks)
	requireSame(t, before, after)

	digest := e2e.Digest(adds(warm + swaps))
	box.Put(t, model+".onnx", []byte("no model"))
	e2e.Pause(t.Context(), time.Second)
	if n, problem := ask(); n != warm+swaps {
		t.Errorf("after a broken file: %d %s, want %d, of %s", n, problem, warm+swaps, digest)
	}
}
