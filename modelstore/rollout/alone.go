package rollout

import (
	"context"

	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// AcquireAlone implements backend.Pool. An instance that runs several batches at the same time takes nothing new meanwhile, until it has none.
func (p *pool) AcquireAlone(ctx context.Context) (backend.Slot, error) {
	return p.slot(ctx, &waiter{anyWorker, true, make(chan *member, 1)})
}

// takeFor takes what a waiter wants, if it is there; one that wants an instance for itself has one reserved otherwise. p.mu is held.
func (p *pool) takeFor(w *waiter) *member {
	if !w.alone {
		return p.take(w.worker)
	}
	for i, m := range p.ready {
		if m.used == 0 && (m.reserved == nil || m.reserved == w) {
			p.unreserve(w)
			return p.occupy(i, m.slots)
		}
	}
	p.reserve(w)
	return nil
}

// reserve keeps the least busy instance for a waiter, unless it has one; p.mu is held.
func (p *pool) reserve(w *waiter) {
	var least *member
	for _, m := range p.ready {
		if m.reserved == w {
			return
		}
		if m.reserved == nil && (least == nil || m.used < least.used) {
			least = m
		}
	}
	if least != nil {
		least.reserved = w
	}
}

// unreserve takes back what is kept for a waiter; p.mu is held.
func (p *pool) unreserve(w *waiter) {
	for _, m := range p.ready {
		if m.reserved == w {
			m.reserved = nil
		}
	}
}
