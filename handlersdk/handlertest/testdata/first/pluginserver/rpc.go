package pluginserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	backendv1 "github.com/flambeau-serve/flambeau/handlersdk/handlertest/testdata/first/backendv1"
	"github.com/flambeau-serve/flambeau/handlersdk/handlertest/testdata/first/frame"
)

// rpc is the gRPC service.
type rpc struct {
	backendv1.UnimplementedBackendServer
	*Server
}

// Load implements backendv1.BackendServer.
func (s *rpc) Load(ctx context.Context, req *backendv1.LoadRequest) (*backendv1.LoadResponse, error) {
	s.mu.Lock()
	again := s.loaded
	s.loaded = true
	s.maxBody = req.GetMaxResponseBytes()
	s.mu.Unlock()
	if again {
		return nil, errors.New("load was called before: a process loads one model, once")
	}
	// No code of a user has run yet, and go-plugin has put its own pipes here by now.
	os.Stdout, os.Stderr = s.stdout, s.stderr
	return s.opts.Backend.Load(ctx, req)
}

// Unload implements backendv1.BackendServer. It waits for what is running.
func (s *rpc) Unload(context.Context, *backendv1.UnloadRequest) (*backendv1.UnloadResponse, error) {
	s.mu.Lock()
	s.asked = true
	s.mu.Unlock()
	s.waitIdle()
	if err := s.unload(); err != nil {
		return nil, err
	}
	return &backendv1.UnloadResponse{}, nil
}

// Execute implements backendv1.BackendServer. The process ends after it.
func (s *rpc) Execute(stream grpc.BidiStreamingServer[backendv1.Frame, backendv1.Frame]) error {
	s.mu.Lock()
	loaded, again := s.loaded, s.streamed
	s.streamed = s.streamed || loaded
	maxBody := s.maxBody
	s.mu.Unlock()
	switch {
	case !loaded:
		return errors.New("execute was called before load")
	case again:
		return errors.New("execute was called before: a process has one stream")
	}
	ctx, cancel := context.WithCancel(stream.Context())
	e := &execution{
		Server: s.Server, stream: stream, maxBody: maxBody,
		queue:  make(chan batch, inbox),
		cancel: make(map[uint64]context.CancelFunc),
	}
	for range s.opts.Parallel {
		go e.work() // until the queue is closed; Serve waits for the batches
	}
	err := e.receive(ctx)
	close(e.queue)
	cancel()
	e.close()
	go s.grpc.Stop() // not from here: it may wait for this very call
	if err != nil {
		s.complain("the stream from the server ended", err)
	}
	return err
}

// batch is a batch on its way to Run.
type batch struct {
	ctx   context.Context //nolint:containedctx // of this batch, which crosses a channel
	head  frame.Head
	frame []byte
}

// execution is one Execute stream.
type execution struct {
	*Server
	stream  grpc.ServerStream
	maxBody int64
	queue   chan batch // closed by Execute when nothing more is received

	sending sync.Mutex // one SendMsg at a time; gRPC asks for that. Guards closed
	closed  bool       // nothing may be sent any more

	cancelMu sync.Mutex                    // guards cancel
	cancel   map[uint64]context.CancelFunc // of the batches that have no last answer yet
}

// receive hands batches over until the server ends the stream.
func (e *execution) receive(ctx context.Context) error {
	for {
		var b []byte
		if err := e.stream.RecvMsg(&b); err != nil {
			if errors.Is(err, io.EOF) || ctx.Err() != nil {
				return nil //nolint:nilerr // the server has ended the stream, this is no failure
			}
			return err
		}
		head, err := frame.DecodeHead(b)
		if err != nil {
			return err
		}
		switch head.Kind {
		case frame.KindBatch:
			batchCtx, cancel := context.WithCancel(ctx)
			e.cancelMu.Lock()
			e.cancel[head.BatchID] = cancel
			e.cancelMu.Unlock()
			e.begin()
			select {
			case e.queue <- batch{ctx: batchCtx, head: head, frame: b}:
			case <-ctx.Done():
				e.end()
				return nil
			}
		case frame.KindCancel:
			e.done(head.BatchID)
		case frame.KindResults, frame.KindPiece: // not ours to receive
		}
	}
}

// done ends a batch's context and forgets it.
func (e *execution) done(id uint64) {
	e.cancelMu.Lock()
	cancel := e.cancel[id]
	delete(e.cancel, id)
	e.cancelMu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// work runs batches until the queue is closed. What waited in it then is not run: nobody would get the answer.
func (e *execution) work() {
	for b := range e.queue {
		if b.ctx.Err() == nil {
			e.run(b)
		}
		e.done(b.head.BatchID)
		e.end()
	}
}

func (e *execution) run(b batch) {
	var answered atomic.Bool
	give := func(last bool, f frame.Buffers) error {
		if answered.Load() || last && !answered.CompareAndSwap(false, true) {
			return fmt.Errorf("batch %d has had its last answer", b.head.BatchID)
		}
		select {
		case <-b.ctx.Done():
			return nil // nobody waits for it any more
		default:
			return e.send(f)
		}
	}
	err := e.opts.Backend.Run(b.ctx, b.frame, give)
	if answered.Load() || b.ctx.Err() != nil {
		return
	}
	if err == nil {
		err = errors.New("no answer was given")
	}
	results := make([]frame.Result, b.head.Count)
	for i := range results {
		results[i].Failure = &frame.Failure{Reason: frame.ReasonInternal, Message: "Internal error of the worker", Detail: err.Error()}
	}
	if err := e.send(frame.EncodeResults(frame.KindResults, b.head.BatchID, results)); err != nil {
		e.complain("answers could not be sent", err)
	}
}

// send sends a frame; answers that cannot be received are failed one by one first.
func (e *execution) send(f frame.Buffers) error {
	f, err := fit(f, e.opts.MaxMessageBytes, e.maxBody)
	if err != nil {
		return err
	}
	e.sending.Lock()
	defer e.sending.Unlock()
	if e.closed {
		return errors.New("the server has ended the stream")
	}
	return e.stream.SendMsg(f)
}

// close keeps answers that come late away from a stream that is over. It waits for one that is being sent.
func (e *execution) close() {
	e.sending.Lock()
	defer e.sending.Unlock()
	e.closed = true
}
