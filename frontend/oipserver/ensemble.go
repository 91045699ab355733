package oipserver

import (
	"strconv"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

type (
	// EnsembleScheduling are the steps of an ensemble.
	EnsembleScheduling struct {
		Steps []EnsembleStep `json:"step"`
	}
	// EnsembleStep is one of them. The maps have the ensemble's tensors by the model's own names.
	EnsembleStep struct {
		Model     string            `json:"model_name"`
		Version   int64             `json:"model_version"` // -1 for the default one
		Inputs    map[string]string `json:"input_map"`
		Outputs   map[string]string `json:"output_map"`
		Namespace string            `json:"model_namespace"`
	}
)

// ensembleOf gives the steps of an ensemble, nil for another model.
func ensembleOf(d *rollout.Description) *EnsembleScheduling {
	if d.Ports == nil || d.Ports.Steps == nil {
		return nil
	}
	e := &EnsembleScheduling{Steps: make([]EnsembleStep, 0, len(d.Ports.Steps))}
	for i := range d.Ports.Steps {
		s := &d.Ports.Steps[i]
		version, err := strconv.ParseInt(s.Version, 10, 64)
		if err != nil { // none, or one that Triton has no form for
			version = -1
		}
		e.Steps = append(e.Steps, EnsembleStep{Model: s.Model, Version: version, Inputs: s.Inputs, Outputs: s.Outputs})
	}
	return e
}

// stepsReady says whether the models of an ensemble are ready, too.
func (s *Server) stepsReady(d *rollout.Description) bool {
	if d.Ports == nil {
		return true
	}
	for i := range d.Ports.Steps {
		step := &d.Ports.Steps[i]
		if ready, err := s.ModelReady(infer.ModelRef{Name: step.Model, Version: step.Version}); err != nil || !ready {
			return false
		}
	}
	return true
}
