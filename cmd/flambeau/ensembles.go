package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/flambeau-serve/flambeau/frontend/dispatch"
	"github.com/flambeau-serve/flambeau/frontend/ensemble"
	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/frontend/oipserver"
	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// stepModels are the models that the steps of ensembles run on.
type stepModels struct {
	models   *rollout.Manager
	steps    dispatch.Steps
	protocol *oipserver.Server

	mu      sync.Mutex    // guards changed
	changed chan struct{} // closed at the next change
}

func newStepModels() *stepModels { return &stepModels{changed: make(chan struct{})} }

// bind gives it what is made after the launcher that asks it. Nothing is loaded before.
func (s *stepModels) bind(cfg *config.Config, models *rollout.Manager, dispatcher *dispatch.Dispatcher) (err error) {
	s.models, s.steps = models, dispatcher.Steps()
	s.protocol, err = oipserver.New(oipserver.Options{
		Predictor: s.steps, Models: models, Version: version, Sequence: dispatch.SequenceHeaders(cfg.SequenceHeaders),
	})
	if err != nil {
		return fmt.Errorf("the steps of ensembles: %w", err)
	}
	return nil
}

// notify tells those that wait for a change.
func (s *stepModels) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// Changed implements ensemble.Models.
func (s *stepModels) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Member implements ensemble.Models.
func (s *stepModels) Member(ref infer.ModelRef) (ensemble.Member, error) {
	d, err := s.models.Describe(ref)
	if err != nil {
		return ensemble.Member{}, err //nolint:wrapcheck // the ensemble says which step it is about
	}
	return memberOf(&d), nil
}

// memberOf says what an ensemble has to know of a version. One that sleeps is ready: the ensemble's next request has it started.
func memberOf(d *rollout.Description) ensemble.Member {
	m := ensemble.Member{Ready: d.Dormant, Reason: d.Reason, Failed: !d.Dormant && (d.State == "failed" || d.State == "idle"), Ports: d.Ports}
	for i := range d.Workers {
		m.Ready = m.Ready || d.Workers[i].Ready
	}
	return m
}

// Infer implements ensemble.Models.
func (s *stepModels) Infer(ctx context.Context, ref infer.ModelRef, call ensemble.Call) (*oip.Response, error) {
	answer, err := s.protocol.Infer(ctx, ref, &oipserver.Call{ID: call.ID, Header: call.Header, Request: call.Request}, false)
	return answer.Response, err //nolint:wrapcheck // the same
}

// Submit implements ensemble.Models.
func (s *stepModels) Submit(ctx context.Context, ref infer.ModelRef, item infer.Item) (infer.Result, error) {
	return s.steps.Submit(ctx, ref, item) //nolint:wrapcheck // the same
}

// ensembleCommand says how an ensemble is started.
func ensembleCommand(r *rollout.ProcessRequest) (backend.ProcessSpec, error) {
	if r.Ensemble == nil {
		return backend.ProcessSpec{}, errors.New("the runtime of the model is ensemble, and it has no steps: docs/ensembles.md says how an ensemble is written")
	}
	return ensemble.Command(r.Ensemble) //nolint:wrapcheck // rollout says which worker it is about
}
