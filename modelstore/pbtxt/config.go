package pbtxt

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/internal/pipeline"
	tritonv1 "github.com/flambeau-serve/flambeau/proto/triton/v1"
)

// Config is what a text says about a model, in this server's terms.
type Config struct {
	Name     string // "" when it does not say
	ONNX     bool   // it is for ONNX Runtime
	Ensemble *pipeline.Definition
	File     string // of the model, in the folder of a version; "" when it does not say
	MaxBatch int    // rows of a request; 0: its tensors have no dimension for rows
	// Auto says that neither max_batch_size nor any tensor is declared: then the model itself says what it takes.
	Auto   bool
	Policy Policy

	Inputs, Outputs []Port

	Batching   *Batching  // nil: each request runs alone
	Sequences  *Sequences // nil: requests belong to no sequences
	Instances  *Instances // nil: it does not say
	WarmUp     []WarmUp
	Runtime    ONNX
	Parameters map[string]string

	// JSON is all that was read, in the words of Triton's model configuration.
	JSON     []byte
	Warnings []Warning
}

// Port is a tensor. Shape has the dimension of the rows, if there is one.
type Port struct {
	Name     string
	DataType string // in the words of the Open Inference Protocol
	Shape    []int64
	Labels   string // the file with the names of the classes, "" for none
}

// Batching is how requests are joined.
type Batching struct {
	Delay     time.Duration
	QueueSize int // 0: it does not say
	Levels    int // classes of priority; 0 for one
	Default   int // of a request that says nothing
	Preferred []int
}

// Sequences is how requests of a sequence find the same worker.
type Sequences struct {
	Idle time.Duration // how long one may pause
	Most int           // at the same time; 0: it does not say
	// Delay is how long a request may wait for those of other sequences.
	Delay time.Duration
}

// Instances are the copies of a model.
type Instances struct {
	Count int
	GPU   string // "gpu", "cpu", or "" for the server's choice
	GPUs  []int  // nil: all
}

// ONNX are settings of ONNX Runtime.
type ONNX struct {
	Optimize         string // all, extended, basic, off; "" for the default
	IntraOp, InterOp int
	Arena, Patterns  *bool
	Providers        []Provider
}

// Provider is what runs parts of a graph.
type Provider struct {
	Name    string
	Options map[string]string
}

// WarmUp is a request that is run before the model serves.
type WarmUp struct {
	Name   string
	Count  int
	Inputs []WarmUpInput // by name
}

// WarmUpInput is one of its tensors.
type WarmUpInput struct {
	Name, DataType string
	Shape          []int64 // with the dimension of the rows
	Random         bool
	File           string // in the model's folder warmup; "" for zeros, or for Random
}

// Parse reads a text. folder is what the model's folder is called, "" when that is not to be compared.
func Parse(text []byte, folder string) (*Config, error) {
	p, warnings, err := parse(text)
	if err != nil {
		return nil, err
	}
	c := &Config{Name: p.config.GetName(), MaxBatch: int(p.config.GetMaxBatchSize()), File: p.config.GetDefaultModelFilename(), Warnings: ignoredFields(warnings)}
	if folder != "" && c.Name != "" && c.Name != folder {
		return nil, p.refuse("rename the folder, or correct the name", p.line(0, "name"), "it is about the model %q, and lies in the folder of %q", c.Name, folder)
	}
	c.Auto = p.config.MaxBatchSize == nil && len(p.config.GetInput()) == 0 && len(p.config.GetOutput()) == 0 && p.config.GetEnsembleScheduling() == nil
	if c.MaxBatch < 0 {
		return nil, p.refuse("", p.line(0, "max_batch_size"), "max_batch_size is %d, and cannot be negative", c.MaxBatch)
	}
	for _, read := range []func(*parsed) error{
		c.backend, c.refusals, c.ports, c.policy, c.scheduling, c.instances, c.warmUp, c.runtime,
	} {
		if err := read(p); err != nil {
			return nil, err
		}
	}
	c.JSON, err = asJSON(p.config)
	return c, err
}

// ignoredFields makes one warning of all the fields that have no place here.
func ignoredFields(unknown []Warning) []Warning {
	if len(unknown) == 0 {
		return nil
	}
	names := make([]string, len(unknown))
	for i, w := range unknown {
		names[i] = fmt.Sprintf("%s (line %d)", w.Text, w.Line)
	}
	return []Warning{{unknown[0].Line, "fields that are not known here are left out: " + strings.Join(names, ", ")}}
}

