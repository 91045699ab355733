package deploy

import "time"

// A client who registers a URL leaves a copy of the archive in the store: it is there before the model is registered, which may take minutes, and goes
// when the last worker has ended after the model was unregistered. Whoever loaded it meanwhile would load what nobody wants, or what is about to vanish.

// whyLent is the reason for DecisionNotWatched of such a copy.
const whyLent = "it was fetched for a model that a client registers by its URL, and is removed with that; it is followed once somebody else has changed it"

// trace finds out which of the entries from which nothing runs are clients' copies.
func (d *Deployer) trace() {
	type question struct {
		u                 *unit
		path, fingerprint string
	}
	var open []question
	d.mu.Lock()
	for _, u := range d.units {
		if u.present && u.owns.Name == "" && (u.lent || u.traced != u.entry.Fingerprint) {
			open = append(open, question{u, u.path, u.entry.Fingerprint})
		}
	}
	d.mu.Unlock()
	for _, q := range open {
		lent := d.opts.Archives.IsCopy(q.path)
		d.mu.Lock()
		d.traced(q.u, q.fingerprint, lent)
		d.mu.Unlock()
	}
}

// traced notes whose an entry is; mu is held.
func (d *Deployer) traced(u *unit, fingerprint string, lent bool) {
	if u.lent && !lent && u.traced == fingerprint { // it has gone, or it is left behind: the store has to be read again to tell
		u.again = time.Now().Add(lookAgain)
		d.opts.Watcher.Rescan()
	}
	u.traced, u.lent = fingerprint, lent
}

// isLent says whether a unit is to be left alone because it is a client's copy; mu is held.
func (d *Deployer) isLent(u *unit) bool {
	switch {
	case u.owns.Name != "" || u.opening != nil || u.held != nil || u.puttings > 0:
		return false
	case u.traced != u.entry.Fingerprint: // it has changed this very moment
		d.poke()
		return true
	case u.lent:
		u.decide(DecisionNotWatched, whyLent)
	}
	return u.lent
}
