package batch

import (
	"slices"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/batch/policy"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// Batching says how batches are made within a policy's size and delay. The zero value is the adaptive rule.
type Batching struct {
	Rule      policy.Rule
	Preferred []int         // sizes at which the model is at its best
	Padded    bool          // the model pads a batch to the next preferred size
	Goal      time.Duration // the 99th percentile of latency toward which size and delay are moved; 0 for none
	// Moved is told of each step toward the goal, in its own time and not for long. May be nil.
	Moved func(policy.Step)
}

func (b *Batching) options(size int, delay time.Duration) policy.Options {
	return policy.Options{
		Limits: policy.Limits{Size: size, Delay: delay}, Rule: b.Rule, Preferred: b.Preferred, Padded: b.Padded, Goal: b.Goal,
	}
}

// batcher asks a policy about the batches of a queue or of a worker, and tells it what happens. It belongs to what guards it.
type batcher struct {
	since   time.Time // its moments are counted from here
	options policy.Options
	policy  policy.Policy
	moved   func(policy.Step)
}

// set changes the policy. One that has learned something stays if the options say the same as before.
func (b *batcher) set(how *Batching, size int, delay time.Duration) error {
	b.moved = how.Moved
	options := how.options(size, delay)
	if b.policy != nil && b.options.Equal(options) {
		return nil
	}
	p, err := policy.New(options)
	if err != nil {
		return err //nolint:wrapcheck // it says what is wrong with which setting
	}
	b.policy, b.options, b.since = p, options, time.Now()
	b.options.Preferred = slices.Clone(options.Preferred)
	return nil
}

func (b *batcher) now() policy.Moment { return time.Since(b.since) }

func (b *batcher) arrived() { b.policy.Arrived(b.now()) }

// lost tells of requests that left without having been run.
func (b *batcher) lost(n int) {
	for range n {
		b.policy.Left(b.now())
	}
}

// slots says what is known of the slots when a batch is made.
type slots struct {
	taken      time.Time // when the slot was had
	free, busy int       // other slots
}

func (b *batcher) state(gathered, waiting int, oldest time.Time, s slots) policy.State {
	return policy.State{
		Gathered: gathered, Waiting: waiting, Free: s.free, Busy: s.busy, Oldest: max(oldest.Sub(b.since), 0), Slot: max(s.taken.Sub(b.since), 0),
	}
}

// decide says up to which size a batch is to grow now, and how long it may then wait for more. oldest is the arrival of the oldest request.
func (b *batcher) decide(gathered, waiting int, oldest time.Time, s slots) policy.Decision {
	return b.policy.Decide(b.now(), b.state(gathered, waiting, oldest, s))
}

// sent tells that a batch leaves, and what waits besides.
func (b *batcher) sent(batch []*pending, waiting int, s slots) {
	b.policy.Sent(b.now(), b.state(len(batch), waiting, oldest(batch), s), len(batch))
}

// joined tells that requests have joined a batch that is with its worker.
func (b *batcher) joined(n, waiting int) {
	now := b.now()
	b.policy.Sent(now, policy.State{Gathered: n, Waiting: waiting, Running: true, Oldest: now, Slot: now}, n)
}

// ended tells that requests of a batch are done, and how long the whole batch took; 0 when that says nothing about the model. It gives the steps that a
// tuner has taken.
func (b *batcher) ended(batch []*pending, took time.Duration, answered bool) (steps []policy.Step) {
	now := b.now()
	b.policy.Done(now, len(batch), took)
	if answered {
		for _, p := range batch {
			b.policy.Answered(now, time.Since(p.arrived))
		}
	}
	if t, ok := b.policy.(policy.Tuner); ok {
		for step, more := t.Step(); more; step, more = t.Step() {
			steps = append(steps, step)
		}
	}
	return steps
}

// keeper is the side of a batch that is with a worker: where it comes from.
type keeper struct {
	// renew drops those of a batch between two steps that nobody waits for, and may add others.
	renew func(batch []*pending, slot backend.Slot) []*pending
	// ended is told of requests that are done, before they are answered where that is possible. took is 0 when it says nothing about the model.
	ended func(batch []*pending, took time.Duration, answered bool)
}

// left tells of those of a batch that are done after one of its steps.
func (k *keeper) left(batch, more []*pending, answered bool) {
	done := slices.DeleteFunc(slices.Clone(batch), func(p *pending) bool { return slices.Contains(more, p) })
	if len(done) > 0 {
		k.ended(done, 0, answered)
	}
}

// measured is how long a batch took, as far as that says something about the model.
func measured(e *Execution, err error) time.Duration {
	if err != nil {
		return 0
	}
	return e.Ran
}

// ended tells the policy of requests that are done.
func (q *Queue) ended(batch []*pending, took time.Duration, answered bool) {
	tell(q.end(batch, took, answered))
}

// end does the work of ended, and gives what is to be told, and whom.
func (q *Queue) end(batch []*pending, took time.Duration, answered bool) (moved func(policy.Step), steps []policy.Step) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.batcher.moved, q.batcher.ended(batch, took, answered)
}

