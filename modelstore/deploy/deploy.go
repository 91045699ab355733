// Package deploy makes the models that run equal to what the model store holds: it decides what is done about each entry, and remembers what was
// decided by hand.
package deploy

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/check"
	"github.com/flambeau-serve/flambeau/modelstore/ledger"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/modelstore/watch"
)

// Models runs model versions; modelstore/rollout implements it.
type Models interface {
	// Deploy makes a Spec's archive what runs as its name and version. It returns when it serves, or says why the one before it goes on.
	Deploy(ctx context.Context, spec rollout.Spec) (rollout.Registered, error)
	Register(ctx context.Context, spec rollout.Spec) (rollout.Registered, error)
	Unregister(ctx context.Context, ref infer.ModelRef) error
	SetDefault(ctx context.Context, ref infer.ModelRef) error
	Scale(ctx context.Context, ref infer.ModelRef, minimum, maximum int, synchronous bool) error
	Describe(ref infer.ModelRef) (rollout.Description, error)
	DescribeAll(name string) ([]rollout.Description, error)
}

// Archives opens what lies in the store, and what was kept of it; modelstore/archive implements it.
type Archives interface {
	OpenEntry(ctx context.Context, path string) (*archive.Archive, error)
	OpenKept(ctx context.Context, dir, url, source, digest string) (*archive.Archive, error)
	// IsCopy says whether what lies at a place of the store was fetched for a client's registration, and goes with what that has made.
	IsCopy(path string) bool
}

// Watcher says what the store holds; modelstore/watch implements it.
type Watcher interface {
	Snapshots() <-chan watch.Snapshot
	Rescan()
}

// Checker finds out what of an archive will fail on this machine; modelstore/check implements it.
type Checker interface {
	Check(ctx context.Context, a *archive.Archive) (check.Report, error)
}

// Ledger remembers across restarts; modelstore/ledger implements it.
type Ledger interface {
	State() ledger.State
	Change(edit func(*ledger.State)) error
}

// What happens to a model whose archive is removed from the store.
const (
	RemovalKeep       = "keep"       // it goes on serving what was unpacked
	RemovalUnregister = "unregister" // it is unregistered
)

// Which version of a model is its default one.
const (
	PolicyLatest = "latest" // the greatest, numbers compared as numbers
	PolicyFirst  = "first"  // the one that was loaded first
)

// Listed is a model that the configuration names. Name is "" unless it gives one.
type Listed struct{ Name, URL string }

// Scope says which entries of the store are loaded and followed.
type Scope struct {
	All    bool
	Listed []Listed // when not All: these; those that are not in the store are none of this package's business
}

// Options are what a Deployer needs. Models, Archives, Watcher and Logger are required.
type Options struct {
	Models   Models
	Archives Archives
	Watcher  Watcher
	Checker  Checker // nil: nothing is checked
	Strict   bool    // an archive with errors is refused before a process is started
	Ledger   Ledger  // nil: nothing outlives the Deployer
	Root     string  // the model store
	Scope    Scope
	// Once says that the store is looked at when the server starts, and then only for Reload.
	Once bool
	// Tolerant says that a listed file that is no archive is registered all the same, and that what was loaded at the start cannot be registered by a
	// client, as TorchServe does.
	Tolerant bool
	// Fresh says that what an earlier run was told over the management API does not hold any more: what was unregistered, default versions and numbers
	// of workers. TorchServe begins so unless it restores a snapshot. Rollbacks hold all the same.
	Fresh bool

	Removal      string        // RemovalKeep or RemovalUnregister
	RemovalDelay time.Duration // how long an entry must be gone
	FilePolicy   string        // PolicyLatest or PolicyFirst, for models that lie in files
	FolderPolicy string        // for models that lie in folders of versions

	Keep    int    // how many earlier archives are kept for a rollback
	KeepDir string // where; "": none is kept. What lies there and is not in the Ledger is removed.

	// Changed is told what was refused or decided here, besides what Models tells; it must not block. May be nil.
	Changed func(rollout.Change)
	// Panicked is told of each panic that was contained: it has cost a deployment, or less. It must not block, nor call the Deployer. Nil logs it.
	Panicked func(error)
	Logger   *slog.Logger
}

// Bounds of the work at the same time.
const (
	mostDeploys = 4 // models that are being changed
	mostOpens   = 4 // archives that are being unpacked
)

// Times that nobody needs to set.
const (
	incompleteAfter = 10 * time.Second // that an entry is incomplete until it is worth an event
	lookAgain       = time.Second      // after an archive that changed while it was read
	firstLook       = 10 * time.Second // for the first snapshot
	startPatience   = 5 * time.Second  // for entries that are still being written when the server starts
	settlePoll      = 2 * time.Second  // how often versions are looked at that were loaded at the start and do not serve yet
)

