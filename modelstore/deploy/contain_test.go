package deploy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/check"
	"github.com/flambeau-serve/flambeau/modelstore/ledger"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// bugs are what panics, by what is done, and how often.
type bugs struct {
	mu    sync.Mutex // guards left, told
	left  map[string]int
	told  []error
	stack int // those whose stack is told
}

// at panics if there is a bug.
func (b *bugs) at(what string, args ...any) {
	what = fmt.Sprintf(what, args...)
	b.mu.Lock()
	b.left[what]--
	there := b.left[what] >= 0
	b.mu.Unlock()
	if there {
		panic("a bug at " + what)
	}
}

func (b *bugs) set(what string, times int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left[what] = times
}

// count gives how many were told.
func (b *bugs) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.told)
}

func (b *bugs) panicked(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.told = append(b.told, err)
	if strings.Contains(fault.DetailOf(err), "(*bugs).at") {
		b.stack++
	}
}

type badArchives struct {
	Archives
	*bugs
}

func (a badArchives) OpenEntry(ctx context.Context, path string) (*archive.Archive, error) {
	a.at("open %s", path)
	return a.Archives.OpenEntry(ctx, path)
}

func (a badArchives) IsCopy(path string) bool {
	a.at("copy %s", path)
	return a.Archives.IsCopy(path)
}

type badModels struct {
	Models
	*bugs
}

func (m badModels) Deploy(ctx context.Context, spec rollout.Spec) (rollout.Registered, error) {
	m.at("deploy %s", spec.Archive.Digest)
	return m.Models.Deploy(ctx, spec)
}

func (m badModels) Register(ctx context.Context, spec rollout.Spec) (rollout.Registered, error) {
	m.at("register %s", spec.Name)
	return m.Models.Register(ctx, spec)
}

func (m badModels) Unregister(ctx context.Context, ref infer.ModelRef) error {
	m.at("unregister %s", ref.Name)
	return m.Models.Unregister(ctx, ref)
}

func (m badModels) Describe(ref infer.ModelRef) (rollout.Description, error) {
	m.at("describe %s", ref.Name)
	return m.Models.Describe(ref)
}

func (m badModels) DescribeAll(name string) ([]rollout.Description, error) {
	m.at("describe all of %s", name)
	return m.Models.DescribeAll(name)
}

type badWatcher struct {
	Watcher
	*bugs
}

func (w badWatcher) Rescan() {
	w.at("rescan")
	w.Watcher.Rescan()
}

type badChecker struct{ *bugs }

func (c badChecker) Check(_ context.Context, a *archive.Archive) (check.Report, error) {
	c.at("check %s", a.Source)
	return check.Report{}, nil
}

type badLedger struct {
	memory
	*bugs
}

func (l *badLedger) State() ledger.State {
	l.at("recall")
	return l.memory.State()
}

func (l *badLedger) Change(edit func(*ledger.State)) error {
	l.at("remember")
	return l.memory.Change(edit)
}

// badLog is a logger that has bugs, also while the caller holds its lock.
type badLog struct {
	slog.Handler
	*bugs
}

func (l badLog) Enabled(context.Context, slog.Level) bool { return true }

func (l badLog) Handle(_ context.Context, r slog.Record) error {
	l.at("log %s", r.Message)
	return nil
}

// withBugs is in with everything that a Deployer calls able to panic.
func withBugs(t *testing.T, change func(*Options), test func(b *bench, bad *bugs, run func())) {
	t.Helper()
	bad := &bugs{left: map[string]int{}}
	in(t, func(o *Options) {
		if change != nil {
			change(o)
		}
		tell := o.Changed
		o.Changed = func(c rollout.Change) {
			bad.at("tell %s", c.Kind)
			tell(c)
		}
		o.Archives, o.Models, o.Watcher, o.Checker = badArchives{o.Archives, bad}, badModels{o.Models, bad}, badWatcher{o.Watcher, bad}, badChecker{bad}
		o.Ledger, o.Logger, o.Panicked = &badLedger{bugs: bad}, slog.New(badLog{slog.DiscardHandler, bad}), bad.panicked
	}, func(b *bench, run func()) { test(b, bad, run) })
}

