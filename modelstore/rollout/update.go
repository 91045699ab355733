package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
)

// How a version is replaced.
const (
	SwapDual    = "dual"     // the new workers start beside the old ones
	SwapInPlace = "in_place" // the old ones end first; requests wait meanwhile
)

// ErrSuperseded is what a Deploy ends with when another one of the same version came before it was done.
var ErrSuperseded = errors.New("a newer change of the model came before this one was ready")

// Replaced is a generation that serves no more, since another one took its place or its version was unregistered.
type Replaced struct {
	Ref        infer.ModelRef
	Generation int
	Digest     string
	Source     string
	URL        string
	Archive    *archive.Archive
	Next       string // digest of the archive that serves in its place; "" for a version that was unregistered
}

// Deploy makes a Spec's archive what runs as its name and version. A version that is not there is registered; one that is there goes on serving until
// the new workers are ready, and for good if they do not get ready: the error then says why. What waits is not touched. A newer Deploy of the same
// version ends this one with ErrSuperseded.
func (m *Manager) Deploy(ctx context.Context, s Spec) (Registered, error) {
	ctx, done := within(ctx, m.sealed)
	defer done()
	a, opened, err := m.open(ctx, &s)
	if err != nil {
		return Registered{}, err
	}
	ref, err := identify(s, a)
	if err != nil {
		return Registered{}, discard(a, err)
	}
	m.mu.Lock()
	var v *Version
	if mod := m.models[ref.Name]; mod != nil {
		v = mod.versions[ref.Version]
	}
	m.mu.Unlock()
	if v == nil {
		return m.register(ctx, s, a, opened)
	}
	return v.replace(ctx, s, a, opened)
}

// replace starts a generation of an archive, which it owns, and makes it the current one.
func (v *Version) replace(ctx context.Context, s Spec, a *archive.Archive, opened []Step) (Registered, error) {
	made := Registered{Ref: v.ref}
	ctx, end, err := v.begin(ctx)
	if err != nil {
		return made, errors.Join(err, a.Close())
	}
	defer end()
	begun := time.Now()
	g, err := v.follow(s, a, opened)
	if err != nil {
		v.fail(ctx, nil, a.Digest, begun, err)
		return made, errors.Join(err, a.Close())
	}
	defer close(g.outcome)
	made.Workers = g.min
	v.setNext(g)
	v.changed(ctx, g, Change{Kind: ChangeUpdating})
	err, left := v.bringOrRestore(ctx, g)
	v.setNext(nil) // before it is told how it went, so that nobody hears that it is over and sees that it is not
	if err != nil {
		v.fail(ctx, g, a.Digest, begun, err)
		return made, errors.Join(err, left)
	}
	v.mu.Lock()
	v.failure = nil
	steps := g.steps()
	v.mu.Unlock()
	v.log.Info("model swapped", "generation", g.number, "source", g.source(), "digest", a.Digest, "after", time.Since(begun).Round(time.Millisecond))
	v.changed(ctx, g, Change{Kind: ChangeSwapped, Took: time.Since(begun), Steps: steps})
	return made, nil
}

// bringOrRestore is bring, only that a panic in it is a failure as any other: the generation before serves.
func (v *Version) bringOrRestore(ctx context.Context, g *generation) (err, left error) {
	old := v.current.Load()
	had := v.running(&old.settings)
	bug := v.manager.contain("a model was swapped", func() { err, left = v.bring(ctx, g) })
	if bug == nil {
		return err, left
	}
	if v.current.Load() == g && g.settings.swap != SwapInPlace { // it serves
		v.mu.Lock()
		retired := old.replaced
		v.mu.Unlock()
		if !retired {
			v.retireGeneration(ctx, old, g)
		}
		return nil, nil
	}
	again := v.manager.contain("a swap was given up", func() {
		v.undo(ctx, g)
		if v.isEnded(old) {
			left = v.restore(old, had) //nolint:contextcheck // a worker outlives the call that adds it
		}
		left = errors.Join(left, g.release(false))
	})
	return bug, errors.Join(left, again)
}

