package deploy

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/modelstore/watch"
)

func mar(digest, name, version string) file {
	return file{digest: digest, name: name, version: version}
}

func TestNewFileIsDeployedAsAStartUpModel(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0"), "nameless.mar": mar("b", "", "")})
		b.after(time.Second, "base/1.0 b*, m/1.0 a*")
		for _, s := range b.models.asked() {
			if !s.AtStartup || !s.Synchronous || s.Archive == nil || len(s.Steps) == 0 {
				t.Errorf("spec %+v", s)
			}
		}
		b.wantDecision("m.mar", DecisionServing)
		if e := b.entry("m.mar"); e.Model != "m" || e.Version != "1.0" || e.Digest != "a" || e.Serving != "a" {
			t.Errorf("entry %+v", e)
		}
	})
}

func TestChangedFileSwaps(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		b.models.log()
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
		b.after(time.Second, "m/1.0 b*")
		if diff := cmp.Diff([]string{"store: deploy m/1.0 b"}, b.models.log()); diff != "" {
			t.Error(diff)
		}
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")}) // touched
		b.after(time.Second, "m/1.0 b*")
		if calls := b.models.log(); len(calls) > 0 {
			t.Errorf("a file that was touched was deployed: %q", calls)
		}
	})
}

func TestAnotherVersionInTheSameFile(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m.mar": mar("a", "m", "2.0")})
		b.after(time.Second, "m/2.0 a*")
		if err := b.Scale(b.t.Context(), ref("m", ""), 3, 4, true); err != nil {
			t.Fatal(err)
		}
		b.models.log()
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
		b.after(time.Second, "m/1.0 b*")
		want := []string{"store: deploy m/1.0 b", "store: scale m/1.0 3 4", "store: default m/1.0", "store: unregister m/2.0"}
		if diff := cmp.Diff(want, b.models.log()); diff != "" {
			t.Error(diff)
		}
		b.models.breakDigest("c", errors.New("no"))
		b.store.put(map[string]file{"m.mar": mar("c", "m", "3.0")})
		b.after(time.Second, "m/1.0 b*")
		b.wantDecision("m.mar", DecisionFailed, "no")
		b.wantEvent("swap_failed m/3.0: no")
	})
}

