package deploy

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/watch"
)

// longestSleep is how long Run waits when there is nothing to wait for.
const longestSleep = time.Hour

// step starts what can be started, and says when something becomes due.
func (d *Deployer) step(ctx context.Context) time.Time {
	_ = d.contain("clients' copies were looked for", d.trace)
	var left []*archive.Archive
	var next time.Time
	d.locked(func() {
		now := time.Now()
		for _, u := range d.sorted() {
			if u.busy || now.Before(u.rests) {
				continue
			}
			if d.contain("an entry of the model store was looked after", func() { left = append(left, d.consider(ctx, u, now)) }) != nil {
				u.rest(now)
			}
		}
		next = d.nextDue(now)
	})
	d.closeAll(left...)
	return next
}

// nextDue says when something becomes due next; mu is held.
func (d *Deployer) nextDue(now time.Time) time.Time {
	next := now.Add(longestSleep)
	starting := false
	for _, u := range d.units {
		starting = starting || u.starting
		if due := d.due(u); due.After(now) && due.Before(next) { // what is due already waits for something that wakes Run
			next = due
		}
	}
	if (starting || len(d.settling) > 0) && now.Add(settlePoll).Before(next) {
		next = now.Add(settlePoll)
	}
	return next
}

// consider starts what is to be done about a unit. It gives an archive that is not needed any more. mu is held.
func (d *Deployer) consider(ctx context.Context, u *unit, now time.Time) *archive.Archive {
	if !u.present {
		return d.considerGone(ctx, u, now)
	}
	if u.entry.Superseded {
		return d.considerSuperseded(ctx, u)
	}
	switch u.entry.State {
	case watch.Incomplete:
		d.considerIncomplete(u, now)
	case watch.Changing:
		u.wait(u.entry.Reason)
	case watch.Settled:
		if d.isEcho(u) || d.isLent(u) {
			return nil
		}
		if u.decision == DecisionWaiting && u.looked == u.entry.Fingerprint { // it is again what it was
			u.looked = ""
		}
		if d.wants(u, now) {
			d.look(ctx, u)
		}
	}
	if u.held == nil {
		return nil
	}
	return d.place(ctx, u)
}

// A folder that is used in place and whose handler writes into it would be loaded again for ever.
const (
	echoAfter  = 10 * time.Second // of the begin to serve: what changes until then may be the handler's own work
	mostEchoes = 3                // in a row
)

// isEcho says whether a folder has changed each time that it was loaded, so that its handler seems to write into it; mu is held.
func (d *Deployer) isEcho(u *unit) bool {
	if u.entry.Kind != watch.Folder || u.owns.Name == "" || u.looked == "" || u.looked == u.entry.Fingerprint || u.opening != nil || u.puttings > 0 {
		return false
	}
	if u.arrival.IsZero() || u.entry.Since.After(u.arrival.Add(echoAfter)) {
		u.echoes = 0
		return false
	}
	if u.echoes++; u.echoes <= mostEchoes {
		return false
	}
	u.looked = u.entry.Fingerprint
	u.decide(DecisionRefused, "its files change each time that it is loaded: its handler seems to write into its own folder, which is used in place; it is loaded again when "+
		"it changes later than "+echoAfter.String()+" after the last load, or by flambeau reload "+u.owns.Name)
	d.tell(u.refusal(u.reason))
	d.opts.Logger.Warn("a folder of the model store is not loaded again", "path", u.path, "reason", u.reason)
	return true
}

// wait notes that the unit is not looked at yet.
func (u *unit) wait(reason string) {
	if u.opening == nil && u.held == nil && u.puttings == 0 {
		u.decide(DecisionWaiting, reason)
	}
}

// considerIncomplete tells once about an entry that stays incomplete.
func (d *Deployer) considerIncomplete(u *unit, now time.Time) {
	u.wait(u.entry.Reason)
	if u.told == u.entry.Fingerprint || now.Before(u.entry.Since.Add(incompleteAfter)) {
		return
	}
	u.told = u.entry.Fingerprint
	c := u.refusal("it is not complete: " + u.entry.Reason)
	c.Digest = ""
	d.tell(c)
	d.opts.Logger.Warn("an archive is not complete", "path", u.path, "reason", u.entry.Reason)
}

// wants says whether a unit is to be opened now; mu is held.
func (d *Deployer) wants(u *unit, now time.Time) bool {
	if d.opens >= mostOpens || now.Before(u.again) {
		return false
	}
	if u.opening != nil {
		return u.opening.fingerprint != u.entry.Fingerprint
	}
	if u.looked != u.entry.Fingerprint {
		return true
	}
	return u.failure != nil && u.failure.due(now) && u.held == nil && u.puttings == 0
}

// due says when something about the unit becomes due that nobody tells of; zero for never. mu is held.
func (d *Deployer) due(u *unit) time.Time {
	if u.rests.After(time.Now()) {
		return u.rests
	}
	var due time.Time
	soonest := func(t time.Time) {
		if due.IsZero() || t.Before(due) {
			due = t
		}
	}
	switch {
	case u.busy:
	case !u.present:
		if !u.goneOK && d.doubt == "" && u.puttings == 0 {
			soonest(later(u.gone.Add(d.opts.RemovalDelay), u.again))
		}
	case u.entry.State == watch.Incomplete:
		if u.told != u.entry.Fingerprint {
			soonest(u.entry.Since.Add(incompleteAfter))
		}
	case u.entry.State == watch.Settled && d.opens < mostOpens && u.opening == nil && u.held == nil && u.puttings == 0:
		if u.looked != u.entry.Fingerprint {
			soonest(u.again)
		} else if u.failure != nil && !u.failure.next.IsZero() {
			soonest(u.failure.next)
		}
	}
	return due
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// lanesOf gives the models that putting a unit's archive in place changes; mu is held.
func (u *unit) lanesOf(ref infer.ModelRef) []string {
	names := []string{ref.Name}
	if u.owns.Name != "" && u.owns.Name != ref.Name {
		names = append(names, u.owns.Name)
	}
	return names
}

// free says whether holder may change the models; mu is held.
func (d *Deployer) free(names []string, holder any) bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		l := d.lanes[name]
		return l != nil && l.holder != holder
	})
}

// enter takes the right to change models, which are free; mu is held.
func (d *Deployer) enter(names []string, holder any) {
	for _, name := range names {
		if d.lanes[name] == nil {
			d.lanes[name] = &lane{holder: holder}
		}
		d.lanes[name].n++
	}
}

// exit gives it back; mu is held.
func (d *Deployer) exit(names []string) {
	for _, name := range names {
		l := d.lanes[name]
		if l.n--; l.n == 0 {
			delete(d.lanes, name)
		}
	}
}

// rivals gives the units that would be a version which another unit is, the first one first; mu is held.
func (d *Deployer) rivals(ref infer.ModelRef) []*unit {
	var found []*unit
	for u := range maps.Values(d.units) {
		if u.clash == ref && u.present {
			found = append(found, u)
		}
	}
	slices.SortFunc(found, func(a, b *unit) int { return a.serial - b.serial })
	return found
}

// unclaim ends a unit's claim to a version, and lets its rivals try; mu is held.
func (d *Deployer) unclaim(u *unit, ref infer.ModelRef) {
	if d.claims[ref] != u {
		return
	}
	delete(d.claims, ref)
	for _, rival := range d.rivals(ref) {
		rival.clash, rival.looked, rival.failure = infer.ModelRef{}, "", nil
	}
}
