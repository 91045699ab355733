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
	// MaxDelay is how long a request may wait for others to fill its batch, counted from its arrival, or from when there is a worker for it where that
	// pays. A batch that is full leaves at once.
	MaxDelay time.Duration
	Batching Batching // how batches are made within MaxBatch and MaxDelay
	// IdleOnly refuses a request unless an idle worker can take it at once (TorchServe's job tickets).
	IdleOnly bool
	// Share is the part of MaxItems that the requests of one client (an item's Client) may have while others wait, too; 0 for no such limit.
	Share float64
	// Budget bounds the payload bytes that wait in this queue and others; nil for no limit. It is that of the first policy for good.
	Budget *Budget
	Priorities
	// Guard looks after the requests whose worker dies. Nil: they are answered with its death.
	Guard *Guard
	// Panicked is told of each panic that was contained. It must not block. May be nil.
	Panicked func(error)
}

// Queue is the queue of one model version. Requests are taken by their class (an item's Priority), as turns says, and those of a class in the order in
// which they came. A batch of a worker that answers in steps (TorchServe's continuousBatching) stays with it for as long as one of its requests has more
// answers to come, and the places of those that are done are filled. Its methods are safe for concurrent use.
type Queue struct {
	pool backend.Pool
	wake chan struct{} // one token: something arrived, left, or was closed
	// suspects has one token when a request waits that may have ended a worker.
	suspects chan struct{}

	runs runs
	pace pace

	mu      sync.Mutex // guards what follows
	policy  Policy
	waiting classes
	serial  uint64 // of the last arrival
	bytes   int64  // payload of waiting
	away    int    // batches that are with a worker: what of them is not sent comes back
	batcher batcher
	closed  error // why nothing is accepted any more
	broken  error // why its loops have ended although something waited

	running sync.WaitGroup // batches that are with a worker
}

// pending is one request from its arrival to its answer.
type pending struct {
	item     infer.Item
	arrived  time.Time
	serial   uint64 // in which order they came
	class    int
	place    *list.Element   // where it waits; nil once taken
	apart    bool            // it waits among the suspects
	counted  bool            // its bytes count for the budget of all queues
	done     <-chan struct{} // closed when nobody waits for the answer any more
	answered chan outcome    // holds one

	begun    time.Time     // when its first batch left
	let      bool          // a batch left with it before and was not sent: it waits for nobody any more
	gathered time.Duration // before that, with its batch
	behind   *Execution    // see Times

	steps int          // that it has begun
	past  poison.Past  // what became of its workers
	with  int          // suspects that may be tried at the same time, this one included, if it is one
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
	q := &Queue{pool: pool, wake: make(chan struct{}, 1), suspects: make(chan struct{}, 1)}
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
	if err := q.adopt(&p); err != nil {
		return err
	}
	q.runs.guard.Store(p.Guard)
	q.runs.panicked.Store(&p.Panicked)
	q.signal()
	return nil
}

// adopt does the work of SetPolicy.
func (q *Queue) adopt(p *Policy) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.batcher.set(&p.Batching, p.MaxBatch, p.MaxDelay); err != nil {
		return err
	}
	if q.waiting.budget == nil {
		q.waiting.budget = p.Budget
	}
	if q.policy.Priorities != p.Priorities || q.waiting.lanes == nil {
		q.waiting.arrange(p.levels(), func(w *pending) int { return p.class(w.item.Priority) })
	}
	q.policy = *p
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
	suspect := p.suspect()
	if err := q.enter(p); err != nil {
		return infer.Result{}, Times{}, err
	}
	if suspect {
		q.signalSuspects()
	} else {
		q.signal()
	}
	select {
	case o := <-p.answered:
		return o.result, o.times, o.err
	case <-ctx.Done():
		waited := q.abandon(p)
		return infer.Result{}, Times{Queued: time.Since(p.arrived)}, q.late(p, context.Cause(ctx), waited)
	}
}

// abandon takes p out of the queue, and says whether it was there; a batch that has it already and has not left yet goes without it.
func (q *Queue) abandon(p *pending) bool {
	return q.forget(p)
}

func (q *Queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default: // a token is there already
	}
}

// Run makes batches and sends them to workers until ctx ends or Close was called and nothing waits any more; or until the queue is broken, as a bug would
// break it: everything was answered then, and so is what comes. It returns when the last batch was answered. It must be called once.
func (q *Queue) Run(ctx context.Context) {
	defer q.running.Wait()
	trying, stop := context.WithCancel(ctx)
	defer stop()
	q.running.Go(func() { q.trySuspects(ctx, trying) })
	for panics := 0; q.turn(ctx, &panics); {
	}
	if cause := context.Cause(ctx); cause != nil {
		q.Close(cause)
		q.Fail(cause)
	}
}

// next waits for a request and a worker, and lets a batch go. It says no when there is nothing to do any more.
func (q *Queue) next(ctx context.Context, h *hand) (goesOn bool) {
	if !q.waitForItem(ctx) {
		return false
	}
	slot, err := q.pool.Acquire(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return false
		}
		q.Fail(err)
		return true
	}
	h.slot = q.pace.timed(slot)
	taken := time.Now()
	q.gather(ctx, taken, h)
	h.batch = q.vet(h.batch)
	if len(h.batch) == 0 {
		slot, _ := h.pass()
		slot.Release()
		return true
	}
	q.leave(h.batch, taken)
	slot, batch := h.pass()
	h.sent = true
	q.running.Go(func() { q.run(ctx, slot, taken, batch, keeper{q.refill, q.ended}) })
	return true
}