// Deployer makes what runs equal to what is in the store. Its methods are safe for concurrent use.
type Deployer struct {
	opts Options
	keep func(a *archive.Archive, into string) error
	wake chan struct{} // one token: look at everything again

	jobs    sync.WaitGroup // what Run has started
	untaken *taking        // Start's, for Run

	mu       sync.Mutex // guards what follows
	units    map[key]*unit
	aliases  map[string][]string // names under which a path was registered over the API, by path
	renamed  map[string]bool     // paths that are followed under other names only
	serial   int                 // of the last unit
	claims   map[infer.ModelRef]*unit
	lanes    map[string]*lane // by model name
	deploys  int
	opens    int
	latest   watch.Snapshot
	read     time.Time               // when the latest reading of the store began
	over     bool                    // Run has ended
	taken    bool                    // there was a snapshot
	doubt    string                  // why the last snapshot is not believed where it says that something is gone; "": it is
	byHand   map[string]string       // default versions that were set by hand, by model
	earlier  map[string]string       // the default version before the present one, by model
	scaled   map[string]ledger.Scale // numbers of workers set by hand, by "model/version"
	retiring map[infer.ModelRef]bool // versions whose archive is to be kept when they are unregistered
	settling map[infer.ModelRef]bool // versions of the start that were not seen serving yet
	late     []lateCheck             // archives of the start that are not checked yet
	changed  chan struct{}           // closed at the next change
	untold   []rollout.Change        // told when mu is free
}

// New makes a Deployer. Run does the work.
func New(opts Options) (*Deployer, error) {
	if opts.Models == nil || opts.Archives == nil || opts.Watcher == nil || opts.Logger == nil {
		return nil, errors.New("deploy: Models, Archives, Watcher and Logger are required")
	}
	if opts.Removal != RemovalKeep && opts.Removal != RemovalUnregister {
		return nil, errors.New("deploy: Removal must be keep or unregister")
	}
	for _, policy := range []string{opts.FilePolicy, opts.FolderPolicy} {
		if policy != PolicyLatest && policy != PolicyFirst {
			return nil, errors.New("deploy: a policy must be latest or first")
		}
	}
	if opts.Ledger == nil {
		opts.Ledger = &memory{}
	}
	d := &Deployer{
		opts: opts, keep: (*archive.Archive).Keep, wake: make(chan struct{}, 1), units: map[key]*unit{}, aliases: map[string][]string{}, renamed: map[string]bool{},
		claims: map[infer.ModelRef]*unit{}, lanes: map[string]*lane{}, byHand: map[string]string{}, earlier: map[string]string{},
		scaled: map[string]ledger.Scale{}, retiring: map[infer.ModelRef]bool{}, settling: map[infer.ModelRef]bool{}, changed: make(chan struct{}),
	}
	if opts.Fresh {
		d.remember(func(s *ledger.State) {
			maps.DeleteFunc(s.Ignored, func(_ string, i ledger.Ignored) bool { return !strings.HasPrefix(i.Why, whyRolledBack) })
			clear(s.Defaults)
			clear(s.Earlier)
			clear(s.Scaled)
		})
	}
	state := opts.Ledger.State()
	maps.Copy(d.byHand, state.Defaults)
	maps.Copy(d.earlier, state.Earlier)
	maps.Copy(d.scaled, state.Scaled)
	return d, nil
}

// Run follows the store until ctx ends, and returns when nothing of it runs any more.
func (d *Deployer) Run(ctx context.Context) error {
	defer d.finish()
	d.checkLate(ctx)
	again := d.untaken
	for {
		next := d.stepped(ctx)
		if again != nil && again.due.Before(next) {
			next = again.due
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case s, ok := <-d.opts.Watcher.Snapshots():
			if !ok {
				timer.Stop()
				<-ctx.Done()
				return nil
			}
			again = d.takeOver(s, nil)
		case <-d.wake:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		timer.Stop()
		if again != nil && !time.Now().Before(again.due) {
			again = d.takeOver(again.snapshot, again)
		}
	}
}

// finish waits for the jobs, which end with Run's context, and closes what they have left.
func (d *Deployer) finish() {
	d.jobs.Wait()
	var left []*archive.Archive
	d.locked(func() {
		d.over = true
		for _, u := range d.units {
			left = append(left, u.release())
		}
	})
	d.closeAll(left...)
}

// poke makes Run look at everything again.
func (d *Deployer) poke() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func (d *Deployer) lock() { d.mu.Lock() }

// unlock gives mu back, wakes who waits for a change, and tells what is to be told.
func (d *Deployer) unlock() {
	untold := d.untold
	d.untold = nil
	close(d.changed)
	d.changed = make(chan struct{})
	d.mu.Unlock()
	d.notify(untold)
}

// tell notes something that is told when mu is free; mu is held.
func (d *Deployer) tell(c rollout.Change) {
	c.At = time.Now()
	d.untold = append(d.untold, c)
}

// closeAll closes archives that nobody uses.
func (d *Deployer) closeAll(archives ...*archive.Archive) {
	for _, a := range archives {
		if a == nil {
			continue
		}
		if err := a.Close(); err != nil {
			d.opts.Logger.Error("an unpacked archive was not removed", "source", a.Source, "reason", err.Error())
		}
	}
}

// remember changes the ledger's state; that it could not be written is told and nothing more, since what runs is right.
func (d *Deployer) remember(edit func(*ledger.State)) {
	if err := d.try("what was decided was written", func() error { return d.opts.Ledger.Change(edit) }); err != nil {
		d.opts.Logger.Error("what was decided is not remembered after a restart", "reason", err.Error())
	}
}

// memory is a Ledger that forgets.
type memory struct {
	mu    sync.Mutex // guards what follows
	state ledger.State
}

// State gives a copy.
func (m *memory) State() ledger.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return cloneState(m.state)
}

// Change edits the state.
func (m *memory) Change(edit func(*ledger.State)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := cloneState(m.state)
	edit(&s)
	m.state = s
	return nil
}
