package deploy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// place starts to make a unit's opened archive what runs, as soon as nothing else is done to its model. A newer archive of the same version does not
// wait for the one before it, which it voids. It gives an archive that is not needed. mu is held.
func (d *Deployer) place(ctx context.Context, u *unit) *archive.Archive {
	ref := u.held.ref
	if owner := d.claims[ref]; owner != nil && owner != u {
		d.clashes(u, ref, clashText(owner, u, ref))
		return u.release()
	}
	names := u.lanesOf(ref)
	switch {
	case u.puttings > 0 && (u.putting == nil || u.putting.ref != ref):
		if u.putting != nil {
			u.putting.cancel() // another version is wanted now
			u.putting = nil
		}
		return nil
	case !d.free(names, u), u.puttings == 0 && d.deploys >= mostDeploys:
		return nil
	}
	d.put(ctx, u, names)
	return nil
}

// clashText says for people which entries of the store are the same version.
func clashText(owner, u *unit, ref infer.ModelRef) string {
	return fmt.Sprintf("%s and %s are both version %s of model %s: the first one goes on, and the other one takes its place when it goes away",
		owner.path, u.path, ref.Version, ref.Name)
}

// clashes notes that a unit cannot be what another one is; mu is held.
func (d *Deployer) clashes(u *unit, ref infer.ModelRef, reason string) {
	u.clash = ref
	if u.decision == DecisionRefused && u.reason == reason {
		return
	}
	u.decide(DecisionRefused, reason)
	d.tell(u.refusal(reason))
	d.opts.Logger.Warn("an archive of the model store is not loaded", "path", u.path, "reason", reason)
}

// put starts the work; mu is held.
func (d *Deployer) put(ctx context.Context, u *unit, names []string) {
	h := u.held
	u.held = nil
	ctx, cancel := context.WithCancel(rollout.WithActor(ctx, rollout.Actor{Who: whoStore, Why: u.cause}))
	j := &job{cancel: cancel, fingerprint: h.digest, ref: h.ref}
	u.putting = j
	u.puttings++
	d.deploys++
	d.claims[h.ref] = u
	u.starting = false
	d.enter(names, u)
	u.decide(DecisionDeploying, "")
	var err error
	d.begin("an archive was deployed", func() { err = d.bring(ctx, u, h) }, func(bug error) {
		defer cancel()
		u.puttings--
		d.deploys--
		d.exit(names)
		if bug != nil {
			err = bug
		}
		d.placed(ctx, u, j, err)
	})
}

// foreign is a version that nothing in the store stands for.
type foreign struct{ text string }

func (f *foreign) Error() string { return f.text }

// bring makes an archive what runs from a unit. What ran from it as another version ends when the new one serves.
func (d *Deployer) bring(ctx context.Context, u *unit, h *held) error {
	var before infer.ModelRef
	var asked rollout.Spec
	var served string
	d.locked(func() { before, asked, served = u.owns, u.asked, u.served })
	same := false
	if before != h.ref {
		var err error
		if same, err = d.adopts(u, h); err != nil || same {
			d.closeAll(h.archive)
		}
		if err != nil {
			return err
		}
	}
	if !same {
		if err := d.deploy(ctx, u, h, before, asked, served); err != nil {
			return err
		}
	}
	if before != h.ref {
		d.rescale(ctx, before, h.ref)
		if before.Name != "" {
			d.succeed(ctx, u, before, h.ref)
		}
		d.newcomer(ctx, u, h.ref)
	}
	d.opts.Logger.Info("the model store's archive serves", "path", u.path, "model", h.ref.Name, "version", h.ref.Version, "digest", h.digest,
		"before", served)
	return nil
}

