package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/flambeau-serve/flambeau/frontend/dispatch"
	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/logfiles"
	"github.com/flambeau-serve/flambeau/modelstore/ledger"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/crashes"
)

// badObserver has a bug whatever it is told.
type badObserver struct{ observer }

func (badObserver) Answered(dispatch.Observation) { panic("a bug of the metrics") }
func (badObserver) InstanceChanged(rollout.Event) { panic("a bug of the metrics") }
func (badObserver) Changed(rollout.Change)        { panic("a bug of the metrics") }

// TestPanicsOfListeners: one of those who are told has a bug, and the others are told all the same.
func TestPanicsOfListeners(t *testing.T) {
	t.Parallel()
	logs, err := logfiles.Open(logfiles.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	var told []error
	followed, observed := 0, 0
	c := &core{
		logs: logs, ledger: openTestLedger(t, ""), told: badObserver{}.Changed, steps: newStepModels(), crashes: &crashes.Book{},
		follow: func(rollout.Change) { followed++ }, observed: func(dispatch.Observation) { observed++ },
		bugs: func(err error) { told = append(told, err) },
	}
	c.changed(rollout.Change{Kind: rollout.ChangeSwapped, Ref: infer.ModelRef{Name: "m", Version: "1.0"}})
	c.answered(badObserver{})(dispatch.Observation{})
	c.instanceChanged(badObserver{})(rollout.Event{})
	if n := len(c.ledger.Events(ledger.Filter{})); n != 1 || followed != 1 || observed != 1 || len(told) != 3 {
		t.Errorf("%d events, followed %d, observed %d, %d panics", n, followed, observed, len(told))
	}
	for _, err := range told {
		if !fault.IsBug(err) || !strings.Contains(fault.DetailOf(err), "a bug of the metrics") {
			t.Error(fault.DetailOf(err))
		}
	}
	if err := errors.Join(c.ledger.Close(), logs.Close()); err != nil {
		t.Error(err)
	}
}

// badModels have a bug until they have not.
type badModels struct {
	described

	bugs *atomic.Int32
}

func (m badModels) List() []rollout.Listed {
	if m.bugs.Add(-1) >= 0 {
		panic("a bug of the models")
	}
	return m.described.List()
}

// TestPanicsOfSnapshots: who waits for a snapshot is not kept waiting, and the next change is in the next one.
func TestPanicsOfSnapshots(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var bugs, told atomic.Int32
	bugs.Store(2)
	shelf := newShelf()
	s, err := newSnapshots(fromDir(t, dir), badModels{shelf, &bugs}, slog.New(slog.DiscardHandler), func(error) { told.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	s.begin()
	s.keep(t.Context()) // the second one
	shelf.mu.Lock()
	shelf.all[ref("m", "1.0")] = rollout.Description{Ref: ref("m", "1.0"), URL: "m.mar", Default: true}
	shelf.mu.Unlock()
	s.keep(t.Context())
	if got := strings.Join(models(fromDir(t, dir)), " "); !strings.Contains(got, "m 1.0 m.mar") || told.Load() != 2 {
		t.Errorf("%d panics, restored: %q", told.Load(), got)
	}
	s.end()
}

// badRecords have a bug until they have not.
type badRecords struct {
	*ledger.Ledger

	bugs atomic.Int32
}

func (r *badRecords) Change(edit func(*ledger.State)) error {
	if r.bugs.Add(-1) >= 0 {
		panic("a bug of the records")
	}
	return r.Ledger.Change(edit)
}

// TestPanicOfTheTrafficKeeper: what could not be kept is kept with the next change.
func TestPanicOfTheTrafficKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openTestLedger(t, "")
		m, k := keptModels(t, l)
		k.stop()
		records, told := &badRecords{Ledger: l}, 0
		records.bugs.Store(1)
		bad := &trafficKeeper{
			models: m, records: records, log: slog.New(slog.DiscardHandler), wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
			dirty: map[string]bool{}, bugs: func(error) { told++ },
		}
		go bad.run()
		bad.changed(rollout.Change{Kind: rollout.ChangeTraffic, Ref: infer.ModelRef{Name: "m"}})
		synctest.Wait()
		bad.mu.Lock()
		if len(bad.dirty) != 1 {
			t.Error("it is forgotten")
		}
		bad.mu.Unlock()
		bad.stop()
		if told != 1 || len(bad.dirty) != 0 {
			t.Errorf("%d panics, and %v are not kept", told, bad.dirty)
		}
		if err := errors.Join(m.Close(t.Context()), l.Close()); err != nil {
			t.Error(err)
		}
	})
}

// fakeListener ends as it is told to.
type fakeListener struct{ serve func() error }

func (fakeListener) Addr() string                     { return "here" }
func (l fakeListener) Serve() error                   { return l.serve() }
func (l fakeListener) Shutdown(context.Context) error { return l.serve() }

// TestAwaitStop: the log says what has ended the server, whatever that was.
func TestAwaitStop(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		serve     func() error
		why, text string
	}{
		"fails":       {func() error { return net.ErrClosed }, "inference (inference_address): " + net.ErrClosed.Error(), "the server cannot go on"},
		"has a bug":   {func() error { panic("a bug of the listener") }, "inference (inference_address): Internal error.", "a bug of the listener"},
		"just ends":   {func() error { return nil }, "a listener has ended, and nobody has asked it to", "the server cannot go on"},
		"a cancelled": {nil, "somebody has cancelled it", ""},
	} {
		var text bytes.Buffer
		ctx, cancel := context.WithCancelCause(t.Context())
		s := &server{cfg: &config.Config{}, stopped: make(chan error, 1)}
		l := listener{name: "inference", key: "inference_address", server: fakeListener{tt.serve}}
		if tt.serve == nil {
			cancel(errors.New("somebody has cancelled it"))
		} else {
			go func() { s.stopped <- l.serve() }()
		}
		why, err := s.awaitStop(ctx, slog.New(slog.NewTextHandler(&text, nil)))
		if why != tt.why || (err == nil) != (tt.serve == nil) || !strings.Contains(text.String(), tt.text) {
			t.Errorf("%s: %q, %v; logged %s", name, why, err, text.String())
		}
		cancel(nil)
	}
	bad := fakeListener{func() error { panic("a bug of the listener") }}
	if err := closeListeners(t.Context(), []listener{{server: bad}, {server: bad}}); !fault.IsBug(err) {
		t.Errorf("%v", err)
	}
}
