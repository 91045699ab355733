package rollout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

// TestInPlace ends the old workers first: a request that comes meanwhile waits, also when the new archive does not load and the old one comes back.
func TestInPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var most atomic.Int64
		loading := make(chan struct{})
		var h *house
		l := digestLauncher(func(ctx context.Context, digest string) error {
			if h != nil {
				most.Store(max(most.Load(), int64(len(h.launcher.Live()))))
			}
			switch digest {
			case "two":
				<-loading
			case "bad":
				<-loading
				return fault.New(fault.LoadFailed, "no", nil)
			}
			return ctx.Err()
		})
		h, _ = deployed(t, l, func(o *Options) { o.Swap = SwapInPlace })
		defer h.end(t)
		for _, step := range []struct {
			digest, want string
			fails        bool
		}{{"two", "two", false}, {"bad", "two", true}} {
			loading = make(chan struct{})
			done := make(chan error, 1)
			go func() { done <- deploy(t, h, step.digest) }()
			synctest.Wait()
			answered := make(chan string, 1)
			go func() {
				body, err := predict(t, h, "m", "x")
				answered <- fmt.Sprint(body, err)
			}()
			synctest.Wait()
			select {
			case got := <-answered:
				t.Errorf("answered %q while there was no worker", got)
			default:
			}
			close(loading)
			if err := <-done; (err != nil) != step.fails {
				t.Fatalf("deploy of %s: %v", step.digest, err)
			}
			if got := <-answered; got != step.want+"<nil>" {
				t.Errorf("answered %q", got)
			}
		}
		if most.Load() > 1 {
			t.Errorf("%d instances lived at the same time", most.Load())
		}
	})
}

// TestInPlaceWhileABatchIsGathered begins a swap in place while somebody has a slot and has not sent the batch yet: the batch is given back for the new
// workers, and the swap does not wait for it.
func TestInPlaceWhileABatchIsGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := deployed(t, digestLauncher(nil), func(o *Options) { o.Swap = SwapInPlace })
		defer h.end(t)
		v, err := h.Resolve(infer.ModelRef{Name: "m"})
		if err != nil {
			t.Fatal(err)
		}
		s, err := v.Pool().Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		done := make(chan error, 1)
		go func() { done <- deploy(t, h, "two") }()
		synctest.Wait() // the swap waits for the slot
		if _, err := s.Execute(t.Context(), items("x")); !errors.Is(err, backend.ErrNotSent) {
			t.Errorf("the old one got it: %v", err)
		}
		s.Release()
		mustAnswer(t, h, "two")
		if err := <-done; err != nil || time.Since(begun) > time.Second {
			t.Errorf("the swap ended with %v after %s", err, time.Since(begun))
		}
	})
}

func TestMemoryGuard(t *testing.T) {
	for name, c := range map[string]struct {
		left    int64
		inPlace bool // it would do
	}{"in place would do": {0, true}, "nothing would do": {-1, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := digestLauncher(nil)
				launch := l.LaunchFunc
				l.LaunchFunc = func(ctx context.Context, n int, spec backend.ProcessSpec) (*backendtest.Instance, error) {
					i, err := launch(ctx, n, spec)
					i.Process = os.Getpid() // one with memory
					return i, err
				}
				left := c.left
				h, told := deployed(t, l, func(o *Options) { o.Available = func() (int64, bool) { return left, true } })
				defer h.end(t)
				err := deploy(t, h, "two")
				if fault.KindOf(err) != fault.MemoryGuard || !strings.Contains(err.Error(), "MiB are left") {
					t.Fatalf("deploy: %v", err)
				}
				mustAnswer(t, h, "one")
				event := told.last(ChangeRefused)
				if event.Digest != "two" || !strings.Contains(event.Reason, "swap_memory_guard=false") {
					t.Errorf("told %+v", event)
				}
				if failure := h.describe(t, "m").LastFailure; failure == nil || failure.Reason != event.Reason {
					t.Errorf("described as %+v", failure)
				}
				if got := strings.Contains(event.Reason, "swap: in_place"); got != c.inPlace {
					t.Errorf("told of in_place %t: %s", got, event.Reason)
				}
				left = 1 << 60
				if err := deploy(t, h, "two"); err != nil {
					t.Fatal(err)
				}
				mustAnswer(t, h, "two")
			})
		})
	}
}
