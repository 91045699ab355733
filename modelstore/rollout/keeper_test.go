package rollout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

// bounds are the settings of an archive with numbers of workers.
func bounds(a *archive.Archive, minWorkers, maxWorkers int) *archive.Archive {
	a.Settings.HasConfig, a.Settings.MinWorkers, a.Settings.MaxWorkers = true, new(max(1, minWorkers)), &maxWorkers
	if minWorkers == 0 {
		a.Settings.ToZero, a.Settings.KeepAlive = true, 30*time.Second
	}
	return a
}

// crowd are the clients of one model: what they wait for is the demand.
type crowd struct {
	h *house

	mu       sync.Mutex // guards what follows
	waiting  []time.Time
	answered int
	failed   []error
	changes  []Change
}

func (c *crowd) demand(*Version) Demand {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 {
		return Demand{}
	}
	return Demand{Waiting: len(c.waiting), Oldest: time.Since(c.waiting[0])}
}

// ask sends a request as a queue does.
func (c *crowd) ask(ctx context.Context, name string) error {
	v, err := c.h.Resolve(infer.ModelRef{Name: name})
	if err != nil {
		return err
	}
	if !v.HasWorkers() {
		return errNoWorker()
	}
	for {
		now := time.Now()
		c.mu.Lock()
		c.waiting = append(c.waiting, now)
		c.mu.Unlock()
		s, err := v.Pool().Acquire(ctx)
		c.mu.Lock()
		at := slices.Index(c.waiting, now)
		c.waiting = slices.Delete(c.waiting, at, at+1)
		c.mu.Unlock()
		if err != nil {
			return err
		}
		_, err = s.Execute(ctx, items("x"))
		s.Release()
		if !errors.Is(err, backend.ErrNotSent) {
			return err
		}
	}
}

// send lets n clients ask without pause, each for so long.
func (c *crowd) send(name string, n int, d time.Duration) {
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for end := time.Now().Add(d); time.Now().Before(end); {
				err := c.ask(context.Background(), name)
				c.mu.Lock()
				c.answered++
				if err != nil {
					c.failed = append(c.failed, err)
				}
				c.mu.Unlock()
			}
		})
	}
	all.Wait()
}

func (c *crowd) take(kinds ...ChangeKind) []Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []Change
	for _, change := range c.changes {
		if slices.Contains(kinds, change.Kind) {
			found = append(found, change)
		}
	}
	c.changes = nil
	return found
}

// scaled gives the numbers of workers that the load has set since the last call.
func (c *crowd) scaled(t *testing.T) (steps []int) {
	t.Helper()
	for _, change := range c.take(ChangeScaled) {
		if change.Actor.Who != "autoscale" {
			continue
		}
		if want := fmt.Sprintf("%d → %d workers: ", change.Before, change.Workers); !strings.HasPrefix(change.Reason, want) {
			t.Errorf("%q does not begin with %q", change.Reason, want)
		}
		steps = append(steps, change.Workers)
	}
	return steps
}

