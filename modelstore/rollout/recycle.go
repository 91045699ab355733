package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// recycle says when a worker is replaced although nothing is wrong with it. Zero values are no limits.
type recycle struct {
	requests int64 // that it has answered
	memory   int64 // bytes that are resident
}

func (r recycle) none() bool { return r == recycle{} }

// recycling is what the keeper knows about the recycling of a version's workers.
type recycling struct {
	next     time.Time // not before
	failures int       // in a row
	outcome  chan error
}

const (
	recyclePause   = 10 * time.Second // between two workers of a version, at least
	recycleBackOff = time.Minute      // after a first replacement that did not come up; it doubles
	mostBackOffs   = 5
)

// replaceDue replaces a worker that is due, one at a time, and never while the version is changed otherwise.
func (v *Version) replaceDue(ctx context.Context, g *generation, r *recycling, now time.Time) {
	if r.outcome != nil {
		select {
		case err := <-r.outcome:
			r.ended(err, now)
		default:
			return
		}
	}
	if g.settings.recycle.none() || now.Before(r.next) {
		return
	}
	w, why := v.due(g)
	if w == nil {
		return
	}
	turn, end, ok := v.tryBegin(WithActor(ctx, Actor{Who: "recycle"}))
	if !ok {
		return
	}
	r.next, r.outcome = now.Add(recyclePause), make(chan error, 1)
	outcome := r.outcome
	go func() {
		defer end()
		var err error
		if bug := v.manager.contain("a worker was replaced", func() { err = v.recycle(turn, g, w, why) }); bug != nil {
			err = bug
		}
		outcome <- err
	}()
}

// ended notes how a replacement went: those that do not come up are tried less and less often.
func (r *recycling) ended(err error, now time.Time) {
	r.outcome = nil
	if err == nil {
		r.failures = 0
		return
	}
	r.next = now.Add(recycleBackOff << min(r.failures, mostBackOffs))
	r.failures++
}

// due gives a worker that is to be replaced, and why.
func (v *Version) due(g *generation) (w *worker, why string) {
	v.mu.Lock()
	workers := slices.Clone(g.workers)
	v.mu.Unlock()
	limit := g.settings.recycle
	for _, w := range workers {
		answered, pid := w.progress()
		switch {
		case pid == 0: // it is not ready
			continue
		case limit.requests > 0 && answered >= limit.requests:
			return w, fmt.Sprintf("it has answered %d requests, and recycle.requests is %d", answered, limit.requests)
		case limit.memory > 0:
			if has := v.manager.resident(pid); has > limit.memory {
				return w, fmt.Sprintf("it has %s of memory, and recycle.memoryMb is %d", mebibytes(has), limit.memory>>20)
			}
		}
	}
	return nil, ""
}

func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }

// progress gives how many requests the worker's instance has answered, and its process; 0 when it is not ready.
func (w *worker) progress() (answered int64, pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.member == nil || w.inst == nil || dead(w.inst) || w.waiting || w.isDown {
		return 0, 0
	}
	return w.member.answered.Load(), w.inst.PID()
}

// tryBegin takes the turn of an update if nobody has it or waits for it; a later update voids it. The function must be called at its end.
func (v *Version) tryBegin(ctx context.Context) (context.Context, func(), bool) {
	v.mu.Lock()
	if v.closing || v.void != nil {
		v.mu.Unlock()
		return ctx, nil, false
	}
	select {
	case v.turn <- struct{}{}:
	default:
		v.mu.Unlock()
		return ctx, nil, false
	}
	ctx, void := context.WithCancelCause(ctx)
	v.void = void
	v.ticket++
	mine := v.ticket
	v.manager.retiring.Add(1)
	v.mu.Unlock()
	return ctx, func() {
		defer v.manager.retiring.Done()
		<-v.turn
		v.mu.Lock()
		if v.ticket == mine {
			v.void = nil
		}
		v.mu.Unlock()
		void(nil)
	}, true
}

