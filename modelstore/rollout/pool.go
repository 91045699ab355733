package rollout

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// pool hands out the slots of one version's ready instances, one batch per instance at a time.
type pool struct {
	mu      sync.Mutex     // guards what follows
	ready   []*member      // in the order of their last use: the longest idle one first
	waiters []chan *member // who waits for a slot, the longest waiting first; each holds one
	hopes   int            // workers that are ready or may get ready
	timeout time.Duration  // how long a batch may take
	absent  error          // what Acquire says while there are no hopes
}

// member is a ready instance in a pool.
type member struct {
	inst     backend.Instance
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
	return &pool{timeout: timeout, absent: fault.New(fault.NoWorker, "the model has no worker", nil)}
}

var _ backend.Pool = (*pool)(nil)

// hope counts a worker that may get ready; lose takes it back for good.
func (p *pool) hope() {
	p.mu.Lock()
	p.hopes++
	p.mu.Unlock()
}

func (p *pool) lose() {
	p.mu.Lock()
	p.hopes--
	var orphans []chan *member
	if p.hopes == 0 {
		orphans, p.waiters = p.waiters, nil
	}
	p.mu.Unlock()
	for _, w := range orphans {
		close(w)
	}
}

// workers is the number of workers that are ready or may get ready.
func (p *pool) workers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hopes
}

// add makes a ready instance available.
func (p *pool) add(inst backend.Instance) *member {
	m := &member{inst: inst, released: make(chan struct{}), overdue: make(chan struct{})}
	p.mu.Lock()
	p.ready = append(p.ready, m)
	w := p.matched()
	p.mu.Unlock()
	if w != nil {
		w.waiter <- w.member
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
	waiter chan *member
	member *member
}

// matched gives the longest idle member to the longest waiting waiter, if there are both; p.mu is held.
func (p *pool) matched() *match {
	if len(p.waiters) == 0 {
		return nil
	}
	m := p.idle()
	if m == nil {
		return nil
	}
	w := p.waiters[0]
	p.waiters = p.waiters[1:]
	return &match{w, m}
}

// idle takes the longest idle member; p.mu is held.
func (p *pool) idle() *member {
	for i, m := range p.ready {
		if m.busy {
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
	m, err := p.acquire(ctx)
	if err != nil {
		return nil, err
	}
	return &slot{pool: p, member: m}, nil
}

func (p *pool) acquire(ctx context.Context) (*member, error) {
	p.mu.Lock()
	if p.hopes == 0 {
		p.mu.Unlock()
		return nil, p.absent
	}
	if m := p.idle(); m != nil {
		p.mu.Unlock()
		return m, nil
	}
	w := make(chan *member, 1)
	p.waiters = append(p.waiters, w)
	p.mu.Unlock()
	select {
	case m, ok := <-w:
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
func (p *pool) forget(w chan *member) {
	p.mu.Lock()
	for i, x := range p.waiters {
		if x == w {
			p.waiters = append(p.waiters[:i], p.waiters[i+1:]...)
			p.mu.Unlock()
			return
		}
	}
	p.mu.Unlock()
	if m, ok := <-w; ok { // it left the list, so it was answered or is just being answered
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
		w.waiter <- w.member
	}
}

// slot is one batch's right to a member.
type slot struct {
	pool   *pool
	member *member
}

// Execute implements backend.Slot. A batch whose instance died before the batch was sent goes to another instance.
func (s *slot) Execute(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
	for dead(s.member.inst) {
		m, err := s.pool.acquire(ctx)
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
