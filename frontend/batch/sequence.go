package batch

import (
	"container/list"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/batch/policy"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// SequencePolicy says how sequences of requests are kept apart.
type SequencePolicy struct {
	MaxSequences int           // sequences that may be open; required
	MaxItems     int           // requests of one sequence that may wait; required
	MaxBytes     int64         // payload bytes that may wait, of all sequences; 0 for no limit
	Budget       *Budget       // bounds the payload bytes that wait here and in other queues; nil for no limit
	MaxBatch     int           // largest batch; below 1 counts as 1. A batch has one request of a sequence at most
	MaxDelay     time.Duration // how long a request may wait for others to fill its batch
	Batching     Batching      // how batches are made within MaxBatch and MaxDelay
	Idle         time.Duration // a sequence without a request for so long is over; required
	Total        time.Duration // a sequence that began so long ago is over; 0 for no limit
	EndHeader    string        // response header by which a handler ends sequences: their ids, separated by semicolons; "" for none
	Guard        *Guard        // looks after the requests whose worker dies; nil: they are answered with its death
	Panicked     func(error)   // is told of each panic that was contained; must not block; may be nil
	Priorities                 // of several sequences with a request, that goes first whose request is in the first class; within a sequence nothing changes
}

// Sequences is the queue of a model version whose workers keep state from one request to the next (TorchServe's sequenceBatching). All the requests of
// a sequence go to one worker, in their order. Its methods are safe for concurrent use.
type Sequences struct {
	pool backend.Pool
	wake chan struct{} // one token: Run is to look around
	runs runs
	pace pace

	mu      sync.Mutex // guards what follows
	policy  SequencePolicy
	open    map[string]*sequence
	busy    map[int]bool     // workers that have a goroutine
	turns   map[int]*turns   // of each worker that has had a goroutine
	batches map[int]*batcher // of each worker that has had a sequence
	frozen  *policy.Limits   // what workers have that come while nothing is to move; nil: it moves
	waiting int
	lone    int           // requests of no sequence that wait for a worker
	serial  uint64        // of the last arrival
	bytes   int64         // payload of what waits
	arrival chan struct{} // closed and replaced at each arrival
	closed  error

	running sync.WaitGroup // the workers' goroutines, and what goes alone
}

// sequence is an open sequence.
type sequence struct {
	id      string
	worker  int
	bound   bool // it has a worker
	begun   time.Time
	used    time.Time // the last arrival or answer
	jobs    list.List // of *pending
	running int       // requests that are with the worker
}

// NewSequences makes a queue for the workers of pool. Nothing leaves it until Run is called.
func NewSequences(pool backend.Pool, policy SequencePolicy) (*Sequences, error) {
	s := &Sequences{pool: pool, wake: make(chan struct{}, 1), open: map[string]*sequence{}, busy: map[int]bool{}, turns: map[int]*turns{}, batches: map[int]*batcher{}, arrival: make(chan struct{})}
	if err := s.SetPolicy(policy); err != nil {
		return nil, err
	}
	return s, nil
}

// SetPolicy changes the policy for what arrives from now on, and for the batches that are made from now on. Open sequences stay open.
func (s *Sequences) SetPolicy(policy SequencePolicy) error {
	if policy.MaxSequences < 1 || policy.MaxItems < 1 || policy.Idle <= 0 {
		return fmt.Errorf("sequences need room for at least one sequence (%d), one request (%d) and an idle time (%s)",
			policy.MaxSequences, policy.MaxItems, policy.Idle)
	}
	policy.MaxBatch = max(policy.MaxBatch, 1)
	if err := s.adopt(&policy); err != nil {
		return err
	}
	s.runs.guard.Store(policy.Guard)
	s.runs.panicked.Store(&policy.Panicked)
	s.signal()
	return nil
}

// adopt does the work of SetPolicy.
func (s *Sequences) adopt(policy *SequencePolicy) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.setBatching(policy); err != nil {
		return err
	}
	if s.policy.Priorities != policy.Priorities {
		clear(s.turns)
		for _, q := range s.open {
			for e := q.jobs.Front(); e != nil; e = e.Next() {
				if p, ok := e.Value.(*pending); ok {
					p.class = policy.class(p.item.Priority)
				}
			}
		}
	}
	s.policy = *policy
	return nil
}

