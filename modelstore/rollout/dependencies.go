package rollout

import (
	"context"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
)

// Dependencies gets ready what models need besides their archives.
type Dependencies interface {
	// Provide returns when what the model asks for is there. Its error is the registration's.
	Provide(ctx context.Context, r DependencyRequest) (Provided, error)
}

// DependencyRequest is what a model's archive says about its dependencies.
type DependencyRequest struct {
	Ref          infer.ModelRef
	Runtime      string // python or python3
	Dir          string // the unpacked archive
	Requirements string // the requirements file that its manifest names, relative to Dir; "" for none
	Venv         bool   // whether it wants a virtual environment of its own
}

// Provided is what the processes of a version's workers use.
type Provided struct {
	Interpreter string // "" for the server's
	Packages    string // folder of packages, "" for none
	Installed   bool   // whether the requirements file was installed
	Release     func() // called once, when no worker needs it any more; nil for nothing to do
}

// provide gets the dependencies of a version ready, which takes long the first time; v is not among the models yet.
func (m *Manager) provide(ctx context.Context, v *Version) error {
	m.mu.Lock()
	err := m.vacant(v.ref) // before the work, and again after it
	m.mu.Unlock()
	if err != nil {
		return err
	}
	r := DependencyRequest{
		Ref: v.ref, Runtime: v.settings.runtime, Dir: v.archive.Dir, Requirements: v.archive.Manifest.Model.RequirementsFile,
		Venv: v.settings.useVenv && v.settings.runtime == archive.RuntimePython, // TorchServe makes none for python3
	}
	if m.opts.Dependencies == nil || r.Requirements == "" && !r.Venv {
		return nil
	}
	v.provided, err = m.opts.Dependencies.Provide(ctx, r)
	return err
}

// unprovide gives the dependencies back.
func (v *Version) unprovide() {
	if v.provided.Release != nil {
		v.provided.Release()
	}
}
