package rollout

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

// TestReadinessTellsWhenTheNextWorkerIs ends a worker twice, and compares what is told with when it is ready again.
func TestReadinessTellsWhenTheNextWorkerIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards last
		var last *backendtest.Instance
		l := &backendtest.Launcher{LaunchFunc: func(_ context.Context, n int, _ backend.ProcessSpec) (*backendtest.Instance, error) {
			time.Sleep(300 * time.Millisecond) // so long a start takes
			mu.Lock()
			defer mu.Unlock()
			last = backendtest.NewInstance(strconv.Itoa(n))
			return last, nil
		}}
		h := newHouse(t, l, archives{"m.mar": named("m", "1.0")}, nil)
		register(t, h, Spec{URL: "m.mar", InitialWorkers: new(1), Synchronous: true})
		v, err := h.Resolve(infer.ModelRef{Name: "m"})
		if err != nil {
			t.Fatal(err)
		}
		if r := v.Readiness(); r != (Readiness{Ready: 1, Total: 1}) {
			t.Errorf("ready: %+v", r)
		}
		for range 2 { // the second time there is a pause before the start
			mu.Lock()
			last.Die(errors.New("killed"))
			mu.Unlock()
			synctest.Wait()
			died, r := time.Now(), v.Readiness()
			for v.Readiness().Ready == 0 {
				time.Sleep(10 * time.Millisecond)
			}
			if took := time.Since(died); r.Ready != 0 || !r.Known || r.Next < took/2 || r.Next > took*3/2 {
				t.Errorf("%+v, and it was ready after %v", r, took)
			}
		}
		h.end(t)
	})
}
