package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/check"
	"github.com/flambeau-serve/flambeau/modelstore/ledger"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/modelstore/watch"
)

func TestRegisteringWhatTheStoreHasLoaded(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		b.models.log()
		four := 4
		done, err := b.Register(b.t.Context(), rollout.Spec{URL: "m.mar", InitialWorkers: &four})
		if err != nil || done.Ref != ref("m", "1.0") || done.Workers != 4 {
			t.Errorf("registered %+v, %v", done, err)
		}
		if diff := cmp.Diff([]string{"?: scale m/1.0 4 4"}, b.models.log()); diff != "" {
			t.Error(diff)
		}
		if _, err := b.Register(b.t.Context(), rollout.Spec{URL: "m.mar"}); !fault.Is(err, fault.Conflict) {
			t.Errorf("the second registration: %v", err)
		}
	})
}

func TestRegisteringWithOtherSettings(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		b.models.asked()
		b.models.log()
		eight := 8
		if _, err := b.Register(b.t.Context(), rollout.Spec{URL: "m.mar", Name: "m", BatchSize: &eight}); err != nil {
			t.Fatal(err)
		}
		specs := b.models.asked()
		if len(specs) != 1 || *specs[0].BatchSize != 8 || specs[0].Archive.Digest != "a" {
			t.Errorf("specs %+v", specs)
		}
		b.store.put(map[string]file{"m.mar": mar("b", "m", "2.0")}) // what was asked for holds for what takes its place
		b.after(time.Second, "m/2.0 b*")
		specs = b.models.asked()
		if len(specs) != 1 || specs[0].BatchSize == nil || *specs[0].BatchSize != 8 {
			t.Errorf("specs %+v", specs)
		}
	})
}

func TestRegisteringWhileItIsBeingLoaded(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.models.slow(time.Minute)
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "")
		began := time.Now()
		if _, err := b.Register(b.t.Context(), rollout.Spec{URL: "m.mar"}); err != nil || time.Since(began) < 50*time.Second {
			t.Errorf("registered after %s, %v", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(b.t.Context(), time.Second)
		defer cancel()
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
		time.Sleep(500 * time.Millisecond)
		if _, err := b.Register(ctx, rollout.Spec{URL: "m.mar"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a client who does not wait: %v", err)
		}
	})
}

func TestRegisteringUnderAnotherName(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		if _, err := b.Register(b.t.Context(), rollout.Spec{URL: "m.mar#a", Name: "other"}); err != nil {
			t.Fatal(err)
		}
		b.after(0, "m/1.0 a*, other/1.0 a*")
	})
}

func TestDeleteAndPost(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m.mar": mar("posted", "m", "1.0")})
		b.after(time.Second, "m/1.0 posted*")
		ctx := rollout.WithActor(b.t.Context(), rollout.Actor{Who: "api (10.0.0.7)"})
		if err := b.Unregister(ctx, ref("m", "")); err != nil {
			t.Fatal(err)
		}
		b.after(time.Hour, "")
		b.wantDecision("m.mar", DecisionIgnored, "by hand", "10.0.0.7")
		if got := b.opts.Ledger.State().Ignored["m.mar"].Digest; got != "posted" {
			t.Errorf("the ledger ignores %q", got)
		}
		if _, err := b.Register(ctx, rollout.Spec{URL: "m.mar", Name: "m", Version: "1.0"}); err != nil {
			t.Fatal(err)
		}
		if got := b.opts.Ledger.State().Ignored; len(got) > 0 {
			t.Errorf("the ledger ignores %v", got)
		}
		b.models.mu.Lock()
		b.models.versions[ref("m", "1.0")].source = "m.mar" // as the real store notes it
		b.models.mu.Unlock()
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
		b.after(time.Second, "m/1.0 b*")
	})
}

func TestUnregisteredUntilItChanges(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		if err := b.Unregister(b.t.Context(), ref("m", "1.0")); err != nil {
			t.Fatal(err)
		}
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")}) // touched
		b.after(time.Hour, "")
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
		b.after(time.Second, "m/1.0 b*")
		if got := b.opts.Ledger.State().Ignored; len(got) > 0 {
			t.Errorf("the ledger ignores %v", got)
		}
	})
}

func TestUnregisterWhileItIsUpdated(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		b.models.slow(time.Hour)
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		if err := b.Unregister(b.t.Context(), ref("m", "1.0")); err != nil {
			t.Fatal(err)
		}
		b.after(2*time.Hour, "")
		b.wantDecision("m.mar", DecisionIgnored)
	})
}

