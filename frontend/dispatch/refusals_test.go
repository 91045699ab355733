package dispatch

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

func numbersOf(err error) map[string]float64 {
	all, _, _ := fault.Details(err)
	m := map[string]float64{}
	for _, n := range all {
		m[n.Name] = n.Value
	}
	return m
}

// TestAFullQueueIsExplained fills the queue of a model whose handler takes 200 ms, and ends its worker.
func TestAFullQueueIsExplained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const took = 200 * time.Millisecond
		var mu sync.Mutex
		var instances []*backendtest.Instance
		l := slow(took)
		inner := l.LaunchFunc
		l.LaunchFunc = func(ctx context.Context, n int, spec backend.ProcessSpec) (*backendtest.Instance, error) {
			if n > 1 {
				time.Sleep(time.Second / 2) // so long it takes to start again
			}
			i, err := inner(ctx, n, spec)
			mu.Lock()
			defer mu.Unlock()
			instances = append(instances, i)
			return i, err
		}
		s := newScene(t, l, archive.Archive{}, 1)
		if _, err := s.Submit(t.Context(), model, item("first")); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for i := range 4 { // one runs, three wait
			all.Go(func() { _, _ = s.Submit(t.Context(), model, item(strconv.Itoa(i))) })
			synctest.Wait()
		}
		time.Sleep(50 * time.Millisecond)
		_, err := s.Submit(t.Context(), model, item("late"))
		_, setting, after := fault.Details(err)
		if got := numbersOf(err); !fault.Is(err, fault.Overloaded) || after != took-50*time.Millisecond || setting == "" || got["waiting"] != 3 || got["limit"] != 3 ||
			got["workers_ready"] != 1 || got["workers_total"] != 1 || got["mean_service_ms"] != 200 || got["oldest_wait_ms"] != 50 || got["retry_after_ms"] != 150 {
			t.Errorf("%v, again after %v: %v", err, after, got)
		}
		time.Sleep(after) // and then there is room
		synctest.Wait()
		all.Go(func() {
			if _, err := s.Submit(t.Context(), model, item("again")); err != nil {
				t.Errorf("when it was asked to come again: %v", err)
			}
		})
		synctest.Wait()
		mu.Lock()
		instances[0].Die(errors.New("killed"))
		mu.Unlock()
		synctest.Wait()
		_, err = s.Submit(t.Context(), model, item("full again")) // the queue still has its three
		_, _, after = fault.Details(err)
		if got := numbersOf(err); !fault.Is(err, fault.NoReadyWorker) || after <= 0 || got["workers_ready"] != 0 || got["workers_total"] != 1 {
			t.Errorf("after its worker's end: %v, again after %v: %v", err, after, got)
		}
		if last := s.Refusals(model); last.Count != 2 || last.Reason != "no_ready_worker" || time.Since(last.At) != 0 {
			t.Errorf("remembered: %+v", last)
		}
		all.Wait()
		time.Sleep(refusalAge + time.Second)
		if last := s.Refusals(model); last.Count != 0 {
			t.Errorf("remembered for too long: %+v", last)
		}
		s.end(t)
	})
}

// TestWorkersThatDoNotStartAreExplained: more of them would not start either, and so the number of workers is nothing to change.
func TestWorkersThatDoNotStartAreExplained(t *testing.T) {
	const why = "there is no file weights.pt"
	for name, settings := range map[string]archive.Settings{
		"it is to have one, and is given up":    {MaxRetryTimeout: new(20 * time.Second)},
		"it has none, and a request starts one": {HasConfig: true, MinWorkers: new(1), MaxWorkers: new(1), ToZero: true, KeepAlive: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var first *backendtest.Instance
				s := newSceneThat(t, &backendtest.Launcher{LaunchFunc: func(_ context.Context, n int, _ backend.ProcessSpec) (*backendtest.Instance, error) {
					if n > 1 {
						return nil, fault.New(fault.StartFailed, why, nil)
					}
					mu.Lock()
					defer mu.Unlock()
					first = backendtest.NewInstance("first")
					return first, nil
				}}, archive.Archive{Settings: settings}, 1, func(s *scene, o *rollout.Options) {
					o.Autoscale = &rollout.Autoscale{}
					o.Demand = func(v *rollout.Version) rollout.Demand {
						n, oldest := s.Demand(v)
						return rollout.Demand{Waiting: n, Oldest: oldest}
					}
				})
				if _, err := s.Submit(t.Context(), model, item("while it runs")); err != nil {
					t.Fatal(err)
				}
				if !settings.ToZero {
					mu.Lock()
					first.Die(errors.New("killed"))
					mu.Unlock()
				}
				tick := time.NewTicker(time.Second)
				defer tick.Stop()
				for d := is(t, s); len(d.Workers) > 0 && d.Workers[0].State != "failed"; d = is(t, s) { // it is given up, or not needed any more
					<-tick.C
				}
				for range 2 { // the second one comes while nothing is tried
					_, err := s.Submit(t.Context(), model, item("a"))
					_, setting, _ := fault.Details(err)
					if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind != fault.NoWorker || f.Message != `Model "m"`+torchServesText || !strings.Contains(f.Hint, why) ||
						!strings.Contains(f.Hint, "GET /models/m?details=true") || setting != "" {
						t.Errorf("%v: %+v, setting %q", err, f, setting)
					}
				}
				s.end(t)
			})
		})
	}
}

