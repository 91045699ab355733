package batch

import (
	"context"
	"errors"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// mostPanics is how many panics in a row end a queue, with no batch between them: something in it is broken. Its owner makes another one.
const mostPanics = 3

// hand is what a loop has while it makes a batch. What it has passed on it does not have any more.
type hand struct {
	slot  backend.Slot
	batch []*pending
	sent  bool // a batch has left
}

// pass empties the hand: somebody else has what was in it.
func (h *hand) pass() (slot backend.Slot, batch []*pending) {
	slot, batch = h.slot, h.batch
	h.slot, h.batch = nil, nil
	return slot, batch
}

// drop answers what a loop has in its hand with what has gone wrong, and gives its slot back.
func (h *hand) drop(r *runs, err error) {
	slot, batch := h.pass()
	for _, p := range batch {
		if p != nil { // one that has left while it was dropped
			p.refuse(err)
		}
	}
	if slot != nil {
		r.contain("a slot was given back", slot.Release)
	}
}

// contain calls f and tells of a panic in it. It says whether all went well.
func (r *runs) contain(doing string, f func()) bool {
	err := fault.Contain(doing, f)
	if err != nil {
		r.tell(err)
	}
	return err == nil
}

// tell passes on that a panic was contained.
func (r *runs) tell(err error) {
	if tell := r.panicked.Load(); tell != nil && *tell != nil {
		(*tell)(err)
	}
}

// answer answers a request. The first answer is the one that counts.
func (p *pending) answer(o outcome) {
	select {
	case p.answered <- o:
	default: // it has one
	}
}

// refuse answers a request that was not run.
func (p *pending) refuse(err error) {
	p.answer(outcome{err: err, times: Times{Queued: time.Since(p.arrived)}})
}

// errLost is the answer to a request that a panic has left with nobody; what it was is told elsewhere.
func errLost() error {
	e := fault.New(fault.Internal, "Internal error.", nil)
	e.Hint = "the server has a bug, which its log describes: report it"
	return e
}

// ErrBroken is wrapped by the answers of a queue that has ended by itself, though batches of it may still run.
var ErrBroken = errors.New("the queue is broken")

// errBroken is the answer to what waits in a queue, or comes to it, that has panicked again and again.
func errBroken(err error) error {
	e := fault.New(fault.Internal, "The queue of this model has failed. Another one takes its place: send the request again.", errors.Join(ErrBroken, err))
	e.Hint = "the server has a bug, which its log describes: report it"
	return e
}

// turn lets one batch go, and says whether there may be another one. A panic costs what is in hand its answers, and nobody else anything, unless there is
// one after the other.
func (q *Queue) turn(ctx context.Context, panics *int) (goesOn bool) {
	var h hand
	err := fault.Contain("a batch was made", func() { goesOn = q.next(ctx, &h) })
	if h.sent {
		*panics = 0
	}
	if err == nil {
		return goesOn
	}
	return q.survives(&h, err, panics)
}

// survives puts right what a panic has left, and says whether the loop goes on.
func (q *Queue) survives(h *hand, err error, panics *int) bool {
	q.runs.tell(err)
	h.drop(&q.runs, err)
	if *panics++; *panics < mostPanics {
		return true
	}
	q.giveUp(errBroken(err))
	return false
}

// giveUp ends a queue whose loops have panicked again and again.
func (q *Queue) giveUp(reason error) {
	q.Close(reason)
	q.mu.Lock()
	q.broken = reason
	q.mu.Unlock()
	q.runs.contain("a queue was emptied", func() { q.Fail(reason) })
}

// round runs a batch on one worker. It says no when the worker's goroutine is to end; a panic costs the batch its answers.
func (s *Sequences) round(ctx context.Context, worker int, panics *int) (goesOn bool) {
	var h hand
	err := fault.Contain("a batch of sequences was made", func() { goesOn = s.next(ctx, worker, &h) })
	if h.sent {
		*panics = 0
	}
	if err == nil {
		return goesOn
	}
	s.runs.tell(err)
	s.runs.contain("a batch of sequences was given up", func() { s.done(ctx, h.batch, nil) })
	h.drop(&s.runs, err)
	if *panics++; *panics < mostPanics {
		return true
	}
	s.giveUp(errBroken(err))
	s.runs.contain("a worker's sequences were left", func() { s.idle(worker, nil) })
	return false
}

// giveUp is that of Queue.
func (s *Sequences) giveUp(reason error) {
	s.Close(reason)
	s.runs.contain("the sequences were emptied", func() { s.Fail(reason) })
}
