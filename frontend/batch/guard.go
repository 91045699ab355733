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

// check refuses a request like one that has ended workers, and marks one that may be. A request that was looked up before costs nothing while nothing was
// found out since.
func (g *Guard) check(p *pending) (err error) {
	if g != nil {
		p.mark, err = g.Book.Again(g.Model, &p.item, p.mark)
	}
	return err //nolint:wrapcheck // the refusal's words are the client's
}

// vet is check once more for a batch that is about to leave: what it holds may have become known while it waited. It gives those that are to run now, those
// that are to wait for a run of their own, and those that were refused, which it has answered.
func (g *Guard) vet(batch []*pending) (now, later []*pending, refused int) {
	if g == nil {
		return batch, nil, 0
	}
	for _, p := range batch {
		switch err := g.check(p); {
		case err != nil:
			refused++
			p.refuse(err)
		case p.suspect():
			later = append(later, p)
		default:
			now = append(now, p)
		}
	}
	return now, later, refused
}

// judge answers those of a failed batch that are not to be run again, and gives the others: each to be run by itself if it is a suspect.
func (g *Guard) judge(batch []*pending, err error, execution *Execution) (again []*pending) {
	outcomes := outcomesOf(batch, nil, err, execution)
	for i, p := range batch {
		d := poison.Decide(poison.Facts{
			Err: err, Batch: len(batch), Undelivered: errors.Is(err, backend.ErrNotDelivered), Begun: p.steps > 1 || p.passed(),
			Sequence: p.item.Sequence != "", Never: !g.Retry,
		}, p.past)
		if d.Blame {
			g.Book.Killed(g.Model, &p.item, poison.Death{Workers: d.Past.Deaths, How: d.How, Sent: execution.Begun, Mark: p.mark})
		}
		if d.Retry && !p.left() {
			p.past, p.begun, p.steps, p.with = d.Past, time.Time{}, 0, d.With
			p.item.Alone = p.item.Alone || d.With > 0
			again = append(again, p)
			continue
		}
		outcomes[i].err = d.Err
		p.answer(outcomes[i])
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
func (p *pending) suspect() bool { return p.past.Suspect() || p.mark.Suspect() }

// company is how many suspects may be tried at the same time, this one included: one that has ended a worker lately is alone.
func (p *pending) company() int {
	if p.mark.Suspect() {
		return 1
	}
	return max(p.with, 1)
}

// vet takes those out of a batch that are not to leave with it.
func (q *Queue) vet(batch []*pending) []*pending {
	now, later, refused := q.runs.guard.Load().vet(batch)
	if len(later)+refused > 0 {
		q.returnSuspects(later, refused)
		q.signalSuspects()
	}
	return now
}

// returnSuspects lets those wait again that are to have a run of their own.
func (q *Queue) returnSuspects(later []*pending, refused int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.batcher.lost(refused)
	q.putBack(later)
}

// comeBack ends a batch's time with a worker. What of it was not sent, or is to be run again, waits before all that came after it.
func (q *Queue) comeBack(ctx context.Context, unsent []*pending) {
	late, suspects, cause := q.takeBack(ctx, unsent)
	answerAll(late, cause)
	q.signal()
	if suspects {
		q.signalSuspects()
	}
}

// takeBack does the work of comeBack, and gives those that have to be answered, with what: when the queue is at its end.
func (q *Queue) takeBack(ctx context.Context, unsent []*pending) (late []*pending, suspects bool, cause error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.away--
	if cause = q.broken; cause == nil {
		cause = context.Cause(ctx)
	}
	if cause != nil { // what waits was answered already, or is answered just now
		return wanted(unsent), false, cause
	}
	q.putBack(unsent)
	return nil, q.waiting.suspects > 0, nil
}