// handler answers after a time, and workers load in a time.
func handler(answer, load time.Duration) fakes {
	return fakes{
		load: func(ctx context.Context) error { return pause(ctx, load) },
		predict: func(ctx context.Context, _ *backendtest.Instance, items []infer.Item) ([]infer.Result, error) {
			return backendtest.Echo(items), pause(ctx, answer)
		},
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// elastic makes a house whose workers follow the load.
func elastic(t *testing.T, f fakes, store archives, change func(*Options)) (*house, *crowd) {
	t.Helper()
	c := &crowd{}
	c.h = newHouse(t, f.launcher(), store, func(o *Options) {
		o.Autoscale, o.Demand = &Autoscale{}, c.demand
		o.Changed = func(change Change) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.changes = append(c.changes, change)
		}
		if change != nil {
			change(o)
		}
	})
	return c.h, c
}

func ready(d Description) (n int) {
	for _, w := range d.Workers {
		if w.Ready {
			n++
		}
	}
	return n
}

// TestWorkersFollowTheClients with 1, 64 and 1 of them, on real pools and fake processes: nothing fails, and each step says its numbers.
func TestWorkersFollowTheClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, c := elastic(t, handler(20*time.Millisecond, 2*time.Second), archives{"a.mar": bounds(named("a", "1.0"), 1, 8)}, nil)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		c.send("a", 1, time.Minute)
		if steps := c.scaled(t); len(steps) > 0 {
			t.Errorf("one client: %v", steps)
		}
		c.send("a", 64, time.Minute)
		if steps := fmt.Sprint(c.scaled(t)); steps != "[2 4 8]" || ready(h.describe(t, "a")) != 8 {
			t.Errorf("64 clients: %v, and %d are ready", steps, ready(h.describe(t, "a")))
		}
		c.send("a", 1, 3*time.Minute)
		if steps := fmt.Sprint(c.scaled(t)); steps != "[4 2 1]" || len(h.describe(t, "a").Workers) != 1 {
			t.Errorf("one client again: %v", steps)
		}
		if len(c.failed) > 0 {
			t.Errorf("%d of %d requests failed: %v", len(c.failed), c.answered, c.failed[0])
		}
		h.end(t)
	})
}

// TestScaleByHandHolds over the load: new bounds hold at once, and TorchServe's rule for what is between them.
func TestScaleByHandHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, c := elastic(t, handler(50*time.Millisecond, time.Second), archives{"a.mar": bounds(named("a", "1.0"), 1, 4)}, nil)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		scale := func(minWorkers, maxWorkers, want int) {
			t.Helper()
			if err := h.Scale(t.Context(), infer.ModelRef{Name: "a"}, minWorkers, maxWorkers, true); err != nil {
				t.Fatal(err)
			}
			if d := h.describe(t, "a"); ready(d) != want || d.MinWorkers != minWorkers || d.MaxWorkers != maxWorkers {
				t.Errorf("%d to %d: %d are ready of %d to %d", minWorkers, maxWorkers, ready(d), d.MinWorkers, d.MaxWorkers)
			}
		}
		scale(2, 3, 2)
		scale(1, 3, 2)
		c.take()
		c.send("a", 32, 20*time.Second)
		if steps := fmt.Sprint(c.scaled(t)); steps != "[3]" {
			t.Errorf("up to 3: %v", steps)
		}
		scale(1, 1, 1)
		c.take()
		c.send("a", 32, 20*time.Second)
		if steps := c.scaled(t); len(steps) > 0 {
			t.Errorf("minimum and maximum are one: %v", steps)
		}
		scale(0, 0, 0)
		if err := c.ask(t.Context(), "a"); !fault.Is(err, fault.NoWorker) {
			t.Errorf("without workers: %v", err)
		}
		if len(c.failed) > 0 {
			t.Errorf("%d of %d requests failed: %v", len(c.failed), c.answered, c.failed[0])
		}
		h.end(t)
	})
}

// TestAutoscaleOff leaves everything as TorchServe has it.
func TestAutoscaleOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, c := elastic(t, handler(50*time.Millisecond, time.Second), archives{
			"a.mar": bounds(named("a", "1.0"), 1, 4), "z.mar": bounds(named("z", "1.0"), 0, 4),
		}, func(o *Options) { o.Autoscale = nil })
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		register(t, h, Spec{URL: "z.mar", Synchronous: true})
		c.send("a", 32, time.Minute)
		if n := ready(h.describe(t, "a")); n != 1 || len(c.scaled(t)) > 0 {
			t.Errorf("%d workers", n)
		}
		if d := h.describe(t, "z"); ready(d) != 1 || d.MinWorkers != 1 {
			t.Errorf("a minimum of 0: %d of %d", ready(d), d.MinWorkers)
		}
		h.end(t)
	})
}

