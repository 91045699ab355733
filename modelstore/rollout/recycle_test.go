package rollout

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

// worn is an archive whose workers are recycled.
func worn(r archive.Recycle, swap string, workers int) *archive.Archive {
	a := named("a", "1.0")
	a.Settings.HasConfig, a.Settings.MinWorkers, a.Settings.MaxWorkers, a.Settings.Recycle, a.Settings.Swap = true, &workers, &workers, r, swap
	return a
}

// most counts how many instances live at one time.
func most(h *house) *atomic.Int64 {
	var n atomic.Int64
	start := h.launcher.LaunchFunc
	h.launcher.LaunchFunc = func(ctx context.Context, i int, spec backend.ProcessSpec) (*backendtest.Instance, error) {
		n.Store(max(n.Load(), int64(len(h.launcher.Live())+1)))
		return start(ctx, i, spec)
	}
	return &n
}

func TestRecycleByRequests(t *testing.T) {
	for swap, atOnce := range map[string]int64{SwapDual: 3, SwapInPlace: 2} {
		t.Run(swap, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, c := elastic(t, handler(100*time.Millisecond, time.Second), archives{"a.mar": worn(archive.Recycle{Requests: 100}, swap, 2)}, nil)
				living := most(h)
				register(t, h, Spec{URL: "a.mar", Synchronous: true})
				c.send("a", 4, 3*time.Minute)
				if len(c.failed) > 0 {
					t.Errorf("%d of %d requests failed: %v", len(c.failed), c.answered, c.failed[0])
				}
				if n := living.Load(); n != atOnce {
					t.Errorf("%d instances lived at one time, not %d", n, atOnce)
				}
				<-time.After(time.Minute) // the last one that is under way
				done := c.take(ChangeRecycled, ChangeRecycleFailed)
				if len(done) < 12 || len(done) > 18 { // one every 10 s at most
					t.Errorf("%d workers were recycled", len(done))
				}
				for i, change := range done {
					if change.Kind != ChangeRecycled || change.Actor.Who != "recycle" || !strings.Contains(change.Reason, "recycle.requests is 100") {
						t.Errorf("%d: %+v", i, change)
					}
				}
				if d := h.describe(t, "a"); ready(d) != 2 || len(d.Workers) != 2 {
					t.Errorf("%d workers are ready of %d", ready(d), len(d.Workers))
				}
				h.end(t)
			})
		})
	}
}

// TestRecycleByMemory replaces the worker whose memory has grown, and no other; a limit below what a model needs to load is told, and tried rarely.
func TestRecycleByMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sizes sync.Map // of processes, in bytes
		h, c := elastic(t, handler(10*time.Millisecond, time.Second), archives{"a.mar": worn(archive.Recycle{MemoryMiB: 100}, "", 2)}, func(o *Options) {
			o.Resident = func(pid int) int64 {
				size, _ := sizes.LoadOrStore(pid, int64(1<<20))
				bytes, _ := size.(int64)
				return bytes
			}
		})
		pid := 0
		start := h.launcher.LaunchFunc
		h.launcher.LaunchFunc = func(ctx context.Context, n int, spec backend.ProcessSpec) (*backendtest.Instance, error) {
			i, err := start(ctx, n, spec)
			pid++
			i.Process = 1<<30 + pid
			return i, err
		}
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		c.send("a", 2, time.Minute)
		first := h.describe(t, "a").Workers
		sizes.Store(first[1].PID, int64(101<<20))
		c.send("a", 2, time.Minute)
		d := h.describe(t, "a")
		if d.Workers[0].PID != first[0].PID || d.Workers[1].PID == first[1].PID {
			t.Errorf("%+v became %+v", first, d.Workers)
		}
		if got := c.take(ChangeRecycled, ChangeRecycleFailed); len(got) != 1 ||
			got[0].Reason != fmt.Sprintf("worker %d → %d: it has 101 MiB of memory, and recycle.memoryMb is 100", first[1].ID, d.Workers[1].ID) {
			t.Errorf("%+v", got)
		}
		for i := range 100 { // from now on they are born so large
			sizes.Store(1<<30+pid+1+i, int64(200<<20))
		}
		sizes.Store(d.Workers[0].PID, int64(101<<20))
		c.send("a", 2, 10*time.Minute)
		var told, done int
		for _, change := range c.take(ChangeRecycled, ChangeRecycleFailed) {
			if change.Kind == ChangeRecycled {
				done++
			} else if told++; !strings.Contains(change.Reason, "raise recycle.memoryMb") {
				t.Errorf("%+v", change)
			}
		}
		if done != told || done > 5 {
			t.Errorf("%d workers were recycled, and it was told %d times that this is of no use", done, told)
		}
		if len(c.failed) > 0 {
			t.Errorf("%d of %d requests failed: %v", len(c.failed), c.answered, c.failed[0])
		}
		h.end(t)
	})
}

