package dispatch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// explain makes a fault of every error, and adds to a refusal what is known of the version. It words those that TorchServe words by the model's name.
func explain(ref infer.ModelRef, v *rollout.Version, err error) error {
	switch {
	case fault.Is(err, fault.NoWorker, fault.Overloaded):
		return noWorker(ref, v, err)
	case fault.Is(err, fault.ClientShare, fault.ServerBytes, fault.ConcurrencyLimit, fault.QueueTimeout, fault.ClientTimeout):
		f := copyOf(err)
		f.addWorkers(v.Readiness())
		return f.Error
	case errors.Is(err, context.Canceled):
		return fault.New(fault.Cancelled, "the client went away", err)
	case errors.Is(err, context.DeadlineExceeded) && !fault.Is(err, fault.ResponseTimeout):
		f := copyOf(fault.New(fault.ClientTimeout, "the request's deadline is over", err))
		f.addWorkers(v.Readiness())
		return f.Error
	default:
		return err
	}
}

// explained is an error that is this request's alone.
type explained struct{ *fault.Error }

func copyOf(err error) explained {
	f, ok := errors.AsType[*fault.Error](err)
	if !ok {
		f = fault.New(fault.Internal, "Internal error.", err)
	}
	own := *f
	own.Numbers = slices.Clone(f.Numbers)
	return explained{&own}
}

// addWorkers adds the numbers of workers, and when to try again: without a ready worker that is when the next one is.
func (e explained) addWorkers(r rollout.Readiness) {
	e.Numbers = append(e.Numbers, fault.Count("workers_ready", r.Ready), fault.Count("workers_total", r.Total))
	if r.Ready == 0 {
		e.RetryAfter = 0
		if r.Known {
			e.RetryAfter = max(r.Next, time.Millisecond)
		}
	}
	if e.Kind == fault.QueueTimeout || e.Kind == fault.ClientTimeout { // their clients know best
		e.RetryAfter = 0
	}
	if e.RetryAfter > 0 {
		e.Numbers = append(e.Numbers, fault.Millis("retry_after_ms", e.RetryAfter))
	}
}

// noWorker has TorchServe's text for both a version without workers and a full queue; the kind tells the two apart, and the hint says which it was.
func noWorker(ref infer.ModelRef, v *rollout.Version, err error) error {
	name := `Model "` + ref.Name + `"`
	if ref.Version != "" {
		name += ` Version ` + ref.Version + `"` // TorchServe leaves the opening quote out
	}
	f := copyOf(err)
	f.Hint = fault.Message(err)
	if hint := hintOf(err); hint != "" {
		f.Hint += "; " + hint
	}
	f.Message, f.Cause = name+" has no worker to serve inference request. Please use scale workers API to add workers. "+
		"If this is a sequence inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize", err
	ready := v.Readiness()
	switch {
	case f.Kind == fault.NoWorker && fault.Message(err) != noneThere: // why it did not start: more workers would not start either
		f.Hint += "; GET /models/" + ref.Name + "?details=true has more"
	case f.Kind == fault.NoWorker:
		f.Setting = "minWorkers in model-config.yaml, or min_worker of PUT /models/" + ref.Name
	case ready.Ready == 0 && ready.Total > 0:
		f.Kind = fault.NoReadyWorker
		f.Hint += "; no worker is ready: GET /models/" + ref.Name + "?details=true says why"
	}
	f.addWorkers(ready)
	return f.Error
}

// noneThere is what the pool of a version says that is to have no worker.
const noneThere = "the model has no worker"

// without refuses a request to a version that has no worker, and says why there is none as far as that is known.
func (d *Dispatcher) without(ctx context.Context, v *rollout.Version) error {
	if is, err := d.opts.Models.Describe(v.Ref()); err == nil && is.State == "failed" && is.Reason != "" {
		return fault.New(fault.NoWorker, "the model's worker has failed, and is not started again: "+is.Reason, nil)
	}
	ctx, cancel := context.WithCancel(ctx)
	cancel() // nothing is waited for
	slot, err := v.Pool().Acquire(ctx)
	if slot != nil { // one has come in this moment
		slot.Release()
	}
	if fault.Is(err, fault.NoWorker) {
		return err //nolint:wrapcheck // the pool's words are the client's
	}
	return fault.New(fault.NoWorker, noneThere, nil)
}

func hintOf(err error) string {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f.Hint
	}
	return ""
}

// Refusals are the latest requests that a version refused, or that ran out of time in its queue.
type Refusals struct {
	Reason string    // of the last one
	At     time.Time // when that was
	Count  int64     // of all reasons, in a row: between two of them were never more than five minutes
}

// refusalAge is for how long a refusal is told of.
const refusalAge = windowAge

// refusals keeps a version's Refusals.
type refusals struct {
	mu   sync.Mutex // guards what follows
	last Refusals
}

func (r *refusals) note(now time.Time, err error) {
	if !fault.Refused(err) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.last.At) > refusalAge {
		r.last.Count = 0
	}
	r.last.Reason, r.last.At = fault.KindOf(err).String(), now
	r.last.Count++
}

// Refusals tells what the version that ref names has refused lately; a Count of 0 for nothing.
func (d *Dispatcher) Refusals(ref infer.ModelRef) Refusals {
	w := d.windowOf(ref)
	if w == nil {
		return Refusals{}
	}
	w.refused.mu.Lock()
	defer w.refused.mu.Unlock()
	if time.Since(w.refused.last.At) > refusalAge {
		return Refusals{}
	}
	return w.refused.last
}

func (d *Dispatcher) windowOf(ref infer.ModelRef) *window {
	v, err := d.opts.Models.Resolve(ref)
	if err != nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.windows[v]
}

// attend counts a request as one of those that its version has at the same time, or refuses it when those are as many as they may be. One that goes alone
// is not counted: it is the server's own.
func (d *Dispatcher) attend(v *rollout.Version, item *infer.Item) (leave func(), err error) {
	l, err := d.line(v)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	w := d.windows[v]
	d.mu.Unlock()
	if w == nil || item.Alone {
		return func() {}, nil
	}
	n, limit := w.inside.Add(1), int64(v.MaxConcurrency())
	if limit <= 0 || n <= limit {
		return func() { w.inside.Add(-1) }, nil
	}
	w.inside.Add(-1)
	return nil, crowded(v, l, limit)
}

// crowded refuses a request because its version has as many as it may.
func crowded(v *rollout.Version, l *line, limit int64) error {
	f := fault.Newf(fault.ConcurrencyLimit, "the model has %d of %d requests that it may have at the same time, those that wait and those that run", limit, limit)
	f.Hint, f.Setting = "send less at the same time, or raise maxConcurrency", "maxConcurrency in model-config.yaml"
	waiting, room := l.queue.Waiting()
	f.Numbers = []fault.Number{
		fault.Count("concurrency", limit), fault.Count("concurrency_limit", limit), fault.Count("waiting", waiting), fault.Count("limit", room),
		fault.Count("batch_size", max(v.BatchSize(), 1)),
	}
	if after, known := l.queue.Soonest(); known {
		f.RetryAfter = max(after, time.Millisecond)
	}
	return f
}

// fairness says how the clients of a version share its queue.
func (d *Dispatcher) fairness(v *rollout.Version) infer.Fairness {
	if f, said := v.Fairness(); said {
		return f
	}
	return d.opts.Fairness
}

// share is the part of a version's queue that one client may have while others want it, 0 for all of it.
func (d *Dispatcher) share(v *rollout.Version) float64 {
	if f := d.fairness(v); f.Key != "" {
		return f.MaxShare
	}
	return 0
}
