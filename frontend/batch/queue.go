// Package batch holds the requests that wait for one model version, makes batches of them, and answers each exactly once.
package batch

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/poison"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// Policy says how many requests may wait and when a batch leaves. It can be changed while the queue runs.
type Policy struct {
	MaxItems int   // requests that may wait; required
	MaxBytes int64 // payload bytes that may wait; 0 for no limit
	MaxBatch int   // largest batch; below 1 counts as 1
	// MaxDelay is how long a request may wait for others to fill its batch, counted from its arrival. A batch that is full leaves at once.
	MaxDelay time.Duration
	// IdleOnly refuses a request unless an idle worker can take it at once (TorchServe's job tickets).
	IdleOnly bool
	Priorities
	// Guard looks after the requests whose worker dies. Nil: they are answered with its death.
	Guard *Guard
}

// Queue is the queue of one model version. Requests are taken by their class (an item's Priority), as turns says, and those of a class in the order in
// which they came. A batch of a worker that answers in steps (TorchServe's continuousBatching) stays with it for as long as one of its requests has more
// answers to come, and the places of those that are done are filled. Its methods are safe for concurrent use.
type Queue struct {
	pool backend.Pool
	wake chan struct{} // one token: something arrived, left, or was closed
	runs runs

	mu      sync.Mutex // guards what follows
	policy  Policy
	waiting classes
	serial  uint64 // of the last arrival
	bytes   int64  // payload of waiting
	away    int    // batches that are with a worker: what of them is not sent comes back
	closed  error  // why nothing is accepted any more

	running sync.WaitGroup // batches that are with a worker
}

// pending is one request from its arrival to its answer.
type pending struct {
	item     infer.Item
	arrived  time.Time
	serial   uint64 // in which order they came
	class    int
	place    *list.Element   // where it waits; nil once taken
	done     <-chan struct{} // closed when nobody waits for the answer any more
	answered chan outcome    // holds one

	begun    time.Time     // when its first batch left
	gathered time.Duration // before that, with its batch
	behind   *Execution    // see Times

	steps int          // that it has begun
	past  poison.Past  // what became of its workers
	mark  poison.Mark  // it may be one that ends workers
	heard *atomic.Bool // something of its answer was passed on; nil before it has begun
	watch string       // a response header to note, "" for none
	noted string       // that header's last value
}

// left says whether nobody waits for the answer any more.
func (p *pending) left() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

type outcome struct {
	result infer.Result
	times  Times
	err    error
}

// Times tells where a request's time went.
type Times struct {
	Queued   time.Duration // from its arrival until its batch left
	Gathered time.Duration // the last part of Queued: a worker was free, and the batch waited for others
	Ran      time.Duration // in the worker, with its batch; 0 when it did not get there
	Run      *Execution    // that of its batch; nil when it did not get there
	Behind   *Execution    // what its worker did while it waited, at the end of that time; nil when it found a free worker
}

// New makes a queue for the slots of pool. Nothing leaves it until Run is called.
func New(pool backend.Pool, policy Policy) (*Queue, error) {
	q := &Queue{pool: pool, wake: make(chan struct{}, 1)}
	if err := q.SetPolicy(policy); err != nil {
		return nil, err
	}
	return q, nil
}

// SetPolicy changes the policy for what arrives from now on, and for the batches that are made from now on.
func (q *Queue) SetPolicy(p Policy) error {
	if p.MaxItems < 1 {
		return fmt.Errorf("queue size %d: it must be at least 1", p.MaxItems)
	}
	if p.MaxBatch < 1 {
		p.MaxBatch = 1
	}
	q.mu.Lock()
	if q.policy.Priorities != p.Priorities || q.waiting.lists == nil {
		q.waiting.arrange(p.levels(), func(w *pending) int { return p.class(w.item.Priority) })
	}
	q.policy = p
	q.mu.Unlock()
	q.runs.guard.Store(p.Guard)
	q.signal()
	return nil
}

// Waiting is the number of requests that wait, and how many may.
func (q *Queue) Waiting() (waiting, limit int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting.len(), q.policy.MaxItems
}

// Submit waits for the item's answer and also tells where the time went. It is refused at once with fault.Overloaded
// when the queue is full. When ctx ends first, the item leaves the queue if it is still there, and the context's cause is returned.
func (q *Queue) Submit(ctx context.Context, item infer.Item) (infer.Result, Times, error) {
	p := &pending{item: item, arrived: time.Now(), done: ctx.Done(), answered: make(chan outcome, 1)}
	if err := q.runs.guard.Load().check(p); err != nil {
		return infer.Result{}, Times{}, err
	}
	if err := q.enter(p); err != nil {
		return infer.Result{}, Times{}, err
	}
	q.signal()
	select {
	case o := <-p.answered:
		return o.result, o.times, o.err
	case <-ctx.Done():
		q.abandon(p)
		return infer.Result{}, Times{Queued: time.Since(p.arrived)}, context.Cause(ctx)
	}
}

func (q *Queue) enter(p *pending) error {
	free := q.pool.Free()
	size := p.item.Size()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed != nil {
		return q.closed
	}
	n := q.waiting.len()
	// What free workers are about to take does not count as waiting.
	if limit := q.policy.MaxItems + free*q.policy.MaxBatch; !q.policy.IdleOnly && n >= limit {
		return fault.Newf(fault.Overloaded, "the queue is full: %d of %d requests wait", n, q.policy.MaxItems)
	}
	if q.policy.IdleOnly && n >= free*q.policy.MaxBatch {
		return fault.Newf(fault.Overloaded, "no worker is idle, and the model takes requests for idle workers only (useJobTicket)")
	}
	if q.policy.MaxBytes > 0 && n > 0 && q.bytes+size > q.policy.MaxBytes {
		return fault.Newf(fault.Overloaded, "the queue is full: %d of %d bytes wait", q.bytes, q.policy.MaxBytes)
	}
	q.serial++
	p.serial, p.class = q.serial, q.policy.class(p.item.Priority)
	q.waiting.add(p, false)
	q.bytes += size
	return nil
}