func TestAnotherNameInTheSameFile(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0"), "n.mar": mar("x", "n", "1.0")})
		b.after(time.Second, "m/1.0 a*, n/1.0 x*")
		b.models.log()
		b.store.put(map[string]file{"m.mar": mar("b", "n", "2.0")})
		b.after(time.Second, "n/1.0 x, n/2.0 b*")
		want := []string{"store: deploy n/2.0 b", "store: unregister m/1.0", "store: default n/2.0"}
		if diff := cmp.Diff(want, b.models.log()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestTwoFilesOfTheSameVersion(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"one.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		b.store.put(map[string]file{"another.mar": mar("b", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		b.wantDecision("another.mar", DecisionRefused, "one.mar", "another.mar")
		b.wantEvent("refused m/1.0", "one.mar", "another.mar")
		b.store.put(map[string]file{"another.mar": mar("c", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		b.models.log()
		b.store.remove("one.mar")
		b.after(9*time.Second, "m/1.0 a*")
		b.after(2*time.Second, "m/1.0 c*")
		if diff := cmp.Diff([]string{"store: deploy m/1.0 c"}, b.models.log()); diff != "" {
			t.Error(diff) // in particular: it was never unregistered
		}
		b.wantDecision("another.mar", DecisionServing)
	})
}

func TestAVersionFromElsewhereIsInTheWay(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		if _, err := b.Register(b.t.Context(), rollout.Spec{URL: "https://elsewhere/m.mar", Name: "m"}); err != nil {
			t.Fatal(err)
		}
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 posted*")
		b.wantDecision("m.mar", DecisionRefused, "https://elsewhere/m.mar", "m.mar")
		if err := b.Unregister(b.t.Context(), ref("m", "")); err != nil {
			t.Fatal(err)
		}
		b.after(time.Second, "m/1.0 a*")
	})
}

func versioned(digest, name, version string) file {
	return file{digest: digest, folder: name, number: version}
}

func TestFoldersOfVersions(t *testing.T) {
	in(t, func(o *Options) { o.FilePolicy = PolicyFirst }, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m/9": versioned("a", "m", "9"), "m/10": versioned("b", "m", "10")})
		b.after(time.Second, "m/10 b*, m/9 a")
		b.store.put(map[string]file{"m/10.1": versioned("c", "m", "10.1")})
		b.after(time.Second, "m/10 b, m/10.1 c*, m/9 a")
		b.store.put(map[string]file{"m/2": versioned("d", "m", "2")})
		b.after(time.Second, "m/10 b, m/10.1 c*, m/2 d, m/9 a")
		b.store.remove("m/10.1")
		b.models.log()
		b.after(11*time.Second, "m/10 b*, m/2 d, m/9 a")
		if diff := cmp.Diff([]string{"store: default m/10", "store: unregister m/10.1"}, b.models.log()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestADefaultThatWasSetByHandStays(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m/1": versioned("a", "m", "1"), "m/2": versioned("b", "m", "2")})
		b.after(time.Second, "m/1 a, m/2 b*")
		if err := b.SetDefault(b.t.Context(), ref("m", "1")); err != nil {
			t.Fatal(err)
		}
		b.store.put(map[string]file{"m/3": versioned("c", "m", "3")})
		b.after(time.Second, "m/1 a*, m/2 b, m/3 c")
		if got := b.opts.Ledger.State().Defaults["m"]; got != "1" {
			t.Errorf("the ledger has default %q", got)
		}
		b.store.remove("m/1")
		b.after(11*time.Second, "m/2 b, m/3 c*")
		if got := b.opts.Ledger.State().Defaults; len(got) > 0 {
			t.Errorf("the ledger has defaults %q", got)
		}
		b.store.put(map[string]file{"m/4": versioned("d", "m", "4")})
		b.after(time.Second, "m/2 b, m/3 c, m/4 d*")
	})
}

func TestFirstVersionStaysTheDefault(t *testing.T) {
	in(t, func(o *Options) { o.FilePolicy = PolicyFirst }, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m1.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		b.store.put(map[string]file{"m2.mar": mar("b", "m", "2.0")})
		b.after(time.Second, "m/1.0 a*, m/2.0 b")
	})
}

func TestRemoval(t *testing.T) {
	t.Run("unregister", func(t *testing.T) {
		in(t, nil, func(b *bench, run func()) {
			run()
			b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0"), "n.mar": mar("x", "n", "1.0")})
			b.after(time.Second, "m/1.0 a*, n/1.0 x*")
			b.store.remove("m.mar")
			b.after(9*time.Second, "m/1.0 a*, n/1.0 x*")
			b.wantDecision("m.mar", DecisionGone)
			b.after(2*time.Second, "n/1.0 x*")
		})
	})
	t.Run("keep", func(t *testing.T) {
		in(t, func(o *Options) { o.Removal = RemovalKeep }, func(b *bench, run func()) {
			run()
			b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0"), "n.mar": mar("x", "n", "1.0")})
			b.after(time.Second, "m/1.0 a*, n/1.0 x*")
			b.store.remove("m.mar")
			b.after(time.Hour, "m/1.0 a*, n/1.0 x*")
			if events := b.events(); len(events) != 1 || !strings.HasPrefix(events[0], "gone m/1.0: what was unpacked goes on serving") {
				t.Errorf("events %q", events)
			}
			b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
			b.after(time.Second, "m/1.0 b*, n/1.0 x*")
			b.wantDecision("m.mar", DecisionServing)
		})
	})
	t.Run("there again in time", func(t *testing.T) {
		in(t, nil, func(b *bench, run func()) {
			run()
			b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0"), "n.mar": mar("x", "n", "1.0")})
			b.after(time.Second, "m/1.0 a*, n/1.0 x*")
			b.models.log()
			b.store.remove("m.mar")
			b.after(5*time.Second, "m/1.0 a*, n/1.0 x*")
			b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
			b.after(time.Hour, "m/1.0 b*, n/1.0 x*")
			if diff := cmp.Diff([]string{"store: deploy m/1.0 b"}, b.models.log()); diff != "" {
				t.Error(diff)
			}
		})
	})
}

func TestAStoreThatIsLost(t *testing.T) {
	for name, lose := range map[string]func(*fakeStore){
		"unreadable": func(s *fakeStore) { s.fail(errors.New("stale file handle")) },
		"empty":      func(s *fakeStore) { s.emit(watch.Snapshot{At: time.Now()}) },
	} {
		t.Run(name, func(t *testing.T) {
			in(t, nil, func(b *bench, run func()) {
				run()
				const all = "m/1.0 a*, n/1.0 x*"
				b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0"), "n.mar": mar("x", "n", "1.0")})
				b.after(time.Second, all)
				lose(b.store)
				b.after(time.Hour, all)
				if events := b.events(); len(events) != 1 || !strings.HasPrefix(events[0], "store_lost") {
					t.Errorf("events %q", events)
				}
				b.store.remove("n.mar") // that of them which is there when it comes back
				b.after(9*time.Second, all)
				b.wantEvent("store_back")
				b.after(2*time.Second, "m/1.0 a*")
			})
		})
	}
}

func TestTheOnlyArchiveMayBeRemoved(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		b.store.remove("m.mar")
		b.after(11*time.Second, "")
		if entries := b.Entries(); len(entries) > 0 {
			t.Errorf("entries %+v", entries)
		}
	})
}