// isEnded says whether a generation's workers were told to end.
func (v *Version) isEnded(g *generation) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return g.ended
}

// bring makes a generation the one that serves. If it does not come to that, left is what could not be cleaned up.
func (v *Version) bring(ctx context.Context, g *generation) (err, left error) {
	if err := v.manager.prepare(ctx, g); err != nil {
		return err, g.archive.Close()
	}
	if g.settings.swap == SwapInPlace {
		err = v.swapInPlace(ctx, g)
	} else {
		err = v.swapDual(ctx, g)
	}
	if err != nil {
		return err, g.release(false)
	}
	return nil, nil
}

// begin waits for the turn of an update, which voids the one before it. The function must be called at its end.
func (v *Version) begin(ctx context.Context) (context.Context, func(), error) {
	ctx, void := context.WithCancelCause(ctx)
	v.mu.Lock()
	if v.closing {
		v.mu.Unlock()
		void(nil)
		return ctx, nil, fault.Newf(fault.ModelNotFound, "Model not found: %s", v.ref.Name)
	}
	if v.void != nil {
		v.void(ErrSuperseded)
	}
	v.void = void
	v.ticket++
	mine := v.ticket
	v.manager.retiring.Add(1) // it may leave a generation to drain; Close waits only once all its versions are closing
	v.mu.Unlock()
	end := func() {
		defer v.manager.retiring.Done()
		v.mu.Lock()
		if v.ticket == mine {
			v.void = nil
		}
		v.mu.Unlock()
		void(nil)
	}
	select {
	case v.turn <- struct{}{}:
	case <-ctx.Done():
		end()
		return ctx, nil, context.Cause(ctx)
	}
	if ctx.Err() != nil {
		<-v.turn
		end()
		return ctx, nil, context.Cause(ctx)
	}
	return ctx, func() {
		<-v.turn
		end()
	}, nil
}

// follow makes the generation after the current one. What the registration asked for holds on, and so do numbers of workers that were set by hand.
func (v *Version) follow(s Spec, a *archive.Archive, opened []Step) (*generation, error) {
	o := &v.manager.opts
	v.mu.Lock()
	merged := s.after(v.spec)
	merged.AtStartup = v.atStart
	v.generations++
	number, scaled, minWorkers, maxWorkers := v.generations, v.scaled, v.min, v.max
	v.mu.Unlock()
	preset := o.Presets[v.ref]
	set, err := o.resolve(merged, preset, a)
	if err != nil {
		return nil, err
	}
	if !scaled {
		minWorkers, maxWorkers = o.workers(merged, preset, &a.Settings)
		if minWorkers == 0 && !set.toZero { // it serves now, whoever said so
			minWorkers, maxWorkers = v.numbers()
		}
	}
	if err := startable(minWorkers); err != nil {
		return nil, err
	}
	return &generation{
		outcome: make(chan struct{}),
		number:  number, version: v, url: s.URL, settings: set, archive: a, before: opened, begun: time.Now(), min: minWorkers, max: maxWorkers,
		first: v.running(&set),
	}, nil
}

// running is how many workers there are now, which the next generation begins with where their number follows the load; at least one, so that it is known
// whether it loads.
func (v *Version) running(next *settings) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	g := v.current.Load()
	n := 0
	if v.manager.scales(g) {
		n = len(g.workers)
	}
	if next.toZero {
		n = max(n, 1)
	}
	return n
}

func (v *Version) numbers() (minWorkers, maxWorkers int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.min, v.max
}

// after completes a Spec by what an earlier one asked for.
func (s *Spec) after(before Spec) Spec {
	merged := *s
	merged.Handler, merged.Runtime = first(s.Handler, before.Handler), first(s.Runtime, before.Runtime)
	merged.Exact = s.Exact || before.Exact
	if merged.BatchSize == nil {
		merged.BatchSize = before.BatchSize
	}
	if merged.MaxBatchDelay == nil {
		merged.MaxBatchDelay = before.MaxBatchDelay
	}
	if merged.ResponseTimeout == nil {
		merged.ResponseTimeout = before.ResponseTimeout
	}
	if merged.StartupTimeout == nil {
		merged.StartupTimeout = before.StartupTimeout
	}
	if merged.InitialWorkers == nil {
		merged.InitialWorkers, merged.MaxWorkers = before.InitialWorkers, before.MaxWorkers
	}
	return merged
}

