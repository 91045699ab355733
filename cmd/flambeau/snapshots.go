package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/httpapi"
	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/modelstore/snapshot"
)

// lookForSnapshots notes the newest snapshot of an earlier run, unless a configuration file is named, and where this run writes its own.
func (p *program) lookForSnapshots(src *config.Source) {
	src.SnapshotDir = filepath.Join(config.LogDir(p.environ), "config")
	if config.NamedFile(*src) != "" {
		return
	}
	found, err := snapshot.Find(src.SnapshotDir, config.CheckSnapshot)
	if err != nil {
		src.Snapshot.Notes = append(src.Snapshot.Notes, err.Error())
		return
	}
	src.Snapshot.Path, src.Snapshot.Foreign = found.Path, !found.Own
	for _, s := range found.Skipped {
		src.Snapshot.Notes = append(src.Snapshot.Notes, "the snapshot "+s.Path+" cannot be used: "+s.Reason+"; an older one is taken if there is one")
	}
}

// described are the models that run.
type described interface {
	List() []rollout.Listed
	DescribeAll(name string) ([]rollout.Description, error)
}

// snapshots keeps the settings and models of a server of the torchserve command for its next start. Its methods do nothing on nil.
type snapshots struct {
	writer   *snapshot.Writer
	models   described
	settings []snapshot.Setting
	log      *slog.Logger
	bugs     reporter

	mu      sync.Mutex                        // guards what follows
	absent  map[infer.ModelRef]snapshot.Model // of the restored snapshot: what did not come back and was not removed by hand
	waiting []chan struct{}                   // closed when a snapshot was written that began later than they came
	begun   bool

	wake chan struct{} // one token: something changed
	quit chan struct{} // closed by end
	done chan struct{} // closed when the writer's goroutine has ended

	failing bool   // the last one could not be written; the writer's goroutine only, and before and after it
	last    string // the models of the last one; the same
}

// newSnapshots gives nil when there are to be none.
func newSnapshots(cfg *config.Config, models described, log *slog.Logger, bugs reporter) (*snapshots, error) {
	if cfg.SnapshotDir == "" {
		return nil, nil //nolint:nilnil // nil does nothing
	}
	writer, err := snapshot.NewWriter(snapshot.Options{Dir: cfg.SnapshotDir})
	if err != nil {
		return nil, err
	}
	s := &snapshots{
		writer: writer, models: models, log: log, bugs: bugs, absent: map[infer.ModelRef]snapshot.Model{},
		wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
	for _, setting := range cfg.SnapshotSettings() {
		if setting.Key == "load_models" { // a restart has its models from model_snapshot
			setting.Value = withoutSecrets(setting.Value)
		}
		s.settings = append(s.settings, snapshot.Setting(setting))
	}
	if cfg.Snapshot != nil {
		for _, m := range cfg.Snapshot.Models {
			s.absent[infer.ModelRef{Name: m.Name, Version: m.Version}] = snapshot.Model{
				Name: m.Name, Version: m.Version, Default: m.Default, File: m.File, MinWorkers: m.MinWorkers, MaxWorkers: m.MaxWorkers,
				BatchSize: m.BatchSize, MaxBatchDelay: m.MaxBatchDelay, ResponseTimeout: m.ResponseTimeout, StartupTimeout: m.StartupTimeout,
				Runtime: m.Runtime, Handler: m.Handler,
			}
		}
	}
	return s, nil
}

// begin writes the first snapshot, once the listeners answer and the models are registered, and begins to follow changes.
func (s *snapshots) begin() {
	if s == nil {
		return
	}
	s.write(snapshot.Startup)
	s.mu.Lock()
	s.begun = true
	s.mu.Unlock()
	go s.follow()
}

// end writes the last snapshot. The models must still be there.
func (s *snapshots) end() {
	if s == nil {
		return
	}
	s.mu.Lock()
	begun := s.begun
	s.begun = false
	s.mu.Unlock()
	if !begun {
		return // it did not come up, and what came of the models so far is not to be kept
	}
	close(s.quit)
	<-s.done
	s.last = "" // also when nothing has changed, as TorchServe
	s.write(snapshot.Shutdown)
}

// follow writes a snapshot whenever something has changed.
func (s *snapshots) follow() {
	defer close(s.done)
	for {
		select {
		case <-s.wake:
		case <-s.quit:
			s.release(s.taken())
			return
		}
		waiting := s.taken()
		s.write(snapshot.Changed)
		s.release(waiting)
	}
}

func (s *snapshots) taken() []chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := s.waiting
	s.waiting = nil
	return waiting
}

func (s *snapshots) release(waiting []chan struct{}) {
	for _, w := range waiting {
		close(w)
	}
}

// changed is told of every change of a model version. It does not wait.
func (s *snapshots) changed(c rollout.Change) {
	if s == nil {
		return
	}
	switch c.Kind { //nolint:exhaustive // others change nothing that a snapshot has
	case rollout.ChangeRegistered, rollout.ChangeSwapped, rollout.ChangeUnregistered:
		s.mu.Lock()
		delete(s.absent, c.Ref)
		s.mu.Unlock()
	case rollout.ChangeScaled:
		if c.Actor.Who == "autoscale" { // a snapshot has the bounds, which stay
			return
		}
	case rollout.ChangeDefault:
	default:
		return
	}
	s.poke()
}

func (s *snapshots) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// keep returns when what holds now is in a snapshot, or could not be written; or when ctx ends.
func (s *snapshots) keep(ctx context.Context) {
	written := make(chan struct{})
	s.mu.Lock()
	if !s.begun {
		s.mu.Unlock()
		return // the first snapshot, or the last one, has it
	}
	s.waiting = append(s.waiting, written)
	s.mu.Unlock()
	s.poke()
	select {
	case <-written:
	case <-s.done:
	case <-ctx.Done():
	}
}

