package deploy

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/ledger"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/modelstore/watch"
)

// Startup is a model that is to be registered when the server starts.
type Startup struct {
	Spec    rollout.Spec
	Default bool // it is to be the default version
}

// lateCheck is an archive that serves already, and is checked afterwards.
type lateCheck struct {
	unit    *unit
	archive *archive.Archive
}

// Start registers what is to be there when the server begins to answer: the listed models, or without any all that the store holds, one after the
// other, as TorchServe does; their workers start meanwhile. told hears of each, and of each that could not be registered, which keeps nothing else from
// being registered. What is still being written is left to Run. Start comes before Run.
func (d *Deployer) Start(ctx context.Context, listed []Startup, told func(name, url string, err error)) error {
	if err := d.try("earlier archives were looked for", d.sweep); err != nil {
		d.opts.Logger.Warn("no earlier archives are kept", "reason", err.Error())
		d.opts.Keep = 0
	}
	if err := d.firstSnapshot(ctx, len(listed) == 0, told); err != nil {
		return err
	}
	if len(listed) == 0 && d.opts.Scope.All {
		var all []*unit
		d.locked(func() { all = d.sorted() })
		for _, u := range all {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			d.startUnit(ctx, u, Startup{}, told)
		}
	}
	for _, s := range listed {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		d.startListed(ctx, s, told)
	}
	d.startDefaults(ctx, listed)
	return nil
}

