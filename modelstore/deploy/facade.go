package deploy

import (
	"context"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// Facade stands before a Manager for the management API: what a client changes is remembered by the Deployer, and not undone by it.
type Facade struct {
	*rollout.Manager

	Deployer *Deployer
}

// Register is the Deployer's.
func (f *Facade) Register(ctx context.Context, spec rollout.Spec) (rollout.Registered, error) {
	return f.Deployer.Register(ctx, spec)
}

// Unregister is the Deployer's.
func (f *Facade) Unregister(ctx context.Context, ref infer.ModelRef) error {
	return f.Deployer.Unregister(ctx, ref)
}

// SetDefault is the Deployer's.
func (f *Facade) SetDefault(ctx context.Context, ref infer.ModelRef) error {
	return f.Deployer.SetDefault(ctx, ref)
}

// Scale is the Deployer's.
func (f *Facade) Scale(ctx context.Context, ref infer.ModelRef, minimum, maximum int, synchronous bool) error {
	return f.Deployer.Scale(ctx, ref, minimum, maximum, synchronous)
}