func TestUnregisterWhileItIsLoadedForTheFirstTime(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.models.slow(time.Hour)
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "")
		if _, err := b.Rollback(b.t.Context(), "m", "", ""); !fault.Is(err, fault.Conflict) {
			t.Errorf("rollback: %v", err)
		}
		if err := b.Unregister(b.t.Context(), ref("m", "")); err != nil {
			t.Fatal(err)
		}
		b.after(3*time.Hour, "")
		b.wantDecision("m.mar", DecisionIgnored)
	})
}

func TestRegisteringBeforeTheStoreIsSeen(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		if _, err := b.Register(b.t.Context(), rollout.Spec{URL: "m.mar"}); err != nil {
			t.Fatal(err)
		}
		b.models.log()
		b.store.put(map[string]file{"m.mar": mar("posted", "m", "1.0")})
		b.after(time.Second, "m/1.0 posted*")
		if calls := b.models.log(); len(calls) > 0 {
			t.Errorf("calls %q", calls)
		}
		if _, err := b.Register(b.t.Context(), rollout.Spec{URL: "m.mar"}); !fault.Is(err, fault.Conflict) {
			t.Errorf("the second registration: %v", err)
		}
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
		b.after(time.Second, "m/1.0 b*")
	})
}

func TestReloadForgetsWhatWasDecidedByHand(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		if err := b.Unregister(b.t.Context(), ref("m", "1.0")); err != nil {
			t.Fatal(err)
		}
		if err := b.Reload(b.t.Context(), "m"); err != nil {
			t.Fatal(err)
		}
		b.after(0, "m/1.0 a*")
		b.models.breakDigest("b", errors.New("it raises"))
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		if err := b.Reload(b.t.Context(), "m"); err == nil || !strings.Contains(err.Error(), "it raises") {
			t.Errorf("reload of a broken archive: %v", err)
		}
	})
}

