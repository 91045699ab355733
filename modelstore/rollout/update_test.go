package rollout

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

// load is an archive whose workers answer with its digest.
func load(digest string) *archive.Archive {
	a := named("m", "1.0")
	a.Digest, a.Dir = digest, "/models/"+digest
	return a
}

// digestLauncher makes instances that answer with the name of the folder that they were loaded from. script may be nil, and may make a load fail or wait.
func digestLauncher(script func(ctx context.Context, digest string) error) *backendtest.Launcher {
	return &backendtest.Launcher{LaunchFunc: func(_ context.Context, n int, spec backend.ProcessSpec) (*backendtest.Instance, error) {
		digest := spec.Dir[strings.LastIndexByte(spec.Dir, '/')+1:]
		i := backendtest.NewInstance(fmt.Sprint(digest, " ", n))
		i.LoadFunc = func(ctx context.Context, _ backend.LoadSpec) (backend.Info, error) {
			if script == nil {
				return backend.Info{}, nil
			}
			return backend.Info{}, script(ctx, digest)
		}
		i.PredictFunc = func(_ context.Context, items []infer.Item) ([]infer.Result, error) {
			results := make([]infer.Result, len(items))
			for k := range results {
				results[k].Body = []byte(digest)
			}
			return results, nil
		}
		return i, nil
	}}
}

// changes keeps what a Manager tells about its versions.
type changes struct {
	mu  sync.Mutex
	all []Change
}

func (c *changes) add(change Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, change)
}

func (c *changes) kinds() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var words []string
	for _, change := range c.all {
		words = append(words, string(change.Kind))
	}
	return strings.Join(words, " ")
}

func (c *changes) last(kind ChangeKind) Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found Change
	for _, change := range c.all {
		if change.Kind == kind {
			found = change
		}
	}
	return found
}

// deployed is a Manager with m registered from the digest one.
func deployed(t *testing.T, l *backendtest.Launcher, change func(*Options)) (*house, *changes) {
	t.Helper()
	told := &changes{}
	h := newHouse(t, l, archives{}, func(o *Options) {
		o.Changed = told.add
		if change != nil {
			change(o)
		}
	})
	if err := deploy(t, h, "one"); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return h, told
}

func deploy(t *testing.T, h *house, digest string) error {
	t.Helper()
	_, err := h.Deploy(WithActor(t.Context(), Actor{Who: "test"}), Spec{Archive: load(digest), URL: "m.mar"})
	return err
}

func mustAnswer(t *testing.T, h *house, want string) {
	t.Helper()
	if got, err := predict(t, h, "m", "x"); err != nil || got != want {
		t.Errorf("answered %q, %v; want %q", got, err, want)
	}
}

func TestDeploySwaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, told := deployed(t, digestLauncher(nil), nil)
		defer h.end(t)
		mustAnswer(t, h, "one")
		if err := deploy(t, h, "two"); err != nil {
			t.Fatal(err)
		}
		mustAnswer(t, h, "two")
		synctest.Wait()
		if n := len(h.launcher.Live()); n != 1 {
			t.Errorf("%d instances live after the swap", n)
		}
		if got, want := told.kinds(), "registered updating swapped drained"; got != want {
			t.Errorf("told %q, want %q", got, want)
		}
		d := h.describe(t, "m")
		if d.Generation != 2 || d.Digest != "two" || d.Updating != nil || d.LastFailure != nil || d.State != "serving" {
			t.Errorf("described as %+v", d)
		}
	})
}

