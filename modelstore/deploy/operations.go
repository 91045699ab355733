package deploy

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/ledger"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/modelstore/watch"
)

// caller is somebody who works on models through the API.
type caller struct{ _ byte } // not of size 0: each is another one

// occupy waits until nothing is done to a unit and its models, and keeps Run from it. stop says that what is being done to the unit is not wanted any
// more. The function gives everything back.
func (d *Deployer) occupy(ctx context.Context, u *unit, stop bool, models ...string) (release func(), err error) {
	var left *archive.Archive
	c := &caller{}
	err = d.await(ctx, func() bool {
		if u != nil && stop && u.putting != nil {
			u.putting.cancel()
			u.putting, u.looked = nil, ""
		}
		idle := u == nil || !u.busy && u.puttings == 0 && (stop || u.opening == nil && u.held == nil)
		if idle = idle && d.free(models, c); idle {
			d.enter(models, c)
			left = d.seize(u)
		}
		return idle
	})
	d.closeAll(left)
	if err != nil {
		return nil, err
	}
	return func() {
		defer d.poke()
		d.locked(func() {
			if u != nil {
				u.busy = false
			}
			d.exit(models)
		})
	}, nil
}

// await waits until something is so. It is looked at with mu held.
func (d *Deployer) await(ctx context.Context, is func() bool) error {
	for {
		changed := d.unless(is)
		if changed == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// unless gives what is closed at the next change, nil if something is so already.
func (d *Deployer) unless(is func() bool) (changed <-chan struct{}) {
	so := true // also for whoever waits, should looking have a bug
	d.lock()
	defer func() {
		if so {
			d.unlock()
		} else {
			d.mu.Unlock() // nothing has changed
		}
	}()
	if so = is(); so {
		return nil
	}
	return d.changed
}

// seize keeps Run from a unit. It gives an archive that is not needed any more. mu is held.
func (d *Deployer) seize(u *unit) *archive.Archive {
	if u == nil {
		return nil
	}
	u.busy = true
	if u.opening != nil || u.held != nil {
		u.looked = ""
	}
	if u.opening != nil {
		u.opening.cancel()
		u.opening = nil
	}
	return u.release()
}

// Register registers a model over the API. One that was loaded from the store already, and that no client has registered yet, is taken for the answer,
// with what the client asks for; from then on it is there already, as TorchServe has it.
func (d *Deployer) Register(ctx context.Context, spec rollout.Spec) (rollout.Registered, error) {
	u := d.find(spec)
	if u == nil {
		return d.opts.Models.Register(ctx, spec) //nolint:wrapcheck // the model store's words are the client's
	}
	release, err := d.occupy(ctx, u, false)
	if err != nil {
		return rollout.Registered{}, err
	}
	defer release()
	d.lock()
	owns, posted := u.owns, u.posted
	d.unlock()
	if owns.Name != "" && !posted && (spec.Name == "" || spec.Name == owns.Name) {
		return d.adopt(ctx, u, owns, spec)
	}
	done, err := d.opts.Models.Register(ctx, spec)
	if err != nil {
		return done, err //nolint:wrapcheck // the same
	}
	d.own(u, done.Ref, spec)
	return done, nil
}

// find gives the unit that a registration is about.
func (d *Deployer) find(spec rollout.Spec) *unit {
	d.lock()
	defer d.unlock()
	var found *unit
	for _, u := range d.sorted() {
		switch {
		case !u.present || u.entry.Versioned || !d.stands(spec.URL, &u.entry):
		case spec.Name != "" && spec.Name == cmp.Or(u.owns.Name, u.given, u.ref.Name):
			return u
		case found == nil:
			found = u
		}
	}
	return found
}

// adopt gives a version that the store has loaded to the client who registers it.
func (d *Deployer) adopt(ctx context.Context, u *unit, ref infer.ModelRef, spec rollout.Spec) (rollout.Registered, error) {
	running, err := d.opts.Models.Describe(ref)
	if err != nil {
		return rollout.Registered{}, err //nolint:wrapcheck // the model store's words are the client's
	}
	done := rollout.Registered{Ref: ref, Workers: running.MinWorkers}
	d.lock()
	fixed := u.workers
	d.unlock()
	switch {
	case spec.Handler != "" || spec.Runtime != "" || spec.BatchSize != nil || spec.MaxBatchDelay != nil || spec.ResponseTimeout != nil ||
		spec.StartupTimeout != nil:
		if done, err = d.redeploy(ctx, u, ref, spec); err != nil {
			return done, err
		}
	case spec.InitialWorkers != nil && !fixed && *spec.InitialWorkers != running.MinWorkers:
		done.Workers = *spec.InitialWorkers
		if err := d.opts.Models.Scale(ctx, ref, done.Workers, done.Workers, spec.Synchronous); err != nil {
			return done, err //nolint:wrapcheck // the same
		}
	case spec.Synchronous && (running.State == "deploying" || running.State == "failed"): // the answer waits for its workers, or says why there are none
		if err := d.opts.Models.Scale(ctx, ref, running.MinWorkers, running.MaxWorkers, true); err != nil {
			return done, err //nolint:wrapcheck // the same
		}
	}
	d.lock()
	u.posted, u.asked = true, asked(spec)
	d.unlock()
	return done, nil
}

// redeploy loads what runs once more, with other settings.
func (d *Deployer) redeploy(ctx context.Context, u *unit, ref infer.ModelRef, spec rollout.Spec) (rollout.Registered, error) {
	d.lock()
	pinned, path := u.pinned, u.path
	d.unlock()
	begun := time.Now()
	var err error
	if pinned != nil {
		spec.Archive, err = d.opts.Archives.OpenKept(ctx, pinned.Dir, path, path, pinned.Digest)
	} else {
		spec.Archive, err = d.opts.Archives.OpenEntry(ctx, path)
	}
	if err != nil {
		return rollout.Registered{}, err //nolint:wrapcheck // it says which archive it is about
	}
	digest := spec.Archive.Digest
	spec.Name, spec.Version, spec.Synchronous = ref.Name, ref.Version, true
	spec.Steps = []rollout.Step{{Name: stepOpen, Took: time.Since(begun)}}
	done, err := d.opts.Models.Deploy(ctx, spec)
	if err != nil {
		return done, err //nolint:wrapcheck // the same
	}
	d.lock()
	u.served = digest
	d.unlock()
	return done, nil
}

// asked is what of a registration holds on when its archive changes.
func asked(spec rollout.Spec) rollout.Spec {
	return rollout.Spec{
		Handler: spec.Handler, Runtime: spec.Runtime, BatchSize: spec.BatchSize, MaxBatchDelay: spec.MaxBatchDelay, InitialWorkers: spec.InitialWorkers,
		ResponseTimeout: spec.ResponseTimeout, StartupTimeout: spec.StartupTimeout,
	}
}

// own notes that a client has registered what lies in the store: from now on its changes are followed, under the name that the client gave.
func (d *Deployer) own(u *unit, ref infer.ModelRef, spec rollout.Spec) {
	running, err := d.opts.Models.Describe(ref)
	if err != nil || running.Source != u.path { // it is another archive of that name
		return
	}
	held := false
	d.locked(func() {
		if u.owns.Name != "" && u.owns != ref {
			u = d.alias(u, spec.Name)
		}
		u.owns, u.ref, u.served, u.posted, u.asked, u.failure, u.clash = ref, ref, running.Digest, true, asked(spec), nil, infer.ModelRef{}
		d.claims[ref] = u
		if u.digest != running.Digest {
			u.looked = "" // is it what lies there now?
		}
		held = u.ignored != nil
		u.ignored, u.pinned = nil, nil
		u.begins()
	})
	if held {
		d.forget(u.key)
	}
}

// alias makes a unit for an entry under one more name; mu is held.
func (d *Deployer) alias(u *unit, name string) *unit {
	k := key{u.path, name}
	if other := d.units[k]; other != nil {
		return other
	}
	d.aliases[u.path] = append(d.aliases[u.path], name)
	other := d.unit(k)
	other.entry, other.present, other.looked, other.digest = u.entry, true, u.looked, u.digest
	return other
}

// Unregister removes a version. What lies in the store is then left alone until it changes, or until a client registers it.
func (d *Deployer) Unregister(ctx context.Context, ref infer.ModelRef) error {
	u, exact := d.owner(ref)
	if u == nil {
		err := d.opts.Models.Unregister(ctx, ref)
		if err == nil {
			d.vacated(exact)
		}
		return err //nolint:wrapcheck // the model store's words are the client's
	}
	release, err := d.occupy(ctx, u, true, exact.Name)
	if err != nil {
		return err
	}
	defer release()
	d.lock()
	owns := u.owns
	d.unlock()
	err = d.opts.Models.Unregister(ctx, ref)
	if owns != exact && fault.Is(err, fault.ModelNotFound, fault.VersionNotFound) {
		err = nil // it was being loaded for the first time, and that was broken off
	}
	if err != nil {
		return err //nolint:wrapcheck // the same
	}
	d.vacated(exact)
	d.hold(ctx, u, "it was unregistered by hand")
	return nil
}

// owner gives the unit from which a version runs, or is about to, and its exact name.
func (d *Deployer) owner(ref infer.ModelRef) (*unit, infer.ModelRef) {
	running, err := d.opts.Models.Describe(ref)
	if err != nil {
		return nil, ref
	}
	d.lock()
	defer d.unlock()
	if u := d.claims[running.Ref]; u != nil && (u.owns == running.Ref || u.putting != nil && u.putting.ref == running.Ref) {
		return u, running.Ref
	}
	return nil, running.Ref
}

// vacated notes that a version is not there any more because somebody wanted it so.
func (d *Deployer) vacated(ref infer.ModelRef) {
	d.forgetDefault(ref)
	d.forgetScale(ref)
	d.locked(func() {
		for _, rival := range d.rivals(ref) {
			rival.clash, rival.looked = infer.ModelRef{}, ""
		}
	})
	d.poke()
}

// hold notes that nothing runs from a unit, and that it is left alone until it changes.
func (d *Deployer) hold(ctx context.Context, u *unit, why string) {
	if by := rollout.ActorOf(ctx).Who; by != "" {
		why += " (" + by + ")"
	}
	var ignored ledger.Ignored
	var name string
	d.locked(func() {
		ignored = ledger.Ignored{Digest: cmp.Or(u.digest, u.served), Why: why, Since: time.Now()}
		ref := u.owns
		u.owns, u.served, u.posted, u.asked, u.failure = infer.ModelRef{}, "", false, rollout.Spec{}, nil
		u.ignored, u.pinned, u.starting = &ledger.Ignored{Digest: ignored.Digest, Why: ignored.Why, Since: ignored.Since}, nil, false
		u.decide(DecisionIgnored, why)
		d.unclaim(u, ref)
		name = u.String()
	})
	d.remember(func(s *ledger.State) {
		forgetIn(s, u.key)
		s.Ignored[name] = ignored
	})
}

// SetDefault makes a version the default one, and keeps it that until it goes.
func (d *Deployer) SetDefault(ctx context.Context, ref infer.ModelRef) error {
	var before string
	if running, err := d.opts.Models.Describe(infer.ModelRef{Name: ref.Name}); err == nil {
		before = running.Ref.Version
	}
	if err := d.opts.Models.SetDefault(ctx, ref); err != nil {
		return err //nolint:wrapcheck // the model store's words are the client's
	}
	d.noteDefault(ref, before)
	d.insist(ref)
	return nil
}

// insist notes that a version is the default one by hand.
func (d *Deployer) insist(ref infer.ModelRef) {
	d.lock()
	d.byHand[ref.Name] = ref.Version
	d.unlock()
	d.remember(func(s *ledger.State) { s.Defaults[ref.Name] = ref.Version })
}

// Scale sets the numbers of workers, which a version that takes this one's place gets, too.
func (d *Deployer) Scale(ctx context.Context, ref infer.ModelRef, minimum, maximum int, synchronous bool) error {
	_, exact := d.owner(ref)
	if err := d.opts.Models.Scale(ctx, ref, minimum, maximum, synchronous); err != nil {
		return err //nolint:wrapcheck // the model store's words are the client's
	}
	scale := ledger.Scale{Min: minimum, Max: maximum}
	d.lock()
	d.scaled[scaleKey(exact)] = scale
	d.unlock()
	d.remember(func(s *ledger.State) { s.Scaled[scaleKey(exact)] = scale })
	return nil
}

// Reload forgets what keeps a model's archives from being loaded: failures, and what was decided by hand. It looks at them again, and returns when
// that is done, with the reason if one does not serve.
func (d *Deployer) Reload(ctx context.Context, model string) error {
	if err := d.awaitReading(ctx, model); err != nil {
		return err
	}
	var mine []*unit
	d.locked(func() {
		mine = d.unitsOf(model)
		if d.opts.Once {
			d.take(d.latest, concerning(model, mine))
			mine = d.unitsOf(model)
		}
	})
	down := d.notServing(mine)
	var forgotten []key
	d.locked(func() {
		for _, u := range mine {
			if u.ignored != nil {
				forgotten = append(forgotten, u.key)
			}
			u.ignored, u.pinned, u.failure, u.looked, u.again, u.told, u.rests = nil, nil, nil, "", time.Time{}, "", time.Time{}
			if down[u.owns] { // the same archive may serve by now: what it lacked may have been installed
				u.served, u.starting = "", false
			}
			if u.starting {
				u.decide(DecisionDeploying, whyStarting)
			}
		}
	})
	if len(mine) == 0 {
		return d.notOfStore(model)
	}
	for _, k := range forgotten {
		d.forget(k)
	}
	d.poke()
	return d.awaitAll(ctx, mine)
}

// awaitReading has the store read, so that what was put there a moment ago is known, also as a model's if only the archive says which it is.
func (d *Deployer) awaitReading(ctx context.Context, model string) error {
	asked := time.Now()
	d.opts.Watcher.Rescan()
	return d.await(ctx, func() bool {
		if d.over {
			return true
		}
		if d.read.Before(asked) || slices.ContainsFunc(d.sorted(), func(u *unit) bool { return u.isUnderWay() && u.mayBe(model) }) {
			return false
		}
		return !d.opts.Once || !d.changing(concerning(model, d.unitsOf(model)))
	})
}

// changing says whether some of the store's entries, as they were read last, are not to be taken yet; mu is held.
func (d *Deployer) changing(some func(*watch.Entry) bool) bool {
	for i := range d.latest.Entries {
		if e := &d.latest.Entries[i]; e.State == watch.Changing && some(e) {
			return true
		}
	}
	return false
}

// concerning tells the entries that are, or would be, versions of a model, of which some are units already.
func concerning(model string, known []*unit) func(*watch.Entry) bool {
	return func(e *watch.Entry) bool {
		return e.Name == model || slices.ContainsFunc(known, func(u *unit) bool { return u.path == e.Path })
	}
}

// isUnderWay says whether something is about to come of the unit: its entry changes, or is opened and put to work.
func (u *unit) isUnderWay() bool {
	return u.present && (u.entry.State == watch.Changing || u.entry.State == watch.Settled && u.looked == "") || u.opening != nil || u.held != nil || u.puttings > 0
}

// mayBe says whether a unit whose name only its archive knows may be a model, by the name of its file.
func (u *unit) mayBe(model string) bool {
	rest, ok := strings.CutPrefix(u.about().Name, model)
	return ok && strings.HasPrefix(rest, ".")
}

// notOfStore says why a model that nothing in the store stands for cannot be loaded from there.
func (d *Deployer) notOfStore(model string) error {
	running, err := d.opts.Models.Describe(infer.ModelRef{Name: model})
	if err != nil {
		return fault.Newf(fault.ModelNotFound, "Model not found: %s", model)
	}
	f := fault.Newf(fault.Conflict, "Version %s of model %s does not come from the model store, so nothing of it can be loaded again from there",
		running.Ref.Version, model)
	f.Hint = "unregister it, and register it again by its URL"
	return f
}

// notServing says which of the units' versions are registered, and have no worker that came up.
func (d *Deployer) notServing(units []*unit) map[infer.ModelRef]bool {
	d.lock()
	refs := make([]infer.ModelRef, 0, len(units))
	for _, u := range units {
		if u.owns.Name != "" {
			refs = append(refs, u.owns)
		}
	}
	d.unlock()
	down := map[infer.ModelRef]bool{}
	for _, ref := range refs {
		if running, err := d.opts.Models.Describe(ref); err == nil && running.Ref == ref {
			down[ref] = running.State == "failed"
		}
	}
	return down
}

// unitsOf gives the units that are, or would be, versions of a model; mu is held.
func (d *Deployer) unitsOf(model string) []*unit {
	var mine []*unit
	for _, u := range d.sorted() {
		if u.about().Name == model || u.owns.Name == model {
			mine = append(mine, u)
		}
	}
	return mine
}

// awaitAll waits until nothing is under way for any of the units.
func (d *Deployer) awaitAll(ctx context.Context, units []*unit) error {
	err := d.await(ctx, func() bool {
		return !slices.ContainsFunc(units, func(u *unit) bool {
			// A store that is not followed does not tell when what begins to change now has stopped.
			return u.isUnderWay() && (!d.opts.Once || u.entry.State != watch.Changing) || u.starting && u.decision == DecisionDeploying
		})
	})
	if err != nil {
		return err
	}
	d.lock()
	defer d.unlock()
	var errs []error
	for _, u := range units {
		switch {
		case u.present && u.entry.State == watch.Incomplete:
			errs = append(errs, fault.Newf(fault.InvalidModel, "%s does not serve: it is not complete: %s", u.path, u.entry.Reason))
		case u.decision == DecisionFailed || u.decision == DecisionRefused:
			errs = append(errs, fault.Newf(fault.InvalidModel, "%s does not serve: %s", u.path, u.reason))
		}
	}
	return errors.Join(errs...)
}
