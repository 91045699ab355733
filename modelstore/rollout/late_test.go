package rollout

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

// killable is an instance that ends as a process does which the server has killed.
type killable struct{ *backendtest.Instance }

func (k killable) Kill(cause error) {
	k.Die(fault.New(fault.BackendDied, "Worker died.", &backend.CrashError{Crash: &backend.Crash{Reason: backend.CrashLate}, Cause: cause}))
}

type killableLauncher struct{ *backendtest.Launcher }

func (l killableLauncher) Launch(ctx context.Context, spec backend.ProcessSpec) (backend.Instance, error) {
	if _, err := l.Launcher.Launch(ctx, spec); err != nil {
		return nil, err
	}
	all := l.Instances()
	return killable{all[len(all)-1]}, nil
}

// chain counts the errors that err wraps, up to a hundred.
func chain(err error) (n int) {
	for ; err != nil && n < 100; n++ {
		err = errors.Unwrap(err)
	}
	return n
}

// TestLateWorkersErrorHasAnEnd: the crash of a worker that was killed because it was late has that as its cause, and whoever is told of the timeout finds
// the crash in it.
func TestLateWorkersErrorHasAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := named("a", "1.0")
		a.Settings.ResponseTimeout = new(5 * time.Second)
		l := handler(time.Hour, 0).launcher()
		h := newHouse(t, l, archives{"a.mar": a}, func(o *Options) { o.Launcher = killableLauncher{l} })
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		if _, err := predict(t, h, "a", "x"); !fault.Is(err, fault.ResponseTimeout) {
			t.Error(err)
		}
		synctest.Wait()
		var told error
		h.mu.Lock()
		for _, e := range h.events {
			if e.To == Failed {
				told = e.Cause
			}
		}
		h.mu.Unlock()
		h.end(t)
		if chain(told) == 100 {
			t.Fatal("the error is its own cause")
		}
		c := backend.CrashOf(told)
		if !fault.Is(told, fault.ResponseTimeout) || c == nil || c.Reason != backend.CrashLate || errors.Is(told, context.Canceled) {
			t.Errorf("%v, crash %+v", told, c)
		}
	})
}

// unsent is an instance that ends with a batch that it was not given.
type unsent struct{ *backendtest.Instance }

func (u unsent) Predict(context.Context, []infer.Item) ([]infer.Result, error) {
	<-u.Done()
	return nil, fault.New(fault.BackendDied, "Worker died.", backend.ErrNotDelivered)
}

// TestUnsentBatchBesideALateOneIsSaidToBeUnsent so that it may be run elsewhere without harm.
func TestUnsentBatchBesideALateOneIsSaidToBeUnsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, tt := range map[string]struct {
			inst func(*backendtest.Instance) backend.Instance
			want bool
		}{
			"not sent": {func(i *backendtest.Instance) backend.Instance { return unsent{i} }, true},
			"sent": {func(i *backendtest.Instance) backend.Instance {
				i.PredictFunc = func(ctx context.Context, _ []infer.Item) ([]infer.Result, error) {
					<-ctx.Done()
					return nil, context.Cause(ctx)
				}
				return i
			}, false},
		} {
			inst := backendtest.NewInstance(name)
			if _, err := inst.Load(t.Context(), backend.LoadSpec{}); err != nil {
				t.Fatal(err)
			}
			p := newPool(5 * time.Second)
			p.hope(1, firstGeneration)
			m := p.add(tt.inst(inst), 1, 2, firstGeneration, terms{})
			s, err := p.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				_, err := s.Execute(t.Context(), items("x"))
				done <- err
			}()
			synctest.Wait()
			m.once.Do(func() { close(m.overdue) }) // another batch was late
			inst.Die(nil)
			err = <-done
			s.Release()
			if !fault.Is(err, fault.BackendDied) || errors.Is(err, backend.ErrNotDelivered) != tt.want || fault.Message(err) != "Worker died." {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
