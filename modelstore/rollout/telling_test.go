package rollout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// TestWhatIsToldIsSoWhenItIsTold describes the version whenever something is told about it: whoever hears that an update is over does not see one, and
// whoever hears that one has begun does.
func TestWhatIsToldIsSoWhenItIsTold(t *testing.T) {
	for _, swap := range []string{SwapDual, SwapInPlace} {
		t.Run(swap, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var seen []string
				var h *house
				told := func(c Change) {
					if h == nil || c.Kind == ChangeDrained || c.Kind == ChangeWorkerFailed {
						return
					}
					d, err := h.Describe(infer.ModelRef{Name: "m"})
					if err != nil {
						t.Error(err)
					}
					text := fmt.Sprintf("%s: %s serves, updating %t", c.Kind, d.Digest, d.Updating != nil)
					if d.LastFailure != nil {
						text += ", " + d.LastFailure.Digest + " failed"
					}
					seen = append(seen, text)
				}
				house, _ := deployed(t, digestLauncher(func(_ context.Context, digest string) error {
					if digest == "bad" {
						return fault.New(fault.LoadFailed, "no", nil)
					}
					return nil
				}), func(o *Options) { o.Swap, o.Changed = swap, told })
				h = house
				defer h.end(t)
				if err := deploy(t, h, "bad"); err == nil {
					t.Error("a bad archive serves")
				}
				if err := deploy(t, h, "two"); err != nil {
					t.Error(err)
				}
				want := "updating: one serves, updating true; swap_failed: one serves, updating false, bad failed; " +
					"updating: one serves, updating true, bad failed; swapped: two serves, updating false"
				if got := strings.Join(seen, "; "); got != want {
					t.Errorf("told and seen:\n%s, want\n%s", got, want)
				}
			})
		})
	}
}

// slowly provides dependencies, and does not listen when it is given up.
type slowly struct{ takes time.Duration }

func (s slowly) Provide(context.Context, DependencyRequest) (Provided, error) {
	time.Sleep(s.takes)
	return Provided{}, nil
}

// TestCloseWaitsForAnUpdate closes a Manager, in less time than it takes for an update to see that it is void: nothing of the update is left when Close
// returns, and none begins after it.
func TestCloseWaitsForAnUpdate(t *testing.T) {
	for _, swap := range []string{SwapDual, SwapInPlace} {
		t.Run(swap, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, _ := deployed(t, digestLauncher(nil), func(o *Options) { o.Dependencies, o.Swap = slowly{time.Minute}, swap })
				var ended atomic.Bool
				go func() {
					two := load("two")
					two.Manifest.Model.RequirementsFile = "requirements.txt"
					if _, err := h.Deploy(t.Context(), Spec{Archive: two}); err == nil {
						t.Error("the update succeeded")
					}
					ended.Store(true)
				}()
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := h.Close(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
				synctest.Wait()
				if !ended.Load() {
					t.Error("the update goes on")
				}
				if n := len(h.launcher.Live()); n > 0 {
					t.Errorf("%d instances are left", n)
				}
				if err := deploy(t, h, "three"); !fault.Is(err, fault.Draining) {
					t.Errorf("an update after the end: %v", err)
				}
			})
		})
	}
}

// TestCloseDuringSwaps closes Managers at any moment of a swap.
func TestCloseDuringSwaps(t *testing.T) {
	for _, swap := range []string{SwapDual, SwapInPlace} {
		for after := range 12 {
			t.Run(fmt.Sprint(swap, " ", after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h, _ := deployed(t, digestLauncher(func(ctx context.Context, _ string) error {
						select {
						case <-time.After(5 * time.Second):
						case <-ctx.Done():
						}
						return ctx.Err()
					}), func(o *Options) { o.Swap = swap })
					var ended atomic.Bool
					go func() {
						_ = deploy(t, h, "two")
						ended.Store(true)
					}()
					time.Sleep(time.Duration(after) * time.Second)
					now, cancel := context.WithCancel(t.Context())
					cancel()
					if err := h.Close(now); err != nil && !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
					synctest.Wait()
					if n := len(h.launcher.Live()); n > 0 || !ended.Load() {
						t.Errorf("%d instances are left, the update has ended: %t", n, ended.Load())
					}
				})
			})
		}
	}
}

// TestPinOfAWorkerThatIsToEnd: a sequence that begins just when its worker is replaced is not bound to it, however long that is still busy.
func TestPinOfAWorkerThatIsToEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := deployed(t, digestLauncher(nil), nil)
		defer h.end(t)
		v, err := h.Resolve(infer.ModelRef{Name: "m"})
		if err != nil {
			t.Fatal(err)
		}
		p := v.Pool()
		old := p.Workers()[0]
		busy, err := p.AcquireFrom(t.Context(), old)
		if err != nil {
			t.Fatal(err)
		}
		if err := deploy(t, h, "two"); err != nil {
			t.Fatal(err)
		}
		if p.Pin(old) {
			t.Error("a worker that is to end was pinned")
		}
		if now := p.Workers()[0]; now == old || !p.Pin(now) {
			t.Errorf("worker %d was not pinned", now)
		} else {
			p.Unpin(now)
		}
		busy.Release()
	})
}
