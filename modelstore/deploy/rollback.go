package deploy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/ledger"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// RolledBack is what a rollback did.
type RolledBack struct {
	From       infer.ModelRef
	FromDigest string
	To         infer.ModelRef
	ToDigest   string
	Source     string // of both, in the store; of To in a folder of versions
}

// whyRolledBack begins the reason for which an entry is ignored that was rolled back from.
const whyRolledBack = "rolled back"

// Rollback goes back to the archive that served before the present one, or to the one whose digest begins with to. In a folder of versions it goes
// back to the version that was the default one before, or to the one named to, unless version names one. What lies in the store is then not loaded
// again until it changes, or until Reload.
func (d *Deployer) Rollback(ctx context.Context, model, version, to string) (RolledBack, error) {
	u, exact := d.owner(infer.ModelRef{Name: model, Version: version})
	if u == nil {
		if _, err := d.opts.Models.Describe(infer.ModelRef{Name: model, Version: version}); err != nil {
			return RolledBack{}, err //nolint:wrapcheck // the model store's words are the client's
		}
		return RolledBack{}, fault.Newf(fault.Conflict, "Version %s of model %s does not come from the model store, so nothing of it was kept", exact.Version, model)
	}
	ctx = withWho(ctx, "rollback")
	d.lock()
	folders, owns := u.entry.Versioned && version == "", u.owns
	d.unlock()
	if owns != exact {
		return RolledBack{}, fault.Newf(fault.Conflict, "Version %s of model %s is being loaded for the first time", exact.Version, model)
	}
	release, err := d.occupy(ctx, u, true, model)
	if err != nil {
		return RolledBack{}, err
	}
	defer release()
	if folders {
		return d.rollbackVersion(ctx, u, exact, to)
	}
	return d.rollbackArchive(ctx, u, exact, to)
}

// withWho notes who asks, unless somebody is noted.
func withWho(ctx context.Context, who string) context.Context {
	a := rollout.ActorOf(ctx)
	if a.Who == "" {
		a.Who = who
	}
	return rollout.WithActor(ctx, a)
}

// rollbackArchive puts an earlier archive in the place of the present one.
func (d *Deployer) rollbackArchive(ctx context.Context, u *unit, from infer.ModelRef, to string) (RolledBack, error) {
	if err := d.awaitLeft(ctx, u); err != nil {
		return RolledBack{}, err
	}
	d.lock()
	served, store, path, unkept := u.served, u.digest, u.path, u.unkept
	d.unlock()
	k, err := choose(d.opts.Ledger.State().Kept, from, path, served, store, to)
	if err != nil {
		if unkept != "" {
			err.Hint = "the one before was not kept: " + unkept
		}
		return RolledBack{}, err
	}
	begun := time.Now()
	a, openErr := d.opts.Archives.OpenKept(ctx, k.Dir, path, path, k.Digest)
	if openErr != nil {
		return RolledBack{}, openErr //nolint:wrapcheck // it says which archive it is about
	}
	done := RolledBack{From: from, FromDigest: served, To: infer.ModelRef{Name: k.Model, Version: k.Version}, ToDigest: k.Digest, Source: path}
	ignored := ledger.Ignored{Digest: store, Why: fmt.Sprintf(whyRolledBack+" to %s (%s)", short(k.Digest), rollout.ActorOf(ctx).Who), Since: time.Now()}
	d.lock()
	d.claims[done.To] = u
	before := u.ignored
	pinnedBefore := u.pinned
	u.ignored, u.pinned = &ignored, &k
	d.unlock()
	h := &held{archive: a, ref: done.To, digest: k.Digest, pinned: true, steps: []rollout.Step{{Name: stepOpen, Took: time.Since(begun)}}}
	if err := d.try("a model was rolled back", func() error { return d.bring(ctx, u, h) }); err != nil {
		d.locked(func() {
			u.ignored, u.pinned = before, pinnedBefore
			if done.To != from {
				d.unclaim(u, done.To)
			}
		})
		return RolledBack{}, err
	}
	var name string
	d.locked(func() {
		u.failure = nil
		u.ref = done.To
		u.decide(DecisionRolledBack, ignored.Why)
		d.toldRollback(ctx, done)
		name = u.String()
	})
	d.remember(func(s *ledger.State) {
		forgetIn(s, u.key)
		s.Ignored[name] = ignored
		s.Pinned[scaleKey(done.To)] = ledger.Pinned{Digest: k.Digest, Dir: k.Dir, Why: ignored.Why, Since: ignored.Since}
	})
	return done, nil
}

