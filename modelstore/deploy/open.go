package deploy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/check"
	"github.com/flambeau-serve/flambeau/modelstore/ledger"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// look starts to open a unit's archive; one that is being opened already is not the right one any more. mu is held.
func (d *Deployer) look(ctx context.Context, u *unit) {
	if u.opening != nil {
		u.opening.cancel()
	}
	u.cause = u.why()
	ctx, cancel := context.WithCancel(rollout.WithActor(ctx, rollout.Actor{Who: whoStore, Why: u.cause}))
	j := &job{cancel: cancel, fingerprint: u.entry.Fingerprint}
	u.opening, u.looked = j, u.entry.Fingerprint
	u.decide(DecisionOpening, "")
	d.opens++
	d.begin("an archive was opened", func() { d.closeAll(d.open(ctx, u, j)...) }, func(bug error) {
		defer cancel()
		d.opens--
		if bug == nil || u.opening != j {
			return
		}
		u.opening = nil
		d.refuse(u, "", bug)
	})
}

// open opens and checks a unit's archive and leaves it with the unit. It gives what is not needed.
func (d *Deployer) open(ctx context.Context, u *unit, j *job) (left []*archive.Archive) {
	begun := time.Now()
	a, err := d.opts.Archives.OpenEntry(ctx, u.path)
	opened := rollout.Step{Name: stepOpen, Took: time.Since(begun)}
	var digest string
	if err != nil && !errors.Is(err, archive.ErrChanged) {
		digest = d.digestOf(ctx, u.path)
	}
	done := false
	defer func() {
		if !done { // by a bug
			d.closeAll(a)
		}
	}()
	var h *held
	var forget bool
	d.locked(func() {
		switch {
		case u.opening != j || ctx.Err() != nil:
		case err != nil:
			u.opening = nil
			d.unopened(u, digest, err)
		default:
			if h, forget = u.classify(a); h == nil {
				u.opening = nil
			}
		}
	})
	if forget {
		d.forget(u.key)
	}
	if left = []*archive.Archive{a}; h != nil {
		h.steps = []rollout.Step{opened}
		left = d.prepare(ctx, u, j, h)
	}
	done = true
	return left
}

// The names of the steps of a load that are taken here.
const (
	stepOpen  = "open"
	stepCheck = "check"
)

// prepare checks an opened archive, or opens the kept one that is to serve instead, and leaves it with the unit.
func (d *Deployer) prepare(ctx context.Context, u *unit, j *job, h *held) (left []*archive.Archive) {
	err := d.substitute(ctx, u, h, &left)
	var findings string
	if err == nil {
		findings, err = d.check(ctx, h)
	}
	d.lock()
	defer d.unlock()
	if u.opening != j || ctx.Err() != nil {
		return append(left, h.archive)
	}
	u.opening, u.findings = nil, findings
	if err != nil {
		d.refuse(u, h.digest, err)
		return append(left, h.archive)
	}
	left = append(left, u.release())
	u.held = h
	u.decide(DecisionDeploying, "it waits for its turn")
	return left
}

// refuse notes that an archive is not even started; mu is held.
func (d *Deployer) refuse(u *unit, digest string, err error) {
	u.failed(digest, err, time.Now())
	d.tell(u.refusal(u.failure.reason))
	d.opts.Logger.Warn("an archive of the model store is not loaded", "path", u.path, "attempts", u.failure.attempts, "reason", u.failure.reason)
}

