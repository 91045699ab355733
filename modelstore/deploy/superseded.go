package deploy

import (
	"context"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// DecisionSuperseded is about a version that is not served because the version_policy of the model's config.pbtxt does not want it.
const DecisionSuperseded Decision = "superseded"

const whySuperseded = "the version_policy of the model's config.pbtxt does not want this version served"

// considerSuperseded deals with a version that is not to be served: one that serves goes once those serve that are to. It gives an archive that is not
// needed. mu is held.
func (d *Deployer) considerSuperseded(ctx context.Context, u *unit) *archive.Archive {
	left := u.release()
	if u.opening != nil {
		u.opening.cancel()
		u.opening = nil
	}
	u.looked, u.failure = "", nil
	if u.owns.Name == "" && u.putting != nil {
		u.putting.cancel()
		u.putting = nil
	}
	switch {
	case u.puttings > 0:
	case u.owns.Name == "":
		u.decide(DecisionSuperseded, whySuperseded)
	case !d.replaced(u):
		u.decide(DecisionServing, "it goes as soon as the versions serve that the model's config.pbtxt wants")
	default:
		d.retire(ctx, u)
	}
	return left
}

// replaced says whether the versions of a unit's model that are to be served are; mu is held.
func (d *Deployer) replaced(u *unit) bool {
	for _, other := range d.units {
		if other.entry.Name != u.entry.Name || !other.entry.Versioned || other.entry.Superseded || !other.present {
			continue
		}
		if other.owns.Name == "" || other.puttings > 0 {
			return false
		}
	}
	return true
}

// retire ends a version that is not to be served any more; mu is held.
func (d *Deployer) retire(ctx context.Context, u *unit) {
	names := []string{u.owns.Name}
	if !d.free(names, u) {
		return
	}
	d.enter(names, u)
	u.puttings++
	u.decide(DecisionSuperseded, whySuperseded)
	ref := u.owns
	ctx = rollout.WithActor(ctx, rollout.Actor{Who: whoStore, Why: whySuperseded})
	d.begin("a version was unregistered that is not wanted any more", func() { d.leave(ctx, ref) }, func(bug error) {
		u.puttings--
		d.exit(names)
		if bug != nil { // it may be registered still
			u.rest(time.Now())
			return
		}
		u.owns, u.served, u.posted = infer.ModelRef{}, "", false
		d.unclaim(u, ref)
	})
}
