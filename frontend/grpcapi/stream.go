package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/internal/fault"
	pb "github.com/flambeau-serve/flambeau/proto/openinference/v2"
)

const (
	streamRequests = 64       // of one stream that run at once; the others wait unread
	unreadLimit    = 16 << 20 // bytes of answers that may wait for a client that does not read
)

// ModelStreamInfer implements the service. Requests run side by side, but for those of one sequence, which keep their order. A failure of one is a
// message of its own, and the stream goes on.
func (s *service) ModelStreamInfer(stream grpc.BidiStreamingServer[pb.ModelInferRequest, pb.ModelStreamInferResponse]) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	out := newOutbox(func(m *pb.ModelStreamInferResponse) error { return stream.Send(m) }, cancel)
	requests, ended := make(chan *pb.ModelInferRequest), make(chan error, 1)
	go func() { // it ends with the stream, whose Recv then fails
		for {
			var req *pb.ModelInferRequest
			var err error
			if bug := fault.Contain("a request of a stream was read", func() { req, err = stream.Recv() }); bug != nil {
				err = bug // it costs the stream
			}
			if err != nil {
				ended <- err
				return
			}
			select {
			case requests <- req:
			case <-ctx.Done():
				return
			}
		}
	}()
	err := s.answerStream(ctx, requests, ended, out)
	if failed := out.end(); failed != nil {
		return failed
	}
	return err
}

// answerStream answers requests until no more come, and waits for those that run.
func (s *service) answerStream(ctx context.Context, requests <-chan *pb.ModelInferRequest, ended <-chan error, out *outbox) error {
	var running sync.WaitGroup
	defer running.Wait()
	slots := make(chan struct{}, streamRequests)
	latest := map[string]chan struct{}{} // of each sequence: closed when its latest request is answered
	for {
		select {
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.server.closing:
			return fault.New(fault.Draining, "the server is shutting down", nil)
		case req := <-requests:
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			before, done := order(latest, sequenceOf(req))
			running.Go(func() {
				defer func() { close(done); <-slots }()
				select {
				case <-before:
				case <-ctx.Done():
				}
				if bug := fault.Contain("a request of a stream was answered", func() { s.answerOne(ctx, req, out) }); bug != nil {
					s.answerFailed(ctx, req, out, bug)
				}
			})
		}
	}
}

// order notes a request of a sequence: it may begin when before is closed, and closes done when it is answered.
func order(latest map[string]chan struct{}, sequence string) (before <-chan struct{}, done chan struct{}) {
	done = make(chan struct{})
	previous := latest[sequence]
	if previous == nil {
		previous = make(chan struct{})
		close(previous)
	}
	if sequence != "" {
		latest[sequence] = done
		if len(latest) > streamRequests {
			forget(latest)
		}
	}
	return previous, done
}

// forget leaves out sequences none of whose requests run.
func forget(latest map[string]chan struct{}) {
	for sequence, done := range latest {
		select {
		case <-done:
			delete(latest, sequence)
		default:
		}
	}
}

// sequenceOf names the sequence of a request, "" for none.
func sequenceOf(req *pb.ModelInferRequest) string {
	id := parametersOf(req.GetParameters())[oip.ParamSequence]
	if id == nil || id == int64(0) || id == "" {
		return ""
	}
	return fmt.Sprintf("%s %v", req.GetModelName(), id)
}