func (c *Config) warn(line int, format string, args ...any) {
	c.Warnings = append(c.Warnings, Warning{line, fmt.Sprintf(format, args...)})
}

// What models there are.
const (
	backendONNX   = "onnxruntime"
	backendPython = "python"
	platformONNX  = "onnxruntime_onnx"
)

// backend finds out what runs the model.
func (c *Config) backend(p *parsed) error {
	platform, backend := p.config.GetPlatform(), p.config.GetBackend()
	line := cmp.Or(p.line(0, "backend"), p.line(0, "platform"))
	steps := p.config.GetEnsembleScheduling() != nil
	switch {
	case platform == pipeline.Runtime || steps && platform == "" && backend == "":
		if !steps {
			return p.refuse("", line, "the platform is ensemble, and there is no ensemble_scheduling with its steps")
		}
		return nil
	case steps:
		return p.refuse("", line, "it has ensemble_scheduling, so its platform has to be ensemble, not %s", cmp.Or(platform, backend))
	case platform == platformONNX, backend == backendONNX:
		c.ONNX = true
	case platform == "" && backend == "": // the model's file says
		if file := c.File; file != "" && !strings.HasSuffix(file, ".onnx") {
			return p.refuse("say backend: \"onnxruntime\" if it is an ONNX model", p.line(0, "default_model_filename"), "nothing says what runs the file %s", file)
		}
		c.ONNX = true
	case backend == backendPython:
		return p.refuse("write its execute as the handle of a handler, and put a .mar, or a folder with MAR-INF/MANIFEST.json, into the store: docs/triton.md shows how", line,
			"models of Triton's Python backend (model.py with TritonPythonModel) are not run here")
	default:
		return p.refuse("export the model to ONNX, or write a handler for it: docs/triton.md says what there is", line,
			"there is no backend %q here; there are onnxruntime and ensemble", cmp.Or(backend, platform))
	}
	return nil
}

// refusals looks for what would make the model answer otherwise than the text wants.
func (c *Config) refusals(p *parsed) error {
	switch {
	case len(p.config.GetBatchInput()) > 0:
		return p.refuse("leave the tensor in the request", p.line(0, "batch_input"), "batch_input wants the server to make inputs, which it does not")
	case len(p.config.GetBatchOutput()) > 0:
		return p.refuse("", p.line(0, "batch_output"), "batch_output wants the server to cut outputs, which it does not")
	case p.config.GetResponseCache().GetEnable():
		c.warn(p.line(0, "response_cache"), "response_cache is left out: answers are not kept")
	}
	if p.config.GetModelTransactionPolicy().GetDecoupled() && c.ONNX {
		c.warn(p.line(0, "model_transaction_policy"), "model_transaction_policy is left out: an ONNX model has one answer")
	}
	return nil
}

// ports reads inputs and outputs.
func (c *Config) ports(p *parsed) error {
	for i, in := range p.config.GetInput() {
		line := p.line(i, "input")
		switch {
		case in.GetReshape() != nil:
			return p.refuse("give the dims that the model itself has", cmp.Or(p.line(i, "input", "reshape"), line), "the input %q is to be reshaped, which is not done here", in.GetName())
		case in.GetAllowRaggedBatch():
			return p.refuse("", cmp.Or(p.line(i, "input", "allow_ragged_batch"), line), "the input %q allows ragged batches, which are not made here", in.GetName())
		case in.GetOptional():
			c.warn(line, "the input %q is optional, and has to be sent all the same", in.GetName())
		}
		port, err := c.port(p, line, in.GetName(), in.GetDataType(), in.GetDims())
		if err != nil {
			return err
		}
		c.Inputs = append(c.Inputs, port)
	}
	for i, out := range p.config.GetOutput() {
		line := p.line(i, "output")
		if out.GetReshape() != nil {
			return p.refuse("give the dims that the model itself has", cmp.Or(p.line(i, "output", "reshape"), line), "the output %q is to be reshaped, which is not done here", out.GetName())
		}
		port, err := c.port(p, line, out.GetName(), out.GetDataType(), out.GetDims())
		if err != nil {
			return err
		}
		port.Labels = out.GetLabelFilename()
		c.Outputs = append(c.Outputs, port)
	}
	return nil
}

