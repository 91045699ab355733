package dispatch

import (
	"context"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// Steps takes the requests that are the steps of ensembles: they are still taken while the requests that they belong to are drained.
type Steps struct{ dispatcher *Dispatcher }

// Steps gives the way for the steps of ensembles.
func (d *Dispatcher) Steps() Steps { return Steps{d} }

// stepKey marks the context of a step.
type stepKey struct{}

// Submit is that of the dispatcher.
func (s Steps) Submit(ctx context.Context, ref infer.ModelRef, item infer.Item) (infer.Result, error) {
	return s.dispatcher.Submit(context.WithValue(ctx, stepKey{}, true), ref, item)
}

// admit refuses what comes from outside once the server drains, and counts requests for ensembles, whose steps come from inside until they are answered.
func (d *Dispatcher) admit(ctx context.Context, v *rollout.Version) (leave func(), err error) {
	if step, _ := ctx.Value(stepKey{}).(bool); step {
		return func() {}, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.draining:
		return nil, errDraining()
	case !v.IsEnsemble():
		return func() {}, nil
	}
	d.together.Add(1)
	return d.together.Done, nil
}

// awaitEnsembles waits until the requests for ensembles are answered, whose steps need queues that are open.
func (d *Dispatcher) awaitEnsembles(ctx context.Context) {
	answered := make(chan struct{})
	go func() { // it ends with the last of these requests, which Close ends
		defer close(answered)
		d.together.Wait()
	}()
	select {
	case <-answered:
	case <-ctx.Done():
	case <-d.life.Done():
	}
}
