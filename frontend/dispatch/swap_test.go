package dispatch

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

// telling launches instances that answer with the version, or with the folder that they were loaded from if there is one. What takes longer than
// nothing is answered after that time.
func telling(takes time.Duration) *backendtest.Launcher {
	return &backendtest.Launcher{LaunchFunc: func(_ context.Context, n int, _ backend.ProcessSpec) (*backendtest.Instance, error) {
		i := backendtest.NewInstance(strconv.Itoa(n))
		var name string
		i.LoadFunc = func(_ context.Context, m backend.LoadSpec) (backend.Info, error) {
			if name = m.Dir; name == "" {
				name = m.Model.Version
			}
			return backend.Info{}, nil
		}
		i.PredictFunc = func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
			select {
			case <-time.After(takes):
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			results := make([]infer.Result, len(items))
			for k := range items {
				results[k].Body = []byte(name)
				for _, f := range items[k].Header { // as a handler would tell its client which sequence it has begun
					if f.Name == sequenceHeader {
						results[k].Header = append(results[k].Header, f)
					}
				}
			}
			return results, nil
		}
		return i, nil
	}}
}

const sequenceHeader = "ts_request_sequence_id"

// member is an item of a sequence.
func member(sequence string) infer.Item {
	it := item("x")
	if sequence != "" {
		it.Header = append(it.Header, infer.Field{Name: "TS_Request_Sequence_ID", Value: sequence})
	}
	return it
}

// stateful are the settings of a model with sequences.
func stateful() archive.Settings {
	return archive.Settings{SequenceBatching: true, SequenceMaxIdle: time.Hour, MaxNumSequence: 100, MaxSequenceJobQueueSize: 100}
}

// TestSequencesStayTogetherUnderWeights sends sequences to a model with weights: each is answered by one version, whether its client or the server has
// named it, unless its requests have keys of users.
func TestSequencesStayTogetherUnderWeights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, telling(0), archive.Archive{Settings: stateful()}, 1)
		defer s.end(t)
		one := 1
		if _, err := s.models.Register(t.Context(), rollout.Spec{URL: "m.mar", Version: "2.0", InitialWorkers: &one, Synchronous: true}); err != nil {
			t.Fatal(err)
		}
		weigh := func(sticky string) {
			if err := s.models.SetTraffic(t.Context(), "m", rollout.Traffic{Weights: map[string]float64{"2.0": 50}, Sticky: sticky}); err != nil {
				t.Fatal(err)
			}
		}
		ask := func(it infer.Item) (version, sequence string) {
			r, err := s.Submit(t.Context(), model, it)
			if err != nil || len(r.Header) != 1 {
				t.Fatalf("%+v, %v", r, err)
			}
			return string(r.Body), r.Header[0].Value
		}
		weigh("")
		first := map[string]int{}
		for n := range 30 {
			begun := member("")
			if n%2 == 0 {
				begun = member("sequence " + strconv.Itoa(n))
			}
			version, sequence := ask(begun)
			first[version]++
			for range 8 {
				if now, _ := ask(member(sequence)); now != version {
					t.Fatalf("sequence %s is with versions %s and %s", sequence, version, now)
				}
			}
		}
		if first["1.0"] < 4 || first["2.0"] < 4 {
			t.Errorf("30 sequences are spread like %v", first)
		}
		weigh("header:x-user") // an explicit key goes before that
		seen := map[string]string{}
		for n := range 30 {
			it, user := member("one sequence"), "user "+strconv.Itoa(n%10)
			it.Header = append(it.Header, infer.Field{Name: "X-User", Value: user})
			version, _ := ask(it)
			if before, known := seen[user]; known && before != version {
				t.Errorf("%s is with versions %s and %s", user, before, version)
			}
			seen[user] = version
		}
		if versions := fmt.Sprint(seen); !strings.Contains(versions, "1.0") || !strings.Contains(versions, "2.0") {
			t.Errorf("the users are spread like %v", seen)
		}
	})
}

// TestSequencesOverASwapInPlace swaps a model in place whose sequences are open, at all moments of their batches: no request fails, and none that comes
// after the swap is answered by the old workers.
func TestSequencesOverASwapInPlace(t *testing.T) {
	for _, begins := range []int{0, 300, 700, 1100, 1900} {
		t.Run(strconv.Itoa(begins), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				set := stateful()
				set.BatchSize, set.MaxBatchDelay, set.Swap = new(8), new(time.Second), rollout.SwapInPlace
				s := newScene(t, telling(100*time.Millisecond), archive.Archive{Dir: "old", Settings: set}, 2)
				defer s.end(t)
				stop := make(chan struct{})
				var swapped atomic.Bool
				var clients sync.WaitGroup
				for n := range 6 {
					clients.Go(func() {
						for {
							select {
							case <-stop:
								return
							case <-time.After(time.Duration(100+n*70) * time.Millisecond):
							}
							late := swapped.Load()
							r, err := s.Submit(t.Context(), model, member("sequence "+strconv.Itoa(n)))
							if err != nil || late && string(r.Body) != "new" {
								t.Errorf("a request was answered with %q, %v; after the swap: %t", r.Body, err, late)
								return
							}
						}
					})
				}
				time.Sleep(2*time.Second + time.Duration(begins)*time.Millisecond)
				next := archive.Archive{Dir: "new", Settings: set}
				next.Manifest.Model.ModelName, next.Manifest.Runtime = "m", "python"
				if _, err := s.models.Deploy(t.Context(), rollout.Spec{Archive: &next}); err != nil {
					t.Fatal(err)
				}
				swapped.Store(true)
				time.Sleep(10 * time.Second)
				close(stop)
				clients.Wait()
			})
		})
	}
}

