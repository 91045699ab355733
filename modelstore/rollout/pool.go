package rollout

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// pool hands out the slots of one version's ready instances: as many for each as it runs batches at the same time, which is one for most. It outlives the
// generations of the version: those of the current one are handed out, those of the next one are held until it is promoted.
type pool struct {
	mu       sync.Mutex    // guards what follows
	current  int           // generation that is handed out
	ready    []*member     // of the current generation, in the order of their last use: the one that was not used for the longest time first
	held     []*member     // of generations to come
	retiring []*member     // that only the sequences they know may have
	waiters  []*waiter     // who waits for a slot, the longest waiting first
	hopes    map[int]*hope // workers that are ready or may get ready, and those that go but are still needed
	promises int           // while there is one, workers that are lost are told of only once there are others
	lost     []int         // workers that were lost meanwhile
	timeout  time.Duration // how long a batch may take
	absent   error         // what Acquire says while there are no hopes
	lastGood func(infer.Item)
	use      usage
	dormant  bool   // whoever asks for a worker where there is none has one started
	rouse    func() // starts one then; it does not block
}

// hope is a worker that is ready, or may get ready.
type hope struct {
	generation int
	pins       int   // sequences that need this worker and no other
	dismissed  bool  // it goes as soon as nobody needs it any more
	doubt      error // why nobody waits for it: it has never come up and rests between two starts, or its load waits for somebody else; nil at most times
}

// waiter is an Acquire that waits.
type waiter struct {
	worker int          // whose slot it wants; anyWorker for any
	alone  int          // it wants an instance for itself, with so many slots; 0: it does not
	given  chan *member // holds one; closed when there is no hope for one

	// The pool's mu guards what follows, until it was given a member.
	passing bool        // it takes what is there, and does not wait
	beside  bool        // it has waited long enough, and takes what others have, too
	timer   *time.Timer // ends its patience, or makes it look again
	got     int         // slots that it was given, alone
	hold    *hold       // what keeps the others away from them; nil if nothing does
}

// anyWorker is no worker's identifier.
const anyWorker = -1

// member is a ready instance in a pool.
type member struct {
	inst       backend.Instance
	worker     int
	generation int
	terms      terms
	slots      int       // batches that it runs at the same time
	used       int       // slots that are handed out; the pool's mu guards it, apart and leaving
	apart      bool      // one that has a single slot is had by somebody for himself
	leaving    bool      // takes nothing new
	reserved   *waiter   // who is to have it alone once it has nothing to do: nobody else gets a slot of it; the pool's mu guards it and what follows
	reservedAt time.Time // since when
	hold       *hold     // somebody has it for himself
	// It is not reserved before these moments: since others had to wait until a moment ago, and since it did not come to an end with what it had.
	sharedUntil, longUntil time.Time
	released               chan struct{} // closed when it is leaving and no slot is handed out
	// overdue is closed when the instance let a batch run into its time limit and is not to be used any more.
	overdue chan struct{}
	once    sync.Once // guards overdue
	// answered counts the requests that it has answered.
	answered atomic.Int64
	since    time.Time    // when it became a member
	heard    atomic.Int64 // its last answer or piece, in nanoseconds after since
}

// terms are what a generation says about the batches that its instances take.
type terms struct {
	maxBatch   int  // the largest one; 0 for any
	continuous bool // they are answered in steps
	ahead      bool // an instance may have one more than it runs
}

// firstGeneration is the number of a version's first generation.
const firstGeneration = 1

func newPool(timeout time.Duration) *pool {
	return &pool{
		current: firstGeneration, hopes: map[int]*hope{}, timeout: timeout,
		absent: errNoWorker(), rouse: func() {}, use: usage{noted: time.Now()},
	}
}

var _ backend.Pool = (*pool)(nil)

func errNoWorker() error { return fault.New(fault.NoWorker, "the model has no worker", nil) }

// hope counts a worker that may get ready; lose takes it back for good.
func (p *pool) hope(worker, generation int) {
	p.mu.Lock()
	p.hopes[worker] = &hope{generation: generation}
	p.mu.Unlock()
}

