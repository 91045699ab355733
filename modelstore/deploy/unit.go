package deploy

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/ledger"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/modelstore/watch"
)

// Decision is what was decided about an entry of the store; the word is part of the interface.
type Decision string

// The decisions.
const (
	DecisionWaiting    Decision = "waiting"     // until it has stopped changing, or is complete
	DecisionOpening    Decision = "opening"     // it is being unpacked and checked
	DecisionDeploying  Decision = "deploying"   // its workers are being started
	DecisionServing    Decision = "serving"     // it is what runs
	DecisionFailed     Decision = "failed"      // it did not come up; what ran before goes on, if there was something
	DecisionRefused    Decision = "refused"     // it will not be tried before it changes
	DecisionIgnored    Decision = "ignored"     // it was unregistered by hand
	DecisionRolledBack Decision = "rolled_back" // an earlier archive serves instead
	DecisionGone       Decision = "gone"        // it is not in the store any more, and what was unpacked of it serves
	DecisionNotWatched Decision = "not_watched" // it is not one of the models that are to be loaded
)

// EntryStatus tells what is done about an entry of the store, and why.
type EntryStatus struct {
	Path           string
	Kind           string
	State          string // settled, changing, incomplete, or gone
	StateReason    string // why it is changing or incomplete
	StateSince     time.Time
	Bytes          int64
	Model, Version string // "" when it is not known yet
	Digest         string // of what lies in the store, "" when it was not read yet
	Serving        string // the digest of what runs from it, "" for nothing
	Decision       Decision
	Reason         string // for the decision
	Since          time.Time
	Attempts       int       // how often this archive failed
	NextTry        time.Time // when it is tried again; zero: not before it changes
	Findings       string    // what the check says, "" when all is well
}

// key names a unit: an entry of the store under one name.
type key struct {
	path  string
	given string // the name that the configuration or a registration gives; "": what the entry itself says
}

// String is how the ledger knows it.
func (k key) String() string {
	if k.given == "" {
		return k.path
	}
	return k.given + "=" + k.path
}

// unit is an entry of the store that is followed. Its fields are guarded by the Deployer's mu.
type unit struct {
	key
	serial  int    // in which order they were found
	url     string // as clients see it
	entry   watch.Entry
	present bool
	gone    time.Time // since when it is not in the store
	goneOK  bool      // its removal was dealt with: it is kept
	told    string    // fingerprint that was told to be incomplete

	traced string // fingerprint of which it is known whose it is
	lent   bool   // it is a client's copy, which goes with what the client has registered

	looked   string    // fingerprint that was opened last; "" to open it again
	again    time.Time // not before this
	cause    string    // why it was opened last
	ref      infer.ModelRef
	digest   string // of what was opened last
	findings string
	workers  bool // its configuration file says how many workers
	opening  *job
	held     *held

	putting  *job // the newest
	puttings int
	busy     bool // a caller of the API works on it

	bugs  int       // by which something about it has ended, in a row
	rests time.Time // not looked after before this, because of them

	arrival time.Time // when what runs from it began to serve
	echoes  int       // how often in a row it changed while it was being loaded, or soon after

	leaving map[string]int // digests of what was, or is being, replaced and may still serve old requests
	owns    infer.ModelRef // what runs from it; no name: nothing
	served  string         // the digest of what runs
	posted  bool           // a client has registered it
	// starting says that it was registered without waiting for its workers, and was not seen serving yet.
	starting bool
	asked    rollout.Spec // what that client asked for
	failure  *failure
	clash    infer.ModelRef // it would be this version, which another entry is

	ignored *ledger.Ignored // this digest is left alone
	pinned  *ledger.Kept    // and this archive is served instead
	unkept  string          // why the archive before the present one was not kept

	decision Decision
	reason   string
	since    time.Time
}

// held is an opened archive that waits for its turn.
type held struct {
	archive *archive.Archive
	ref     infer.ModelRef
	digest  string
	pinned  bool
	steps   []rollout.Step
}

// job is one piece of work on a unit.
type job struct {
	cancel      context.CancelFunc
	fingerprint string
	ref         infer.ModelRef
}

// lane is the right to change a model.
type lane struct {
	holder any // a unit, or a caller
	n      int
}

// begins notes that what runs from the unit is only starting.
func (u *unit) begins() {
	u.starting, u.arrival = true, time.Now()
	u.decide(DecisionDeploying, whyStarting)
}