// tell passes steps on, without any lock.
func tell(moved func(policy.Step), steps []policy.Step) {
	if moved == nil {
		return
	}
	for _, s := range steps {
		moved(s)
	}
}

// batcherOf gives the batcher of a worker: which requests it gets depends on its own sequences alone. s.mu is held.
func (s *Sequences) batcherOf(worker int) *batcher {
	b := s.batches[worker]
	if b == nil {
		b = &batcher{}
		size, delay := s.policy.MaxBatch, s.policy.MaxDelay
		if s.frozen != nil { // what was found by others is kept, and so is that of this one
			size, delay = s.frozen.Size, s.frozen.Delay
		}
		if err := b.set(&s.policy.Batching, size, delay); err != nil {
			panic("batch: SetPolicy has taken what is none: " + err.Error())
		}
		b.freeze(s.frozen != nil)
		s.batches[worker] = b
	}
	return b
}

// setBatching changes how the batches of all workers are made, or nothing; s.mu is held.
func (s *Sequences) setBatching(p *SequencePolicy) error {
	options := p.Batching.options(p.MaxBatch, p.MaxDelay)
	if _, err := policy.New(options); err != nil {
		return err //nolint:wrapcheck // it says what is wrong with which setting
	}
	if s.policy.Batching.options(s.policy.MaxBatch, s.policy.MaxDelay).Equal(options) { // what was learned, and what is kept, stays
		for _, b := range s.batches {
			b.moved = p.Batching.Moved
		}
		return nil
	}
	s.frozen = nil
	return s.resetBatching(p)
}

// resetBatching has all workers make their batches as a policy says; s.mu is held.
func (s *Sequences) resetBatching(p *SequencePolicy) error {
	for _, b := range s.batches {
		if err := b.set(&p.Batching, p.MaxBatch, p.MaxDelay); err != nil {
			return err
		}
	}
	return nil
}

// keeperOf is where the batches of a worker come from.
func (s *Sequences) keeperOf(worker int) keeper {
	ended := func(batch []*pending, took time.Duration, answered bool) { tell(s.end(worker, batch, took, answered)) }
	return keeper{
		renew: func(batch []*pending, _ backend.Slot) []*pending {
			kept, gone := split(batch)
			if len(gone) > 0 {
				ended(gone, 0, false)
			}
			return kept
		},
		ended: ended,
	}
}

// end tells the policy of a worker of requests that are done, and gives what is to be told, and whom.
func (s *Sequences) end(worker int, batch []*pending, took time.Duration, answered bool) (moved func(policy.Step), steps []policy.Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.batcherOf(worker)
	return b.moved, b.ended(batch, took, answered)
}

// decide says up to which size a worker's batch is to grow now, and how long it may then wait for more; s.mu is held.
func (s *Sequences) decide(worker int, batch []*pending, taken time.Time) policy.Decision {
	ready, earliest := s.ready(worker)
	if len(batch) > 0 && (earliest.IsZero() || oldest(batch).Before(earliest)) {
		earliest = oldest(batch)
	}
	if earliest.IsZero() {
		return policy.Decision{Size: 1}
	}
	return s.batcherOf(worker).decide(len(batch), ready, earliest, slots{taken: taken})
}

// ready counts the sequences of a worker that have a request to run, and gives the earliest arrival of those; s.mu is held.
func (s *Sequences) ready(worker int) (n int, earliest time.Time) {
	for _, q := range s.open {
		if q.worker != worker || q.running > 0 || q.jobs.Len() == 0 {
			continue
		}
		n++
		if at := first(&q.jobs).arrived; earliest.IsZero() || at.Before(earliest) {
			earliest = at
		}
	}
	return n, earliest
}

// notMeasured is the end of what goes alone: it is like no batch.
func notMeasured([]*pending, time.Duration, bool) {}
