package rollout

import (
	"context"
	"fmt"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// What a new worker runs before it takes requests.
const (
	WarmUpAuto    = "auto"    // the archive's samples, or else for a generation that replaces one the last request that was answered well
	WarmUpSamples = "samples" // the archive's samples
	WarmUpOff     = "off"
)

// keepGood keeps a request for the warm-up of the next generation.
func (v *Version) keepGood(item infer.Item) {
	item.Emit, item.Gone = nil, nil // they hold on to its client's connection
	v.lastGood.Store(&item)
}

// warm runs the warm-up requests on a loaded instance, and says whether there were any. A sample of the archive has to be answered well. The last
// request that the generation before answered is no such promise, for the new one may want others: it only has to leave the worker alive.
func (g *generation) warm(ctx context.Context, inst backend.Instance) (ran bool, err error) {
	for i := range g.samples {
		if err := g.try(ctx, inst, g.samples[i].Item); err != nil {
			f := fault.New(fault.LoadFailed, fmt.Sprintf("the warm-up sample %s was not answered well", g.samples[i].File), err)
			f.Hint = "correct the sample or the handler; model_warmup=off goes without samples"
			return true, f
		}
	}
	if len(g.samples) > 0 {
		return true, nil
	}
	last := g.version.lastGood.Load()
	if last == nil || g.number == firstGeneration {
		return false, nil
	}
	if err := g.try(ctx, inst, *last); err != nil {
		if dead(inst) || ctx.Err() != nil {
			return true, fault.New(fault.LoadFailed, "the worker did not survive the last request that the one before it had answered", err)
		}
		g.version.log.Warn("a new worker did not answer the last request that the one before it had answered", "generation", g.number, "reason", reasonOf(err))
	}
	return true, nil
}

// try runs one request on an instance that is not in use yet.
func (g *generation) try(ctx context.Context, inst backend.Instance, item infer.Item) error {
	late := fault.Newf(fault.ResponseTimeout, "no answer within the response timeout of %s", g.settings.responseTimeout)
	timed, cancel := context.WithTimeoutCause(ctx, g.settings.responseTimeout, late)
	defer cancel()
	item.Emit = func(infer.Result) {} // pieces are as good as answers
	results, err := inst.Predict(timed, []infer.Item{item})
	const failed = 400
	switch {
	case err != nil && timed.Err() != nil && ctx.Err() == nil:
		return late
	case err != nil:
		return err //nolint:wrapcheck // the backend's faults are the reason
	case len(results) != 1:
		return fault.Newf(fault.HandlerFailed, "the handler gave %d answers to one request", len(results))
	case results[0].Err != nil:
		return results[0].Err
	case results[0].Status >= failed:
		return fault.Newf(fault.HandlerFailed, "the handler answered with the status %d", results[0].Status)
	}
	return nil
}