// doubt says why nobody is to wait for a worker, or with nil that it is to be waited for again.
func (p *pool) doubt(worker int, why error) {
	p.under(func() (_ []match, orphans []*waiter) {
		if h := p.hopes[worker]; h != nil {
			h.doubt = why
		}
		return nil, p.vain()
	})
}

// dismiss takes a worker back that is to end, once no sequence needs it any more.
func (p *pool) dismiss(worker int) {
	p.under(func() (_ []match, orphans []*waiter) {
		if h := p.hopes[worker]; h != nil && h.pins > 0 {
			h.dismissed = true
			return nil, p.vain()
		}
		return nil, p.away(worker)
	})
}

func (p *pool) lose(worker int) {
	p.under(func() (_ []match, orphans []*waiter) { return nil, p.away(worker) })
}

// away does the work of lose; p.mu is held.
func (p *pool) away(worker int) (orphans []*waiter) {
	if p.hopes[worker] == nil {
		return nil
	}
	if p.promises > 0 {
		p.lost = append(p.lost, worker)
	} else {
		delete(p.hopes, worker)
	}
	return p.vain()
}

// under changes the pool, and tells the waiters after that whom it has made happy or unhappy. A bug leaves the pool open to others.
func (p *pool) under(change func() (found []match, orphans []*waiter)) {
	found, orphans := func() ([]match, []*waiter) {
		p.mu.Lock()
		defer p.mu.Unlock()
		return change()
	}()
	for _, m := range found {
		m.waiter.given <- m.member // there is room for it
	}
	for _, w := range orphans {
		close(w.given)
	}
}

// vain takes those out of the waiters who wait for what will not come, and gives them; p.mu is held.
func (p *pool) vain() []*waiter {
	if p.promises > 0 {
		return nil
	}
	none := !p.dormant && !p.hopeful()
	var orphans []*waiter
	p.waiters = slices.DeleteFunc(p.waiters, func(w *waiter) bool {
		inVain := p.hopes[w.worker] == nil
		if w.worker == anyWorker {
			inVain = none
		}
		if inVain {
			p.unreserve(w)
			orphans = append(orphans, w)
		}
		return inVain
	})
	return orphans
}

// hopeful says whether a worker of the current generation is, or may get, ready, and is not to end; p.mu is held.
func (p *pool) hopeful() bool {
	for _, h := range p.hopes {
		if h.generation == p.current && !h.dismissed && h.doubt == nil {
			return true
		}
	}
	return false
}

// hopeless is why there is no worker to wait for; p.mu is held.
func (p *pool) hopeless() error {
	for _, h := range p.hopes {
		if h.generation == p.current && h.doubt != nil {
			return h.doubt
		}
	}
	return p.absent
}

// promise says that there will be workers, although those of now end: nobody who waits is sent away until fulfil is called.
func (p *pool) promise() {
	p.mu.Lock()
	p.promises++
	p.mu.Unlock()
}

func (p *pool) fulfil() {
	p.under(func() (_ []match, orphans []*waiter) {
		if p.promises--; p.promises == 0 {
			for _, worker := range p.lost {
				delete(p.hopes, worker)
			}
			p.lost = nil
		}
		return nil, p.vain()
	})
}

// promote makes another generation the current one, at once: from here on no batch begins on an instance of the old one, but those of sequences that
// it knows. It fails when fewer than least of its instances are ready.
func (p *pool) promote(generation, least int, timeout time.Duration) (promoted bool) {
	p.under(func() (found []match, orphans []*waiter) {
		alive := 0
		for _, m := range p.held {
			if m.generation == generation && !dead(m.inst) {
				alive++
			}
		}
		if alive < least {
			return nil, nil
		}
		promoted = true
		p.current, p.timeout = generation, timeout
		old := p.ready
		p.ready = nil
		p.held = slices.DeleteFunc(p.held, func(m *member) bool {
			if m.generation == generation {
				p.ready = append(p.ready, m)
			}
			return m.generation == generation
		})
		for _, m := range old {
			p.sideline(m)
		}
		return p.matches(), p.vain()
	})
	return promoted
}