func (c *Config) port(p *parsed, line int, name string, dtype tritonv1.DataType, dims []int64) (Port, error) {
	switch {
	case name == "":
		return Port{}, p.refuse("", line, "a tensor has no name")
	case dtype == tritonv1.DataType_TYPE_INVALID:
		return Port{}, p.refuse("", line, "the tensor %q has no data_type", name)
	}
	shape := make([]int64, 0, len(dims)+1)
	if c.MaxBatch > 0 {
		shape = append(shape, -1)
	}
	for _, d := range dims {
		if d < -1 || d == 0 {
			return Port{}, p.refuse("", line, "the tensor %q has a dimension of %d: it has to be positive, or -1 for any size", name, d)
		}
		shape = append(shape, d)
	}
	return Port{Name: name, DataType: protocolType(dtype), Shape: shape}, nil
}

// protocolType is a type in the words of the Open Inference Protocol.
func protocolType(d tritonv1.DataType) string {
	if d == tritonv1.DataType_TYPE_STRING {
		return "BYTES"
	}
	return strings.TrimPrefix(d.String(), "TYPE_")
}

// scheduling reads how requests are joined, or of which models the model is made.
func (c *Config) scheduling(p *parsed) error {
	switch {
	case p.config.GetDynamicBatching() != nil:
		return c.dynamicBatching(p, p.config.GetDynamicBatching())
	case p.config.GetSequenceBatching() != nil:
		return c.sequenceBatching(p, p.config.GetSequenceBatching())
	case p.config.GetEnsembleScheduling() != nil:
		return c.ensemble(p, p.config.GetEnsembleScheduling())
	}
	return nil
}

func (c *Config) dynamicBatching(p *parsed, d *tritonv1.DynamicBatching) error {
	const name = "dynamic_batching"
	at := func(sub string) int { return p.line(0, name, sub) }
	if c.Auto {
		c.MaxBatch = autoBatch
	}
	if c.MaxBatch == 0 {
		c.warn(p.line(0, name), "dynamic_batching has no effect with a max_batch_size of 0: the tensors have no dimension for rows")
		return nil
	}
	var preferred []int
	for _, size := range d.GetPreferredBatchSize() {
		if size < 1 || int(size) > c.MaxBatch {
			return p.refuse("", at("preferred_batch_size"), "the preferred_batch_size %d is not between 1 and max_batch_size, which is %d", size, c.MaxBatch)
		}
		preferred = append(preferred, int(size))
	}
	levels, standard := d.GetPriorityLevels(), d.GetDefaultPriorityLevel()
	if standard > levels || levels > 0 && standard == 0 {
		return p.refuse("", at("default_priority_level"), "default_priority_level is %d, and there are %d priority_levels", standard, levels)
	}
	if levels > maxLevels {
		return p.refuse("", at("priority_levels"), "there are %d priority_levels, and at most %d are possible", levels, maxLevels)
	}
	q := d.GetDefaultQueuePolicy()
	if q.GetDefaultTimeoutMicroseconds() > 0 {
		c.warn(p.line(0, name, "default_queue_policy", "default_timeout_microseconds"),
			"default_timeout_microseconds is left out: a request's own parameter timeout, or clientTimeoutInMills in model-config.yaml, bounds the whole of it")
	}
	if len(d.GetPriorityQueuePolicy()) > 0 {
		c.warn(at("priority_queue_policy"), "priority_queue_policy is left out: the classes share one queue size")
	}
	c.Batching = &Batching{
		Delay: micros(d.GetMaxQueueDelayMicroseconds()), QueueSize: int(q.GetMaxQueueSize()), Levels: int(levels), Default: int(standard), Preferred: preferred,
	}
	return nil
}

// autoBatch is the largest batch of a model whose text wants batches and does not say how large: Triton's.
const autoBatch = 4

// maxLevels bounds what the queue has to look at.
const maxLevels = 100

// micros makes a time of microseconds; what is longer than anybody waits is that.
func micros(us uint64) time.Duration {
	const most = 24 * time.Hour
	return time.Duration(min(us, uint64(most/time.Microsecond))) * time.Microsecond
}

// defaultIdle is Triton's for a sequence that does not say.
const defaultIdle = time.Second