func TestScope(t *testing.T) {
	scope := Scope{Listed: []Listed{
		{"given", "m.mar"}, {"", "/store/sub.mar"}, {"", "resnet"}, {"", "https://elsewhere/far.mar"}, {"", "/elsewhere/folder"}, {"", "/store/inside"},
	}}
	in(t, func(o *Options) { o.Scope = scope }, func(b *bench, run func()) {
		run()
		folder := mar("f", "folder", "1.0")
		folder.kind = watch.Folder
		inside := mar("g", "inside", "1.0")
		inside.kind = watch.Folder
		b.store.put(map[string]file{
			"m.mar": mar("a", "m", "1.0"), "n.mar": mar("x", "n", "1.0"), "sub.mar": mar("s", "sub", "1.0"), "resnet/1": versioned("r", "resnet", "1"),
			"far.mar": mar("y", "far", "1.0"), "folder": folder, "inside": inside,
		})
		b.after(time.Second, "given/1.0 a*, inside/1.0 g*, resnet/1 r*, sub/1.0 s*")
		b.wantDecision("n.mar", DecisionNotWatched)
		b.store.put(map[string]file{"resnet/2": versioned("q", "resnet", "2"), "m.mar": mar("b", "m", "1.0"), "o.mar": mar("o", "o", "1.0")})
		b.after(time.Second, "given/1.0 b*, inside/1.0 g*, resnet/1 r, resnet/2 q*, sub/1.0 s*")
	})
}

func TestIncompleteAndChanging(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		opens := b.store.opens("m.mar")
		b.store.put(map[string]file{"m.mar": {state: watch.Changing, reason: "still growing: 5 bytes"}})
		b.after(time.Minute, "m/1.0 a*")
		b.wantDecision("m.mar", DecisionWaiting, "still growing: 5 bytes")
		b.store.put(map[string]file{"m.mar": {state: watch.Incomplete, reason: "the zip file's directory is missing: 12345 bytes are there"}})
		b.after(9*time.Second, "m/1.0 a*")
		if events := b.events(); len(events) > 0 {
			t.Errorf("events too early: %q", events)
		}
		b.after(time.Hour, "m/1.0 a*")
		if events := b.events(); len(events) != 1 || !strings.Contains(events[0], "12345 bytes are there") {
			t.Errorf("events %q", events)
		}
		b.store.send() // the same fingerprint: nothing is told again
		b.after(time.Minute, "m/1.0 a*")
		if events := b.events(); len(events) > 0 {
			t.Errorf("told again: %q", events)
		}
		if n := b.store.opens("m.mar"); n != opens {
			t.Errorf("it was opened %d times although it was not complete", n-opens)
		}
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
		b.after(time.Second, "m/1.0 b*")
	})
}

