package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// crew is a pool of workers that are told apart.
type crew struct {
	handle func(ctx context.Context, worker int, items []infer.Item) ([]infer.Result, error)
	unsent func() bool // says of the next batch that it is not sent; nil: all are

	mu    sync.Mutex
	slots map[int]chan struct{}
	pins  map[int]int
	ran   []string // "worker: id id" for each batch
}

func newCrew(n int, handle func(context.Context, int, []infer.Item) ([]infer.Result, error)) *crew {
	c := &crew{handle: handle, slots: map[int]chan struct{}{}, pins: map[int]int{}}
	for w := range n {
		c.slots[w] = make(chan struct{}, 1)
		c.slots[w] <- struct{}{}
	}
	return c
}

func (c *crew) fire(worker int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.slots, worker)
}

func (c *crew) Workers() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []int
	for w := range c.slots {
		all = append(all, w)
	}
	slices.Sort(all)
	return all
}

func (c *crew) Pin(worker int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.slots[worker] == nil {
		return false
	}
	c.pins[worker]++
	return true
}

func (c *crew) Unpin(worker int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pins[worker]--
}

func (c *crew) Free() int { return 0 }

func (c *crew) Acquire(ctx context.Context) (backend.Slot, error) {
	return c.AcquireFrom(ctx, c.Workers()[0])
}

func (c *crew) AcquireAlone(ctx context.Context, _ int) ([]backend.Slot, error) {
	return one(c.Acquire(ctx))
}

func (c *crew) AcquireFrom(ctx context.Context, worker int) (backend.Slot, error) {
	c.mu.Lock()
	slot := c.slots[worker]
	c.mu.Unlock()
	if slot == nil {
		return nil, fault.New(fault.NoWorker, "gone", nil)
	}
	select {
	case <-slot:
		return &crewSlot{c, worker, slot}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

type crewSlot struct {
	crew   *crew
	worker int
	slot   chan struct{}
}

func (s *crewSlot) Release()       { s.slot <- struct{}{} }
func (s *crewSlot) Retiring() bool { return false }

func (s *crewSlot) Continuous() bool { return false }

func (s *crewSlot) InTurn() bool { return true }

func (s *crewSlot) Worker() (id, pid int) { return 0, 0 }

func (s *crewSlot) Execute(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
	var ids []string
	for _, item := range items {
		ids = append(ids, item.ID)
	}
	slices.Sort(ids)
	s.crew.mu.Lock()
	if s.crew.unsent != nil && s.crew.unsent() {
		s.crew.mu.Unlock()
		return nil, backend.ErrNotSent
	}
	s.crew.ran = append(s.crew.ran, fmt.Sprintf("%d: %s", s.worker, strings.Join(ids, " ")))
	s.crew.mu.Unlock()
	return s.crew.handle(ctx, s.worker, items)
}

func (c *crew) batches() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.ran)
}

// second takes a second for a batch and answers with the worker's number.
func second(_ context.Context, worker int, items []infer.Item) ([]infer.Result, error) {
	time.Sleep(time.Second)
	results := make([]infer.Result, len(items))
	for i := range results {
		results[i].Body = []byte(strconv.Itoa(worker))
	}
	return results, nil
}