// TestRetireWaitsForAQueueThatWasReplaced unregisters a model soon after it has become one with sequences: what waits in its queue of before is answered.
func TestRetireWaitsForAQueueThatWasReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, telling(2*time.Second), archive.Archive{Dir: "old"}, 1)
		defer s.end(t)
		var clients sync.WaitGroup
		for range 4 { // one runs, three wait
			clients.Go(func() {
				if _, err := s.Submit(t.Context(), model, item("x")); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		v, err := s.models.Resolve(model)
		if err != nil {
			t.Fatal(err)
		}
		next := archive.Archive{Dir: "new", Settings: stateful()}
		next.Manifest.Model.ModelName, next.Manifest.Runtime = "m", "python"
		if _, err := s.models.Deploy(t.Context(), rollout.Spec{Archive: &next}); err != nil {
			t.Fatal(err)
		}
		if err := s.Refresh(v); err != nil {
			t.Fatal(err)
		}
		clients.Go(func() {
			if r, err := s.Submit(t.Context(), model, member("a")); err != nil || string(r.Body) != "new" {
				t.Errorf("%q, %v", r.Body, err)
			}
		})
		synctest.Wait()
		if err := s.models.Unregister(t.Context(), model); err != nil {
			t.Error(err)
		}
		clients.Wait()
	})
}

// TestVersionThatLosesItsWorkersBetween scales a version to zero after its weight has sent a request its way: its share is the default version's.
func TestVersionThatLosesItsWorkersBetween(t *testing.T) {
	for name, c := range map[string]struct {
		ref    infer.ModelRef
		header string
		fails  bool
	}{
		"by its weight":  {ref: model},
		"by its name":    {ref: infer.ModelRef{Name: "m", Version: "2.0"}, fails: true},
		"by the request": {ref: model, header: "2.0", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t, telling(0), archive.Archive{}, 1)
				defer s.end(t)
				one := 1
				if _, err := s.models.Register(t.Context(), rollout.Spec{URL: "m.mar", Version: "2.0", InitialWorkers: &one, Synchronous: true}); err != nil {
					t.Fatal(err)
				}
				if err := s.models.SetTraffic(t.Context(), "m", rollout.Traffic{Weights: map[string]float64{"2.0": 100}}); err != nil {
					t.Fatal(err)
				}
				between := &late{Manager: s.models}
				s.opts.Models = between
				between.then = func() {
					if err := s.models.Scale(context.Background(), infer.ModelRef{Name: "m", Version: "2.0"}, 0, 0, true); err != nil {
						t.Error(err)
					}
				}
				it := item("x")
				if c.header != "" {
					it.Header = append(it.Header, infer.Field{Name: rollout.TrafficHeader, Value: c.header})
				}
				r, err := s.Submit(t.Context(), c.ref, it)
				if c.fails != (err != nil) || err == nil && string(r.Body) != "1.0" {
					t.Errorf("answered by %q, %v", r.Body, err)
				}
			})
		})
	}
}

// TestContinuousBatchesOverManySwaps has clients without pause of a model that answers in steps, over a hundred swaps: every request is answered, by one
// generation, and by none that is older than the one that served when it was sent.
func TestContinuousBatchesOverManySwaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := telling(0)
		launch := l.LaunchFunc
		l.LaunchFunc = func(ctx context.Context, n int, spec backend.ProcessSpec) (*backendtest.Instance, error) {
			i, err := launch(ctx, n, spec)
			answer := i.PredictFunc
			i.PredictFunc = func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
				results, err := answer(ctx, items)
				for k := range results { // the first of two steps brings the parts
					more := strconv.FormatBool(len(items[k].Parts) > 0)
					results[k].Header = append(results[k].Header, infer.Field{Name: "ts_stream_next", Value: more})
				}
				return results, err
			}
			return i, err
		}
		set := archive.Settings{ContinuousBatching: true, BatchSize: new(4), MaxBatchDelay: new(time.Duration(0)), JobQueueSize: new(100)}
		s := newScene(t, l, archive.Archive{Dir: "1", Settings: set}, 2)
		defer s.end(t)
		var serving atomic.Int64
		serving.Store(1)
		stop := make(chan struct{})
		var clients sync.WaitGroup
		for range 6 {
			clients.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					least := serving.Load()
					var first string
					it := item("x")
					it.Emit = func(r infer.Result) { first = string(r.Body) }
					r, err := s.Submit(t.Context(), model, it)
					if n, scan := strconv.ParseInt(string(r.Body), 10, 64); err != nil || scan != nil || n < least || first != string(r.Body) {
						t.Errorf("answered %q and %q, %v while %d served", first, r.Body, err, least)
						return
					}
				}
			})
		}
		for n := int64(2); n <= 100; n++ {
			next := archive.Archive{Dir: strconv.FormatInt(n, 10), Settings: set}
			next.Manifest.Model.ModelName, next.Manifest.Runtime = "m", "python"
			if _, err := s.models.Deploy(t.Context(), rollout.Spec{Archive: &next}); err != nil {
				t.Fatal(err)
			}
			serving.Store(n)
		}
		close(stop)
		clients.Wait()
	})
}
