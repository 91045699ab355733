package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// loadStartupModels registers what the configuration says, one after the other; their workers start meanwhile. A model that cannot be registered
// does not keep the server from starting.
func (s *server) loadStartupModels(ctx context.Context, log *slog.Logger) {
	specs, err := s.startupSpecs()
	if err != nil {
		log.Error("the start-up models are not known", "reason", err.Error())
		s.progress.Registered("", s.cfg.ModelStore, err)
	}
	for _, start := range specs {
		if ctx.Err() != nil {
			return
		}
		done, err := s.core.models.Register(ctx, start.spec)
		if err != nil {
			log.Warn("failed to load model", "url", start.spec.URL, "reason", err.Error())
		}
		if err == nil && start.standard {
			err = s.core.models.SetDefault(ctx, done.Ref)
		}
		s.progress.Registered(done.Ref.Name, start.spec.URL, err)
	}
}

// startup is one start-up model.
type startup struct {
	spec     rollout.Spec
	standard bool // it is to be the default version
}

func (s *server) startupSpecs() ([]startup, error) {
	if s.cfg.Snapshot != nil {
		return snapshotSpecs(s.cfg.Snapshot), nil
	}
	models := s.cfg.Models
	if s.cfg.AllModels {
		names, err := s.core.archives.Names()
		if err != nil {
			return nil, fmt.Errorf("the model store %s: %w", s.cfg.ModelStore, err)
		}
		models = nil
		for _, name := range names {
			models = append(models, config.StartupModel{URL: name})
		}
	}
	var specs []startup
	for _, m := range models {
		specs = append(specs, startup{spec: rollout.Spec{URL: m.URL, Name: m.Name, AtStartup: true}})
	}
	return specs, nil
}

// snapshotSpecs restores exactly what a snapshot says.
func snapshotSpecs(snapshot *config.Snapshot) []startup {
	var specs []startup
	for _, m := range snapshot.Models {
		spec := rollout.Spec{
			URL: m.File, Name: m.Name, Runtime: m.Runtime, InitialWorkers: &m.MinWorkers, MaxWorkers: m.MaxWorkers, Exact: true, AtStartup: true,
		}
		if m.BatchSize > 0 {
			spec.BatchSize = &m.BatchSize
		}
		if m.MaxBatchDelay > 0 {
			spec.MaxBatchDelay = &m.MaxBatchDelay
		}
		if m.ResponseTimeout > 0 {
			spec.ResponseTimeout = &m.ResponseTimeout
		}
		if m.StartupTimeout > 0 {
			spec.StartupTimeout = &m.StartupTimeout
		}
		specs = append(specs, startup{spec, m.Default})
	}
	return specs
}

// startedState tells how far the start-up models are: pending is true while one is still deploying.
func startedState(models interface {
	List() []rollout.Listed
	DescribeAll(name string) ([]rollout.Description, error)
},
) (all []rollout.Description, pending bool) {
	for _, listed := range models.List() {
		versions, err := models.DescribeAll(listed.Name)
		if err != nil {
			continue // it was unregistered in this moment
		}
		for _, d := range versions {
			all = append(all, d)
			pending = pending || d.State == "deploying"
		}
	}
	return all, pending
}

// refText names a version for people.
func refText(ref infer.ModelRef) string { return ref.Name + " " + ref.Version }
