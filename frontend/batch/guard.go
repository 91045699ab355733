package batch

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/poison"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// Guard says what becomes of the requests that a worker had when it died.
type Guard struct {
	Book  *poison.Book   // the requests that have ended workers; required
	Model infer.ModelRef // whose queue it is
	Retry bool           // others than those may run a second time
}

// check refuses a request like one that has ended workers, and marks one that may be.
func (g *Guard) check(p *pending) (err error) {
	if g != nil {
		p.mark, err = g.Book.Check(g.Model, &p.item)
	}
	return err //nolint:wrapcheck // the refusal's words are the client's
}

// vet is check once more for a batch that is about to leave: what it holds may have become known while it waited. It answers those that are refused, and
// gives those that are to run now, and those that are to wait for a run of their own.
func (g *Guard) vet(batch []*pending) (now, later []*pending) {
	if g == nil {
		return batch, nil
	}
	for _, p := range batch {
		switch err := g.check(p); {
		case err != nil:
			answerAll([]*pending{p}, err)
		case p.mark.Suspect() && len(batch) > 1:
			p.item.Alone = true
			later = append(later, p)
		default:
			now = append(now, p)
		}
	}
	return now, later
}

// judge answers those of a failed batch that are not to be run again, and gives the others, each to be run alone.
func (g *Guard) judge(batch []*pending, err error, execution *Execution) (again []*pending) {
	outcomes := outcomesOf(batch, nil, err, execution)
	for i, p := range batch {
		d := poison.Decide(poison.Facts{
			Err: err, Batch: len(batch), Undelivered: errors.Is(err, backend.ErrNotDelivered), Begun: p.steps > 1 || p.passed(),
			Sequence: p.item.Sequence != "", Never: !g.Retry,
		}, p.past)
		if d.Blame {
			g.Book.Killed(g.Model, &p.item, poison.Death{Workers: d.Past.Deaths, How: d.How, Sent: execution.Begun})
		}
		if d.Retry && !p.left() {
			p.past, p.begun, p.steps, p.item.Alone = d.Past, time.Time{}, 0, true
			again = append(again, p)
			continue
		}
		outcomes[i].err = d.Err
		p.answered <- outcomes[i]
	}
	return again
}

// answered takes the mark from a request that a worker has answered.
func (g *Guard) answered(p *pending) {
	if g != nil && p.mark.Suspect() {
		g.Book.Answered(p.mark)
	}
}

// listen notes whether something of a request's answer was passed on.
func (p *pending) listen() {
	emit := p.item.Emit
	if emit == nil || p.heard != nil {
		return
	}
	heard := &atomic.Bool{}
	p.heard = heard
	p.item.Emit = func(r infer.Result) {
		heard.Store(true)
		emit(r)
	}
}

// passed says whether something of its answer was passed on.
func (p *pending) passed() bool { return p.heard != nil && p.heard.Load() }

// suspect says whether the request may have ended a worker.
func (p *pending) suspect() bool { return p.past.Tries > 0 || p.mark.Suspect() }

// acquire gets a slot: for a request that may have ended a worker one of a worker that has nothing else, so that it harms nobody, and nobody else is to
// blame.
func (q *Queue) acquire(ctx context.Context) (backend.Slot, error) {
	q.mu.Lock()
	first := q.waiting.next()
	q.mu.Unlock()
	if first != nil && first.suspect() {
		return q.pool.AcquireAlone(ctx) //nolint:wrapcheck // the pool's faults are the client's
	}
	return q.pool.Acquire(ctx) //nolint:wrapcheck // the same
}

// vet takes those out of a batch that are not to leave with it.
func (q *Queue) vet(batch []*pending) []*pending {
	now, later := q.runs.guard.Load().vet(batch)
	if len(later) > 0 {
		q.mu.Lock()
		q.putBack(later)
		q.mu.Unlock()
	}
	return now
}

// comeBack ends a batch's time with a worker. What of it was not sent, or is to be run again, waits before all that came after it.
func (q *Queue) comeBack(ctx context.Context, unsent []*pending) {
	q.mu.Lock()
	q.away--
	var late []*pending
	if ctx.Err() != nil { // what waits was answered already, or is answered just now
		late = wanted(unsent)
	} else {
		q.putBack(unsent)
	}
	q.mu.Unlock()
	answerAll(late, context.Cause(ctx))
	q.signal()
}