// TestPanicsCostOneDeployment: whatever has a bug while an archive is loaded, or replaced, others are as ever meanwhile, and this one is tried again. Who
// waits for it hears that it did not come to that, and nothing stays held.
func TestPanicsCostOneDeployment(t *testing.T) {
	for _, what := range []string{
		"open m.mar", "copy m.mar", "check m.mar", "deploy a", "deploy b", "describe m", "describe all of m", "recall", "remember", "tell refused", "rescan",
		"log an archive of the model store is not loaded", "log an archive of the model store does not serve", "log the model store's archive serves",
	} {
		for _, times := range []int{1, 3} {
			t.Run(fmt.Sprint(what, " ", times), func(t *testing.T) {
				withBugs(t, nil, func(b *bench, bad *bugs, run func()) {
					run()
					bad.set(what, times)
					b.models.breakDigest("a", errors.New("a try that fails")) // so that failures are told and logged
					b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0"), "other.mar": mar("x", "other", "1.0")})
					b.after(20*time.Second, "other/1.0 x*")
					b.models.breakDigest("a", nil)
					b.after(50*time.Second, "m/1.0 a*, other/1.0 x*")
					b.store.breakOpening("m.mar", archive.ErrChanged) // has the store read once more
					b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0"), "other.mar": mar("y", "other", "1.0")})
					b.after(3*time.Second, "m/1.0 a*, other/1.0 y*")
					b.store.breakOpening("m.mar", errors.New("it is broken"))
					b.after(5*time.Second, "m/1.0 a*, other/1.0 y*")
					b.store.breakOpening("m.mar", nil)
					b.models.breakDigest("b", errors.New("a try that fails"))
					b.after(5*time.Second, "m/1.0 a*, other/1.0 y*")
					b.models.breakDigest("b", nil)
					b.after(50*time.Second, "m/1.0 b*, other/1.0 y*")
					if n := bad.count(); n < 1 || n != bad.stack {
						b.t.Errorf("%d panics were told, %d with the place of the bug", n, bad.stack)
					}
					b.wantDecision("m.mar", DecisionServing)
					waiting, cancel := context.WithTimeout(b.t.Context(), time.Minute)
					defer cancel()
					if err := b.Reload(waiting, "m"); err != nil {
						b.t.Errorf("after it all: %v", err)
					}
					_, err := b.Rollback(waiting, "m", "", "") // waits for what was replaced
					if what == "remember" {                    // it may not be known what that was
						return
					}
					if err != nil {
						b.t.Errorf("after it all: %v", err)
					}
					b.after(time.Second, "m/1.0 a*, other/1.0 y*")
				})
			})
		}
	}
}

// TestPanicsWithoutEnd: who waits for a model that cannot be loaded because of a bug hears that, and what serves goes on; the pauses between the tries grow.
func TestPanicsWithoutEnd(t *testing.T) {
	for _, what := range []string{"open m.mar", "deploy b"} {
		t.Run(what, func(t *testing.T) {
			withBugs(t, nil, func(b *bench, bad *bugs, run func()) {
				run()
				b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
				b.after(time.Second, "m/1.0 a*")
				bad.set(what, 1<<20)
				b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
				b.after(20*time.Minute, "m/1.0 a*")
				if n := bad.count(); n < 3 || n > 20 {
					b.t.Errorf("%d panics", n)
				}
				b.wantDecision("m.mar", DecisionRefused, "Internal error", "the server has a bug")
				if f := b.LastFailure(ref("m", "1.0")); f == nil || !strings.Contains(f.Reason, "the server has a bug") || f.Attempts < 3 {
					b.t.Errorf("%+v", f)
				}
				waiting, cancel := context.WithTimeout(b.t.Context(), time.Minute)
				defer cancel()
				if err := b.Reload(waiting, "m"); err == nil || waiting.Err() != nil || !strings.Contains(err.Error(), "Internal error") {
					b.t.Errorf("who waits hears %v", err)
				}
				if err := b.Unregister(waiting, ref("m", "")); err != nil {
					b.t.Error(err)
				}
				b.after(time.Second, "")
			})
		})
	}
}

