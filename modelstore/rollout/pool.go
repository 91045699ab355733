package rollout

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// pool hands out the slots of one version's ready instances, one batch per instance at a time.
type pool struct {
	mu      sync.Mutex    // guards what follows
	ready   []*member     // in the order of their last use: the longest idle one first
	waiters []*waiter     // who waits for a slot, the longest waiting first
	hopes   map[int]bool  // workers that are ready or may get ready
	timeout time.Duration // how long a batch may take
	absent  error         // what Acquire says while there are no hopes
}

// waiter is an Acquire that waits.
type waiter struct {
	worker int          // whose slot it wants; anyWorker for any
	given  chan *member // holds one; closed when there is no hope for one
}

// anyWorker is no worker's identifier.
const anyWorker = -1

// member is a ready instance in a pool.
type member struct {
	inst     backend.Instance
	worker   int
	busy     bool
	leaving  bool          // takes nothing new
	released chan struct{} // closed when it is leaving and not busy
	// overdue is closed when a batch took longer than its time limit: the instance is not to be used any more.
	overdue chan struct{}
	once    sync.Once // guards overdue
	// answered says that it has answered a batch.
	answered atomic.Bool
}

func newPool(timeout time.Duration) *pool {
	return &pool{hopes: map[int]bool{}, timeout: timeout, absent: fault.New(fault.NoWorker, "the model has no worker", nil)}
}

var _ backend.Pool = (*pool)(nil)

// hope counts a worker that may get ready; lose takes it back for good.
func (p *pool) hope(worker int) {
	p.mu.Lock()
	p.hopes[worker] = true
	p.mu.Unlock()
}

func (p *pool) lose(worker int) {
	p.mu.Lock()
	delete(p.hopes, worker)
	var orphans []*waiter
	p.waiters = slices.DeleteFunc(p.waiters, func(w *waiter) bool {
		hopeless := w.worker == worker || len(p.hopes) == 0
		if hopeless {
			orphans = append(orphans, w)
		}
		return hopeless
	})
	p.mu.Unlock()
	for _, w := range orphans {
		close(w.given)
	}
}

// Workers implements backend.Pool: the workers that are ready or may get ready, in the order of their identifiers.
func (p *pool) Workers() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.hopes))
}

// hasWorkers says whether there is one.
func (p *pool) hasWorkers() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.hopes) > 0
}

// add makes a worker's ready instance available.
func (p *pool) add(inst backend.Instance, worker int) *member {
	m := &member{inst: inst, worker: worker, released: make(chan struct{}), overdue: make(chan struct{})}
	p.mu.Lock()
	p.ready = append(p.ready, m)
	w := p.matched()
	p.mu.Unlock()
	if w != nil {
		w.waiter.given <- w.member
	}
	return m
}

// leave makes m take nothing new; m.released is closed once it has finished what it has.
func (p *pool) leave(m *member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.leaving {
		return
	}
	m.leaving = true
	for i, r := range p.ready {
		if r == m {
			p.ready = append(p.ready[:i], p.ready[i+1:]...)
			break
		}
	}
	if !m.busy {
		close(m.released)
	}
}

type match struct {
	waiter *waiter
	member *member
}

// matched gives the longest idle member to the longest waiting waiter that it suits, if there are both; p.mu is held.
func (p *pool) matched() *match {
	for i, w := range p.waiters {
		if m := p.idle(w.worker); m != nil {
			p.waiters = slices.Delete(p.waiters, i, i+1)
			return &match{w, m}
		}
	}
	return nil
}

// idle takes the longest idle member of a worker, or of any; p.mu is held.
func (p *pool) idle(worker int) *member {
	for i, m := range p.ready {
		if m.busy || worker != anyWorker && m.worker != worker {
			continue
		}
		m.busy = true
		copy(p.ready[i:], p.ready[i+1:])
		p.ready[len(p.ready)-1] = m
		return m
	}
	return nil
}

// Free implements backend.Pool.
func (p *pool) Free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, m := range p.ready {
		if !m.busy {
			n++
		}
	}
	return n
}