// deploy makes an archive what runs as its version.
func (d *Deployer) deploy(ctx context.Context, u *unit, h *held, before infer.ModelRef, asked rollout.Spec, served string) error {
	spec := asked
	if before == h.ref { // rollout knows what was asked for
		spec = rollout.Spec{}
	}
	spec.URL, spec.Name, spec.Version, spec.Archive, spec.Steps = u.url, h.ref.Name, h.ref.Version, h.archive, h.steps
	spec.AtStartup, spec.Synchronous = true, true
	swaps := before == h.ref && served != "" && served != h.digest
	if swaps {
		d.locked(func() { u.leaving[served]++ })
	}
	err := d.try("a model was deployed", func() error {
		_, err := d.opts.Models.Deploy(ctx, spec)
		return err //nolint:wrapcheck // the model store's words are the operator's
	})
	if err != nil {
		return d.explain(u, served, swaps, err)
	}
	d.locked(func() { u.owns, u.served = h.ref, h.digest })
	return nil
}

// explain adds what the check has found to a failure, after which what served does not leave.
func (d *Deployer) explain(u *unit, served string, swaps bool, err error) error {
	d.lock()
	defer d.unlock()
	if swaps && u.leaving[served] > 1 {
		u.leaving[served]--
	} else if swaps {
		delete(u.leaving, served)
	}
	if u.findings == "" || errors.Is(err, rollout.ErrSuperseded) {
		return err
	}
	return fmt.Errorf("%w; the check says: %s", err, u.findings)
}

// adopts looks for a version that runs already although no unit stands for it. One of the same archive is the unit's from now on; one from elsewhere
// is in its way.
func (d *Deployer) adopts(u *unit, h *held) (same bool, err error) {
	running, err := d.opts.Models.Describe(h.ref)
	if err != nil || running.Ref != h.ref {
		return false, nil //nolint:nilerr // there is none
	}
	if running.Source != u.path {
		return false, &foreign{fmt.Sprintf("version %s of model %s is registered from %s already: unregister it, and %s takes its place",
			h.ref.Version, h.ref.Name, running.Source, u.path)}
	}
	if running.Digest != h.digest {
		return false, nil
	}
	d.locked(func() { u.owns, u.served, u.posted = h.ref, h.digest, true }) // by the client who was quicker
	return true, nil
}

// placed notes how a job ended; mu is held.
func (d *Deployer) placed(ctx context.Context, u *unit, j *job, err error) {
	newest := u.putting == j
	if newest {
		u.putting = nil
	}
	if u.owns != j.ref && (u.putting == nil || u.putting.ref != j.ref) {
		d.unclaim(u, j.ref)
	}
	var other *foreign
	switch {
	case err == nil:
		d.arrived(u, newest)
	case errors.Is(err, rollout.ErrSuperseded):
		if newest { // by somebody else: is it still as it should be?
			u.looked, u.again = "", time.Now().Add(lookAgain)
		}
	case ctx.Err() != nil, fault.Is(err, fault.Draining):
		if newest {
			u.looked = ""
		}
	case errors.Is(err, archive.ErrChanged):
		if newest {
			d.unopened(u, "", err)
		}
	case errors.As(err, &other):
		d.clashes(u, j.ref, other.text)
	case newest:
		d.unplaced(u, j, err)
	}
}

// arrived notes that a unit's archive serves; mu is held.
func (d *Deployer) arrived(u *unit, newest bool) {
	switch {
	case newest:
		u.failure, u.arrival = nil, time.Now()
		decision, reason := DecisionServing, ""
		if u.pinned != nil && u.pinned.Digest == u.served && u.ignored != nil {
			decision, reason = DecisionRolledBack, u.ignored.Why
		}
		u.decide(decision, reason)
	case u.putting == nil && u.held == nil && u.opening == nil && u.served != u.digest && u.pinned == nil:
		u.looked = "" // it was to be voided, and was ready before that
	}
}

// unplaced notes that a unit's archive does not serve; mu is held.
func (d *Deployer) unplaced(u *unit, j *job, err error) {
	u.failed(j.fingerprint, err, time.Now())
	d.opts.Logger.Warn("an archive of the model store does not serve", "path", u.path, "model", j.ref.Name, "version", j.ref.Version,
		"attempts", u.failure.attempts, "reason", u.failure.reason)
	if u.owns == j.ref {
		return // rollout has told
	}
	c := u.refusal(u.failure.reason)
	c.Ref, c.Digest = j.ref, j.fingerprint
	if u.owns.Name != "" {
		c.Kind = rollout.ChangeSwapFailed
	}
	d.tell(c)
}