// abandon takes p out of the queue; a batch that has it already and has not left yet goes without it.
func (q *Queue) abandon(p *pending) {
	q.mu.Lock()
	if p.place != nil {
		q.waiting.remove(p)
		q.bytes -= p.item.Size()
	}
	q.mu.Unlock()
	q.signal()
}

func (q *Queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default: // a token is there already
	}
}

// Run makes batches and sends them to workers until ctx ends or Close was called and nothing waits any more. It returns when the
// last batch was answered. It must be called once.
func (q *Queue) Run(ctx context.Context) {
	defer q.running.Wait()
	for q.waitForItem(ctx) {
		slot, err := q.pool.Acquire(ctx)
		if err != nil {
			if ctx.Err() != nil {
				break
			}
			q.Fail(err)
			continue
		}
		taken := time.Now()
		batch := q.vet(q.gather(ctx))
		if len(batch) == 0 {
			slot.Release()
			continue
		}
		q.mu.Lock()
		q.away++
		q.mu.Unlock()
		q.running.Go(func() { q.comeBack(ctx, q.runs.run(ctx, slot, taken, batch, q.refill)) })
	}
	if cause := context.Cause(ctx); cause != nil {
		q.Close(cause)
		q.Fail(cause)
	}
}

// putBack lets what has left the queue wait again, before all that came after it; q.mu is held.
func (q *Queue) putBack(batch []*pending) {
	for _, p := range slices.Backward(batch) {
		if !p.left() {
			q.waiting.add(p, true)
			q.bytes += p.item.Size()
		}
	}
}

// waitForItem says whether there is something to do.
func (q *Queue) waitForItem(ctx context.Context) bool {
	for {
		q.mu.Lock()
		n, over := q.waiting.len(), q.closed != nil && q.away == 0
		q.mu.Unlock()
		if ctx.Err() != nil || n == 0 && over {
			return false
		}
		if n > 0 {
			return true
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
		}
	}
}

// gather takes a batch: until it is full, or until its oldest member has waited for the policy's delay.
func (q *Queue) gather(ctx context.Context) []*pending {
	var batch []*pending
	var timer *time.Timer
	for {
		var full bool
		var wait time.Duration
		batch, full, wait = q.take(batch)
		if full || wait <= 0 || ctx.Err() != nil {
			return q.stillWanted(batch)
		}
		if timer == nil {
			timer = time.NewTimer(wait)
			defer timer.Stop()
		} else {
			timer.Reset(wait)
		}
		select {
		case <-q.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// take moves waiting requests into batch, and says whether the batch is complete and else how long it may wait for more.
func (q *Queue) take(batch []*pending) (_ []*pending, full bool, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.fill(batch)
}

// fill does the work of take; q.mu is held.
func (q *Queue) fill(batch []*pending) (_ []*pending, full bool, wait time.Duration) {
	for len(batch) < q.policy.MaxBatch {
		p := q.waiting.next()
		if p == nil {
			break
		}
		if p.item.Alone && len(batch) > 0 {
			return batch, true, 0 // it goes with the next batch, and this one leaves at once so that it does not wait
		}
		q.bytes -= p.item.Size()
		if p.left() { // it takes no place, and no turn
			q.waiting.remove(p)
			continue
		}
		q.waiting.take(p)
		batch = append(batch, p)
		if p.item.Alone {
			return batch, true, 0
		}
	}
	if len(batch) == 0 || len(batch) >= q.policy.MaxBatch || q.closed != nil {
		return batch, true, 0
	}
	return batch, false, time.Until(oldest(batch).Add(q.policy.MaxDelay))
}

// stillWanted drops those that left while the batch was gathered.
func (q *Queue) stillWanted(batch []*pending) []*pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	return wanted(batch)
}

// wanted drops those that left; the queue's mu is held.
func wanted(batch []*pending) []*pending {
	return slices.DeleteFunc(batch, func(p *pending) bool { return p.left() })
}

// Fail answers everything that waits with err; what a worker has is not touched.
func (q *Queue) Fail(err error) {
	q.mu.Lock()
	all := q.waiting.clear()
	q.bytes = 0
	q.mu.Unlock()
	answerAll(all, err)
}

// ErrClosed is the reason of a queue that was closed without another one.
var ErrClosed = errors.New("the queue is closed")

// Close refuses what arrives from now on with reason. What waits is still run: Run returns after it.
func (q *Queue) Close(reason error) {
	if reason == nil {
		reason = ErrClosed
	}
	q.mu.Lock()
	if q.closed == nil {
		q.closed = reason
	}
	q.mu.Unlock()
	q.signal()
}

// refill drops those of a batch that goes on in steps that nobody waits for, and fills the free places with what waits; nobody waits for others here. An
// instance that is to end gets nothing more: since that is looked at while nothing can arrive, what is taken was there before the instance was told
// so, and no request that comes after a swap is answered by what was swapped.
func (q *Queue) refill(batch []*pending, slot backend.Slot) []*pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	batch = wanted(batch)
	next := q.waiting.next()
	if next == nil || next.item.Alone || slot.Retiring() { // what goes alone needs this batch to end first
		return batch
	}
	batch, _, _ = q.fill(batch)
	return batch
}
