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

// Describe is the Manager's. It tells also of an archive that could not even be started.
func (f *Facade) Describe(ref infer.ModelRef) (rollout.Description, error) {
	d, err := f.Manager.Describe(ref)
	if err == nil {
		f.complete(&d)
	}
	return d, err
}

// DescribeAll is the same for all the versions of a model.
func (f *Facade) DescribeAll(name string) ([]rollout.Description, error) {
	all, err := f.Manager.DescribeAll(name)
	for i := range all {
		f.complete(&all[i])
	}
	return all, err
}

func (f *Facade) complete(d *rollout.Description) {
	if failure := f.Deployer.LastFailure(d.Ref); failure != nil {
		d.Failed(*failure)
	}
}