func (v *Version) setNext(g *generation) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.next = g
}

// launch starts the workers of a generation, and returns when all are ready.
func (v *Version) launch(ctx context.Context, g *generation) (workers int, err error) {
	all, err := v.resized(g, g.min, g.max) //nolint:contextcheck // a worker outlives the call that adds it
	if err != nil {
		return 0, err
	}
	return len(all), awaitReady(ctx, all)
}

// resized gives a generation its workers.
func (v *Version) resized(g *generation, minWorkers, maxWorkers int) ([]*worker, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	all, _, err := g.resize(minWorkers, maxWorkers)
	return all, err
}

// swapDual starts the new generation beside the old one, and lets the old one drain once the new one serves.
func (v *Version) swapDual(ctx context.Context, g *generation) error {
	if err := v.guard(g); err != nil {
		return err
	}
	for {
		workers, err := v.launch(ctx, g)
		if err != nil {
			v.undo(ctx, g)
			return err
		}
		if ctx.Err() != nil {
			v.undo(ctx, g)
			return context.Cause(ctx)
		}
		old, done := v.promote(g, workers) //nolint:contextcheck // a worker outlives the call that adds it
		if done {
			v.retireGeneration(ctx, old, g)
			return nil
		}
	}
}

// promote makes g the current generation. It fails when fewer than least of its workers are ready; or the version ends, which voids the update.
func (v *Version) promote(g *generation, least int) (old *generation, done bool) {
	if old, done = v.exchange(g, least); done && v.manager.opts.Swapped != nil {
		_ = v.manager.contain("a swap was told", func() { v.manager.opts.Swapped(v) })
	}
	return old, done
}

// exchange does so, and tells nobody.
func (v *Version) exchange(g *generation, least int) (old *generation, done bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if least > 0 && v.closing || !v.pool.promote(g.number, least, g.settings.responseTimeout) {
		return nil, false
	}
	old = v.current.Swap(g)
	if least > 0 {
		g.since = time.Now()
	}
	if v.scaled && !v.closing && (v.min != g.min || v.max != g.max) { // somebody scaled meanwhile
		_, _, _ = g.resize(v.min, v.max) // it fits as it did when it was asked for
	}
	v.min, v.max = g.min, g.max
	v.doze()
	v.manager.look(g)
	return old, true
}

// ready notes that a worker of the generation is ready for the first time.
func (g *generation) ready() {
	g.version.mu.Lock()
	defer g.version.mu.Unlock()
	if g.since.IsZero() && g.version.current.Load() == g {
		g.since = time.Now()
	}
}

// retireGeneration lets a generation that serves no more drain, behind the caller's back.
func (v *Version) retireGeneration(ctx context.Context, old, next *generation) {
	m := v.manager
	ctx = context.WithoutCancel(ctx)
	v.mu.Lock()
	old.replaced = true
	v.mu.Unlock()
	m.retiring.Go(func() {
		begun := time.Now()
		_ = m.contain("a generation was ended", func() { v.undo(ctx, old) })
		<-next.outcome // what comes first is told first
		m.replaced(ctx, old, next.archive.Digest)
		v.changed(ctx, old, Change{Kind: ChangeDrained, Took: time.Since(begun)})
		_ = m.contain("the files of the model before were removed", func() {
			if err := old.release(false); err != nil {
				v.log.Error("the files of the model before were not removed", "generation", old.number, "reason", err.Error())
			}
		})
	})
}

func (m *Manager) replaced(ctx context.Context, old *generation, next string) {
	if m.opts.Replaced == nil {
		return
	}
	_ = m.contain("the end of a generation was told", func() {
		m.opts.Replaced(ctx, Replaced{
			Ref: old.version.ref, Generation: old.number, Digest: old.archive.Digest, Source: old.archive.Source, URL: old.url, Archive: old.archive,
			Next: next,
		})
	})
}