// run runs a batch, and takes back what of it is to wait again.
func (q *Queue) run(ctx context.Context, slot backend.Slot, taken time.Time, batch []*pending, of keeper) {
	unsent, f := q.runs.run(ctx, slot, taken, batch, of)
	if err := fault.Contain("a batch came back", func() { q.comeBack(ctx, unsent) }); err != nil {
		q.runs.tell(err)
		for _, p := range unsent {
			p.refuse(err)
		}
	}
	q.runs.contain("a slot was given back", f.Release)
}

// putBack lets what has left the queue wait again, before all that came after it; q.mu is held.
func (q *Queue) putBack(batch []*pending) {
	for _, p := range slices.Backward(batch) {
		if !p.left() {
			p.let = true
			q.waiting.add(p, true)
			q.bytes += p.item.Size()
		}
	}
}

// waitForItem says whether there is something to do.
func (q *Queue) waitForItem(ctx context.Context) bool {
	for {
		some, over := q.look()
		if ctx.Err() != nil || over {
			return false
		}
		if some {
			return true
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
		}
	}
}

// look says whether something is to be put into a batch, and whether nothing ever will be.
func (q *Queue) look() (some, over bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting.ready() > 0, q.closed != nil && q.away == 0 && q.waiting.len() == 0 || q.broken != nil
}

// leave notes that a batch goes to a worker.
func (q *Queue) leave(batch []*pending, taken time.Time) {
	free := q.pool.Free()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.batcher.sent(batch, q.waiting.ready(), slots{taken, free, q.away})
	q.away++
}

// gather takes a batch into a hand that has a slot, until the policy lets it go. taken is when the slot was had.
func (q *Queue) gather(ctx context.Context, taken time.Time, h *hand) {
	var timer *time.Timer
	for {
		var wait time.Duration
		h.batch, wait = q.take(h.batch, taken)
		if wait <= 0 || ctx.Err() != nil {
			h.batch = q.stillWanted(h.batch)
			return
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

// take moves waiting requests into batch, as many as the policy wants, and says how long it may then wait for more; 0 when it is to leave.
func (q *Queue) take(batch []*pending, taken time.Time) (_ []*pending, wait time.Duration) {
	free := q.pool.Free()
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(batch) == 0 && q.waiting.ready() == 0 {
		return batch, 0
	}
	earliest := q.waiting.oldestReady()
	if len(batch) > 0 && (earliest.IsZero() || oldest(batch).Before(earliest)) {
		earliest = oldest(batch)
	}
	d := q.batcher.decide(len(batch), q.waiting.ready(), earliest, slots{taken, free, q.away})
	batch, full := q.fill(batch, d.Size)
	if full {
		return batch, 0
	}
	return batch, d.Wait
}

// fill moves up to size waiting requests into batch, and says whether it is to leave whatever the policy says; q.mu is held. After a panic the caller has
// none of those that it has moved: they are answered.
func (q *Queue) fill(batch []*pending, size int) (_ []*pending, full bool) {
	before, done := len(batch), false
	defer func() {
		if !done {
			answerAll(batch[before:], errLost())
		}
	}()
	for len(batch) < size {
		p := q.waiting.next()
		if p == nil {
			break
		}
		if p.item.Alone && len(batch) > 0 {
			done = true
			return batch, true // it goes with the next batch, and this one leaves at once so that it does not wait
		}
		q.bytes -= p.item.Size()
		if p.left() { // it takes no place, and no turn
			q.waiting.remove(p)
			q.batcher.lost(1)
			continue
		}
		batch = append(batch, p)
		q.waiting.take(p)
		if p.item.Alone {
			break
		}
	}
	done = true
	alone := len(batch) > 0 && batch[len(batch)-1].item.Alone
	return batch, alone || len(batch) == 0 || len(batch) >= size || q.closed != nil || slices.ContainsFunc(batch, func(p *pending) bool { return p.let })
}

// stillWanted drops those that left while the batch was gathered.
func (q *Queue) stillWanted(batch []*pending) []*pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(batch)
	batch = wanted(batch)
	q.batcher.lost(n - len(batch))
	return batch
}

// wanted drops those that left; the queue's mu is held.
func wanted(batch []*pending) []*pending {
	return slices.DeleteFunc(batch, func(p *pending) bool { return p.left() })
}

// Fail answers everything that waits with err; what a worker has is not touched.
func (q *Queue) Fail(err error) {
	answerAll(q.clear(), err)
	q.signal()
}

// clear takes everything out that waits.
func (q *Queue) clear() []*pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.waiting.clear()
	q.bytes = 0
	q.batcher.lost(len(all))
	return all
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
	batch, gone := split(batch)
	if len(gone) > 0 {
		q.batcher.ended(gone, 0, false)
	}
	next := q.waiting.next()
	if next == nil || next.item.Alone || slot.Retiring() { // what goes alone needs this batch to end first
		return batch
	}
	n := len(batch)
	if batch, _ = q.fill(batch, q.policy.MaxBatch); len(batch) > n {
		q.batcher.joined(len(batch)-n, q.waiting.ready())
	}
	return batch
}

// split tells those that somebody waits for from those that left.
func split(batch []*pending) (kept, gone []*pending) {
	for _, p := range batch {
		if p.left() {
			gone = append(gone, p)
		} else {
			kept = append(kept, p)
		}
	}
	return kept, gone
}
