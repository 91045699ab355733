package main

import (
	"context"
	"log/slog"

	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/redact"
	"github.com/flambeau-serve/flambeau/modelstore/deploy"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// loadStartupModels registers what the configuration says, one after the other; their workers start meanwhile. A model that cannot be registered
// does not keep the server from starting. From then on the model store is followed.
func (s *server) loadStartupModels(ctx context.Context, log *slog.Logger) {
	s.core.follower.begin(rollout.WithActor(ctx, s.starter()), startupModels(s.cfg), func(name, url string, err error) {
		url = redact.URL(url)
		switch {
		case err != nil && s.cfg.Snapshot != nil:
			log.Warn("a model of the snapshot is not restored, and the server goes on without it; the next start tries again", "model", name, "archive", url,
				"snapshot", s.cfg.File, "reason", err.Error())
		case err != nil:
			log.Warn("failed to load model", "url", url, "reason", err.Error())
		}
		s.progress.Registered(name, url, err)
	})
}

// starter says who asks for the start-up models.
func (s *server) starter() rollout.Actor {
	if s.cfg.Snapshot != nil {
		return rollout.Actor{Who: "snapshot", Why: s.cfg.File}
	}
	return rollout.Actor{Who: "start"}
}

// startupModels are the models that the configuration names; none: all that the follower of the store finds.
func startupModels(cfg *config.Config) []deploy.Startup {
	if cfg.Snapshot != nil {
		return snapshotSpecs(cfg.Snapshot)
	}
	var models []deploy.Startup
	for _, m := range cfg.Models {
		models = append(models, deploy.Startup{Spec: rollout.Spec{URL: m.URL, Name: m.Name, AtStartup: true}})
	}
	return models
}

// snapshotSpecs restores exactly what a snapshot says.
func snapshotSpecs(snapshot *config.Snapshot) []deploy.Startup {
	var models []deploy.Startup
	for _, m := range snapshot.Models {
		spec := rollout.Spec{
			URL: m.File, Name: m.Name, Version: m.Version, Handler: m.Handler, Runtime: m.Runtime, InitialWorkers: &m.MinWorkers, MaxWorkers: m.MaxWorkers, Exact: true, AtStartup: true,
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
		models = append(models, deploy.Startup{Spec: spec, Default: m.Default})
	}
	return models
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
