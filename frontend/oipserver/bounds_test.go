package oipserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

func TestMayShare(t *testing.T) {
	_, s, _ := withMemory(t)
	for _, tc := range []struct {
		network, address string
		may              bool
	}{
		{"tcp", "127.0.0.1:5", true},
		{"tcp", "127.8.9.1:5", true},
		{"tcp", "[::1]:5", true},
		{"tcp", "[::ffff:127.0.0.1]:5", true},
		{"unix", "@", true},
		{"unix", "", true},
		{"tcp", "192.0.2.1:5", false},
		{"tcp", "[::ffff:192.0.2.1]:5", false},
		{"tcp", "[fe80::1%eth0]:5", false},
		{"tcp", "localhost:5", false},
		{"tcp", "", false},
		{"", "", false},
	} {
		err := s.MayShare(tc.network, tc.address)
		if (err == nil) != tc.may || err != nil && fault.HTTPStatus(err) != statusForbidden {
			t.Errorf("%s %s: %v", tc.network, tc.address, err)
		}
	}
	if err := serve(t, newWorld()).MayShare("tcp", "192.0.2.1:5"); err != nil {
		t.Errorf("nothing is shared, and other errors say so: %v", err)
	}
}

// bytesBudget is a budget that notes what it holds.
type bytesBudget struct{ limit, held, most int64 }

func (b *bytesBudget) TakeBytes(n int64) bool {
	if b.held+n > b.limit {
		return false
	}
	b.held += n
	b.most = max(b.most, b.held)
	return true
}

func (b *bytesBudget) GiveBytes(n int64) { b.held -= n }

func TestSharedMemoryIsOfTheBudget(t *testing.T) {
	w, s, dir := withMemory(t)
	object(t, dir, "x", floats(1, 2))
	if err := s.RegisterRegion(Region{Name: "x", Key: "/x", ByteSize: 8}); err != nil {
		t.Fatal(err)
	}
	ask := func(shape int64) error {
		in := oip.Tensor{Tensor: tensor.Tensor{Name: "A", DType: tensor.FP32, Shape: []int64{1, shape}}, Shared: &oip.Shared{Region: "x", Size: 8}}
		_, err := s.Infer(t.Context(), infer.ModelRef{Name: "adder"}, &Call{ID: "1", Request: &oip.Request{Inputs: []oip.Tensor{in}}}, false)
		return err
	}
	small := &bytesBudget{limit: 7}
	s.Bound(small)
	if err := ask(2); !fault.Is(err, fault.ServerBytes) || small.held != 0 || len(w.seen) != 0 {
		t.Errorf("%v, %d bytes are held", err, small.held)
	}
	b := &bytesBudget{limit: 8}
	s.Bound(b)
	held := int64(0)
	w.observe = func(string) { held = b.held }
	for range 3 {
		if err := ask(2); err != nil {
			t.Fatal(err)
		}
	}
	if held != 8 || b.held != 0 {
		t.Errorf("%d bytes were held, and %d are", held, b.held)
	}
	if err := ask(3); err == nil || b.held != 0 { // it is not what the region has
		t.Errorf("%v, %d bytes are held", err, b.held)
	}
}

func TestTraceFilesAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	w := &traceWriter{path: path, most: defaultTraceBytes}
	const extra = 3
	for n := range int64(traceParts + extra) {
		if n == 2 {
			if err := os.Remove(path + ".1"); err != nil { // somebody has taken it away
				t.Fatal(err)
			}
		}
		if err := w.write(&trace{number: n, ref: infer.ModelRef{Name: "m", Version: "1"}, frequency: 1}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := filepath.Glob(path + ".*")
	if err != nil || len(all) != traceParts {
		t.Errorf("%d files, %v", len(all), err)
	}
	for n, there := range map[int]bool{0: false, extra - 1: false, extra: true, traceParts + extra - 1: true} {
		if _, err := os.Stat(fmt.Sprint(path, ".", n)); (err == nil) != there {
			t.Errorf("%d: %v", n, err)
		}
	}
}

// TestTraceFilesAreBoundedByTheirSize, the one for all as well as those with so many each; every file stays a JSON array, and the newest traces are there.
func TestTraceFilesAreBoundedByTheirSize(t *testing.T) {
	const most, traces = 64 << 10, 3000
	for _, frequency := range []int64{0, 1 << 30, 7} {
		dir := t.TempDir()
		path := filepath.Join(dir, "trace")
		w := newTraceWriter(path, most, slog.New(slog.DiscardHandler))
		largest, newest := int64(0), -1
		for n := range int64(traces) {
			if n == traces/2 {
				w.flush(t)
				if err := os.Remove(filepath.Join(dir, anyFile(t, dir))); err != nil { // somebody takes one away
					t.Fatal(err)
				}
			}
			w.traces <- &trace{number: n, ref: infer.ModelRef{Name: "m", Version: "1"}, frequency: frequency}
			if n%100 == 0 {
				w.flush(t)
				largest = max(largest, sizeOf(t, dir))
			}
		}
		if err := w.close(); err != nil {
			t.Error(err)
		}
		if largest = max(largest, sizeOf(t, dir)); largest > most || largest < most/8 {
			t.Errorf("every %d: %d bytes, and %d are the most", frequency, largest, most)
		}
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(filepath.Join(dir, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			var all []struct{ ID int }
			if err := json.Unmarshal(text, &all); err != nil {
				t.Fatalf("every %d, %s: %v", frequency, f.Name(), err)
			}
			newest = max(newest, all[len(all)-1].ID)
		}
		if newest != traces-1 {
			t.Errorf("every %d: the newest trace is %d", frequency, newest)
		}
	}
}

// flush waits until what was put is written.
func (w *traceWriter) flush(t *testing.T) {
	t.Helper()
	for range 10000 {
		if len(w.traces) == 0 {
			return
		}
		<-time.After(time.Millisecond)
	}
	t.Fatal("the traces are not written")
}

func anyFile(t *testing.T, dir string) string {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	return files[0].Name()
}

func sizeOf(t *testing.T, dir string) (sum int64) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if info, err := f.Info(); err == nil { // else it is gone meanwhile
			sum += info.Size()
		}
	}
	return sum
}

// TestTraceSettingsGoWithTheirModel however it goes.
func TestTraceSettingsGoWithTheirModel(t *testing.T) {
	w := newWorld()
	s := serve(t, w, func(o *Options) { o.TraceFile = filepath.Join(t.TempDir(), "trace") })
	own := func() string {
		s.tracer.mu.Lock()
		defer s.tracer.mu.Unlock()
		names := make([]string, 0, len(s.tracer.models))
		for name := range s.tracer.models {
			names = append(names, name)
		}
		return strings.Join(names, " ")
	}
	for _, model := range []string{"adder", "handler"} {
		if err := s.ChangeTrace(model, settings("trace_level", `["TIMESTAMPS"]`)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Unload(t.Context(), "adder", false); err != nil {
		t.Fatal(err)
	}
	if got := own(); got != "handler" || !s.tracer.active.Load() {
		t.Errorf("settings of %q", got)
	}
	if err := w.Unregister(t.Context(), infer.ModelRef{Name: "handler", Version: "1"}); err != nil { // by TorchServe's route
		t.Fatal(err)
	}
	if err := s.ChangeTrace("", settings("trace_rate", "5")); err != nil {
		t.Fatal(err)
	}
	if got := own(); got != "" || s.tracer.active.Load() {
		t.Errorf("settings of %q", got)
	}
}

// TestPieceOutlivesABug in the code that reads an answer, which a worker's goroutine runs.
func TestPieceOutlivesABug(t *testing.T) {
	s := serve(t, newWorld())
	_, err := s.piece(nil, nil, &infer.Result{Body: []byte("x")}) // no request: the code that follows needs one
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || f.Kind != fault.Internal || !strings.Contains(f.Detail, "bounds_test.go") || f.Message != "Internal error." {
		t.Errorf("%v", err)
	}
}