// answerOne answers one request: with pieces as they come, and what ends them.
func (s *service) answerOne(ctx context.Context, req *pb.ModelInferRequest, out *outbox) {
	began, of := time.Now(), recordOf(ctx)
	one := &record{method: of.method, peer: of.peer}
	ended := false
	defer func() {
		if !ended && one.err == nil { // a bug ends this
			one.err = fault.New(fault.Internal, "Internal error.", nil)
		}
		s.server.answered(one, began, time.Since(began), one.err)
	}()
	fail := func(err error) {
		one.err = err
		s.answerFailed(ctx, req, out, err)
	}
	give, err := s.server.take(int64(proto.Size(req)))
	if err != nil {
		fail(err)
		return
	}
	defer give()
	call, err := newCall(ctx, req)
	if err != nil {
		fail(err)
		return
	}
	one.id = call.ID
	typed := isTyped(req)
	send := func(r *oip.Response, last bool) error {
		m, err := responseOf(final(r, last), typed)
		if err == nil {
			out.put(&pb.ModelStreamInferResponse{InferResponse: m})
		}
		return err
	}
	var failure error // the emitter's, which has ended when Infer returns
	call.Emit = func(r *oip.Response, err error) {
		if err == nil {
			err = send(r, false)
		}
		if err != nil && failure == nil {
			failure = err
		}
	}
	answer, err := s.protocol.Infer(ctx, refOf(req), call, false)
	if err == nil {
		err = failure
	}
	ended = true
	wantsEnd, _ := call.Request.Params.Bool(oip.ParamEmptyFinal)
	switch {
	case err != nil:
		fail(err)
	case answer.Response != nil:
		if err := send(answer.Response, true); err != nil {
			fail(err)
		}
	case wantsEnd:
		if err := send(&oip.Response{Model: req.GetModelName(), Version: req.GetModelVersion(), ID: req.GetId()}, true); err != nil {
			fail(err)
		}
	}
}

// answerFailed tells the client and the log why a request of a stream has failed.
func (s *service) answerFailed(ctx context.Context, req *pb.ModelInferRequest, out *outbox, err error) {
	s.server.log(ctx, pb.GRPCInferenceService_ModelStreamInfer_FullMethodName, err)
	out.put(&pb.ModelStreamInferResponse{ErrorMessage: messageOf(err), InferResponse: &pb.ModelInferResponse{Id: req.GetId()}})
}

// outbox sends messages in order from a goroutine of its own, so that who has one never waits for the client.
type outbox struct {
	send   func(*pb.ModelStreamInferResponse) error
	cancel context.CancelCauseFunc
	wake   chan struct{}
	done   chan struct{}

	mu     sync.Mutex // guards what follows
	queue  []*pb.ModelStreamInferResponse
	bytes  int
	closed bool
	failed error
}

func newOutbox(send func(*pb.ModelStreamInferResponse) error, cancel context.CancelCauseFunc) *outbox {
	o := &outbox{send: send, cancel: cancel, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go o.run()
	return o
}

// put takes a message. A client that does not read loses the stream.
func (o *outbox) put(m *pb.ModelStreamInferResponse) {
	size := proto.Size(m)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.failed != nil {
		return
	}
	if o.bytes > 0 && o.bytes+size > unreadLimit { // one message may be larger than the limit
		o.failed = fault.New(fault.Cancelled, "the client does not read what is streamed to it", nil)
		o.queue = nil
		o.cancel(o.failed)
		return
	}
	o.queue = append(o.queue, m)
	o.bytes += size
	o.poke()
}

func (o *outbox) poke() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *outbox) run() {
	defer close(o.done)
	for range o.wake {
		for {
			m, closed := o.next()
			if m == nil {
				if closed {
					return
				}
				break
			}
			var err error
			if bug := fault.Contain("a message of a stream was sent", func() { err = o.send(m) }); bug != nil {
				err = bug // it costs the stream
			}
			if err != nil {
				o.mu.Lock()
				o.failed, o.queue = err, nil
				o.mu.Unlock()
				o.cancel(err)
			}
		}
	}
}

// next gives the next message, nil when there is none, and then whether more can come.
func (o *outbox) next() (m *pb.ModelStreamInferResponse, closed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == 0 {
		return nil, o.closed
	}
	m = o.queue[0]
	o.queue = o.queue[1:]
	o.bytes -= proto.Size(m)
	return m, false
}

// end sends what is left, and gives what kept it from being sent.
func (o *outbox) end() error {
	o.mu.Lock()
	o.closed = true
	o.poke()
	failed := o.failed
	o.mu.Unlock()
	if failed != nil { // what is being sent now may wait for a client that does not read, until the stream has ended
		return failed
	}
	<-o.done
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failed
}