// sideline takes an instance out of those that are handed out: for good, or from all but the sequences that need it. p.mu is held.
func (p *pool) sideline(m *member) {
	p.unreserve(m.reserved)
	if h := p.hopes[m.worker]; h != nil && h.pins > 0 {
		p.retiring = append(p.retiring, m)
		return
	}
	p.quit(m)
}

// isToCome says whether a generation is to be promoted yet.
func (p *pool) isToCome(generation int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return generation > p.current
}

// hasWorkers says whether there is one, be it only for the sequences that it knows.
func (p *pool) hasWorkers() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.hopes {
		if h.generation == p.current {
			return true
		}
	}
	return p.promises > 0 || p.dormant
}

// Workers implements backend.Pool: the workers that are ready or may get ready, in the order of their identifiers.
func (p *pool) Workers() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	var ids, going []int
	for id, h := range p.hopes {
		switch {
		case h.generation == p.current && !h.dismissed:
			ids = append(ids, id)
		default:
			going = append(going, id)
		}
	}
	if len(ids) == 0 && p.promises > 0 {
		ids = going // whoever is bound to one of them gets another one when there is one
	}
	slices.Sort(ids)
	return ids
}

// Pin implements backend.Pool. While there are only promises, whoever is bound to a worker that ends waits with it for the next ones.
func (p *pool) Pin(worker int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hopes[worker]
	if h == nil || p.promises == 0 && (h.generation != p.current || h.dismissed) {
		return false
	}
	h.pins++
	return true
}

// Unpin implements backend.Pool.
func (p *pool) Unpin(worker int) {
	p.under(func() (_ []match, orphans []*waiter) {
		h := p.hopes[worker]
		if h == nil || h.pins == 0 {
			return nil, nil
		}
		if h.pins--; h.pins > 0 {
			return nil, nil
		}
		for _, m := range slices.Clone(p.retiring) {
			if m.worker == worker {
				p.quit(m)
			}
		}
		if h.dismissed {
			return nil, p.away(worker)
		}
		return nil, nil
	})
}

// add makes the slots of a worker's ready instance available, at once or when its generation is promoted.
func (p *pool) add(inst backend.Instance, worker, slots, generation int, t terms) *member {
	m := &member{
		inst: inst, worker: worker, slots: slots, generation: generation, terms: t, since: time.Now(), released: make(chan struct{}),
		overdue: make(chan struct{}),
	}
	p.under(func() (found []match, _ []*waiter) {
		h := p.hopes[worker]
		switch {
		case h == nil || h.dismissed || generation < p.current: // it came up when it was about to go
			p.sideline(m)
		case generation == p.current:
			p.ready = append(p.ready, m)
		default:
			p.held = append(p.held, m)
		}
		return p.matches(), nil
	})
	return m
}

// retire makes m take nothing new but what only it can do; m.released is closed once it has finished that and what it has.
func (p *pool) retire(m *member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.leaving || slices.Contains(p.retiring, m) {
		return
	}
	p.ready = without(p.ready, m)
	p.held = without(p.held, m)
	p.sideline(m)
}

// leave makes m take nothing new, and says whether it did before; m.released is closed once it has finished what it has.
func (p *pool) leave(m *member) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	took := !m.leaving
	p.quit(m)
	return took
}

// quit does the work of leave; p.mu is held.
func (p *pool) quit(m *member) {
	if m.leaving {
		return
	}
	p.unreserve(m.reserved)
	m.leaving = true
	p.ready, p.held, p.retiring = without(p.ready, m), without(p.held, m), without(p.retiring, m)
	if m.used == 0 {
		close(m.released)
	}
}

func without(all []*member, m *member) []*member {
	return slices.DeleteFunc(all, func(other *member) bool { return other == m })
}

type match struct {
	waiter *waiter
	member *member
}

// matches takes a slot for each waiter that there is one for, the longest waiting first; p.mu is held.
func (p *pool) matches() []match {
	return append(p.match(p.takeFresh), p.match(p.takeFor)...)
}

// match takes what take gives for each waiter; p.mu is held.
func (p *pool) match(take func(w *waiter) *member) []match {
	var found []match
	p.waiters = slices.DeleteFunc(p.waiters, func(w *waiter) bool {
		m := take(w)
		if m != nil {
			found = append(found, match{w, m})
		}
		return m != nil
	})
	return found
}

