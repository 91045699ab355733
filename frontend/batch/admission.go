package batch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// Settings that would let more in, and where they are.
const (
	settingQueue    = "jobQueueSize in model-config.yaml, or job_queue_size in config.properties"
	settingBytes    = "job_queue_max_bytes in config.properties"
	settingServer   = "queue_max_bytes in config.properties"
	settingTickets  = "useJobTicket in model-config.yaml"
	settingShare    = "fairness.maxShare in model-config.yaml, or fairness_max_share in config.properties"
	settingOpen     = "maxNumSequence in model-config.yaml"
	settingSequence = "maxSequenceJobQueueSize in model-config.yaml"
)

// enter lets a request wait, or refuses it. Where clients share the queue, one that has less than its share gets the place of the newest request of one
// that has more.
func (q *Queue) enter(p *pending) error {
	victim, err := q.admit(p)
	if victim != nil {
		answerAll([]*pending{victim}, q.displaced(victim))
	}
	return err
}

// admit does the work of enter, and gives the request that had to go.
func (q *Queue) admit(p *pending) (victim *pending, err error) {
	free := q.pool.Free()
	size := p.item.Size()
	q.mu.Lock()
	defer q.mu.Unlock()
	if victim, err = q.room(p.item.Client, size, free); err != nil {
		return nil, err
	}
	if !q.policy.Budget.take(size) {
		return nil, q.refusal(q.policy.Budget.refused(size, free))
	}
	if victim != nil {
		q.drop(victim)
		q.batcher.lost(1)
	}
	q.serial++
	p.serial, p.class, p.counted = q.serial, q.policy.class(p.item.Priority), true
	q.waiting.add(p, false)
	q.bytes += size
	q.batcher.arrived()
	return victim, nil
}

// Refuses says why a request of that client (an item's Client) with so many payload bytes would be refused if it came now, nil when it would wait. Nothing is
// reserved for one that would.
func (q *Queue) Refuses(client string, size int64) error {
	free := q.pool.Free()
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, err := q.room(client, size, free); err != nil {
		return err
	}
	if !q.policy.Budget.fits(size) {
		return q.refusal(q.policy.Budget.refused(size, free))
	}
	return nil
}

// room says whether a request may wait, as far as this queue alone decides, and which one has to go for it; q.mu is held.
func (q *Queue) room(client string, size int64, free int) (victim *pending, err error) {
	if q.closed != nil {
		return nil, q.closed
	}
	n, mine := q.waiting.len(), q.waiting.held[client]
	limit := q.policy.MaxItems + free*q.policy.MaxBatch // see waits
	switch full := n >= limit; {
	case q.policy.IdleOnly && n >= free*q.policy.MaxBatch:
		return nil, q.refusal(refused{
			kind: fault.Overloaded, free: free, setting: settingTickets, hint: "send again when a worker is idle, or let requests wait",
			message: "no worker is idle, and the model takes requests for idle workers only (useJobTicket)",
		})
	case !q.policy.IdleOnly && q.shared(client) && mine >= q.share() && mine < n:
		return nil, q.overShare(n, mine, free)
	case !q.policy.IdleOnly && full:
		if victim = q.greedy(client); victim == nil {
			return nil, q.refusal(refused{
				kind: fault.Overloaded, free: free, ahead: n - limit + 1, setting: settingQueue,
				hint: hintQueue, message: fmt.Sprintf("the queue is full: %d of %d requests wait", q.waits(free), q.policy.MaxItems),
			})
		}
		n--
	}
	bytes := q.bytes
	if victim != nil {
		bytes -= victim.item.Size()
	}
	if q.policy.MaxBytes > 0 && n > 0 && bytes+size > q.policy.MaxBytes {
		return nil, q.refusal(refused{
			kind: fault.Overloaded, free: free, ahead: 1, setting: settingBytes, hint: "send less, or smaller requests, or add workers",
			message: fmt.Sprintf("the queue is full: %d of %d bytes wait", q.bytes, q.policy.MaxBytes),
			more:    []fault.Number{fault.Count("bytes_limit", q.policy.MaxBytes), fault.Count("bytes_request", size)},
		})
	}
	return victim, nil
}

// waits is how many requests wait: what free workers are about to take does not. q.mu is held.
func (q *Queue) waits(free int) int { return max(q.waiting.len()-free*q.policy.MaxBatch, 0) }

const hintQueue = "raise jobQueueSize or job_queue_size, add workers, or send less"

// drop takes a request out that waits; q.mu is held.
func (q *Queue) drop(p *pending) {
	q.waiting.remove(p)
	q.bytes -= p.item.Size()
}

// shared says whether a client shares the queue with others; q.mu is held.
func (q *Queue) shared(client string) bool { return q.policy.Share > 0 && client != "" }

// share is how many requests of one client may wait while others want the places; q.mu is held.
func (q *Queue) share() int { return max(int(q.policy.Share*float64(q.policy.MaxItems)), 1) }