func startSequences(t *testing.T, pool backend.Pool, p SequencePolicy) (q *Sequences, stop func()) {
	t.Helper()
	q, err := NewSequences(pool, p)
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

func of(sequence, id string) infer.Item { return infer.Item{ID: id, Sequence: sequence} }

var roomy = SequencePolicy{MaxSequences: 10, MaxItems: 10, MaxBatch: 4, Idle: time.Minute}

func TestSequenceStaysWithItsWorkerInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(2, second)
		q, stop := startSequences(t, c, roomy)
		var all sync.WaitGroup
		for _, item := range []infer.Item{of("a", "a1"), of("b", "b1"), of("a", "a2"), of("b", "b2"), of("a", "a3")} {
			all.Go(func() {
				if _, _, err := q.Submit(t.Context(), item); err != nil {
					t.Errorf("%s: %v", item.ID, err)
				}
			})
			synctest.Wait()
		}
		all.Wait()
		stop()
		got := c.batches()
		slices.Sort(got[:2])
		slices.Sort(got[2:4])
		if diff := cmp.Diff([]string{"0: a1", "1: b1", "0: a2", "1: b2", "0: a3"}, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestSequencesShareBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(1, second)
		policy := roomy
		policy.MaxDelay = 100 * time.Millisecond
		q, stop := startSequences(t, c, policy)
		var all sync.WaitGroup
		begun := time.Now()
		for _, item := range []infer.Item{of("a", "a1"), of("b", "b1"), of("a", "a2"), of("c", "c1")} {
			all.Go(func() { _, _, _ = q.Submit(t.Context(), item) })
			synctest.Wait()
		}
		all.Wait()
		if took := time.Since(begun); took != 2100*time.Millisecond {
			t.Errorf("took %v; want the delay and two batches, and no second delay", took)
		}
		stop()
		if diff := cmp.Diff([]string{"0: a1 b1 c1", "0: a2"}, c.batches()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestSequenceLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(1, second)
		q, stop := startSequences(t, c, SequencePolicy{MaxSequences: 2, MaxItems: 3, Idle: 2 * time.Second})
		var all sync.WaitGroup
		var mu sync.Mutex
		count := map[string]int{}
		submit := func(sequence string) {
			all.Go(func() {
				_, _, err := q.Submit(t.Context(), of(sequence, sequence))
				mu.Lock()
				defer mu.Unlock()
				if err != nil && !fault.Is(err, fault.Overloaded) {
					t.Error(err)
				}
				count[fmt.Sprintf("%s %t", sequence, err == nil)]++
			})
			synctest.Wait()
		}
		for range 6 { // one runs, three wait
			submit("a")
		}
		submit("b")
		submit("c") // one sequence too many
		all.Wait()
		if diff := cmp.Diff(map[string]int{"a true": 4, "a false": 2, "b true": 1, "c false": 1}, count); diff != "" {
			t.Error(diff)
		}
		time.Sleep(2 * time.Second) // both are idle for long enough
		synctest.Wait()
		submit("c")
		all.Wait()
		if count["c true"] != 1 {
			t.Error("idle sequences did not make room")
		}
		stop()
	})
}

func TestSequenceEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		policy SequencePolicy
		header string
		after  time.Duration
	}{
		"after its total time":        {SequencePolicy{MaxSequences: 1, MaxItems: 1, Idle: time.Hour, Total: 3 * time.Second}, "", 3 * time.Second},
		"when the handler ends it":    {SequencePolicy{MaxSequences: 1, MaxItems: 1, Idle: time.Hour, EndHeader: "x-end"}, "a;z", 0},
		"not by another one's ending": {SequencePolicy{MaxSequences: 1, MaxItems: 1, Idle: time.Hour, EndHeader: "x-end"}, "z", time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				handle := func(_ context.Context, _ int, items []infer.Item) ([]infer.Result, error) {
					return []infer.Result{{Header: []infer.Field{{Name: "X-End", Value: tc.header}}}}[:len(items)], nil
				}
				q, stop := startSequences(t, newCrew(1, handle), tc.policy)
				begun := time.Now()
				if _, _, err := q.Submit(t.Context(), of("a", "1")); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				for {
					_, _, err := q.Submit(t.Context(), of("b", "1"))
					if err == nil {
						break
					}
					time.Sleep(time.Second)
				}
				if took := time.Since(begun); took < tc.after || took > tc.after+time.Second {
					t.Errorf("the next sequence found room after %v, want %v", took, tc.after)
				}
				stop()
			})
		})
	}
}

func TestSequencesOfALostWorkerMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(2, second)
		q, stop := startSequences(t, c, roomy)
		var all sync.WaitGroup
		submit := func(want string) {
			all.Go(func() {
				r, _, err := q.Submit(t.Context(), of("a", "a"))
				if err != nil || string(r.Body) != want {
					t.Errorf("answered by %q, %v; want worker %s", r.Body, err, want)
				}
			})
			synctest.Wait()
		}
		submit("0")
		submit("1")
		c.fire(0)
		all.Wait()
		c.fire(1)
		if _, _, err := q.Submit(t.Context(), of("a", "a")); !fault.Is(err, fault.NoWorker) {
			t.Errorf("without workers: %v", err)
		}
		stop()
	})
}

func TestSequenceWithoutItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(1, second)
		q, stop := startSequences(t, c, roomy)
		ctx, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { _, _, _ = q.Submit(t.Context(), of("a", "a1")) })
		synctest.Wait()
		all.Go(func() {
			if _, _, err := q.Submit(ctx, of("a", "left")); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		synctest.Wait()
		leave()
		all.Go(func() { _, _, _ = q.Submit(t.Context(), of("a", "a2")) })
		all.Wait()
		if _, _, err := q.Submit(t.Context(), infer.Item{ID: "describe", Alone: true}); err != nil {
			t.Error(err)
		}
		stop()
		if diff := cmp.Diff([]string{"0: a1", "0: a2", "0: describe"}, c.batches()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestEndOfContextAnswersSequences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handle := func(ctx context.Context, _ int, _ []infer.Item) ([]infer.Result, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		q, err := NewSequences(newCrew(1, handle), roomy)
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancelCause(t.Context())
		var all sync.WaitGroup
		all.Go(func() { q.Run(ctx) })
		reason := errors.New("over")
		for range 3 {
			all.Go(func() {
				if _, _, err := q.Submit(t.Context(), of("a", "a")); !errors.Is(err, reason) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		end(reason)
		all.Wait()
	})
}

// TestSequencesKeepOrderAndWorker lets random sequences run, and looks whether each was run in order, by one worker, one at a time.
func TestSequencesKeepOrderAndWorker(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		workers := rapid.IntRange(1, 3).Draw(rt, "workers")
		policy := SequencePolicy{
			MaxSequences: 8, MaxItems: 50, MaxBatch: rapid.IntRange(1, 4).Draw(rt, "batch"), Idle: time.Minute,
			MaxDelay: time.Duration(rapid.IntRange(0, 30).Draw(rt, "delay")) * time.Millisecond,
		}
		jobs := rapid.SliceOfN(rapid.IntRange(0, 7), 1, 40).Draw(rt, "sequences")
		pauses := rapid.SliceOfN(rapid.IntRange(0, 20), len(jobs), len(jobs)).Draw(rt, "pauses")
		priorities := rapid.SliceOfN(rapid.IntRange(0, 4), len(jobs), len(jobs)).Draw(rt, "priorities")
		policy.Priorities = Priorities{Levels: rapid.IntRange(0, 3).Draw(rt, "levels"), Default: 2}
		unsent := rapid.SliceOfN(rapid.Bool(), 0, 20).Draw(rt, "unsent")
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			seen, by := map[string][]string{}, map[string]int{}
			handle := func(_ context.Context, worker int, items []infer.Item) ([]infer.Result, error) {
				time.Sleep(7 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				inBatch := map[string]bool{}
				for _, item := range items {
					if before, known := by[item.Sequence]; known && before != worker || inBatch[item.Sequence] {
						t.Errorf("sequence %s on workers %d and %d, or twice in a batch", item.Sequence, before, worker)
					}
					by[item.Sequence], inBatch[item.Sequence] = worker, true
					seen[item.Sequence] = append(seen[item.Sequence], item.ID)
				}
				return make([]infer.Result, len(items)), nil
			}
			c := newCrew(workers, handle)
			c.unsent = scripted(unsent)
			q, stop := startSequences(t, c, policy)
			var all sync.WaitGroup
			want := map[string][]string{}
			for n, sequence := range jobs {
				name, id := strconv.Itoa(sequence), strconv.Itoa(n)
				want[name] = append(want[name], id)
				all.Go(func() {
					one := of(name, id)
					one.Priority = priorities[n]
					if _, _, err := q.Submit(t.Context(), one); err != nil {
						t.Errorf("request %s: %v", id, err)
					}
				})
				synctest.Wait()
				time.Sleep(time.Duration(pauses[n]) * time.Millisecond)
			}
			all.Wait()
			stop()
			if diff := cmp.Diff(want, seen); diff != "" {
				t.Error(diff)
			}
		})
	})
}
