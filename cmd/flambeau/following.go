package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/flambeau-serve/flambeau/frontend/httpapi"
	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/modelstore/deploy"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/modelstore/watch"
	"github.com/flambeau-serve/flambeau/plugins/python"
)

// follower keeps what runs equal to what the model store holds.
type follower struct {
	deployer *deploy.Deployer
	watcher  *watch.Watcher
	log      *slog.Logger
	bugs     reporter

	cancel context.CancelFunc // set by begin
	done   chan struct{}      // closed when nothing of it runs any more
}

// keptFolder is the folder of earlier archives, beside the ledger.
const keptFolder = "kept"

// newFollower makes what follows the model store of a configuration. torchserve says whose command started the server.
func (c *core) newFollower(cfg *config.Config, torchserve bool, command *python.Command, log *slog.Logger) (*follower, error) {
	watcher, err := watch.New(watch.Options{
		Root: cfg.ModelStore, Poll: cfg.StorePoll, Settle: cfg.StoreSettle, FolderSettle: cfg.StoreFolderSettle, Logger: log,
		Repository: repositoryOf, Panicked: c.bugs,
	})
	if err != nil {
		return nil, fmt.Errorf("watching the model store: %w", err)
	}
	opts := deploy.Options{
		Models: c.models, Archives: c.archives, Watcher: watcher, Strict: cfg.ModelCheck == "strict", Ledger: c.ledger, Root: cfg.ModelStore,
		Scope: scopeOf(cfg, torchserve), Once: !cfg.Watch, Tolerant: torchserve, Fresh: torchserve && cfg.Snapshot == nil,
		Removal: cfg.StoreRemoval, RemovalDelay: cfg.StoreRemovalDelay, FilePolicy: cfg.DefaultVersionPolicy, FolderPolicy: cfg.DefaultVersionPolicy,
		Keep: cfg.RollbackKeep, Changed: c.changed, Panicked: c.bugs, Logger: log,
	}
	if dir := c.ledger.Dir(); dir != "" { // else the folder is another server's
		opts.KeepDir = filepath.Join(dir, keptFolder)
	}
	if opts.Removal == settingAuto {
		opts.Removal = map[bool]string{true: deploy.RemovalKeep, false: deploy.RemovalUnregister}[torchserve]
	}
	if cfg.DefaultVersionPolicy == settingAuto {
		opts.FolderPolicy = deploy.PolicyLatest
		opts.FilePolicy = map[bool]string{true: deploy.PolicyFirst, false: deploy.PolicyLatest}[torchserve]
	}
	if cfg.ModelCheck != "off" {
		checker, err := newChecker(cfg, command, "", cfg.InstallDependencies)
		if err != nil {
			log.Warn("archives are not checked before they are loaded", "reason", err.Error())
		} else {
			opts.Checker = checker
		}
	}
	deployer, err := deploy.New(opts)
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what is missing
	}
	return &follower{deployer: deployer, watcher: watcher, log: log, bugs: c.bugs, done: make(chan struct{})}, nil
}

// settingAuto is the value of settings that leave a choice to the command.
const settingAuto = "auto"

// scopeOf says which models of the store are followed: those that are loaded at the start.
func scopeOf(cfg *config.Config, torchserve bool) deploy.Scope {
	var scope deploy.Scope
	models := cfg.Models
	if cfg.Snapshot != nil {
		models = nil
		for _, m := range cfg.Snapshot.Models {
			models = append(models, config.StartupModel{Name: m.Name, URL: m.File})
		}
	}
	scope.All = cfg.AllModels || !torchserve && len(models) == 0
	if scope.All {
		return scope
	}
	for _, m := range models {
		scope.Listed = append(scope.Listed, deploy.Listed{Name: m.Name, URL: m.URL})
	}
	return scope
}

// begin registers the start-up models, and begins to follow the store. told hears of each model.
func (f *follower) begin(ctx context.Context, listed []deploy.Startup, told func(name, url string, err error)) {
	ctx, f.cancel = context.WithCancel(ctx)
	watching := make(chan error, 1)
	go func() { watching <- f.try("the model store was watched", func() error { return f.watcher.Run(ctx) }) }()
	err := f.try("the start-up models were loaded", func() error { return f.deployer.Start(ctx, listed, told) })
	if err != nil && ctx.Err() == nil {
		f.log.Error("the start-up models were not loaded", "reason", err.Error())
	}
	go func() {
		defer close(f.done)
		err := f.try("the model store was followed", func() error { return f.deployer.Run(ctx) })
		if err = errors.Join(err, <-watching); err != nil && ctx.Err() == nil {
			f.log.Error("the model store is not followed any more", "reason", err.Error())
		}
	}()
}

// try calls f; a panic in it is told, and is its error.
func (f *follower) try(doing string, call func() error) (err error) {
	bug := f.bugs.contain(doing, func() { err = call() })
	return errors.Join(err, bug)
}

// end ends what begin has begun, at the latest when ctx ends.
func (f *follower) end(ctx context.Context) error {
	if f == nil || f.cancel == nil {
		return nil
	}
	f.cancel()
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return errors.New("changes of models were still under way when the server had to end")
	}
}

// managed are the models as the management API changes them: so that what follows the store knows of it.
func (c *core) managed() httpapi.Models {
	if c.deployer == nil {
		return c.models
	}
	return &deploy.Facade{Manager: c.models, Deployer: c.deployer}
}

// replaced passes on that a generation was replaced, whose archive may be kept.
func (c *core) replaced(ctx context.Context, old rollout.Replaced) {
	if c.deployer != nil {
		c.deployer.Replaced(ctx, old)
	}
}