// whyStarting is the reason for DecisionDeploying of what is registered already.
const whyStarting = "its workers are being started"

func (u *unit) decide(decision Decision, reason string) {
	if u.decision != decision || u.reason != reason {
		u.decision, u.reason, u.since = decision, reason, time.Now()
	}
}

// release gives the archive that waits, which is the caller's to close.
func (u *unit) release() *archive.Archive {
	if u.held == nil {
		return nil
	}
	a := u.held.archive
	u.held = nil
	return a
}

// identify says which version an archive of the unit is.
func (u *unit) identify(a *archive.Archive) infer.ModelRef {
	const standard = "1.0" // TorchServe's
	m := &a.Manifest.Model
	return infer.ModelRef{
		Name: cmp.Or(u.given, u.entry.Name, m.ModelName, a.FileBase), Version: cmp.Or(u.entry.Version, m.ModelVersion, standard),
	}
}

// why says for people why the unit is looked at.
func (u *unit) why() string {
	what := "the file "
	if u.entry.Kind == watch.Folder {
		what = "the folder "
	}
	switch {
	case u.failure != nil:
		return what + u.path + " is tried again"
	case u.owns.Name == "":
		return what + u.path + " is in the store"
	}
	return what + u.path + " changed"
}

// about gives the version that a message about the unit is about.
func (u *unit) about() infer.ModelRef {
	switch {
	case u.ref.Name != "":
		return u.ref
	case u.owns.Name != "":
		return u.owns
	}
	return infer.ModelRef{Name: cmp.Or(u.given, u.entry.Name, u.path), Version: u.entry.Version}
}

// refusal makes the change that says that the unit is not loaded.
func (u *unit) refusal(reason string) rollout.Change {
	return rollout.Change{
		Ref: u.about(), Kind: rollout.ChangeRefused, Digest: u.digest, Source: u.path, Actor: rollout.Actor{Who: whoStore, Why: cmp.Or(u.cause, u.why())}, Reason: reason,
	}
}

// whoStore is the Actor of what the store's entries cause.
const whoStore = "store"

// sorted gives the units in the order in which they were found; mu is held.
func (d *Deployer) sorted() []*unit {
	all := make([]*unit, 0, len(d.units))
	for _, u := range d.units {
		all = append(all, u)
	}
	slices.SortFunc(all, func(a, b *unit) int { return cmp.Compare(a.serial, b.serial) })
	return all
}

// Entries tells what is done about each entry of the store, sorted by path.
func (d *Deployer) Entries() []EntryStatus {
	d.noteStarts()
	d.mu.Lock()
	defer d.mu.Unlock()
	known := map[string]bool{}
	list := make([]EntryStatus, 0, len(d.units))
	for _, u := range d.sorted() {
		known[u.path] = true
		list = append(list, u.status())
	}
	for i := range d.latest.Entries {
		if e := &d.latest.Entries[i]; !known[e.Path] {
			list = append(list, EntryStatus{
				Path: e.Path, Kind: string(e.Kind), State: string(e.State), Bytes: e.Bytes, Model: e.Name, Version: e.Version,
				StateReason: e.Reason, StateSince: e.Since,
				Decision: DecisionNotWatched, Reason: "it is not one of the models that the server was told to load", Since: e.Since,
			})
		}
	}
	slices.SortStableFunc(list, func(a, b EntryStatus) int { return strings.Compare(a.Path, b.Path) })
	return list
}

func (u *unit) status() EntryStatus {
	s := EntryStatus{
		Path: u.path, Kind: string(u.entry.Kind), State: string(u.entry.State), StateReason: u.entry.Reason, StateSince: u.entry.Since,
		Bytes: u.entry.Bytes, Digest: u.digest, Serving: u.served,
		Decision: u.decision, Reason: u.reason, Since: u.since, Findings: u.findings,
	}
	ref := u.about()
	if u.ref.Name != "" || u.owns.Name != "" || u.entry.Name != "" {
		s.Model, s.Version = ref.Name, ref.Version
	}
	if !u.present {
		s.State, s.StateReason, s.StateSince = "gone", "it is not in the store any more", u.gone
	}
	if u.starting {
		s.Serving = ""
	}
	if u.failure != nil {
		s.Attempts, s.NextTry = u.failure.attempts, u.failure.next
	}
	return s
}
