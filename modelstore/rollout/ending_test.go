package rollout

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

func TestSealedManagerTakesNothingNewAndServesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, &backendtest.Launcher{}, archives{"a.mar": named("a", "1.0"), "b.mar": named("b", "1.0")}, nil)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		h.Seal()
		if _, err := h.Register(t.Context(), Spec{URL: "b.mar"}); !fault.Is(err, fault.Draining) || h.Healthy() {
			t.Errorf("registration: %v, healthy %v", err, h.Healthy())
		}
		if _, err := predict(t, h, "a", "x"); err != nil {
			t.Errorf("a request: %v", err)
		}
		h.end(t)
	})
}

func TestSealEndsRegistrationsThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := stuck().launcher()
		h := newHouse(t, l, archives{"a.mar": named("a", "1.0")}, nil)
		begun := time.Now()
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := h.Register(t.Context(), Spec{URL: "a.mar", Synchronous: true}); !fault.Is(err, fault.Draining) {
				t.Errorf("%v", err)
			}
		})
		synctest.Wait()
		h.Seal()
		all.Wait()
		h.end(t)
		if took := time.Since(begun); took > time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// TestCloseDoesNotWaitForARemovalThatHangs unregisters a model whose batch never ends, and closes meanwhile.
func TestCloseDoesNotWaitForARemovalThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fakes{predict: func(_ context.Context, i *backendtest.Instance, _ []infer.Item) ([]infer.Result, error) {
			<-i.Done()
			return nil, fault.New(fault.BackendDied, "Worker died.", nil)
		}}.launcher()
		h := newHouse(t, l, archives{"a.mar": named("a", "1.0")}, func(o *Options) { o.Drain = time.Hour })
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		var all sync.WaitGroup
		all.Go(func() { _, _ = predict(t, h, "a", "x") })
		synctest.Wait()
		all.Go(func() {
			if err := h.Unregister(t.Context(), infer.ModelRef{Name: "a"}); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := h.Close(ctx); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("took %v", took)
		}
		all.Wait()
	})
}

// TestHurriedCloseWaitsForNoBatch closes while a batch runs that would take an hour, and is asked to hurry meanwhile.
func TestHurriedCloseWaitsForNoBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fakes{predict: func(_ context.Context, i *backendtest.Instance, _ []infer.Item) ([]infer.Result, error) {
			<-i.Done()
			return nil, fault.New(fault.BackendDied, "Worker died.", nil)
		}}.launcher()
		h := newHouse(t, l, archives{"a.mar": named("a", "1.0")}, func(o *Options) { o.Drain = time.Hour })
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		var all sync.WaitGroup
		all.Go(func() { _, _ = predict(t, h, "a", "x") })
		synctest.Wait()
		begun := time.Now()
		time.AfterFunc(time.Minute, h.Hurry)
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took < time.Minute || took > 2*time.Minute {
			t.Errorf("took %v; want a minute, until it was to hurry", took)
		}
		all.Wait()
	})
}
