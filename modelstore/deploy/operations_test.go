package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/check"
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

func TestReloadOfWhatIsNotComplete(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m.onnx": {state: watch.Incomplete, reason: "the file is no ONNX model", folder: "m", number: "1.0"}})
		b.after(time.Second, "")
		if err := b.Reload(b.t.Context(), "m"); !fault.Is(err, fault.InvalidModel) || !strings.Contains(err.Error(), "the file is no ONNX model") {
			t.Errorf("reload of a file that is not complete: %v", err)
		}
		b.store.put(map[string]file{"m.onnx": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		if err := b.Reload(b.t.Context(), "m"); err != nil {
			t.Error(err)
		}
		b.events()
	})
}

// TestReloadOfWhatHasJustCome: who copies a file into the store and asks for it at once need not wait until it was noticed.
func TestReloadOfWhatHasJustCome(t *testing.T) {
	for name, f := range map[string]file{"named by its place": {folder: "m", number: "1.0"}, "named by its archive": {}} {
		t.Run(name, func(t *testing.T) {
			in(t, nil, func(b *bench, run func()) {
				run()
				changing, settled := f, mar("a", "m", "1.0")
				changing.state = watch.Changing
				settled.folder, settled.number = f.folder, f.number
				b.store.lay("m.mar", changing)
				done := make(chan error, 1)
				go func() { done <- b.Reload(b.t.Context(), "m") }()
				b.after(time.Minute, "")
				select {
				case err := <-done:
					t.Fatalf("before it is complete: %v", err)
				default:
				}
				b.store.put(map[string]file{"m.mar": settled})
				if err := <-done; err != nil {
					t.Error(err)
				}
				b.after(0, "m/1.0 a*")
				begun := time.Now()
				if err := b.Reload(b.t.Context(), "other"); !fault.Is(err, fault.ModelNotFound) || time.Since(begun) > 0 {
					t.Errorf("of what is not there: %v after %s", err, time.Since(begun))
				}
			})
		})
	}
}

// TestReloadWithoutFollowing: a store that is only read when it is asked for is waited for as well.
func TestReloadWithoutFollowing(t *testing.T) {
	in(t, func(o *Options) { o.Once = true }, func(b *bench, run func()) {
		run()
		b.store.send()
		b.after(time.Second, "")
		changing, settled := file{state: watch.Changing, folder: "m", number: "1.0"}, mar("a", "m", "1.0")
		settled.folder, settled.number = "m", "1.0"
		b.store.lay("m.onnx", changing)
		done := make(chan error, 1)
		go func() { done <- b.Reload(b.t.Context(), "m") }()
		b.after(time.Minute, "")
		b.store.put(map[string]file{"m.onnx": settled})
		if err := <-done; err != nil {
			t.Error(err)
		}
		b.after(0, "m/1.0 a*")
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

// TestFolderWhoseHandlerWritesIntoIt changes a folder each time that it was loaded: after a few times it is left alone, until it changes at another time.
func TestFolderWhoseHandlerWritesIntoIt(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		folder := func(digest string) map[string]file {
			f := mar(digest, "m", "1.0")
			f.kind = watch.Folder
			return map[string]file{"m": f}
		}
		b.store.put(folder("0"))
		b.after(time.Second, "m/1.0 0*")
		for _, digest := range []string{"1", "2", "3"} {
			b.store.put(folder(digest))
			b.after(3*time.Second, "m/1.0 "+digest+"*")
		}
		b.store.put(folder("4"))
		b.after(3*time.Second, "m/1.0 3*")
		b.wantDecision("m", DecisionRefused, "its handler seems to write into its own folder", "flambeau reload m")
		b.wantEvent("refused", "its handler seems to write into its own folder")
		b.after(time.Minute, "m/1.0 3*")
		b.store.put(folder("5"))
		b.after(3*time.Second, "m/1.0 5*")
		b.store.put(folder("6"))
		b.after(3*time.Second, "m/1.0 6*")
	})
}
