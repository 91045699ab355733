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

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// workers is a pool of n workers whose handler is a function.
type workers struct {
	slots  chan struct{}
	handle func(ctx context.Context, items []infer.Item) ([]infer.Result, error)
	steps  bool         // they answer in steps
	inTurn bool         // they are one, which is given batches ahead
	alone  atomic.Int64 // slots of workers with nothing else
	unsent func() bool  // says of the next batch that it is not sent; nil: all are

	mu      sync.Mutex
	batches [][]string // ids of each batch, in the order of their start
}

func newWorkers(n int, handle func(context.Context, []infer.Item) ([]infer.Result, error)) *workers {
	w := &workers{slots: make(chan struct{}, n), handle: handle}
	for range n {
		w.slots <- struct{}{}
	}
	return w
}

func (w *workers) Free() int { return len(w.slots) }

func (w *workers) AcquireFrom(ctx context.Context, _ int) (backend.Slot, error) {
	return w.Acquire(ctx)
}

func (w *workers) AcquireAlone(ctx context.Context, _ int) ([]backend.Slot, error) {
	w.alone.Add(1)
	return one(w.Acquire(ctx))
}

// one makes one slot some.
func one(s backend.Slot, err error) ([]backend.Slot, error) {
	if err != nil {
		return nil, err
	}
	return []backend.Slot{s}, nil
}

func (w *workers) Workers() []int { return []int{0} }

func (w *workers) Pin(int) bool { return true }

func (w *workers) Unpin(int) {}

func (w *workers) Acquire(ctx context.Context) (backend.Slot, error) {
	select {
	case <-w.slots:
		return w, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (w *workers) Release()       { w.slots <- struct{}{} }
func (w *workers) Retiring() bool { return false }

func (w *workers) Continuous() bool { return w.steps }

func (w *workers) InTurn() bool { return w.inTurn }

func (w *workers) Worker() (id, pid int) { return 0, 0 }

func (w *workers) Execute(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
	ids := make([]string, len(items))
	for i := range items {
		ids[i] = items[i].ID
	}
	w.mu.Lock()
	if w.unsent != nil && w.unsent() {
		w.mu.Unlock()
		return nil, backend.ErrNotSent
	}
	w.batches = append(w.batches, ids)
	w.mu.Unlock()
	return w.handle(ctx, items)
}

func (w *workers) seen() [][]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([][]string(nil), w.batches...)
}

// echo answers each item with its id.
func echo(_ context.Context, items []infer.Item) ([]infer.Result, error) {
	results := make([]infer.Result, len(items))
	for i, item := range items {
		results[i].Body = []byte(item.ID)
	}
	return results, nil
}

func takes(d time.Duration) func(context.Context, []infer.Item) ([]infer.Result, error) {
	return func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
		time.Sleep(d)
		return echo(ctx, items)
	}
}

// start runs a queue until the test ends; in a bubble the caller stops it.
func start(t *testing.T, pool backend.Pool, p Policy) (q *Queue, stop func()) {
	t.Helper()
	q, err := New(pool, p)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		q.Run(context.WithoutCancel(t.Context()))
	}()
	return q, func() {
		q.Close(nil)
		<-done
	}
}

func item(id string) infer.Item {
	return infer.Item{ID: id, Parts: []infer.Part{{Name: "body", Data: []byte(id)}}}
}

func TestNewRefusesAQueueWithoutABound(t *testing.T) {
	if _, err := New(newWorkers(1, echo), Policy{}); err == nil {
		t.Error("a queue without a bound was made")
	}
}

func TestLoneRequestWaitsTheDelayAndAFullBatchDoesNot(t *testing.T) {
	for _, tc := range []struct {
		requests int
		want     time.Duration
		batches  int
	}{{1, 100 * time.Millisecond, 1}, {3, 100 * time.Millisecond, 1}, {4, 0, 1}, {8, 0, 2}, {5, 100 * time.Millisecond, 2}} {
		t.Run(strconv.Itoa(tc.requests), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorkers(1, echo)
				q, stop := start(t, w, Policy{MaxItems: 10, MaxBatch: 4, MaxDelay: 100 * time.Millisecond})
				begun := time.Now()
				var all sync.WaitGroup
				for i := range tc.requests {
					all.Go(func() {
						r, _, err := q.Submit(t.Context(), item(strconv.Itoa(i)))
						if err != nil || string(r.Body) != strconv.Itoa(i) {
							t.Errorf("request %d: %q, %v", i, r.Body, err)
						}
					})
				}
				all.Wait()
				if took := time.Since(begun); took != tc.want {
					t.Errorf("took %v, want %v", took, tc.want)
				}
				if n := len(w.seen()); n != tc.batches {
					t.Errorf("%d batches, want %d", n, tc.batches)
				}
				stop()
			})
		})
	}
}

func TestWaitingForAWorkerCountsAsDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(1, takes(time.Second))
		q, stop := start(t, w, Policy{MaxItems: 10, MaxBatch: 4, MaxDelay: 500 * time.Millisecond})
		begun := time.Now()
		var all sync.WaitGroup
		all.Go(func() { _, _, _ = q.Submit(t.Context(), item("first")) })
		synctest.Wait()
		time.Sleep(600 * time.Millisecond) // "first" is running
		for i := range 3 {
			all.Go(func() { _, _, _ = q.Submit(t.Context(), item(strconv.Itoa(i))) })
		}
		all.Wait()
		// The first runs from 0.5 s to 1.5 s. The others arrived at 0.6 s, so their delay is over when the worker is free.
		if took := time.Since(begun); took != 2500*time.Millisecond {
			t.Errorf("took %v, want 2.5s: the second batch must not wait again", took)
		}
		stop()
	})
}

func TestFullQueueRefusesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(1, takes(time.Second))
		q, stop := start(t, w, Policy{MaxItems: 2, MaxBatch: 1})
		var ok, refused atomic.Int32
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				begun := time.Now()
				_, _, err := q.Submit(t.Context(), item(strconv.Itoa(i)))
				switch {
				case err == nil:
					ok.Add(1)
				case fault.Is(err, fault.Overloaded) && time.Since(begun) == 0:
					refused.Add(1)
				default:
					t.Errorf("%v after %v", err, time.Since(begun))
				}
			})
			synctest.Wait()
		}
		all.Wait()
		if ok.Load() != 3 || refused.Load() != 5 {
			t.Errorf("%d answered, %d refused; want 3 (one running, two waiting) and 5", ok.Load(), refused.Load())
		}
		stop()
	})
}

func TestByteLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(1, takes(time.Second))
		q, stop := start(t, w, Policy{MaxItems: 100, MaxBatch: 1, MaxBytes: 1000})
		var all sync.WaitGroup
		errs := make([]error, 4)
		for i, size := range []int{10, 600, 500, 300} { // the first runs, 600 waits, 500 is too much, 300 fits
			all.Go(func() {
				_, _, errs[i] = q.Submit(t.Context(), infer.Item{Parts: []infer.Part{{Data: make([]byte, size)}}})
			})
			synctest.Wait()
		}
		all.Wait()
		for i, refused := range []bool{false, false, true, false} {
			if fault.Is(errs[i], fault.Overloaded) != refused {
				t.Errorf("request %d: %v", i, errs[i])
			}
		}
		stop()
	})
}

func TestIdleOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(1, takes(time.Second))
		q, stop := start(t, w, Policy{MaxItems: 100, MaxBatch: 1, IdleOnly: true})
		for range 3 { // one after the other: each finds the worker idle
			if _, _, err := q.Submit(t.Context(), item("a")); err != nil {
				t.Errorf("sequential request: %v", err)
			}
		}
		var all sync.WaitGroup
		all.Go(func() { _, _, _ = q.Submit(t.Context(), item("busy")) })
		synctest.Wait()
		if _, _, err := q.Submit(t.Context(), item("late")); !fault.Is(err, fault.Overloaded) {
			t.Errorf("with a busy worker: %v, want a refusal", err)
		}
		all.Wait()
		stop()
	})
}

func TestAbandonedRequestsNeverReachTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(1, takes(time.Second))
		q, stop := start(t, w, Policy{MaxItems: 200, MaxBatch: 4, MaxDelay: 10 * time.Millisecond})
		var all sync.WaitGroup
		all.Go(func() { _, _, _ = q.Submit(t.Context(), item("runs")) })
		synctest.Wait()
		time.Sleep(20 * time.Millisecond)
		reason := errors.New("left")
		ctx, leave := context.WithCancelCause(t.Context())
		for range 100 {
			all.Go(func() {
				if _, _, err := q.Submit(ctx, item("left")); !errors.Is(err, reason) {
					t.Errorf("abandoned: %v", err)
				}
			})
		}
		synctest.Wait()
		leave(reason)
		all.Wait()
		stop()
		if diff := cmp.Diff([][]string{{"runs"}}, w.seen()); diff != "" {
			t.Error(diff)
		}
		if n, _ := q.Waiting(); n != 0 || q.bytes != 0 {
			t.Errorf("%d requests and %d bytes are still counted", n, q.bytes)
		}
	})
}

func TestLeavingWhileTheBatchIsGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(1, echo)
		q, stop := start(t, w, Policy{MaxItems: 10, MaxBatch: 4, MaxDelay: time.Second})
		ctx, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { _, _, _ = q.Submit(ctx, item("leaves")) })
		synctest.Wait()
		all.Go(func() { _, _, _ = q.Submit(t.Context(), item("stays")) })
		synctest.Wait()
		leave()
		all.Wait()
		stop()
		if diff := cmp.Diff([][]string{{"stays"}}, w.seen()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAloneItemsAreBatchesByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(1, takes(time.Millisecond))
		q, stop := start(t, w, Policy{MaxItems: 10, MaxBatch: 4, MaxDelay: time.Second})
		var all sync.WaitGroup
		for _, id := range []string{"a", "b", "alone", "c", "d", "e", "f"} {
			it := item(id)
			it.Alone = id == "alone"
			all.Go(func() { _, _, _ = q.Submit(t.Context(), it) })
			synctest.Wait()
		}
		all.Wait()
		stop()
		if diff := cmp.Diff([][]string{{"a", "b"}, {"alone"}, {"c", "d", "e", "f"}}, w.seen()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestErrors(t *testing.T) {
	boom := fault.New(fault.BackendDied, "Worker died.", nil)
	own := fault.New(fault.HandlerFailed, "mine", nil)
	synctest.Test(t, func(t *testing.T) {
		handle := func(_ context.Context, items []infer.Item) ([]infer.Result, error) {
			switch items[0].ID {
			case "batch":
				return nil, boom
			case "short":
				return nil, nil
			}
			return []infer.Result{{Err: own}, {Body: []byte("fine")}}, nil
		}
		q, stop := start(t, newWorkers(1, handle), Policy{MaxItems: 10, MaxBatch: 2, MaxDelay: time.Millisecond})
		if _, _, err := q.Submit(t.Context(), item("batch")); !errors.Is(err, boom) {
			t.Errorf("an error for the batch: %v", err)
		}
		if _, _, err := q.Submit(t.Context(), item("short")); !fault.Is(err, fault.Internal) {
			t.Errorf("too few answers: %v", err)
		}
		var all sync.WaitGroup
		all.Go(func() {
			if _, _, err := q.Submit(t.Context(), item("x")); !errors.Is(err, own) {
				t.Errorf("the failed item: %v", err)
			}
		})
		synctest.Wait()
		if r, _, err := q.Submit(t.Context(), item("y")); err != nil || string(r.Body) != "fine" {
			t.Errorf("its neighbour: %q, %v", r.Body, err)
		}
		all.Wait()
		stop()
	})
}

func TestCloseRunsWhatWaitsAndRefusesWhatComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(1, takes(time.Second))
		q, stop := start(t, w, Policy{MaxItems: 10, MaxBatch: 1})
		var answered atomic.Int32
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				if _, _, err := q.Submit(t.Context(), item(strconv.Itoa(i))); err == nil {
					answered.Add(1)
				}
			})
		}
		synctest.Wait()
		reason := errors.New("closing")
		q.Close(reason)
		if _, _, err := q.Submit(t.Context(), item("late")); !errors.Is(err, reason) {
			t.Errorf("after Close: %v", err)
		}
		all.Wait()
		stop()
		if answered.Load() != 3 {
			t.Errorf("%d of 3 were answered", answered.Load())
		}
	})
}

func TestEndOfContextAnswersEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handle := func(ctx context.Context, _ []infer.Item) ([]infer.Result, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		q, err := New(newWorkers(1, handle), Policy{MaxItems: 10, MaxBatch: 1})
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancelCause(t.Context())
		var all sync.WaitGroup
		all.Go(func() { q.Run(ctx) })
		reason := errors.New("over")
		for i := range 4 {
			all.Go(func() {
				if _, _, err := q.Submit(t.Context(), item(strconv.Itoa(i))); !errors.Is(err, reason) {
					t.Errorf("request %d: %v", i, err)
				}
			})
		}
		synctest.Wait()
		end(reason)
		all.Wait()
	})
}