func (c *Config) sequenceBatching(p *parsed, s *tritonv1.SequenceBatching) error {
	const name = "sequence_batching"
	for sub, given := range map[string]bool{
		"control_input": len(s.GetControlInput()) > 0, "state": len(s.GetState()) > 0, "iterative_sequence": s.GetIterativeSequence(),
	} {
		if given {
			return p.refuse("a handler or a plugin can keep state: it sees the sequence in the headers of a request", p.line(0, name, sub),
				"%s wants the server to make inputs of the sequence's state, which it does not", sub)
		}
	}
	idle := micros(s.GetMaxSequenceIdleMicroseconds())
	c.Sequences = &Sequences{Idle: cmp.Or(idle, defaultIdle), Most: max(c.MaxBatch, 1), Delay: micros(s.GetDirect().GetMaxQueueDelayMicroseconds())}
	if o := s.GetOldest(); o != nil {
		if o.GetMaxCandidateSequences() < 1 {
			return p.refuse("", p.line(0, name, "oldest"), "max_candidate_sequences has to be at least 1")
		}
		c.Sequences.Most, c.Sequences.Delay = int(o.GetMaxCandidateSequences()), micros(o.GetMaxQueueDelayMicroseconds())
	}
	return nil
}

func (c *Config) ensemble(p *parsed, e *tritonv1.EnsembleScheduling) error {
	d := &pipeline.Definition{MaxBatch: c.MaxBatch, Inputs: portsOf(c.Inputs), Outputs: portsOf(c.Outputs)}
	for _, s := range e.GetStep() {
		if s.GetModelNamespace() != "" {
			return p.refuse("leave it out: the store has one space of names", p.line(0, "ensemble_scheduling"), "the step of %s has a model_namespace", s.GetModelName())
		}
		step := pipeline.Step{Model: s.GetModelName(), Inputs: s.GetInputMap(), Outputs: s.GetOutputMap()}
		if v := s.GetModelVersion(); v > 0 {
			step.Version = strconv.FormatInt(v, 10)
		}
		d.Steps = append(d.Steps, step)
	}
	if _, err := d.Checked(); err != nil {
		return p.refuse("docs/ensembles.md has the rules", p.line(0, "ensemble_scheduling"), "%v", err)
	}
	c.Ensemble = d
	return nil
}

// portsOf gives ports as those of a pipeline; not nil, since Triton wants them to be said.
func portsOf(ports []Port) []pipeline.Port {
	all := make([]pipeline.Port, 0, len(ports))
	for _, port := range ports {
		all = append(all, pipeline.Port{Name: port.Name, DataType: port.DataType, Shape: port.Shape})
	}
	return all
}

// instances reads how many workers there are, and where.
func (c *Config) instances(p *parsed) error {
	groups := p.config.GetInstanceGroup()
	if len(groups) == 0 || c.Ensemble != nil {
		return nil
	}
	in := &Instances{}
	for i, g := range groups {
		line := p.line(i, "instance_group")
		kind := ""
		switch g.GetKind() {
		case tritonv1.InstanceGroup_KIND_CPU:
			kind = "cpu"
		case tritonv1.InstanceGroup_KIND_GPU:
			kind = "gpu"
		case tritonv1.InstanceGroup_KIND_AUTO, tritonv1.InstanceGroup_KIND_MODEL:
		}
		if i > 0 && kind != in.GPU {
			return p.refuse("put the model into the store twice, under two names, to have it on both", line, "the groups of instances are of different kinds, and the workers of a model are all of one")
		}
		if g.GetCount() < 0 {
			return p.refuse("", line, "the count of an instance_group cannot be negative")
		}
		in.GPU = kind
		count := max(int(g.GetCount()), 1)
		for _, id := range g.GetGpus() {
			if id < 0 {
				return p.refuse("", line, "there is no GPU %d", id)
			}
			if !slices.Contains(in.GPUs, int(id)) {
				in.GPUs = append(in.GPUs, int(id))
			}
		}
		in.Count += count * max(len(g.GetGpus()), 1)
	}
	const most = 1024
	if in.Count > most {
		return p.refuse("", p.line(0, "instance_group"), "there are %d instances, and at most %d are possible", in.Count, most)
	}
	c.Instances = in
	return nil
}

