package batch

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// Execution is one run of a batch, which its requests share. It is not changed any more once they have it.
type Execution struct {
	Number   uint64   // counted from 1 in each queue
	Requests []string // the IDs of its requests
	Rows     int      // samples in the batch
	Worker   int      // that ran it
	PID      int      // of the worker's process
	Begun    time.Time
	Ran      time.Duration

	counted atomic.Bool
}

// First says once that an execution is to be counted: to the first of its requests that asks.
func (e *Execution) First() bool { return !e.counted.Swap(true) }

// end is when the execution was over.
func (e *Execution) end() time.Time { return e.Begun.Add(e.Ran) }

// runs numbers the executions of a queue, and knows the latest one of each worker. The zero value is ready.
type runs struct {
	guard    atomic.Pointer[Guard]       // nil: none
	panicked atomic.Pointer[func(error)] // is told of each panic that was contained; nil: nobody

	mu    sync.Mutex // guards what follows
	count uint64
	last  map[int]*Execution
}

// mostWorkers bounds last: workers that have ended are not told apart from others.
const mostWorkers = 256

// before gives the latest execution of a worker, nil if there is none.
func (r *runs) before(worker int) *Execution {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[worker]
}

// note makes the execution of a batch that has just ended. One that was sent ahead began when the one before it was over: that is given then, else nil.
func (r *runs) note(slot backend.Slot, items []infer.Item, begun time.Time) (e, after *Execution) {
	e = &Execution{Requests: make([]string, len(items)), Begun: begun, Ran: time.Since(begun)}
	e.Worker, e.PID = slot.Worker()
	for i := range items {
		e.Requests[i] = items[i].ID
		e.Rows += max(items[i].Rows, 1)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	e.Number = r.count
	if r.last == nil || len(r.last) >= mostWorkers {
		r.last = map[int]*Execution{}
	}
	if last := r.last[e.Worker]; last != nil && slot.InTurn() && last.end().After(begun) {
		after = last
		e.Begun, e.Ran = last.end(), e.end().Sub(last.end())
	}
	r.last[e.Worker] = e
	return e, after
}