// Waiting is the number of requests that wait, and how many may.
func (s *Sequences) Waiting() (waiting, limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting + s.lone, s.policy.MaxItems * s.policy.MaxSequences
}

// Submit waits for the answer to an item of a sequence, or to one that goes alone. It is refused at once with fault.Overloaded when its sequence has no
// room, or when it would open one too many.
func (s *Sequences) Submit(ctx context.Context, item infer.Item) (infer.Result, Times, error) {
	p := &pending{item: item, arrived: time.Now(), done: ctx.Done(), answered: make(chan outcome, 1), watch: s.rules().EndHeader}
	if err := s.runs.guard.Load().check(p); err != nil {
		return infer.Result{}, Times{}, err
	}
	if item.Alone {
		return s.alone(ctx, p)
	}
	if err := s.enter(p); err != nil {
		return infer.Result{}, Times{}, err
	}
	s.signal()
	select {
	case o := <-p.answered:
		return o.result, o.times, o.err
	case <-ctx.Done():
		waited := s.abandon(p)
		return infer.Result{}, Times{Queued: time.Since(p.arrived)}, s.late(p, context.Cause(ctx), waited)
	}
}

// bind gives a sequence to the worker with the fewest, which stays for it even when it is to end. It says no when there is none; s.mu is held.
func (s *Sequences) bind(q *sequence) bool {
	if q.bound {
		s.pool.Unpin(q.worker)
		q.bound = false
	}
	for {
		workers := s.pool.Workers()
		if len(workers) == 0 {
			return false
		}
		q.worker = s.leastUsed(workers)
		if s.pool.Pin(q.worker) { // else it was told to end in this moment
			q.bound = true
			return true
		}
	}
}

// close forgets a sequence; s.mu is held.
func (s *Sequences) close(q *sequence) {
	if q.bound {
		s.pool.Unpin(q.worker)
	}
	delete(s.open, q.id)
}

// leastUsed gives the worker with the fewest open sequences; s.mu is held.
func (s *Sequences) leastUsed(workers []int) int {
	load := map[int]int{}
	for _, q := range s.open {
		load[q.worker]++
	}
	best := workers[0]
	for _, w := range workers[1:] {
		if load[w] < load[best] {
			best = w
		}
	}
	return best
}

// abandon takes p out of its sequence, and says whether it was there; a batch that has it already and has not left yet goes without it.
func (s *Sequences) abandon(p *pending) (waited bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.open[p.item.Sequence]; q != nil && p.place != nil {
		s.remove(q, p)
		return true
	}
	return false
}

// remove takes p from the waiting ones; s.mu is held.
func (s *Sequences) remove(q *sequence, p *pending) {
	q.jobs.Remove(p.place)
	p.place = nil
	s.waiting--
	s.bytes -= p.item.Size()
	s.policy.Budget.add(-p.item.Size())
}

// rules gives the policy of this moment.
func (s *Sequences) rules() SequencePolicy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policy
}

func (s *Sequences) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run gives each worker the requests of its sequences until ctx ends, or Close was called and nothing waits any more; or until the queue is broken, as a bug
// would break it. It returns when the last request was answered. It must be called once.
func (s *Sequences) Run(ctx context.Context) {
	defer func() {
		s.running.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, q := range s.open {
			s.close(q)
		}
	}()
	timer := time.NewTimer(s.rules().Idle)
	defer timer.Stop()
	for panics := 0; ; {
		var next time.Duration
		var over bool
		err := fault.Contain("sequences were looked after", func() { next, over = s.look(ctx) })
		switch {
		case err != nil:
			s.runs.tell(err)
			if panics++; panics >= mostPanics {
				s.giveUp(errBroken(err))
				return
			}
			continue
		case over:
			return
		}
		panics = 0
		timer.Reset(next)
		select {
		case <-s.wake:
		case <-timer.C:
		case <-ctx.Done():
			s.Close(context.Cause(ctx))
			s.Fail(context.Cause(ctx))
			return
		}
	}
}

