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

// pool hands out the slots of one version's ready instances: as many for each as it runs batches at the same time, which is one for most.
type pool struct {
	mu      sync.Mutex    // guards what follows
	ready   []*member     // in the order of their last use: the one that was not used for the longest time first
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
	slots    int           // batches that it runs at the same time
	used     int           // slots that are handed out; the pool's mu guards it and leaving
	leaving  bool          // takes nothing new
	released chan struct{} // closed when it is leaving and no slot is handed out
	// overdue is closed when the instance let a batch run into its time limit and is not to be used any more.
	overdue chan struct{}
	once    sync.Once // guards overdue
	// answered says that it has answered a batch.
	answered atomic.Bool
	since    time.Time    // when it became a member
	heard    atomic.Int64 // its last answer or piece, in nanoseconds after since
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

// add makes the slots of a worker's ready instance available.
func (p *pool) add(inst backend.Instance, worker, slots int) *member {
	m := &member{
		inst: inst, worker: worker, slots: slots, since: time.Now(), released: make(chan struct{}), overdue: make(chan struct{}),
	}
	p.mu.Lock()
	p.ready = append(p.ready, m)
	found := p.matches()
	p.mu.Unlock()
	hand(found)
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
	if m.used == 0 {
		close(m.released)
	}
}

type match struct {
	waiter *waiter
	member *member
}

// matches takes a slot for each waiter that there is one for, the longest waiting first; p.mu is held.
func (p *pool) matches() []match {
	var found []match
	p.waiters = slices.DeleteFunc(p.waiters, func(w *waiter) bool {
		m := p.take(w.worker)
		if m != nil {
			found = append(found, match{w, m})
		}
		return m != nil
	})
	return found
}

// hand gives waiters what they waited for; each has room for it.
func hand(found []match) {
	for _, m := range found {
		m.waiter.given <- m.member
	}
}

// take takes a slot of a worker's member, or of the least busy one of all: of several, the one that was not used for the longest time. p.mu is held.
func (p *pool) take(worker int) *member {
	at := -1
	for i, m := range p.ready {
		if m.used < m.slots && (worker == anyWorker || m.worker == worker) && (at < 0 || m.used < p.ready[at].used) {
			at = i
		}
	}
	if at < 0 {
		return nil
	}
	m := p.ready[at]
	m.used++
	copy(p.ready[at:], p.ready[at+1:])
	p.ready[len(p.ready)-1] = m
	return m
}

// Free implements backend.Pool.
func (p *pool) Free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, m := range p.ready {
		n += m.slots - m.used
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
	if m := p.take(worker); m != nil {
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
	m.used--
	if m.leaving && m.used == 0 {
		close(m.released)
	}
	found := p.matches()
	p.mu.Unlock()
	hand(found)
}

// overran is called when a batch on m ran into the time limit. An instance that answered other batches meanwhile is at work: it goes on, and so do
// they. One from which nothing came for that long is not to be used any more, and overran returns when its supervisor has ended it.
func (p *pool) overran(m *member, limit time.Duration) (goesOn bool) {
	if m.slots > 1 && m.silence() < limit {
		return true
	}
	p.leave(m)
	m.once.Do(func() { close(m.overdue) })
	<-m.inst.Done()
	return false
}

// hear notes that something came from the instance.
func (m *member) hear() { m.heard.Store(int64(time.Since(m.since))) }

// silence is for how long nothing has come from the instance.
func (m *member) silence() time.Duration { return time.Since(m.since) - time.Duration(m.heard.Load()) }

func (m *member) isOverdue() bool {
	select {
	case <-m.overdue:
		return true
	default:
		return false
	}
}

// slot is one batch's right to a member.
type slot struct {
	pool   *pool
	member *member
	worker int  // that it was asked from; anyWorker for any
	begun  bool // it has run a batch
}

// Execute implements backend.Slot. A batch whose instance died before the batch was sent goes to another instance, unless it continues one that the
// dead instance had.
func (s *slot) Execute(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
	if !s.begun {
		if err := s.leaveDead(ctx); err != nil {
			return nil, err
		}
	}
	s.begun = true
	m := s.member
	s.pool.mu.Lock()
	limit := s.pool.timeout
	s.pool.mu.Unlock()
	late := errLate(limit)
	timed, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(limit, func() { cancel(late) })
	defer cancel(nil)
	defer timer.Stop()
	m.listen(items, timer, limit)
	results, err := m.inst.Predict(timed, items)
	switch {
	case err == nil:
		m.hear()
		m.answered.Store(true)
	case timed.Err() != nil && ctx.Err() == nil:
		if s.pool.overran(m, limit) {
			late.Detail += "; the worker goes on, it has answered other requests meanwhile"
		}
		return nil, late
	case m.isOverdue() && dead(m.inst):
		return nil, errBeside(limit)
	}
	return results, err
}

// leaveDead changes the slot for one of a living instance, if its own has died.
func (s *slot) leaveDead(ctx context.Context) error {
	for dead(s.member.inst) {
		s.pool.leave(s.member) // else it might be had again before its supervisor sees that it is dead
		m, err := s.pool.acquire(ctx, s.worker)
		if err != nil {
			return err
		}
		s.pool.release(s.member)
		s.member = m
	}
	return nil
}

func errLate(limit time.Duration) *fault.Error {
	late := fault.New(fault.ResponseTimeout, "Worker died.", nil)
	late.Detail = "the handler did not answer within the response timeout of " + limit.String()
	late.Hint = "raise responseTimeout (model-config.yaml) or default_response_timeout if the model needs more time"
	return late
}

// errBeside is what a batch gets that ran beside the one that was late.
func errBeside(limit time.Duration) *fault.Error {
	beside := fault.New(fault.BackendDied, "Worker died.", nil)
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