// TestMemoryBoundsTheScale: as many workers as the memory has room for, and the reason once.
func TestMemoryBoundsTheScale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, c := elastic(t, handler(20*time.Millisecond, time.Second), archives{"a.mar": bounds(named("a", "1.0"), 1, 4)}, func(o *Options) {
			o.Available = func() (int64, bool) { return 1, true }
		})
		start := h.launcher.LaunchFunc
		h.launcher.LaunchFunc = func(ctx context.Context, n int, spec backend.ProcessSpec) (*backendtest.Instance, error) {
			i, err := start(ctx, n, spec)
			i.Process = os.Getpid() // one whose memory can be read
			return i, err
		}
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		c.send("a", 64, 20*time.Second)
		refused := c.take(ChangeRefused, ChangeScaled)
		if len(refused) != 1 || refused[0].Kind != ChangeRefused || !strings.Contains(refused[0].Reason, "swap_memory_guard") {
			t.Errorf("%+v", refused)
		}
		h.end(t)
	})
}

// TestFirstRequestWaits for the worker that it has started, and the last worker ends when no request has come for long.
func TestFirstRequestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, c := elastic(t, handler(20*time.Millisecond, 3*time.Second), archives{"a.mar": bounds(named("a", "1.0"), 0, 4)}, nil)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		if d := h.describe(t, "a"); ready(d) != 1 || d.MinWorkers != 0 {
			t.Errorf("it begins with %d workers", ready(d))
		}
		for range 3 {
			<-time.After(29 * time.Second) // less than the keepAlive
			if err := c.ask(t.Context(), "a"); err != nil || len(h.describe(t, "a").Workers) != 1 {
				t.Fatal(err)
			}
		}
		c.take()
		<-time.After(31 * time.Second)
		synctest.Wait()
		if d := h.describe(t, "a"); len(d.Workers) != 0 || !d.Dormant || d.State != stateIdle || len(h.launcher.Live()) != 0 || !h.Healthy() {
			t.Errorf("after the keepAlive: %+v", d)
		} else if d.Reason != "scaled to zero after 30s without a request (keepAlive); the next one starts a worker" {
			t.Errorf("the reason: %q", d.Reason)
		}
		if got := c.take(ChangeScaled); len(got) != 1 || got[0].Reason != "1 → 0 workers: no request for 30s (keepAlive)" {
			t.Errorf("%+v", got)
		}
		begun := time.Now()
		c.send("a", 5, time.Millisecond)
		if took := time.Since(begun); took != 3*time.Second+5*20*time.Millisecond || len(c.failed) > 0 {
			t.Errorf("the requests took %s, %v", took, c.failed)
		}
		if steps := fmt.Sprint(c.scaled(t)); steps != "[1]" {
			t.Errorf("steps: %s", steps)
		}
		<-time.After(time.Minute)
		late, cancel := context.WithTimeout(t.Context(), time.Second) // less than the start takes
		defer cancel()
		if err := c.ask(late, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a deadline: %v", err)
		}
		<-time.After(time.Minute)
		if err := h.Unregister(t.Context(), infer.ModelRef{Name: "a"}); err != nil {
			t.Error(err)
		}
		h.end(t)
	})
}

// TestFirstRequestHearsWhy its worker did not start; the next one has another try only after a pause.
func TestFirstRequestHearsWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := false
		f := handler(0, time.Second)
		f.load = func(context.Context) error {
			if broken {
				return fault.New(fault.LoadFailed, "no such file: weights.pt", nil)
			}
			return nil
		}
		h, c := elastic(t, f, archives{"a.mar": bounds(named("a", "1.0"), 0, 1)}, nil)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		<-time.After(time.Minute)
		broken = true
		err := c.ask(t.Context(), "a")
		if !fault.Is(err, fault.NoWorker) || !strings.Contains(fault.Message(err), "weights.pt") {
			t.Errorf("%v", err)
		}
		started := len(h.launcher.Instances())
		if err := c.ask(t.Context(), "a"); !fault.Is(err, fault.NoWorker) || len(h.launcher.Instances()) != started {
			t.Errorf("at once again: %v, %d starts", err, len(h.launcher.Instances())-started)
		}
		broken = false
		<-time.After(2 * time.Second)
		if err := c.ask(t.Context(), "a"); err != nil {
			t.Errorf("after the pause: %v", err)
		}
		h.end(t)
	})
}