// look starts a goroutine for each worker that has something to do and none yet, and ends the sequences that are over. It says when to look again, and
// whether all is done.
func (s *Sequences) look(ctx context.Context) (next time.Duration, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next = s.policy.Idle
	now := time.Now()
	running := 0
	for _, q := range s.open {
		running += q.running
		if q.jobs.Len() > 0 {
			if !s.busy[q.worker] {
				s.busy[q.worker] = true
				s.running.Go(func() { s.work(ctx, q.worker) })
			}
			continue
		}
		if q.running > 0 {
			continue
		}
		left := q.used.Add(s.policy.Idle).Sub(now)
		if s.policy.Total > 0 {
			left = min(left, q.begun.Add(s.policy.Total).Sub(now))
		}
		if left <= 0 {
			s.close(q)
			continue
		}
		next = min(next, left)
	}
	return next, s.closed != nil && s.waiting == 0 && running == 0
}

// work runs batches on one worker for as long as its sequences have requests.
func (s *Sequences) work(ctx context.Context, worker int) {
	for panics := 0; s.round(ctx, worker, &panics); {
	}
}

// next runs a batch on one worker, and says no when there is none.
func (s *Sequences) next(ctx context.Context, worker int, h *hand) (goesOn bool) {
	acquired, err := s.pool.AcquireFrom(ctx, worker)
	if err != nil {
		s.idle(worker, err)
		return false
	}
	h.slot = s.pace.timed(acquired)
	taken := time.Now()
	s.gather(ctx, worker, taken, h)
	slot, batch := h.pass()
	if len(batch) == 0 {
		slot.Release()
		return !s.idle(worker, nil)
	}
	h.sent = true
	unsent, f := s.runs.run(ctx, slot, taken, slices.Clone(batch), s.keeperOf(worker))
	if err := fault.Contain("a batch of sequences came back", func() { s.done(ctx, batch, unsent) }); err != nil {
		s.runs.tell(err)
		for _, p := range unsent {
			p.refuse(err)
		}
	}
	s.runs.contain("a slot was given back", f.Release)
	return true
}

// idle ends a worker's goroutine, unless something came in this moment. With an error the worker is gone for good: its sequences go to the others, or
// are answered with the error when there are none.
func (s *Sequences) idle(worker int, err error) bool {
	orphans, over := s.leaveWorker(worker, err)
	answerAll(orphans, err)
	if over {
		s.signal()
	}
	return over
}

// leaveWorker does the work of idle, and gives those that have to be answered.
func (s *Sequences) leaveWorker(worker int, err error) (orphans []*pending, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.open {
		switch {
		case q.worker != worker:
		case err == nil && q.jobs.Len() > 0:
			return nil, false
		case err != nil && !s.bind(q):
			orphans = append(orphans, s.takeAll(q)...)
		}
	}
	delete(s.turns, worker)
	if err != nil {
		delete(s.batches, worker)
	}
	delete(s.busy, worker)
	return orphans, true
}

// takeAll takes all the waiting requests of a sequence; s.mu is held.
func (s *Sequences) takeAll(q *sequence) []*pending {
	var all []*pending
	for front := q.jobs.Front(); front != nil; front = q.jobs.Front() {
		if p, ok := front.Value.(*pending); ok {
			s.remove(q, p)
			all = append(all, p)
		}
	}
	return all
}

// gather takes a batch for a worker into a hand that has its slot, one request of each of its sequences, until the policy lets it go. taken is when the
// slot was had.
func (s *Sequences) gather(ctx context.Context, worker int, taken time.Time, h *hand) {
	for {
		var arrival <-chan struct{}
		var left time.Duration
		h.batch, left, arrival = s.take(worker, h.batch, taken)
		if left <= 0 || !s.wait(ctx, arrival, left) {
			h.batch = s.wanted(h.batch)
			s.leave(worker, h.batch, taken)
			return
		}
	}
}

// leave notes that a batch goes to its worker.
func (s *Sequences) leave(worker int, batch []*pending, taken time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ready, _ := s.ready(worker); len(batch) > 0 {
		s.batcherOf(worker).sent(batch, ready, slots{taken: taken})
	}
}

