package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/python"
	"github.com/flambeau-serve/flambeau/plugins/python/deps"
)

// newInstaller makes what installs the requirements of Python models.
func newInstaller(cfg *config.Config, command *python.Command, log *slog.Logger) (*deps.Installer, error) {
	folders := []string{cfg.DependencyCache}
	if cfg.DependencyCache == "" {
		folders = nil
		for _, dir := range cfg.Env.CacheDirs {
			folders = append(folders, filepath.Join(dir, "dependencies"))
		}
	}
	for i, folder := range folders {
		folders[i] = absolute(folder)
	}
	installer, err := deps.New(deps.Options{
		Script: command.InstallScript, Folders: folders, Env: cfg.Env.All, Requirements: cfg.InstallDependencies, Limit: cfg.DependencyTimeout, Logger: log,
	})
	if err != nil {
		return nil, fmt.Errorf("models' requirements cannot be installed: %w", err)
	}
	return installer, nil
}

// dependencies is a deps.Installer as rollout sees it.
type dependencies struct {
	command   *python.Command
	installer *deps.Installer
}

var _ rollout.Dependencies = dependencies{}

// Provide implements rollout.Dependencies.
func (d dependencies) Provide(ctx context.Context, r rollout.DependencyRequest) (rollout.Provided, error) {
	spec, err := d.command.Spec(r.Runtime, r.Dir)
	if err != nil {
		return rollout.Provided{}, err //nolint:wrapcheck // it says which runtime it is
	}
	env, err := d.installer.Install(ctx, deps.Request{Model: r.Ref, Interpreter: spec.Path, Dir: r.Dir, Requirements: r.Requirements, Venv: r.Venv})
	if err != nil {
		return rollout.Provided{}, err //nolint:wrapcheck // it is the client's answer
	}
	return rollout.Provided{
		Interpreter: env.Interpreter, Packages: env.Packages, Installed: env.Installed, Release: env.Release,
	}, nil
}

// extras are what a version's dependencies add to the command of its workers.
func extras(p rollout.Provided) python.Extras {
	return python.Extras{Interpreter: p.Interpreter, Packages: p.Packages, Installed: p.Installed}
}

// runDependencies installs what a model asks for, for `flambeau run`, unless a signal ends it, and adds it to the command of its process. The
// function that it gives is called when the process has ended.
func (p *program) runDependencies(
	ctx context.Context, cfg *config.Config, ref infer.ModelRef, model *archive.Archive, spec backend.ProcessSpec, signals <-chan os.Signal,
) (backend.ProcessSpec, func(), error) {
	r := deps.Request{
		Model: ref, Interpreter: spec.Path, Dir: model.Dir, Requirements: model.Manifest.Model.RequirementsFile,
		Venv: model.Settings.UseVenv && model.Manifest.Runtime == archive.RuntimePython,
	}
	if r.Requirements == "" && !r.Venv {
		return spec, func() {}, nil
	}
	command, err := newPythonCommand(cfg) //nolint:contextcheck // looking for Python has a limit of its own
	if err != nil {
		return spec, nil, err
	}
	installer, err := newInstaller(cfg, command, p.notes(slog.LevelInfo))
	if err != nil {
		return spec, nil, err
	}
	watched, stop := cancelOn(ctx, signals)
	env, err := installer.Install(watched, r)
	stop()
	installer.Close()
	if err != nil {
		return spec, nil, err //nolint:wrapcheck // it says which model it is about
	}
	return python.Extras{Interpreter: env.Interpreter, Packages: env.Packages, Installed: env.Installed}.Add(spec), env.Release, nil
}
