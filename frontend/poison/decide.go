package poison

import (
	"errors"
	"math"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// crash is what an error tells about the end of a worker's process; backend.CrashError implements it.
type crash interface {
	error
	Together() int  // requests that the process had, of all its batches
	ByItself() bool // it has ended by what it did
	ByOthers() bool // something from outside has ended it; where neither is so, nobody knows
}

// Past is what has become of a request so far. Its zero value is that of a request that no worker has had.
type Past struct {
	Tries  int // workers that were to have it, and ended
	Unsent int // of them, those that were not given it
	Deaths int // of them, those that may have ended because of it
}

// Suspect says that the request may have ended a worker: that worker had it.
func (p Past) Suspect() bool { return p.Tries > p.Unsent }

// Facts are what is known about a request that got an error in place of an answer.
type Facts struct {
	Err         error // what its batch got
	Batch       int   // requests in the batch
	Undelivered bool  // the worker was not given the batch
	Begun       bool  // something of its answer was passed on, or it is in the middle of several steps
	Sequence    bool  // it belongs to a sequence, whose state has gone with the worker
	Never       bool  // the model wants no request to be run twice
}

// Decision is what becomes of the request.
type Decision struct {
	Retry bool   // it is given to a worker again, before everything that waits
	With  int    // how many requests that next try may have at the same time, this one included: 1 is alone; 0 for a request that is under no suspicion
	Blame bool   // it has ended its worker: Book.Killed is to be called, with Past.Deaths as Death.Workers
	Past  Past   // for the next decision
	Err   error  // what it is answered with, if it is not retried
	How   string // how the worker ended, for Death.How
}

// How often a request is given to a worker, at most.
const (
	mostTries = 3 // while others were there each time, so that nobody knows whose fault it was
	mostAlone = 2 // when it was alone, and somebody else has ended the worker
)

// fewSuspects is up to how many requests are tried one by one after the worker that had them has ended.
const fewSuspects = 8

// share is how many of those that were together on a worker may be so on the next one, after so many tries.
//
// To find the one that ends workers among n costs runs in which nobody else may have the worker, and workers that it ends. One by one that is n runs and one
// worker, which a few can afford. Of many, groups of about √n are tried, and then those of the group that has ended its worker one by one: about 2√n
// runs and two workers. Halves would be fewer runs still, and a worker for each halving: a start takes longer than many runs, and each ends those that
// were with it another time, of which nobody has more than mostTries.
func share(n, tries int) int {
	if n <= fewSuspects || tries > 1 {
		return 1
	}
	return int(math.Ceil(math.Sqrt(float64(n))))
}

// Decide says what becomes of a request whose batch has failed. These are all the rules:
//
//   - Only the end of a worker is a reason to try again. A time limit, a refusal or the handler's own error is an answer.
//   - A request that the worker was not given is tried again, whatever else is so.
//   - A request of which something was answered, which belongs to a sequence, or whose model forbids it, is not.
//   - A request that was with others is tried again: alone or, if these were many, first with a few of them.
//   - A request that was alone when the worker ended by itself is what ended it. It is answered, and remembered.
//   - A request that was alone when somebody else ended the worker is tried again, once.
func Decide(f Facts, past Past) Decision {
	d := Decision{Past: past, Err: f.Err}
	if !fault.Is(f.Err, fault.BackendDied, fault.BackendOutOfMemory) {
		return d
	}
	d.Past.Tries++
	bound := f.Begun || f.Sequence // to what it has begun, or to the worker that is gone
	if f.Undelivered {
		d.Past.Unsent++
		d.Retry = !bound && d.Past.Tries < mostTries
		if d.Past.Suspect() {
			d.With = 1
		}
		return d
	}
	var c crash
	known := errors.As(f.Err, &c)
	alone := f.Batch <= 1 && (!known || c.Together() <= 1)
	d.How = f.Err.Error()
	d.With = 1
	if known {
		d.With = share(max(f.Batch, c.Together()), d.Past.Tries-d.Past.Unsent)
		d.How = c.Error()
		if !c.ByOthers() {
			d.Past.Deaths++
		}
	}
	switch {
	case alone && known && c.ByItself():
		d.Blame = true
	case alone:
		d.Retry = !bound && !f.Never && d.Past.Tries < mostAlone
		d.Blame = !d.Retry && known && !c.ByOthers() && d.Past.Deaths >= mostAlone
	default:
		d.Retry = !bound && !f.Never && d.Past.Tries < mostTries
	}
	if !d.Retry {
		d.Err = explain(f, d)
	}
	return d
}

// explain adds to the answer why the request was not tried again.
func explain(f Facts, d Decision) error {
	cause, ok := errors.AsType[*fault.Error](f.Err)
	if !ok {
		return f.Err
	}
	var why string
	switch {
	case d.Blame:
		why = "the worker had nothing but this request when it ended (" + d.How + "): the request is what ended it, and is refused for a while when it comes again and again"
	case f.Begun:
		why = "the worker ended (" + d.How + ") after a part of the answer was given, so the request could not be tried again"
	case f.Sequence:
		why = "the worker ended (" + d.How + ") with the state of the request's sequence: begin the sequence again"
	case f.Never:
		why = "the worker ended (" + d.How + "), and the model's setting `retry` forbids another try: it may have run already"
	default:
		why = "the workers that had it ended (" + d.How + "), each time"
	}
	own := *cause
	if own.Hint != "" {
		why += ". " + own.Hint
	}
	own.Hint = why
	return &own
}
