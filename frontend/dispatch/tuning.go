package dispatch

import (
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// Tuning is how far batch size and delay of a version have been moved toward its latency goal, within their bounds.
type Tuning struct {
	Size, MostSize         int
	Delay, MostDelay, Goal time.Duration
	Frozen                 bool // they stay as they are
	// Workers has each worker's own, where the requests of a sequence go to one worker; Size and Delay are the smallest and the shortest of them then. Nil
	// where all workers have the same.
	Workers []WorkerTuning
}

// WorkerTuning is how far they have been moved for one worker.
type WorkerTuning struct {
	Worker int
	Size   int
	Delay  time.Duration
}

// Tuning gives how far batch size and delay of the version that ref names have been moved toward its latency goal.
func (d *Dispatcher) Tuning(ref infer.ModelRef) (Tuning, error) {
	q, err := d.tunable(ref)
	if err != nil {
		return Tuning{}, err
	}
	t, ok := q.Tuning()
	if !ok {
		return Tuning{}, untuned(ref)
	}
	told := Tuning{Size: t.Now.Size, MostSize: t.Bounds.Size, Delay: t.Now.Delay, MostDelay: t.Bounds.Delay, Goal: t.Goal, Frozen: t.Frozen}
	for _, w := range t.Workers {
		told.Workers = append(told.Workers, WorkerTuning{w.Worker, w.Now.Size, w.Now.Delay})
	}
	return told, nil
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
func (d *Dispatcher) tunable(ref infer.ModelRef) (queue, error) {
	v, err := d.opts.Models.Resolve(ref)
	if err != nil {
		return nil, err //nolint:wrapcheck // the model store's words are the client's
	}
	l, err := d.line(v)
	if err != nil {
		return nil, err
	}
	return l.queue, nil
}

func untuned(ref infer.ModelRef) error {
	f := fault.Newf(fault.BadRequest, "Model %s has no latency goal.", ref.Name)
	f.Hint = "give it one in model-config.yaml: slo: {p99_ms: 80}"
	return f
}
