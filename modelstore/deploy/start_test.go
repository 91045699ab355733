package deploy

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/modelstore/ledger"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/modelstore/watch"
)

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
		if _, err := b.Register(b.t.Context(), rollout.Spec{URL: "m.mar", Name: "given"}); !fault.Is(err, fault.Conflict) {
			t.Errorf("a client registers what was loaded at the start: %v", err)
		}
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

// TestStartOfWhatDoesNotComeUp registers models whose workers do not start at once, or not at all: none of them is said to serve before it does.
func TestStartOfWhatDoesNotComeUp(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		b.store.put(map[string]file{"bad.mar": mar("a", "bad", "1.0"), "slow.mar": mar("b", "slow", "1.0"), "good.mar": mar("c", "good", "1.0")})
		b.begin()
		b.models.setState("slow", "1.0", "deploying")
		b.models.setState("bad", "1.0", "failed", "weights.bin is missing")
		b.wantDecision("good.mar", DecisionServing)
		b.wantDecision("slow.mar", DecisionDeploying, "workers are being started")
		b.wantDecision("bad.mar", DecisionFailed, "weights.bin is missing")
		if e := b.entry("bad.mar"); e.Serving != "" {
			t.Errorf("%s is said to serve", e.Serving)
		}
		run()
		b.after(time.Minute, "bad/1.0 a*, good/1.0 c*, slow/1.0 b*")
		b.wantDecision("bad.mar", DecisionFailed, "weights.bin is missing")
		b.models.setState("slow", "1.0", "serving")
		b.models.setState("bad", "1.0", "serving")
		b.after(5*time.Second, "bad/1.0 a*, good/1.0 c*, slow/1.0 b*")
		for _, path := range []string{"slow.mar", "bad.mar"} {
			b.wantDecision(path, DecisionServing)
			if e := b.entry(path); e.Serving == "" {
				t.Errorf("%s: nothing is said to serve", path)
			}
		}
		b.models.setState("bad", "1.0", "failed") // its worker dies later: it is what runs all the same
		b.after(time.Minute, "bad/1.0 a*, good/1.0 c*, slow/1.0 b*")
		b.wantDecision("bad.mar", DecisionServing)
	})
}

// TestReloadOfWhatDidNotComeUp has a machine that lacked something at the start: the same archive is started anew, and the answer is how that went.
func TestReloadOfWhatDidNotComeUp(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		b.store.put(map[string]file{"bad.mar": mar("a", "bad", "1.0")})
		b.begin()
		b.models.setState("bad", "1.0", "failed", "no Python")
		run()
		b.after(time.Minute, "bad/1.0 a*")
		before := len(b.models.asked())
		b.models.breakDigest("a", errors.New("still no Python"))
		if err := b.Reload(b.t.Context(), "bad"); err == nil || !strings.Contains(err.Error(), "still no Python") {
			t.Errorf("reload while it is missing: %v", err)
		}
		b.models.breakDigest("a", nil)
		if err := b.Reload(b.t.Context(), "bad"); err != nil {
			t.Errorf("reload: %v", err)
		}
		if len(b.models.asked()) == before {
			t.Error("nothing was started")
		}
		b.wantDecision("bad.mar", DecisionServing)
		b.models.setState("bad", "1.0", "serving")
		before = len(b.models.asked())
		if err := b.Reload(b.t.Context(), "bad"); err != nil || len(b.models.asked()) != before {
			t.Errorf("reload of what serves: %v, %d starts", err, len(b.models.asked())-before)
		}
	})
}

// TestReloadOfWhatIsStarting: the answer comes when it serves, or says why it does not.
func TestReloadOfWhatIsStarting(t *testing.T) {
	for state, want := range map[string]string{"serving": "", "failed": "no Python"} {
		in(t, nil, func(b *bench, run func()) {
			b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
			b.begin()
			b.models.setState("m", "1.0", "deploying")
			run()
			done := make(chan error, 1)
			go func() { done <- b.Reload(b.t.Context(), "m") }()
			b.after(time.Minute, "m/1.0 a*")
			if len(done) > 0 {
				t.Error("it is answered while the workers are being started")
			}
			b.models.setState("m", "1.0", state, want)
			if err := <-done; (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", state, err)
			}
		})
	}
}

// TestChangeWhileItStarts: what is said of a newer archive is not lost when the one before it comes up after all.
func TestChangeWhileItStarts(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.begin()
		b.models.setState("m", "1.0", "deploying")
		run()
		b.store.breakOpening("m.mar", fault.New(fault.InvalidModel, "it has no handler", nil))
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
		b.after(5*time.Second, "m/1.0 a*")
		b.wantDecision("m.mar", DecisionRefused, "no handler")
		b.models.setState("m", "1.0", "serving")
		b.after(5*time.Second, "m/1.0 a*")
		b.wantDecision("m.mar", DecisionRefused, "no handler")
	})
}

// TestSnapshotOfAFileThatHasAnotherVersionByNow restores a snapshot after a file was replaced by one of another version while no server ran: it is the
// archive's own version, with its own settings; only a folder of versions says another one.
func TestSnapshotOfAFileThatHasAnotherVersionByNow(t *testing.T) {
	two := 2
	restored := func(url, version string) Startup {
		return Startup{Spec: rollout.Spec{URL: url, Name: "m", Version: version, BatchSize: &two, InitialWorkers: &two, MaxWorkers: 2, Exact: true}}
	}
	in(t, nil, func(b *bench, run func()) {
		b.store.put(map[string]file{"m.mar": mar("b", "m", "2.0"), "n/3": versioned("c", "n", "3")})
		folder := restored("n/3", "3")
		folder.Spec.Name, folder.Default = "n", true
		file := restored("m.mar", "1.0")
		file.Default = true
		heard := b.begin(file, folder)
		b.after(0, "m/2.0 b*, n/3 c*")
		if heard["m.mar"] != "m <nil>" || heard["n/3"] != "n <nil>" {
			t.Errorf("told %q", heard)
		}
		for _, s := range b.models.asked() {
			if exact := s.Name == "n"; s.Exact != exact || (s.BatchSize != nil) != exact || *s.InitialWorkers != 2 {
				t.Errorf("spec %+v", s)
			}
		}
		run()
		b.after(time.Minute, "m/2.0 b*, n/3 c*")
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
