package host

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
)

// answer is what a Predict waits for.
type answer struct {
	results []infer.Result
	err     error
}

// waiting is a Predict that waits.
type waiting struct {
	items  []infer.Item
	sent   time.Time   // zero before it was
	answer chan answer // room for one
}

// outgoing is a frame that is to be sent.
type outgoing struct {
	id     uint64
	batch  bool // a batch, not its cancellation
	frames frame.Buffers
	rest   []byte // set: what is left of a frame whose beginning was sent
}

// carrier carries frames to a process and back: the Execute stream, or a frame.Link.
type carrier interface {
	Send(f frame.Buffers) error
	// TrySend sends a frame if this takes no wait. It says whether it did, and gives what is left for SendRest.
	TrySend(f frame.Buffers) (sent bool, rest []byte, err error)
	SendRest(rest []byte) error
	Receive() ([]byte, error)
}

// clientStream is the Execute stream.
type clientStream struct{ grpc.ClientStream }

func (s clientStream) Send(f frame.Buffers) error { return s.SendMsg(f) }

// TrySend sends nothing: how long SendMsg takes is not known.
func (clientStream) TrySend(frame.Buffers) (sent bool, rest []byte, err error) {
	return false, nil, nil
}

func (clientStream) SendRest([]byte) error { return nil }

func (s clientStream) Receive() (b []byte, err error) {
	err = s.RecvMsg(&b)
	return b, err
}

// exchange sends batches on the stream or socket and finds the Predict that an answer is for.
type exchange struct {
	carrier     carrier
	maxResponse int64
	wake        chan struct{} // room for one: queue may have something
	contain     func(doing string, f func()) error

	sending sync.Mutex // one frame at a time; taken before mu

	mu      sync.Mutex // guards the fields below
	lastID  uint64
	waiting map[uint64]waiting
	// abandoned are batches that the process has and that nobody waits for any more; nil before the first.
	abandoned map[uint64]abandoned
	queue     []outgoing // in their order; bounded by the number of Predict calls
	served    uint64     // batches that were answered
}

func newExchange(c carrier, maxResponse int64, contain func(doing string, f func()) error) *exchange {
	return &exchange{
		carrier: c, maxResponse: maxResponse, contain: contain,
		wake: make(chan struct{}, 1), waiting: make(map[uint64]waiting),
	}
}

// next encodes a batch under a new id.
func (x *exchange) next(items []frame.Item) (uint64, frame.Buffers) {
	x.mu.Lock()
	x.lastID++
	id := x.lastID
	x.mu.Unlock()
	return id, frame.EncodeBatch(id, items)
}

// submit sends a batch, or queues it where that would take a wait, and gives where its answer will come.
func (x *exchange) submit(id uint64, items []infer.Item, frames frame.Buffers) <-chan answer {
	w := waiting{items: items, answer: make(chan answer, 1)}
	if x.sending.TryLock() {
		sent := x.try(id, w, frames)
		x.sending.Unlock()
		if sent {
			return w.answer
		}
	}
	x.mu.Lock()
	x.waiting[id] = w
	x.queue = append(x.queue, outgoing{id: id, batch: true, frames: frames})
	x.mu.Unlock()
	x.signal()
	return w.answer
}

// try sends a batch at once, unless others wait to be sent, or it would have to wait; sending is held.
func (x *exchange) try(id uint64, w waiting, frames frame.Buffers) bool {
	x.mu.Lock()
	if len(x.queue) > 0 {
		x.mu.Unlock()
		return false
	}
	w.sent = time.Now()
	x.waiting[id] = w
	x.mu.Unlock()
	sent, rest, err := x.carrier.TrySend(frames)
	if err != nil {
		return false // send sees it, too; receive tells why
	}
	if len(rest) > 0 {
		x.mu.Lock()
		x.queue = slices.Insert(x.queue, 0, outgoing{rest: rest})
		x.mu.Unlock()
		x.signal()
	}
	return sent
}

// forget drops what comes for a batch, and says whether that was sent.
func (x *exchange) forget(id uint64) (sent bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	w, waits := x.waiting[id]
	delete(x.waiting, id)
	return !waits || !w.sent.IsZero()
}

// cancel takes a batch back if it was not sent yet, and else says that nobody waits for it.
func (x *exchange) cancel(id uint64) {
	x.mu.Lock()
	w, unanswered := x.waiting[id]
	delete(x.waiting, id)
	if unanswered && !w.sent.IsZero() {
		x.abandon(id, w)
	}
	at := slices.IndexFunc(x.queue, func(o outgoing) bool { return o.id == id })
	if at >= 0 {
		x.queue = slices.Delete(x.queue, at, at+1)
	} else if unanswered {
		x.queue = append(x.queue, outgoing{id: id, frames: frame.EncodeCancel(id)})
	}
	x.mu.Unlock()
	x.signal()
}

