package batch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// mostSuspects is how many groups of requests that may have ended a worker run at the same time, of one queue. Each has a worker for itself, so that it harms
// nobody and nobody else is to blame; the other workers are for the others. Only one group waits for a worker: a pool keeps one free for it. Most groups
// are a single request: who may have company is poison's decision.
const mostSuspects = 2

// longTrial is after how long those that run still make room for the next group: they do no harm at once.
const longTrial = 5 * time.Second

// signalSuspects tells trySuspects that one waits.
func (q *Queue) signalSuspects() {
	select {
	case q.suspects <- struct{}{}:
	default: // a token is there already
	}
}

// trySuspects runs those requests that may have ended a worker, until trying ends; ctx is for what runs. The others do not wait for them.
func (q *Queue) trySuspects(ctx, trying context.Context) {
	places := make(chan struct{}, mostSuspects)
	panics := 0
	for trying.Err() == nil {
		var sent bool
		err := fault.Contain("suspects were tried", func() { sent = q.trySome(ctx, trying, places) })
		if sent {
			panics = 0
		}
		if err != nil && !q.survives(&hand{}, err, &panics) {
			return
		}
	}
}

// trySome lets a group of suspects go, if there are any and there is a place for them. It says whether one went.
func (q *Queue) trySome(ctx, trying context.Context, places chan struct{}) (sent bool) {
	p, most := q.suspect()
	if p == nil {
		select {
		case <-q.suspects:
		case <-trying.Done():
		}
		return false
	}
	select {
	case places <- struct{}{}:
	case <-trying.Done():
		return false
	}
	free := sync.OnceFunc(func() { <-places })
	defer func() {
		if !sent {
			free()
		}
	}()
	slots, err := q.acquireAlone(trying, p, most)
	switch {
	case err == nil:
		sent = q.try(ctx, slots, free)
	case trying.Err() == nil && !p.left() && q.forget(p): // else Run answers what waits
		p.refuse(err)
	}
	return sent
}

// suspect gives the suspect request that is next, nil for none, and how many may be tried with it, itself included: more than now may wait by the time that
// there is a worker for them.
func (q *Queue) suspect() (p *pending, most int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if p = q.waiting.suspect(); p != nil {
		most = p.company()
	}
	return p, most
}

// acquireAlone gets slots of a worker that has nothing else, for as long as a request's client waits.
func (q *Queue) acquireAlone(ctx context.Context, p *pending, most int) ([]backend.Slot, error) {
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
	return q.pool.AcquireAlone(ctx, most) //nolint:wrapcheck // the pool's faults are the client's
}

// try runs the suspects that are next on slots of one worker, each as a batch of its own. It says whether there are any; free is called then, when the last
// one of them is done, or takes long.
func (q *Queue) try(ctx context.Context, slots []backend.Slot, free func()) bool {
	taken := time.Now()
	rest := slots
	defer func() {
		for _, slot := range rest {
			q.runs.contain("a slot was given back", slot.Release)
		}
	}()
	group := q.takeSuspects(taken, len(slots))
	long := time.AfterFunc(longTrial, free)
	var left atomic.Int64
	left.Store(int64(len(group)))
	for _, p := range group {
		slot := q.pace.timed(rest[0])
		rest = rest[1:]
		q.running.Go(func() {
			q.run(ctx, slot, taken, []*pending{p}, keeper{q.stay, q.ended})
			if left.Add(-1) == 0 {
				long.Stop()
				free()
			}
		})
	}
	return len(group) > 0
}

// takeSuspects takes suspects to run, those that may be tried together, unless they have left or are refused by now.
func (q *Queue) takeSuspects(taken time.Time, most int) []*pending {
	for {
		group := q.takeGroup(most)
		kept := q.examine(group, taken)
		if len(kept) > 0 || len(group) == 0 {
			return kept
		}
		q.signal()
	}
}

// takeGroup takes out the suspects that are next.
func (q *Queue) takeGroup(most int) []*pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	group := q.waiting.group()
	group = group[:min(len(group), most)]
	for _, p := range group {
		q.waiting.apart.pass(p) // clients take turns
		q.drop(p)
		q.away++ // at once: Run must not take the queue for empty
	}
	return group
}

// examine refuses those of some suspects that are known to end workers by now, and gives the others, which are about to run. After a panic the caller has
// none of them: they are answered.
func (q *Queue) examine(group []*pending, taken time.Time) (kept []*pending) {
	done := false
	defer func() {
		if !done {
			q.land(len(group), 0)
			answerAll(group, errLost())
		}
	}()
	guard := q.runs.guard.Load()
	for _, p := range group {
		if err := guard.check(p); err != nil {
			p.refuse(err)
			continue
		}
		kept = append(kept, p)
	}
	q.depart(kept, taken)
	refused := len(group) - len(kept)
	done = true
	q.land(refused, refused)
	return kept
}

// depart tells the policy of suspects that are about to run, each by itself.
func (q *Queue) depart(group []*pending, taken time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, p := range group {
		q.batcher.sent([]*pending{p}, q.waiting.ready(), slots{taken: taken, busy: q.away - 1})
	}
}

// land takes back that batches are with a worker, and tells the policy of those that will not have been.
func (q *Queue) land(batches, lost int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.away -= batches
	q.batcher.lost(lost)
}

// forget takes a request out of the queue, and says whether it was there.
func (q *Queue) forget(p *pending) bool {
	defer q.signal()
	q.mu.Lock()
	defer q.mu.Unlock()
	there := p.place != nil
	if there {
		q.drop(p)
		q.batcher.lost(1)
	}
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