// greedy gives the newest request of the client that has most, if that is more than its share and this client has less than its own; q.mu is held.
func (q *Queue) greedy(client string) *pending {
	if !q.shared(client) || q.waiting.held[client] >= q.share() {
		return nil
	}
	most, whose := q.share(), ""
	for other, n := range q.waiting.held {
		if other != "" && (n > most || n == most && whose != "" && other < whose) {
			most, whose = n, other
		}
	}
	if whose == "" {
		return nil
	}
	return q.waiting.newest(whose)
}

// overShare refuses a client that has its share while others wait; q.mu is held.
func (q *Queue) overShare(n, mine, free int) error {
	return q.refusal(refused{
		kind: fault.ClientShare, free: free, ahead: len(q.waiting.held), setting: settingShare,
		hint:    "send less at the same time, or let clients have more of the queue while others wait",
		message: fmt.Sprintf("this client has %d of the %d requests that wait, and may have %d while others wait, too", mine, n, q.share()),
		more:    []fault.Number{fault.Count("client_waiting", mine), fault.Count("client_limit", q.share())},
	})
}

// displaced is the answer to a request that had to go for one of a client that had less.
func (q *Queue) displaced(p *pending) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.refusal(refused{
		kind: fault.ClientShare, free: q.pool.Free(), ahead: len(q.waiting.held), setting: settingShare,
		hint:    "send less at the same time, or let clients have more of the queue while others wait",
		message: fmt.Sprintf("the queue is full, this client had more than its share of it, which is %d, and another one wants a place", q.share()),
		more: []fault.Number{
			fault.Count("client_waiting", q.waiting.held[p.item.Client]), fault.Count("client_limit", q.share()), fault.Millis("waited_ms", time.Since(p.arrived)),
		},
	})
}

// refused is what a refusal says.
type refused struct {
	kind                   fault.Kind
	message, hint, setting string
	free                   int            // slots that could be had at once
	ahead                  int            // requests that have to leave the queue before there is room; below 1 counts as 1
	more                   []fault.Number // what only this reason has
}

// refused says that the queues together hold what they may.
func (b *Budget) refused(size int64, free int) refused {
	used, limit := b.Used()
	return refused{
		kind: fault.ServerBytes, free: free, setting: settingServer, hint: "send again later or to another server, or send smaller requests",
		message: fmt.Sprintf("the queues of all models hold %d of %d bytes", used, limit),
		more:    []fault.Number{fault.Count("server_bytes", used), fault.Count("server_bytes_limit", limit), fault.Count("bytes_request", size)},
	}
}

// refusal adds what the queue knows to a refusal; q.mu is held.
func (q *Queue) refusal(r refused) *fault.Error {
	now := time.Now()
	numbers := []fault.Number{
		fault.Count("waiting", q.waits(r.free)), fault.Count("limit", q.policy.MaxItems), fault.Count("bytes", q.bytes),
		fault.Millis("oldest_wait_ms", since(now, q.waiting.oldest())),
	}
	return r.fault(numbers, q.pace.ahead(now, batches(r.ahead, q.policy.MaxBatch), r.free), q.policy.MaxBatch)
}

// fault makes the error of a refusal.
func (r *refused) fault(numbers []fault.Number, f forecast, batchSize int) *fault.Error {
	e := fault.New(r.kind, r.message, nil)
	e.Hint, e.Setting = r.hint, r.setting
	e.Numbers = append(append(numbers, r.more...), fault.Count("batch_size", batchSize), fault.Count("batches_running", f.busy))
	if f.mean > 0 {
		e.Numbers = append(e.Numbers, fault.Millis("mean_service_ms", f.mean))
	}
	if f.known && r.kind != fault.QueueTimeout {
		e.RetryAfter = max(f.after, time.Millisecond)
	}
	return e
}

// Soonest is how long it takes until a batch that runs has ended; it says no when none runs and no worker is free.
func (q *Queue) Soonest() (time.Duration, bool) {
	f := q.pace.ahead(time.Now(), 1, q.pool.Free())
	return f.after, f.known
}

// Soonest is that of Queue.
func (s *Sequences) Soonest() (time.Duration, bool) {
	f := s.pace.ahead(time.Now(), 1, s.pool.Free())
	return f.after, f.known
}

// isLate says whether a request's time is over.
func isLate(cause error) bool {
	return errors.Is(cause, context.DeadlineExceeded) || fault.Is(cause, fault.ClientTimeout)
}

// lateIn makes the error of a request whose time was over before a worker took it.
func lateIn(p *pending, cause error) refused {
	r := refused{
		kind: fault.QueueTimeout, message: "the request's time was over before a worker took it", hint: "give requests more time, add workers, or send less",
		more: []fault.Number{fault.Millis("waited_ms", time.Since(p.arrived))},
	}
	if f, ok := errors.AsType[*fault.Error](cause); ok {
		r.message, r.setting = f.Message+", which it spent in the queue", f.Setting
		r.more = append(r.more, f.Numbers...)
	}
	return r
}

// because adds a cause that is no fault: the words of one are the error's own.
func because(e *fault.Error, cause error) error {
	if _, said := errors.AsType[*fault.Error](cause); !said {
		e.Cause = cause
	}
	return e
}