// digestOf gives the digest of an archive file that cannot be opened, so that it can be told from others; "" when it has none.
func (d *Deployer) digestOf(ctx context.Context, path string) string {
	file, err := os.Open(filepath.Join(d.opts.Root, filepath.FromSlash(path)))
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }() // it was only read from
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	h := sha256.New()
	if _, err := io.Copy(h, reader{ctx, file}); err != nil {
		return ""
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// reader reads until a context ends.
type reader struct {
	ctx context.Context //nolint:containedctx // it lives as long as the call that makes it
	io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.Reader.Read(p) //nolint:wrapcheck // its errors are its caller's
}

// unopened notes that an archive could not be opened; mu is held.
func (d *Deployer) unopened(u *unit, digest string, err error) {
	if errors.Is(err, archive.ErrChanged) {
		u.looked, u.again = "", time.Now().Add(lookAgain)
		u.decide(DecisionWaiting, err.Error())
		d.opts.Watcher.Rescan()
		return
	}
	u.digest = digest
	d.refuse(u, digest, err)
}

// classify decides what is to be done about an opened archive: nil for nothing. forget says that what was decided by hand about the unit holds no
// longer. mu is held.
func (u *unit) classify(a *archive.Archive) (h *held, forget bool) {
	u.digest = a.Digest
	_, _, u.workers = a.Settings.Workers()
	u.clash = infer.ModelRef{}
	ref := u.identify(a)
	if u.ignored != nil && u.ignored.Digest != a.Digest {
		u.ignored, u.pinned, forget = nil, nil, true
	}
	u.ref = ref
	switch {
	case u.ignored != nil && u.pinned == nil:
		u.decide(DecisionIgnored, u.ignored.Why)
		return nil, forget
	case u.ignored != nil:
		u.ref = infer.ModelRef{Name: u.pinned.Model, Version: u.pinned.Version}
		if u.served == u.pinned.Digest {
			u.decide(DecisionRolledBack, u.ignored.Why)
			return nil, forget
		}
		return &held{archive: a, ref: u.ref, digest: u.pinned.Digest, pinned: true}, forget
	case u.owns == ref && u.served == a.Digest:
		if u.putting != nil { // back to what serves, before the other one was ready
			u.putting.cancel()
			u.putting = nil
		}
		u.failure = nil
		u.decide(DecisionServing, "")
		if u.starting {
			u.decide(DecisionDeploying, whyStarting)
		}
		return nil, forget
	case u.failure != nil && u.failure.digest == a.Digest && !u.failure.due(time.Now()):
		decision := DecisionFailed
		if u.failure.next.IsZero() {
			decision = DecisionRefused
		}
		u.decide(decision, u.failure.reason)
		return nil, forget
	case u.putting != nil && u.putting.fingerprint == a.Digest && u.putting.ref == ref:
		u.decide(DecisionDeploying, "")
		return nil, forget
	}
	return &held{archive: a, ref: ref, digest: a.Digest}, forget
}

// substitute puts the kept archive that is to serve in the place of the store's. If it cannot be opened, the store's is taken after all.
func (d *Deployer) substitute(ctx context.Context, u *unit, h *held, left *[]*archive.Archive) error {
	if !h.pinned {
		return nil
	}
	var pinned *ledger.Kept
	store := h.archive
	d.locked(func() { pinned = u.pinned })
	if pinned == nil {
		return errors.New("the rollback was undone")
	}
	kept, err := d.opts.Archives.OpenKept(ctx, pinned.Dir, u.path, u.path, pinned.Digest)
	if err == nil {
		h.archive = kept
		*left = append(*left, store)
		return nil
	}
	d.locked(func() {
		u.pinned, u.ignored = nil, nil
		u.ref = u.identify(store)
		h.ref, h.digest, h.pinned = u.ref, store.Digest, false
		c := u.refusal("the earlier archive that it was rolled back to cannot be opened, and the store's is taken again: " + reasonOf(err))
		c.Digest = pinned.Digest
		d.tell(c)
	})
	d.forget(u.key)
	return nil
}

// check asks the checker about an archive. The error is a refusal.
func (d *Deployer) check(ctx context.Context, h *held) (findings string, err error) {
	if d.opts.Checker == nil {
		return "", nil
	}
	begun := time.Now()
	var report check.Report
	failed := d.try("an archive was checked", func() error {
		var err error
		report, err = d.opts.Checker.Check(ctx, h.archive)
		return err //nolint:wrapcheck // it is only logged
	})
	h.steps = append(h.steps, rollout.Step{Name: stepCheck, Took: time.Since(begun)})
	if failed != nil && ctx.Err() == nil { // what cannot be checked is tried; what was found all the same counts
		d.opts.Logger.Warn("an archive could not be checked", "source", h.archive.Source, "reason", failed.Error())
	}
	if report.Errors() == 0 {
		return "", nil
	}
	findings = report.Reason()
	if d.opts.Strict {
		return findings, fmt.Errorf("%w: %s", errStrict, findings)
	}
	d.opts.Logger.Warn("the check found what may fail", "source", h.archive.Source, "findings", findings)
	return findings, nil
}

// recall gives a new unit what was decided about it by hand; mu is held.
func (d *Deployer) recall(u *unit) {
	state := d.opts.Ledger.State()
	ignored, ok := state.Ignored[u.String()]
	if !ok {
		return
	}
	for name, pinned := range state.Pinned {
		for i := range state.Kept {
			k := &state.Kept[i]
			if k.Source == u.path && k.Digest == pinned.Digest && k.Model+"/"+k.Version == name {
				u.pinned = k
			}
		}
	}
	u.ignored = &ignored
}

// forget removes what was decided about an entry by hand from the ledger.
func (d *Deployer) forget(k key) {
	d.remember(func(s *ledger.State) { forgetIn(s, k) })
}

func forgetIn(s *ledger.State, k key) {
	delete(s.Ignored, k.String())
	for name, pinned := range s.Pinned {
		for i := range s.Kept {
			if kept := &s.Kept[i]; kept.Source == k.path && kept.Digest == pinned.Digest && kept.Model+"/"+kept.Version == name {
				delete(s.Pinned, name)
			}
		}
	}
}