func TestBackOff(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.models.breakDigest("a", fault.New(fault.LoadFailed, "weights.bin is missing", nil))
		began := time.Now()
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Hour, "")
		if n := len(b.models.log()); n != 9 { // at 0, 1, 3, 7, 15, 31, 63, 127 and 255 seconds, and the time of each try
			t.Errorf("%d tries", n)
		}
		b.wantDecision("m.mar", DecisionRefused, "weights.bin is missing", "tried 9 times")
		if e := b.entry("m.mar"); e.Attempts != 9 || !e.NextTry.IsZero() || time.Since(began) < time.Hour {
			t.Errorf("entry %+v", e)
		}
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")}) // touched: it is the same archive
		b.after(time.Hour, "")
		if calls := b.models.log(); len(calls) > 0 {
			t.Errorf("the same archive was tried again: %q", calls)
		}
		b.models.breakDigest("a", nil)
		if err := b.Reload(b.t.Context(), "m"); err != nil {
			t.Fatal(err)
		}
		b.after(0, "m/1.0 a*")
	})
}

func TestBackOffOfPassingReasons(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.breakOpening("m.mar", fmt.Errorf("unpacking: %w", syscall.ENOSPC))
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Hour, "")
		if n := b.store.opens("m.mar"); n < 15 || n > 25 { // every 300 s at last
			t.Errorf("opened %d times in an hour", n)
		}
		b.wantDecision("m.mar", DecisionFailed, "no space left")
		b.store.breakOpening("m.mar", nil)
		b.after(301*time.Second, "m/1.0 a*")
	})
}

func TestRefusedArchivesAreNotTriedAgain(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.breakOpening("m.mar", fault.New(fault.InvalidModel, "an entry leads outside", nil))
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Hour, "")
		if n := b.store.opens("m.mar"); n != 1 {
			t.Errorf("opened %d times", n)
		}
		b.wantDecision("m.mar", DecisionRefused, "an entry leads outside")
		b.wantEvent("refused", "an entry leads outside")
		if err := b.Reload(b.t.Context(), "base"); !fault.Is(err, fault.ModelNotFound) {
			t.Errorf("reload of another model: %v", err)
		}
	})
}

func TestAFileThatChangesWhileItIsRead(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.breakOpening("m.mar", archive.ErrChanged)
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(5*time.Second, "")
		b.wantDecision("m.mar", DecisionWaiting)
		if e := b.entry("m.mar"); e.Attempts != 0 {
			t.Errorf("it counts as a failure: %+v", e)
		}
		if events := b.events(); len(events) > 0 {
			t.Errorf("events %q", events)
		}
		b.store.breakOpening("m.mar", nil)
		b.after(2*time.Second, "m/1.0 a*")
	})
}

func TestANewerArchiveVoidsTheOneBefore(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		b.models.slow(time.Minute)
		b.models.log()
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		b.store.put(map[string]file{"m.mar": mar("c", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		if diff := cmp.Diff([]string{"store: deploy m/1.0 b", "store: deploy m/1.0 c"}, b.models.log()); diff != "" {
			t.Error(diff)
		}
		b.after(time.Minute, "m/1.0 c*")
		b.wantDecision("m.mar", DecisionServing)
		if e := b.entry("m.mar"); e.Attempts != 0 {
			t.Errorf("it counts as a failure: %+v", e)
		}
		b.store.put(map[string]file{"m.mar": mar("d", "m", "1.0")}) // and back again
		b.after(time.Second, "m/1.0 c*")
		b.store.put(map[string]file{"m.mar": mar("c", "m", "1.0")})
		b.after(2*time.Minute, "m/1.0 c*")
	})
}

func TestAnotherVersionVoidsTheOneBefore(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.models.slow(time.Minute)
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "")
		b.store.put(map[string]file{"m.mar": mar("b", "m", "2.0")})
		b.after(2*time.Minute, "m/2.0 b*")
	})
}

