package main

import (
	"context"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/httpapi"
	"github.com/flambeau-serve/flambeau/modelstore/deploy"
	"github.com/flambeau-serve/flambeau/modelstore/ledger"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// admin is what is behind /admin. The deployer is nil for a server that does not watch its model store.
func (c *core) admin(deployer *deploy.Deployer, d *drain) *httpapi.Admin {
	a := &httpapi.Admin{Latency: c.dispatcher, Refused: c.dispatcher, Traffic: keptTraffic{c.models, c.traffic}, Journal: journal{c.ledger}, Drain: d, Poison: poisonAdmin{c.models, c.poison}}
	a.Crashes, a.Tuning = crashBook{c.crashes}, c.dispatcher
	if c.history != nil {
		a.Requests = c.history
	}
	if deployer != nil {
		a.Store = storeAdmin{deployer}
	}
	return a
}

// keptTraffic sets traffic, and returns when it is kept for the next run.
type keptTraffic struct {
	*rollout.Manager

	keeper *trafficKeeper
}

// SetTraffic implements httpapi.TrafficControl.
func (k keptTraffic) SetTraffic(ctx context.Context, name string, t rollout.Traffic) error {
	if err := k.Manager.SetTraffic(ctx, name, t); err != nil {
		return err //nolint:wrapcheck // the model store's words are the client's
	}
	k.keeper.flush()
	return nil
}

// journal reads the ledger for the API.
type journal struct{ ledger *ledger.Ledger }

// Events implements httpapi.Journal.
func (j journal) Events(f httpapi.EventFilter) []httpapi.Event {
	return eventsOf(j.ledger.Events(ledger.Filter(f)))
}

// History implements httpapi.Journal.
func (j journal) History(model string, limit int) []httpapi.Event {
	return eventsOf(j.ledger.History(model, limit))
}

func eventsOf(records []ledger.Record) []httpapi.Event {
	all := make([]httpapi.Event, 0, len(records))
	for i := range records {
		r := &records[i]
		e := httpapi.Event{
			ID: r.ID, At: r.At, Model: r.Model, Version: r.Version, Kind: r.Kind, Generation: r.Generation, Digest: r.Digest, Source: r.Source,
			Who: r.Who, Why: r.Why, Reason: r.Reason, TookMS: millis(r.Took),
		}
		for _, s := range r.Steps {
			e.Steps = append(e.Steps, httpapi.Step{Name: s.Name, TookMS: millis(s.Took)})
		}
		all = append(all, e)
	}
	return all
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// storeAdmin shows the deployer to the API.
type storeAdmin struct{ deployer *deploy.Deployer }

// Entries implements httpapi.ModelStore.
func (s storeAdmin) Entries() []httpapi.StoreEntry {
	entries := s.deployer.Entries()
	all := make([]httpapi.StoreEntry, 0, len(entries))
	for i := range entries {
		all = append(all, entryOf(&entries[i]))
	}
	return all
}

func entryOf(e *deploy.EntryStatus) httpapi.StoreEntry {
	entry := httpapi.StoreEntry{
		Path: e.Path, Kind: e.Kind, State: e.State, Reason: e.StateReason, Since: e.StateSince, Bytes: e.Bytes, Model: e.Model, Version: e.Version,
		Digest: e.Digest, Serving: e.Serving, Decision: string(e.Decision), Why: e.Reason, Decided: e.Since, Attempts: e.Attempts, Findings: e.Findings,
	}
	if !e.NextTry.IsZero() {
		entry.NextTry = &e.NextTry
	}
	return entry
}

// Reload implements httpapi.ModelStore.
func (s storeAdmin) Reload(ctx context.Context, model string) error {
	return s.deployer.Reload(ctx, model) //nolint:wrapcheck // the model store's words are the client's
}

// Rollback implements httpapi.ModelStore.
func (s storeAdmin) Rollback(ctx context.Context, model, version, to string) (httpapi.RolledBack, error) {
	done, err := s.deployer.Rollback(ctx, model, version, to)
	if err != nil {
		return httpapi.RolledBack{}, err //nolint:wrapcheck // the same
	}
	return httpapi.RolledBack{
		Model: done.To.Name, Version: done.To.Version, Digest: done.ToDigest, Source: done.Source, FromVersion: done.From.Version, FromDigest: done.FromDigest,
	}, nil
}

// storeStates counts the archives of the model store by their states, for the metrics.
func storeStates(deployer *deploy.Deployer) map[string]int {
	states := map[string]int{"settled": 0, "changing": 0, "incomplete": 0}
	for _, e := range deployer.Entries() {
		states[e.State]++
	}
	return states
}
