package deploy

import (
	"context"
	"errors"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/modelstore/watch"
)

// afterBug is the pause before what has ended by a bug is done again; it doubles, up to longestPause.
const afterBug = 2 * time.Second

// contain calls f, and tells of a panic in it, which it gives without its stack: that was told. Where f holds mu, locked or a deferred function gives it back.
func (d *Deployer) contain(doing string, f func()) error {
	err := fault.ContainAndTell(doing, f, d.opts.Panicked, d.opts.Logger)
	if f, ok := errors.AsType[*fault.Error](err); ok {
		short := *f
		short.Detail = ""
		return &short
	}
	return err
}

// try calls f; a panic in it is told, and is its error.
func (d *Deployer) try(doing string, f func() error) error {
	var err error
	if bug := d.contain(doing, func() { err = f() }); bug != nil {
		return bug
	}
	return err
}

// locked calls f with mu held.
func (d *Deployer) locked(f func()) {
	d.lock()
	defer d.unlock()
	f()
}

// begin starts a job of Run's, which finish waits for. ended is called with mu held when it has ended, with the bug by which it did; what it lets others do
// must come first, since it may have a bug, too. mu may be held.
func (d *Deployer) begin(doing string, work func(), ended func(bug error)) {
	d.jobs.Go(func() {
		defer d.poke()
		bug := d.contain(doing, work)
		_ = d.contain("the end of a job was noted", func() { d.locked(func() { ended(bug) }) })
	})
}

// rest keeps Run from a unit for a while, since something about it has ended by a bug; mu is held.
func (u *unit) rest(now time.Time) {
	if now.After(u.rests.Add(longestPause)) {
		u.bugs = 0
	}
	u.bugs++
	u.rests = now.Add(min(afterBug<<min(u.bugs-1, mostDoublings), longestPause))
}

// mostDoublings of afterBug are longer than longestPause.
const mostDoublings = 8

// stepped does what step does; should that have a bug, it is soon done again.
func (d *Deployer) stepped(ctx context.Context) (next time.Time) {
	_ = d.contain("starts were looked after", func() { d.settleStarts(ctx) })
	next = time.Now().Add(settlePoll)
	_ = d.contain("the model store's entries were looked after", func() { next = d.step(ctx) })
	return next
}

// taking is a snapshot that could not be taken over because of a bug.
type taking struct {
	snapshot watch.Snapshot
	tries    int
	due      time.Time
}

// takeOver takes a snapshot over. It gives what is to be tried again: the watcher tells of each change only once.
func (d *Deployer) takeOver(s watch.Snapshot, before *taking) *taking {
	if d.contain("a snapshot of the model store was taken over", func() { d.follow(s) }) == nil {
		return nil
	}
	t := &taking{snapshot: s}
	if before != nil {
		t.tries = before.tries + 1
	}
	t.due = time.Now().Add(min(afterBug<<min(t.tries, mostDoublings), longestPause))
	return t
}

// notify passes changes on to whoever is told of them.
func (d *Deployer) notify(changes []rollout.Change) {
	if d.opts.Changed == nil {
		return
	}
	for _, c := range changes {
		_ = d.contain("a change of a model was told", func() { d.opts.Changed(c) })
	}
}
