package telemetry

import (
	"strings"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

func TestChangesAreForgotten(t *testing.T) {
	m, _, _ := newMetrics(t, Options{Mode: ModePrometheus})
	v1, v2 := infer.ModelRef{Name: "m", Version: "1"}, infer.ModelRef{Name: "m", Version: "2"}
	for _, ref := range []infer.ModelRef{v1, v2} {
		m.ModelChanged(ModelChange{Ref: ref, At: time.Unix(7, 0), Swap: SwapDone, Took: time.Second, Generation: 2})
	}
	m.Forget(v1)
	got := text(t, m, ModelSwaps, ModelSwapDuration, ModelGeneration, ModelLastChange)
	if strings.Contains(got, `version="1"`) || !strings.Contains(got, ModelSwaps+`{model="m",version="2",outcome="swapped",} 1.0`) ||
		!strings.Contains(got, ModelLastChange+`{model="m",version="2",} 7.0`) || !strings.Contains(got, ModelGeneration+`{model="m",version="2",} 2.0`) {
		t.Error(got)
	}
	if got := text(t, m, StoreEntries); got != "" {
		t.Errorf("a store that nobody watches: %s", got)
	}
}

// TestRequestsCountForTheVersionTheyWentTo in our metrics, and for the one they asked for in TorchServe's.
func TestRequestsCountForTheVersionTheyWentTo(t *testing.T) {
	m, _, _ := newMetrics(t, Options{Mode: ModePrometheus})
	m.Predicted(Prediction{Ref: infer.ModelRef{Name: "m"}, Taken: infer.ModelRef{Name: "m", Version: "2"}, Total: time.Second})
	if got := text(t, m, InferenceRequests); !strings.Contains(got, `{model_name="m",model_version="default",hostname="vm",} 1.0`) {
		t.Error(got)
	}
	if got := text(t, m, RequestDuration); !strings.Contains(got, `_count{model="m",version="2",} 1.0`) || strings.Contains(got, "default") {
		t.Error(got)
	}
}

// TestRefusalsAreCountedByReason, with the model where it is known.
func TestRefusalsAreCountedByReason(t *testing.T) {
	m, _, _ := newMetrics(t, Options{Mode: ModePrometheus})
	v1 := infer.ModelRef{Name: "m", Version: "1"}
	for _, kind := range []fault.Kind{fault.Overloaded, fault.Overloaded, fault.QueueTimeout, fault.ClientShare} {
		m.Predicted(Prediction{Ref: infer.ModelRef{Name: "m"}, Taken: v1, Err: fault.New(kind, "m", nil)})
	}
	m.CountUnread(fault.ServerBytes.String())
	got := text(t, m, Failures)
	for _, want := range []string{
		`{model="m",version="1",reason="queue_full",} 2.0`, `{model="m",version="1",reason="queue_timeout",} 1.0`, `{model="m",version="1",reason="client_share",} 1.0`,
		`{model="",version="",reason="server_bytes",} 1.0`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not in\n%s", want, got)
		}
	}
}
