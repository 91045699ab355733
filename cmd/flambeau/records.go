package main

import (
	"log/slog"
	"path/filepath"

	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/modelstore/ledger"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// openLedger opens what is kept across restarts.
func openLedger(cfg *config.Config, log *slog.Logger, bugs reporter) (*ledger.Ledger, error) {
	dir := cfg.StateDir
	if dir == "" {
		dir = filepath.Join(cfg.Env.LogDir, "flambeau")
	}
	return ledger.Open(ledger.Options{Dir: absolute(dir), Logger: log, Panicked: bugs})
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

// changed tells of a change of a model version. Who has a bug misses it, and the others do not.
func (c *core) changed(change rollout.Change) {
	follow := c.follow
	if follow == nil {
		follow = func(rollout.Change) {}
	}
	for _, listener := range []struct {
		doing string
		tell  func(rollout.Change)
	}{
		{"a change was noted in the ledger", func(change rollout.Change) { c.ledger.Add(recordOf(change)) }},
		{"a change was counted", c.told},
		{"a change was told to ensembles", func(rollout.Change) { c.steps.notify() }},
		{"a change of traffic was noted", c.traffic.changed},
		{"a change was noted for the next snapshot", follow},
		{"a change was logged", c.logChange},
	} {
		_ = c.bugs.contain(listener.doing, func() { listener.tell(change) })
	}
}

// logChange notes a change in the log that nobody else has logged.
func (c *core) logChange(change rollout.Change) {
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
