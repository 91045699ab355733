package rollout

import (
	"context"
	"fmt"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/redact"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
)

// Register opens an archive and makes a version of it. A synchronous one returns when all the workers are ready; if one does not get ready, the
// version is removed again and the error is fault.LoadFailed in TorchServe's words, with the reason as its cause.
func (m *Manager) Register(ctx context.Context, s Spec) (Registered, error) {
	ctx, done := within(ctx, m.sealed)
	defer done()
	a, opened, err := m.open(ctx, &s)
	if err != nil {
		return Registered{}, err
	}
	return m.register(ctx, s, a, opened)
}

// open gives the archive of a registration, and what was done for it.
func (m *Manager) open(ctx context.Context, s *Spec) (*archive.Archive, []Step, error) {
	if s.Archive != nil {
		a := s.Archive
		s.Archive = nil // it is the generation's from here on
		return a, s.Steps, nil
	}
	begun := time.Now()
	a, err := m.opts.Archives.Open(ctx, s.URL)
	return a, []Step{{stepOpen, time.Since(begun)}}, err
}

// register makes a version of an archive, which it owns from here on.
func (m *Manager) register(ctx context.Context, s Spec, a *archive.Archive, opened []Step) (Registered, error) {
	v, minWorkers, maxWorkers, err := m.plan(s, a)
	if err == nil {
		err = m.isVacant(v.ref) // before the work, and again after it
	}
	if err != nil {
		return Registered{}, discard(a, err)
	}
	g := v.current.Load()
	g.before = opened
	if g.settings.toZero {
		g.first = 1 // so that it is known whether it loads
	}
	if err := m.prepare(ctx, g); err != nil {
		return Registered{}, discard(a, err)
	}
	if err := m.admit(v); err != nil {
		if cleanup := g.release(true); cleanup != nil {
			err = fmt.Errorf("%w (and its folder is left behind: %w)", err, cleanup)
		}
		return Registered{}, err
	}
	made := Registered{Ref: v.ref, Workers: minWorkers}
	v.log.Info("model registered", "url", redact.URL(s.URL), "workers", minWorkers, "batch_size", g.settings.batchSize)
	workers, _, err := v.resize(minWorkers, maxWorkers, false) //nolint:contextcheck // a worker outlives the call that adds it
	v.changed(ctx, g, Change{Kind: ChangeRegistered})          // now that it says how many workers it has
	if err != nil {
		return made, err // it was unregistered in this very moment
	}
	if !s.Synchronous || len(workers) == 0 {
		return made, nil
	}
	if err := v.await(ctx, g, workers); err != nil {
		m.retract(WithActor(context.WithoutCancel(ctx), Actor{ActorOf(ctx).Who, "its workers did not start: " + reasonOf(err)}), v)
		return made, startFailure(v.ref.Name, v.ref.Version, err)
	}
	return made, nil
}

// startFailure is TorchServe's answer to workers that do not come up.
func startFailure(name, version string, cause error) error {
	if fault.Is(cause, fault.Draining) {
		return cause
	}
	f := fault.New(fault.LoadFailed, fmt.Sprintf("Failed to start workers for model %s version: %s", name, version), cause)
	f.Hint = reasonOf(cause)
	return f
}

// plan makes a version of an archive, without workers, that nobody can find yet.
func (m *Manager) plan(s Spec, a *archive.Archive) (v *Version, minWorkers, maxWorkers int, err error) {
	ref, err := identify(s, a)
	if err != nil {
		return nil, 0, 0, err
	}
	preset := m.opts.Presets[ref]
	set, err := m.opts.resolve(s, preset, a)
	if err != nil {
		return nil, 0, 0, err
	}
	minWorkers, maxWorkers = m.opts.workers(s, preset, &a.Settings)
	if err := startable(minWorkers); err != nil {
		return nil, 0, 0, err
	}
	v = &Version{
		ref: ref, spec: s, pool: newPool(set.responseTimeout), launcher: m.opts.Launcher, limits: m.opts.Limits, generations: firstGeneration,
		drain: m.opts.Drain, log: logger(m.opts.Logger, ref), manager: m, retired: make(chan struct{}), atStart: s.AtStartup, turn: make(chan struct{}, 1),
	}
	if m.opts.WarmUp == WarmUpAuto {
		v.pool.lastGood = v.keepGood
	}
	v.pool.rouse = m.keeper.rouse
	v.current.Store(&generation{number: firstGeneration, version: v, url: s.URL, settings: set, archive: a, begun: time.Now()})
	return v, minWorkers, maxWorkers, nil
}

// isVacant says why a version cannot be registered now.
func (m *Manager) isVacant(ref infer.ModelRef) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.vacant(ref)
}

// admit puts a version among the models.
func (m *Manager) admit(v *Version) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.vacant(v.ref); err != nil {
		return err
	}
	mod := m.models[v.ref.Name]
	if mod == nil {
		mod = &model{versions: map[string]*Version{}, standard: v.ref.Version}
		m.models[v.ref.Name] = mod
	}
	mod.versions[v.ref.Version] = v
	if v.atStart {
		m.startup[v.ref.Name] = true
	}
	return nil
}