// remembered runs a test twice with the same ledger and the same folder of kept archives, as before and after a restart.
func remembered(t *testing.T, change func(*Options), first, second func(b *bench, run func())) {
	t.Helper()
	state, dir := &memory{}, t.TempDir()
	var kept map[string]file
	with := func(o *Options) {
		o.Ledger, o.KeepDir = state, dir
		if change != nil {
			change(o)
		}
	}
	in(t, with, func(b *bench, run func()) {
		first(b, run)
		kept = b.store.kept
	})
	for _, k := range state.State().Kept {
		if err := os.MkdirAll(k.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	in(t, with, func(b *bench, run func()) {
		b.store.kept = kept
		second(b, run)
	})
}

// begin starts with what lies in the store.
func (b *bench) begin(listed ...Startup) map[string]string {
	b.t.Helper()
	heard := map[string]string{}
	if err := b.Start(b.t.Context(), listed, func(name, url string, err error) {
		heard[url] = fmt.Sprintf("%s %v", name, err)
	}); err != nil {
		b.t.Errorf("Start: %v", err)
	}
	return heard
}

func TestWhatWasSetByHandOutlivesARestart(t *testing.T) {
	files := map[string]file{"m1.mar": mar("a", "m", "1.0"), "m2.mar": mar("b", "m", "2.0"), "n.mar": mar("x", "n", "1.0")}
	first := func(b *bench, run func()) {
		run()
		b.store.put(files)
		b.after(time.Second, "m/1.0 a, m/2.0 b*, n/1.0 x*")
		ctx := b.t.Context()
		if err := errors.Join(b.SetDefault(ctx, ref("m", "1.0")), b.Scale(ctx, ref("m", "2.0"), 5, 6, false), b.Unregister(ctx, ref("n", ""))); err != nil {
			b.t.Fatal(err)
		}
	}
	remembered(t, nil, first, func(b *bench, run func()) {
		b.store.put(files)
		heard := b.begin()
		run()
		b.after(time.Second, "m/1.0 a*, m/2.0 b")
		b.wantDecision("n.mar", DecisionIgnored, "by hand")
		if diff := cmp.Diff(map[string]string{"m1.mar": "m <nil>", "m2.mar": "m <nil>"}, heard); diff != "" {
			t.Error(diff)
		}
		if calls := strings.Join(b.models.log(), "\n"); !strings.Contains(calls, "scale m/2.0 5 6") {
			t.Errorf("calls:\n%s", calls)
		}
	})
	torchserve := func(o *Options) { o.Fresh, o.FilePolicy = true, PolicyFirst }
	remembered(t, torchserve, first2(files), func(b *bench, run func()) { // its snapshots are for that
		b.store.put(files)
		b.begin()
		run()
		b.after(time.Second, "m/1.0 a*, m/2.0 b, n/1.0 x*")
	})
}

func first2(files map[string]file) func(b *bench, run func()) {
	return func(b *bench, run func()) {
		run()
		b.store.put(files)
		time.Sleep(time.Second)
		synctest.Wait()
		ctx := b.t.Context()
		if err := errors.Join(b.SetDefault(ctx, ref("m", "2.0")), b.Unregister(ctx, ref("n", ""))); err != nil {
			b.t.Fatal(err)
		}
	}
}

func TestRollback(t *testing.T) {
	remembered(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m.mar": mar("sha256:aaaa", "m", "1.0"), "n.mar": mar("x", "n", "1.0")})
		b.after(time.Second, "m/1.0 sha256:aaaa*, n/1.0 x*")
		if _, err := b.Rollback(b.t.Context(), "m", "", ""); !fault.Is(err, fault.Conflict) {
			t.Errorf("there is nothing to go back to: %v", err)
		}
		b.store.put(map[string]file{"m.mar": mar("sha256:bbbb", "m", "1.0")})
		b.after(time.Second, "m/1.0 sha256:bbbb*, n/1.0 x*")
		b.events()
		if _, err := b.Rollback(b.t.Context(), "m", "", "cccc"); !fault.Is(err, fault.Conflict) {
			t.Errorf("an unknown digest: %v", err)
		}
		done, err := b.Rollback(b.t.Context(), "m", "", "")
		if err != nil || done.ToDigest != "sha256:aaaa" || done.FromDigest != "sha256:bbbb" || done.To != ref("m", "1.0") {
			t.Errorf("rolled back %+v, %v", done, err)
		}
		b.after(time.Hour, "m/1.0 sha256:aaaa*, n/1.0 x*")
		b.wantDecision("m.mar", DecisionRolledBack, "aaaa")
		b.wantEvent("rolled_back m/1.0: from bbbb to aaaa")
		b.store.put(map[string]file{"m.mar": mar("sha256:bbbb", "m", "1.0")}) // touched
		b.after(time.Hour, "m/1.0 sha256:aaaa*, n/1.0 x*")
		if _, err := b.Rollback(b.t.Context(), "m", "", ""); !fault.Is(err, fault.Conflict) {
			t.Errorf("it goes back and forth: %v", err)
		}
	}, func(b *bench, run func()) {
		b.store.put(map[string]file{"m.mar": mar("sha256:bbbb", "m", "1.0"), "n.mar": mar("x", "n", "1.0")})
		b.begin()
		run()
		b.after(time.Second, "m/1.0 sha256:aaaa*, n/1.0 x*")
		b.wantDecision("m.mar", DecisionRolledBack)
		b.store.put(map[string]file{"m.mar": mar("sha256:cccc", "m", "1.0")})
		b.after(time.Second, "m/1.0 sha256:cccc*, n/1.0 x*")
		if s := b.opts.Ledger.State(); len(s.Ignored)+len(s.Pinned) > 0 {
			t.Errorf("the ledger has %+v", s)
		}
		if _, err := b.Rollback(b.t.Context(), "m", "", "aaa"); err != nil {
			t.Errorf("back to an older one by its digest: %v", err)
		}
		b.after(time.Second, "m/1.0 sha256:aaaa*, n/1.0 x*")
		if err := b.Reload(b.t.Context(), "m"); err != nil {
			t.Fatal(err)
		}
		b.after(0, "m/1.0 sha256:cccc*, n/1.0 x*")
	})
}

func TestRollbackAcrossVersionsOfAFile(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		b.store.put(map[string]file{"m.mar": mar("b", "m", "2.0")})
		b.after(time.Second, "m/2.0 b*")
		if _, err := b.Rollback(b.t.Context(), "m", "", ""); err != nil {
			t.Fatal(err)
		}
		b.after(time.Hour, "m/1.0 a*")
	})
}

