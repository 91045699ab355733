package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
)

// shutdownMethod is go-plugin's own end of a plugin. Client.Kill calls it too, but then waits for two seconds, whatever its
// caller has time for.
const shutdownMethod = "/plugin.GRPCController/Shutdown"

// instance is one backend process that has done its handshake. It implements backend.Instance.
type instance struct {
	id       string
	launcher *Launcher
	process  *process
	client   *plugin.Client
	conn     *grpc.ClientConn
	rpc      backendv1.BackendClient

	// life is the context of the stream, which outlives the call that opens it; attend ends it.
	life    context.Context //nolint:containedctx // see above
	endLife context.CancelFunc
	workers sync.WaitGroup // the stream's goroutines, and watch

	done   chan struct{} // closed by attend
	ending *ending       // set before done is closed

	mu       sync.Mutex // guards the fields below
	asked    bool       // Stop was called
	loading  bool       // Load was called
	inLoad   bool       // and has not come back
	exchange *exchange  // nil before Load has succeeded
}

var _ backend.Instance = (*instance)(nil)

func newInstance(id string, l *Launcher, p *process, client *plugin.Client, conn *grpc.ClientConn) *instance {
	i := &instance{
		id: id, launcher: l, process: p, client: client, conn: conn,
		rpc: backendv1.NewBackendClient(conn), done: make(chan struct{}),
	}
	i.life, i.endLife = context.WithCancel(context.Background())
	return i
}

// attend waits for the process's end, cleans up, and tells everybody.
func (i *instance) attend() {
	<-i.process.done
	i.mu.Lock()
	e := &ending{exit: i.process.exit, asked: i.asked, cause: i.process.killCause(), last: i.process.last.get(), body: i.process.body}
	x, loading := i.exchange, i.inLoad
	i.mu.Unlock()
	if !e.asked {
		_ = i.launcher.contain("a crash was described", func() { e.crash = i.report(e, x, loading) }) // it costs the description
	}
	i.ending = e
	i.endLife()
	_ = i.launcher.contain("a connection was closed", i.client.Kill) // it waits for go-plugin's goroutines; the process is gone already
	i.workers.Wait()
	if err := os.RemoveAll(i.process.socketDir); err != nil {
		i.launcher.opts.Logger.Warn("a socket folder could not be removed", "error", err.Error())
	}
	close(i.done)
	i.launcher.forget(i)
}

// report is the crash of an end that nobody had asked for. x is nil before the model was loaded.
func (i *instance) report(e *ending, x *exchange, loading bool) *backend.Crash {
	c := crashOf(e, i.process.wordsOf())
	c.Instance, c.PID, c.Loading = i.id, i.process.pid(), loading
	c.Ran = e.body.at.Sub(i.process.began).Seconds()
	c.Requests = []backend.CrashRequest{}
	if x != nil {
		c.Requests, c.Served = x.requestsOf(e.body.at)
	}
	return c
}

// ID implements backend.Instance.
func (i *instance) ID() string { return i.id }

// PID implements backend.Instance.
func (i *instance) PID() int { return i.process.pid() }

// Done implements backend.Instance.
func (i *instance) Done() <-chan struct{} { return i.done }

// Err implements backend.Instance.
func (i *instance) Err() error {
	if e := i.gone(); e != nil {
		return e.fault()
	}
	return nil
}

// gone is the end, or nil before it.
func (i *instance) gone() *ending {
	select {
	case <-i.done:
		return i.ending
	default:
		return nil
	}
}

// Load implements backend.Instance.
func (i *instance) Load(ctx context.Context, m backend.LoadSpec) (backend.Info, error) {
	i.mu.Lock()
	again := i.loading
	i.loading, i.inLoad = true, !again
	i.mu.Unlock()
	if again {
		return backend.Info{}, fault.New(fault.Internal, "a worker process loads one model, once", nil)
	}
	defer i.loaded()
	limit := i.launcher.opts.Limits.Load
	timeout := fault.Newf(fault.LoadFailed, "the model did not load within %v, the load limit", limit)
	timeout.Hint = "Raise the model's startup timeout, or see in the log what takes so long."
	ctx, cancel := context.WithTimeoutCause(ctx, limit, timeout)
	defer cancel()
	resp, err := i.rpc.Load(ctx, loadRequest(m))
	if err != nil {
		return backend.Info{}, i.callError(ctx, err)
	}
	if f := resp.GetFailure(); f != nil {
		return backend.Info{}, loadFault(f)
	}
	info := backend.Info{Features: make(map[string]bool)}
	for _, name := range resp.GetFeatures() {
		info.Features[name] = true
	}
	info.Concurrent, info.Ahead = info.Features[backendv1.FeatureConcurrent], info.Features[backendv1.FeatureAhead]
	socket := info.Features[backendv1.FeatureSocket]
	delete(info.Features, backendv1.FeatureSocket) // it is between the two ends
	if err := i.openExchange(m.MaxResponseBytes, socket); err != nil {
		return backend.Info{}, i.callError(ctx, err)
	}
	if info.Description, err = description(resp.GetDescriptionJson()); err != nil {
		i.launcher.opts.Logger.WarnContext(ctx, "what a worker says about its model cannot be read", "worker_pid", i.PID(), "error", err.Error())
	}
	return info, nil
}

