package ensemble

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/pipeline"
)

// TestPanics has a bug cost one request: in what runs a step, beside others, and in what puts the answer together.
func TestPanics(t *testing.T) {
	t.Parallel()
	f := diamondModels()
	good := f.runs["two"]
	inst, _ := load(t, launcher(t, f), "e", diamond())
	f.mu.Lock()
	f.runs["two"] = func(context.Context, Call) (*oip.Response, error) { panic("two has a bug") }
	f.mu.Unlock()
	bad := func(r infer.Result, detail string) {
		t.Helper()
		inner, ok := errors.AsType[*fault.Error](r.Err)
		if !ok || inner.Kind != fault.Internal || !strings.Contains(inner.Detail, detail) || !strings.Contains(inner.Detail, "goroutine ") {
			t.Errorf("%v", r.Err)
		}
		if strings.Contains(fault.Message(r.Err), "bug") {
			t.Errorf("the client reads %s", fault.Message(r.Err))
		}
	}
	bad(ask(t, inst, item(input5)), "two has a bug")
	f.mu.Lock()
	f.runs["two"] = good
	f.mu.Unlock()
	if r := ask(t, inst, item(input5)); r.Err != nil {
		t.Error(r.Err)
	}
	broken := &instance{launcher: launcher(t, f), life: t.Context(), plan: &plan{Definition: &pipeline.Definition{Whole: true}}} // without inputs, which no ensemble is
	bad(ask(t, broken, item(input5)), "index out of range")
}

// TestLoadOfSleepers takes models that start with the first request, and have not said yet what they take.
func TestLoadOfSleepers(t *testing.T) {
	t.Parallel()
	f := newFakes()
	f.set("one", "x", "y", adds("y", 1))
	f.put("one", Member{Ready: true}) // nothing is known of it
	d := &pipeline.Definition{
		Inputs: []pipeline.Port{{Name: "A", DataType: "FP32", Shape: []int64{-1}}}, Outputs: []pipeline.Port{{Name: "Z", DataType: "FP32", Shape: []int64{-1}}},
		Steps: []pipeline.Step{step("one", "x=A", "y=Z")},
	}
	inst, _ := load(t, launcher(t, f), "e", d)
	if r := ask(t, inst, item(input5)); r.Err != nil || !strings.Contains(string(r.Body), "6") {
		t.Errorf("%v %s", r.Err, r.Body)
	}
}