func is(t *testing.T, s *scene) rollout.Description {
	t.Helper()
	d, err := s.models.Describe(model)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConcurrencyIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, slow(time.Second), archive.Archive{Settings: archive.Settings{MaxConcurrency: 2}}, 1)
		var all sync.WaitGroup
		ctx, leave := context.WithCancel(t.Context())
		all.Go(func() { _, _ = s.Submit(t.Context(), model, item("runs")) })
		synctest.Wait()
		all.Go(func() { _, _ = s.Submit(ctx, model, item("waits")) })
		synctest.Wait()
		_, err := s.Submit(t.Context(), model, item("one too many"))
		_, setting, after := fault.Details(err)
		if got := numbersOf(err); !fault.Is(err, fault.ConcurrencyLimit) || got["concurrency_limit"] != 2 || got["waiting"] != 1 || got["workers_ready"] != 1 ||
			after <= 0 || setting != "maxConcurrency in model-config.yaml" {
			t.Errorf("%v, again after %v (%s): %v", err, after, setting, got)
		}
		leave() // its place is free
		synctest.Wait()
		if _, err := s.Submit(t.Context(), model, item("instead")); err != nil {
			t.Error(err)
		}
		all.Wait()
		s.end(t)
	})
}

// TestClientsShareAQueue tells clients apart by a header, as the model or else the server says.
func TestClientsShareAQueue(t *testing.T) {
	for name, tc := range map[string]struct {
		model  *infer.Fairness
		server infer.Fairness
		shared bool
	}{
		"the model":        {model: &infer.Fairness{Key: "header:x-tenant", MaxShare: 0.4}, shared: true},
		"the server":       {server: infer.Fairness{Key: "header:x-tenant", MaxShare: 0.4}, shared: true},
		"nobody":           {},
		"the model has no": {model: &infer.Fairness{}, server: infer.Fairness{Key: "header:x-tenant", MaxShare: 0.4}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newScene(t, slow(time.Second), archive.Archive{Settings: archive.Settings{Fairness: tc.model}}, 1)
			s.opts.Fairness = tc.server
			of := func(tenant, text string) infer.Item {
				it := item(text)
				it.Header = []infer.Field{{Name: "X-Tenant", Value: tenant}}
				return it
			}
			var displaced atomic.Int64
			var all sync.WaitGroup
			for i := range 4 {
				all.Go(func() {
					if _, err := s.Submit(t.Context(), model, of("a", strconv.Itoa(i))); fault.Is(err, fault.ClientShare) {
						displaced.Add(1)
					}
				})
				synctest.Wait()
			}
			_, err := s.Submit(t.Context(), model, of("b", "b"))
			all.Wait()
			if tc.shared != (err == nil) || tc.shared != (displaced.Load() == 1) {
				t.Errorf("%s: %v, %d displaced", name, err, displaced.Load())
			}
			s.end(t)
		})
	}
}

// deadlines launches instances that note the deadlines of what they get.
func deadlines(d time.Duration, seen *[]infer.Item, mu *sync.Mutex) *backendtest.Launcher {
	l := slow(d)
	inner := l.LaunchFunc
	l.LaunchFunc = func(ctx context.Context, n int, spec backend.ProcessSpec) (*backendtest.Instance, error) {
		i, err := inner(ctx, n, spec)
		predict := i.PredictFunc
		i.PredictFunc = func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
			mu.Lock()
			*seen = append(*seen, items...)
			mu.Unlock()
			return predict(ctx, items)
		}
		return i, err
	}
	return l
}

