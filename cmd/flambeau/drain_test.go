package main

import (
	"context"
	"log/slog"
	"testing"

	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// TestDrainForGood has a server that was asked to end never be ready again, and end the waits of those that drain it.
func TestDrainForGood(t *testing.T) {
	t.Parallel()
	d := newDrain()
	d.Begin()
	select {
	case <-d.Ending():
		t.Error("it was only drained")
	default:
	}
	if err := d.End(); err != nil || d.on() {
		t.Errorf("%v", err)
	}
	s := &server{cfg: &config.Config{}, drain: d}
	for range 2 {
		s.accept(context.Background(), slog.New(slog.DiscardHandler))
	}
	<-d.Ending()
	since, _ := d.State()
	d.Begin()
	if again, _ := d.State(); !again.Equal(since) {
		t.Errorf("it drains since %s, not %s", since, again)
	}
	if err := d.End(); !fault.Is(err, fault.Conflict) || !d.on() {
		t.Errorf("%v, draining: %t", err, d.on())
	}
}

func TestMemberOf(t *testing.T) {
	t.Parallel()
	for what, tc := range map[string]struct {
		d             rollout.Description
		ready, failed bool
	}{
		"sleeps":       {rollout.Description{State: "idle", Dormant: true}, true, false},
		"no workers":   {rollout.Description{State: "idle"}, false, true},
		"failed":       {rollout.Description{State: "failed", Reason: "r"}, false, true},
		"loads":        {rollout.Description{State: "loading", Workers: []rollout.Worker{{}}}, false, false},
		"one is ready": {rollout.Description{State: "ready", Workers: []rollout.Worker{{}, {Ready: true}}}, true, false},
	} {
		if m := memberOf(&tc.d); m.Ready != tc.ready || m.Failed != tc.failed || m.Reason != tc.d.Reason {
			t.Errorf("%s: %+v", what, m)
		}
	}
}
