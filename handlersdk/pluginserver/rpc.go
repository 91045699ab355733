package pluginserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
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
	link := s.link(int(req.GetFramesFd())) // before the user's code, which may start programs
	resp, err := s.opts.Backend.Load(ctx, req)
	features := resp.GetFeatures()
	s.mu.Lock()
	s.concurrent = slices.Contains(features, backendv1.FeatureConcurrent) || slices.Contains(features, backendv1.FeatureAhead)
	s.streamed = link != nil
	s.mu.Unlock()
	switch {
	case link == nil:
	case err != nil || resp.GetFailure() != nil:
		_ = link.Close() // nothing was sent on it
	default:
		resp.Features = append(resp.Features, backendv1.FeatureSocket)
		go s.serveLink(link) //nolint:contextcheck,gosec // until the server ends it, or this process: long after this call
	}
	return resp, err
}

// link opens the socket that the server offers, if it does. One that cannot be used is none: there is the stream.
func (s *Server) link(fd int) *frame.Link {
	if fd <= 0 {
		return nil
	}
	file, err := takeSocket(fd)
	if err != nil {
		s.complain("batches come by the stream, and not by the socket", err)
		return nil
	}
	link, err := frame.NewLink(file, s.opts.MaxMessageBytes)
	if err != nil {
		s.complain("batches come by the stream, and not by the socket", err)
		return nil
	}
	return link
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
	s.mu.Unlock()
	switch {
	case !loaded:
		return errors.New("execute was called before load")
	case again:
		return errors.New("execute was called before: a process has one stream")
	}
	return s.execute(stream.Context(), serverStream{stream})
}

// serveLink does for a socket what Execute does for a stream.
func (s *Server) serveLink(link *frame.Link) {
	_ = s.execute(context.Background(), link) // it has complained
	_ = link.Close()                          // it is over
}

// execute runs what comes, until nothing more does. The process ends after it.
func (s *Server) execute(ctx context.Context, c carrier) error {
	s.mu.Lock()
	maxBody, concurrent := s.maxBody, s.concurrent
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	e := &execution{
		Server: s, carrier: c, maxBody: maxBody, concurrent: concurrent,
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

// carrier carries frames; one is sent at a time.
type carrier interface {
	Send(f frame.Buffers) error
	Receive() ([]byte, error) // io.EOF when the server sends no more
}

// serverStream is the Execute stream.
type serverStream struct{ grpc.ServerStream }

func (s serverStream) Send(f frame.Buffers) error { return s.SendMsg(f) }

func (s serverStream) Receive() (b []byte, err error) {
	err = s.RecvMsg(&b)
	return b, err
}

// batch is a batch on its way to Run.
type batch struct {
	ctx   context.Context //nolint:containedctx // of this batch, which crosses a channel
	head  frame.Head
	frame []byte
}

// execution is what comes by one stream or socket.
type execution struct {
	*Server
	carrier    carrier
	maxBody    int64
	concurrent bool       // each batch runs at once; the server bounds their number
	queue      chan batch // for the others; closed by Execute when nothing more is received

	sending sync.Mutex // one Send at a time. Guards closed
	closed  bool       // nothing may be sent any more

	cancelMu sync.Mutex                    // guards cancel
	cancel   map[uint64]context.CancelFunc // of the batches that have no last answer yet
}

// receive hands batches over until the server ends the stream.
func (e *execution) receive(ctx context.Context) error {
	for {
		b, err := e.carrier.Receive()
		if err != nil {
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
			if !e.take(ctx, batch{ctx: batchCtx, head: head, frame: b}) {
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

// take hands a batch over, and says whether it did before ctx ended.
func (e *execution) take(ctx context.Context, b batch) bool {
	if e.concurrent {
		go e.finish(b) // Serve waits for the batches
		return true
	}
	select {
	case e.queue <- b:
		return true
	case <-ctx.Done():
		return false
	}
}

// work runs batches until the queue is closed.
func (e *execution) work() {
	for b := range e.queue {
		e.finish(b)
	}
}

// finish runs a batch, unless the stream or the batch was given up while it waited: nobody would get the answer.
func (e *execution) finish(b batch) {
	if b.ctx.Err() == nil {
		e.run(b)
	}
	e.done(b.head.BatchID)
	e.end()
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
	return e.carrier.Send(f)
}

// close keeps answers that come late away from a stream that is over. It waits for one that is being sent.
func (e *execution) close() {
	e.sending.Lock()
	defer e.sending.Unlock()
	e.closed = true
}
