package deploy

import (
	"fmt"
	"time"

	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/modelstore/watch"
)

// Kinds of changes that are only told here.
const (
	ChangeStoreLost rollout.ChangeKind = "store_lost" // the store cannot be read, or is empty all at once: what runs stays
	ChangeStoreBack rollout.ChangeKind = "store_back" // it can be read again
	ChangeGone      rollout.ChangeKind = "gone"       // an archive was removed, and what was unpacked of it goes on serving
)

// follow takes a snapshot over.
func (d *Deployer) follow(s watch.Snapshot) {
	d.lock()
	defer d.unlock()
	d.read = s.Began
	if d.opts.Once && d.taken {
		d.latest = s
		return
	}
	d.take(s, nil)
}

// take makes the units what a snapshot says; only narrows it to some entries, which are then all that is looked at. mu is held.
func (d *Deployer) take(s watch.Snapshot, only func(*watch.Entry) bool) {
	now := time.Now()
	if s.Err != nil {
		d.doubtStore("the model store cannot be read: " + s.Err.Error())
		return
	}
	d.latest, d.taken = s, true
	seen := map[*unit]bool{}
	for i := range s.Entries {
		e := &s.Entries[i]
		if only != nil && !only(e) {
			continue
		}
		for _, given := range d.names(e) {
			seen[d.see(e, given)] = true
		}
	}
	for _, u := range d.units {
		if !seen[u] && u.present && (only == nil || only(&u.entry)) {
			u.present, u.gone, u.goneOK = false, now, false
		}
	}
	if n := d.vanished(); len(s.Entries) == 0 && n > 1 {
		d.doubtStore(fmt.Sprintf("the model store is empty all at once, which looks like a folder that is not mounted: the %d archives that run stay; "+
			"if it was meant, unregister their models by hand", n))
		return
	}
	if d.doubt != "" {
		d.doubt = ""
		d.tell(rollout.Change{Kind: ChangeStoreBack, Actor: rollout.Actor{Who: whoStore}})
		d.opts.Logger.Info("the model store can be read again")
		for _, u := range d.units { // what comes back slowly gets its time
			if !u.present {
				u.gone = now
			}
		}
	}
}

// see notes an entry of a snapshot; mu is held.
func (d *Deployer) see(e *watch.Entry, given string) *unit {
	k := key{e.Path, given}
	u := d.units[k]
	if u == nil {
		u = d.unit(k)
	}
	u.entry, u.present, u.goneOK = *e, true, false
	return u
}

// unit makes a unit, with what is remembered of it; mu is held.
func (d *Deployer) unit(k key) *unit {
	d.serial++
	u := &unit{key: k, serial: d.serial, url: k.path, leaving: map[string]int{}}
	d.units[k] = u
	d.recall(u)
	return u
}

// vanished counts the units that serve and are not in the store any more, and whose removal was not dealt with; mu is held.
func (d *Deployer) vanished() int {
	n := 0
	for _, u := range d.units {
		if !u.present && !u.goneOK && u.owns.Name != "" {
			n++
		}
	}
	return n
}

// doubtStore notes why nothing that the store does not hold any more is unregistered; mu is held.
func (d *Deployer) doubtStore(why string) {
	if d.doubt == why {
		return
	}
	if d.doubt == "" {
		d.tell(rollout.Change{Kind: ChangeStoreLost, Reason: why, Actor: rollout.Actor{Who: whoStore}})
	}
	d.doubt = why
	d.opts.Logger.Warn("nothing is unregistered", "reason", why)
}
