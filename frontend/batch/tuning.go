package batch

import (
	"cmp"
	"slices"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/batch/policy"
)

// Tuning is how far a queue's size and delay have been moved toward a goal.
type Tuning struct {
	// Now is what holds. Where each worker has its own, it is the smallest size and the shortest delay of all: what is good enough for the one that needs
	// it most.
	Now, Bounds policy.Limits
	Goal        time.Duration
	Frozen      bool           // they stay as they are
	Workers     []WorkerTuning // each worker's own, by their identifiers; nil where they have the same
}

// WorkerTuning is how far it has been moved for one worker.
type WorkerTuning struct {
	Worker int
	Now    policy.Limits
}

// limits gives the limits that were found, and whether there is a goal.
func (b *batcher) limits() (now policy.Limits, ok bool) {
	t, ok := b.policy.(policy.Tuner)
	if ok {
		now, _ = t.Limits()
	}
	return now, ok
}

// freeze keeps the limits as they are, or lets them move again, and says whether there is a goal.
func (b *batcher) freeze(on bool) bool {
	t, ok := b.policy.(policy.Tuner)
	if ok && t.Frozen() != on {
		t.Freeze(on)
	}
	return ok
}

// Tuning gives it, and whether the queue has a goal.
func (q *Queue) Tuning() (Tuning, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t, ok := q.batcher.policy.(policy.Tuner)
	if !ok {
		return Tuning{}, false
	}
	now, bounds := t.Limits()
	return Tuning{Now: now, Bounds: bounds, Goal: q.batcher.options.Goal, Frozen: t.Frozen()}, true
}

// Freeze keeps size and delay as they are, or lets them move again, until the policy is another one. It says no when the queue has no goal.
func (q *Queue) Freeze(on bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.batcher.freeze(on)
}

// Tuning is that of Queue: each worker that has had sequences has its own.
func (s *Sequences) Tuning() (Tuning, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tuning()
}

// tuning does the work of Tuning; s.mu is held.
func (s *Sequences) tuning() (Tuning, bool) {
	if s.policy.Batching.Goal <= 0 {
		return Tuning{}, false
	}
	bounds := policy.Limits{Size: s.policy.MaxBatch, Delay: max(s.policy.MaxDelay, 0)}
	t := Tuning{Now: bounds, Bounds: bounds, Goal: s.policy.Batching.Goal, Frozen: s.frozen != nil, Workers: []WorkerTuning{}}
	if s.frozen != nil {
		t.Now = *s.frozen
	}
	for worker, b := range s.batches {
		now, ok := b.limits()
		if !ok {
			continue
		}
		t.Workers = append(t.Workers, WorkerTuning{worker, now})
		t.Now = policy.Limits{Size: min(t.Now.Size, now.Size), Delay: min(t.Now.Delay, now.Delay)}
	}
	slices.SortFunc(t.Workers, func(a, b WorkerTuning) int { return cmp.Compare(a.Worker, b.Worker) })
	return t, true
}

// Freeze is that of Queue. While they are frozen, a worker that comes has the smallest size and the shortest delay of those that were there.
func (s *Sequences) Freeze(on bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tuning()
	switch {
	case !ok:
		return false
	case on && s.frozen == nil:
		s.frozen = &t.Now
	case !on:
		s.frozen = nil
		if err := s.resetBatching(&s.policy); err != nil { // of those that came meanwhile
			panic("batch: SetPolicy has taken what is none: " + err.Error())
		}
	}
	for _, b := range s.batches {
		b.freeze(on)
	}
	return true
}