// TestRecycleThatDoesNotStart leaves the old worker where it is.
func TestRecycleThatDoesNotStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := atomic.Bool{}
		f := handler(50*time.Millisecond, time.Second)
		f.load = func(context.Context) error {
			if broken.Load() {
				return fault.New(fault.LoadFailed, "the disk is gone", nil)
			}
			return nil
		}
		h, c := elastic(t, f, archives{"a.mar": worn(archive.Recycle{Requests: 100}, "", 1)}, nil)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		broken.Store(true)
		c.send("a", 2, 10*time.Minute)
		got := c.take(ChangeRecycled, ChangeRecycleFailed)
		if len(got) < 2 || len(got) > 5 {
			t.Errorf("%d tries in ten minutes", len(got))
		}
		for _, change := range got {
			if change.Kind != ChangeRecycleFailed || !strings.Contains(change.Reason, "the disk is gone") {
				t.Errorf("%+v", change)
			}
		}
		if d := h.describe(t, "a"); ready(d) != 1 || len(h.launcher.Live()) != 1 || len(c.failed) > 0 {
			t.Errorf("%d workers are ready, %d live, %d requests failed", ready(d), len(h.launcher.Live()), len(c.failed))
		}
		h.end(t)
	})
}

// TestSwapVoidsARecycling that has not come to its end, and so does the end of the server.
func TestSwapVoidsARecycling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := atomic.Bool{}
		f := handler(10*time.Millisecond, 0)
		f.load = func(ctx context.Context) error {
			if slow.Load() {
				return pause(ctx, time.Minute)
			}
			return nil
		}
		h, c := elastic(t, f, archives{"a.mar": worn(archive.Recycle{Requests: 10}, "", 1), "b.mar": named("a", "1.0")}, nil)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		slow.Store(true)
		c.send("a", 1, time.Second) // the next worker loads
		if n := len(h.launcher.Live()); n != 2 {
			t.Errorf("%d instances live", n)
		}
		slow.Store(false)
		if _, err := h.Deploy(t.Context(), Spec{URL: "b.mar"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if d := h.describe(t, "a"); d.Generation != 2 || ready(d) != 1 {
			t.Errorf("%+v", d)
		}
		if got := c.take(ChangeRecycled, ChangeRecycleFailed); len(got) > 0 {
			t.Errorf("%+v", got)
		}
		if _, err := h.Deploy(t.Context(), Spec{URL: "a.mar"}); err != nil {
			t.Fatal(err)
		}
		slow.Store(true)
		c.send("a", 1, time.Second)
		if _, err := predict(t, h, "a", "x"); err != nil {
			t.Error(err)
		}
		h.end(t) // with one under way
	})
}

