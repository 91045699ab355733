package pbtxt

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/pipeline"
)

func full(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "full.pbtxt"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestParse(t *testing.T) {
	t.Parallel()
	c, err := Parse(full(t), "m")
	if err != nil {
		t.Fatal(err)
	}
	no := false
	want := &Config{
		Name: "m", ONNX: true, MaxBatch: 8, Policy: Policy{Versions: []string{"1", "3"}},
		Inputs:    []Port{{Name: "x", DataType: "FP32", Shape: []int64{-1, 3, -1}}, {Name: "s", DataType: "BYTES", Shape: []int64{-1, 1}}},
		Outputs:   []Port{{Name: "y", DataType: "BF16", Shape: []int64{-1, 5}, Labels: "labels.txt"}},
		Batching:  &Batching{Delay: 150 * time.Microsecond, QueueSize: 7, Levels: 3, Default: 2, Preferred: []int{4, 8}},
		Instances: &Instances{Count: 5, GPU: "gpu", GPUs: []int{0, 1}},
		Runtime: ONNX{Optimize: "extended", IntraOp: 4, Arena: &no, Providers: []Provider{
			{Name: "TensorRT", Options: map[string]string{"trt_fp16_enable": "1", "trt_max_workspace_size": "5"}}, {Name: "CUDA"},
		}},
		Parameters: map[string]string{"intra_op_thread_count": "4", "enable_mem_arena": "0", "mine": "ab"},
		WarmUp: []WarmUp{{Name: "w", Count: 3, Inputs: []WarmUpInput{
			{Name: "s", DataType: "BYTES", Shape: []int64{2, 1}, File: "texts"}, {Name: "x", DataType: "FP32", Shape: []int64{2, 3, 4}, Random: true},
		}}},
	}
	text := c.JSON
	c.JSON = nil
	if len(c.Warnings) != 1 || c.Warnings[0].Line != 21 || !strings.HasPrefix(c.Warnings[0].Text, "default_timeout_microseconds is left out") {
		t.Errorf("warnings %+v", c.Warnings)
	}
	c.Warnings = nil
	if diff := cmp.Diff(want, c); diff != "" {
		t.Error(diff)
	}
	var told map[string]any
	if err := json.Unmarshal(text, &told); err != nil || told["max_batch_size"] != 8.0 || told["dynamic_batching"] == nil {
		t.Errorf("%v: %s", err, text)
	}
}

func TestEnsemble(t *testing.T) {
	t.Parallel()
	c, err := Parse([]byte(`platform: "ensemble" max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ] output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [
  { model_name: "a" model_version: -1 input_map { key: "x" value: "IN" } output_map { key: "y" value: "t" } },
  { model_name: "b" model_version: 3 input_map: { key: "x" value: "t" } output_map { key: "y" value: "OUT" } } ] }`), "e")
	if err != nil {
		t.Fatal(err)
	}
	want := &pipeline.Definition{
		MaxBatch: 4, Inputs: []pipeline.Port{{Name: "IN", DataType: "FP32", Shape: []int64{-1, 4}}},
		Outputs: []pipeline.Port{{Name: "OUT", DataType: "FP32", Shape: []int64{-1, 4}}},
		Steps: []pipeline.Step{
			{Model: "a", Inputs: map[string]string{"x": "IN"}, Outputs: map[string]string{"y": "t"}},
			{Model: "b", Version: "3", Inputs: map[string]string{"x": "t"}, Outputs: map[string]string{"y": "OUT"}},
		},
	}
	if diff := cmp.Diff(want, c.Ensemble); diff != "" || c.ONNX {
		t.Error(diff)
	}
}

// Each error says on which line what is wrong.
func TestErrors(t *testing.T) {
	t.Parallel()
	const onnx = "backend: \"onnxruntime\"\n"
	for _, c := range []struct {
		text, want string
		line       int
	}{
		{onnx + "max_batch_size: x", "int32", 2},
		{onnx + "input [ {\n name: \"x\"\n data_type: TYPE_FLOAT32\n dims: [1] } ]", "TYPE_FLOAT32", 4},
		{onnx + "input [", "", 0},
		{onnx + "name: \"a\"\nname: \"b\"", "name", 3},
		{"name: \"other\"", "lies in the folder", 1},
		{"\nbackend: \"python\"", "TritonPythonModel", 2},
		{"platform: \"tensorrt_plan\"", "tensorrt_plan", 1},
		{"\n\nplatform: \"ensemble\"", "ensemble_scheduling", 3},
		{onnx + "ensemble_scheduling { }", "platform has to be ensemble", 1},
		{onnx + "input { name: \"x\" data_type: TYPE_FP32 dims: 1 }\ninput { name: \"y\" data_type: TYPE_FP32 dims: 1\n reshape { shape: 2 } }", "reshaped", 4},
		{onnx + "input [ { name: \"x\" data_type: TYPE_FP32 dims: 1 },\n { name: \"y\" data_type: TYPE_FP32 dims: 1\n allow_ragged_batch: true } ]", "ragged", 4},
		{onnx + "input { name: \"x\" dims: 1 }", "data_type", 2},
		{onnx + "input { data_type: TYPE_FP32 dims: 1 }", "no name", 2},
		{onnx + "output { name: \"x\" data_type: TYPE_FP32 dims: -2 }", "-2", 2},
		{onnx + "max_batch_size: -1", "negative", 2},
		{onnx + "batch_input { }", "batch_input", 2},
		{onnx + "max_batch_size: 2\ndynamic_batching {\n preferred_batch_size: 3 }", "preferred_batch_size 3", 4},
		{onnx + "max_batch_size: 2\ndynamic_batching {\n priority_levels: 2 }", "default_priority_level", 3},
		{onnx + "sequence_batching {\n control_input { name: \"START\" } }", "control_input", 3},
		{onnx + "sequence_batching {\n state { input_name: \"s\" } }", "state", 3},
		{onnx + "instance_group { kind: KIND_CPU }\ninstance_group { kind: KIND_GPU }", "different kinds", 3},
		{onnx + "instance_group { count: 100000 }", "at most", 2},
		{onnx + "instance_group { kind: KIND_TPU }", "KIND_TPU", 2},
		{onnx + "optimization {\n graph { level: 7 } }", "level 7", 3},
		{onnx + "parameters { key: \"intra_op_thread_count\" value { string_value: \"many\" } }", "many", 2},
		{onnx + "version_policy { specific { } }", "names no versions", 2},
		{onnx + "model_warmup { name: \"w\" inputs { key: \"x\" value { data_type: TYPE_FP32 dims: -1 zero_data: true } } }", "-1", 2},
		{onnx + "model_warmup { name: \"w\" inputs { key: \"x\" value { data_type: TYPE_FP32 dims: 1 input_data_file: \"../x\" } } }", "not in the model's folder", 2},
		{onnx + "model_warmup { name: \"w\" inputs { key: \"x\" value { data_type: TYPE_FP32 dims: [99999999, 99999999] zero_data: true } } }", "elements", 2},
		{"default_model_filename: \"model.plan\"", "nothing says what runs", 1},
		{"platform: \"ensemble\"\ninput { name: \"I\" data_type: TYPE_FP32 dims: 1 }\noutput { name: \"O\" data_type: TYPE_FP32 dims: 1 }\nensemble_scheduling { }", "no steps", 4},
		{strings.Repeat("a {", 40), "deep", 1},
		{"a: " + strings.Repeat("[", 40), "deep", 1},
		{"\xff", "UTF-8", 0},
		{strings.Repeat(" ", MaxBytes+1), "larger", 0},
	} {
		_, err := Parse([]byte(c.text), "m")
		e, ok := errors.AsType[*Error](err)
		if !ok || !strings.Contains(e.Text, c.want) || c.line != 0 && e.Line != c.line {
			t.Errorf("%.80q: %v, want line %d: %s", c.text, err, c.line, c.want)
		}
	}
}

func TestUnknownFields(t *testing.T) {
	t.Parallel()
	c, err := Parse([]byte(`backend: "onnxruntime"
model_metrics { metric_control: [ { a: 1 } ] }
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ,
 { name: "y" data_type: TYPE_FP32 dims: [ 1 ] shiny: "}" "x" } ]
typo < a: -  1 > # trailing: comment
output { name: "z", data_type: TYPE_FP32; dims: 1 }
`), "")
	if err != nil {
		t.Fatal(err)
	}
	want := []Warning{{2, "fields that are not known here are left out: model_metrics (line 2), input.shiny (line 4), typo (line 5)"}}
	if diff := cmp.Diff(want, c.Warnings); diff != "" {
		t.Error(diff)
	}
}

func TestSelect(t *testing.T) {
	t.Parallel()
	have := []string{"1", "2", "10", "3"}
	for name, c := range map[string]struct {
		policy Policy
		want   []string
	}{
		"all":      {Policy{All: true}, []string{"10", "3", "2", "1"}},
		"latest":   {Policy{Latest: 2}, []string{"10", "3"}},
		"unsaid":   {Policy{}, []string{"10"}},
		"more":     {Policy{Latest: 9}, []string{"10", "3", "2", "1"}},
		"specific": {Policy{Versions: []string{"1", "3", "7"}}, []string{"3", "1"}},
	} {
		if got := c.policy.Select(have); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// Whatever the text is, reading it ends, and what is read has a name for each step and a shape for each tensor.
func FuzzParse(f *testing.F) {
	f.Add(full(f))
	for _, seed := range []string{
		"", "name: 'm'", "platform: \"ensemble\" ensemble_scheduling { step { model_name: 'a' input_map { key: 'x' value: 'y' } } }",
		"a < b: [ { c: 1 }, { } ] >", "[a.b/c]: 1", "x: 'a' \"b\" # c", "input [ { reshape: { shape: [ ] } } ]", "sequence_batching { oldest { max_candidate_sequences: 4 } }",
		"x: - inf", "{{{{", "]]]]", "a: [[[", "\"\\", "version_policy { latest { num_versions: 4294967295 } }",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse(text, "")
		if err != nil {
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Fatalf("%v is no error of the text", err)
			}
			return
		}
		if c.ONNX == (c.Ensemble != nil) {
			t.Fatalf("%+v is not of one kind", c)
		}
		for _, port := range slices.Concat(c.Inputs, c.Outputs) {
			if port.Name == "" || c.MaxBatch > 0 && (len(port.Shape) == 0 || port.Shape[0] != -1) {
				t.Fatalf("%+v", port)
			}
		}
		if !json.Valid(c.JSON) {
			t.Fatalf("%s", c.JSON)
		}
	})
}

// What warm-up requests take in memory is bounded, one by one and together.
func TestWarmUpBytes(t *testing.T) {
	t.Parallel()
	warm := func(name, kind string, elements int, data string) string {
		return fmt.Sprintf("model_warmup { name: %q inputs { key: \"x\" value { data_type: %s dims: %d %s } } }\n", name, kind, elements, data)
	}
	const mi = 1 << 20
	for name, c := range map[string]struct{ text, want string }{
		"as large as it may be":  {text: warm("a", "TYPE_FP32", 16*mi, "zero_data: true")},
		"two that fit":           {text: warm("a", "TYPE_FP64", 4*mi, "random_data: true") + warm("b", "TYPE_UINT8", 32*mi, "zero_data: true")},
		"one too large":          {warm("a", "TYPE_FP64", 16*mi, "zero_data: true"), "\"a\" takes 134217728 bytes, and at most 67108864 are allowed"},
		"texts":                  {warm("a", "TYPE_STRING", 16*mi, "random_data: true"), "\"a\" takes 201326592 bytes, and at most 67108864 are allowed"},
		"too large by one":       {warm("a", "TYPE_UINT8", 64*mi, "zero_data: true") + warm("b", "TYPE_UINT8", 1, "zero_data: true"), "up to \"b\" take 67108865 bytes together, and at most 67108864"},
		"sixteen of the largest": {strings.Repeat(warm("a", "TYPE_FP32", 16*mi, "zero_data: true"), 16), "take 134217728 bytes together, and at most 67108864 are allowed"},
	} {
		_, err := Parse([]byte("backend: \"onnxruntime\"\n"+c.text), "m")
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
