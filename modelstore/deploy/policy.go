package deploy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/ledger"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// newcomer makes a version that began to serve the default one of its model, if it is to be that: because it was set by hand, or because the policy
// wants the latest and it is that.
func (d *Deployer) newcomer(ctx context.Context, u *unit, ref infer.ModelRef) {
	all, err := d.opts.Models.DescribeAll(ref.Name)
	if err != nil {
		return // it was unregistered in this moment
	}
	current := defaultOf(all)
	wanted := ref.Version
	d.locked(func() {
		switch hand := d.byHand[ref.Name]; {
		case hand != "" && slices.ContainsFunc(all, func(v rollout.Description) bool { return v.Ref.Version == hand }):
			wanted = hand
		case d.policy(u) != PolicyLatest || CompareVersions(ref.Version, current) <= 0:
			wanted = current
		}
	})
	if wanted != current {
		d.setDefault(ctx, infer.ModelRef{Name: ref.Name, Version: wanted}, current)
	}
}

// policy says how the default version of the unit's model is chosen.
func (d *Deployer) policy(u *unit) string {
	if u.entry.Versioned {
		return d.opts.FolderPolicy
	}
	return d.opts.FilePolicy
}

// settleDefault makes the version the default one of a model that the policy wants when the server starts.
func (d *Deployer) settleDefault(ctx context.Context, model string) {
	all, err := d.opts.Models.DescribeAll(model)
	if err != nil {
		return // there is no version left
	}
	current, best := defaultOf(all), ""
	d.locked(func() { best = d.best(model, all, "") })
	if best != "" && best != current { // what was it until now was not chosen to be it
		d.setDefault(ctx, infer.ModelRef{Name: model, Version: best}, "")
	}
}

func defaultOf(all []rollout.Description) string {
	for i := range all {
		if all[i].Default {
			return all[i].Ref.Version
		}
	}
	return ""
}

// best gives the version of a model that is to be its default one when without is not there; "" for the present one. mu is held.
func (d *Deployer) best(model string, all []rollout.Description, without string) string {
	var mine, failing []string // versions that the store holds
	policy := PolicyFirst
	for i := range all {
		v := &all[i]
		u := d.claims[v.Ref]
		switch {
		case v.Ref.Version == without:
		case v.Ref.Version == d.byHand[model]:
			return v.Ref.Version
		case u == nil || u.owns != v.Ref:
		case d.settling[v.Ref] && v.State == "failed":
			failing = append(failing, v.Ref.Version)
		default:
			mine = append(mine, v.Ref.Version)
		}
		if u != nil && d.policy(u) == PolicyLatest {
			policy = PolicyLatest
		}
	}
	if len(mine) == 0 {
		mine = failing
	}
	current := defaultOf(all)
	switch {
	case len(mine) == 0:
		return ""
	case without == current && without != "":
	case policy == PolicyFirst:
		return ""
	case slices.Contains(failing, current):
	case !slices.Contains(mine, current): // it is another one's, who wanted it so
		if latest := slices.MaxFunc(mine, CompareVersions); CompareVersions(latest, current) <= 0 {
			return ""
		}
	}
	return slices.MaxFunc(mine, CompareVersions)
}

// setDefault makes a version the default one, and remembers the one before for a rollback; "" for none that was meant to be it.
func (d *Deployer) setDefault(ctx context.Context, ref infer.ModelRef, before string) {
	if err := d.opts.Models.SetDefault(ctx, ref); err != nil {
		d.opts.Logger.Warn("the default version was not changed", "model", ref.Name, "version", ref.Version, "reason", err.Error())
		return
	}
	d.noteDefault(ref, before)
}

func (d *Deployer) noteDefault(ref infer.ModelRef, before string) {
	if before == "" || before == ref.Version {
		return
	}
	d.lock()
	d.earlier[ref.Name] = before
	d.unlock()
	d.remember(func(s *ledger.State) { s.Earlier[ref.Name] = before })
}

// succeed ends the version that a unit was before, once the one that it is now serves.
func (d *Deployer) succeed(ctx context.Context, u *unit, before, now infer.ModelRef) {
	if before.Name == now.Name {
		if all, err := d.opts.Models.DescribeAll(now.Name); err == nil && defaultOf(all) == before.Version {
			d.setDefault(ctx, now, before.Version)
			d.forgetDefault(before)
		}
	}
	d.lock()
	d.retiring[before] = true
	d.unlock()
	defer d.locked(func() {
		delete(d.retiring, before)
		d.unclaim(u, before)
	})
	d.leave(ctx, before)
}

