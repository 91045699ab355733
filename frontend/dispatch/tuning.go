package dispatch

import (
	"time"

	"github.com/flambeau-serve/flambeau/frontend/batch"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// Tuning is how far batch size and delay of a version have been moved toward its latency goal, within their bounds.
type Tuning struct {
	Size, MostSize         int
	Delay, MostDelay, Goal time.Duration
	Frozen                 bool // they stay as they are
}

// Tuning gives how far batch size and delay of the version that ref names have been moved toward its latency goal.
func (d *Dispatcher) Tuning(ref infer.ModelRef) (Tuning, error) {
	q, err := d.tunable(ref)
	if err != nil {
		return Tuning{}, err
	}
	if t, ok := q.Tuning(); ok {
		return Tuning{t.Now.Size, t.Bounds.Size, t.Now.Delay, t.Bounds.Delay, t.Goal, t.Frozen}, nil
	}
	return Tuning{}, untuned(ref)
}

// Freeze keeps them as they are from now on, or lets them move again: until the server ends, or another archive wants other settings.
func (d *Dispatcher) Freeze(ref infer.ModelRef, on bool) error {
	q, err := d.tunable(ref)
	if err != nil {
		return err
	}
	if !q.Freeze(on) {
		return untuned(ref)
	}
	return nil
}

// tunable gives the queue of a version, and makes it if there was no request yet.
func (d *Dispatcher) tunable(ref infer.ModelRef) (*batch.Queue, error) {
	v, err := d.opts.Models.Resolve(ref)
	if err != nil {
		return nil, err //nolint:wrapcheck // the model store's words are the client's
	}
	l, err := d.line(v)
	if err != nil {
		return nil, err
	}
	q, ok := l.queue.(*batch.Queue)
	if !ok {
		f := fault.Newf(fault.BadRequest, "The sequences of model %s are tuned for each worker by itself.", ref.Name)
		f.Hint = "the steps are in the events; there are no limits of the whole model to be shown or kept"
		return nil, f
	}
	return q, nil
}

func untuned(ref infer.ModelRef) error {
	f := fault.Newf(fault.BadRequest, "Model %s has no latency goal.", ref.Name)
	f.Hint = "give it one in model-config.yaml: slo: {p99_ms: 80}"
	return f
}
