package batch

import (
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	rule "github.com/flambeau-serve/flambeau/frontend/batch/policy"
)

// found is a policy that has moved its limits.
type found struct {
	rule.Tuner

	now rule.Limits
}

func (f *found) Limits() (now, bounds rule.Limits) {
	_, bounds = f.Tuner.Limits()
	return f.now, bounds
}

// TestTuningOfSequences: each worker has its own limits. The smallest of them are what is shown for all, and what a worker has that comes while they are
// frozen.
func TestTuningOfSequences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		p := SequencePolicy{MaxSequences: 64, MaxItems: 9, MaxBatch: 32, MaxDelay: 50 * ms, Idle: time.Hour, Batching: Batching{Goal: 300 * ms}}
		c := newCrew(2, second)
		q, stop := startSequences(t, c, p)
		requireTuning(t, q, Tuning{Now: limits(32, 50*ms), Bounds: limits(32, 50*ms), Goal: 300 * ms, Workers: []WorkerTuning{}})
		send := func(from int) {
			var all sync.WaitGroup
			for i := range 6 {
				all.Go(func() {
					if _, _, err := q.Submit(t.Context(), of(strconv.Itoa(from+i), "x")); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
		}
		send(0)
		q.mu.Lock()
		for worker, now := range []rule.Limits{limits(20, 5*ms), limits(10, 40*ms)} {
			tuner, _ := q.batches[worker].policy.(rule.Tuner)
			q.batches[worker].policy = &found{tuner, now}
		}
		q.mu.Unlock()
		want := Tuning{
			Now: limits(10, 5*ms), Bounds: limits(32, 50*ms), Goal: 300 * ms, Workers: []WorkerTuning{{0, limits(20, 5*ms)}, {1, limits(10, 40*ms)}},
		}
		requireTuning(t, q, want)
		for range 2 { // once more changes nothing
			if !q.Freeze(true) {
				t.Error("it cannot be frozen")
			}
		}
		want.Frozen = true
		requireTuning(t, q, want)
		if err := q.SetPolicy(p); err != nil { // as after a swap with the same settings
			t.Error(err)
		}
		requireTuning(t, q, want)
		for _, b := range q.batches {
			if tuner, ok := b.policy.(rule.Tuner); !ok || !tuner.Frozen() {
				t.Error("a worker's batches are not frozen")
			}
		}

		c.mu.Lock() // another worker comes in the place of the first
		delete(c.slots, 0)
		c.slots[2] = make(chan struct{}, 1)
		c.slots[2] <- struct{}{}
		c.mu.Unlock()
		send(0)
		send(100)
		want.Workers = []WorkerTuning{{1, limits(10, 40*ms)}, {2, limits(10, 5*ms)}}
		requireTuning(t, q, want)
		if !q.Freeze(false) {
			t.Error("it cannot be released")
		}
		want.Now, want.Frozen, want.Workers[1].Now = limits(10, 40*ms), false, limits(32, 50*ms)
		requireTuning(t, q, want)

		q.Freeze(true)
		p.MaxBatch = 16
		if err := q.SetPolicy(p); err != nil {
			t.Error(err)
		}
		requireTuning(t, q, Tuning{
			Now: limits(16, 50*ms), Bounds: limits(16, 50*ms), Goal: 300 * ms, Workers: []WorkerTuning{{1, limits(16, 50*ms)}, {2, limits(16, 50*ms)}},
		})
		p.Batching.Goal = 0
		if err := q.SetPolicy(p); err != nil {
			t.Error(err)
		}
		if _, ok := q.Tuning(); ok || q.Freeze(true) {
			t.Error("there is no goal")
		}
		stop()
	})
}

func limits(size int, delay time.Duration) rule.Limits { return rule.Limits{Size: size, Delay: delay} }

func requireTuning(t *testing.T, q *Sequences, want Tuning) {
	t.Helper()
	got, ok := q.Tuning()
	if diff := cmp.Diff(want, got); diff != "" || !ok {
		t.Error(diff)
	}
}