// firstSnapshot takes the first snapshot over, and waits a moment for entries that are still changing, if nobody has named them.
func (d *Deployer) firstSnapshot(ctx context.Context, patient bool, told func(name, url string, err error)) error {
	limit := time.NewTimer(firstLook)
	defer limit.Stop()
	patience := time.NewTimer(startPatience)
	defer patience.Stop()
	for {
		select {
		case s, ok := <-d.opts.Watcher.Snapshots():
			switch {
			case !ok:
				return errors.New("the watcher of the model store has ended")
			case s.Err != nil:
				told("", d.opts.Root, s.Err)
				d.follow(s)
				return nil
			}
			if d.contain("the first snapshot of the model store was taken over", func() { d.locked(func() { d.take(s, nil) }) }) != nil {
				d.untaken = &taking{snapshot: s, due: time.Now().Add(afterBug)}
				return nil
			}
			if !patient || !slices.ContainsFunc(s.Entries, func(e watch.Entry) bool { return e.State == watch.Changing }) {
				return nil
			}
		case <-patience.C:
			if d.hasTaken() {
				return nil
			}
		case <-limit.C:
			d.opts.Logger.Warn("the model store could not be read in time; its models are loaded later", "after", firstLook)
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (d *Deployer) hasTaken() bool {
	d.lock()
	defer d.unlock()
	return d.taken
}

// startListed registers a model that the configuration names. What does not lie in the store is registered, and none of this package's business.
func (d *Deployer) startListed(ctx context.Context, s Startup, told func(name, url string, err error)) {
	units := d.listedUnits(s)
	plain := len(units) == 0
	if len(units) == 1 && d.opts.Tolerant && !units[0].entry.Versioned {
		plain = units[0].entry.State == watch.Incomplete
	}
	if !plain {
		for _, u := range units {
			d.startUnit(ctx, u, s, told)
		}
		return
	}
	var done rollout.Registered
	err := d.try("a model was registered at the start", func() (err error) {
		spec := s.Spec
		spec.Version = "" // the archive's
		if done, err = d.opts.Models.Register(ctx, spec); err != nil {
			return err //nolint:wrapcheck // the model store's words are the operator's
		}
		if s.Default {
			err = d.opts.Models.SetDefault(ctx, done.Ref)
		}
		if err == nil && len(units) == 1 {
			d.own(units[0], done.Ref, s.Spec)
			d.locked(func() { units[0].posted = d.opts.Tolerant })
		}
		return err //nolint:wrapcheck // the same
	})
	told(done.Ref.Name, s.Spec.URL, err)
}

// listedUnits gives the units that a listed model stands for.
func (d *Deployer) listedUnits(s Startup) []*unit {
	d.lock()
	defer d.unlock()
	var found []*unit
	for _, u := range d.sorted() {
		if !d.stands(s.Spec.URL, &u.entry) || !u.present {
			continue
		}
		if u.given == s.Spec.Name || d.opts.Scope.All && u.given == "" {
			found = append(found, u)
		}
	}
	return found
}

// startUnit registers what lies in an entry of the store.
func (d *Deployer) startUnit(ctx context.Context, u *unit, s Startup, told func(name, url string, err error)) {
	var entry watch.Entry
	named := s.Spec.URL != ""
	d.locked(func() {
		if named {
			u.url = s.Spec.URL
		}
		entry = u.entry
	})
	switch {
	case entry.Superseded: // Run says so
		return
	case entry.State == watch.Incomplete:
		told(s.Spec.Name, u.url, fault.New(fault.InvalidModel, entry.Reason, nil))
		return
	case entry.State == watch.Changing && !named:
		return // it is loaded when it is complete
	}
	var ref infer.ModelRef
	var err error
	if bug := d.contain("a model of the store was registered at the start", func() { ref, err = d.start(ctx, u, s) }); bug != nil {
		err = bug
		d.locked(func() { u.looked = "" }) // Run tries it
	}
	if errors.Is(err, errLater) {
		return
	}
	told(ref.Name, u.url, err)
}

// errLater says that a unit is none of the start's business.
var errLater = errors.New("it is loaded later, or not at all")

// start opens, checks and registers what lies in an entry of the store: as the version that its folder names, else as the archive's own one, whatever
// version a snapshot remembers.
func (d *Deployer) start(ctx context.Context, u *unit, s Startup) (infer.ModelRef, error) {
	h, left, err := d.startOpen(ctx, u, s)
	defer func() { d.closeAll(left...) }()
	if err != nil {
		return infer.ModelRef{}, err
	}
	if err := d.startClaim(u, h.ref); err != nil {
		left = append(left, h.archive)
		return h.ref, err
	}
	spec := s.Spec
	if spec.Exact && spec.Version != "" && spec.Version != h.ref.Version { // the file has another one inside by now, whose settings are its own
		spec = rollout.Spec{Handler: spec.Handler, InitialWorkers: spec.InitialWorkers}
	}
	spec.URL, spec.Name, spec.Version, spec.Archive, spec.Steps = u.url, h.ref.Name, h.ref.Version, h.archive, h.steps
	spec.AtStartup, spec.Synchronous = true, false
	err = d.try("a model was registered", func() error {
		_, err := d.opts.Models.Register(ctx, spec)
		return err //nolint:wrapcheck // the model store's words are the operator's
	})
	var scale ledger.Scale
	var scaled bool
	d.locked(func() {
		if err != nil {
			d.unclaim(u, h.ref)
			d.refuse(u, h.digest, err)
			return
		}
		d.started(u, h, s.Spec.Exact)
		scale, scaled = d.scaled[scaleKey(h.ref)]
	})
	if err != nil {
		return h.ref, err
	}
	if scaled {
		if err := d.opts.Models.Scale(ctx, h.ref, scale.Min, scale.Max, false); err != nil {
			d.opts.Logger.Warn("the numbers of workers were not set again", "model", h.ref.Name, "version", h.ref.Version, "reason", err.Error())
		}
	}
	if s.Default {
		err = d.opts.Models.SetDefault(ctx, h.ref)
	}
	return h.ref, err //nolint:wrapcheck // the same
}

// started notes that a unit's archive is registered; exact says that a client has asked for it like that. mu is held.
func (d *Deployer) started(u *unit, h *held, exact bool) {
	u.owns, u.served, u.failure, u.posted = h.ref, h.digest, nil, d.opts.Tolerant
	if !exact {
		u.asked = rollout.Spec{}
	}
	d.settling[h.ref] = true
	if d.opts.Checker != nil && !d.opts.Strict {
		d.late = append(d.late, lateCheck{u, h.archive})
	}
	u.begins()
}

// startOpen opens what lies in an entry, and checks it before it is started if that may refuse it.
func (d *Deployer) startOpen(ctx context.Context, u *unit, s Startup) (h *held, left []*archive.Archive, err error) {
	begun := time.Now()
	var a *archive.Archive
	err = d.try("an archive was opened", func() (err error) {
		a, err = d.opts.Archives.OpenEntry(ctx, u.path)
		return err //nolint:wrapcheck // it says which archive it is about
	})
	if errors.Is(err, archive.ErrChanged) {
		return nil, nil, errLater
	}
	opened := rollout.Step{Name: stepOpen, Took: time.Since(begun)}
	var digest string
	if err != nil {
		digest = d.digestOf(ctx, u.path)
	}
	var forget bool
	d.locked(func() {
		u.looked = u.entry.Fingerprint
		if err != nil {
			u.digest = digest
			d.refuse(u, digest, err)
			return
		}
		h, forget = u.classify(a)
	})
	if err != nil {
		return nil, nil, err
	}
	if forget {
		d.forget(u.key)
	}
	if h == nil {
		return nil, []*archive.Archive{a}, d.leftAlone(u, s)
	}
	if s.Spec.Name != "" && s.Spec.Name != h.ref.Name && !h.pinned {
		d.rename(u, h, s.Spec.Name)
	}
	h.steps = []rollout.Step{opened}
	err = d.substitute(ctx, u, h, &left)
	if err == nil && d.opts.Strict {
		var findings string
		findings, err = d.check(ctx, h)
		d.locked(func() {
			u.findings = findings
			if err != nil {
				d.refuse(u, h.digest, err)
			}
		})
	}
	if err != nil {
		return nil, append(left, h.archive), err
	}
	return h, left, nil
}

// leftAlone says why an archive is not started, if it was asked for by name.
func (d *Deployer) leftAlone(u *unit, s Startup) error {
	d.lock()
	defer d.unlock()
	if s.Spec.URL == "" || u.decision != DecisionIgnored {
		return errLater
	}
	f := fault.New(fault.Conflict, "it is left alone: "+u.reason, nil)
	f.Hint = "flambeau reload " + u.ref.Name + " loads it again"
	return f
}

// rename makes an entry, which is followed under its own name, one that is followed under another.
func (d *Deployer) rename(u *unit, h *held, name string) {
	d.lock()
	defer d.unlock()
	delete(d.units, u.key)
	u.given, h.ref.Name = name, name
	d.units[u.key] = u
	d.aliases[u.path] = append(d.aliases[u.path], name)
	d.renamed[u.path] = true
}

// startClaim takes a version for a unit.
func (d *Deployer) startClaim(u *unit, ref infer.ModelRef) error {
	d.lock()
	defer d.unlock()
	u.ref = ref
	if owner := d.claims[ref]; owner != nil && owner != u {
		d.clashes(u, ref, clashText(owner, u, ref))
		return fault.New(fault.Conflict, u.reason, nil)
	}
	d.claims[ref] = u
	return nil
}

// startDefaults gives each model its default version, unless what was to be started says it.
func (d *Deployer) startDefaults(ctx context.Context, listed []Startup) {
	versions := map[string]int{}
	d.locked(func() {
		for ref := range d.settling {
			versions[ref.Name]++
		}
		for _, s := range listed {
			if s.Default {
				delete(versions, s.Spec.Name)
			}
		}
		for ref := range d.settling {
			if versions[ref.Name] < 2 { // nothing else could be the default one
				delete(d.settling, ref)
			}
		}
	})
	for model := range versions { // also of one, which may have been set by hand
		_ = d.contain("a default version was chosen", func() { d.settleDefault(ctx, model) })
	}
}

// checkLate checks what was started without that, so as not to keep the server from answering.
func (d *Deployer) checkLate(ctx context.Context) {
	var late []lateCheck
	d.locked(func() { late, d.late = d.late, nil })
	if len(late) == 0 {
		return
	}
	d.begin("archives were checked that serve already", func() {
		for _, c := range late {
			if ctx.Err() != nil {
				return
			}
			h := &held{archive: c.archive}
			findings, _ := d.check(ctx, h) // it refuses nothing
			d.locked(func() {
				if c.unit.served == c.archive.Digest { // else its folder may have gone meanwhile
					c.unit.findings = findings
				}
			})
		}
	}, func(error) {})
}
