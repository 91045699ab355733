package batch

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// Execution is one run of a batch, which its requests share.
type Execution struct {
	Rows    int // samples in the batch
	counted atomic.Bool
}

// First says once that an execution is to be counted: to the first of its requests that asks.
func (e *Execution) First() bool { return !e.counted.Swap(true) }

func newExecution(items []infer.Item) *Execution {
	e := &Execution{}
	for i := range items {
		e.Rows += max(items[i].Rows, 1)
	}
	return e
}

// run runs a batch and answers its requests.
func run(ctx context.Context, slot backend.Slot, batch []*pending) {
	items := make([]infer.Item, len(batch))
	for i, p := range batch {
		items[i] = p.item
	}
	begun := time.Now()
	results, err := execute(ctx, slot, items)
	ran, execution := time.Since(begun), newExecution(items)
	slot.Release() // before the answers, so that a client's next request finds the worker free
	for i, p := range batch {
		o := outcome{err: err, times: Times{Queued: begun.Sub(p.arrived), Ran: ran, Run: execution}}
		if err == nil {
			p.note(&results[i])
			o.result, o.err = results[i], results[i].Err
		}
		p.answered <- o
	}
}

// execute makes an error of a wrong number of answers.
func execute(ctx context.Context, slot backend.Slot, items []infer.Item) ([]infer.Result, error) {
	results, err := slot.Execute(ctx, items)
	if err == nil && len(results) != len(items) {
		err = fault.Newf(fault.Internal, "the worker gave %d answers to %d requests", len(results), len(items))
	}
	return results, err //nolint:wrapcheck // the worker's faults are the client's
}

// answerAll answers requests that were not run.
func answerAll(all []*pending, err error) {
	for _, p := range all {
		p.answered <- outcome{err: err, times: Times{Queued: time.Since(p.arrived)}}
	}
}

// streamHeader is the header by which a handler says whether more answers to a request will come (TorchServe's).
const streamHeader = "ts_stream_next"

// runSteps runs a continuous batch. Each step sends all its requests to the worker: those that were there before as TorchServe repeats them, with their
// id and headers and without parameters. A request whose answer says that more will come stays. Between two steps renew drops those that nobody
// waits for, and may add others.
func runSteps(ctx context.Context, slot backend.Slot, batch []*pending, renew func(batch []*pending, retiring bool) []*pending) {
	defer slot.Release()
	for len(batch) > 0 {
		now := time.Now()
		items := make([]infer.Item, len(batch))
		for i, p := range batch {
			items[i] = p.item
			if p.begun.IsZero() {
				p.begun = now
			} else {
				items[i].Parts = nil
			}
		}
		results, err := execute(ctx, slot, items)
		batch = renew(settle(batch, results, err, newExecution(items)), slot.Retiring())
	}
}

// settle answers the requests of a step that are done, passes on the answers of the others, and gives those.
func settle(batch []*pending, results []infer.Result, err error, execution *Execution) []*pending {
	var more []*pending
	for i, p := range batch {
		o := outcome{err: err, times: Times{Queued: p.begun.Sub(p.arrived), Ran: time.Since(p.begun), Run: execution}}
		if err == nil {
			p.note(&results[i])
			o.result, o.err = results[i], results[i].Err
		}
		if o.err == nil && takeStreamHeader(&o.result) && p.item.Emit != nil {
			p.item.Emit(withStreamHeader(o.result))
			more = append(more, p)
			continue
		}
		p.answered <- o
	}
	return more
}

// note keeps the value of the header that the pending watches.
func (p *pending) note(r *infer.Result) {
	if p.watch == "" {
		return
	}
	for _, f := range r.Header {
		if strings.EqualFold(f.Name, p.watch) {
			p.noted = f.Value
		}
	}
}

// takeStreamHeader removes the header from an answer and says whether more answers will come.
func takeStreamHeader(r *infer.Result) bool {
	at := slices.IndexFunc(r.Header, func(f infer.Field) bool { return strings.EqualFold(f.Name, streamHeader) })
	if at < 0 {
		return false
	}
	more := r.Header[at].Value == "true"
	r.Header = slices.Delete(slices.Clone(r.Header), at, at+1)
	return more
}

func withStreamHeader(r infer.Result) infer.Result {
	r.Header = append(r.Header, infer.Field{Name: streamHeader, Value: "true"})
	return r
}
