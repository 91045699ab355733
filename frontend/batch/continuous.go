package batch

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// streamHeader is the header by which a handler says whether more answers to a request will come (TorchServe's).
const streamHeader = "ts_stream_next"

// executeSteps runs a continuous batch. Each step sends all its requests to the worker: those that were there before as TorchServe repeats them, with
// their id and headers and without parameters. A request whose answer says that more will come stays; the places of the others are filled
// with requests that wait.
func (q *Queue) executeSteps(ctx context.Context, slot backend.Slot, batch []*pending) {
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
		results, err := slot.Execute(ctx, items)
		if err == nil && len(results) != len(batch) {
			err = fault.Newf(fault.Internal, "the worker gave %d answers to %d requests", len(results), len(batch))
		}
		batch = q.settle(batch, results, err)
		if !slot.Retiring() {
			batch = q.refill(batch)
		}
	}
}

// settle answers the requests of a step that are done, passes on the answers of the others, and gives those.
func (q *Queue) settle(batch []*pending, results []infer.Result, err error) []*pending {
	var more []*pending
	for i, p := range batch {
		o := outcome{err: err, times: Times{Queued: p.begun.Sub(p.arrived), Ran: time.Since(p.begun)}}
		if err == nil {
			o.result, o.err = results[i], results[i].Err
		}
		if o.err == nil && takeStreamHeader(&o.result) && p.item.Emit != nil {
			p.item.Emit(withStreamHeader(o.result))
			more = append(more, p)
			continue
		}
		p.answered <- o
	}
	return q.stillWanted(more)
}

// refill fills the free places of a batch that runs with what waits; nobody waits for others here.
func (q *Queue) refill(batch []*pending) []*pending {
	q.mu.Lock()
	alone := q.waiting.Front() != nil && isAlone(q.waiting.Front().Value)
	q.mu.Unlock()
	if alone { // it has to be a batch by itself, so this one has to end first
		return batch
	}
	batch, _, _ = q.take(batch)
	return q.stillWanted(batch)
}

func isAlone(v any) bool {
	p, ok := v.(*pending)
	return ok && p.item.Alone
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