// TestFailedUpdateLeavesTheOldOne: a handler that does not load, and one that hangs.
func TestFailedUpdateLeavesTheOldOne(t *testing.T) {
	for name, script := range map[string]func(ctx context.Context, digest string) error{
		"raises": func(_ context.Context, digest string) error {
			if digest == "bad" {
				return fault.New(fault.LoadFailed, "weights.bin is missing", nil)
			}
			return nil
		},
		"hangs": func(ctx context.Context, digest string) error {
			if digest == "bad" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, told := deployed(t, digestLauncher(script), nil)
				defer h.end(t)
				for attempt := 1; attempt <= 2; attempt++ {
					if err := deploy(t, h, "bad"); fault.KindOf(err) != fault.LoadFailed {
						t.Fatalf("deploy: %v", err)
					}
					d := h.describe(t, "m")
					if d.Generation != 1 || d.Digest != "one" || d.LastFailure == nil || d.LastFailure.Attempts != attempt || d.LastFailure.Digest != "bad" {
						t.Errorf("described as %+v, failure %+v", d, d.LastFailure)
					}
					mustAnswer(t, h, "one")
				}
				if n := len(h.launcher.Live()); n != 1 {
					t.Errorf("%d instances live", n)
				}
				if c := told.last(ChangeWorkerFailed); !strings.HasPrefix(c.Reason, "worker 90") || c.Digest != "bad" {
					t.Errorf("told of the worker %+v", c)
				}
				if c := told.last(ChangeSwapFailed); c.Reason == "" || c.Generation != 3 || c.Digest != "bad" || c.Actor.Who != "test" {
					t.Errorf("told %+v", c)
				}
				if err := deploy(t, h, "good"); err != nil {
					t.Fatal(err)
				}
				mustAnswer(t, h, "good")
				if d := h.describe(t, "m"); d.LastFailure != nil {
					t.Errorf("the failure is still told: %+v", d.LastFailure)
				}
			})
		})
	}
}

// TestNewerDeployVoidsAnOlderOne begins three updates, of which the first two would never be ready.
func TestNewerDeployVoidsAnOlderOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, told := deployed(t, digestLauncher(func(ctx context.Context, digest string) error {
			if strings.HasPrefix(digest, "slow") {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}), nil)
		defer h.end(t)
		ended := make(chan error, 2)
		go func() { ended <- deploy(t, h, "slow1") }()
		synctest.Wait()
		if d := h.describe(t, "m"); d.Updating == nil || d.Updating.Digest != "slow1" || d.State != "updating" || d.Updating.State != "loading" {
			t.Errorf("described as %+v, updating %+v", d, d.Updating)
		}
		go func() { ended <- deploy(t, h, "slow2") }()
		synctest.Wait()
		if err := deploy(t, h, "three"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := <-ended; !errors.Is(err, ErrSuperseded) {
				t.Errorf("the older one ended with %v", err)
			}
		}
		mustAnswer(t, h, "three")
		synctest.Wait()
		if n := len(h.launcher.Live()); n != 1 {
			t.Errorf("%d instances live", n)
		}
		if got := strings.Count(told.kinds(), "superseded"); got != 2 {
			t.Errorf("told %q", told.kinds())
		}
	})
}

// TestBatchThatHasNotLeftGoesToTheNewOne: a slot that was had before the swap runs its batch on the new generation, one that runs ends on the old one.
func TestBatchThatHasNotLeftGoesToTheNewOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := deployed(t, digestLauncher(nil), nil)
		defer h.end(t)
		v, err := h.Resolve(infer.ModelRef{Name: "m"})
		if err != nil {
			t.Fatal(err)
		}
		s, err := v.Pool().Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := deploy(t, h, "two"); err != nil {
			t.Fatal(err)
		}
		if results, err := s.Execute(t.Context(), items("x")); err != nil || string(results[0].Body) != "two" {
			t.Errorf("answered %v, %v", results, err)
		}
		s.Release()
	})
}

