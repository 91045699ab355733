package handlersdk

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	backendv1 "github.com/flambeau-serve/flambeau/handlersdk/handlertest/testdata/first/backendv1"
	"github.com/flambeau-serve/flambeau/handlersdk/handlertest/testdata/first/frame"
	"github.com/flambeau-serve/flambeau/handlersdk/handlertest/testdata/first/pluginserver"
)

// adapter is a Handler as the server sees it: values for frames, failures for panics.
type adapter struct {
	mu      sync.Mutex // one call of the handler at a time
	handler Handler
}

var _ pluginserver.Backend = (*adapter)(nil)

// Load implements pluginserver.Backend.
func (a *adapter) Load(ctx context.Context, req *backendv1.LoadRequest) (*backendv1.LoadResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	err := guard(func() error {
		if err := a.handler.Initialize(ctx, modelFrom(req)); err != nil {
			return err
		}
		if w, ok := a.handler.(WarmUpper); ok {
			if err := w.WarmUp(ctx); err != nil {
				return fmt.Errorf("warm-up: %w", err)
			}
		}
		return nil
	})
	if err == nil {
		return &backendv1.LoadResponse{}, nil
	}
	failure := &backendv1.LoadFailure{Message: err.Error(), Detail: err.Error(), OutOfMemory: errors.Is(err, ErrOutOfMemory)}
	if p, ok := errors.AsType[*panicError](err); ok {
		failure.Detail = p.stack
	}
	return &backendv1.LoadResponse{Failure: failure}, nil
}

// Run implements pluginserver.Backend.
func (a *adapter) Run(ctx context.Context, batch []byte, give pluginserver.Give) error {
	head, in, err := frame.DecodeBatch(batch)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	ctx, cancel := withDeadline(ctx, in)
	defer cancel()
	var out []Result
	err = guard(func() (err error) {
		out, err = a.handler.Handle(ctx, itemsFrom(in))
		return err
	})
	var results []frame.Result
	var p *panicError
	switch {
	case errors.As(err, &p):
		results = allFailed(len(in), 0, &frame.Failure{Reason: frame.ReasonHandlerFailed, Message: textFailed, Detail: p.stack})
	case err != nil:
		status, failure := failureTo(err)
		results = allFailed(len(in), status, failure)
	case len(out) != len(in):
		results = allFailed(len(in), 0, &frame.Failure{
			Reason: frame.ReasonInvalidOutput, Message: textMismatch,
			Detail: fmt.Sprintf("the handler gave %d results for %d items", len(out), len(in)),
		})
	default:
		results = resultsTo(out)
	}
	return give(true, frame.EncodeResults(frame.KindResults, head.BatchID, results))
}

// withDeadline bounds ctx by the latest deadline, if every item has one.
func withDeadline(ctx context.Context, items []frame.Item) (context.Context, context.CancelFunc) {
	var latest int64
	for i := range items {
		if items[i].Deadline == 0 {
			return ctx, func() {}
		}
		latest = max(latest, items[i].Deadline)
	}
	if latest == 0 {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, time.Unix(0, latest))
}

// Unload implements pluginserver.Backend.
func (a *adapter) Unload(context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c, ok := a.handler.(Closer); ok {
		return guard(c.Close)
	}
	return nil
}

// panicError is a panic of a handler.
type panicError struct {
	value any
	stack string // begins with the value
}

// Error gives the value.
func (p *panicError) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// guard calls f and makes an error of its panic.
func guard(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			p := &panicError{value: v}
			p.stack = p.Error() + "\n\n" + string(debug.Stack())
			err = p
		}
	}()
	return f()
}
