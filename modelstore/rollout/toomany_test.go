package rollout

import (
	"math"
	"testing"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

func TestTooManyWorkers(t *testing.T) {
	for n, refused := range map[int]bool{0: false, 1: false, mostWorkers: false, mostWorkers + 1: true, math.MaxInt32: true} {
		if err := startable(n); fault.Is(err, fault.BadRequest) != refused || (err == nil) == refused {
			t.Errorf("%d workers: %v", n, err)
		}
	}
}
