package archive

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/pipeline"
)

const tritonConfig = `name: "add"
backend: "onnxruntime"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 label_filename: "labels.txt" }
dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 150 priority_levels: 3 default_priority_level: 2 default_queue_policy { max_queue_size: 7 } }
instance_group { kind: KIND_CPU count: 2 }
optimization { graph { level: -1 } execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } cpu_execution_accelerator { name: "openvino" parameters { key: "a" value: "b" } } } }
parameters { key: "intra_op_thread_count" value { string_value: "3" } }
model_warmup { name: "w" batch_size: 2 count: 2
  inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 input_data_file: "raw" } }
  inputs { key: "r" value { data_type: TYPE_FP16 dims: 2 random_data: true } }
  inputs { key: "s" value { data_type: TYPE_STRING dims: 1 zero_data: true } } }
`

func tritonStore(t *testing.T) *place {
	t.Helper()
	p := newPlace(t)
	for name, text := range map[string]string{
		"add/config.pbtxt": tritonConfig, "add/1/model.onnx": string(onnxModel(10)), "add/labels.txt": "a\nb\r\n", "add/warmup/raw": strings.Repeat("\x00", 32),
		"named/config.pbtxt": `default_model_filename: "other.onnx"`, "named/3/other.onnx": string(onnxModel(10)), "named/model-config.yaml": "batchSize: 5\nonnx: {topK: 1}\n",
		"own/config.pbtxt": "backend: \"onnxruntime\"\nmax_batch_size: 2\n", "own/1/model.onnx": string(onnxModel(10)), "own/1/model-config.yaml": "minWorkers: 3\nmaxWorkers: 3\n",
		"own/model-config.yaml": "minWorkers: 9\nmaxWorkers: 9\n",
		"pipe/config.pbtxt": "platform: \"ensemble\"\ninput { name: \"A\" data_type: TYPE_FP32 dims: 4 }\noutput { name: \"B\" data_type: TYPE_FP32 dims: 4 }\n" +
			"ensemble_scheduling { step { model_name: \"add\" input_map { key: \"x\" value: \"A\" } output_map { key: \"y\" value: \"B\" } } }\n",
		"pipe/1/.keep": "", "flat/config.pbtxt": "backend: \"onnxruntime\"", "flat/model.onnx": string(onnxModel(10)),
		"yaml/model-config.yaml": "minWorkers: 1\nensemble:\n  maxBatchSize: 4\n  inputs: [{name: A, datatype: fp32, shape: [-1, 4]}]\n  outputs: [B]\n" +
			"  steps:\n    - {model: add, version: 2, inputs: {x: A}, outputs: {y: B}}\n    - model: add\n      name: again\n      inputs: [A]\n      outputs: [C]\n",
		"python/config.pbtxt": `backend: "python"`, "python/1/model.py": "x", "auto/config.pbtxt": `name: "auto"`, "auto/1/model.py": "x",
		"line/config.pbtxt": "backend: \"onnxruntime\"\ninstance_group { kind: KIND_TPU }", "line/1/model.onnx": string(onnxModel(10)),
		"labels/config.pbtxt": "backend: \"onnxruntime\"\noutput { name: \"y\" data_type: TYPE_FP32 dims: 4 label_filename: \"../labels.txt\" }", "labels/1/model.onnx": string(onnxModel(10)),
		"broken/config.pbtxt": `backend: "onnxruntime"`, "broken/1/model.onnx": "no model", "escape/config.pbtxt": `backend: "onnxruntime" default_model_filename: "../model.onnx"`,
		"escape/1/x": "", "braces/config.pbtxt": "backend: \"onnxruntime\"\noptimization { graph { level: 1 } }", "braces/1/model.onnx": string(onnxModel(10)),
		"braces/model-config.yaml": "{minWorkers: 1}\n",
	} {
		p.write(t, "store/"+name, []byte(text))
	}
	return p
}