// TestRunningBatchEndsOnTheOldOne swaps while a batch runs: it is answered by the old generation, which ends after it.
func TestRunningBatchEndsOnTheOldOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		go1 := make(chan struct{})
		l := digestLauncher(nil)
		launch := l.LaunchFunc
		l.LaunchFunc = func(ctx context.Context, n int, spec backend.ProcessSpec) (*backendtest.Instance, error) {
			i, err := launch(ctx, n, spec)
			if n == 0 || strings.HasSuffix(spec.Dir, "/one") {
				answer := i.PredictFunc
				i.PredictFunc = func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
					<-go1
					return answer(ctx, items)
				}
			}
			return i, err
		}
		h, told := deployed(t, l, nil)
		defer h.end(t)
		answered := make(chan string, 1)
		go func() {
			body, err := predict(t, h, "m", "x")
			answered <- fmt.Sprint(body, err)
		}()
		synctest.Wait()
		if err := deploy(t, h, "two"); err != nil {
			t.Fatal(err)
		}
		mustAnswer(t, h, "two")
		if n := len(h.launcher.Live()); n != 2 {
			t.Errorf("%d instances live while the old one works", n)
		}
		close(go1)
		if got := <-answered; got != "one<nil>" {
			t.Errorf("the running batch was answered with %q", got)
		}
		synctest.Wait()
		if n := len(h.launcher.Live()); n != 1 || !strings.HasSuffix(told.kinds(), "drained") {
			t.Errorf("%d instances live, told %q", n, told.kinds())
		}
	})
}

// TestSmallerBatches hands a batch of three to a generation that takes two.
func TestSmallerBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var largest atomic.Int64
		l := digestLauncher(nil)
		launch := l.LaunchFunc
		l.LaunchFunc = func(ctx context.Context, n int, spec backend.ProcessSpec) (*backendtest.Instance, error) {
			i, err := launch(ctx, n, spec)
			answer := i.PredictFunc
			i.PredictFunc = func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
				largest.Store(max(largest.Load(), int64(len(items))))
				return answer(ctx, items)
			}
			return i, err
		}
		h, _ := deployed(t, l, nil)
		defer h.end(t)
		small := load("two")
		small.Settings.BatchSize = new(2)
		if _, err := h.Deploy(t.Context(), Spec{Archive: small}); err != nil {
			t.Fatal(err)
		}
		v, err := h.Resolve(infer.ModelRef{Name: "m"})
		if err != nil {
			t.Fatal(err)
		}
		s, err := v.Pool().Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Release()
		results, err := s.Execute(t.Context(), append(items("x"), append(items("y"), items("z")...)...))
		if err != nil || len(results) != 3 || largest.Load() != 2 || v.BatchSize() != 2 {
			t.Errorf("%d results, %v, the largest batch was %d of %d", len(results), err, largest.Load(), v.BatchSize())
		}
	})
}

// TestUnregisterEndsAnUpdate removes a version whose update would never be ready.
func TestUnregisterEndsAnUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := deployed(t, digestLauncher(func(ctx context.Context, digest string) error {
			if digest == "slow" {
				<-ctx.Done()
			}
			return ctx.Err()
		}), nil)
		defer h.end(t)
		done := make(chan error, 1)
		go func() { done <- deploy(t, h, "slow") }()
		synctest.Wait()
		if err := h.Unregister(t.Context(), infer.ModelRef{Name: "m"}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err == nil {
			t.Error("the update of a removed version succeeded")
		}
		if n := len(h.launcher.Live()); n != 0 {
			t.Errorf("%d instances live", n)
		}
	})
}

// TestScaleHoldsOverASwap keeps numbers of workers that were set by hand, also when they are set while an update runs.
func TestScaleHoldsOverASwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		h, _ := deployed(t, digestLauncher(func(_ context.Context, digest string) error {
			if digest == "three" {
				<-hold
			}
			return nil
		}), nil)
		defer h.end(t)
		if err := h.Scale(t.Context(), infer.ModelRef{Name: "m"}, 2, 2, true); err != nil {
			t.Fatal(err)
		}
		if err := deploy(t, h, "two"); err != nil {
			t.Fatal(err)
		}
		if d := h.describe(t, "m"); len(d.Workers) != 2 || d.MinWorkers != 2 {
			t.Errorf("described as %+v", d)
		}
		done := make(chan error, 1)
		go func() { done <- deploy(t, h, "three") }()
		synctest.Wait()
		if err := h.Scale(t.Context(), infer.ModelRef{Name: "m"}, 3, 3, true); err != nil {
			t.Fatal(err)
		}
		close(hold)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if d := h.describe(t, "m"); len(d.Workers) != 3 || d.Generation != 3 {
			t.Errorf("described as %+v", d)
		}
	})
}

