package main

import (
	"time"

	"github.com/flambeau-serve/flambeau/frontend/batch/policy"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// tuned keeps in the ledger what a queue has done toward its model's latency goal, and why.
func (c *core) tuned(ref infer.ModelRef, step policy.Step) {
	change := rollout.Change{
		At: time.Now(), Ref: ref, Kind: rollout.ChangeTuned, Actor: rollout.Actor{Who: "slo", Why: string(step.Reason)}, Reason: step.String(),
	}
	c.ledger.Add(recordOf(change))
	c.logs.Server().Info("batches tuned", "model", ref.Name, "version", ref.Version, "why", string(step.Reason), "reason", change.Reason)
}
