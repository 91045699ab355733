package rollout

import (
	"math"
	"testing"
	"testing/synctest"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

func TestTooManyWorkers(t *testing.T) {
	for n, refused := range map[int]bool{0: false, 1: false, mostWorkers: false, mostWorkers + 1: true, math.MaxInt32: true} {
		if err := startable(n); fault.Is(err, fault.BadRequest) != refused || (err == nil) == refused {
			t.Errorf("%d workers: %v", n, err)
		}
	}
}

func TestTooManyWorkersAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, &backendtest.Launcher{}, archives{"m": named("m", "1.0")}, nil)
		defer h.end(t)
		many := mostWorkers + 1
		if _, err := h.Register(t.Context(), Spec{URL: "m", InitialWorkers: &many}); !fault.Is(err, fault.BadRequest) {
			t.Errorf("registered with %d workers: %v", many, err)
		}
		one := 1
		if _, err := h.Register(t.Context(), Spec{URL: "m", InitialWorkers: &one, Synchronous: true}); err != nil {
			t.Fatal(err)
		}
		if err := h.Scale(t.Context(), infer.ModelRef{Name: "m"}, math.MaxInt32, math.MaxInt32, false); !fault.Is(err, fault.BadRequest) {
			t.Errorf("scaled: %v", err)
		}
	})
}