// choose finds the kept archive that a rollback goes to.
func choose(kept []ledger.Kept, from infer.ModelRef, path, served, store, to string) (ledger.Kept, *fault.Error) {
	var mine []ledger.Kept
	for _, k := range kept {
		if k.Source == path && k.Model == from.Name && k.Digest != served {
			mine = append(mine, k)
		}
	}
	slices.SortStableFunc(mine, func(a, b ledger.Kept) int { return b.At.Compare(a.At) })
	for _, k := range mine {
		switch {
		case to == "" && k.Digest != store: // and not what was rolled back from
			return k, nil
		case to != "" && (strings.HasPrefix(k.Digest, to) || strings.HasPrefix(hexOf(k.Digest), to)):
			return k, nil
		}
	}
	f := fault.Newf(fault.Conflict, "There is no earlier archive of model %s", from.Name)
	if to != "" {
		f = fault.Newf(fault.Conflict, "No earlier archive of model %s has a digest that begins with %s", from.Name, to)
	}
	f.Hint = "none was replaced since the server began to keep them"
	if len(mine) > 0 {
		var have []string
		for _, k := range mine {
			have = append(have, short(k.Digest))
		}
		f.Hint = "there are: " + strings.Join(have, ", ")
	}
	return ledger.Kept{}, f
}

// hexOf gives a digest without its kind.
func hexOf(digest string) string { return digest[strings.IndexByte(digest, ':')+1:] }

// short is a digest for people.
func short(digest string) string {
	const digits = 12
	text := hexOf(digest)
	return text[:min(len(text), digits)]
}

// toldRollback notes what is to be told; mu is held.
func (d *Deployer) toldRollback(ctx context.Context, r RolledBack) {
	reason := fmt.Sprintf("from %s to %s", short(r.FromDigest), short(r.ToDigest))
	if r.From != r.To {
		reason = fmt.Sprintf("from version %s (%s) to version %s (%s)", r.From.Version, short(r.FromDigest), r.To.Version, short(r.ToDigest))
	}
	d.tell(rollout.Change{
		Ref: r.To, Kind: rollout.ChangeRolledBack, Digest: r.ToDigest, Source: r.Source, Actor: rollout.ActorOf(ctx), Reason: reason,
	})
}

// rollbackVersion makes another version of a folder of versions the default one, and unregisters the present one.
func (d *Deployer) rollbackVersion(ctx context.Context, u *unit, from infer.ModelRef, to string) (RolledBack, error) {
	all, err := d.opts.Models.DescribeAll(from.Name)
	if err != nil {
		return RolledBack{}, err //nolint:wrapcheck // the model store's words are the client's
	}
	var target *rollout.Description
	var served string
	d.locked(func() { target, served = before(all, from.Version, d.earlier[from.Name], to), u.served })
	if target == nil {
		f := fault.Newf(fault.Conflict, "There is no other version of model %s to go back to", from.Name)
		if to != "" {
			f = fault.Newf(fault.Conflict, "Model %s has no other version that is named %s or has a digest that begins so", from.Name, to)
		}
		return RolledBack{}, f
	}
	done := RolledBack{From: from, FromDigest: served, To: target.Ref, ToDigest: target.Digest, Source: target.Source}
	if err := d.opts.Models.SetDefault(ctx, target.Ref); err != nil {
		return RolledBack{}, err //nolint:wrapcheck // the same
	}
	d.forgetDefault(from)
	if err := d.opts.Models.Unregister(ctx, from); err != nil {
		return done, err //nolint:wrapcheck // the same
	}
	d.forgetScale(from)
	d.hold(ctx, u, whyRolledBack+" to version "+target.Ref.Version)
	best := ""
	d.locked(func() {
		best = d.best(from.Name, all, from.Version)
		d.toldRollback(ctx, done)
	})
	if best != target.Ref.Version {
		d.insist(target.Ref)
	}
	return done, nil
}

// before finds the version that a rollback goes to: the one that is asked for, else the default one before, else the greatest below the present one.
func before(all []rollout.Description, present, earlier, to string) *rollout.Description {
	var found *rollout.Description
	for i := range all {
		v := &all[i]
		name := v.Ref.Version
		switch {
		case name == present:
		case to != "":
			if name == to || v.Digest != "" && (strings.HasPrefix(v.Digest, to) || strings.HasPrefix(hexOf(v.Digest), to)) {
				return v
			}
		case name == earlier:
			return v
		case CompareVersions(name, present) < 0 && (found == nil || CompareVersions(name, found.Ref.Version) > 0):
			found = v
		}
	}
	return found
}
