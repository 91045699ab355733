package handlersdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/flambeau-serve/flambeau/handlersdk/pluginserver"
	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
)

// adapter is a Handler as the server sees it: values for frames, failures for panics.
type adapter struct {
	handler Handler

	// mu lets one call of the handler in at a time; Handle of a concurrent one only reads it.
	mu         sync.RWMutex
	concurrent bool // set by Load
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
	var resp *backendv1.LoadResponse
	if err == nil {
		err = guard(func() (err error) {
			resp, err = a.introduce()
			return err
		})
	}
	if err == nil {
		return resp, nil
	}
	failure := &backendv1.LoadFailure{Message: err.Error(), Detail: err.Error(), OutOfMemory: errors.Is(err, ErrOutOfMemory)}
	if p, ok := errors.AsType[*panicError](err); ok {
		failure.Detail = p.stack
	}
	return &backendv1.LoadResponse{Failure: failure}, nil
}

// introduce is what the handler says about itself.
func (a *adapter) introduce() (*backendv1.LoadResponse, error) {
	resp := &backendv1.LoadResponse{}
	if f, ok := a.handler.(Featured); ok {
		resp.Features = append(resp.Features, f.Features()...)
	}
	if _, ok := a.handler.(Streamer); ok {
		resp.Features = append(resp.Features, backendv1.FeatureStreams)
	}
	if c, ok := a.handler.(Concurrent); ok && c.Concurrent() {
		a.concurrent = true
		resp.Features = append(resp.Features, backendv1.FeatureConcurrent)
	}
	if o, ok := a.handler.(Overlapping); ok && o.Overlaps() {
		a.concurrent = true
		resp.Features = append(resp.Features, backendv1.FeatureAhead)
	}
	if d, ok := a.handler.(Describer); ok {
		text, err := json.Marshal(d.Describe())
		if err != nil {
			return nil, fmt.Errorf("describe: %w", err)
		}
		resp.DescriptionJson = text
	}
	return resp, nil
}

// Run implements pluginserver.Backend.
func (a *adapter) Run(ctx context.Context, batch []byte, give pluginserver.Give) error {
	head, in, err := frame.DecodeBatch(batch)
	if err != nil {
		return err
	}
	if a.concurrent {
		a.mu.RLock()
		defer a.mu.RUnlock()
	} else {
		a.mu.Lock()
		defer a.mu.Unlock()
	}
	ctx, cancel := withDeadline(ctx, in)
	defer cancel()
	ctx = withRequestIDs(ctx, in)
	var out []Result
	err = guard(func() (err error) {
		if s, ok := a.handler.(Streamer); ok {
			out, err = s.HandleStream(ctx, itemsFrom(in), emitter(ctx, head, len(in), give))
		} else {
			out, err = a.handler.Handle(ctx, itemsFrom(in))
		}
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

// emitter gives pieces to the server, each in a frame with empty results for the items that it is not for.
func emitter(ctx context.Context, head frame.Head, items int, give pluginserver.Give) Emit {
	return func(index int, piece Result) error {
		if index < 0 || index >= items {
			return fmt.Errorf("a piece was given to item %d of a batch of %d", index, items)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		results := make([]frame.Result, items)
		results[index] = resultsTo([]Result{piece})[0]
		return give(false, frame.EncodeResults(frame.KindPiece, head.BatchID, results))
	}
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
