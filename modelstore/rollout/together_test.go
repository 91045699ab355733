package rollout

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

func items(body string) []infer.Item {
	return []infer.Item{{Parts: []infer.Part{{Data: []byte(body)}}}}
}

// together makes instances that run their batches at the same time. A batch is for how long the instance works on it ("4s"), and then answered;
// "hang" never is; "pieces" is answered after ten seconds, with a piece every second.
func together() *backendtest.Launcher {
	return &backendtest.Launcher{LaunchFunc: func(context.Context, int, backend.ProcessSpec) (*backendtest.Instance, error) {
		i := backendtest.NewInstance("together")
		i.LoadFunc = func(context.Context, backend.LoadSpec) (backend.Info, error) {
			return backend.Info{Concurrent: true}, nil
		}
		i.PredictFunc = func(ctx context.Context, in []infer.Item) ([]infer.Result, error) {
			body := string(in[0].Parts[0].Data)
			if body == "pieces" {
				for range 10 {
					time.Sleep(time.Second)
					in[0].Emit(infer.Result{Body: []byte("piece")})
				}
				return backendtest.Echo(in), nil
			}
			var answered <-chan time.Time // never, for "hang"
			if took, err := time.ParseDuration(body); err == nil {
				answered = time.After(took)
			}
			select {
			case <-answered:
				return backendtest.Echo(in), nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		return i, nil
	}}
}

// started is a batch of a test that runs beside others.
type started struct {
	err   error
	after time.Duration // how long it took
}

// fire runs batches at the same time and gives how each ended, once all have.
func fire(t *testing.T, h *house, bodies ...string) []started {
	t.Helper()
	out := make([]started, len(bodies))
	var all sync.WaitGroup
	for i, body := range bodies {
		all.Go(func() {
			begun := time.Now()
			_, err := predict(t, h, "a", body)
			out[i] = started{err, time.Since(begun)}
		})
	}
	all.Wait()
	return out
}

// detail is what a fault tells the log.
func detail(err error) string {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f.Detail
	}
	return ""
}

func newTogether(t *testing.T) (*house, *backendtest.Launcher) {
	t.Helper()
	l := together()
	a := named("a", "1.0")
	a.Settings.ResponseTimeout = new(5 * time.Second)
	return newHouse(t, l, archives{"a.mar": a}, nil), l
}

func TestBatchesOfAConcurrentWorkerRunAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := newTogether(t)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		v, err := h.Resolve(infer.ModelRef{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		if n := v.Pool().Free(); n != minTogether {
			t.Errorf("%d slots", n)
		}
		bodies := make([]string, minTogether+1)
		for i := range bodies {
			bodies[i] = "4s"
		}
		var late int
		for _, s := range fire(t, h, bodies...) {
			if s.err != nil {
				t.Error(s.err)
			}
			if s.after > 4*time.Second {
				late++
			}
		}
		if late != 1 {
			t.Errorf("%d of %d batches had to wait for a slot, there is one too many", late, len(bodies))
		}
		h.end(t)
	})
}

// TestLateBatchOfAnInstanceThatAnswersOthersFailsAlone has one batch hang beside others that are answered.
func TestLateBatchOfAnInstanceThatAnswersOthersFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, l := newTogether(t)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		out := make(chan []started, 1)
		go func() { out <- fire(t, h, "hang", "2s") }()
		time.Sleep(3 * time.Second)
		neighbours := fire(t, h, "4s", "4500ms")
		first := <-out
		if !fault.Is(first[0].err, fault.ResponseTimeout) || first[0].after != 5*time.Second {
			t.Errorf("the one that hangs: %v after %v", first[0].err, first[0].after)
		}
		for _, s := range append(neighbours, first[1]) {
			if s.err != nil {
				t.Errorf("a neighbour: %v after %v", s.err, s.after)
			}
		}
		if alive, n := len(l.Live()), len(l.Specs()); alive != 1 || n != 1 {
			t.Errorf("%d instances alive, %d launched", alive, n)
		}
		h.end(t)
	})
}

// TestSilentInstanceIsEnded has everything hang: the instance is ended at the first timeout, and what runs beside it is told why.
func TestSilentInstanceIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, l := newTogether(t)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		out := make(chan []started, 1)
		go func() { out <- fire(t, h, "hang") }()
		time.Sleep(2 * time.Second)
		beside := fire(t, h, "hang")[0]
		late := <-out
		if !fault.Is(late[0].err, fault.ResponseTimeout) || late[0].after != 5*time.Second {
			t.Errorf("the late one: %v after %v", late[0].err, late[0].after)
		}
		if !fault.Is(beside.err, fault.BackendDied) || !strings.Contains(detail(beside.err), "another request") || beside.after != 3*time.Second {
			t.Errorf("the one beside it: %v (%s) after %v", beside.err, detail(beside.err), beside.after)
		}
		if s := fire(t, h, "1s")[0]; s.err != nil {
			t.Errorf("the next one: %v", s.err)
		}
		if alive, n := len(l.Live()), len(l.Specs()); alive != 1 || n != 2 {
			t.Errorf("%d instances alive, %d launched", alive, n)
		}
		h.end(t)
	})
}

// TestPiecesOfOneBatchKeepTheInstanceForTheOthers has a batch hang beside one that streams.
func TestPiecesOfOneBatchKeepTheInstanceForTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, l := newTogether(t)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		out := fire(t, h, "pieces", "hang")
		if out[0].err != nil || out[0].after != 10*time.Second {
			t.Errorf("the stream: %v after %v", out[0].err, out[0].after)
		}
		if !fault.Is(out[1].err, fault.ResponseTimeout) || out[1].after != 5*time.Second {
			t.Errorf("the one that hangs: %v after %v", out[1].err, out[1].after)
		}
		if n := len(l.Specs()); n != 1 {
			t.Errorf("%d instances were launched", n)
		}
		h.end(t)
	})
}

func TestDeadWorkerFailsAllThatItHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, l := newTogether(t)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		out := make(chan []started, 1)
		go func() { out <- fire(t, h, "4s", "4s", "4s") }()
		time.Sleep(time.Second)
		l.Instances()[0].Die(nil)
		for _, s := range <-out {
			if !fault.Is(s.err, fault.BackendDied) || s.after != time.Second {
				t.Errorf("%v after %v", s.err, s.after)
			}
		}
		if s := fire(t, h, "1s")[0]; s.err != nil {
			t.Errorf("the next one: %v", s.err)
		}
		h.end(t)
	})
}

// TestConcurrentWorkerIsDrained scales to zero while batches of different lengths run: the last one decides.
func TestConcurrentWorkerIsDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := newTogether(t)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		out := make(chan []started, 1)
		go func() { out <- fire(t, h, "1s", "2s", "4s") }()
		synctest.Wait()
		begun := time.Now()
		if err := h.Scale(t.Context(), infer.ModelRef{Name: "a"}, 0, 0, true); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took != 4*time.Second {
			t.Errorf("the worker was gone after %v", took)
		}
		for _, s := range <-out {
			if s.err != nil {
				t.Error(s.err)
			}
		}
		h.end(t)
	})
}
