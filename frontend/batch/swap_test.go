package batch

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// swapped is a pool of two workers that answer in steps with their names. The first one is replaced by the second when it is looked whether it is to end:
// at once after the answer, which was no. The second one can be had when the first one is done.
type swapped struct {
	queue *Queue
	slots chan struct{}
	late  func() // sends a request, and returns when it waits

	mu   sync.Mutex
	gone bool // the first one is to end
	all  sync.WaitGroup
}

func (p *swapped) Free() int      { return 1 }
func (p *swapped) Workers() []int { return []int{0} }
func (p *swapped) Pin(int) bool   { return true }
func (p *swapped) Unpin(int)      {}

func (p *swapped) AcquireAlone(ctx context.Context, _ int) ([]backend.Slot, error) {
	return one(p.Acquire(ctx))
}

func (p *swapped) AcquireFrom(context.Context, int) (backend.Slot, error) {
	return nil, errors.ErrUnsupported
}

func (p *swapped) Acquire(ctx context.Context) (backend.Slot, error) {
	select {
	case <-p.slots:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return &swappedSlot{p, p.gone}, nil
}

type swappedSlot struct {
	pool *swapped
	new  bool
}

func (s *swappedSlot) Release()         { s.pool.slots <- struct{}{} }
func (s *swappedSlot) Continuous() bool { return true }

func (s *swappedSlot) InTurn() bool { return true }

func (s *swappedSlot) Worker() (id, pid int) { return 0, 0 }

// Retiring says what is so, and then has the swap happen and a request come before its caller can do anything; unless the queue lets nothing come
// meanwhile, as it should.
func (s *swappedSlot) Retiring() bool {
	s.pool.mu.Lock()
	was := s.pool.gone && !s.new
	first := !s.pool.gone
	s.pool.gone = true
	s.pool.mu.Unlock()
	if !first {
		return was
	}
	if s.pool.queue.mu.TryLock() {
		s.pool.queue.mu.Unlock()
		before, _ := s.pool.queue.Waiting()
		s.pool.all.Go(s.pool.late)
		for n := before; n == before; n, _ = s.pool.queue.Waiting() {
			runtime.Gosched()
		}
	} else {
		s.pool.all.Go(s.pool.late) // it comes as soon as the queue lets it
	}
	return was
}

// Execute answers with the worker's name; what came first in two steps.
func (s *swappedSlot) Execute(_ context.Context, items []infer.Item) ([]infer.Result, error) {
	name := "old"
	if s.new {
		name = "new"
	}
	time.Sleep(time.Second)
	results := make([]infer.Result, len(items))
	for i := range items {
		more := items[i].ID == "first" && len(items[i].Parts) > 0
		results[i] = infer.Result{Body: []byte(name + ";"), Header: []infer.Field{{Name: streamHeader, Value: strconv.FormatBool(more)}}}
	}
	return results, nil
}

// TestContinuousBatchTakesNothingThatComesAfterASwap: a request that comes when the swap is done is not answered by the old worker, although that still
// works on a batch with a free place, and was asked a moment before whether it is to end.
func TestContinuousBatchTakesNothingThatComesAfterASwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := &swapped{slots: make(chan struct{}, 1)}
		pool.slots <- struct{}{}
		q, stop := start(t, pool, Policy{MaxItems: 10, MaxBatch: 4})
		pool.queue = q
		pool.late = func() {
			if got, err := streamed(t.Context(), q, "late", "x"); err != nil || got != "new;" {
				t.Errorf("what came after the swap was answered with %q, %v", got, err)
			}
		}
		var before sync.WaitGroup
		before.Go(func() {
			if got, err := streamed(t.Context(), q, "first", "x"); err != nil || got != "old;old;" {
				t.Errorf("what came before the swap was answered with %q, %v", got, err)
			}
		})
		synctest.Wait()
		before.Go(func() { // so that there is something to take at the first look
			if got, err := streamed(t.Context(), q, "second", "x"); err != nil || got != "old;" {
				t.Errorf("what waited before the swap was answered with %q, %v", got, err)
			}
		})
		before.Wait()
		pool.all.Wait()
		stop()
	})
}

// TestWhatIsNotSentWaitsAgainInFront takes the slot away from a batch that is about to leave.
func TestWhatIsNotSentWaitsAgainInFront(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(1, takes(time.Second))
		w.unsent = scripted([]bool{false, true, false, true})
		q, stop := start(t, w, Policy{MaxItems: 10, MaxBatch: 2})
		var all sync.WaitGroup
		for i := range 5 {
			all.Go(func() {
				id := strconv.Itoa(i)
				if r, times, err := q.Submit(t.Context(), item(id)); err != nil || string(r.Body) != id || times.Ran != time.Second {
					t.Errorf("request %s: %q, %v, %v", id, r.Body, times.Ran, err)
				}
			})
			synctest.Wait()
		}
		q.Close(nil) // what comes back is run all the same
		all.Wait()
		stop()
		if diff := cmp.Diff([][]string{{"0"}, {"1", "2"}, {"3", "4"}}, w.seen()); diff != "" {
			t.Error(diff)
		}
		if q.bytes != 0 || q.away != 0 {
			t.Errorf("%d bytes and %d batches are still counted", q.bytes, q.away)
		}
	})
}

