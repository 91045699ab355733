package batch

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/poison"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// crowded is a pool whose workers never have nothing else to do, unless they are let.
type crowded struct {
	*workers

	let      chan struct{}
	asks     atomic.Int64 // how many wait for a worker for themselves
	mostAsks atomic.Int64
}

func (c *crowded) AcquireAlone(ctx context.Context, most int) ([]backend.Slot, error) {
	c.mostAsks.Store(max(c.mostAsks.Load(), c.asks.Add(1)))
	defer c.asks.Add(-1)
	select {
	case <-c.let:
		return c.workers.AcquireAlone(ctx, most)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// suspected is a guard whose book knows a payload that has ended one worker.
func suspected(data ...string) *Guard {
	g := guard(true)
	for _, d := range data {
		it := payload("before", d)
		g.Book.Killed(g.Model, &it, poison.Death{Workers: 1})
	}
	return g
}

// TestOthersDoNotWaitForASuspect: while a suspect waits for a worker for itself, the others are answered; when its client leaves, nobody waits for one.
func TestOthersDoNotWaitForASuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := &crowded{workers: newWorkers(4, takes(time.Second)), let: make(chan struct{})}
		q, stop := start(t, pool, Policy{MaxItems: 100, MaxBatch: 1, Guard: suspected("bad 1", "bad 2", "bad 3")})
		ctx, leave := context.WithCancel(t.Context())
		var suspects sync.WaitGroup
		left := make([]error, 3)
		for i := range left {
			suspects.Go(func() { _, _, left[i] = q.Submit(ctx, payload("s"+strconv.Itoa(i), "bad "+strconv.Itoa(i+1))) })
		}
		synctest.Wait()
		if n := pool.asks.Load(); n != 1 {
			t.Fatalf("%d suspects wait for a worker", n)
		}
		begun := time.Now()
		if got := answers(t, q, payload("a", "good1"), payload("b", "good2"), payload("c", "good3")); got["a"] != "a" || got["b"] != "b" || got["c"] != "c" {
			t.Errorf("%v", got)
		}
		if took := time.Since(begun); took != time.Second {
			t.Errorf("the others took %v", took)
		}
		if n, _ := q.Waiting(); n != 3 {
			t.Errorf("%d wait, which are 3 suspects", n)
		}
		leave()
		suspects.Wait()
		synctest.Wait()
		if n := pool.asks.Load(); n != 0 || pool.mostAsks.Load() != 1 {
			t.Errorf("%d wait for a worker although nobody waits for them, and %d did", n, pool.mostAsks.Load())
		}
		for _, err := range left {
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		stop()
	})
}

// TestCloseWaitsForSuspects: what waits is still run when the queue is closed, each of them alone and not too many at the same time.
func TestCloseWaitsForSuspects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most, with atomic.Int64
		pool := &crowded{let: make(chan struct{}), workers: newWorkers(8, func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
			most.Store(max(most.Load(), now.Add(1)))
			with.Store(max(with.Load(), int64(len(items))))
			time.Sleep(time.Second)
			now.Add(-1)
			return echo(ctx, items)
		})}
		q, stop := start(t, pool, Policy{MaxItems: 100, MaxBatch: 8, MaxDelay: time.Minute, Guard: suspected("1", "2", "3", "4", "5")})
		got := make([]string, 5)
		var all sync.WaitGroup
		for i := range got {
			all.Go(func() {
				r, _, err := q.Submit(t.Context(), payload(strconv.Itoa(i+1), strconv.Itoa(i+1)))
				if got[i] = string(r.Body); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		all.Go(stop)
		synctest.Wait()
		close(pool.let)
		all.Wait()
		if !slices.Equal(got, []string{"1", "2", "3", "4", "5"}) || most.Load() != mostSuspects || with.Load() != 1 {
			t.Errorf("answers %v, %d at the same time, %d in a batch", got, most.Load(), with.Load())
		}
	})
}

