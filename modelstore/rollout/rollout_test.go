package rollout

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

// archives opens archives that are made of what their URL says: name@version.
type archives map[string]*archive.Archive

func (a archives) Open(_ context.Context, url string) (*archive.Archive, error) {
	found, ok := a[url]
	if !ok {
		return nil, fault.Newf(fault.ModelNotFound, "Model not found at: %s", url)
	}
	fresh := *found
	fresh.URL = url
	return &fresh, nil
}

func named(name, version string) *archive.Archive {
	a := &archive.Archive{Dir: "/models/" + name, FileBase: "file_" + name, HasManifest: true}
	a.Manifest.Runtime = "python"
	a.Manifest.Model.ModelName, a.Manifest.Model.ModelVersion, a.Manifest.Model.Handler = name, version, "handler.py"
	return a
}

// fakes are the functions of all the instances of a launcher.
type fakes struct {
	launch  func(ctx context.Context, n int) error
	load    func(ctx context.Context) error
	predict func(ctx context.Context, i *backendtest.Instance, items []infer.Item) ([]infer.Result, error)
}

func (f fakes) launcher() *backendtest.Launcher {
	return &backendtest.Launcher{LaunchFunc: func(ctx context.Context, n int, _ backend.ProcessSpec) (*backendtest.Instance, error) {
		if f.launch != nil {
			if err := f.launch(ctx, n); err != nil {
				return nil, err
			}
		}
		i := backendtest.NewInstance(strconv.Itoa(n))
		if f.load != nil {
			i.LoadFunc = func(ctx context.Context, _ backend.LoadSpec) (backend.Info, error) {
				return backend.Info{}, f.load(ctx)
			}
		}
		if f.predict != nil {
			i.PredictFunc = func(ctx context.Context, items []infer.Item) ([]infer.Result, error) { return f.predict(ctx, i, items) }
		}
		return i, nil
	}}
}

// house is a Manager over fakes.
type house struct {
	*Manager

	launcher *backendtest.Launcher
	mu       sync.Mutex // guards events
	events   []Event
}

func newHouse(t *testing.T, l *backendtest.Launcher, store archives, change func(*Options)) *house {
	t.Helper()
	h := &house{launcher: l}
	opts := Options{
		Launcher: l, Archives: store, Limits: backend.Limits{Start: 10 * time.Second, Stop: time.Second},
		Process: func(r ProcessRequest) (backend.ProcessSpec, error) {
			return backend.ProcessSpec{Path: "python", Dir: r.Dir, Args: []string{strconv.Itoa(r.WorkerID)}}, nil
		},
		DefaultWorkers: 1, ResponseTimeout: 120 * time.Second, StartupTimeout: 120 * time.Second, QueueSize: 100, FirstWorkerID: 9000,
		Drain: 30 * time.Second, Logger: slog.New(slog.DiscardHandler), WarmUp: WarmUpOff, // the fakes' archives have no folders
		Events: func(e Event) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.events = append(h.events, e)
		},
	}
	if change != nil {
		change(&opts)
	}
	m, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	h.Manager = m
	return h
}