func TestTritonSettings(t *testing.T) {
	t.Parallel()
	p := tritonStore(t)
	s := p.open(t, nil)
	a, err := s.OpenEntry(t.Context(), "add/1")
	if err != nil {
		t.Fatal(err)
	}
	want := Settings{
		MinWorkers: new(2), MaxWorkers: new(2), BatchSize: new(8), MaxBatchDelay: new(150 * time.Microsecond), DeviceType: "cpu", JobQueueSize: new(7),
		MaxSequenceJobQueueSize: 1, MaxNumSequence: 1, PriorityLevels: 3, DefaultPriorityLevel: 2, PreferredBatchSizes: []int{4},
	}
	if diff := cmp.Diff(want, a.Settings); diff != "" {
		t.Error(diff)
	}
	if m := a.Manifest; m.Runtime != RuntimeONNX || m.Model.ModelName != "add" || m.Model.ModelVersion != "1" || m.Model.SerializedFile != "model.onnx" || m.Model.Handler != "" {
		t.Errorf("%+v", m)
	}
	if diff := cmp.Diff(map[string][]string{"y": {"a", "b"}}, a.Labels); diff != "" {
		t.Error(diff)
	}
	inputs, outputs := a.DeclaredPorts()
	if diff := cmp.Diff([]pipeline.Port{{Name: "x", DataType: "FP32", Shape: []int64{-1, 4}}}, inputs); diff != "" || len(outputs) != 1 {
		t.Error(diff, outputs)
	}
	text, err := os.ReadFile(a.BackendConfig)
	const settings = "onnx:\n  graphOptimization: \"basic\"\n  intraOpThreads: 3\n  providers:\n    - name: \"OpenVINO\"\n      options: {\"a\": \"b\"}\n"
	if err != nil || strings.TrimLeft(string(text), "\n") != settings { // without those for GPUs
		t.Errorf("%v %s", err, text)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}

	named, err := s.OpenEntry(t.Context(), "named/3")
	if err != nil {
		t.Fatal(err)
	}
	if m := named.Manifest.Model; m.Handler != "other.onnx" || m.SerializedFile != "other.onnx" || *named.Settings.BatchSize != 5 || *named.Settings.ResponseTimeout != yamlResponseTimeout {
		t.Errorf("%+v %+v", m, named.Settings)
	}
	if text, err := os.ReadFile(named.BackendConfig); err != nil || string(text) != "batchSize: 5\nonnx: {topK: 1}\n" {
		t.Errorf("%v %s", err, text)
	}
	own, err := s.OpenEntry(t.Context(), "own/1")
	if err != nil || *own.Settings.MinWorkers != 3 || *own.Settings.BatchSize != 1 || *own.Settings.MaxBatchDelay != 0 {
		t.Errorf("%v %+v", err, own.Settings)
	}
	if text, err := os.ReadFile(own.BackendConfig); err != nil || string(text) != "minWorkers: 3\nmaxWorkers: 3\n\nonnx:\n  batching: false\n" {
		t.Errorf("%v %q", err, text)
	}
	whole, err := s.Open(t.Context(), "named") // as a client registers it
	if err != nil || whole.Manifest.Model.ModelVersion != "3" || filepath.Base(whole.Dir) != "3" {
		t.Errorf("%v %+v %s", err, whole.Manifest, whole.Dir)
	}
	flat, err := s.OpenEntry(t.Context(), "flat")
	if err != nil || flat.Manifest.Model.ModelVersion != "" || flat.Triton == nil {
		t.Errorf("%v %+v", err, flat.Manifest)
	}
}

