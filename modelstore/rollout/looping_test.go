package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

// loops are workers that do not come up.
type loops struct {
	mu   sync.Mutex // guards bad
	bad  map[string]bool
	last map[string]*backendtest.Instance
}

// over has the workers of a house that are named to break not come up again.
func over(h *house) *loops {
	l := &loops{bad: map[string]bool{}, last: map[string]*backendtest.Instance{}}
	start := h.launcher.LaunchFunc
	h.launcher.LaunchFunc = func(ctx context.Context, n int, spec backend.ProcessSpec) (*backendtest.Instance, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.bad[spec.Args[0]] {
			return nil, errors.New("no weights")
		}
		i, err := start(ctx, n, spec)
		l.last[spec.Args[0]] = i
		return i, err
	}
	return l
}

// breaks ends a worker's instance for good.
func (l *loops) breaks(worker int) {
	id := strconv.Itoa(worker)
	l.mu.Lock()
	l.bad[id] = true
	i := l.last[id]
	l.mu.Unlock()
	i.Die(errors.New("killed"))
}

// mend lets all workers come up again.
func (l *loops) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.bad)
}

// TestLoopingWorkerDoesNotStopTheScale: while one worker crashes again and again, the others still follow the load, and it is the first one that goes.
func TestLoopingWorkerDoesNotStopTheScale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, c := elastic(t, handler(20*time.Millisecond, time.Second), archives{"a.mar": bounds(named("a", "1.0"), 2, 4)}, nil)
		l := over(h)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		bad := h.describe(t, "a").Workers[0].ID
		l.breaks(bad)
		c.send("a", 64, 20*time.Second)
		if steps := fmt.Sprint(c.scaled(t)); steps != "[3 4]" || ready(h.describe(t, "a")) != 3 {
			t.Errorf("64 clients: %v, %+v", steps, h.describe(t, "a").Workers)
		}
		c.send("a", 1, 70*time.Second)
		d := h.describe(t, "a")
		if steps := fmt.Sprint(c.scaled(t)); steps != "[3 2]" || ready(d) != 2 || slices.ContainsFunc(d.Workers, func(w Worker) bool { return w.ID == bad }) {
			t.Errorf("one client: %v, %+v", steps, d.Workers)
		}
		h.end(t)
	})
}

// TestLoopingModelIsNotScaledUp: more of the same would not come up either.
func TestLoopingModelIsNotScaledUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, c := elastic(t, handler(20*time.Millisecond, time.Second), archives{"a.mar": bounds(named("a", "1.0"), 1, 4)}, nil)
		l := over(h)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		l.breaks(h.describe(t, "a").Workers[0].ID)
		late, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := c.ask(late, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if steps := c.scaled(t); len(steps) > 0 {
			t.Errorf("%v", steps)
		}
		h.end(t)
	})
}

// TestLoopingWorkerGoesAfterTheKeepAlive when no request comes.
func TestLoopingWorkerGoesAfterTheKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, c := elastic(t, handler(20*time.Millisecond, time.Second), archives{"a.mar": bounds(named("a", "1.0"), 0, 4)}, nil)
		l := over(h)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		l.breaks(h.describe(t, "a").Workers[0].ID)
		<-time.After(10 * time.Second)
		if d := h.describe(t, "a"); d.State != "failed" || d.Dormant {
			t.Errorf("while it loops: %s, %s", d.State, d.Reason)
		}
		<-time.After(35 * time.Second)
		synctest.Wait()
		if d := h.describe(t, "a"); !d.Dormant {
			t.Errorf("after the keepAlive: %s, %s, %+v", d.State, d.Reason, d.Workers)
		}
		l.mend()
		if err := c.ask(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		h.end(t)
	})
}

// TestWorkerThatGaveUpIsEnded when a request has the next one started: nothing of it is left.
func TestWorkerThatGaveUpIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := bounds(named("a", "1.0"), 0, 4)
		a.Settings.MaxRetryTimeout = new(time.Second)
		h, c := elastic(t, handler(20*time.Millisecond, time.Second), archives{"a.mar": a}, nil)
		l := over(h)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		v, err := h.Resolve(infer.ModelRef{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		old := v.current.Load().workers[0]
		l.breaks(old.id)
		<-time.After(5 * time.Second)
		if old.healthy() {
			t.Fatal("it did not give up")
		}
		if err := c.ask(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		select {
		case <-old.done:
		default:
			t.Error("the worker that gave up is still there")
		}
		h.end(t)
	})
}

// TestWorkerThatIsToEndIsNotExpected to be ready, while it finishes what it has and its successor is not there yet.
func TestWorkerThatIsToEndIsNotExpected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, handler(5*time.Second, time.Second).launcher(), archives{"a.mar": named("a", "1.0")}, nil)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		v, err := h.Resolve(infer.ModelRef{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := predict(t, h, "a", "x"); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		g := v.current.Load()
		all.Go(func() {
			if _, err := v.recycleInPlace(t.Context(), g, g.workers[0]); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if r := v.Readiness(); r != (Readiness{Total: 1}) {
			t.Errorf("while it ends: %+v", r)
		}
		all.Wait()
		if r := v.Readiness(); r != (Readiness{Ready: 1, Total: 1}) {
			t.Errorf("and then: %+v", r)
		}
		h.end(t)
	})
}
