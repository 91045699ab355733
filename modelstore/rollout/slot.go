package rollout

import (
	"context"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// slot is one batch's right to a member.
type slot struct {
	pool   *pool
	member *member
	worker int   // that it was asked from; anyWorker for any
	alone  bool  // nothing is to run beside it
	hold   *hold // what keeps others away from a member with several slots meanwhile; nil for nothing
	begun  bool  // it has run a batch
}

// Execute implements backend.Slot. A batch whose instance died or was replaced before the batch was sent goes to another instance, if one is free; what
// was in the batch before that moment is all that an instance which was replaced may still get. A batch that continues one which the old instance had
// stays with it.
func (s *slot) Execute(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
	if !s.begun && !s.leaveOld() {
		return nil, backend.ErrNotSent
	}
	s.begun = true
	if most := s.member.terms.maxBatch; most > 0 && len(items) > most { // gathered for a generation that took more
		first, err := s.execute(ctx, items[:most])
		if err != nil {
			return nil, err
		}
		rest, err := s.Execute(ctx, items[most:])
		if err != nil {
			rest = make([]infer.Result, len(items)-most)
			for i := range rest {
				rest[i].Err = err
			}
		}
		return append(first, rest...), nil
	}
	return s.execute(ctx, items)
}

func (s *slot) execute(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
	m := s.member
	s.pool.mu.Lock()
	limit := s.pool.timeout
	s.pool.mu.Unlock()
	late := errLate(limit)
	timed, cancel := context.WithCancelCause(ctx)
	timer := m.limitTimer(limit, func() { cancel(late) })
	defer cancel(nil)
	defer timer.Stop()
	m.listen(items, timer, limit)
	results, err := m.inst.Predict(timed, items)
	switch {
	case err == nil:
		m.hear()
		m.answered.Add(int64(len(results)))
		s.pool.remember(items, results)
	case timed.Err() != nil && ctx.Err() == nil:
		if s.pool.overran(m, limit) {
			late.Detail += "; the worker goes on, it has answered other requests meanwhile"
		}
		return nil, late
	case m.isOverdue() && dead(m.inst):
		return nil, errBeside(limit, err)
	}
	return results, err
}

// leaveOld changes the slot for one of a living instance of the current generation, if its own has died or is to end. It says no when there is none free
// and the batch is to wait for another slot: this one is of no instance any more. Where there will be no other, the one that is to end answers what it
// has before it does.
func (s *slot) leaveOld() bool {
	p, old := s.pool, s.member
	p.mu.Lock()
	defer p.mu.Unlock()
	isDead := dead(old.inst)
	if !isDead && !old.leaving {
		return true
	}
	if isDead {
		p.quit(old) // else it might be had again before its supervisor sees that it is dead
	}
	want := &waiter{worker: s.worker, passing: true} // the batch waits for another slot by itself
	if s.alone {
		want.alone = 1
	}
	m := p.takeFor(want)
	for m != nil && dead(m.inst) {
		p.quit(m)
		p.giveBack(m, want.hold)
		want.hold = nil
		m = p.takeFor(want)
	}
	if m == nil && !isDead && p.promises == 0 && !p.hopeful() {
		return true
	}
	p.giveBack(old, s.hold) // it takes nothing new, so that nobody waits for this
	s.member, s.hold = m, want.hold
	return m != nil
}

// largestKept is the size of the largest request that is kept for the warm-up of the next generation.
const largestKept = 1 << 20

// remember keeps a request that was answered well, for the warm-up of the next generation.
func (p *pool) remember(items []infer.Item, results []infer.Result) {
	if p.lastGood == nil {
		return
	}
	const ok = 200
	for i := range min(len(items), len(results)) {
		r, item := &results[i], &items[i]
		if r.Err == nil && (r.Status == 0 || r.Status == ok) && !item.Alone && item.Sequence == "" && item.Size() <= largestKept {
			p.lastGood(*item)
			return
		}
	}
}

func errLate(limit time.Duration) *fault.Error {
	late := fault.New(fault.ResponseTimeout, "Worker died.", nil)
	late.Detail = "the handler did not answer within the response timeout of " + limit.String()
	late.Hint = late.Detail + "; raise responseTimeout (model-config.yaml) or default_response_timeout if the model needs more time"
	return late
}

// errBeside is what a batch gets that ran beside the one that was late, or was to: err, how it ended, tells whether the worker ever had it, and what else it
// had.
func errBeside(limit time.Duration, err error) *fault.Error {
	beside := fault.New(fault.BackendDied, "Worker died.", err)
	beside.Detail = "the worker was ended with all that it had: another request ran into the response timeout of " + limit.String() +
		", and nothing had come from the worker for that long"
	return beside
}

// listen hears the pieces of a batch, and makes the limit one for the next piece of it, as TorchServe's is.
func (m *member) listen(items []infer.Item, timer *time.Timer, limit time.Duration) {
	for i := range items {
		emit := items[i].Emit
		items[i].Emit = func(r infer.Result) {
			m.hear()
			if timer.Stop() { // it has not fired
				timer.Reset(limit)
			}
			if emit != nil {
				emit(r)
			}
		}
	}
}

// Retiring implements backend.Slot.
func (s *slot) Retiring() bool {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	return s.member == nil || s.member.leaving
}

// Continuous implements backend.Slot.
func (s *slot) Continuous() bool { return s.member != nil && s.member.terms.continuous }

// InTurn implements backend.Slot.
func (s *slot) InTurn() bool { return s.member != nil && s.member.slots == 1 }

// Worker implements backend.Slot.
func (s *slot) Worker() (id, pid int) {
	if s.member == nil {
		return 0, 0
	}
	return s.member.worker, s.member.inst.PID()
}

// Release implements backend.Slot.
func (s *slot) Release() {
	if s.member == nil {
		return
	}
	s.pool.release(s.member, s.hold)
}

func dead(inst backend.Instance) bool {
	select {
	case <-inst.Done():
		return true
	default:
		return false
	}
}
