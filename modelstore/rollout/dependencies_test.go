package rollout

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// warehouse provides dependencies and counts what was given back.
type warehouse struct {
	fail    error
	entered chan struct{} // nil, or what Provide waits for

	mu       sync.Mutex // guards what follows
	asked    []DependencyRequest
	released int
}

func (w *warehouse) Provide(ctx context.Context, r DependencyRequest) (Provided, error) {
	w.mu.Lock()
	w.asked = append(w.asked, r)
	w.mu.Unlock()
	if w.entered != nil {
		<-w.entered
	}
	if w.fail != nil {
		return Provided{}, w.fail
	}
	return Provided{Interpreter: "/venv/python", Packages: "/packages", Installed: true, Release: func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.released++
	}}, context.Cause(ctx)
}

func (w *warehouse) counts() (asked, released int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.asked), w.released
}

func needy(name string, venv bool) *archive.Archive {
	a := named(name, "1.0")
	a.Manifest.Model.RequirementsFile, a.Settings.UseVenv = "reqs.txt", venv
	return a
}

func TestDependenciesAreProvidedBeforeAndReleasedAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &warehouse{}
		var seen []Provided
		old := needy("old", true)
		old.Manifest.Runtime = "python3" // for which TorchServe makes no virtual environment
		venv := named("venv", "1.0")
		venv.Settings.UseVenv = true
		store := archives{"a": needy("a", true), "plain": named("plain", "1.0"), "old": old, "venv": venv}
		h := newHouse(t, fakes{}.launcher(), store, func(o *Options) {
			o.Dependencies = w
			process := o.Process
			o.Process = func(r ProcessRequest) (backend.ProcessSpec, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				seen = append(seen, r.Provided)
				return process(r)
			}
		})
		for _, url := range []string{"a", "plain", "old", "venv"} {
			register(t, h, Spec{URL: url, Synchronous: true})
		}
		want := []DependencyRequest{
			{Ref: infer.ModelRef{Name: "a", Version: "1.0"}, Runtime: "python", Dir: "/models/a", Requirements: "reqs.txt", Venv: true},
			{Ref: infer.ModelRef{Name: "old", Version: "1.0"}, Runtime: "python3", Dir: "/models/old", Requirements: "reqs.txt"},
			{Ref: infer.ModelRef{Name: "venv", Version: "1.0"}, Runtime: "python", Dir: "/models/venv", Venv: true},
		}
		if diff := cmp.Diff(want, w.asked); diff != "" {
			t.Error(diff)
		}
		all := Provided{Interpreter: "/venv/python", Packages: "/packages", Installed: true}
		if diff := cmp.Diff([]Provided{all, {}, all, all}, seen, cmpopts.IgnoreFields(Provided{}, "Release")); diff != "" {
			t.Error(diff)
		}
		if _, err := h.Register(t.Context(), Spec{URL: "a"}); !fault.Is(err, fault.Conflict) {
			t.Errorf("a second time: %v", err)
		}
		if asked, released := w.counts(); asked != 3 || released != 0 {
			t.Errorf("after a conflict: asked %d times, released %d", asked, released)
		}
		if err := h.Unregister(t.Context(), infer.ModelRef{Name: "a"}); err != nil {
			t.Fatal(err)
		}
		if _, released := w.counts(); released != 1 {
			t.Errorf("%d released by an unregistration", released)
		}
		h.end(t)
		if _, released := w.counts(); released != 3 {
			t.Errorf("%d released at the end, want 3", released)
		}
	})
}

func TestAModelWhoseDependenciesFailIsNotRegistered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &warehouse{fail: fault.New(fault.DependencyFailed, "no wheel", nil)}
		h := newHouse(t, fakes{}.launcher(), archives{"a": needy("a", false)}, func(o *Options) { o.Dependencies = w })
		defer h.end(t)
		for range 2 {
			if _, err := h.Register(t.Context(), Spec{URL: "a"}); !fault.Is(err, fault.DependencyFailed) {
				t.Errorf("%v", err)
			}
		}
		if list := h.List(); len(list) > 0 {
			t.Errorf("registered: %v", list)
		}
		w.fail = nil
		register(t, h, Spec{URL: "a", Synchronous: true})
	})
}

// TestTwoRegistrationsDuringAnInstallation has the loser give back what it was provided with.
func TestTwoRegistrationsDuringAnInstallation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &warehouse{entered: make(chan struct{})}
		h := newHouse(t, fakes{}.launcher(), archives{"a": needy("a", false)}, func(o *Options) { o.Dependencies = w })
		defer h.end(t)
		results := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := h.Register(t.Context(), Spec{URL: "a"})
				results <- err
			}()
		}
		synctest.Wait()
		if list := h.List(); len(list) > 0 {
			t.Errorf("there before its dependencies: %v", list)
		}
		close(w.entered)
		first, second := <-results, <-results
		if (first == nil) == (second == nil) || !fault.Is(firstError(first, second), fault.Conflict) {
			t.Errorf("%v, %v", first, second)
		}
		if asked, released := w.counts(); asked != 2 || released != 1 {
			t.Errorf("asked %d times, released %d", asked, released)
		}
	})
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
