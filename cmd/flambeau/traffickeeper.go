package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/malformed"
	"github.com/flambeau-serve/flambeau/modelstore/ledger"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// trafficKeeper keeps the traffic of the models for the next run: whoever changes it is not made to wait for a disk.
type trafficKeeper struct {
	models interface {
		Traffic(name string) (rollout.Traffic, error)
	}
	records interface {
		Change(edit func(*ledger.State)) error
	}
	log  *slog.Logger
	bugs reporter

	wake chan struct{} // one token: something changed
	quit chan struct{} // closed by stop
	done chan struct{} // closed when the goroutine has ended

	mu    sync.Mutex // guards dirty
	dirty map[string]bool

	writing sync.Mutex // held from reading what is set to its being written, so that the newest is written last; guards stopped
	stopped bool
}

// restoreTraffic gives the models what was kept of the last run.
func restoreTraffic(models *rollout.Manager, kept map[string]json.RawMessage) error {
	all := make(map[string]rollout.Traffic, len(kept))
	for name, text := range kept {
		var t rollout.Traffic
		if err := json.Unmarshal(text, &t); err != nil {
			return fmt.Errorf("the traffic that was kept for %s cannot be read: %s", name, malformed.JSON(err))
		}
		all[name] = t
	}
	return models.RestoreTraffic(all) //nolint:wrapcheck // it says what it is about
}

// newTrafficKeeper begins to keep.
func newTrafficKeeper(models *rollout.Manager, records *ledger.Ledger, log *slog.Logger, bugs reporter) *trafficKeeper {
	k := &trafficKeeper{
		models: models, records: records, log: log, bugs: bugs, wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}), dirty: map[string]bool{},
	}
	go k.run()
	return k
}

// changed notes a change; it does not wait.
func (k *trafficKeeper) changed(c rollout.Change) {
	if k == nil || c.Kind != rollout.ChangeTraffic {
		return
	}
	k.mark(c.Ref.Name)
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// mark notes models whose traffic is to be written.
func (k *trafficKeeper) mark(names ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range names {
		k.dirty[name] = true
	}
}

func (k *trafficKeeper) run() {
	defer close(k.done)
	for {
		select {
		case <-k.wake:
			_ = k.bugs.contain("the traffic of models was kept", k.flush)
		case <-k.quit:
			_ = k.bugs.contain("the traffic of models was kept", k.flush)
			return
		}
	}
}

// flush writes what has changed.
func (k *trafficKeeper) flush() {
	k.writing.Lock()
	defer k.writing.Unlock()
	if k.stopped { // the models are gone, and are not to be forgotten
		return
	}
	k.mu.Lock()
	names := slices.Sorted(maps.Keys(k.dirty))
	clear(k.dirty)
	k.mu.Unlock()
	if len(names) == 0 {
		return
	}
	done := false
	defer func() {
		if !done { // a bug ends this: they are kept with the next change
			k.mark(names...)
		}
	}()
	set := make(map[string]json.RawMessage, len(names)) // nil for what is to be forgotten
	for _, name := range names {
		text, err := k.text(name)
		if err != nil {
			k.log.Error("the traffic of a model is not kept for the next start", "model", name, "reason", err.Error())
			continue
		}
		set[name] = text
	}
	if err := k.records.Change(func(s *ledger.State) {
		for name, text := range set {
			if s.Traffic[name] = text; text == nil {
				delete(s.Traffic, name)
			}
		}
	}); err != nil {
		k.log.Error("the traffic of models is not kept for the next start", "models", names, "reason", err.Error())
	}
	done = true
}

// text is what is kept of a model, nil for nothing.
func (k *trafficKeeper) text(name string) (json.RawMessage, error) {
	t, err := k.models.Traffic(name)
	if fault.Is(err, fault.ModelNotFound) || err == nil && t.IsZero() {
		return nil, nil
	}
	if err != nil {
		return nil, err //nolint:wrapcheck // it is only logged
	}
	return json.Marshal(t) //nolint:wrapcheck // the same
}

// stop writes what has changed, and keeps nothing more: the models are about to go, but not for good.
func (k *trafficKeeper) stop() {
	if k == nil {
		return
	}
	close(k.quit)
	<-k.done
	k.writing.Lock()
	k.stopped = true
	k.writing.Unlock()
}
