package rollout

import (
	"context"
	"time"

	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// Where an instance runs several batches at the same time, all others wait for one who is to be alone with it. These bound for how long.
const (
	aloneWait = 3 * time.Second  // nothing new goes to an instance so that it comes to an end with what it has
	aloneRun  = 3 * time.Second  // nothing else goes to an instance that somebody has for himself
	aloneRest = 30 * time.Second // nobody waits for an instance that did not come to an end
)

// hold is an instance with several slots that somebody has for himself; the pool's mu guards it.
type hold struct {
	since time.Time // from when on nothing else went to it
	kept  int       // slots that nobody has, and nobody gets
	over  *time.Timer
}

// AcquireAlone implements backend.Pool.
//
// An instance that runs several batches at the same time takes nothing new until it has none, for aloneWait at most: one that has some still is then
// shared with them. Who has it for himself has so for aloneRun at most; then others are let in beside him. After that the instance is everybody's for as
// long as others had to wait. Of several such instances at most half are kept for somebody at the same time.
func (p *pool) AcquireAlone(ctx context.Context, most int) ([]backend.Slot, error) {
	w := &waiter{worker: anyWorker, alone: max(most, 1), given: make(chan *member, 1)}
	m, err := p.acquire(ctx, w)
	if err != nil {
		return nil, err
	}
	slots := make([]backend.Slot, w.got)
	for i := range slots {
		slots[i] = &slot{pool: p, member: m, worker: anyWorker, alone: true, hold: w.hold}
	}
	return slots, nil
}

// takeFor takes what a waiter wants, if it is there; for one that wants to be alone an instance is reserved otherwise. p.mu is held.
func (p *pool) takeFor(w *waiter) *member {
	if w.alone == 0 {
		return p.take(w.worker)
	}
	if m := p.takeIdle(w); m != nil || w.passing {
		return m
	}
	if !w.beside && p.allBusyForLong() {
		w.beside = true
	}
	if w.beside {
		return p.takeBeside(w)
	}
	p.reserve(w)
	return nil
}

// takeIdle takes an instance that has nothing to do; p.mu is held.
func (p *pool) takeIdle(w *waiter) *member {
	for i, m := range p.ready {
		if m.used == 0 && (m.reserved == nil || m.reserved == w) && p.mayKeep(m, w) {
			p.occupyAlone(i, w)
			return m
		}
	}
	return nil
}

// occupyAlone takes a ready instance as a whole; p.mu is held.
func (p *pool) occupyAlone(at int, w *waiter) {
	since := time.Now()
	if m := p.ready[at]; m.reserved == w {
		since = m.reservedAt
	}
	p.unreserve(w)
	m := p.occupy(at, p.ready[at].slots)
	w.got = min(w.alone, m.slots)
	p.use.note(w.got - 1) // occupy has noted one
	if m.slots == 1 {
		m.apart = true
		return
	}
	h := &hold{since: since, kept: m.slots - w.got}
	h.over = time.AfterFunc(aloneRun, func() { p.share(m, h) })
	m.hold, w.hold = h, h
}

// takeBeside takes slots of an instance that others have, too; p.mu is held.
func (p *pool) takeBeside(w *waiter) *member {
	m := p.take(anyWorker)
	if m == nil {
		return nil
	}
	p.unreserve(w)
	for w.got = 1; w.got < w.alone && m.used < m.slots; w.got++ {
		m.used++
		p.use.note(1)
	}
	return m
}

// takeFresh is takeIdle for an instance that runs several batches at the same time, and for which nobody had to wait a moment ago: whoever is to be alone
// goes before those who are not, for it would not come to an end soon with what they have. p.mu is held.
func (p *pool) takeFresh(w *waiter) *member {
	now := time.Now()
	for i, m := range p.ready {
		if w.alone > 0 && m.slots > 1 && m.used == 0 && (m.reserved == nil || m.reserved == w) && !now.Before(m.sharedUntil) && p.mayKeep(m, w) {
			p.occupyAlone(i, w)
			return m
		}
	}
	return nil
}

// mayKeep says whether an instance may be kept for a waiter: at least half of those that run several batches at the same time are for everybody, if
// there are two. p.mu is held.
func (p *pool) mayKeep(m *member, w *waiter) bool {
	if m.slots == 1 {
		return true
	}
	kept := 0
	for _, other := range p.ready {
		if other.hold != nil || other.reserved != nil && other.reserved != w {
			kept++
		}
	}
	return kept < max(len(p.ready)/2, 1) //nolint:mnd // half
}

// allBusyForLong says that whatever instance could be waited for did not come to an end a short time ago; p.mu is held.
func (p *pool) allBusyForLong() bool {
	now := time.Now()
	for _, m := range p.ready {
		if m.slots == 1 || !now.Before(m.longUntil) {
			return false
		}
	}
	return len(p.ready) > 0
}

// reserve keeps the least busy instance that may be kept for a waiter, unless it has one. One with a single slot needs no such thing: whoever has waited
// longest has its next turn. p.mu is held.
func (p *pool) reserve(w *waiter) {
	now := time.Now()
	var least *member
	var next time.Time // when one of those can be kept that cannot yet
	for _, m := range p.ready {
		switch {
		case m.reserved == w:
			return
		case m.slots == 1 || m.reserved != nil || m.hold != nil || !p.mayKeep(m, w):
		case now.Before(m.sharedUntil) || now.Before(m.longUntil):
			at := m.sharedUntil
			if m.longUntil.After(at) {
				at = m.longUntil
			}
			if next.IsZero() || at.Before(next) {
				next = at
			}
		case least == nil || m.used < least.used:
			least = m
		}
	}
	switch {
	case least != nil:
		w.stop()
		least.reserved, least.reservedAt = w, now
		w.timer = time.AfterFunc(aloneWait, func() { p.impatient(w, least) })
	case !next.IsZero():
		w.stop()
		w.timer = time.AfterFunc(next.Sub(now), p.rematch)
	}
}

// impatient lets others have an instance again that did not come to an end in time, and its waiter share it with them.
func (p *pool) impatient(w *waiter, m *member) {
	p.under(func() (found []match, _ []*waiter) {
		if m.reserved != w {
			return nil, nil
		}
		m.longUntil = time.Now().Add(aloneRest)
		p.unreserve(w)
		w.beside = true
		return p.matches(), nil
	})
}

// rematch looks whether somebody who waits can have what he wants.
func (p *pool) rematch() {
	p.under(func() (found []match, _ []*waiter) { return p.matches(), nil })
}

// share lets others have the slots that are kept for one who has had an instance for himself for long.
func (p *pool) share(m *member, h *hold) {
	p.under(func() (found []match, _ []*waiter) {
		if m.hold != h {
			return nil, nil
		}
		p.open(m)
		return p.matches(), nil
	})
}

// open ends a hold; p.mu is held.
func (p *pool) open(m *member) {
	h, now := m.hold, time.Now()
	h.over.Stop()
	m.hold, m.sharedUntil = nil, now.Add(now.Sub(h.since))
	m.used -= h.kept
}

// unreserve takes back what is kept for a waiter, nil for none; p.mu is held.
func (p *pool) unreserve(w *waiter) {
	if w == nil {
		return
	}
	w.stop()
	for _, m := range p.ready {
		if m.reserved == w {
			m.reserved = nil
		}
	}
}

// stop ends the timer of a waiter; the pool's mu is held.
func (w *waiter) stop() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}