// recycle replaces a worker. The next one is ready before the old one is told to end, unless the model is replaced in place, or there is no room for both.
func (v *Version) recycle(ctx context.Context, g *generation, old *worker, why string) error {
	begun := time.Now()
	inPlace := g.settings.swap == SwapInPlace || g.settings.parallelLevel > 0
	if !inPlace {
		if fits, _ := v.fits(1); fits == 0 {
			inPlace = true
			why += "; there is no memory for two, so that it ends first"
		}
	}
	var next *worker
	var err error
	if inPlace {
		next, err = v.recycleInPlace(ctx, g, old)
	} else {
		next, err = v.recycleDual(ctx, g, old)
	}
	switch {
	case err == nil:
		v.log.Info("worker recycled", "worker", old.id, "next", next.id, "reason", why)
		v.changed(ctx, g, Change{Kind: ChangeRecycled, Reason: fmt.Sprintf("worker %d → %d: %s", old.id, next.id, why), Took: time.Since(begun)})
		return v.tooSmall(ctx, g, next)
	case ctx.Err() != nil, errors.Is(err, errRetired):
		return nil //nolint:nilerr // something else changes the version
	}
	v.log.Error("a worker was not recycled: the next one did not start", "worker", old.id, "reason", reasonOf(err))
	v.changed(ctx, g, Change{Kind: ChangeRecycleFailed, Reason: fmt.Sprintf("worker %d: %s, but the next one did not start: %s", old.id, why, reasonOf(err)), Took: time.Since(begun)})
	return err
}

// tooSmall tells that the limit is one that a worker exceeds as soon as it has loaded: it would be replaced for ever.
func (v *Version) tooSmall(ctx context.Context, g *generation, next *worker) error {
	limit := g.settings.recycle.memory
	_, pid := next.progress()
	if limit == 0 || pid == 0 {
		return nil
	}
	has := v.manager.resident(pid)
	if has <= limit {
		return nil
	}
	f := fault.Newf(fault.LoadFailed, "a worker that has just loaded the model has %s of memory already: raise recycle.memoryMb, which is %d", mebibytes(has), limit>>20)
	v.log.Error("recycling by memory is of no use", "worker", next.id, "reason", f.Message)
	v.changed(ctx, g, Change{Kind: ChangeRecycleFailed, Reason: f.Message})
	return f
}

// recycleDual starts the next worker beside the old one, which ends when the next one is ready.
func (v *Version) recycleDual(ctx context.Context, g *generation, old *worker) (*worker, error) {
	v.mu.Lock()
	if g.ended || v.closing {
		v.mu.Unlock()
		return nil, errRetired
	}
	next := g.newWorker() //nolint:contextcheck // a worker outlives the look that adds it
	v.mu.Unlock()
	err := next.await(ctx)
	v.mu.Lock()
	at := slices.Index(g.workers, old)
	if err == nil && (at < 0 || g.ended || v.closing) { // somebody has ended it meanwhile
		err = errRetired
	}
	if err != nil {
		v.mu.Unlock()
		next.end(v.pool)
		return nil, errors.Join(err, awaitGone(context.WithoutCancel(ctx), []*worker{next}))
	}
	g.workers[at] = next
	g.letGo(old)
	v.mu.Unlock()
	return next, nil
}

// recycleInPlace ends the old worker before it starts the next one. What has nobody else waits meanwhile.
func (v *Version) recycleInPlace(ctx context.Context, g *generation, old *worker) (*worker, error) {
	v.pool.promise()
	defer v.pool.fulfil()
	old.end(v.pool)
	if err := awaitGone(context.WithoutCancel(ctx), []*worker{old}); err != nil {
		return nil, err
	}
	v.mu.Lock()
	at := slices.Index(g.workers, old)
	if at < 0 || g.ended || v.closing {
		v.mu.Unlock()
		return nil, errRetired
	}
	next := g.newWorker() //nolint:contextcheck // a worker outlives the look that adds it
	g.workers[at] = next
	v.mu.Unlock()
	return next, next.await(ctx) // one that does not come up is started again as every worker is
}