// loaded notes that Load has come back; before that it has waited for the end of a process that has died.
func (i *instance) loaded() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.inLoad = false
}

// carrier opens the way for batches: the socket that the process was started with, or a stream.
func (i *instance) carrier(socket bool) (carrier, error) {
	if !socket {
		_ = i.process.frames.Close() // the process does not know it
		stream, err := i.rpc.Execute(i.life, grpc.ForceCodecV2(frame.Codec{}))
		return clientStream{stream}, err
	}
	link, err := frame.NewLink(i.process.frames, i.launcher.opts.MaxMessageBytes)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(i.life, func() { _ = link.Close() }) // it has nothing to lose at its end
	return link, nil
}

func (i *instance) openExchange(maxResponse int64, socket bool) error {
	c, err := i.carrier(socket)
	if err != nil {
		return err
	}
	x := newExchange(c, maxResponse, i.launcher.contain)
	i.workers.Go(func() {
		var why error
		if err := i.launcher.contain("batches were sent to a worker", func() { why = x.send(i.life) }); err != nil {
			why = err
		}
		if why != nil {
			i.broken(why)
		}
	})
	i.workers.Go(func() {
		var why error
		if err := i.launcher.contain("the answers of a worker were read", func() { why = x.receive() }); err != nil {
			why = err
		}
		i.broken(why)
	})
	i.mu.Lock()
	defer i.mu.Unlock()
	i.exchange = x
	return nil
}

// Predict implements backend.Instance.
func (i *instance) Predict(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
	i.mu.Lock()
	x := i.exchange
	i.mu.Unlock()
	switch {
	case x == nil:
		return nil, i.callError(ctx, fault.New(fault.Internal, "a batch was sent to a worker that has no model", nil))
	case len(items) == 0:
		return nil, nil
	}
	id, frames := x.next(frameItems(ctx, items))
	if n, limit := frames.Len(), i.launcher.opts.MaxMessageBytes; n > limit {
		return nil, fault.Newf(fault.TooLarge, "a batch of %d requests has %d bytes, over the limit of %d for a worker's message", len(items), n, limit)
	}
	answer := x.submit(id, items, frames)
	select {
	case a := <-answer:
		return a.results, a.err
	case <-i.done:
		sent := x.forget(id)
		select {
		case a := <-answer: // it answered, and ended then
			return a.results, a.err
		default:
		}
		return nil, undelivered(callError(ctx, nil, i.ending), sent)
	case <-ctx.Done():
		x.cancel(id)
		return nil, i.callError(ctx, ctx.Err())
	}
}

// callError gives a process that dies the time to be found dead before it says why a call has failed.
func (i *instance) callError(ctx context.Context, err error) error {
	awaitDeadline(ctx, err)
	if ctx.Err() != nil {
		return callError(ctx, err, i.gone())
	}
	if status.Code(err) == codes.Unavailable {
		i.broken(err)
		<-i.done
	}
	select {
	case <-i.process.done:
		<-i.done // the connection is closed before everybody is told
	default:
	}
	return callError(ctx, err, i.gone())
}

// awaitDeadline closes the gap between a deadline that the other side has seen already and its own end of ctx.
func awaitDeadline(ctx context.Context, err error) {
	if _, ok := ctx.Deadline(); ok && status.Code(err) == codes.DeadlineExceeded {
		<-ctx.Done()
	}
}

// broken is called when the connection or the stream is: nothing can be asked of the process any more. It ends by Stop, if
// that was called, or here.
func (i *instance) broken(err error) {
	i.mu.Lock()
	asked := i.asked
	i.mu.Unlock()
	if !asked {
		i.process.settle(i.life, err)
	}
}

// Stop implements backend.Instance. The stop limit bounds it in addition to ctx.
func (i *instance) Stop(ctx context.Context) error {
	limit := i.launcher.opts.Limits.Stop
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it did not end within %v, the stop limit", limit))
	defer cancel()
	if i.gone() != nil {
		return nil
	}
	i.mu.Lock()
	i.asked = true
	i.mu.Unlock()
	if err := i.askToEnd(ctx); err != nil && ctx.Err() == nil {
		i.process.settle(ctx, err) // it cannot be asked: it is dying, or is to be killed
	}
	var err error
	select {
	case <-i.process.done:
	case <-ctx.Done():
		err = fmt.Errorf("worker process %d was killed: %w", i.PID(), context.Cause(ctx))
		i.process.kill(err)
	}
	<-i.done
	return err
}

// Kill implements backend.Killer.
func (i *instance) Kill(cause error) {
	i.process.kill(cause)
	<-i.done
}

// askToEnd asks for a polite end; an error means that it could not be asked.
func (i *instance) askToEnd(ctx context.Context) error {
	if _, err := i.rpc.Unload(ctx, &backendv1.UnloadRequest{}); err != nil {
		if status.Code(err) == codes.Unavailable {
			return err
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it is to be killed, not to be asked
		}
		i.launcher.opts.Logger.WarnContext(ctx, "worker could not close its model", "worker_pid", i.PID(), "error", err.Error())
	}
	// The answer is lost more often than not: the plugin closes the connection that it would come on.
	err := i.conn.Invoke(ctx, shutdownMethod, &emptypb.Empty{}, &emptypb.Empty{})
	if err != nil && status.Code(err) == codes.Unimplemented {
		return errors.New("it has no way to be shut down")
	}
	return nil
}