// swapInPlace ends the old generation before it starts the new one, and starts the old one again if that fails. What waits and what comes meanwhile
// waits for the workers.
func (v *Version) swapInPlace(ctx context.Context, g *generation) error {
	v.pool.promise()
	defer v.pool.fulfil()
	old := v.current.Load()
	had := v.running(&old.settings)
	err := old.stop(context.WithoutCancel(ctx)) // also when this is void by now: the next one needs their room, too
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		v.promote(g, 0) //nolint:contextcheck // a worker outlives the call that adds it
		if _, err = v.launch(ctx, g); err == nil {
			v.retireGeneration(ctx, old, g)
			return nil
		}
		v.undo(ctx, g)
	}
	return errors.Join(err, v.restore(old, had)) //nolint:contextcheck // a worker outlives the call that adds it
}

// restore starts a generation again that was ended for one that did not come up.
func (v *Version) restore(old *generation, had int) error {
	v.mu.Lock()
	old.ended, old.first = false, had
	closing := v.closing
	v.mu.Unlock()
	v.promote(old, 0)
	if closing {
		return nil
	}
	_, err := v.resized(old, old.min, old.max)
	return err
}

// undo ends the workers of a generation that will not serve, or has served.
func (v *Version) undo(ctx context.Context, g *generation) {
	if err := g.stop(context.WithoutCancel(ctx)); err != nil {
		v.log.Error("workers were not ended", "generation", g.number, "reason", err.Error())
	}
}

// fail notes and tells why an update did not come to serve.
func (v *Version) fail(ctx context.Context, g *generation, digest string, begun time.Time, err error) {
	kind := ChangeSwapFailed
	switch {
	case errors.Is(err, ErrSuperseded):
		kind = ChangeSuperseded
	case errors.Is(err, errRetired), fault.Is(err, fault.Draining):
		return // the version, or the server, ends
	case fault.Is(err, fault.MemoryGuard):
		kind = ChangeRefused
	}
	c := Change{Kind: kind, Reason: reasonOf(err), Took: time.Since(begun)}
	if guarded, is := errors.AsType[*fault.Error](err); is && kind == ChangeRefused {
		c.Reason += " (" + guarded.Hint + ")"
	}
	v.mu.Lock()
	if kind != ChangeSuperseded {
		attempts := 1
		if v.failure != nil && v.failure.Digest == digest {
			attempts += v.failure.Attempts
		}
		v.failure = &Failure{At: time.Now(), Digest: digest, Reason: c.Reason, Attempts: attempts}
	}
	if g != nil {
		c.Steps = g.steps()
	}
	v.mu.Unlock()
	if kind != ChangeSuperseded {
		v.log.Error("the changed model does not serve, the one before it goes on", "reason", c.Reason, "digest", digest)
	}
	v.changed(ctx, g, c)
}

// guard refuses a dual swap whose workers would not fit beside those that serve.
func (v *Version) guard(g *generation) error {
	if v.manager.opts.Available == nil {
		return nil
	}
	left, known := v.manager.opts.Available()
	if !known {
		return nil
	}
	v.mu.Lock()
	workers := slices.Clone(v.current.Load().workers)
	v.mu.Unlock()
	var most, freed int64
	for _, w := range workers {
		size := w.private()
		most, freed = max(most, size), freed+size
	}
	count := max(g.min, g.first)
	need := most * int64(count)
	if need <= left {
		return nil
	}
	const mega = 1 << 20
	f := fault.Newf(fault.MemoryGuard, "the new workers would not fit beside the old ones: %d workers of about %d MiB need %d MiB, and %d MiB are left",
		count, most/mega, need/mega, left/mega)
	f.Hint = "use fewer workers, or switch the guard off by swap_memory_guard=false"
	if need <= left+freed {
		f.Hint = fmt.Sprintf("with swap: %s in the model's configuration file they would fit: the old workers, which have %d MiB, then end first, and requests "+
			"wait meanwhile; else %s", SwapInPlace, freed/mega, f.Hint)
	}
	return f
}
