package batch

import (
	"context"
	"sync"
	"time"

	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// mostSuspects is how many requests that may have ended a worker run at the same time, of one queue. Each has a worker for itself, so that it harms nobody
// and nobody else is to blame; the other workers are for the others. Only one of them waits for a worker: a pool keeps one free for it.
const mostSuspects = 2

// signalSuspects tells trySuspects that one waits.
func (q *Queue) signalSuspects() {
	select {
	case q.suspects <- struct{}{}:
	default: // a token is there already
	}
}

// trySuspects runs those requests that may have ended a worker, each alone, until ctx ends or over is closed. The others do not wait for them.
func (q *Queue) trySuspects(ctx context.Context, over <-chan struct{}) {
	places := make(chan struct{}, mostSuspects)
	for {
		p := q.suspect()
		if p == nil {
			select {
			case <-q.suspects:
				continue
			case <-over:
				return
			}
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return
		}
		free := func() { <-places }
		slot, err := q.acquireAlone(ctx, p)
		switch {
		case err == nil:
			q.try(ctx, slot, free)
			continue
		case ctx.Err() != nil: // Run answers what waits
			free()
			return
		case !p.left() && q.forget(p):
			answerAll([]*pending{p}, err)
		}
		free()
	}
}

// suspect gives the suspect request that is next, nil for none.
func (q *Queue) suspect() *pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting.suspect()
}

// acquireAlone gets a worker that has nothing else, for as long as a request's client waits.
func (q *Queue) acquireAlone(ctx context.Context, p *pending) (backend.Slot, error) {
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	watch.Go(func() {
		select {
		case <-p.done:
			cancel()
		case <-ctx.Done():
		}
	})
	return q.pool.AcquireAlone(ctx) //nolint:wrapcheck // the pool's faults are the client's
}

// try runs the suspect request that is next on a slot. free is called when its place is free again.
func (q *Queue) try(ctx context.Context, slot backend.Slot, free func()) {
	slot = q.pace.timed(slot)
	taken := time.Now()
	batch := q.takeSuspect(taken)
	if len(batch) == 0 {
		slot.Release()
		free()
		return
	}
	q.running.Go(func() {
		defer free()
		unsent, f := q.runs.run(ctx, slot, taken, batch, keeper{q.stay, q.ended})
		q.comeBack(ctx, unsent)
		f.Release()
	})
}

// takeSuspect takes a suspect request to run, unless all have left or are refused by now.
func (q *Queue) takeSuspect(taken time.Time) []*pending {
	for {
		q.mu.Lock()
		p := q.waiting.suspect()
		if p == nil {
			q.mu.Unlock()
			return nil
		}
		q.waiting.apart.pass(p) // clients take turns
		q.drop(p)
		q.away++ // at once: Run must not take the queue for empty
		q.mu.Unlock()
		err := q.runs.guard.Load().check(p)
		q.mu.Lock()
		if err == nil {
			q.batcher.sent([]*pending{p}, q.waiting.ready(), slots{taken: taken, busy: q.away - 1})
			q.mu.Unlock()
			return []*pending{p}
		}
		q.away--
		q.batcher.lost(1)
		q.mu.Unlock()
		answerAll([]*pending{p}, err)
		q.signal()
	}
}

// forget takes a request out of the queue, and says whether it was there.
func (q *Queue) forget(p *pending) bool {
	q.mu.Lock()
	there := p.place != nil
	if there {
		q.drop(p)
		q.batcher.lost(1)
	}
	q.mu.Unlock()
	q.signal()
	return there
}

// stay drops those of a suspect batch that nobody waits for, between two steps. Nothing joins it.
func (q *Queue) stay(batch []*pending, _ backend.Slot) []*pending {
	kept, gone := split(batch)
	if len(gone) > 0 {
		q.ended(gone, 0, false)
	}
	return kept
}