// TestSwapOfAModelWithoutWorkers starts one, so that a broken archive is found.
func TestSwapOfAModelWithoutWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, c := elastic(t, handler(time.Millisecond, time.Second), archives{
			"a.mar": bounds(named("a", "1.0"), 0, 2), "b.mar": bounds(named("a", "1.0"), 0, 2), "p.mar": bounds(named("a", "1.0"), 0, 2),
		}, nil)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		for _, url := range []string{"b.mar", "a.mar"} {
			<-time.After(time.Minute)
			if _, err := h.Deploy(t.Context(), Spec{URL: url}); err != nil {
				t.Fatal(err)
			}
			if d := h.describe(t, "a"); ready(d) != 1 || d.MinWorkers != 0 {
				t.Errorf("%d workers after the swap", ready(d))
			}
		}
		<-time.After(time.Minute)
		if d := h.describe(t, "a"); !d.Dormant {
			t.Errorf("%+v", d)
		}
		if err := c.ask(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		h.end(t)
	})
}

// TestStreamOutlivesItsWorker that the load wants no more; it is cut off only when somebody waits for it, as long as he would for any.
func TestStreamOutlivesItsWorker(t *testing.T) {
	for name, tt := range map[string]struct{ unregister, stream, want time.Duration }{
		"nobody waits":    {0, 50 * time.Minute, 0},
		"it is cut off":   {10 * time.Minute, 50 * time.Minute, 30 * time.Second}, // the house's drain
		"it ends in time": {10 * time.Minute, 10*time.Minute + 20*time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := handler(20*time.Millisecond, 0)
				echo := f.predict
				f.predict = func(ctx context.Context, i *backendtest.Instance, items []infer.Item) ([]infer.Result, error) {
					if string(items[0].Parts[0].Data) != "stream" {
						return echo(ctx, i, items)
					}
					for end := time.Now().Add(tt.stream); time.Now().Before(end); {
						if err := pause(ctx, 5*time.Second); err != nil {
							return nil, err
						}
						items[0].Emit(infer.Result{Body: []byte("piece")})
					}
					return backendtest.Echo(items), nil
				}
				h, c := elastic(t, f, archives{"a.mar": bounds(named("a", "1.0"), 1, 4)}, nil)
				register(t, h, Spec{URL: "a.mar", Synchronous: true})
				c.send("a", 16, 30*time.Second)
				first := h.describe(t, "a").Workers
				v, err := h.Resolve(infer.ModelRef{Name: "a"})
				if err != nil {
					t.Fatal(err)
				}
				last := first[len(first)-1].ID // the newest one goes first
				s, err := v.Pool().AcquireFrom(t.Context(), last)
				if err != nil {
					t.Fatal(err)
				}
				begun, done := time.Now(), make(chan error, 1)
				go func() {
					_, err := s.Execute(t.Context(), items("stream"))
					s.Release()
					done <- err
				}()
				<-time.After(5 * time.Minute)
				if n := len(h.describe(t, "a").Workers); n != 1 && n != 2 {
					t.Errorf("%d workers", n)
				}
				if tt.unregister == 0 {
					if err := <-done; err != nil {
						t.Error(err)
					}
					h.end(t)
					return
				}
				<-time.After(tt.unregister - time.Since(begun))
				if err := h.Unregister(t.Context(), infer.ModelRef{Name: "a"}); err != nil {
					t.Error(err)
				}
				err = <-done
				if (err == nil) != (tt.want == 0) || len(h.launcher.Live()) != 0 || tt.want > 0 && time.Since(begun).Round(time.Second) != tt.unregister+tt.want {
					t.Errorf("after %s: %v, %d instances live", time.Since(begun), err, len(h.launcher.Live()))
				}
				h.end(t)
			})
		})
	}
}