func TestRollbackWaitsForWhatIsLeaving(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		b.models.drains = time.Minute
		run()
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		b.models.breakDigest("x", errors.New("no"))
		b.store.put(map[string]file{"m.mar": mar("x", "m", "1.0")}) // nothing leaves
		b.after(time.Second, "m/1.0 a*")
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
		b.after(time.Second, "m/1.0 b*")
		ctx, cancel := context.WithTimeout(b.t.Context(), time.Second)
		defer cancel()
		if _, err := b.Rollback(ctx, "m", "", ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("somebody who does not wait: %v", err)
		}
		done, err := b.Rollback(b.t.Context(), "m", "", "")
		if err != nil || done.ToDigest != "a" {
			t.Errorf("rolled back %+v, %v", done, err)
		}
		b.after(time.Hour, "m/1.0 a*")
	})
}

func TestRollbackThatFailsChangesNothing(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
		b.after(time.Second, "m/1.0 b*")
		b.models.breakDigest("a", errors.New("it does not come up any more"))
		if _, err := b.Rollback(b.t.Context(), "m", "", ""); err == nil || !strings.Contains(err.Error(), "any more") {
			t.Errorf("rollback: %v", err)
		}
		b.after(time.Hour, "m/1.0 b*")
		if s := b.opts.Ledger.State(); len(s.Ignored)+len(s.Pinned) > 0 {
			t.Errorf("the ledger has %+v", s)
		}
	})
}

func TestRollbackInFoldersOfVersions(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m/1": versioned("a", "m", "1"), "m/2": versioned("b", "m", "2"), "m/3": versioned("c", "m", "3")})
		b.after(time.Second, "m/1 a, m/2 b, m/3 c*")
		done, err := b.Rollback(b.t.Context(), "m", "", "")
		if err != nil || done.To != ref("m", "2") || done.From != ref("m", "3") {
			t.Errorf("rolled back %+v, %v", done, err)
		}
		b.after(time.Hour, "m/1 a, m/2 b*")
		b.wantDecision("m/3", DecisionIgnored, "rolled back to version 2")
		b.store.put(map[string]file{"m/4": versioned("d", "m", "4")})
		b.after(time.Second, "m/1 a, m/2 b, m/4 d*")
		if _, err := b.Rollback(b.t.Context(), "m", "", "1"); err != nil {
			t.Fatal(err)
		}
		b.after(time.Second, "m/1 a*, m/2 b")
		b.store.put(map[string]file{"m/4": versioned("e", "m", "4")})
		b.after(time.Second, "m/1 a*, m/2 b, m/4 e") // 1 was asked for although 2 is there
	})
}

func TestFoldersInUseAreNotKept(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.Deployer.keep = func(*archive.Archive, string) error { return errors.New("it is used in place") }
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
		b.after(time.Second, "m/1.0 b*")
		var f *fault.Error
		if _, err := b.Rollback(b.t.Context(), "m", "", ""); !errors.As(err, &f) || !strings.Contains(f.Hint, "used in place") {
			t.Errorf("rollback: %v", err)
		}
	})
}

func TestOnlySoManyAreKept(t *testing.T) {
	in(t, func(o *Options) { o.Keep = 2 }, func(b *bench, run func()) {
		run()
		for _, digest := range []string{"a", "b", "c", "d"} {
			b.store.put(map[string]file{"m.mar": mar(digest, "m", "1.0")})
			b.after(time.Second, "m/1.0 "+digest+"*")
		}
		var kept []string
		for _, k := range b.opts.Ledger.State().Kept {
			kept = append(kept, k.Digest)
		}
		if diff := cmp.Diff([]string{"b", "c"}, kept); diff != "" {
			t.Error(diff)
		}
		b.store.remove("m.mar")
		b.after(time.Minute, "")
		if kept := b.opts.Ledger.State().Kept; len(kept) > 0 {
			t.Errorf("of a model that is gone there is %+v", kept)
		}
	})
}

// fakeChecker finds what the test says.
type fakeChecker struct {
	report check.Report
	err    error
}

func (c *fakeChecker) Check(context.Context, *archive.Archive) (check.Report, error) {
	return c.report, c.err
}