// Acquire implements backend.Pool. It fails with fault.NoWorker when no worker is there that may get ready.
func (p *pool) Acquire(ctx context.Context) (backend.Slot, error) {
	return p.AcquireFrom(ctx, anyWorker)
}

// AcquireFrom implements backend.Pool. It fails with fault.NoWorker when that worker is gone for good.
func (p *pool) AcquireFrom(ctx context.Context, worker int) (backend.Slot, error) {
	m, err := p.acquire(ctx, worker)
	if err != nil {
		return nil, err
	}
	return &slot{pool: p, member: m, worker: worker}, nil
}

func (p *pool) acquire(ctx context.Context, worker int) (*member, error) {
	p.mu.Lock()
	if len(p.hopes) == 0 || worker != anyWorker && !p.hopes[worker] {
		p.mu.Unlock()
		return nil, p.absent
	}
	if m := p.idle(worker); m != nil {
		p.mu.Unlock()
		return m, nil
	}
	w := &waiter{worker, make(chan *member, 1)}
	p.waiters = append(p.waiters, w)
	p.mu.Unlock()
	select {
	case m, ok := <-w.given:
		if !ok {
			return nil, p.absent
		}
		return m, nil
	case <-ctx.Done():
		p.forget(w)
		return nil, context.Cause(ctx)
	}
}

// forget takes a waiter back, and a member that was handed to it in the meantime.
func (p *pool) forget(w *waiter) {
	p.mu.Lock()
	if i := slices.Index(p.waiters, w); i >= 0 {
		p.waiters = slices.Delete(p.waiters, i, i+1)
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	if m, ok := <-w.given; ok { // it left the list, so it was answered or is just being answered
		p.release(m)
	}
}

func (p *pool) release(m *member) {
	p.mu.Lock()
	m.busy = false
	if m.leaving {
		close(m.released)
	}
	w := p.matched()
	p.mu.Unlock()
	if w != nil {
		w.waiter.given <- w.member
	}
}

// slot is one batch's right to a member.
type slot struct {
	pool   *pool
	member *member
	worker int // that it was asked from; anyWorker for any
}

// Execute implements backend.Slot. A batch whose instance died before the batch was sent goes to another instance.
func (s *slot) Execute(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
	for dead(s.member.inst) {
		m, err := s.pool.acquire(ctx, s.worker)
		if err != nil {
			return nil, err
		}
		s.pool.release(s.member)
		s.member = m
	}
	s.pool.mu.Lock()
	limit := s.pool.timeout
	s.pool.mu.Unlock()
	late := fault.New(fault.ResponseTimeout, "Worker died.", nil)
	late.Detail = "the handler did not answer within the response timeout of " + limit.String()
	late.Hint = "raise responseTimeout (model-config.yaml) or default_response_timeout if the model needs more time"
	timed, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(limit, func() { cancel(late) })
	defer cancel(nil)
	defer timer.Stop()
	restartOnPieces(items, timer, limit)
	results, err := s.member.inst.Predict(timed, items)
	if timed.Err() != nil && ctx.Err() == nil && err != nil {
		s.member.once.Do(func() { close(s.member.overdue) })
		<-s.member.inst.Done() // the supervisor kills it
		return nil, late
	}
	if err == nil {
		s.member.answered.Store(true)
	}
	return results, err
}

// restartOnPieces makes the limit one for the next piece of a stream, as TorchServe's is. Every item of a batch gets its pieces at the same
// time, so one item is enough to see them.
func restartOnPieces(items []infer.Item, timer *time.Timer, limit time.Duration) {
	if len(items) == 0 || items[0].Emit == nil {
		return
	}
	emit := items[0].Emit
	items[0].Emit = func(r infer.Result) {
		if timer.Stop() { // it has not fired
			timer.Reset(limit)
		}
		emit(r)
	}
}

// Retiring implements backend.Slot.
func (s *slot) Retiring() bool {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	return s.member.leaving
}

// Release implements backend.Slot.
func (s *slot) Release() { s.pool.release(s.member) }

func dead(inst backend.Instance) bool {
	select {
	case <-inst.Done():
		return true
	default:
		return false
	}
}
