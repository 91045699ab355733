package batch

import (
	"context"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
)

// alone runs an item that belongs to no sequence on any worker. As many may wait as may of one sequence.
func (s *Sequences) alone(ctx context.Context, p *pending) (infer.Result, Times, error) {
	if err := s.enterAlone(p); err != nil {
		return infer.Result{}, Times{}, err
	}
	defer s.running.Done()
	for unsent := []*pending{p}; len(unsent) > 0; {
		if p.let {
			s.countAlone(p, 1)
		}
		slot, err := s.pool.Acquire(ctx)
		s.countAlone(p, -1)
		p.let = true // it waits again when it comes back
		if err != nil {
			return infer.Result{}, Times{}, err //nolint:wrapcheck // the pool's faults are the client's
		}
		var f *flight
		unsent, f = s.runs.run(context.WithoutCancel(ctx), slot, time.Now(), unsent, keeper{s.stay, notMeasured}) // the worker is busy with it, whether or not the client waits
		f.Release()
	}
	select {
	case o := <-p.answered:
		return o.result, o.times, o.err
	default: // it left between two steps
		return infer.Result{}, Times{Queued: time.Since(p.arrived)}, context.Cause(ctx)
	}
}

// countAlone counts a request of no sequence that begins to wait, or with a negative n ends to.
func (s *Sequences) countAlone(p *pending, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := int64(n) * p.item.Size()
	s.lone += n
	s.bytes += size
	s.policy.Budget.add(size)
}
