package rollout

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
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

// TestPanicsOfListeners: whoever is told of something and has a bug misses that, and nothing else comes of it.
func TestPanicsOfListeners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told atomic.Int64
		h, _ := deployed(t, digestLauncher(nil), func(o *Options) {
			o.Changed = func(Change) { panic("a bug of who is told of changes") }
			o.Swapped = func(*Version) { panic("a bug of who is told of swaps") }
			o.Replaced = func(context.Context, Replaced) { panic("a bug of who keeps archives") }
			o.Retire = func(context.Context, *Version) { panic("a bug of who answers what waits") }
			o.Loaded = func(infer.ModelRef, int, time.Duration) { panic("a bug of who is told of workers") }
			o.Panicked = func(error) { told.Add(1) }
		})
		if err := deploy(t, h, "two"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		mustAnswer(t, h, "two")
		if n := len(h.launcher.Live()); n != 1 || len(h.launcher.Instances()) != 2 {
			t.Errorf("%d instances live of %d", n, len(h.launcher.Instances()))
		}
		if d := h.describe(t, "m"); d.Updating != nil || d.State != "serving" {
			t.Errorf("%+v", d)
		}
		if err := h.Unregister(t.Context(), infer.ModelRef{Name: "m"}); err != nil {
			t.Error(err)
		}
		if n := len(h.launcher.Live()); n != 0 || told.Load() < 8 {
			t.Errorf("%d instances live, %d panics were told", n, told.Load())
		}
		h.end(t)
	})
}

// TestPanicsOfSwaps: a swap that ends by a bug is one that failed, for whoever waits for it too: what served goes on, or serves again, and the next swap is done.
func TestPanicsOfSwaps(t *testing.T) {
	for swap, bug := range map[string]func(h *house, armed *atomic.Bool){
		SwapDual: func(_ *house, armed *atomic.Bool) { armed.Store(true) },
		SwapInPlace: func(h *house, _ *atomic.Bool) { // the old workers are being ended by then
			v, err := h.Resolve(infer.ModelRef{Name: "m"})
			if err != nil {
				panic(err)
			}
			v.mu.Lock()
			defer v.mu.Unlock()
			g := v.current.Load()
			g.workers = append(g.workers, nil)
		},
	} {
		t.Run(swap, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var told atomic.Int64
				var armed atomic.Bool
				h, _ := deployed(t, digestLauncher(nil), func(o *Options) {
					o.Swap = swap
					o.Available = func() (int64, bool) {
						if armed.Swap(false) {
							panic("a bug of the guard")
						}
						return 0, false
					}
					o.Panicked = func(error) { told.Add(1) }
				})
				bug(h, &armed)
				if err := deploy(t, h, "two"); !fault.Is(err, fault.Internal) || told.Load() != 1 {
					t.Errorf("%v, %d panics were told", err, told.Load())
				}
				synctest.Wait()
				mustAnswer(t, h, "one")
				d := h.describe(t, "m")
				if d.Updating != nil || d.State != "serving" || d.Digest != "one" || d.LastFailure == nil || d.LastFailure.Digest != "two" || len(h.launcher.Live()) != 1 {
					t.Errorf("%d live, last failure %+v, %+v", len(h.launcher.Live()), d.LastFailure, d)
				}
				if err := deploy(t, h, "three"); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				mustAnswer(t, h, "three")
				if n := len(h.launcher.Live()); n != 1 {
					t.Errorf("%d instances live", n)
				}
				h.end(t)
			})
		})
	}
}
