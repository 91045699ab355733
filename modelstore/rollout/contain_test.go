package rollout

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// TestPanicOfAWorkersGoroutine: a panic in what looks after a worker costs that worker, as its death would, at whatever moment it comes; another one takes
// its place, and nothing is left behind.
func TestPanicOfAWorkersGoroutine(t *testing.T) {
	for name, when := range map[string]State{"it is loading": Loading, "it is ready": Ready, "it has died": Failed} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var told, panics atomic.Int64
				h := newHouse(t, fakes{}.launcher(), archives{"a.mar": named("a", "1.0")}, func(o *Options) {
					o.Events = func(e Event) {
						if e.To == when && panics.Add(1) == 1 {
							panic("a bug of the observer")
						}
					}
					o.Panicked = func(err error) {
						told.Add(1)
						if !strings.Contains(fault.DetailOf(err), "a bug of the observer") {
							t.Error(fault.DetailOf(err))
						}
					}
				})
				if _, err := h.Register(t.Context(), Spec{URL: "a.mar"}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if when == Failed {
					h.launcher.Live()[0].Die(nil)
				}
				time.Sleep(20 * time.Second)
				if _, err := predict(t, h, "a", "x"); err != nil {
					t.Error(err)
				}
				if n, live := len(h.launcher.Instances()), len(h.launcher.Live()); n != 2 || live != 1 || told.Load() != 1 {
					t.Errorf("%d instances, %d of them live, %d panics were told", n, live, told.Load())
				}
				h.end(t)
			})
		})
	}
}

// TestPanicsWithoutEnd: a worker that panics each time is given up as one that does not start, and whoever waits for it hears it.
func TestPanicsWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told atomic.Int64
		h := newHouse(t, fakes{}.launcher(), archives{"a.mar": named("a", "1.0")}, func(o *Options) {
			o.Events = func(e Event) {
				if e.To == Ready {
					panic("a bug of the observer")
				}
			}
			o.Panicked = func(error) { told.Add(1) }
		})
		if _, err := h.Register(t.Context(), Spec{URL: "a.mar"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Minute)
		if n := told.Load(); n < 3 || n > 40 {
			t.Errorf("%d panics", n)
		}
		if len(h.launcher.Live()) != 0 {
			t.Error("an instance lives that nobody looks after")
		}
		if _, err := predict(t, h, "a", "x"); !fault.Is(err, fault.NoWorker) {
			t.Errorf("%v", err)
		}
		if w := h.describe(t, "a").Workers[0]; w.State != "failed" || !strings.Contains(w.Reason, "Internal error") {
			t.Errorf("%+v", w)
		}
		h.end(t)
	})
}

// TestPanicOfTheKeeper: one version that cannot be looked after does not keep the others from it.
func TestPanicOfTheKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told, asked atomic.Int64
		a, b := named("a", "1.0"), named("b", "1.0")
		a.Settings.MinWorkers, a.Settings.MaxWorkers = new(1), new(2)
		b.Settings.MinWorkers, b.Settings.MaxWorkers = new(1), new(2)
		h := newHouse(t, fakes{}.launcher(), archives{"a.mar": a, "b.mar": b}, func(o *Options) {
			o.Autoscale = &Autoscale{}
			o.Demand = func(v *Version) Demand {
				if v.Ref().Name == "a" {
					panic("a bug of the demand")
				}
				asked.Add(1)
				return Demand{}
			}
			o.Panicked = func(error) { told.Add(1) }
		})
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		register(t, h, Spec{URL: "b.mar", Synchronous: true})
		time.Sleep(10 * time.Second)
		if told.Load() < 10 || asked.Load() < 10 {
			t.Errorf("%d panics, and the other one was looked after %d times", told.Load(), asked.Load())
		}
		h.end(t)
	})
}
