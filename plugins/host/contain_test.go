package host_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/reexec"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/host"
)

// TestPanicOfWhoTakesTheOutput: a worker's output is read on, and the worker works.
func TestPanicOfWhoTakesTheOutput(t *testing.T) {
	t.Parallel()
	var told, panics atomic.Int64
	out := newLines()
	spec := reexec.Spec(reexec.Chatty)
	spec.Output = func(l backend.OutputLine) {
		out.add(l)
		panics.Add(1)
		panic("a bug of the log")
	}
	inst := ready(t, newLauncher(t, func(o *host.Options) {
		o.Panicked = func(err error) {
			if told.Add(1); !strings.Contains(fault.DetailOf(err), "a bug of the log") {
				t.Error(fault.DetailOf(err))
			}
		}
	}), spec)
	for range 3 {
		if _, err := inst.Predict(t.Context(), []infer.Item{item("x")}); err != nil {
			t.Fatal(err)
		}
	}
	if err := inst.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if panics.Load() < 6 || told.Load() != panics.Load() {
		t.Errorf("%d lines, %d panics were told", panics.Load(), told.Load())
	}
}