// TestWhatIsNotSentIsAnsweredAtTheEnd: nothing comes back into a queue that has ended.
func TestWhatIsNotSentIsAnsweredAtTheEnd(t *testing.T) {
	type line interface {
		Run(ctx context.Context)
		Submit(ctx context.Context, item infer.Item) (infer.Result, Times, error)
	}
	for name, fresh := range map[string]func(pool backend.Pool) (line, error){
		"queue":     func(pool backend.Pool) (line, error) { return New(pool, Policy{MaxItems: 10, MaxBatch: 4}) },
		"sequences": func(pool backend.Pool) (line, error) { return NewSequences(pool, roomy) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, end := context.WithCancelCause(t.Context())
				reason := errors.New("over")
				w := newWorkers(1, echo)
				w.unsent = func() bool { end(reason); return true }
				q, err := fresh(w)
				if err != nil {
					t.Fatal(err)
				}
				var all sync.WaitGroup
				all.Go(func() { q.Run(ctx) })
				if _, _, err := q.Submit(t.Context(), of("a", "x")); !errors.Is(err, reason) {
					t.Errorf("answered with %v", err)
				}
				all.Wait()
			})
		})
	}
}

// TestSequencesMoveWhileTheirBatchIsGathered lets a worker end while it has a batch that is not complete: the requests wait for the worker after it, in
// their order.
func TestSequencesMoveWhileTheirBatchIsGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(2, second)
		policy := roomy
		policy.MaxDelay = time.Second
		q, stop := startSequences(t, c, policy)
		var ended atomic.Bool
		c.unsent = func() bool {
			if ended.Swap(true) {
				return false
			}
			delete(c.slots, 0) // c.mu is held
			return true
		}
		var all sync.WaitGroup
		for _, id := range []string{"a1", "a2", "a3"} {
			all.Go(func() {
				if r, _, err := q.Submit(t.Context(), of("a", id)); err != nil || string(r.Body) != "1" {
					t.Errorf("request %s was answered by worker %q, %v", id, r.Body, err)
				}
			})
			synctest.Wait()
		}
		all.Wait()
		stop()
		if diff := cmp.Diff([]string{"1: a1", "1: a2", "1: a3"}, c.batches()); diff != "" {
			t.Error(diff)
		}
	})
}

// picky is a crew of which a worker is told to end just after it was named.
type picky struct {
	*crew

	once sync.Once
}

func (p *picky) Pin(worker int) bool {
	p.once.Do(func() { p.fire(worker) })
	return p.crew.Pin(worker)
}

func TestSequenceIsNotBoundToAWorkerThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, stop := startSequences(t, &picky{crew: newCrew(2, second)}, roomy)
		if r, _, err := q.Submit(t.Context(), of("a", "a1")); err != nil || string(r.Body) != "1" {
			t.Errorf("answered by worker %q, %v", r.Body, err)
		}
		stop()
		q, stop = startSequences(t, &picky{crew: newCrew(1, second)}, roomy)
		if _, _, err := q.Submit(t.Context(), of("a", "a1")); !fault.Is(err, fault.NoWorker) {
			t.Errorf("without workers: %v", err)
		}
		stop()
	})
}

// TestSequencesByPriority: of several sequences with a request, the one whose request is in the first class goes first; a sequence keeps its order.
func TestSequencesByPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(1, second)
		policy := roomy
		policy.MaxBatch, policy.Priorities = 1, Priorities{Levels: 3, Default: 2}
		q, stop := startSequences(t, c, policy)
		var all sync.WaitGroup
		for i, s := range []struct {
			sequence string
			priority int
		}{{"x", 2}, {"a", 3}, {"a", 1}, {"b", 0}, {"c", 1}, {"b", 1}} {
			one := of(s.sequence, fmt.Sprint(s.sequence, i))
			one.Priority = s.priority
			all.Go(func() { _, _, _ = q.Submit(t.Context(), one) })
			synctest.Wait()
		}
		all.Wait()
		stop()
		if diff := cmp.Diff([]string{"0: x0", "0: c4", "0: b3", "0: b5", "0: a1", "0: a2"}, c.batches()); diff != "" {
			t.Error(diff)
		}
	})
}
