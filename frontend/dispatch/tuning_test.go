package dispatch

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/frontend/batch/policy"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
)

func TestVersionSaysHowItsBatchesAreMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		size, delay := 8, 40*time.Millisecond
		s := newScene(t, slow(20*time.Millisecond), archive.Archive{Settings: archive.Settings{BatchSize: &size, MaxBatchDelay: &delay, Batching: archive.BatchingTorchServe}}, 1)
		defer s.end(t)
		for i := range 10 {
			begun := time.Now()
			if _, err := s.Submit(t.Context(), infer.ModelRef{Name: "m"}, infer.Item{}); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begun); took != 60*time.Millisecond {
				t.Errorf("request %d took %v, want 60ms by TorchServe's rule", i, took)
			}
		}
		if _, err := s.Tuning(infer.ModelRef{Name: "m"}); !fault.Is(err, fault.BadRequest) {
			t.Errorf("tuning without a goal: %v", err)
		}
		if err := s.Freeze(infer.ModelRef{Name: "m"}, true); !fault.Is(err, fault.BadRequest) {
			t.Errorf("frozen without a goal: %v", err)
		}
	})
}

func TestTuningIsShownAndKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		size := 8
		s := newScene(t, slow(20*time.Millisecond), archive.Archive{Settings: archive.Settings{BatchSize: &size, LatencyGoal: 10 * time.Millisecond}}, 1)
		defer s.end(t)
		steps := make(chan policy.Step, 10)
		s.opts.Tuned = func(ref infer.ModelRef, step policy.Step) {
			if ref != (infer.ModelRef{Name: "m", Version: "1.0"}) {
				t.Errorf("a step of %v", ref)
			}
			steps <- step
		}
		ref := infer.ModelRef{Name: "m"}
		got, err := s.Tuning(ref)
		want := Tuning{Size: 8, MostSize: 8, Delay: 100 * time.Millisecond, MostDelay: 100 * time.Millisecond, Goal: 10 * time.Millisecond}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v, %s", err, diff)
		}
		begun := time.Now()
		for time.Since(begun) < 15*time.Second {
			if _, err := s.Submit(t.Context(), ref, infer.Item{}); err != nil {
				t.Fatal(err)
			}
		}
		if len(steps) == 0 {
			t.Error("nobody was told that a handler of 20 ms cannot answer in 10")
		} else if step := <-steps; step.Reason != policy.OutOfReach {
			t.Errorf("%v", step)
		}
		if err := s.Freeze(ref, true); err != nil {
			t.Error(err)
		}
		v, err := s.models.Resolve(ref)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Refresh(v); err != nil { // as after a swap with the same settings
			t.Error(err)
		}
		if got, err := s.Tuning(ref); err != nil || !got.Frozen {
			t.Errorf("%+v, %v", got, err)
		}
		if _, err := s.Tuning(infer.ModelRef{Name: "x"}); !fault.Is(err, fault.ModelNotFound) {
			t.Errorf("another model: %v", err)
		}
	})
}

func TestTuningOfSequencesIsShownAndKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := stateful()
		set.BatchSize, set.LatencyGoal = new(8), 10*time.Millisecond
		s := newScene(t, slow(20*time.Millisecond), archive.Archive{Settings: set}, 2)
		defer s.end(t)
		ref := infer.ModelRef{Name: "m"}
		if got, err := s.Tuning(ref); err != nil || got.Size != 8 || got.MostSize != 8 || len(got.Workers) != 0 {
			t.Errorf("%+v, %v", got, err)
		}
		if _, err := s.Submit(t.Context(), ref, member("a")); err != nil {
			t.Error(err)
		}
		if err := s.Freeze(ref, true); err != nil {
			t.Error(err)
		}
		if got, err := s.Tuning(ref); err != nil || !got.Frozen || len(got.Workers) != 1 || got.Workers[0].Size != 8 {
			t.Errorf("%+v, %v", got, err)
		}
	})
}