// TestTheEarliestDeadlineCounts has a client's header, the model's setting and the context's deadline disagree.
func TestTheEarliestDeadlineCounts(t *testing.T) {
	for name, tc := range map[string]struct {
		header  string
		setting time.Duration
		ctx     time.Duration
		want    time.Duration // 0: no deadline, and it is answered
	}{
		"none":                      {},
		"the header":                {header: "0.25", setting: time.Second, ctx: 2 * time.Second, want: 250 * time.Millisecond},
		"the header alone":          {header: " 1.5 ", want: 1500 * time.Millisecond},
		"the setting":               {header: "2", setting: 300 * time.Millisecond, ctx: time.Second, want: 300 * time.Millisecond},
		"the context, as gRPC's is": {header: "2", setting: time.Second, ctx: 100 * time.Millisecond, want: 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var seen []infer.Item
				var settings archive.Settings
				if tc.setting > 0 {
					settings.ClientTimeout = &tc.setting
				}
				s := newScene(t, deadlines(3*time.Second, &seen, &mu), archive.Archive{Settings: settings}, 1)
				ctx, cancel := t.Context(), func() {}
				if tc.ctx > 0 {
					ctx, cancel = context.WithTimeout(ctx, tc.ctx)
				}
				it := item("a")
				if tc.header != "" {
					it.Header = []infer.Field{{Name: "x-request-timeout", Value: tc.header}}
				}
				begun := time.Now()
				_, err := s.Submit(ctx, model, it)
				took := time.Since(begun)
				mu.Lock()
				defer mu.Unlock()
				if len(seen) != 1 {
					t.Fatalf("%d in the handler", len(seen))
				}
				if tc.want == 0 && (err != nil || !seen[0].Deadline.IsZero()) {
					t.Errorf("%v, deadline %v", err, seen[0].Deadline)
				}
				if tc.want > 0 && (!fault.Is(err, fault.ClientTimeout) || took != tc.want || !seen[0].Deadline.Equal(begun.Add(tc.want))) {
					t.Errorf("%v after %v, the worker was told %v", err, took, seen[0].Deadline.Sub(begun))
				}
				if got := numbersOf(err); tc.want > 0 && got["workers_ready"] != 1 {
					t.Errorf("numbers: %v", got)
				}
				cancel()
				s.end(t)
			})
		})
	}
}

// TestDeadlinesInTheQueue lets requests wait for a worker for longer than their clients do.
func TestDeadlinesInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var seen []infer.Item
		s := newScene(t, deadlines(time.Second, &seen, &mu), archive.Archive{}, 1)
		var all sync.WaitGroup
		all.Go(func() { _, _ = s.Submit(t.Context(), model, item("runs")) })
		synctest.Wait()
		it := item("waits")
		it.Header = []infer.Field{{Name: "X-Request-Timeout", Value: "0.4"}}
		begun := time.Now()
		_, err := s.Submit(t.Context(), model, it)
		got := numbersOf(err)
		if !fault.Is(err, fault.QueueTimeout) || time.Since(begun) != 400*time.Millisecond || got["waited_ms"] != 400 || got["timeout_ms"] != 400 || got["workers_ready"] != 1 {
			t.Errorf("%v after %v: %v", err, time.Since(begun), got)
		}
		all.Wait()
		if len(seen) != 1 || s.Refusals(model).Reason != "queue_timeout" {
			t.Errorf("%d in the handler; remembered %+v", len(seen), s.Refusals(model))
		}
		s.end(t)
	})
}

func TestBadTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, &backendtest.Launcher{}, archive.Archive{}, 1)
		for _, value := range []string{"", "abc", "0", "-1", "NaN", "Inf", "-Inf", "1s", "0x10", "1_0", "1,5", "1e999"} {
			it := item("a")
			it.Header = []infer.Field{{Name: "X-Request-Timeout", Value: value}}
			_, err := s.Submit(t.Context(), model, it)
			if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind != fault.BadRequest || f.Hint == "" {
				t.Errorf("%q: %v", value, err)
			}
		}
		for value, want := range map[string]time.Duration{"1": time.Second, "0.25": 250 * time.Millisecond, "1e1": 10 * time.Second, "1e300": longestTimeout, "1e-300": 1, "+3": 3 * time.Second} {
			if got, err := askedTimeout([]infer.Field{{Name: "x-REQUEST-timeout", Value: value}}); err != nil || got != want {
				t.Errorf("%q: %v %v", value, got, err)
			}
		}
		s.end(t)
	})
}

func FuzzAskedTimeout(f *testing.F) {
	for _, seed := range []string{"1", "0.5", "", "-1", "NaN", "1e9", "0x1p-2", "1_000", " 2 "} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		got, err := askedTimeout([]infer.Field{{Name: timeoutHeader, Value: value}})
		if (err == nil) != (got > 0) || got > longestTimeout {
			t.Errorf("%q: %v %v", value, got, err)
		}
	})
}