// runtime reads what is for ONNX Runtime, and the model's own settings.
func (c *Config) runtime(p *parsed) error {
	for name, value := range p.config.GetParameters() {
		if c.Parameters == nil {
			c.Parameters = map[string]string{}
		}
		c.Parameters[name] = value.GetStringValue()
	}
	if !c.ONNX {
		return nil
	}
	o := p.config.GetOptimization()
	switch level := o.GetGraph().GetLevel(); level {
	case 0:
	case -1:
		c.Runtime.Optimize = "basic"
	case 1:
		c.Runtime.Optimize = "extended"
	case 2: //nolint:mnd // Triton's number for none
		c.Runtime.Optimize = "off"
	default:
		return p.refuse("", p.line(0, "optimization", "graph"), "the graph's level %d is none of -1 (basic), 0 (all), 1 (extended), 2 (off)", level)
	}
	for _, a := range o.GetExecutionAccelerators().GetGpuExecutionAccelerator() {
		c.Runtime.Providers = append(c.Runtime.Providers, accelerator(a.GetName(), a.GetParameters()))
	}
	if n := len(c.Runtime.Providers); n > 0 && c.Runtime.Providers[n-1].Name == providerTensorRT { // what it cannot run falls to CUDA
		c.Runtime.Providers = append(c.Runtime.Providers, Provider{Name: providerCUDA})
	}
	for _, a := range o.GetExecutionAccelerators().GetCpuExecutionAccelerator() {
		c.Runtime.Providers = append(c.Runtime.Providers, accelerator(a.GetName(), a.GetParameters()))
	}
	return c.runtimeParameters(p)
}

// The execution providers that are known by name.
const (
	providerTensorRT = "TensorRT"
	providerCUDA     = "CUDA"
	providerOpenVINO = "OpenVINO"
)

// accelerator translates Triton's name and settings of an execution provider to those of ONNX Runtime.
func accelerator(name string, given map[string]string) Provider {
	p := Provider{Name: name, Options: map[string]string{}}
	switch strings.ToLower(name) {
	case "tensorrt":
		p.Name = providerTensorRT
	case "cuda":
		p.Name = providerCUDA
	case "openvino":
		p.Name = providerOpenVINO
	}
	for _, key := range slices.Sorted(maps.Keys(given)) {
		value := given[key]
		switch {
		case p.Name != providerTensorRT:
			p.Options[key] = value
		case key == "precision_mode":
			switch strings.ToUpper(value) {
			case "FP16":
				p.Options["trt_fp16_enable"] = "1"
			case "INT8":
				p.Options["trt_int8_enable"] = "1"
			}
		case key == "max_workspace_size_bytes":
			p.Options["trt_max_workspace_size"] = value
		case strings.HasPrefix(key, "int8_"):
			p.Options["trt_"+key] = value
		default:
			p.Options[key] = value
		}
	}
	return p
}

// runtimeParameters reads the parameters that Triton's backend for ONNX Runtime knows.
func (c *Config) runtimeParameters(p *parsed) error {
	r := &c.Runtime
	number := func(name string, into *int) error {
		text, given := c.Parameters[name]
		if !given {
			return nil
		}
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < 0 {
			return p.refuse("", p.line(0, "parameters"), "the parameter %s is %q, and has to be a number", name, text)
		}
		*into = n
		return nil
	}
	boolean := func(name string, into **bool) error {
		text, given := c.Parameters[name]
		if !given {
			return nil
		}
		b, err := strconv.ParseBool(strings.ToLower(strings.TrimSpace(text)))
		if err != nil {
			return p.refuse("", p.line(0, "parameters"), "the parameter %s is %q, and has to be 0 or 1", name, text)
		}
		*into = &b
		return nil
	}
	mode := 0
	for _, err := range []error{
		number("intra_op_thread_count", &r.IntraOp), number("inter_op_thread_count", &r.InterOp), number("execution_mode", &mode),
		boolean("enable_mem_arena", &r.Arena), boolean("enable_mem_pattern", &r.Patterns),
	} {
		if err != nil {
			return err
		}
	}
	switch {
	case mode > 1:
		return p.refuse("", p.line(0, "parameters"), "the parameter execution_mode is %d, and has to be 0 or 1", mode)
	case mode == 0:
		r.InterOp = 0 // it counts only when parts of the graph run beside each other
	case r.InterOp < 2: //nolint:mnd // one runs nothing beside another
		r.InterOp = 2
	}
	return nil
}
