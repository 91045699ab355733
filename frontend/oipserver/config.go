package oipserver

import (
	"encoding/json"
	"strings"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// The configuration of a model in Triton's words. It says how the model runs here; nothing is read from it.
type (
	// Config is a model's.
	Config struct {
		Name            string            `json:"name"`
		Platform        string            `json:"platform"`
		Backend         string            `json:"backend"`
		Runtime         string            `json:"runtime"`
		VersionPolicy   VersionPolicy     `json:"version_policy"`
		MaxBatch        int               `json:"max_batch_size"`
		Inputs          []ConfigInput     `json:"input"`
		Outputs         []ConfigOutput    `json:"output"`
		Instances       []InstanceGroup   `json:"instance_group"`
		DefaultFile     string            `json:"default_model_filename"`
		MetricTags      map[string]string `json:"metric_tags"`
		Parameters      map[string]Value  `json:"parameters"`
		DynamicBatching *DynamicBatching  `json:"dynamic_batching,omitempty"`
		Sequences       *Sequences        `json:"sequence_batching,omitempty"`
		Transactions    Transactions      `json:"model_transaction_policy"`

		Ensemble *EnsembleScheduling `json:"ensemble_scheduling,omitempty"`
	}
	// Value is a setting of the model's own.
	Value struct {
		Text string `json:"string_value"`
	}
	// VersionPolicy says which versions are served that are there. One is not nil.
	VersionPolicy struct {
		All    *struct{} `json:"all,omitempty"`
		Latest *struct {
			Versions int `json:"num_versions"`
		} `json:"latest,omitempty"`
		Specific *struct {
			Versions []json.Number `json:"versions"`
		} `json:"specific,omitempty"`
	}
	// ConfigInput is an input. Dims leaves the dimension of the rows out when MaxBatch is not 0.
	ConfigInput struct {
		Name          string  `json:"name"`
		DataType      string  `json:"data_type"`
		Format        string  `json:"format"`
		Dims          []int64 `json:"dims"`
		IsShapeTensor bool    `json:"is_shape_tensor"`
		Ragged        bool    `json:"allow_ragged_batch"`
		Optional      bool    `json:"optional"`
	}
	// ConfigOutput is an output.
	ConfigOutput struct {
		Name          string  `json:"name"`
		DataType      string  `json:"data_type"`
		Dims          []int64 `json:"dims"`
		LabelFile     string  `json:"label_filename"`
		IsShapeTensor bool    `json:"is_shape_tensor"`
	}
	// InstanceGroup are the workers.
	InstanceGroup struct {
		Name  string `json:"name"`
		Kind  string `json:"kind"`
		Count int    `json:"count"`
		GPUs  []int  `json:"gpus"`
	}
	// DynamicBatching is how requests are gathered.
	DynamicBatching struct {
		Preferred []int `json:"preferred_batch_size"`
		Delay     int64 `json:"max_queue_delay_microseconds"`
	}
	// Sequences is how long a sequence may pause.
	Sequences struct {
		Idle int64 `json:"max_sequence_idle_microseconds"`
	}
	// Transactions says whether a request may have several answers.
	Transactions struct {
		Decoupled bool `json:"decoupled"`
	}
)

// Config gives the configuration of a model version.
func (s *Server) Config(ref infer.ModelRef) (Config, error) {
	d, err := s.opts.Models.Describe(ref)
	if err != nil {
		return Config{}, err //nolint:wrapcheck // the model store's words are the client's
	}
	c := Config{
		Name: d.Ref.Name, Platform: platform(&d), Backend: backendName(&d), MaxBatch: maxBatch(&d), Inputs: []ConfigInput{}, Outputs: []ConfigOutput{},
		VersionPolicy: VersionPolicy{All: &struct{}{}}, MetricTags: map[string]string{}, Parameters: map[string]Value{}, Transactions: Transactions{d.Features[featureStreams]},
		Instances: []InstanceGroup{{Name: d.Ref.Name, Kind: "KIND_CPU", Count: d.MinWorkers, GPUs: []int{}}}, Ensemble: ensembleOf(&d),
	}
	if c.Ensemble != nil {
		c.Backend, c.Instances = "", []InstanceGroup{} // as Triton has it
	}
	if d.DeviceType == "gpu" && len(c.Instances) > 0 {
		c.Instances[0].Kind = "KIND_GPU"
		c.Instances[0].GPUs = append(c.Instances[0].GPUs, d.DeviceIDs...)
	}
	if d.Stateful {
		c.Sequences = &Sequences{d.SequenceMaxIdle.Microseconds()}
	} else if d.BatchSize > 1 {
		c.DynamicBatching = &DynamicBatching{Preferred: []int{}, Delay: d.MaxBatchDelay.Microseconds()}
	}
	if d.Ports == nil {
		return c, c.declare(d.Triton)
	}
	for _, p := range d.Ports.Inputs {
		c.Inputs = append(c.Inputs, ConfigInput{Name: p.Name, DataType: configType(p.DataType), Format: "FORMAT_NONE", Dims: dims(&p, c.MaxBatch)})
	}
	for _, p := range d.Ports.Outputs {
		c.Outputs = append(c.Outputs, ConfigOutput{Name: p.Name, DataType: configType(p.DataType), Dims: dims(&p, c.MaxBatch)})
	}
	return c, c.declare(d.Triton)
}

// featureStreams is what a backend announces that may answer in pieces.
const featureStreams = "streams"

func backendName(d *rollout.Description) string {
	if name, _, found := strings.Cut(platform(d), "_"); found {
		return name
	}
	return platform(d)
}

// maxBatch is how many rows one request may have, 0 when there is no dimension for them.
func maxBatch(d *rollout.Description) int {
	if d.Ports == nil {
		return 0
	}
	return max(d.Ports.MaxBatch, 0)
}

func dims(p *backend.Port, maxBatch int) []int64 {
	if maxBatch > 0 && len(p.Shape) > 0 {
		return append([]int64{}, p.Shape[1:]...)
	}
	return append([]int64{}, p.Shape...)
}

func configType(datatype string) string {
	if datatype == "BYTES" {
		return "TYPE_STRING"
	}
	return "TYPE_" + datatype
}
