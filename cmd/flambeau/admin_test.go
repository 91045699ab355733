package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/frontend/dispatch"
	"github.com/flambeau-serve/flambeau/frontend/httpapi"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/telemetry"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/deploy"
	"github.com/flambeau-serve/flambeau/modelstore/ledger"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

func openTestLedger(t *testing.T, dir string) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(ledger.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestJournal(t *testing.T) {
	t.Parallel()
	l := openTestLedger(t, t.TempDir())
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	change := rollout.Change{
		At: at, Ref: infer.ModelRef{Name: "m", Version: "1"}, Kind: rollout.ChangeSwapped, Generation: 2, Digest: "d", Source: "m.mar",
		Actor: rollout.Actor{Who: "store", Why: "it changed"}, Reason: "r", Took: 1500 * time.Millisecond, Steps: []rollout.Step{{Name: "load", Took: time.Second}},
	}
	l.Add(recordOf(change))
	change.Kind = rollout.ChangeDrained
	l.Add(recordOf(change))
	j := journal{l}
	all := j.Events(httpapi.EventFilter{Limit: 10})
	if len(all) != 2 {
		t.Fatalf("%+v", all)
	}
	want := httpapi.Event{
		ID: all[0].ID, At: at, Model: "m", Version: "1", Kind: "swapped", Generation: 2, Digest: "d", Source: "m.mar", Who: "store", Why: "it changed", Reason: "r",
		TookMS: 1500, Steps: []httpapi.Step{{Name: "load", TookMS: 1000}},
	}
	if diff := cmp.Diff(want, all[0]); diff != "" {
		t.Error(diff)
	}
	if got := j.Events(httpapi.EventFilter{Kind: "drained", After: all[0].ID, Limit: 1}); len(got) != 1 || got[0].Kind != "drained" {
		t.Errorf("%+v", got)
	}
	if got := j.History("m", 10); len(got) != 1 || got[0].Kind != "swapped" {
		t.Errorf("%+v", got)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestEntryOf(t *testing.T) {
	t.Parallel()
	next := time.Unix(7, 0)
	got := entryOf(&deploy.EntryStatus{
		Path: "m.mar", Kind: "mar", State: "settled", StateReason: "a", StateSince: time.Unix(1, 0), Bytes: 5, Model: "m", Version: "1", Digest: "d", Serving: "s",
		Decision: deploy.DecisionFailed, Reason: "b", Since: time.Unix(2, 0), Attempts: 3, NextTry: next, Findings: "f",
	})
	want := httpapi.StoreEntry{
		Path: "m.mar", Kind: "mar", State: "settled", Reason: "a", Since: time.Unix(1, 0), Bytes: 5, Model: "m", Version: "1", Digest: "d", Serving: "s",
		Decision: "failed", Why: "b", Decided: time.Unix(2, 0), Attempts: 3, NextTry: &next, Findings: "f",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// oneArchive opens an archive of a version that is named by the URL.
type oneArchive struct{}

func (oneArchive) Open(_ context.Context, url string) (*archive.Archive, error) {
	a := &archive.Archive{URL: url}
	a.Manifest.Runtime, a.Manifest.Model.ModelName, a.Manifest.Model.ModelVersion = "python", "m", url
	return a, nil
}

// keptModels are models whose traffic is kept in a ledger.
func keptModels(t *testing.T, l *ledger.Ledger) (*rollout.Manager, *trafficKeeper) {
	t.Helper()
	var keeper *trafficKeeper
	m, err := rollout.New(rollout.Options{
		Launcher: &backendtest.Launcher{}, Archives: oneArchive{}, Limits: backend.Limits{Start: time.Second, Stop: time.Second},
		Process:         func(rollout.ProcessRequest) (backend.ProcessSpec, error) { return backend.ProcessSpec{}, nil },
		ResponseTimeout: time.Minute, StartupTimeout: time.Minute, QueueSize: 3, Drain: time.Second, DefaultWorkers: 1, Logger: slog.New(slog.DiscardHandler),
		Changed: func(c rollout.Change) { keeper.changed(c) }, WarmUp: rollout.WarmUpOff,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := restoreTraffic(m, l.State().Traffic); err != nil {
		t.Fatal(err)
	}
	keeper = newTrafficKeeper(m, l, slog.New(slog.DiscardHandler), nil)
	for _, version := range []string{"1.0", "2.0"} {
		if _, err := m.Register(t.Context(), rollout.Spec{URL: version, Synchronous: true}); err != nil {
			t.Fatal(err)
		}
	}
	return m, keeper
}

// TestTrafficIsKept over the end of a server, and forgotten with the version that it leads to.
func TestTrafficIsKept(t *testing.T) {
	dir := t.TempDir()
	set := rollout.Traffic{Labels: map[string]string{"canary": "2.0"}, Weights: map[string]float64{"canary": 10}, Sticky: "cookie:uid"}
	kept := func(l *ledger.Ledger) string {
		text := l.State().Traffic["m"]
		if text == nil {
			return ""
		}
		var b bytes.Buffer
		if err := json.Compact(&b, text); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	end := func(m *rollout.Manager, k *trafficKeeper, l *ledger.Ledger) {
		t.Helper()
		k.stop()
		if err := errors.Join(m.Close(t.Context()), l.Close()); err != nil {
			t.Error(err)
		}
	}
	l := openTestLedger(t, dir)
	m, k := keptModels(t, l)
	if err := (keptTraffic{m, k}).SetTraffic(t.Context(), "m", set); err != nil {
		t.Fatal(err)
	}
	want := `{"labels":{"canary":"2.0"},"weights":{"canary":10},"sticky":"cookie:uid","spread":[{"of":"canary","from":0,"to":10}]}`
	if got := kept(l); got != want {
		t.Errorf("kept when the answer is given: %s, want %s", got, want)
	}
	if err := (keptTraffic{m, k}).SetTraffic(t.Context(), "m", rollout.Traffic{Sticky: "x"}); err == nil || kept(l) != want {
		t.Errorf("a refused change: %v %s", err, kept(l))
	}
	end(m, k, l)

	l = openTestLedger(t, dir)
	m, k = keptModels(t, l)
	got, err := m.Traffic("m")
	got.Spread = nil
	if diff := cmp.Diff(set, got); err != nil || diff != "" {
		t.Errorf("restored: %v %s", err, diff)
	}
	if err := m.Unregister(t.Context(), infer.ModelRef{Name: "m", Version: "2.0"}); err != nil {
		t.Fatal(err)
	}
	end(m, k, l)

	l = openTestLedger(t, dir)
	if got := kept(l); got != `{"labels":{},"weights":{},"sticky":"cookie:uid"}` {
		t.Errorf("after the version has gone: %s", got)
	}
	m, k = keptModels(t, l)
	for _, version := range []string{"2.0", "1.0"} {
		if err := m.Unregister(t.Context(), infer.ModelRef{Name: "m", Version: version}); err != nil {
			t.Fatal(err)
		}
	}
	end(m, k, l)
	l = openTestLedger(t, dir)
	if got := kept(l); got != "" {
		t.Errorf("after the model has gone: %s", got)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// badDisk takes no state.
type badDisk struct{}

func (badDisk) Change(func(*ledger.State)) error { return errors.New("the disk is full") }

func TestTrafficThatCannotBeKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openTestLedger(t, "")
		m, k := keptModels(t, l)
		k.stop()
		var log bytes.Buffer
		broken := &trafficKeeper{
			models: m, records: badDisk{}, log: slog.New(slog.NewTextHandler(&log, nil)), wake: make(chan struct{}, 1), quit: make(chan struct{}),
			done: make(chan struct{}), dirty: map[string]bool{},
		}
		go broken.run()
		broken.changed(rollout.Change{Kind: rollout.ChangeTraffic, Ref: infer.ModelRef{Name: "m"}})
		broken.changed(rollout.Change{Kind: rollout.ChangeSwapped, Ref: infer.ModelRef{Name: "n"}})
		broken.stop()
		if got := log.String(); !strings.Contains(got, "the disk is full") || !strings.Contains(got, "models=[m]") {
			t.Error(got)
		}
		if err := restoreTraffic(m, map[string]json.RawMessage{"x": json.RawMessage(`[`)}); err == nil || !strings.Contains(err.Error(), "kept for x") {
			t.Error(err)
		}
		if err := errors.Join(m.Close(t.Context()), l.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestMeasuredChanges: which changes count, and as what.
func TestMeasuredChanges(t *testing.T) {
	t.Parallel()
	metrics, err := telemetry.New(telemetry.Options{Mode: telemetry.ModePrometheus, Hostname: "h"})
	if err != nil {
		t.Fatal(err)
	}
	m := &measures{metrics: metrics}
	ref := infer.ModelRef{Name: "m", Version: "1"}
	for i, kind := range []rollout.ChangeKind{
		rollout.ChangeRegistered, rollout.ChangeUpdating, rollout.ChangeSwapped, rollout.ChangeSwapFailed, rollout.ChangeSuperseded, rollout.ChangeRefused,
		rollout.ChangeScaled, rollout.ChangeDrained, rollout.ChangeWorkerFailed, rollout.ChangeTraffic, rollout.ChangeUnregistered,
	} {
		m.Changed(rollout.Change{At: time.Unix(int64(100+i), 0), Ref: ref, Kind: kind, Generation: i + 1, Took: time.Second})
	}
	m.Answered(dispatch.Observation{Ref: infer.ModelRef{Name: "m"}, Taken: ref, Total: time.Second})
	m.Answered(dispatch.Observation{Ref: infer.ModelRef{Name: "m", Version: "canary"}, Taken: ref, Total: time.Second})
	var b bytes.Buffer
	if err := metrics.WriteText(&b, nil); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`flambeau_model_swaps_total{model="m",version="1",outcome="swapped",} 1.0`, `flambeau_model_swaps_total{model="m",version="1",outcome="failed",} 1.0`,
		`flambeau_model_swaps_total{model="m",version="1",outcome="superseded",} 1.0`, `flambeau_model_swaps_total{model="m",version="1",outcome="refused",} 1.0`,
		`flambeau_model_generation{model="m",version="1",} 3.0`, `flambeau_model_last_change_timestamp_seconds{model="m",version="1",} 106.0`,
		`flambeau_model_swap_duration_seconds_count{model="m",version="1",} 1.0`, `flambeau_request_duration_seconds_count{model="m",version="1",} 2.0`,
		`ts_inference_requests_total{model_name="m",model_version="default",hostname="h",} 1.0`,
		`ts_inference_requests_total{model_name="m",model_version="1",hostname="h",} 1.0`,
	} {
		if !strings.Contains(b.String(), line+"\n") {
			t.Errorf("missing %s", line)
		}
	}
	if strings.Contains(b.String(), telemetry.StoreEntries) {
		t.Error("a store that nobody watches is counted")
	}
}