func (h *house) end(t *testing.T) {
	t.Helper()
	if err := h.Close(t.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
	if n := len(h.launcher.Live()); n > 0 {
		t.Errorf("%d instances are left", n)
	}
}

func (h *house) describe(t *testing.T, name string) Description {
	t.Helper()
	d, err := h.Describe(infer.ModelRef{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// await looks at a model every second of the bubble's time until it is as wanted, for an hour at most.
func (h *house) await(t *testing.T, name string, is func(Description) bool) {
	t.Helper()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for begun := time.Now(); !is(h.describe(t, name)); <-tick.C {
		if time.Since(begun) > time.Hour {
			t.Fatalf("it did not come to that: %+v", h.describe(t, name))
		}
	}
}

// stuck are instances whose load does not end before it is given up.
func stuck() fakes {
	return fakes{load: func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}}
}

// mendable are instances that do not load, until somebody mends them.
func mendable(why string) (f fakes, mend func()) {
	var mended atomic.Bool
	return fakes{load: func(context.Context) error {
		if mended.Load() {
			return nil
		}
		return errors.New(why)
	}}, func() { mended.Store(true) }
}

func register(t *testing.T, h *house, s Spec) Registered {
	t.Helper()
	r, err := h.Register(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// predict runs one batch on the pool of a model, as a queue does.
func predict(t *testing.T, h *house, name, body string) (string, error) {
	t.Helper()
	v, err := h.Resolve(infer.ModelRef{Name: name})
	if err != nil {
		return "", err
	}
	for {
		s, err := v.Pool().Acquire(t.Context())
		if err != nil {
			return "", err
		}
		results, err := s.Execute(t.Context(), items(body))
		s.Release()
		switch {
		case errors.Is(err, backend.ErrNotSent):
		case err != nil:
			return "", err
		default:
			return string(results[0].Body), nil
		}
	}
}

func TestRegisterServesAndUnregisterLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, &backendtest.Launcher{}, archives{"a.mar": named("a", "2.1")}, nil)
		r := register(t, h, Spec{URL: "a.mar", InitialWorkers: new(2), Synchronous: true})
		if want := (Registered{infer.ModelRef{Name: "a", Version: "2.1"}, 2}); r != want {
			t.Errorf("registered %+v, want %+v", r, want)
		}
		d := h.describe(t, "a")
		if d.State != "serving" || len(d.Workers) != 2 || !d.Workers[0].Ready || d.Workers[0].ID != 9000 || d.Workers[1].ID != 9001 {
			t.Errorf("described as %+v", d)
		}
		if got, err := predict(t, h, "a", "hello"); err != nil || got != "hello" {
			t.Errorf("%q, %v", got, err)
		}
		load := h.launcher.Instances()[0].Loads()[0]
		want := backend.LoadSpec{Model: r.Ref, Dir: "/models/a", Handler: "handler.py", GPU: backend.NoGPU, BatchSize: 1}
		if diff := cmp.Diff(want, load); diff != "" {
			t.Error(diff)
		}
		if err := h.Unregister(t.Context(), infer.ModelRef{Name: "a"}); err != nil {
			t.Error(err)
		}
		if n := len(h.launcher.Live()); n != 0 {
			t.Errorf("%d instances outlive their model", n)
		}
		if _, err := h.Resolve(r.Ref); !fault.Is(err, fault.ModelNotFound) {
			t.Errorf("after unregister: %v", err)
		}
		h.end(t)
	})
}

func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nameless := named("", "")
		lsp := named("lsp", "")
		lsp.Manifest.Runtime = "LSP"
		unknown := named("unknown", "")
		unknown.Manifest.Runtime = ""
		h := newHouse(t, &backendtest.Launcher{}, archives{
			"a.mar": named("a", "1.0"), "a2.mar": named("a", "2.0"), "nameless.mar": nameless, "lsp.mar": lsp, "unknown.mar": unknown,
		}, nil)
		register(t, h, Spec{URL: "a.mar", InitialWorkers: new(0)})
		register(t, h, Spec{URL: "a2.mar", InitialWorkers: new(0)})
		ctx := t.Context()
		reg := func(s Spec) error { _, err := h.Register(ctx, s); return err }
		for _, tc := range []struct {
			what string
			err  error
			kind fault.Kind
			text string
		}{
			{"no such archive", reg(Spec{URL: "x.mar"}), fault.ModelNotFound, "Model not found at: x.mar"},
			{"same version", reg(Spec{URL: "a.mar"}), fault.Conflict, "Model version 1.0 is already registered for model a"},
			{"no name", reg(Spec{URL: "nameless.mar"}), fault.InvalidModel, "Model name is not defined."},
			{"bad runtime", reg(Spec{URL: "a.mar", Runtime: "cobol"}), fault.BadRequest, "Invalid RuntimeType value: cobol"},
			{"runtime that does not exist", reg(Spec{URL: "unknown.mar"}), fault.InvalidModel, "Runtime is not defined or invalid."},
			{"C++", reg(Spec{URL: "lsp.mar"}), fault.InvalidModel, "Runtime LSP (C++ handlers) is not supported. Use a Python handler."},
			{"default with others", h.Unregister(ctx, infer.ModelRef{Name: "a"}), fault.InvalidVersion, "Cannot remove default version for model a"},
			{"no such model", h.Unregister(ctx, infer.ModelRef{Name: "b"}), fault.ModelNotFound, "Model not found: b"},
			{
				"no such version", h.Unregister(ctx, infer.ModelRef{Name: "a", Version: "9"}), fault.VersionNotFound,
				"Model version: 9 does not exist for model: a",
			},
			{"default to nothing", h.SetDefault(t.Context(), infer.ModelRef{Name: "a", Version: "9"}), fault.VersionNotFound, "Model version 9 does not exist for model a"},
			{"max below min", h.Scale(ctx, infer.ModelRef{Name: "a"}, 1, 0, true), fault.BadRequest, "max_worker cannot be less than min_worker."},
			{"negative", h.Scale(ctx, infer.ModelRef{Name: "a"}, -1, -1, true), fault.BadRequest, "min_worker is -1: it cannot be less than 0."},
		} {
			if !fault.Is(tc.err, tc.kind) || fault.Message(tc.err) != tc.text {
				t.Errorf("%s: %v (%s)", tc.what, tc.err, fault.KindOf(tc.err))
			}
		}
		if got := h.List(); len(got) != 1 || got[0] != (Listed{"a", "a.mar"}) {
			t.Errorf("listed %+v", got)
		}
		if _, err := predict(t, h, "a", "x"); !fault.Is(err, fault.NoWorker) {
			t.Errorf("without workers: %v", err)
		}
		h.end(t)
	})
}

func TestDeadWorkerIsReplacedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, &backendtest.Launcher{}, archives{"a.mar": named("a", "1.0")}, nil)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		if _, err := predict(t, h, "a", "x"); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		h.launcher.Instances()[0].Die(fault.New(fault.BackendDied, "Worker died.", nil))
		got, err := predict(t, h, "a", "next")
		if err != nil || got != "next" || time.Since(begun) != 0 {
			t.Errorf("%q, %v after %v", got, err, time.Since(begun))
		}
		synctest.Wait()
		if d := h.describe(t, "a"); d.Workers[0].Restarts != 1 || d.Workers[0].ID != 9000 || !d.Workers[0].Ready {
			t.Errorf("%+v", d.Workers)
		}
		h.end(t)
	})
}

func TestCrashLoopSlowsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &backendtest.Launcher{}
		h := newHouse(t, l, archives{"a.mar": named("a", "1.0")}, nil)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			for _, i := range l.Live() {
				i.Die(errors.New("again"))
			}
		}
		if n := len(l.Specs()); n > 8 {
			t.Errorf("%d starts in 10 s", n)
		}
		h.end(t)
	})
}

func TestResponseTimeoutKillsTheWorkerAndServesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fakes{predict: func(ctx context.Context, i *backendtest.Instance, items []infer.Item) ([]infer.Result, error) {
			if string(items[0].Parts[0].Data) == "hang" {
				select {
				case <-i.Done():
				case <-ctx.Done():
				}
				return nil, context.Cause(ctx)
			}
			return make([]infer.Result, len(items)), nil
		}}.launcher()
		a := named("a", "1.0")
		a.Settings.ResponseTimeout = new(5 * time.Second)
		h := newHouse(t, l, archives{"a.mar": a}, nil)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		begun := time.Now()
		_, err := predict(t, h, "a", "hang")
		if !fault.Is(err, fault.ResponseTimeout) || fault.Message(err) != "Worker died." || time.Since(begun) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		if _, err := predict(t, h, "a", "fine"); err != nil {
			t.Errorf("the next request: %v", err)
		}
		if alive, n := len(l.Live()), len(l.Specs()); alive != 1 || n != 2 {
			t.Errorf("%d instances alive, %d launched", alive, n)
		}
		h.end(t)
	})
}

// TestResponseTimeoutIsForEachPiece has a stream that takes much longer than the timeout as a whole, and then stalls.
func TestResponseTimeoutIsForEachPiece(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fakes{predict: func(ctx context.Context, _ *backendtest.Instance, items []infer.Item) ([]infer.Result, error) {
			for range 5 {
				time.Sleep(4 * time.Second)
				items[0].Emit(infer.Result{Body: []byte("piece")})
			}
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}}.launcher()
		a := named("a", "1.0")
		a.Settings.ResponseTimeout = new(5 * time.Second)
		h := newHouse(t, l, archives{"a.mar": a}, nil)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		v, err := h.Resolve(infer.ModelRef{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		slot, err := v.Pool().Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		var pieces atomic.Int32
		_, err = slot.Execute(t.Context(), []infer.Item{{Emit: func(infer.Result) { pieces.Add(1) }}})
		slot.Release()
		if !fault.Is(err, fault.ResponseTimeout) || pieces.Load() != 5 || time.Since(begun) != 25*time.Second {
			t.Errorf("%v after %d pieces and %v", err, pieces.Load(), time.Since(begun))
		}
		h.end(t)
	})
}

func TestScaleDownLetsRunningBatchesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fakes{predict: func(_ context.Context, _ *backendtest.Instance, items []infer.Item) ([]infer.Result, error) {
			time.Sleep(2 * time.Second)
			return make([]infer.Result, len(items)), nil
		}}.launcher()
		h := newHouse(t, l, archives{"a.mar": named("a", "1.0")}, nil)
		register(t, h, Spec{URL: "a.mar", InitialWorkers: new(2), Synchronous: true})
		var all sync.WaitGroup
		var failed atomic.Int32
		for range 2 {
			all.Go(func() {
				if _, err := predict(t, h, "a", "x"); err != nil {
					failed.Add(1)
				}
			})
		}
		synctest.Wait()
		begun := time.Now()
		if err := h.Scale(t.Context(), infer.ModelRef{Name: "a"}, 0, 0, true); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took != 2*time.Second || failed.Load() != 0 {
			t.Errorf("took %v, %d batches failed", took, failed.Load())
		}
		all.Wait()
		if _, err := predict(t, h, "a", "x"); !fault.Is(err, fault.NoWorker) {
			t.Errorf("after scaling to zero: %v", err)
		}
		if err := h.Scale(t.Context(), infer.ModelRef{Name: "a"}, 3, 4, true); err != nil {
			t.Error(err)
		}
		if d := h.describe(t, "a"); len(d.Workers) != 3 || d.MinWorkers != 3 || d.MaxWorkers != 4 {
			t.Errorf("%+v", d)
		}
		h.end(t)
	})
}

func TestDrainHasALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fakes{predict: func(_ context.Context, i *backendtest.Instance, _ []infer.Item) ([]infer.Result, error) {
			<-i.Done()
			return nil, fault.New(fault.BackendDied, "Worker died.", nil)
		}}.launcher()
		h := newHouse(t, l, archives{"a.mar": named("a", "1.0")}, nil)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := predict(t, h, "a", "x"); !fault.Is(err, fault.Draining, fault.BackendDied) {
				t.Errorf("a batch that never ends: %v", err)
			}
		})
		synctest.Wait()
		begun := time.Now()
		if err := h.Scale(t.Context(), infer.ModelRef{Name: "a"}, 0, 0, true); err != nil || time.Since(begun) != 30*time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		all.Wait()
		h.end(t)
	})
}

func TestVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, &backendtest.Launcher{}, archives{"a1.mar": named("a", "1.0"), "a2.mar": named("a", "2.0"), "b.mar": named("B", "")}, nil)
		register(t, h, Spec{URL: "a1.mar", AtStartup: true})
		register(t, h, Spec{URL: "a2.mar", InitialWorkers: new(0)})
		register(t, h, Spec{URL: "b.mar", AtStartup: true, InitialWorkers: new(0)})
		if d := h.describe(t, "a"); d.Ref.Version != "1.0" || !d.Default || !d.LoadedAtStartup {
			t.Errorf("the first version is not the default one: %+v", d)
		}
		if d := h.describe(t, "B"); d.Ref.Version != "1.0" {
			t.Errorf("version %q without one in the manifest", d.Ref.Version)
		}
		if diff := cmp.Diff([]Listed{{"B", "b.mar"}, {"a", "a1.mar"}}, h.List()); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"B", "a"}, h.StartupModels()); diff != "" {
			t.Error(diff)
		}
		if err := h.SetDefault(t.Context(), infer.ModelRef{Name: "a", Version: "2.0"}); err != nil {
			t.Error(err)
		}
		if err := h.Unregister(t.Context(), infer.ModelRef{Name: "a", Version: "1.0"}); err != nil {
			t.Error(err)
		}
		all, err := h.DescribeAll("a")
		if err != nil || len(all) != 1 || all[0].Ref.Version != "2.0" || all[0].LoadedAtStartup {
			t.Errorf("%+v, %v", all, err)
		}
		h.end(t)
	})
}

func TestEventsTellTheWholeLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, &backendtest.Launcher{}, archives{"a.mar": named("a", "1.0")}, nil)
		register(t, h, Spec{URL: "a.mar", Synchronous: true})
		h.end(t)
		var states []State
		for _, e := range h.events {
			states = append(states, e.To)
		}
		if diff := cmp.Diff([]State{Loading, Warming, Ready, Draining, Stopping, Stopped}, states); diff != "" {
			t.Error(diff)
		}
	})
}

func TestUnregisterWhileItIsDeploying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := stuck().launcher()
		h := newHouse(t, l, archives{"a.mar": named("a", "1.0")}, nil)
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := h.Register(t.Context(), Spec{URL: "a.mar", Synchronous: true}); err == nil {
				t.Error("the registration of a model that was removed succeeded")
			}
		})
		synctest.Wait()
		if d := h.describe(t, "a"); d.State != "deploying" {
			t.Errorf("state %s", d.State)
		}
		if err := h.Unregister(t.Context(), infer.ModelRef{Name: "a"}); err != nil {
			t.Error(err)
		}
		all.Wait()
		h.end(t)
	})
}