// late explains why a request that nobody waits for any more has no answer; waited says whether it was still in the queue.
func (q *Queue) late(p *pending, cause error, waited bool) error {
	if !waited || !isLate(cause) {
		return cause
	}
	r := lateIn(p, cause)
	q.mu.Lock()
	defer q.mu.Unlock()
	return because(q.refusal(r), cause)
}

// enter lets a request wait in its sequence, or refuses it.
func (s *Sequences) enter(p *pending) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed != nil {
		return s.closed
	}
	q, fresh := s.open[p.item.Sequence], false
	if q == nil {
		if len(s.open) >= s.policy.MaxSequences {
			return s.refusal(refused{
				kind: fault.Overloaded, setting: settingOpen, hint: "end sequences that are over, or raise maxNumSequence",
				message: fmt.Sprintf("%d of %d sequences are open (maxNumSequence)", len(s.open), s.policy.MaxSequences),
			})
		}
		q, fresh = &sequence{id: p.item.Sequence, begun: p.arrived}, true
	}
	if n := q.jobs.Len(); n >= s.policy.MaxItems {
		return s.refusal(refused{
			kind: fault.Overloaded, setting: settingSequence, hint: "send a sequence's requests one after another, or raise maxSequenceJobQueueSize",
			message: fmt.Sprintf("%d of %d requests of the sequence wait (maxSequenceJobQueueSize)", n, s.policy.MaxItems),
			more:    []fault.Number{fault.Count("sequence_waiting", n), fault.Count("sequence_limit", s.policy.MaxItems)},
		})
	}
	size := p.item.Size()
	if err := s.takeBytes(size); err != nil {
		return err
	}
	if fresh {
		if !s.bind(q) {
			s.policy.Budget.add(-size)
			return fault.New(fault.NoWorker, "the model has no worker", nil)
		}
		s.open[q.id] = q
	}
	s.serial++
	p.serial, p.class = s.serial, s.policy.class(p.item.Priority)
	p.place = q.jobs.PushBack(p)
	q.used = p.arrived
	s.waiting++
	s.bytes += size
	s.batcherOf(q.worker).arrived()
	close(s.arrival)
	s.arrival = make(chan struct{})
	return nil
}

// takeBytes reserves room for a request's payload in what all queues may hold, and looks whether this one has any; s.mu is held.
func (s *Sequences) takeBytes(size int64) error {
	if s.policy.MaxBytes > 0 && s.waiting+s.lone > 0 && s.bytes+size > s.policy.MaxBytes {
		return s.refusal(refused{
			kind: fault.Overloaded, setting: settingBytes, hint: "send less, or smaller requests, or add workers",
			message: fmt.Sprintf("the queue is full: %d of %d bytes wait", s.bytes, s.policy.MaxBytes),
			more:    []fault.Number{fault.Count("bytes_limit", s.policy.MaxBytes), fault.Count("bytes_request", size)},
		})
	}
	if !s.policy.Budget.take(size) {
		return s.refusal(s.policy.Budget.refused(size, 0))
	}
	return nil
}

// enterAlone lets a request that belongs to no sequence wait for a worker, or refuses it. What it lets in is counted in s.running.
func (s *Sequences) enterAlone(p *pending) error {
	size := p.item.Size()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed != nil {
		return s.closed
	}
	if s.lone >= s.policy.MaxItems {
		return s.refusal(refused{
			kind: fault.Overloaded, setting: settingSequence, hint: "send fewer requests that belong to no sequence at the same time, or raise maxSequenceJobQueueSize",
			message: fmt.Sprintf("%d of %d requests that belong to no sequence wait (maxSequenceJobQueueSize)", s.lone, s.policy.MaxItems),
		})
	}
	if err := s.takeBytes(size); err != nil {
		return err
	}
	s.lone++
	s.bytes += size
	s.running.Add(1)
	return nil
}

// refusal adds what the queue knows to a refusal; s.mu is held.
func (s *Sequences) refusal(r refused) *fault.Error {
	now := time.Now()
	var oldest time.Time
	for _, q := range s.open {
		if q.jobs.Len() == 0 {
			continue
		}
		if p := first(&q.jobs); oldest.IsZero() || p.arrived.Before(oldest) {
			oldest = p.arrived
		}
	}
	numbers := []fault.Number{
		fault.Count("waiting", s.waiting+s.lone), fault.Count("limit", s.policy.MaxItems*s.policy.MaxSequences), fault.Count("bytes", s.bytes),
		fault.Millis("oldest_wait_ms", since(now, oldest)), fault.Count("sequences", len(s.open)), fault.Count("sequences_limit", s.policy.MaxSequences),
	}
	return r.fault(numbers, s.pace.ahead(now, 1, r.free), s.policy.MaxBatch)
}

// late is that of Queue.
func (s *Sequences) late(p *pending, cause error, waited bool) error {
	if !waited || !isLate(cause) {
		return cause
	}
	r := lateIn(p, cause)
	s.mu.Lock()
	defer s.mu.Unlock()
	return because(s.refusal(r), cause)
}