// TestWaitingForAReplacedGeneration: a registration and a change of scale that wait for workers which are replaced meanwhile wait for those that replace
// them.
func TestWaitingForAReplacedGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, digestLauncher(func(ctx context.Context, digest string) error {
			if digest == "slow" {
				<-ctx.Done()
			}
			return ctx.Err()
		}), archives{}, nil)
		defer h.end(t)
		registered, scaled := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := h.Register(t.Context(), Spec{Archive: load("slow"), Synchronous: true})
			registered <- err
		}()
		synctest.Wait()
		go func() { scaled <- h.Scale(t.Context(), infer.ModelRef{Name: "m"}, 2, 2, true) }()
		synctest.Wait()
		if err := deploy(t, h, "two"); err != nil {
			t.Fatal(err)
		}
		if err := <-registered; err != nil {
			t.Errorf("the registration ended with %v", err)
		}
		if err := <-scaled; err != nil {
			t.Errorf("scaling ended with %v", err)
		}
		mustAnswer(t, h, "two")
		if d := h.describe(t, "m"); len(d.Workers) != 2 {
			t.Errorf("described as %+v", d)
		}
	})
}

// TestRequestsOverManySwaps has clients without pause over a hundred swaps: every request is answered, and by no older generation than the one that
// served when it was sent.
func TestRequestsOverManySwaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := deployed(t, digestLauncher(nil), nil)
		defer h.end(t)
		if err := deploy(t, h, "1"); err != nil {
			t.Fatal(err)
		}
		var serving atomic.Int64
		serving.Store(1)
		var clients sync.WaitGroup
		stop := make(chan struct{})
		for range 4 {
			clients.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					least := serving.Load()
					body, err := predict(t, h, "m", "x")
					var n int64
					if _, scan := fmt.Sscan(body, &n); err != nil || scan != nil || n < least {
						t.Errorf("answered %q, %v while %d served", body, err, least)
						return
					}
				}
			})
		}
		for n := int64(2); n <= 100; n++ {
			if err := deploy(t, h, strconv.FormatInt(n, 10)); err != nil {
				t.Fatal(err)
			}
			serving.Store(n)
		}
		close(stop)
		clients.Wait()
	})
}

// TestSequenceKeepsItsWorkerOverASwap pins a worker: it stays for AcquireFrom, and ends when it is not needed any more.
func TestSequenceKeepsItsWorkerOverASwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, told := deployed(t, digestLauncher(nil), nil)
		defer h.end(t)
		v, err := h.Resolve(infer.ModelRef{Name: "m"})
		if err != nil {
			t.Fatal(err)
		}
		p := v.Pool()
		old := p.Workers()[0]
		p.Pin(old)
		if err := deploy(t, h, "two"); err != nil {
			t.Fatal(err)
		}
		mustAnswer(t, h, "two")
		if ids := p.Workers(); len(ids) != 1 || ids[0] == old {
			t.Errorf("workers for new sequences: %v, the old one is %d", ids, old)
		}
		s, err := p.AcquireFrom(t.Context(), old)
		if err != nil {
			t.Fatal(err)
		}
		if results, err := s.Execute(t.Context(), items("x")); err != nil || string(results[0].Body) != "one" {
			t.Errorf("the sequence was answered with %v, %v", results, err)
		}
		s.Release()
		synctest.Wait()
		if n := len(h.launcher.Live()); n != 2 || strings.Contains(told.kinds(), "drained") {
			t.Errorf("%d instances live, told %q", n, told.kinds())
		}
		p.Unpin(old)
		synctest.Wait()
		if n := len(h.launcher.Live()); n != 1 || !strings.Contains(told.kinds(), "drained") {
			t.Errorf("%d instances live after it, told %q", n, told.kinds())
		}
		if _, err := p.AcquireFrom(t.Context(), old); fault.KindOf(err) != fault.NoWorker {
			t.Errorf("the old worker can still be had: %v", err)
		}
	})
}