// TestAlone takes a whole instance, which gets nothing else meanwhile, and does not starve.
func TestAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(time.Minute)
		p.hope(1, firstGeneration)
		m := p.add(backendtest.NewInstance("i"), 1, 4, firstGeneration, terms{})
		first, err := p.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan backend.Slot, 2)
		acquire := func(f func(context.Context) (backend.Slot, error)) {
			go func() {
				s, err := f(t.Context())
				if err != nil {
					t.Error(err)
				}
				got <- s
			}()
			synctest.Wait()
		}
		acquire(aloneIn(p))
		acquire(p.Acquire)
		if len(got) != 0 || m.used != 1 || p.Free() != 0 {
			t.Fatalf("%d got a slot, %d are used", len(got), m.used)
		}
		first.Release()
		synctest.Wait()
		if len(got) != 1 || m.used != 4 {
			t.Fatalf("%d got a slot, %d are used", len(got), m.used)
		}
		alone := <-got
		if results, err := alone.Execute(t.Context(), items("x")); err != nil || len(results) != 1 {
			t.Error(err)
		}
		alone.Release()
		synctest.Wait()
		if len(got) != 1 || m.used != 1 || p.Free() != 3 {
			t.Errorf("after it %d got a slot, %d are used, %d are free", len(got), m.used, p.Free())
		}
		(<-got).Release()

		busy, _ := p.Acquire(t.Context()) // whoever gives up leaves nothing reserved
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		acquire(aloneIn(p))
		if _, err := p.AcquireAlone(short, 1); err == nil {
			t.Error("two have an instance alone")
		}
		p.leave(m) // and one that ends leaves its waiter to the next
		busy.Release()
		n := p.add(backendtest.NewInstance("j"), 1, 2, firstGeneration, terms{})
		synctest.Wait()
		if len(got) != 1 || n.used != 2 || n.reserved != nil {
			t.Errorf("%d got a slot, %d are used", len(got), n.used)
		}
		(<-got).Release()
		if s, err := p.Acquire(t.Context()); err != nil || n.used != 1 {
			t.Errorf("%v, %d are used", err, n.used)
		} else {
			s.Release()
		}
	})
}

func TestManyThatDieTogetherStartApart(t *testing.T) {
	var d deaths
	now := time.Unix(1, 0)
	for i := range 20 {
		late := d.spread(now, time.Second)
		if i < fewDeaths && late != 0 || late > time.Duration(i+1)*eachSpread+time.Second/4 {
			t.Errorf("death %d: %s", i, late)
		}
	}
	spread := 0
	for range 20 {
		if d.spread(now, 0) > eachSpread {
			spread++
		}
	}
	if spread < 10 {
		t.Errorf("%d of 20 start apart", spread)
	}
	if late := d.spread(now.Add(2*time.Second), time.Second); late != 0 {
		t.Errorf("a death alone: %s", late)
	}
}

// TestEventsSayWhichInstance a change is about.
func TestEventsSayWhichInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, fakes{}.launcher(), archives{"a.mar": named("a", "1.0"), "b.mar": named("a", "1.0")}, nil)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		if _, err := h.Deploy(t.Context(), Spec{URL: "b.mar"}); err != nil {
			t.Fatal(err)
		}
		crash := &backend.CrashError{Crash: &backend.Crash{Reason: backend.CrashWedged, How: "killed"}}
		for range 2 {
			synctest.Wait()
			h.launcher.Live()[0].Die(fault.New(fault.BackendDied, "Worker died.", crash))
			<-time.After(10 * time.Second)
		}
		h.mu.Lock()
		var failed []Event
		for _, e := range h.events {
			if e.To == Failed {
				failed = append(failed, e)
			}
		}
		h.mu.Unlock()
		if len(failed) != 2 || failed[0].Generation != 2 || failed[0].Restarts != 0 || failed[1].Restarts != 1 || backend.CrashOf(failed[1].Cause) != crash.Crash {
			t.Errorf("%+v", failed)
		}
		if w := h.describe(t, "a").Workers[0]; w.Restarts != 2 {
			t.Errorf("%+v", w)
		}
		h.end(t)
	})
}
