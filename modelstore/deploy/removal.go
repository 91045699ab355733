package deploy

import (
	"context"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/ledger"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// considerGone deals with a unit whose entry is not in the store any more. It gives an archive that is not needed. mu is held.
func (d *Deployer) considerGone(ctx context.Context, u *unit, now time.Time) *archive.Archive {
	left := u.release()
	if u.opening != nil {
		u.opening.cancel()
		u.opening = nil
	}
	u.looked, u.failure = "", nil
	if u.owns.Name == "" && u.putting != nil { // it is not wanted any more
		u.putting.cancel()
		u.putting = nil
	}
	switch {
	case u.puttings > 0 || u.goneOK:
		return left
	case u.owns.Name == "":
		if d.doubt == "" {
			d.drop(u)
		}
		return left
	case d.doubt != "":
		u.decide(DecisionGone, d.doubt)
		return left
	case now.Before(u.gone.Add(d.opts.RemovalDelay)):
		u.decide(DecisionGone, "it is unregistered if it is not there again soon")
		if d.opts.Removal == RemovalKeep {
			u.decide(DecisionGone, "what was unpacked goes on serving")
		}
		return left
	}
	d.removed(ctx, u)
	return left
}

// drop forgets a unit; mu is held.
func (d *Deployer) drop(u *unit) {
	delete(d.units, u.key)
	if u.owns.Name != "" {
		d.unclaim(u, u.owns)
	}
	if len(d.aliases[u.path]) > 0 && u.given != "" {
		var others []string
		for _, given := range d.aliases[u.path] {
			if given != u.given {
				others = append(others, given)
			}
		}
		d.aliases[u.path] = others
	}
}

// removed deals with a unit that is gone for good; mu is held.
func (d *Deployer) removed(ctx context.Context, u *unit) {
	if heirs := d.rivals(u.owns); len(heirs) > 0 {
		d.inherit(u, heirs[0])
		return
	}
	what := u.path + " was removed from the model store"
	if d.opts.Removal == RemovalKeep {
		u.goneOK = true
		u.decide(DecisionGone, "what was unpacked goes on serving")
		d.tell(rollout.Change{
			Ref: u.owns, Kind: ChangeGone, Digest: u.served, Source: u.path, Actor: rollout.Actor{Who: whoStore, Why: what},
			Reason: "what was unpacked goes on serving; unregister the model by hand, or set model_store_removal=unregister",
		})
		d.opts.Logger.Warn("an archive was removed, and what was unpacked goes on serving", "path", u.path, "model", u.owns.Name)
		return
	}
	names := []string{u.owns.Name}
	if !d.free(names, u) {
		return
	}
	d.enter(names, u)
	u.puttings++
	u.decide(DecisionGone, "it is being unregistered")
	ref := u.owns
	ctx = rollout.WithActor(ctx, rollout.Actor{Who: whoStore, Why: what})
	d.begin("a model was unregistered whose archive was removed", func() {
		d.leave(ctx, ref)
		d.forgetKept(u.key)
	}, func(bug error) {
		u.puttings--
		d.exit(names)
		if bug != nil { // it may be registered still
			u.rest(time.Now())
			return
		}
		u.owns, u.served, u.posted = infer.ModelRef{}, "", false
		d.unclaim(u, ref)
		if !u.present {
			d.drop(u)
		}
	})
}

// inherit gives what serves from a unit that is gone to another entry that was to be the same version; mu is held.
func (d *Deployer) inherit(u, heir *unit) {
	ref := u.owns
	heir.owns, heir.served, heir.clash, heir.looked, heir.failure = ref, u.served, infer.ModelRef{}, "", nil
	d.claims[ref] = heir
	u.owns, u.served = infer.ModelRef{}, ""
	d.drop(u)
	d.opts.Logger.Info("another archive takes the place of one that was removed", "path", heir.path, "removed", u.path)
	d.poke()
}

// forgetKept removes what was kept of an entry that is gone.
func (d *Deployer) forgetKept(k key) {
	var dirs []string
	d.remember(func(s *ledger.State) {
		forgetIn(s, k)
		var left []ledger.Kept
		dirs = nil
		for i := range s.Kept {
			if s.Kept[i].Source == k.path {
				dirs = append(dirs, s.Kept[i].Dir)
			} else {
				left = append(left, s.Kept[i])
			}
		}
		s.Kept = left
	})
	d.removeKept(dirs)
}
