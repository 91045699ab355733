package oipserver

import (
	"context"
	"slices"
	"strings"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// IndexEntry is a model version in the index of the repository.
type IndexEntry struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	State   string `json:"state,omitempty"` // READY, UNAVAILABLE, LOADING, UNLOADING
	Reason  string `json:"reason,omitempty"`
}

const (
	stateReady       = "READY"
	stateUnavailable = "UNAVAILABLE"
	stateLoading     = "LOADING"
	stateUnloading   = "UNLOADING"
)

// Index lists all versions that are registered, and, unless only those are wanted that are ready, what else the store holds.
func (s *Server) Index(ready bool) []IndexEntry {
	index := []IndexEntry{}
	registered := map[infer.ModelRef]bool{}
	for _, l := range s.opts.Models.List() {
		all, err := s.opts.Models.DescribeAll(l.Name)
		if err != nil {
			continue // it went away in this moment
		}
		for i := range all {
			d := &all[i]
			registered[d.Ref] = true
			e := IndexEntry{Name: d.Ref.Name, Version: d.Ref.Version}
			if e.State, e.Reason = stateOf(d); e.State == stateReady || !ready {
				index = append(index, e)
			}
		}
	}
	if s.opts.Store == nil || ready {
		return index
	}
	for _, a := range s.opts.Store.Archives() {
		ref := infer.ModelRef{Name: a.Model, Version: a.Version}
		if a.Model == "" || registered[ref] {
			continue
		}
		registered[ref] = true
		index = append(index, IndexEntry{Name: a.Model, Version: a.Version, State: stateUnavailable, Reason: a.Why})
	}
	slices.SortStableFunc(index, func(a, b IndexEntry) int { return strings.Compare(a.Name, b.Name) })
	return index
}

func stateOf(d *rollout.Description) (state, reason string) {
	switch {
	case d.State == "draining":
		return stateUnloading, ""
	case isReady(d):
		return stateReady, ""
	case d.State == "deploying":
		return stateLoading, ""
	}
	return stateUnavailable, d.Reason
}

func (s *Server) allowed() error {
	if s.opts.ModelAPI {
		return nil
	}
	f := fault.New(fault.MethodNotAllowed, "models cannot be loaded and unloaded over the API of this server", nil)
	f.Hint = "Start it with enable_model_api=true (--enable-model-api)."
	return f
}

// Load loads a model from the store, looks at the files of one that is loaded again, or registers one again that was unloaded. It returns when the
// model serves. With overrides it serves as these say, until it is loaded without, or its files in the store change.
func (s *Server) Load(ctx context.Context, name string, o Overrides) error {
	if err := s.allowed(); err != nil {
		return err
	}
	if o.Config != "" || len(o.Files) > 0 {
		return s.loadWith(ctx, name, o)
	}
	if err := s.restore(ctx, name); err != nil {
		return err
	}
	return s.load(ctx, name)
}

// load loads a model as the store has it.
func (s *Server) load(ctx context.Context, name string) error {
	s.mu.Lock()
	specs := s.unloaded[name]
	s.mu.Unlock()
	fetched := len(specs) > 0 && strings.Contains(specs[0].URL, "://") // its file has gone with it, which the store may not have seen yet
	if s.opts.Store != nil && !fetched {
		err := s.opts.Store.Reload(ctx, name)
		if !fault.Is(err, fault.ModelNotFound) {
			return err //nolint:wrapcheck // the model store's words are the client's
		}
	}
	if len(specs) == 0 {
		if _, err := s.opts.Models.Describe(infer.ModelRef{Name: name}); err == nil {
			return nil // it is loaded, and its archive is not one of the store
		}
		return fault.Newf(fault.ModelNotFound, "failed to load '%s': the model store has no such model", name)
	}
	for _, spec := range specs {
		if _, err := s.opts.Models.Register(ctx, spec); err != nil && !fault.Is(err, fault.Conflict) {
			return err //nolint:wrapcheck // the same
		}
	}
	s.mu.Lock()
	delete(s.unloaded, name)
	s.mu.Unlock()
	return nil
}

// Unload unregisters all versions of a model, and with dependents then those of the models that only it needed, as Triton does for the members of an
// ensemble. One that is not there is none to unload.
func (s *Server) Unload(ctx context.Context, name string, dependents bool) error {
	if err := s.allowed(); err != nil {
		return err
	}
	var needed []string
	if dependents && s.opts.Dependents != nil {
		needed = s.opts.Dependents.DependentsOf(name) // before the model goes
	}
	defer s.forgetTraces()
	for _, one := range append([]string{name}, needed...) {
		if err := s.unload(ctx, one); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) unload(ctx context.Context, name string) error {
	all, err := s.opts.Models.DescribeAll(name)
	if fault.Is(err, fault.ModelNotFound) {
		return nil
	}
	if err != nil {
		return err //nolint:wrapcheck // the model store's words are the client's
	}
	slices.SortStableFunc(all, func(a, b rollout.Description) int { // the default version goes last: the others could not go after it
		return rank(a.Default) - rank(b.Default)
	})
	var specs []rollout.Spec
	for i := range all {
		d := &all[i]
		if err := s.opts.Models.Unregister(ctx, d.Ref); err != nil && !fault.Is(err, fault.ModelNotFound, fault.VersionNotFound) {
			return err //nolint:wrapcheck // the same
		}
		specs = append(specs, rollout.Spec{
			URL: d.Address, Name: d.Ref.Name, Handler: d.Handler, BatchSize: &d.BatchSize, MaxBatchDelay: &d.MaxBatchDelay, InitialWorkers: &d.MinWorkers,
			ResponseTimeout: &d.ResponseTimeout, StartupTimeout: &d.StartupTimeout, Synchronous: true,
		})
	}
	slices.Reverse(specs) // the default version is registered first, and is it again
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.overridden[name].files { // they are gone
		specs = nil
	}
	delete(s.overridden, name)
	s.unloaded[name] = specs
	return nil
}

func rank(isDefault bool) int {
	if isDefault {
		return 1
	}
	return 0
}
