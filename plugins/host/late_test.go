package host_test

import (
	"context"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/reexec"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// A process that is killed because it has not answered in time leaves a bundle with the request that nobody waits for any more.
func TestLateProcessLeavesABundle(t *testing.T) {
	t.Parallel()
	inst := ready(t, newLauncher(t), reexec.Spec(reexec.Wedge))
	late := fault.Newf(fault.ResponseTimeout, "no answer within the response timeout of 1s")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 500*time.Millisecond, late)
	defer cancel()
	one := item("abc")
	one.ID = "one"
	_, err := inst.Predict(ctx, []infer.Item{one})
	wantFault(t, err, fault.ResponseTimeout)
	killer, can := inst.(backend.Killer)
	if !can {
		t.Fatal("it cannot be killed")
	}
	killer.Kill(late)
	c := backend.CrashOf(inst.Err())
	if c == nil || c.Reason != backend.CrashLate || !c.ByOthers() || len(c.Requests) != 1 || c.Requests[0].ID != "one" || c.Requests[0].Parts[0].Bytes != 3 {
		t.Errorf("%+v", c)
	}
}