// vacant says why a version cannot be registered now; m.mu is held.
func (m *Manager) vacant(ref infer.ModelRef) error {
	if m.closed {
		return fault.New(fault.Draining, "the server is shutting down", nil)
	}
	if mod := m.models[ref.Name]; mod != nil && mod.versions[ref.Version] != nil {
		return fault.Newf(fault.Conflict, "Model version %s is already registered for model %s", ref.Version, ref.Name)
	}
	return nil
}

// retract takes a version back that did not come up.
func (m *Manager) retract(ctx context.Context, v *Version) {
	m.mu.Lock()
	mod := m.models[v.ref.Name]
	mine := mod != nil && mod.versions[v.ref.Version] == v
	if mine {
		m.remove(mod, v)
	}
	m.mu.Unlock()
	if mine {
		m.dispose(ctx, v)
	}
}

// remove takes v out of the models; m.mu is held, and the caller calls dispose after it.
func (m *Manager) remove(mod *model, v *Version) {
	delete(mod.versions, v.ref.Version)
	delete(m.startup, v.ref.Name)
	var newest string // the default of those that are left, if the default one goes because it did not come up
	for name, other := range mod.versions {
		other.mu.Lock()
		other.atStart = false
		other.mu.Unlock()
		newest = max(newest, name)
	}
	switch {
	case len(mod.versions) == 0:
		delete(m.models, v.ref.Name)
	case mod.versions[mod.standard] == nil:
		mod.standard = newest
	}
	m.retiring.Add(1)
}

// dispose lets a removed version's requests be answered, ends its workers and forgets its archive.
func (m *Manager) dispose(ctx context.Context, v *Version) {
	defer m.retiring.Done()
	close(v.retired)
	v.pool.sleep(false, errNoWorker())
	if m.opts.Retire != nil {
		draining, done := within(ctx, m.hurried)
		draining, cancel := context.WithTimeout(draining, m.opts.Drain)
		_ = m.contain("a version was retired", func() { m.opts.Retire(draining, v) })
		cancel()
		done()
	}
	if err := v.stop(ctx); err != nil {
		v.log.Error("workers were not ended", "reason", err.Error())
	}
	g := v.current.Load()
	v.changed(ctx, g, Change{Kind: ChangeUnregistered})
	m.replaced(ctx, g, "")
	if err := g.release(true); err != nil {
		v.log.Error("the model's files were not removed", "reason", err.Error())
	}
	v.log.Info("model unregistered")
}

// Unregister removes a version; an empty Version means the default one. The default version goes only as the last one. It returns when what
// waited and ran was answered and the workers have ended; the version cannot be found any more from the beginning.
func (m *Manager) Unregister(ctx context.Context, ref infer.ModelRef) error {
	m.mu.Lock()
	v, mod, err := m.resolve(ref)
	if err == nil && v.ref.Version == mod.standard && len(mod.versions) > 1 {
		err = fault.Newf(fault.InvalidVersion, "Cannot remove default version for model %s", ref.Name)
	}
	if err != nil {
		m.mu.Unlock()
		return err
	}
	m.remove(mod, v)
	lost := m.dropTraffic(v.ref, len(mod.versions) == 0)
	m.mu.Unlock()
	m.tellTraffic(ctx, v.ref.Name, lost)
	m.dispose(context.WithoutCancel(ctx), v)
	return nil
}

// Scale sets the numbers of workers. A synchronous one returns when the added workers are ready, or the removed ones gone.
func (m *Manager) Scale(ctx context.Context, ref infer.ModelRef, minWorkers, maxWorkers int, synchronous bool) error {
	v, err := m.Resolve(ref)
	if err != nil {
		return err
	}
	switch {
	case minWorkers < 0:
		return fault.Newf(fault.BadRequest, "min_worker is %d: it cannot be less than 0.", minWorkers)
	case maxWorkers < minWorkers:
		return fault.New(fault.BadRequest, "max_worker cannot be less than min_worker.", nil)
	}
	if err := startable(minWorkers); err != nil {
		return err
	}
	g := v.current.Load()
	wanted, removed, err := v.resize(minWorkers, maxWorkers, true) //nolint:contextcheck // a worker outlives the call that adds it
	if err != nil {
		return err
	}
	v.log.Info("model scaled", "min_workers", minWorkers, "max_workers", maxWorkers)
	v.changed(ctx, v.current.Load(), Change{Kind: ChangeScaled, Reason: fmt.Sprintf("minimum %d, maximum %d", minWorkers, maxWorkers)})
	if !synchronous {
		return nil
	}
	ctx, done := within(ctx, m.sealed)
	defer done()
	if err := removed(ctx); err != nil {
		return err
	}
	if err := v.await(ctx, g, wanted); err != nil {
		if isCancel(err) {
			return err
		}
		version := ref.Version
		if version == "" {
			version = "null" // TorchServe names the version as the request did
		}
		return startFailure(ref.Name, version, err)
	}
	return nil
}