// TestEndOfContextAnswersSuspects: a suspect that waits when the queue ends is answered with its cause.
func TestEndOfContextAnswersSuspects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := &crowded{workers: newWorkers(1, echo), let: make(chan struct{})}
		q, err := New(pool, Policy{MaxItems: 9, Guard: suspected("bad")})
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancelCause(t.Context())
		var all sync.WaitGroup
		all.Go(func() { q.Run(ctx) })
		all.Go(func() {
			if _, _, err := q.Submit(t.Context(), payload("s", "bad")); !fault.Is(err, fault.Draining) {
				t.Error(err)
			}
		})
		synctest.Wait()
		end(fault.New(fault.Draining, "the end", nil))
		all.Wait()
	})
}

// TestNobodyJoinsASuspect: a worker that answers in steps gets nothing else meanwhile.
func TestNobodyJoinsASuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handle, steps := countdown(t)
		g := guard(true)
		g.Book.Killed(g.Model, &infer.Item{Parts: []infer.Part{{Data: []byte("3")}}}, poison.Death{Workers: 1})
		q, stop := start(t, inSteps(1, handle), Policy{MaxItems: 9, MaxBatch: 4, Guard: g})
		var all sync.WaitGroup
		for _, c := range [][2]string{{"suspect", "3"}, {"a", "2"}, {"b", "2"}} {
			all.Go(func() {
				if _, err := streamed(t.Context(), q, c[0], c[1]); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		all.Wait()
		for _, step := range steps() {
			if len(step) > 1 && slices.Contains(step, "suspect") {
				t.Errorf("a step of %v", step)
			}
		}
		stop()
	})
}

// TestFoundOutWhileItWaits: a request that becomes suspect in the queue has a worker for itself, also where batches have one request.
func TestFoundOutWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := newWorkers(1, takes(time.Second)), guard(true)
		q, stop := start(t, w, Policy{MaxItems: 9, Guard: g})
		time.AfterFunc(500*time.Millisecond, func() {
			it := payload("elsewhere", "bad")
			g.Book.Killed(g.Model, &it, poison.Death{Workers: 1})
		})
		if got := answers(t, q, payload("a", "good"), payload("b", "bad")); got["a"] != "a" || got["b"] != "b" || w.alone.Load() != 1 {
			t.Errorf("%v, %d alone", got, w.alone.Load())
		}
		if len(g.Book.List(g.Model)) != 0 {
			t.Error("it was answered, and is still remembered")
		}
		stop()
	})
}

// TestSuspectWithoutAWorker: it is answered with the pool's error, and what comes after it is not.
func TestSuspectWithoutAWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, stop := start(t, lonely{newWorkers(1, echo)}, Policy{MaxItems: 9, Guard: suspected("bad")})
		got := answers(t, q, payload("s", "bad"), payload("a", "good"))
		if got["s"] != fault.NoWorker.String() || got["a"] != "a" {
			t.Errorf("%v", got)
		}
		stop()
	})
}

// lonely is a pool that gives nobody a worker for itself.
type lonely struct{ *workers }

func (lonely) AcquireAlone(context.Context, int) ([]backend.Slot, error) {
	return nil, fault.New(fault.NoWorker, "the model has no worker", nil)
}

// TestPendingIsHashedOnce: the mark that a request got when it came serves when it leaves.
func TestPendingIsHashedOnce(t *testing.T) {
	g := suspected("bad")
	p := &pending{item: payload("a", "sad")}
	if err := g.check(p); err != nil || p.suspect() {
		t.Fatal(err)
	}
	p.item.Parts[0].Data = []byte("bad") // another hash would find it
	it := payload("b", "mad")
	g.Book.Killed(g.Model, &it, poison.Death{Workers: 2})
	if now, later, refused := g.vet([]*pending{p}); len(now) != 1 || len(later) != 0 || refused != 0 {
		t.Error("it was hashed again")
	}
}