// write writes one snapshot, unless the models are as in the last one. That it fails is told once: the server goes on, also after a bug.
func (s *snapshots) write(kind snapshot.Kind) {
	_ = s.bugs.contain("a snapshot was written", func() { s.writeOut(kind) })
}

func (s *snapshots) writeOut(kind snapshot.Kind) {
	models := s.collect()
	key := keyOf(models)
	if key == s.last && !s.failing {
		return
	}
	file, err := s.writer.Write(kind, time.Now(), s.settings, models)
	switch {
	case file == "" && !s.failing:
		s.log.Error("the snapshot cannot be written: the next start may not have the models of now; the server goes on", "reason", err.Error())
	case file != "" && err != nil:
		s.log.Warn("old snapshots cannot be removed", "reason", err.Error())
	case file != "" && s.failing:
		s.log.Info("snapshots are written again", "file", file)
	}
	s.failing = file == ""
	if !s.failing {
		s.last = key
	}
}

func keyOf(models []snapshot.Model) string {
	var b strings.Builder
	for _, m := range models {
		fmt.Fprintf(&b, "%+v\n", m)
	}
	return "models:" + b.String()
}

// collect gives the versions that are registered, and those of the restored snapshot that did not come back.
func (s *snapshots) collect() []snapshot.Model {
	var models []snapshot.Model
	for _, listed := range s.models.List() {
		versions, err := s.models.DescribeAll(listed.Name)
		if err != nil {
			continue // it was unregistered in this moment
		}
		for _, d := range versions {
			if m := snapshotModel(d); m.File != "" { // one that cannot be restored would spoil all the others
				models = append(models, m)
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range models {
		delete(s.absent, infer.ModelRef{Name: m.Name, Version: m.Version})
	}
	maps.DeleteFunc(s.absent, func(_ infer.ModelRef, m snapshot.Model) bool { // its archive was replaced by one of another version
		return slices.ContainsFunc(models, func(other snapshot.Model) bool { return other.Name == m.Name && other.File == m.File })
	})
	for _, m := range s.absent {
		if m.Default { // it is the default version again when it comes back, and there is one of a model
			for i := range models {
				models[i].Default = models[i].Default && models[i].Name != m.Name
			}
		}
	}
	for _, m := range s.absent {
		models = append(models, m)
	}
	slices.SortFunc(models, func(a, b snapshot.Model) int {
		return strings.Compare(a.Name+"\x00"+a.Version, b.Name+"\x00"+b.Version)
	})
	return models
}

// chosen notes that somebody has set the default version of a model: none that did not come back is it any more.
func (s *snapshots) chosen(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ref, m := range s.absent {
		if ref.Name == name {
			m.Default = false
			s.absent[ref] = m
		}
	}
}

func snapshotModel(d rollout.Description) snapshot.Model {
	return snapshot.Model{
		Name: d.Ref.Name, Version: d.Ref.Version, Default: d.Default, File: marName(d), MinWorkers: d.MinWorkers, MaxWorkers: d.MaxWorkers,
		BatchSize: d.BatchSize, MaxBatchDelay: d.MaxBatchDelay, ResponseTimeout: d.ResponseTimeout, StartupTimeout: d.StartupTimeout,
		Runtime: d.Runtime, ParallelLevel: d.ParallelLevel, Handler: d.Handler,
	}
}

// marName is where the next start finds the archive: its place in the store, or for a folder from elsewhere its path. TorchServe notes the last part
// of the URL in any case.
func marName(d rollout.Description) string {
	where := cmp.Or(d.Source, d.URL)
	if u, err := url.Parse(where); err == nil && u.Scheme != "" {
		return fileName(u.Path) // it was fetched into the store
	}
	if filepath.IsAbs(where) && !isDir(where) {
		return fileName(where) // TorchServe looks for an archive in the store, whatever folder its URL names
	}
	return where
}

// fileName is the last part of a path, "" for one that has none.
func fileName(p string) string {
	if base := path.Base(p); base != "." && base != "/" {
		return base
	}
	return ""
}

// recorded are models whose changes are in a snapshot when the call returns.
type recorded struct {
	httpapi.Models

	snapshots *snapshots
}

// recorded gives models that keep what is changed by them.
func (s *snapshots) recorded(models httpapi.Models) httpapi.Models {
	if s == nil {
		return models
	}
	return recorded{models, s}
}

// Register implements httpapi.Models.
func (r recorded) Register(ctx context.Context, spec rollout.Spec) (rollout.Registered, error) {
	done, err := r.Models.Register(ctx, spec)
	r.snapshots.keep(ctx) // a failure may have taken the version back
	return done, err      //nolint:wrapcheck // the model store's words are the client's
}

// Scale implements httpapi.Models.
func (r recorded) Scale(ctx context.Context, ref infer.ModelRef, minimum, maximum int, synchronous bool) error {
	err := r.Models.Scale(ctx, ref, minimum, maximum, synchronous)
	r.snapshots.keep(ctx)
	return err //nolint:wrapcheck // the same
}

// Unregister implements httpapi.Models.
func (r recorded) Unregister(ctx context.Context, ref infer.ModelRef) error {
	err := r.Models.Unregister(ctx, ref)
	r.snapshots.keep(ctx)
	return err //nolint:wrapcheck // the same
}

// SetDefault implements httpapi.Models.
func (r recorded) SetDefault(ctx context.Context, ref infer.ModelRef) error {
	err := r.Models.SetDefault(ctx, ref)
	if err == nil {
		r.snapshots.chosen(ref.Name)
	}
	r.snapshots.keep(ctx)
	return err //nolint:wrapcheck // the same
}