// forgetDefault forgets that a version which goes was made the default one by hand, or was it before.
func (d *Deployer) forgetDefault(ref infer.ModelRef) {
	forget := func(all map[string]string) bool {
		if version, set := all[ref.Name]; !set || version != ref.Version {
			return false
		}
		delete(all, ref.Name)
		return true
	}
	d.lock()
	set, was := forget(d.byHand), forget(d.earlier)
	d.unlock()
	if set || was {
		d.remember(func(s *ledger.State) {
			forget(s.Defaults)
			forget(s.Earlier)
		})
	}
}

// leave unregisters a version. If it is the default one, the best of the others becomes that before.
func (d *Deployer) leave(ctx context.Context, ref infer.ModelRef) {
	all, err := d.opts.Models.DescribeAll(ref.Name)
	if err != nil {
		return // it is gone
	}
	d.forgetDefault(ref)
	if defaultOf(all) == ref.Version && len(all) > 1 {
		best := ""
		d.locked(func() { best = d.best(ref.Name, all, ref.Version) })
		if best == "" {
			best = latestBut(all, ref.Version)
		}
		d.setDefault(ctx, infer.ModelRef{Name: ref.Name, Version: best}, ref.Version)
	}
	err = d.opts.Models.Unregister(ctx, ref)
	if err != nil && !fault.Is(err, fault.ModelNotFound, fault.VersionNotFound) {
		d.opts.Logger.Error("a version was not unregistered", "model", ref.Name, "version", ref.Version, "reason", err.Error())
	}
	d.forgetScale(ref)
}

// latestBut gives the greatest of the other versions.
func latestBut(all []rollout.Description, version string) string {
	var names []string
	for i := range all {
		if name := all[i].Ref.Version; name != version {
			names = append(names, name)
		}
	}
	return slices.MaxFunc(names, CompareVersions)
}

// rescale gives a version that is new the numbers of workers that were set by hand, for itself or for the one whose place it takes.
func (d *Deployer) rescale(ctx context.Context, before, now infer.ModelRef) {
	d.lock()
	scale, set := d.scaled[scaleKey(now)]
	if !set && before.Name != "" {
		if scale, set = d.scaled[scaleKey(before)]; set {
			d.scaled[scaleKey(now)] = scale
		}
	}
	d.unlock()
	if !set {
		return
	}
	if err := d.opts.Models.Scale(ctx, now, scale.Min, scale.Max, true); err != nil {
		d.opts.Logger.Warn("the numbers of workers were not set again", "model", now.Name, "version", now.Version, "reason", err.Error())
	}
	d.remember(func(s *ledger.State) { s.Scaled[scaleKey(now)] = scale })
}

func (d *Deployer) forgetScale(ref infer.ModelRef) {
	d.lock()
	_, set := d.scaled[scaleKey(ref)]
	delete(d.scaled, scaleKey(ref))
	d.unlock()
	if set {
		d.remember(func(s *ledger.State) { delete(s.Scaled, scaleKey(ref)) })
	}
}

// scaleKey names a version in the ledger.
func scaleKey(ref infer.ModelRef) string { return fmt.Sprintf("%s/%s", ref.Name, ref.Version) }

// noteStarts looks at what was registered without waiting for its workers: it serves only once they do.
func (d *Deployer) noteStarts() {
	starting := map[*unit]infer.ModelRef{}
	d.locked(func() {
		for _, u := range d.units {
			if u.starting {
				starting[u] = u.owns
			}
		}
	})
	for u, ref := range starting {
		running, err := d.opts.Models.Describe(ref)
		d.locked(func() {
			switch calm := u.opening == nil && u.held == nil && u.puttings == 0 && u.failure == nil; {
			case !u.starting || u.owns != ref: // something else has become of it meanwhile
			case err != nil:
				u.starting = false
			case running.State == "deploying":
			case running.State != "failed":
				u.starting, u.arrival = false, time.Now()
				if calm && u.present {
					d.arrived(u, true)
				}
			case calm && u.present: // its workers are started again and again
				u.decide(DecisionFailed, running.Reason)
			}
		})
	}
}

// settleStarts looks at the versions that were loaded at the start: the default version of a model is none that did not come up while another did.
func (d *Deployer) settleStarts(ctx context.Context) {
	d.noteStarts()
	models := map[string]bool{}
	d.locked(func() {
		for ref := range d.settling {
			if d.free([]string{ref.Name}, nil) {
				models[ref.Name] = true
			}
		}
	})
	for model := range models {
		all, err := d.opts.Models.DescribeAll(model)
		d.locked(func() {
			settling := map[infer.ModelRef]bool{}
			for i := range all {
				if state := all[i].State; err == nil && (state == "deploying" || state == "failed") {
					settling[all[i].Ref] = true
				}
			}
			maps.DeleteFunc(d.settling, func(ref infer.ModelRef, _ bool) bool { return ref.Name == model && !settling[ref] })
		})
		if err == nil {
			d.settleDefault(ctx, model)
		}
	}
}
