package oipserver

import (
	"slices"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/dispatch"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// The answers, as both fronts write them: the names are the protocol's.
type (
	// ServerMetadata describes the server.
	ServerMetadata struct {
		Name       string   `json:"name"`
		Version    string   `json:"version"`
		Extensions []string `json:"extensions"`
	}
	// Port is an input or output of a model.
	Port struct {
		Name     string  `json:"name"`
		Datatype string  `json:"datatype"`
		Shape    []int64 `json:"shape"` // -1 is any length
	}
	// ModelMetadata describes a model.
	ModelMetadata struct {
		Name     string   `json:"name"`
		Versions []string `json:"versions"`
		Platform string   `json:"platform"`
		Inputs   []Port   `json:"inputs"`
		Outputs  []Port   `json:"outputs"`
	}
	// Duration is how often something was done and how long all that took.
	Duration struct {
		Count int64 `json:"count"`
		NS    int64 `json:"ns"`
	}
	// InferenceStats are where the time of requests went.
	InferenceStats struct {
		Success       Duration `json:"success"`
		Fail          Duration `json:"fail"`
		Queue         Duration `json:"queue"`
		ComputeInput  Duration `json:"compute_input"`
		ComputeInfer  Duration `json:"compute_infer"`
		ComputeOutput Duration `json:"compute_output"`
		CacheHit      Duration `json:"cache_hit"`
		CacheMiss     Duration `json:"cache_miss"`
	}
	// BatchStats are the executions of one batch size.
	BatchStats struct {
		Size          int64    `json:"batch_size"`
		ComputeInput  Duration `json:"compute_input"`
		ComputeInfer  Duration `json:"compute_infer"`
		ComputeOutput Duration `json:"compute_output"`
	}
	// ModelStats are what a version has done.
	ModelStats struct {
		Name       string         `json:"name"`
		Version    string         `json:"version"`
		Last       int64          `json:"last_inference"` // milliseconds since 1970
		Inferences int64          `json:"inference_count"`
		Executions int64          `json:"execution_count"`
		Inference  InferenceStats `json:"inference_stats"`
		Batches    []BatchStats   `json:"batch_stats"`
	}
	// StatisticsAnswer is what versions have done.
	StatisticsAnswer struct {
		Models []ModelStats `json:"model_stats"`
	}
)

// extensions are those of the protocol's extensions that are answered.
var extensions = []string{ //nolint:gochecknoglobals // a constant list
	"classification", "sequence", "model_repository", "model_repository(unload_dependents)", "schedule_policy", "model_configuration", "binary_tensor_data",
	"parameters", "statistics", "trace", "logging",
}

// Metadata describes the server.
func (s *Server) Metadata() ServerMetadata {
	all := slices.Clone(extensions)
	if s.memory != nil {
		all = append(all, "system_shared_memory")
	}
	return ServerMetadata{Name: "flambeau", Version: s.opts.Version, Extensions: all}
}

// Model describes a model. Inputs and outputs are empty for a backend that does not say what they are, and before one is ready.
func (s *Server) Model(ref infer.ModelRef) (ModelMetadata, error) {
	d, err := s.opts.Models.Describe(ref)
	if err != nil {
		return ModelMetadata{}, err //nolint:wrapcheck // the model store's words are the client's
	}
	m := ModelMetadata{Name: d.Ref.Name, Versions: []string{d.Ref.Version}, Platform: platform(&d), Inputs: []Port{}, Outputs: []Port{}}
	if ref.Version == "" {
		m.Versions = nil
		all, err := s.opts.Models.DescribeAll(ref.Name)
		if err != nil {
			return ModelMetadata{}, err //nolint:wrapcheck // the same
		}
		for i := range all {
			m.Versions = append(m.Versions, all[i].Ref.Version)
		}
	}
	if d.Ports != nil {
		m.Inputs, m.Outputs = portsOf(d.Ports.Inputs), portsOf(d.Ports.Outputs)
	}
	return m, nil
}

func portsOf(all []backend.Port) []Port {
	ports := make([]Port, 0, len(all))
	for _, p := range all {
		shape := p.Shape
		if shape == nil {
			shape = []int64{}
		}
		ports = append(ports, Port{p.Name, p.DataType, shape})
	}
	return ports
}

func platform(d *rollout.Description) string {
	switch {
	case d.Ports != nil && d.Ports.Platform != "":
		return d.Ports.Platform
	case strings.EqualFold(d.Runtime, "onnx"):
		return "onnxruntime_onnx"
	}
	return d.Runtime
}

// Stats gives what a version has done; without a version all versions of the model, and without a name all of all models.
func (s *Server) Stats(ref infer.ModelRef) (StatisticsAnswer, error) {
	answer := StatisticsAnswer{Models: []ModelStats{}}
	if ref.Version != "" {
		d, err := s.opts.Models.Describe(ref)
		if err != nil {
			return answer, err //nolint:wrapcheck // the model store's words are the client's
		}
		answer.Models = append(answer.Models, s.stats(d.Ref))
		return answer, nil
	}
	names := []string{ref.Name}
	if ref.Name == "" {
		names = nil
		for _, l := range s.opts.Models.List() {
			names = append(names, l.Name)
		}
	}
	for _, name := range names {
		all, err := s.opts.Models.DescribeAll(name)
		if err != nil && ref.Name != "" {
			return answer, err //nolint:wrapcheck // the model store's words are the client's
		}
		for i := range all { // none of one that went away meanwhile
			answer.Models = append(answer.Models, s.stats(all[i].Ref))
		}
	}
	return answer, nil
}

// stats counts no time for inputs and outputs: they are made in the worker, within the time of the inference.
func (s *Server) stats(ref infer.ModelRef) ModelStats {
	m := ModelStats{Name: ref.Name, Version: ref.Version, Batches: []BatchStats{}}
	if s.opts.Statistics == nil {
		return m
	}
	st := s.opts.Statistics.Stats(ref)
	m.Inferences, m.Executions = st.Inferences, st.Executions
	if !st.Last.IsZero() {
		m.Last = st.Last.UnixNano() / int64(time.Millisecond)
	}
	none := Duration{Count: st.Success.Count}
	m.Inference = InferenceStats{
		Success: spent(st.Success), Fail: spent(st.Fail), Queue: spent(st.Queue), ComputeInput: none, ComputeInfer: spent(st.Compute), ComputeOutput: none,
	}
	for _, b := range st.Batches {
		none := Duration{Count: b.Compute.Count}
		m.Batches = append(m.Batches, BatchStats{Size: int64(b.Rows), ComputeInput: none, ComputeInfer: spent(b.Compute), ComputeOutput: none})
	}
	return m
}

func spent(s dispatch.Spent) Duration { return Duration{s.Count, s.Time.Nanoseconds()} }
