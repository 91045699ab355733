package rollout

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

func TestFailedLoadTakesASynchronousRegistrationBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := fault.New(fault.LoadFailed, "ValueError: weights.bin is missing (handler.py:3)", nil)
		l := fakes{load: func(context.Context) error { return broken }}.launcher()
		h := newHouse(t, l, archives{"a.mar": named("a", "1.0")}, nil)
		_, err := h.Register(t.Context(), Spec{URL: "a.mar", InitialWorkers: new(2), Synchronous: true})
		var f *fault.Error
		if !errors.As(err, &f) || f.Kind != fault.LoadFailed || f.Message != "Failed to start workers for model a version: 1.0" ||
			f.Hint != broken.Message || !errors.Is(err, broken) {
			t.Errorf("%#v", err)
		}
		if len(h.List()) != 0 {
			t.Error("the model is still listed")
		}
		h.end(t)
	})
}

func TestFailedLoadIsRetriedUntilTheWindowIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fakes{load: func(context.Context) error { return errors.New("no") }}.launcher()
		a := named("a", "1.0")
		a.Settings.MaxRetryTimeout = new(12 * time.Second)
		h := newHouse(t, l, archives{"a.mar": a}, nil)
		register(t, h, Spec{URL: "a.mar", InitialWorkers: new(1)})
		synctest.Wait()
		if d := h.describe(t, "a"); d.State != "failed" || d.Reason != "no" || d.Workers[0].State != "waiting" || !h.Healthy() {
			t.Errorf("while it is tried again: %+v, healthy %v", d, h.Healthy())
		}
		h.await(t, "a", func(d Description) bool { return d.Workers[0].State == "failed" })
		if n := len(l.Specs()); n != 6 { // after 0, 1, 2, 4, 7 and 12 seconds
			t.Errorf("%d starts in the window of 12 s, want 6", n)
		}
		if d := h.describe(t, "a"); d.Workers[0].State != "failed" || h.Healthy() {
			t.Errorf("after the window: %+v, healthy %v", d, h.Healthy())
		}
		if _, err := predict(t, h, "a", "x"); !fault.Is(err, fault.NoWorker) {
			t.Errorf("a request for a dead model: %v, want a refusal and no wait", err)
		}
		h.end(t)
	})
}

func TestStartupTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := stuck().launcher()
		h := newHouse(t, l, archives{"a.mar": named("a", "1.0")}, nil)
		begun := time.Now()
		_, err := h.Register(t.Context(), Spec{URL: "a.mar", StartupTimeout: new(33 * time.Second), Synchronous: true})
		if !fault.Is(err, fault.LoadFailed) || time.Since(begun) != 33*time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		h.end(t)
	})
}

func TestStartFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fakes{launch: func(_ context.Context, n int) error {
			if n < 3 {
				return fault.New(fault.StartFailed, "python: no such file", nil)
			}
			return nil
		}}.launcher()
		h := newHouse(t, l, archives{"a.mar": named("a", "1.0")}, nil)
		register(t, h, Spec{URL: "a.mar"})
		got, err := predict(t, h, "a", "waits for the third start")
		if err != nil || got != "waits for the third start" {
			t.Errorf("%q, %v", got, err)
		}
		h.end(t)
	})
}

// TestStartsThatAlwaysFail: nobody waits for a worker that has never come up and has failed a few times, but in one of the starts that may end well.
func TestStartsThatAlwaysFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken, mend := mendable("there is no such library")
		h := newHouse(t, broken.launcher(), archives{"a.mar": named("a", "1.0")}, nil)
		register(t, h, Spec{URL: "a.mar"})
		begun := time.Now()
		for range 3 { // the first waits, and the others come in a pause
			if _, err := predict(t, h, "a", "x"); !fault.Is(err, fault.NoWorker) || !strings.Contains(err.Error(), "there is no such library") {
				t.Errorf("%v", err)
			}
		}
		if took := time.Since(begun); took != delay(2)+delay(3) {
			t.Errorf("it took %s", took)
		}
		mend()
		h.await(t, "a", func(d Description) bool { return d.State == "serving" })
		if got, err := predict(t, h, "a", "x"); err != nil || got != "x" {
			t.Errorf("%q, %v", got, err)
		}
		h.end(t)
	})
}

func TestScalingReplacesWorkersThatGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken, mend := mendable("no")
		a := named("a", "1.0")
		a.Settings.MaxRetryTimeout = new(time.Second)
		h := newHouse(t, broken.launcher(), archives{"a.mar": a}, nil)
		register(t, h, Spec{URL: "a.mar", InitialWorkers: new(1)})
		h.await(t, "a", func(d Description) bool { return d.Workers[0].State == "failed" })
		mend()
		if err := h.Scale(t.Context(), infer.ModelRef{Name: "a"}, 1, 1, true); err != nil {
			t.Error(err)
		}
		if d := h.describe(t, "a"); d.State != "serving" {
			t.Errorf("%+v", d)
		}
		h.end(t)
	})
}

// TestLoadThatWaitsForOthers: nobody waits for a worker while its load says that it waits for somebody else.
func TestLoadThatWaitsForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lacks, there, end := make(chan error), make(chan struct{}), make(chan struct{})
		l := fakes{}.launcher()
		launch := l.LaunchFunc
		l.LaunchFunc = func(ctx context.Context, n int, spec backend.ProcessSpec) (*backendtest.Instance, error) {
			i, err := launch(ctx, n, spec)
			i.LoadFunc = func(context.Context, backend.LoadSpec) (backend.Info, error) {
				i.Wait(<-lacks)
				<-there
				i.Wait(nil)
				<-end
				return backend.Info{}, nil
			}
			return i, err
		}
		h := newHouse(t, l, archives{"a.mar": named("a", "1.0")}, nil)
		register(t, h, Spec{URL: "a.mar"})
		answers := make(chan string, 2)
		ask := func() {
			got, err := predict(t, h, "a", "x")
			if err != nil {
				got = err.Error()
			}
			answers <- got
		}
		go ask()
		synctest.Wait()
		lacks <- errors.New("there is no model b")
		go ask() // before it is told, or after
		for range 2 {
			if got := <-answers; !strings.Contains(got, "there is no model b") {
				t.Errorf("while it waits: %s", got)
			}
		}
		close(there)
		synctest.Wait()
		go ask()
		synctest.Wait()
		close(end)
		if got := <-answers; got != "x" {
			t.Errorf("when it goes on: %s", got)
		}
		h.end(t)
	})
}
