package telemetry

import (
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/internal/infer"
)

func TestWorkersThatComeAndGo(t *testing.T) {
	m, _, _ := newMetrics(t, Options{Mode: ModePrometheus})
	ref := infer.ModelRef{Name: "m", Version: "1"}
	m.Autoscaled(ref, true)
	m.Autoscaled(ref, true)
	m.Autoscaled(ref, false)
	m.WorkerRecycled(ref, true)
	m.WorkerRecycled(ref, false)
	got := text(t, m, AutoscaleSteps, WorkersRecycled)
	for _, want := range []string{
		AutoscaleSteps + `{model="m",version="1",direction="up",} 2.0`, AutoscaleSteps + `{model="m",version="1",direction="down",} 1.0`,
		WorkersRecycled + `{model="m",version="1",outcome="replaced",} 1.0`, WorkersRecycled + `{model="m",version="1",outcome="failed",} 1.0`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	m.Forget(ref)
	if got := text(t, m, AutoscaleSteps, WorkersRecycled); strings.Contains(got, "version=") {
		t.Errorf("not forgotten:\n%s", got)
	}
}

func TestPanicsAreCounted(t *testing.T) {
	m, _, _ := newMetrics(t, Options{Mode: ModePrometheus})
	if got := text(t, m, Panics); got != "" {
		t.Errorf("it is shown although there was none:\n%s", got)
	}
	m.Panicked(PartQueue)
	m.Panicked(PartQueue)
	m.Panicked(PartWorker)
	got := text(t, m, Panics)
	for _, want := range []string{Panics + `{part="queue",} 2.0`, Panics + `{part="worker",} 1.0`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
}