func TestFindingsOfTheCheck(t *testing.T) {
	report := check.Report{Findings: []check.Finding{{Severity: check.Error, File: "h.py", Line: 3, Message: "imports cv2, which is not installed"}}}
	t.Run("warn", func(t *testing.T) {
		in(t, func(o *Options) { o.Checker = &fakeChecker{report: report} }, func(b *bench, run func()) {
			run()
			b.models.breakDigest("a", errors.New("No module named cv2"))
			b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0"), "n.mar": mar("b", "n", "1.0")})
			b.after(time.Second, "n/1.0 b*")
			b.wantDecision("m.mar", DecisionFailed, "No module named cv2", "h.py:3: imports cv2")
			if e := b.entry("n.mar"); !strings.Contains(e.Findings, "cv2") || e.Decision != DecisionServing {
				t.Errorf("entry %+v", e)
			}
		})
	})
	t.Run("strict", func(t *testing.T) {
		in(t, func(o *Options) { o.Checker, o.Strict = &fakeChecker{report: report}, true }, func(b *bench, run func()) {
			run()
			b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
			b.after(time.Hour, "")
			b.wantDecision("m.mar", DecisionRefused, "h.py:3: imports cv2")
			b.wantEvent("refused m/1.0", "h.py:3: imports cv2")
			if calls := b.models.log(); len(calls) > 0 {
				t.Errorf("it was started: %q", calls)
			}
		})
	})
	t.Run("start", func(t *testing.T) {
		for _, strict := range []bool{false, true} {
			in(t, func(o *Options) { o.Checker, o.Strict = &fakeChecker{report: report}, strict }, func(b *bench, run func()) {
				b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
				heard := b.begin()["m.mar"]
				run()
				want := map[bool]string{false: "m/1.0 a*", true: ""}[strict]
				b.after(time.Second, want)
				if strings.Contains(heard, "cv2") != strict {
					t.Errorf("strict %t: told %q", strict, heard)
				}
				if e := b.entry("m.mar"); !strings.Contains(e.Findings, "cv2") {
					t.Errorf("entry %+v", e)
				}
			})
		}
	})
	t.Run("not possible", func(t *testing.T) {
		in(t, func(o *Options) { o.Checker, o.Strict = &fakeChecker{err: errors.New("no Python")}, true }, func(b *bench, run func()) {
			run()
			b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
			b.after(time.Second, "m/1.0 a*")
		})
	})
}

func TestStart(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		b.models.breakDigest("z", errors.New("no handler"))
		b.store.put(map[string]file{
			"m1.mar": mar("a", "m", "1.0"), "m2.mar": mar("b", "m", "2.0"), "z.mar": mar("z", "z", "1.0"), "same.mar": mar("c", "m", "1.0"),
			"part.mar": {state: watch.Incomplete, reason: "12 bytes are missing"}, "copy.mar": {state: watch.Changing, reason: "still growing"},
		})
		heard := b.begin()
		b.after(0, "m/1.0 a, m/2.0 b*")
		for url, words := range map[string]string{
			"m1.mar": "m <nil>", "m2.mar": "m <nil>", "z.mar": "z no handler", "same.mar": "m1.mar and same.mar", "part.mar": "12 bytes are missing",
		} {
			if !strings.Contains(heard[url], words) {
				t.Errorf("told of %s: %q", url, heard[url])
			}
		}
		if len(heard) != 5 {
			t.Errorf("told %q", heard)
		}
		for _, s := range b.models.asked() {
			if !s.AtStartup || s.Synchronous {
				t.Errorf("spec %+v", s)
			}
		}
		run()
		b.models.log()
		b.models.breakDigest("z", nil)
		b.store.put(map[string]file{"copy.mar": mar("d", "copy", "1.0")})
		b.after(5*time.Second, "copy/1.0 d*, m/1.0 a, m/2.0 b*, z/1.0 z*")
		for _, call := range b.models.log() {
			if strings.Contains(call, " m/") {
				t.Errorf("what was started was touched again: %s", call)
			}
		}
	})
}

func TestStartWaitsAMomentForWhatIsBeingWritten(t *testing.T) {
	in(t, nil, func(b *bench, _ func()) {
		b.store.put(map[string]file{"m.mar": {state: watch.Changing}})
		go func() {
			time.Sleep(200 * time.Millisecond)
			b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		}()
		b.begin()
		b.after(0, "m/1.0 a*")
	})
}