func TestTritonWarmUp(t *testing.T) {
	t.Parallel()
	p := tritonStore(t)
	a, err := p.open(t, nil).OpenEntry(t.Context(), "add/1")
	if err != nil {
		t.Fatal(err)
	}
	samples, err := a.Samples()
	if err != nil || len(samples) != 2 || samples[0].File != "w" {
		t.Fatalf("%v %+v", err, samples)
	}
	item := samples[0].Item
	at := slices.IndexFunc(item.Header, func(f infer.Field) bool { return f.Name == "inference-header-content-length" })
	n, err := strconv.Atoi(item.Header[at].Value)
	if err != nil {
		t.Fatal(err)
	}
	var request struct {
		Inputs []struct {
			Name, Datatype string
			Shape          []int64
			Parameters     struct {
				Size int `json:"binary_data_size"`
			}
		}
	}
	body := item.Parts[0].Data
	if err := json.Unmarshal(body[:n], &request); err != nil || len(request.Inputs) != 3 || len(body)-n != 8+8+32 {
		t.Fatalf("%v %q", err, body)
	}
	r := request.Inputs[0]
	if r.Name != "r" || r.Datatype != "FP16" || !slices.Equal(r.Shape, []int64{2, 2}) || r.Parameters.Size != 8 {
		t.Errorf("%+v", r)
	}
	for i := range 4 {
		if half := binary.LittleEndian.Uint16(body[n+2*i:]); half >= 0x3c00 { // 1
			t.Errorf("a random number is %x", half)
		}
	}
	if err := os.WriteFile(filepath.Join(p.dir, "store/add/warmup/raw"), make([]byte, 31), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Samples(); err == nil || !strings.Contains(err.Error(), "31 bytes") {
		t.Error(err)
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same each time
	if got := appendRandom(nil, "FP64", random); math.Float64frombits(binary.LittleEndian.Uint64(got)) >= 1 || len(appendRandom(nil, "INT64", random)) != 8 {
		t.Error(got)
	}
}

func TestEnsembles(t *testing.T) {
	t.Parallel()
	p := tritonStore(t)
	s := p.open(t, nil)
	a, err := s.OpenEntry(t.Context(), "pipe/1")
	if err != nil {
		t.Fatal(err)
	}
	want := &pipeline.Definition{
		Inputs: []pipeline.Port{{Name: "A", DataType: "FP32", Shape: []int64{4}}}, Outputs: []pipeline.Port{{Name: "B", DataType: "FP32", Shape: []int64{4}}},
		Steps: []pipeline.Step{{Model: "add", Inputs: map[string]string{"x": "A"}, Outputs: map[string]string{"y": "B"}}},
	}
	if diff := cmp.Diff(want, a.Ensemble); diff != "" || a.Manifest.Runtime != pipeline.Runtime || *a.Settings.MinWorkers != 1 || a.Settings.DeviceType != "cpu" {
		t.Error(diff, a.Manifest, a.Settings)
	}
	if _, err = s.OpenEntry(t.Context(), "yaml"); err == nil || !strings.Contains(err.Error(), `"C", which nothing takes`) {
		t.Error(err)
	}
	const rest = "    - {model: add, version: 2, inputs: {x: A}, outputs: {y: B}}\n    - {model: add, name: again, inputs: [A], outputs: [C]}\n"
	p.write(t, "store/yaml/model-config.yaml", []byte("batchSize: 2\nensemble:\n  maxBatchSize: 4\n  inputs: [{name: A, datatype: fp32, shape: [-1, 4]}]\n  outputs: [B, C]\n  steps:\n"+rest))
	if a, err = s.OpenEntry(t.Context(), "yaml"); err != nil {
		t.Fatal(err)
	}
	want = &pipeline.Definition{
		MaxBatch: 4, Inputs: []pipeline.Port{{Name: "A", DataType: "FP32", Shape: []int64{-1, 4}}}, Outputs: []pipeline.Port{{Name: "B"}, {Name: "C"}},
		Steps: []pipeline.Step{
			{Model: "add", Version: "2", Inputs: map[string]string{"x": "A"}, Outputs: map[string]string{"y": "B"}},
			{Name: "again", Model: "add", Inputs: map[string]string{"A": "A"}, Outputs: map[string]string{"C": "C"}},
		},
	}
	if diff := cmp.Diff(want, a.Ensemble); diff != "" || *a.Settings.BatchSize != 2 || a.Manifest.Model.ModelName != "yaml" {
		t.Error(diff, a.Settings)
	}
	for text, want := range map[string]string{
		"ensemble: x":                                            "line 1: ensemble has to be a map",
		"ensemble:\n  step: []":                                  `line 2: there is no key "step" here`,
		"ensemble:\n  steps: x":                                  "line 2: steps has to be a list",
		"ensemble:\n  steps: [x]":                                "a map with model",
		"ensemble:\n  steps:\n    - module: x":                   `line 3: there is no key "module" here`,
		"ensemble:\n  steps: [{model: [a]}]":                     "line 2: model has to be a text",
		"ensemble:\n  steps: [{model: a, inputs: x}]":            "a map of the model's names",
		"ensemble:\n  steps: [{model: a, inputs: {x: [y]}}]":     "line 2: x has to be the name of a tensor",
		"ensemble:\n  steps: [{model: a, inputs: {x: y, x: z}}]": "x is there twice",
		"ensemble:\n  maxBatchSize: -1":                          "maxBatchSize has to be",
		"ensemble:\n  inputs: [{name: A, type: FP32}]":           `no key "type"`,
		"ensemble:\n  inputs: [{name: A, shape: [x]}]":           "a list of numbers",
		"ensemble:\n  inputs: [{name: A, shape: 3}]":             "a list of numbers",
		"ensemble:\n  inputs: [[A]]":                             "a list of names",
		"ensemble:\n  outputs: A":                                "a list of names",
		"ensemble:\n  steps: []":                                 "no steps",
		"ensemble:\n\tsteps: []":                                 "cannot be read",
	} {
		p.write(t, "store/yaml/model-config.yaml", []byte(text+"\n"))
		if _, err := s.OpenEntry(t.Context(), "yaml"); !fault.Is(err, fault.InvalidModel) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestTritonRefusals(t *testing.T) {
	t.Parallel()
	s := tritonStore(t).open(t, nil)
	for place, want := range map[string]string{
		"python/1": "config.pbtxt: line 1: models of Triton's Python backend", "auto/1": "has no file model.onnx", "line/1": "config.pbtxt: line 2: invalid value for enum",
		"labels/1": "not in the model's folder", "broken/1": "no ONNX file", "escape/1": "not in the folder of the version", "braces/1": "cannot be completed",
	} {
		if _, err := s.OpenEntry(t.Context(), place); !fault.Is(err, fault.InvalidModel) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", place, err, want)
		}
	}
}

// What lies beside the folders of the versions belongs to each of them.
func TestTritonDigest(t *testing.T) {
	t.Parallel()
	p := tritonStore(t)
	s := p.open(t, nil)
	digest := func() string {
		t.Helper()
		a, err := s.OpenEntry(t.Context(), "add/1")
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		return a.Digest
	}
	before := digest()
	p.write(t, "store/add/2/model.onnx", onnxModel(20))
	if digest() != before {
		t.Error("another version changes it")
	}
	for _, name := range []string{"config.pbtxt", "labels.txt", "warmup/raw"} {
		at := filepath.Join(p.dir, "store/add", name)
		when := time.Now().Add(time.Hour)
		if err := os.Chtimes(at, when, when); err != nil {
			t.Fatal(err)
		}
		if after := digest(); after == before {
			t.Errorf("%s does not change it", name)
		} else {
			before = after
		}
	}
}

// Whatever the key ensemble of a configuration file holds, reading it ends, and what is taken fits together.
func FuzzEnsemble(f *testing.F) {
	for _, seed := range []string{
		"ensemble:\n  steps:\n    - {model: a, inputs: {x: A}, outputs: {y: B}}\n", "ensemble: {steps: [{model: a, inputs: [A], outputs: [B]}], inputs: [{name: A, shape: [-1]}], maxBatchSize: 3}",
		"ensemble: &a\n  steps: *a\n", "ensemble:\n  <<: {steps: []}\n", "ensemble: [[[\n", "ensemble:\n  outputs: [{name: 1, datatype: true, shape: [1.5]}]\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		entries, err := parseYAML(text)
		if err != nil {
			return
		}
		for _, e := range entries {
			if e.key != keyEnsemble {
				continue
			}
			d, err := ensembleOf(e)
			if err != nil {
				continue
			}
			if c, err := d.Checked(); err == nil && (len(c.Inputs) == 0 || len(c.Outputs) == 0 || len(c.Steps) == 0) {
				t.Fatalf("%+v", c)
			}
		}
	})
}