// wait waits for an arrival, and says whether there was one in time.
func (s *Sequences) wait(ctx context.Context, arrival <-chan struct{}, left time.Duration) bool {
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-arrival:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

func oldest(batch []*pending) time.Time {
	first := batch[0].arrived
	for _, p := range batch[1:] {
		if p.arrived.Before(first) {
			first = p.arrived
		}
	}
	return first
}

// take adds the oldest waiting request of each sequence of a worker that is not in the batch yet, as long as there is room. It also gives a channel
// that is closed at the next arrival. After a panic the caller has none of those that it has added: they are answered.
func (s *Sequences) take(worker int, batch []*pending, taken time.Time) (_ []*pending, left time.Duration, _ <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, whole := len(batch), false
	defer func() {
		if !whole {
			s.lose(batch[before:])
		}
	}()
	if s.turns[worker] == nil {
		fresh := newTurns(s.policy.levels())
		s.turns[worker] = &fresh
	}
	d := s.decide(worker, batch, taken)
	for len(batch) < d.Size {
		best := s.fronts(worker)
		waits := func(class int) bool { return best[class] != nil }
		class := s.turns[worker].next(waits)
		if class < 0 {
			break
		}
		p := best[class]
		q := s.open[p.item.Sequence]
		s.remove(q, p)
		if p.left() {
			continue
		}
		q.running++
		batch = append(batch, p)
		best = s.fronts(worker)
		s.turns[worker].took(class, waits)
	}
	whole = true
	if len(batch) == 0 || len(batch) >= d.Size || slices.ContainsFunc(batch, func(p *pending) bool { return p.let }) {
		return batch, 0, s.arrival
	}
	return batch, d.Wait, s.arrival
}

// lose answers requests that a panic has left with nobody; s.mu is held.
func (s *Sequences) lose(batch []*pending) {
	for _, p := range batch {
		if q := s.open[p.item.Sequence]; q != nil {
			q.running--
		}
	}
	answerAll(batch, errLost())
}

// fronts gives for each class the oldest of the requests that are next in a worker's sequences; s.mu is held.
func (s *Sequences) fronts(worker int) []*pending {
	best := make([]*pending, s.policy.levels())
	for _, q := range s.open {
		if q.worker != worker || q.running > 0 || q.jobs.Len() == 0 {
			continue
		}
		if p := first(&q.jobs); best[p.class] == nil || p.serial < best[p.class].serial {
			best[p.class] = p
		}
	}
	return best
}

// wanted drops those that left while the batch was gathered.
func (s *Sequences) wanted(batch []*pending) []*pending {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := batch[:0]
	for _, p := range batch {
		if p.left() {
			s.open[p.item.Sequence].running--
			continue
		}
		kept = append(kept, p)
	}
	return kept
}

// done notes that a batch was answered, and ends the sequences that its handler ended. What of it was not sent waits again, before all that came after
// it.
func (s *Sequences) done(ctx context.Context, batch, unsent []*pending) {
	answerAll(s.takeBack(ctx, batch, unsent), context.Cause(ctx))
	s.signal()
}

// takeBack does the work of done, and gives those that have to be answered.
func (s *Sequences) takeBack(ctx context.Context, batch, unsent []*pending) (late []*pending) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range batch {
		if q := s.open[p.item.Sequence]; q != nil {
			q.running--
			q.used = now
		}
	}
	for _, p := range unsent {
		switch q := s.open[p.item.Sequence]; {
		case p.left():
		case ctx.Err() != nil || q == nil: // what waits was answered already, or is answered just now
			late = append(late, p)
		default:
			p.let = true
			p.place = q.jobs.PushFront(p)
			s.waiting++
			s.bytes += p.item.Size()
			s.policy.Budget.add(p.item.Size())
		}
	}
	for _, p := range batch {
		for id := range strings.SplitSeq(p.noted, ";") {
			if q := s.open[id]; q != nil && q.jobs.Len() == 0 && q.running == 0 {
				s.close(q)
			}
		}
	}
	return late
}

// stay keeps those of a batch that goes on in steps that somebody waits for. Free places stay free: a batch has one request of a sequence.
func (s *Sequences) stay(batch []*pending, _ backend.Slot) []*pending {
	s.mu.Lock()
	defer s.mu.Unlock()
	return wanted(batch)
}

// Fail answers everything that waits with err; what a worker has is not touched.
func (s *Sequences) Fail(err error) {
	answerAll(s.clear(), err)
	s.signal()
}

// clear takes everything out that waits.
func (s *Sequences) clear() (all []*pending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.open {
		all = append(all, s.takeAll(q)...)
	}
	return all
}

// Close refuses what arrives from now on with reason. What waits is still run: Run returns after it.
func (s *Sequences) Close(reason error) {
	if reason == nil {
		reason = ErrClosed
	}
	s.mu.Lock()
	if s.closed == nil {
		s.closed = reason
	}
	s.mu.Unlock()
	s.signal()
}