func TestSupersededByOthers(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.models.breakDigest("a", rollout.ErrSuperseded)
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(1500*time.Millisecond, "")
		if e := b.entry("m.mar"); e.Attempts != 0 {
			t.Errorf("it counts as a failure: %+v", e)
		}
		b.models.breakDigest("a", nil)
		b.after(2*time.Second, "m/1.0 a*")
	})
}

func TestDeploysAtTheSameTime(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.models.slow(time.Minute)
		files := map[string]file{}
		for i := range 10 {
			name := fmt.Sprint("m", i)
			files[name+".mar"] = mar(name, name, "1.0")
		}
		files["v1.mar"], files["v2.mar"] = mar("v1", "v", "1.0"), mar("v2", "v", "2.0")
		b.store.put(files)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if n := b.models.mostAtOnce(); n != mostDeploys {
			t.Errorf("%d at the same time", n)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := strings.Count(b.models.serving(), ","); n != 11 {
			t.Errorf("serving %s", b.models.serving())
		}
	})
	in(t, nil, func(b *bench, run func()) { // two versions of one model: one after the other
		run()
		b.models.slow(time.Minute)
		b.store.put(map[string]file{"v1.mar": mar("v1", "v", "1.0"), "v2.mar": mar("v2", "v", "2.0")})
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := b.models.mostAtOnce(); n != 1 {
			t.Errorf("%d at the same time", n)
		}
	})
}

func TestOnceLooksOnlyWhenAsked(t *testing.T) {
	in(t, func(o *Options) { o.Once = true }, func(b *bench, run func()) {
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0"), "n.mar": mar("x", "n", "1.0")})
		run()
		b.after(time.Second, "m/1.0 a*, n/1.0 x*")
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0"), "n.mar": mar("y", "n", "1.0"), "o.mar": mar("o", "o", "1.0")})
		b.after(time.Hour, "m/1.0 a*, n/1.0 x*")
		if err := b.Reload(b.t.Context(), "m"); err != nil {
			t.Fatal(err)
		}
		b.after(time.Second, "m/1.0 b*, n/1.0 x*")
	})
}

func TestCompareVersions(t *testing.T) {
	order := []string{
		"alpha", "", "b", "v2", "v10", "0.9", "1.0-alpha", "1.0-rc1", "1.0-rc2", "1.0", "1.0b", "1.0.1", "1.2", "1.9", "1.10", "2", "9", "10", "10.0", "20240131",
		"99999999999999999999", "100000000000000000000",
	}
	for i, a := range order {
		for j, b := range order {
			if got, want := CompareVersions(a, b), compareInts(i, j); got != want {
				t.Errorf("CompareVersions(%q, %q) = %d, want %d", a, b, got, want)
			}
		}
	}
}

func compareInts(a, b int) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// FuzzCompareVersions looks for names that are not in one order.
func FuzzCompareVersions(f *testing.F) {
	f.Add("1.0", "1.0-rc1", "1.0.1")
	f.Add("10", "9", "010")
	f.Add("v1", "1", "ä")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		if CompareVersions(a, b) != -CompareVersions(b, a) {
			t.Errorf("%q and %q have no order", a, b)
		}
		if (CompareVersions(a, b) == 0) != (a == b) {
			t.Errorf("%q and %q", a, b)
		}
		if CompareVersions(a, b) <= 0 && CompareVersions(b, c) <= 0 && CompareVersions(a, c) > 0 {
			t.Errorf("%q ≤ %q ≤ %q, but not %q ≤ %q", a, b, c, a, c)
		}
	})
}
