package main

import (
	"log/slog"
	"path/filepath"

	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/modelstore/ledger"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// openLedger opens what is kept across restarts.
func openLedger(cfg *config.Config, log *slog.Logger) (*ledger.Ledger, error) {
	dir := cfg.StateDir
	if dir == "" {
		dir = filepath.Join(cfg.Env.LogDir, "flambeau")
	}
	return ledger.Open(ledger.Options{Dir: absolute(dir), Logger: log})
}

// recordOf gives what the ledger keeps of a change.
func recordOf(c rollout.Change) ledger.Record {
	r := ledger.Record{
		At: c.At, Model: c.Ref.Name, Version: c.Ref.Version, Kind: string(c.Kind), Generation: c.Generation, Digest: c.Digest, Source: c.Source,
		Who: c.Actor.Who, Why: c.Actor.Why, Reason: c.Reason, Took: c.Took,
	}
	for _, s := range c.Steps {
		r.Steps = append(r.Steps, ledger.Step(s))
	}
	return r
}

// changed notes a change of a model version in the ledger, and those in the log that nobody else has logged.
func (c *core) changed(change rollout.Change) {
	c.ledger.Add(recordOf(change))
	c.told(change)
	c.steps.notify()
	c.traffic.changed(change)
	if c.follow != nil {
		c.follow(change)
	}
	switch change.Kind { //nolint:exhaustive // modelstore/rollout has logged the others, with more detail
	case rollout.ChangeDefault, rollout.ChangeTraffic, rollout.ChangeRolledBack, rollout.ChangeSuperseded:
		c.logs.Server().Info("model changed", "model", change.Ref.Name, "version", change.Ref.Version, "kind", string(change.Kind),
			"who", change.Actor.Who, "why", change.Actor.Why, "reason", change.Reason)
	case rollout.ChangeRefused:
		c.logs.Server().Warn("model refused", "model", change.Ref.Name, "version", change.Ref.Version, "source", change.Source,
			"who", change.Actor.Who, "why", change.Actor.Why, "reason", change.Reason)
	default:
	}
}
