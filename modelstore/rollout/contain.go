package rollout

import (
	"context"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// contain calls f, and tells of a panic in it, which it gives.
func (m *Manager) contain(doing string, f func()) error {
	return fault.ContainAndTell(doing, f, m.opts.Panicked, m.opts.Logger)
}

// attempt is serve, only that a panic in it is a failure of the worker as any other: its instance is ended, and another one started.
func (w *worker) attempt(ctx context.Context, g *generation, l *life) (proved bool, err error) {
	m := g.version.manager
	bug := m.contain("a worker was looked after", func() { proved, err = w.serve(ctx, g, l) })
	if bug == nil {
		return proved, err
	}
	_ = m.contain("a worker was given up", func() { w.abandon(ctx, g) })
	for _, s := range []State{Failed, Stopped} {
		if is, _ := l.read(); is != s && is != Stopped {
			_ = m.contain("a worker's end was told", func() { w.move(g.version, l, s, bug) })
		}
	}
	return false, bug
}

// abandon ends what a worker has, in whatever state it is.
func (w *worker) abandon(ctx context.Context, g *generation) {
	w.mu.Lock()
	inst, member := w.inst, w.member
	w.mu.Unlock()
	if member != nil {
		g.version.pool.leave(member)
	}
	if inst != nil {
		w.kill(ctx, inst)
	}
}

// failures is what a worker has failed in a row.
type failures struct {
	number int
	since  time.Time // of the first one since an instance was ready
}

// run is the worker's goroutine. ctx ends when the worker is told to end.
func (w *worker) run(ctx context.Context, g *generation) {
	v := g.version
	defer close(w.done)
	defer v.leaveGroup(w.group)
	defer w.forsake(v.pool)
	var f failures
	for goesOn := true; goesOn; {
		proved, err := w.attempt(ctx, g, &life{generation: g.number})
		if ctx.Err() != nil {
			return
		}
		bug := v.manager.contain("a worker was to be started again", func() { goesOn = w.rest(ctx, g, &f, proved, err) })
		if bug == nil {
			continue
		}
		f.number++
		select {
		case <-time.After(delay(f.number)):
		case <-ctx.Done():
			return
		}
	}
}