// take takes a slot of a worker's member, or of the least busy one of all: of several, the one that was not used for the longest time. p.mu is held.
func (p *pool) take(worker int) *member {
	at := -1
	for i, m := range p.ready {
		if m.used < p.room(m) && m.reserved == nil && (worker == anyWorker || m.worker == worker) && (at < 0 || m.used < p.ready[at].used) {
			at = i
		}
	}
	if at < 0 {
		return p.takeRetiring(worker)
	}
	return p.occupy(at, 1)
}

// occupy takes slots of a ready instance, which is then the last one that was used; p.mu is held.
func (p *pool) occupy(at, slots int) *member {
	m := p.ready[at]
	m.used += slots - 1
	p.handed(m)
	copy(p.ready[at:], p.ready[at+1:])
	p.ready[len(p.ready)-1] = m
	return m
}

// takeRetiring takes a slot of a worker that is only there for the sequences that it knows; p.mu is held.
func (p *pool) takeRetiring(worker int) *member {
	for _, m := range p.retiring {
		if m.worker == worker && m.used < m.slots {
			m.used++
			p.use.note(1)
			return m
		}
	}
	return nil
}

// Free implements backend.Pool.
func (p *pool) Free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, m := range p.ready {
		if m.reserved == nil {
			n += max(m.slots-m.used, 0)
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
	m, err := p.acquire(ctx, &waiter{worker: worker, given: make(chan *member, 1)})
	if err != nil {
		return nil, err
	}
	return &slot{pool: p, member: m, worker: worker}, nil
}

func (p *pool) acquire(ctx context.Context, w *waiter) (*member, error) {
	m, asleep, err := p.ask(w)
	if m != nil || err != nil {
		return m, err
	}
	if asleep {
		p.rouse()
	}
	select {
	case m, ok := <-w.given:
		if !ok {
			return nil, p.whyAbsent()
		}
		return m, nil
	case <-ctx.Done():
		p.forget(w)
		return nil, context.Cause(ctx)
	}
}

// ask takes what a waiter wants, or lets him wait. It says whether somebody has to be woken for him.
func (p *pool) ask(w *waiter) (m *member, asleep bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	hopeful := p.hopeful()
	if w.worker == anyWorker && p.promises == 0 && !p.dormant && !hopeful || w.worker != anyWorker && p.hopes[w.worker] == nil {
		return nil, false, p.hopeless()
	}
	if m := p.takeFor(w); m != nil {
		return m, false, nil
	}
	p.waiters = append(p.waiters, w)
	return nil, p.dormant && !hopeful, nil
}

// forget takes a waiter back, and a member that was handed to it in the meantime.
func (p *pool) forget(w *waiter) {
	waited := false
	p.under(func() (found []match, _ []*waiter) {
		i := slices.Index(p.waiters, w)
		if i < 0 {
			return nil, nil
		}
		waited = true
		p.waiters = slices.Delete(p.waiters, i, i+1)
		p.unreserve(w)
		return p.matches(), nil // others may have waited for what was kept for it
	})
	if waited {
		return
	}
	if m, ok := <-w.given; ok { // it left the list, so it was answered or is just being answered
		for range max(w.got, 1) {
			p.release(m, w.hold)
		}
	}
}

// release gives a slot back, of a hold unless that is nil.
func (p *pool) release(m *member, h *hold) {
	p.under(func() (found []match, _ []*waiter) {
		p.giveBack(m, h)
		return p.matches(), nil
	})
}

// giveBack does the work of release; p.mu is held.
func (p *pool) giveBack(m *member, h *hold) {
	if m.used <= m.slots {
		p.use.note(-1)
	}
	switch {
	case h == nil || m.hold != h:
		m.used--
	case h.kept+1 < m.slots: // nobody gets it before all are back
		h.kept++
	default:
		h.kept++
		p.open(m)
	}
	m.apart = m.apart && m.used > 0
	if m.leaving && m.used == 0 {
		close(m.released)
	}
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