// TestEveryRequestIsAnsweredOnceAndRightly lets random clients come and leave under random policies, some of them with what ends workers.
func TestEveryRequestIsAnsweredOnceAndRightly(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		policy := Policy{
			MaxItems: rapid.IntRange(1, 20).Draw(rt, "items"), MaxBatch: rapid.IntRange(1, 6).Draw(rt, "batch"),
			MaxDelay: time.Duration(rapid.IntRange(0, 50).Draw(rt, "delay")) * time.Millisecond,
			Budget:   NewBudget(1 << 20),
		}
		guarded := rapid.Bool().Draw(rt, "guarded")
		workersN := rapid.IntRange(1, 3).Draw(rt, "workers")
		handler := time.Duration(rapid.IntRange(0, 30).Draw(rt, "handler")) * time.Millisecond
		unsent := rapid.SliceOfN(rapid.Bool(), 0, 20).Draw(rt, "unsent")
		clients := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) client {
			return client{
				time.Duration(rapid.IntRange(0, 100).Draw(rt, "at")) * time.Millisecond,
				time.Duration(rapid.IntRange(1, 500).Draw(rt, "patience")) * time.Millisecond,
				guarded && rapid.IntRange(0, 4).Draw(rt, "poison") == 0,
			}
		}), 1, 40).Draw(rt, "clients")
		synctest.Test(t, func(t *testing.T) {
			if guarded {
				policy.Guard = guard(true)
			}
			w := newWorkers(workersN, func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
				time.Sleep(handler)
				if slices.ContainsFunc(items, func(it infer.Item) bool { return string(it.Parts[0].Data) == "poison" }) {
					return nil, died(backend.CrashSignal, items)
				}
				return echo(ctx, items)
			})
			w.unsent = scripted(unsent)
			crowd(t, w, policy, clients)
			ran := map[string]int{}
			for _, b := range w.seen() {
				if len(b) > policy.MaxBatch {
					t.Errorf("a batch of %d, at most %d allowed", len(b), policy.MaxBatch)
				}
				for _, id := range b {
					if ran[id]++; ran[id] > 2 || ran[id] == 2 && (!guarded || len(b) > 1) {
						t.Errorf("request %s was run %d times, now in a batch of %d", id, ran[id], len(b))
					}
				}
			}
		})
	})
}

// client is one of a crowd.
type client struct {
	at, patience time.Duration
	poison       bool
}

// crowd lets clients come and leave, and looks whether each gets its answer and nothing is left of them.
func crowd(t *testing.T, w *workers, policy Policy, clients []client) {
	t.Helper()
	n := len(w.slots)
	q, stop := start(t, w, policy)
	var all sync.WaitGroup
	for i, c := range clients {
		all.Go(func() {
			time.Sleep(c.at)
			ctx, cancel := context.WithTimeout(t.Context(), c.patience)
			defer cancel()
			id := strconv.Itoa(i)
			it := payload(id, "harmless "+id)
			if len(id) < 2 {
				it = payload(id, "other"+id) // of the same size as what ends workers
			}
			kinds := []fault.Kind{fault.Overloaded}
			if c.poison {
				it = payload(id, "poison")
				kinds = append(kinds, fault.BackendDied, fault.Poisoned)
			}
			r, _, err := q.Submit(ctx, it)
			switch {
			case err == nil && (c.poison || string(r.Body) != id):
				t.Errorf("request %s got the answer of %s", id, r.Body)
			case err != nil && !errors.Is(err, context.DeadlineExceeded) && !fault.Is(err, kinds...):
				t.Errorf("request %s: %v", id, err)
			}
		})
	}
	all.Wait()
	stop()
	if used, _ := policy.Budget.Used(); q.waiting.len() != 0 || q.waiting.suspects != 0 || q.bytes != 0 || q.away != 0 || used != 0 || w.Free() != n {
		t.Errorf("%d requests, %d suspects, %d bytes, %d batches and %d bytes of the budget are left, and %d of %d slots",
			q.waiting.len(), q.waiting.suspects, q.bytes, q.away, used, w.Free(), n)
	}
}
