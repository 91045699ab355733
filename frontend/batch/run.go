package batch

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// run runs a batch and answers its requests. It gives those that are to wait again, which nobody has answered, and the flight, whose slot is to be
// released once they do: whoever gets it next finds them. A panic on the way costs the batch its answers, and nobody else anything. taken is when the slot
// was had, and of is where the batch comes from.
func (r *runs) run(ctx context.Context, slot backend.Slot, taken time.Time, batch []*pending, of keeper) (unsent []*pending, f *flight) {
	f = &flight{Slot: slot, batch: batch}
	defer func() {
		if what := recover(); what != nil {
			unsent = nil
			r.crash(f, what, of)
		}
	}()
	return r.fly(ctx, f, taken, of), f
}

// flight is a batch on its slot. It belongs to the goroutine that runs it.
type flight struct {
	backend.Slot

	batch    []*pending
	counted  bool // the queue was told that the batch has ended
	released bool
}

// Release implements backend.Slot; it gives the slot back once, however often it is called.
func (f *flight) Release() {
	if !f.released {
		f.released = true
		f.Slot.Release()
	}
}

// ended tells a queue that the batch has ended.
func (f *flight) ended(of keeper, took time.Duration, answered bool) {
	f.counted = true
	of.ended(f.batch, took, answered)
}

// crash ends a flight after a panic: those that have no answer yet get one, and the queue does not take them to be with a worker.
func (r *runs) crash(f *flight, what any, of keeper) {
	err := fault.Panicked(what, runningBatch)
	r.tell(err)
	if !f.counted {
		r.contain("the end of a batch was counted", func() { f.ended(of, 0, false) })
	}
	for _, p := range f.batch {
		p.refuse(err)
	}
	r.contain("a slot was given back", f.Release)
}

// runningBatch is what was being done when a batch panics.
const runningBatch = "a batch was run"

// fly does the work of run.
//
// A worker that answers in steps gets all the requests of the batch in each step: those that were there before as TorchServe repeats them, with their id
// and headers and without parameters. A request whose answer says that more will come stays.
func (r *runs) fly(ctx context.Context, slot *flight, taken time.Time, of keeper) (unsent []*pending) {
	for {
		batch := slot.batch
		worker, _ := slot.Worker()
		begun := time.Now()
		items := begin(batch, begun, taken, r.before(worker))
		results, err := r.execute(ctx, slot.Slot, items)
		if errors.Is(err, backend.ErrNotSent) {
			slot.ended(of, 0, false)
			for _, p := range batch {
				p.begun, p.steps = time.Time{}, 0
			}
			return batch
		}
		execution, after := r.note(slot, items, begun)
		delayed(batch, execution, after)
		taken = time.Now() // for those who join it between two steps
		guard := r.guard.Load()
		if err != nil && guard != nil {
			slot.ended(of, 0, false)
			return guard.judge(batch, err, execution)
		}
		if !slot.Continuous() {
			outcomes := outcomesOf(batch, results, err, execution)
			slot.ended(of, measured(execution, err), err == nil)
			slot.Release() // before the answers, so that a client's next request finds the worker free
			for i, p := range batch {
				guard.answered(p)
				p.answer(outcomes[i])
			}
			return nil
		}
		more := settle(batch, outcomesOf(batch, results, err, execution))
		of.left(batch, more, err == nil)
		slot.batch = more
		if slot.batch = of.renew(more, slot.Slot); len(slot.batch) == 0 {
			slot.Release()
			return nil
		}
	}
}

// begin gives the items of the next step of a batch, which is the first one for those that have not begun. taken is when the slot was had, before what
// its worker did until then.
func begin(batch []*pending, now, taken time.Time, before *Execution) []infer.Item {
	items := make([]infer.Item, len(batch))
	for i, p := range batch {
		p.listen()
		p.steps++
		items[i] = p.item
		if !p.begun.IsZero() {
			items[i].Parts = nil
			continue
		}
		p.begun, p.gathered, p.behind = now, min(now.Sub(taken), now.Sub(p.arrived)), nil
		if before != nil && before.end().After(p.arrived) {
			p.behind = before
		}
	}
	return items
}

// delayed notes that a batch that was sent ahead began after another one, if there is one.
func delayed(batch []*pending, execution, after *Execution) {
	for _, p := range batch {
		if after != nil && p.steps == 1 {
			p.begun, p.behind = execution.Begun, after
		}
	}
}

// execute makes an error of a wrong number of answers, and of a panic.
func (r *runs) execute(ctx context.Context, slot backend.Slot, items []infer.Item) (results []infer.Result, err error) {
	defer func() {
		if what := recover(); what != nil {
			results, err = nil, fault.Panicked(what, runningBatch)
			r.tell(err)
		}
	}()
	results, err = slot.Execute(ctx, items)
	if err == nil && len(results) != len(items) {
		err = fault.Newf(fault.Internal, "the worker gave %d answers to %d requests", len(results), len(items))
	}
	return results, err //nolint:wrapcheck // the worker's faults are the client's
}

// outcomesOf gives what became of each request of a batch.
func outcomesOf(batch []*pending, results []infer.Result, err error, execution *Execution) []outcome {
	outcomes := make([]outcome, len(batch))
	for i, p := range batch {
		o := &outcomes[i]
		*o = outcome{err: err, times: Times{
			Queued: p.begun.Sub(p.arrived), Gathered: p.gathered, Behind: p.behind, Ran: execution.end().Sub(p.begun), Run: execution,
		}}
		if err == nil {
			p.note(&results[i])
			o.result, o.err = results[i], results[i].Err
		}
	}
	return outcomes
}

// answerAll answers requests that were not run.
func answerAll(all []*pending, err error) {
	for _, p := range all {
		p.refuse(err)
	}
}

// streamHeader is the header by which a handler says whether more answers to a request will come (TorchServe's).
const streamHeader = "ts_stream_next"

// settle answers the requests of a step that are done, passes on the answers of the others, and gives those.
func settle(batch []*pending, outcomes []outcome) []*pending {
	var more []*pending
	for i, p := range batch {
		o := outcomes[i]
		if o.err == nil && takeStreamHeader(&o.result) && p.item.Emit != nil {
			p.item.Emit(withStreamHeader(o.result))
			more = append(more, p)
			continue
		}
		p.answer(o)
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