// TestPanicOfARollback is the answer to who asked for it, and what serves goes on. The next one is done.
func TestPanicOfARollback(t *testing.T) {
	withBugs(t, nil, func(b *bench, bad *bugs, run func()) {
		run()
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
		b.after(time.Second, "m/1.0 b*")
		bad.set("deploy a", 1)
		waiting, cancel := context.WithTimeout(b.t.Context(), time.Minute)
		defer cancel()
		if _, err := b.Rollback(waiting, "m", "", ""); !fault.Is(err, fault.Internal) {
			b.t.Errorf("%v", err)
		}
		b.after(time.Second, "m/1.0 b*")
		b.wantDecision("m.mar", DecisionServing)
		if _, err := b.Rollback(waiting, "m", "", ""); err != nil {
			b.t.Error(err)
		}
		b.after(time.Second, "m/1.0 a*")
	})
}

// TestPanicsOfRemovals: a model whose archive is gone, or not wanted any more, is unregistered a little later.
func TestPanicsOfRemovals(t *testing.T) {
	for name, remove := range map[string]func(*fakeStore){
		"removed": func(s *fakeStore) { s.remove("m/1") },
		"superseded": func(s *fakeStore) {
			s.put(map[string]file{"m/1": {digest: "a", folder: "m", number: "1", superseded: true}, "m/2": versioned("b", "m", "2")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			withBugs(t, nil, func(b *bench, bad *bugs, run func()) {
				run()
				b.store.put(map[string]file{"m/1": versioned("a", "m", "1"), "m/2": versioned("b", "m", "2")})
				b.after(time.Second, "m/1 a, m/2 b*")
				bad.set("unregister m", 2)
				remove(b.store)
				b.after(time.Minute, "m/2 b*")
				if bad.count() != 2 {
					b.t.Errorf("%d panics", bad.count())
				}
				b.store.put(map[string]file{"m/2": versioned("c", "m", "2")})
				b.after(time.Second, "m/2 c*")
			})
		})
	}
}

// TestPanicsOfTheStart cost a model at most, which Run loads later, and who is told of each hears it.
func TestPanicsOfTheStart(t *testing.T) {
	for what, later := range map[string]bool{"open m.mar": true, "register m": true, "describe all of m": false, "check m.mar": false, "recall": true, "remember": false} {
		for _, strict := range []bool{false, true} {
			t.Run(fmt.Sprint(what, " ", strict), func(t *testing.T) {
				withBugs(t, func(o *Options) { o.Strict = strict }, func(b *bench, bad *bugs, run func()) {
					b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0"), "other.mar": mar("x", "other", "1.0")})
					bad.set(what, 1)
					if what == "recall" {
						bad.set(what, 2)
					}
					var failed []string
					if err := b.Start(b.t.Context(), nil, func(name, url string, err error) {
						if err != nil {
							failed = append(failed, url)
							if !fault.Is(err, fault.Internal) {
								b.t.Errorf("%s %s: %v", name, url, err)
							}
						}
					}); err != nil {
						b.t.Error(err)
					}
					if later && what != "recall" && (len(failed) != 1 || failed[0] != "m.mar") {
						b.t.Errorf("told were %q", failed)
					}
					run()
					b.after(30*time.Second, "m/1.0 a*, other/1.0 x*")
				})
			})
		}
	}
}

// TestPanicUnderTheLock gives it back, and whoever waits for a change is woken.
func TestPanicUnderTheLock(t *testing.T) {
	withBugs(t, nil, func(b *bench, _ *bugs, run func()) {
		run()
		if err := b.contain("a test", func() { b.locked(func() { panic("a bug") }) }); !fault.Is(err, fault.Internal) {
			b.t.Error(err)
		}
		if err := b.contain("a test", func() { _ = b.await(b.t.Context(), func() bool { panic("a bug of who waits") }) }); !fault.Is(err, fault.Internal) {
			b.t.Error(err)
		}
		b.Entries()
		synctest.Wait()
	})
}
