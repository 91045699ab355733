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

// provide gets the dependencies of a generation ready, which takes long the first time.
func (m *Manager) provide(ctx context.Context, g *generation) (Provided, error) {
	r := DependencyRequest{
		Ref: g.version.ref, Runtime: g.settings.runtime, Dir: g.archive.Dir, Requirements: g.archive.Manifest.Model.RequirementsFile,
		Venv: g.settings.useVenv && g.settings.runtime == archive.RuntimePython, // TorchServe makes none for python3
	}
	if m.opts.Dependencies == nil || r.Requirements == "" && !r.Venv {
		return Provided{}, nil
	}
	return m.opts.Dependencies.Provide(ctx, r) //nolint:wrapcheck // its faults are the registration's
}