// TestPanicCostsOneBatch: a slot that panics, or a client's Emit, costs its batch the answers, and nobody else anything.
func TestPanicCostsOneBatch(t *testing.T) {
	handle := func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
		time.Sleep(10 * time.Millisecond)
		if string(items[0].Parts[0].Data) == "bug" {
			panic("a codec's bug")
		}
		return echo(ctx, items)
	}
	type queue interface {
		submitter
		Soonest() (time.Duration, bool)
	}
	for name, begin := range map[string]func(t *testing.T, w *workers) (queue, func()){
		"queue": func(t *testing.T, w *workers) (queue, func()) {
			t.Helper()
			return start(t, w, Policy{MaxItems: 9, MaxBatch: 2, MaxDelay: time.Second})
		},
		"queue with a guard": func(t *testing.T, w *workers) (queue, func()) {
			t.Helper()
			return start(t, w, Policy{MaxItems: 9, MaxBatch: 2, MaxDelay: time.Second, Guard: guard(true)})
		},
		"suspect": func(t *testing.T, w *workers) (queue, func()) {
			t.Helper()
			return start(t, w, Policy{MaxItems: 9, Guard: suspected("bug")})
		},
		"sequences": func(t *testing.T, w *workers) (queue, func()) {
			t.Helper()
			return startSequences(t, w, SequencePolicy{MaxSequences: 3, MaxItems: 9, Idle: time.Minute})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorkers(1, handle)
				q, stop := begin(t, w)
				var all sync.WaitGroup
				for i, alone := range []bool{false, false, true} {
					it := payload(strconv.Itoa(i), "bug")
					it.Alone, it.Sequence = alone, "s"+strconv.Itoa(i)
					all.Go(func() {
						_, _, err := q.Submit(t.Context(), it)
						f, ok := errors.AsType[*fault.Error](err)
						if !ok || f.Kind != fault.Internal || f.Detail == "" {
							t.Errorf("%v", err)
						}
					})
				}
				all.Wait()
				it := payload("good", "good")
				it.Sequence = "s0"
				if r, _, err := q.Submit(t.Context(), it); err != nil || string(r.Body) != "good" {
					t.Errorf("the next one: %q, %v", r.Body, err)
				}
				stop()
				if w.Free() != 1 {
					t.Errorf("%d slots of 1", w.Free())
				}
			})
		})
	}
}

// TestPanicBetweenSteps: what a batch that goes on in steps has answered stays, and the rest fails.
func TestPanicBetweenSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handle, _ := countdown(t)
		w := inSteps(1, handle)
		q, stop := start(t, w, Policy{MaxItems: 9, MaxBatch: 4, MaxDelay: time.Second})
		var all sync.WaitGroup
		all.Go(func() {
			it := payload("bug", "3")
			it.Emit = func(infer.Result) { panic("a client's bug") }
			if _, _, err := q.Submit(t.Context(), it); !fault.Is(err, fault.Internal) {
				t.Error(err)
			}
		})
		synctest.Wait()
		all.Go(func() { _, _, _ = q.Submit(t.Context(), payload("beside", "1")) })
		all.Wait()
		if _, err := streamed(t.Context(), q, "next", "2"); err != nil {
			t.Error(err)
		}
		stop()
		if w.Free() != 1 {
			t.Errorf("%d slots of 1", w.Free())
		}
	})
}

// TestLoneRequestsAreBounded: those that belong to no sequence count for the limits, too.
func TestLoneRequestsAreBounded(t *testing.T) {
	for name, policy := range map[string]SequencePolicy{
		"number": {MaxSequences: 1, MaxItems: 2}, "bytes": {MaxSequences: 1, MaxItems: 9, MaxBytes: 25}, "budget": {MaxSequences: 1, MaxItems: 9, Budget: NewBudget(25)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				policy.Idle = time.Hour
				w := newWorkers(1, takes(time.Second))
				q, stop := startSequences(t, w, policy)
				var ok, full atomic.Int64
				var all sync.WaitGroup
				for i := range 6 { // one runs, two wait
					it := payload(strconv.Itoa(i), "ten bytes.")
					it.Alone = true
					all.Go(func() {
						switch _, _, err := q.Submit(t.Context(), it); {
						case err == nil:
							ok.Add(1)
						case fault.Is(err, fault.Overloaded, fault.ServerBytes):
							full.Add(1)
						default:
							t.Error(err)
						}
					})
					synctest.Wait()
				}
				if n, _ := q.Waiting(); n != 2 {
					t.Errorf("%d wait", n)
				}
				all.Wait()
				stop()
				used := int64(0)
				if policy.Budget != nil {
					used, _ = policy.Budget.Used()
				}
				if ok.Load() != 3 || full.Load() != 3 || q.lone != 0 || q.bytes != 0 || used != 0 {
					t.Errorf("%d were answered, %d refused; %d, %d and %d bytes are left", ok.Load(), full.Load(), q.lone, q.bytes, used)
				}
			})
		})
	}
}