func TestStartOfListedModels(t *testing.T) {
	listed := []Listed{{"given", "m.mar"}, {"", "broken.mar"}, {"", "https://elsewhere/far.mar"}, {"", "resnet"}}
	in(t, func(o *Options) { o.Scope, o.Tolerant, o.FilePolicy = Scope{Listed: listed}, true, PolicyFirst }, func(b *bench, run func()) {
		b.store.put(map[string]file{
			"m.mar": mar("a", "m", "1.0"), "broken.mar": {state: watch.Incomplete, reason: "it is no zip file"}, "n.mar": mar("x", "n", "1.0"),
			"resnet/9": versioned("r", "resnet", "9"), "resnet/10": versioned("s", "resnet", "10"),
		})
		var start []Startup
		for _, l := range listed {
			start = append(start, Startup{Spec: rollout.Spec{URL: l.URL, Name: l.Name, AtStartup: true}})
		}
		b.begin(start...)
		run()
		// TorchServe registers a file that is no archive, too.
		b.after(time.Second, "broken/1.0 posted*, given/1.0 a*, https://elsewhere/far/1.0 posted*, resnet/10 s*, resnet/9 r")
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0"), "n.mar": mar("y", "n", "1.0")})
		b.after(time.Second, "broken/1.0 posted*, given/1.0 b*, https://elsewhere/far/1.0 posted*, resnet/10 s*, resnet/9 r")
	})
}

func TestStartFromASnapshot(t *testing.T) {
	one, two := 1, 2
	start := []Startup{
		{Spec: rollout.Spec{URL: "m1.mar", Name: "m", InitialWorkers: &two, MaxWorkers: 2, Exact: true}},
		{Spec: rollout.Spec{URL: "m2.mar", Name: "m", InitialWorkers: &one, MaxWorkers: 1, Exact: true}, Default: true},
		{Spec: rollout.Spec{URL: "n.mar", Name: "renamed", InitialWorkers: &one, MaxWorkers: 1, Exact: true}, Default: true},
	}
	in(t, func(o *Options) { o.Fresh = true }, func(b *bench, run func()) {
		b.store.put(map[string]file{"m1.mar": mar("a", "m", "3.0"), "m2.mar": mar("b", "m", "2.0"), "n.mar": mar("x", "n", "1.0"), "o.mar": mar("o", "o", "1.0")})
		b.begin(start...)
		b.after(0, "m/2.0 b*, m/3.0 a, renamed/1.0 x*")
		if specs := b.models.asked(); len(specs) != 3 || *specs[0].InitialWorkers != 2 || !specs[0].Exact {
			t.Errorf("specs %+v", specs)
		}
		run()
		b.after(time.Second, "m/2.0 b*, m/3.0 a, o/1.0 o*, renamed/1.0 x*") // all that the store holds is followed
		b.store.put(map[string]file{"n.mar": mar("y", "n", "1.0")})
		b.after(time.Second, "m/2.0 b*, m/3.0 a, o/1.0 o*, renamed/1.0 y*")
	})
}

func TestADefaultThatDoesNotComeUpAtTheStart(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		b.store.put(map[string]file{"m/1": versioned("a", "m", "1"), "m/2": versioned("b", "m", "2")})
		b.begin()
		b.models.setState("m", "1", "deploying")
		b.models.setState("m", "2", "deploying")
		run()
		b.after(time.Second, "m/1 a, m/2 b*")
		b.models.setState("m", "2", "failed")
		b.models.setState("m", "1", "serving")
		b.after(5*time.Second, "m/1 a*, m/2 b")
		b.models.setState("m", "2", "serving")
		b.after(5*time.Second, "m/1 a, m/2 b*")
		b.models.setState("m", "2", "failed") // a worker that dies later moves nothing
		b.after(time.Minute, "m/1 a, m/2 b*")
	})
}

func TestSweep(t *testing.T) {
	in(t, nil, func(b *bench, _ func()) {
		stray, known := filepath.Join(b.opts.KeepDir, "stray"), filepath.Join(b.opts.KeepDir, "known")
		for _, dir := range []string{stray, known} {
			if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		b.remember(func(s *ledger.State) {
			s.Kept = []ledger.Kept{{Digest: "k", Dir: known}, {Digest: "gone", Dir: filepath.Join(b.opts.KeepDir, "gone")}}
		})
		b.store.send()
		b.begin()
		if isDir(stray) || !isDir(known) {
			t.Errorf("stray %t, known %t", isDir(stray), isDir(known))
		}
		if kept := b.opts.Ledger.State().Kept; len(kept) != 1 || kept[0].Digest != "k" {
			t.Errorf("kept %+v", kept)
		}
	})
}

func TestOptions(t *testing.T) {
	good := standard(t)
	good.Models, good.Archives, good.Watcher = newFakeModels(), newFakeStore(), newFakeStore()
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Options){
		"models": func(o *Options) { o.Models = nil }, "removal": func(o *Options) { o.Removal = "auto" }, "policy": func(o *Options) { o.FolderPolicy = "" },
	} {
		opts := good
		change(&opts)
		if _, err := New(opts); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