// mostAbandoned is how many batches are remembered that the process has and nobody waits for: it need not say that it is done with them.
const mostAbandoned = 16

// abandon remembers the shapes of a batch that nobody waits for any more: it may be what the process hangs in. x.mu is held.
func (x *exchange) abandon(id uint64, w waiting) {
	if x.abandoned == nil {
		x.abandoned = map[uint64]abandoned{}
	}
	x.abandoned[id] = abandoned{sent: w.sent, requests: shapesOf(id, w.items)}
	if len(x.abandoned) > mostAbandoned {
		delete(x.abandoned, slices.Min(slices.Collect(maps.Keys(x.abandoned))))
	}
}

func (x *exchange) signal() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// send sends what is queued until life ends, and gives why it could not go on before that.
func (x *exchange) send(life context.Context) error {
	for {
		select {
		case <-x.wake:
		case <-life.Done():
			return nil
		}
		for {
			more, err := x.sendNext()
			if err != nil {
				return err
			}
			if !more {
				break
			}
		}
	}
}

// sendNext sends what is the first in the queue, and says whether there was something.
func (x *exchange) sendNext() (bool, error) {
	x.sending.Lock()
	defer x.sending.Unlock()
	o, ok := x.pop()
	switch {
	case !ok:
		return false, nil
	case o.rest != nil:
		return true, x.carrier.SendRest(o.rest)
	}
	return true, x.carrier.Send(o.frames)
}

func (x *exchange) pop() (outgoing, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.queue) == 0 {
		return outgoing{}, false
	}
	o := x.queue[0]
	x.queue = slices.Delete(x.queue, 0, 1)
	if w, ok := x.waiting[o.id]; ok && o.batch {
		w.sent = time.Now()
		x.waiting[o.id] = w
	}
	return o, true
}

// receive hands answers to those who wait, until the stream ends, and tells why it did.
func (x *exchange) receive() error {
	for {
		b, err := x.carrier.Receive()
		if err != nil {
			return err
		}
		head, err := frame.DecodeHead(b)
		if err != nil {
			return err
		}
		if head.Kind != frame.KindResults && head.Kind != frame.KindPiece {
			continue // of a later version
		}
		w, ok := x.find(head)
		if !ok {
			continue // its Predict has given up
		}
		if err := x.hand(w, head, b); err != nil {
			return err
		}
	}
}

// hand gives a frame's results to the Predict that waits for them. An error means that the stream cannot be read on.
func (x *exchange) hand(w waiting, head frame.Head, b []byte) error {
	_, results, err := frame.DecodeResults(b)
	if err != nil {
		w.give(answer{err: fault.New(fault.Internal, "the worker's answer could not be read", err)})
		return err
	}
	if len(results) != len(w.items) {
		w.give(answer{err: fault.New(fault.Internal, fmt.Sprintf("the worker gave %d results for %d requests", len(results), len(w.items)), nil)})
		return nil
	}
	answers := inferResults(results, x.maxResponse)
	if head.Kind == frame.KindResults {
		w.give(answer{results: answers})
		runtime.Gosched() // who waits for it comes first: there is most likely nothing to receive yet
		return nil
	}
	err = x.contain("a piece of an answer was passed on", func() {
		for i := range answers {
			if emit := w.items[i].Emit; emit != nil && isPiece(&answers[i]) {
				emit(answers[i])
			}
		}
	})
	if err != nil { // it costs this batch its answer, and no other
		w.give(answer{err: err})
		x.cancel(head.BatchID)
	}
	return nil
}

// isPiece says whether an intermediate answer was given to this request: a piece frame has an empty result for each that got none.
func isPiece(r *infer.Result) bool { return len(r.Body) > 0 || len(r.Header) > 0 || r.Err != nil }

// give answers the Predict, unless it was answered already by a piece that could not be read.
func (w waiting) give(a answer) {
	select {
	case w.answer <- a:
	default:
	}
}

// find gives the Predict that a frame is for. The results are its last frame.
func (x *exchange) find(head frame.Head) (waiting, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	w, ok := x.waiting[head.BatchID]
	if head.Kind == frame.KindResults {
		delete(x.waiting, head.BatchID)
		delete(x.abandoned, head.BatchID)
		x.served++
	}
	return w, ok
}
