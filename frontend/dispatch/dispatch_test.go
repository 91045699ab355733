package dispatch

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// opener opens one archive, whatever the URL.
type opener struct{ archive archive.Archive }

func (o opener) Open(context.Context, string) (*archive.Archive, error) {
	a := o.archive
	return &a, nil
}

// scene is a dispatcher over a manager with the model "m".
type scene struct {
	*Dispatcher

	models *rollout.Manager
	mu     sync.Mutex // guards seen
	seen   []Observation
}

func newScene(t *testing.T, l backend.Launcher, a archive.Archive, workers int) *scene {
	t.Helper()
	return newSceneThat(t, l, a, workers, func(*scene, *rollout.Options) {})
}

// newSceneThat is newScene with options of its own.
func newSceneThat(t *testing.T, l backend.Launcher, a archive.Archive, workers int, set func(*scene, *rollout.Options)) *scene {
	t.Helper()
	s := &scene{}
	a.Manifest.Model.ModelName, a.Manifest.Runtime = "m", "python"
	options := rollout.Options{
		Launcher: l, Archives: opener{a}, Limits: backend.Limits{Start: time.Second, Stop: time.Second},
		Process:         func(rollout.ProcessRequest) (backend.ProcessSpec, error) { return backend.ProcessSpec{}, nil },
		ResponseTimeout: time.Minute, StartupTimeout: time.Minute, QueueSize: 3, Drain: 10 * time.Second, Logger: slog.New(slog.DiscardHandler),
		Retire: func(ctx context.Context, v *rollout.Version) { s.Retire(ctx, v) }, WarmUp: rollout.WarmUpOff,
	}
	set(s, &options)
	m, err := rollout.New(options)
	if err != nil {
		t.Fatal(err)
	}
	s.models = m
	s.Dispatcher, err = New(Options{Models: m, Observe: func(o Observation) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen = append(s.seen, o)
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Register(t.Context(), rollout.Spec{URL: "m.mar", InitialWorkers: &workers, Synchronous: true}); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *scene) end(t *testing.T) {
	t.Helper()
	s.Close()
	if err := s.models.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// slow launches instances that answer after d with the first part of each item.
func slow(d time.Duration) *backendtest.Launcher {
	return &backendtest.Launcher{LaunchFunc: func(_ context.Context, n int, _ backend.ProcessSpec) (*backendtest.Instance, error) {
		i := backendtest.NewInstance(strconv.Itoa(n))
		i.PredictFunc = func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
			select {
			case <-time.After(d):
				return backendtest.Echo(items), nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		return i, nil
	}}
}

func item(text string) infer.Item {
	return infer.Item{ID: "id-" + text, Parts: []infer.Part{{Name: "body", Data: []byte(text)}}}
}

var model = infer.ModelRef{Name: "m"}

func TestSubmit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, &backendtest.Launcher{}, archive.Archive{}, 1)
		for _, ref := range []infer.ModelRef{model, {Name: "m", Version: "1.0"}} {
			r, err := s.Submit(t.Context(), ref, item("hello"))
			if err != nil || string(r.Body) != "hello" {
				t.Errorf("%v: %q, %v", ref, r.Body, err)
			}
		}
		if _, err := s.Submit(t.Context(), infer.ModelRef{Name: "x"}, item("a")); !fault.Is(err, fault.ModelNotFound) {
			t.Errorf("unknown model: %v", err)
		}
		if len(s.seen) != 2 || s.seen[0].Ref != model || s.seen[0].ID != "id-hello" {
			t.Errorf("observed %+v: unknown models must not be observed", s.seen)
		}
		s.end(t)
	})
}

const torchServesText = ` has no worker to serve inference request. Please use scale workers API to add workers. ` +
	`If this is a sequence inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize`

func TestRefusalsHaveTorchServesTextAndTheTrueReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, slow(time.Second), archive.Archive{}, 0)
		_, err := s.Submit(t.Context(), model, item("a"))
		if !fault.Is(err, fault.NoWorker) || fault.Message(err) != `Model "m"`+torchServesText {
			t.Errorf("without workers: %v", err)
		}
		if _, setting, _ := fault.Details(err); setting != "minWorkers in model-config.yaml, or min_worker of PUT /models/m" {
			t.Errorf("without workers: %q", setting)
		}
		if err := s.models.Scale(t.Context(), model, 1, 1, true); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for i := range 4 { // one runs, three wait
			all.Go(func() {
				if _, err := s.Submit(t.Context(), model, item(strconv.Itoa(i))); err != nil {
					t.Errorf("request %d: %v", i, err)
				}
			})
			synctest.Wait()
		}
		if waiting, limit, err := s.Queue(model); waiting != 3 || limit != 3 || err != nil {
			t.Errorf("queue %d of %d, %v", waiting, limit, err)
		}
		_, err = s.Submit(t.Context(), infer.ModelRef{Name: "m", Version: "1.0"}, item("late"))
		if !fault.Is(err, fault.Overloaded) || fault.Message(err) != `Model "m" Version 1.0"`+torchServesText {
			t.Errorf("full queue: %v", err)
		}
		all.Wait()
		s.end(t)
	})
}

func TestClientTimeoutIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := 300 * time.Millisecond
		a := archive.Archive{Settings: archive.Settings{ClientTimeout: &limit}}
		s := newScene(t, slow(time.Second), a, 1)
		begun := time.Now()
		_, err := s.Submit(t.Context(), model, item("a"))
		if !fault.Is(err, fault.ClientTimeout) || time.Since(begun) != limit {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		s.end(t)
	})
}

func TestClientThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, slow(time.Second), archive.Archive{}, 1)
		ctx, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := s.Submit(ctx, model, item("a")); !fault.Is(err, fault.Cancelled) {
				t.Errorf("%v", err)
			}
		})
		synctest.Wait()
		leave()
		all.Wait()
		s.end(t)
	})
}

func TestUnregisterAnswersWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, slow(2*time.Second), archive.Archive{}, 2)
		var answered atomic.Int32
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				if _, err := s.Submit(t.Context(), model, item(strconv.Itoa(i))); err == nil {
					answered.Add(1)
				}
			})
		}
		synctest.Wait()
		begun := time.Now()
		if err := s.models.Unregister(t.Context(), model); err != nil {
			t.Error(err)
		}
		all.Wait()
		if answered.Load() != 4 || time.Since(begun) != 4*time.Second {
			t.Errorf("%d of 4 were answered, after %v", answered.Load(), time.Since(begun))
		}
		s.end(t)
	})
}

func TestUnregisterDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, slow(8*time.Second), archive.Archive{}, 1)
		var ok, notFound atomic.Int32
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				switch _, err := s.Submit(t.Context(), model, item(strconv.Itoa(i))); {
				case err == nil:
					ok.Add(1)
				case fault.Is(err, fault.ModelNotFound):
					notFound.Add(1)
				default:
					t.Errorf("request %d: %v", i, err)
				}
			})
		}
		synctest.Wait()
		if err := s.models.Unregister(t.Context(), model); err != nil {
			t.Error(err)
		}
		all.Wait()
		if ok.Load() != 2 || notFound.Load() != 1 {
			t.Errorf("%d answered, %d told that the model is gone; want 2 (begun within 10 s) and 1", ok.Load(), notFound.Load())
		}
		s.end(t)
	})
}

func TestScaleToZeroAnswersWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, slow(time.Second), archive.Archive{}, 1)
		var all sync.WaitGroup
		errs := make([]error, 2)
		for i := range errs {
			all.Go(func() { _, errs[i] = s.Submit(t.Context(), model, item(strconv.Itoa(i))) })
			synctest.Wait()
		}
		if err := s.models.Scale(t.Context(), model, 0, 0, true); err != nil {
			t.Error(err)
		}
		all.Wait()
		if errs[0] != nil || !fault.Is(errs[1], fault.NoWorker) {
			t.Errorf("the running one: %v, the waiting one: %v", errs[0], errs[1])
		}
		s.end(t)
	})
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, slow(time.Second), archive.Archive{}, 1)
		var answered atomic.Int32
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				if _, err := s.Submit(t.Context(), model, item(strconv.Itoa(i))); err == nil {
					answered.Add(1)
				}
			})
		}
		synctest.Wait()
		all.Go(func() {
			if err := s.Drain(t.Context()); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if _, err := s.Submit(t.Context(), model, item("late")); !fault.Is(err, fault.Draining) {
			t.Errorf("while draining: %v", err)
		}
		all.Wait()
		if answered.Load() != 3 {
			t.Errorf("%d of 3 were answered", answered.Load())
		}
		s.end(t)
	})
}

// TestSequencesAreAssignedByHeader has a model whose requests belong to sequences.
func TestSequencesAreAssignedByHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []infer.Item
		l := &backendtest.Launcher{LaunchFunc: func(_ context.Context, n int, _ backend.ProcessSpec) (*backendtest.Instance, error) {
			i := backendtest.NewInstance(strconv.Itoa(n))
			i.PredictFunc = func(_ context.Context, items []infer.Item) ([]infer.Result, error) {
				seen = append(seen, items...)
				return backendtest.Echo(items), nil
			}
			return i, nil
		}}
		a := archive.Archive{Settings: archive.Settings{SequenceBatching: true, SequenceMaxIdle: time.Second, MaxNumSequence: 2, MaxSequenceJobQueueSize: 1}}
		s := newScene(t, l, a, 1)
		for _, header := range [][]infer.Field{
			{{Name: "Ts_request_sequence_id", Value: "one"}, {Name: "TS_REQUEST_SEQUENCE_END", Value: "true"}}, {{Name: "x", Value: "y"}},
		} {
			it := item("a")
			it.Header = header
			if _, err := s.Submit(t.Context(), model, it); err != nil {
				t.Error(err)
			}
		}
		it := item("a")
		it.Header = []infer.Field{{Name: "ts_request_sequence_id", Value: "three"}}
		if _, err := s.Submit(t.Context(), model, it); !fault.Is(err, fault.Overloaded) {
			t.Errorf("a third sequence: %v", err)
		}
		if len(seen) != 2 || seen[0].Sequence != "one" || seen[0].Header[0].Name != "ts_request_sequence_id" || seen[0].Header[1].Name != "ts_request_sequence_end" {
			t.Errorf("the handler saw %+v", seen)
		}
		if h := seen[1].Header; len(h) != 3 || h[1].Name != "ts_request_sequence_id" || h[1].Value != seen[1].Sequence || h[2] != (infer.Field{
			Name: "ts_request_sequence_start", Value: "true",
		}) {
			t.Errorf("a request without a sequence became %+v", seen[1])
		}
		s.end(t)
	})
}
