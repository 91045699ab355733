package oipserver

import (
	"encoding/json"
	"fmt"
	"slices"
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

// declare adds what only the model's config.pbtxt says: it has no effect here beyond what the other fields tell, or it is the model's own.
func (c *Config) declare(text json.RawMessage) error {
	if text == nil {
		return nil
	}
	var said struct {
		VersionPolicy VersionPolicy     `json:"version_policy"`
		DefaultFile   string            `json:"default_model_filename"`
		MetricTags    map[string]string `json:"metric_tags"`
		Parameters    map[string]Value  `json:"parameters"`
		Outputs       []struct {
			Name      string `json:"name"`
			LabelFile string `json:"label_filename"`
		} `json:"output"`
		Instances []struct {
			Name string `json:"name"`
		} `json:"instance_group"`
		DynamicBatching struct {
			Preferred []int `json:"preferred_batch_size"`
		} `json:"dynamic_batching"`
	}
	if err := json.Unmarshal(text, &said); err != nil {
		return fmt.Errorf("the model's config.pbtxt: %w", err)
	}
	c.VersionPolicy = said.VersionPolicy
	if c.VersionPolicy == (VersionPolicy{}) { // Triton's default
		c.VersionPolicy.Latest = &struct {
			Versions int `json:"num_versions"`
		}{1}
	}
	c.DefaultFile = said.DefaultFile
	if said.MetricTags != nil {
		c.MetricTags = said.MetricTags
	}
	if said.Parameters != nil {
		c.Parameters = said.Parameters
	}
	if c.DynamicBatching != nil && said.DynamicBatching.Preferred != nil {
		c.DynamicBatching.Preferred = said.DynamicBatching.Preferred
	}
	if len(said.Instances) == 1 && len(c.Instances) == 1 && said.Instances[0].Name != "" {
		c.Instances[0].Name = said.Instances[0].Name
	}
	for _, o := range said.Outputs {
		if at := slices.IndexFunc(c.Outputs, func(have ConfigOutput) bool { return have.Name == o.Name }); at >= 0 {
			c.Outputs[at].LabelFile = o.LabelFile
		}
	}
	return nil
}
