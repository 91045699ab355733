package store

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// config writes a config.pbtxt for the models that add a number to each of four columns.
func config(name, more string) []byte {
	return fmt.Appendf(nil, `name: %q
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "labels.txt" } ]
%s
`, name, more)
}

// rows is an ONNX model as adds, float32 [n, m].
func rows(number int) []byte {
	const float32Type, version, opset = 1, 8, 17
	port := func(name string) message {
		shape := message{}.bytes(1, message{}.text(2, "n")).bytes(1, message{}.text(2, "m"))
		return message{}.text(1, name).bytes(2, message{}.bytes(1, message{}.number(1, float32Type).bytes(2, shape)))
	}
	constant := message{}.number(2, float32Type).text(8, "c").bytes(9, binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(number))))
	node := message{}.text(1, "x").text(1, "c").text(2, "y").text(4, "Add")
	graph := message{}.bytes(1, node).text(2, "rows").bytes(5, constant).bytes(11, port("x")).bytes(12, port("y"))
	return message{}.number(1, version).bytes(7, graph).bytes(8, message{}.number(2, opset))
}

const fourColumns = `{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0, 1, 2, 3]}]}`

// first asks a model for one row and gives the first number of the answer.
func first(t *testing.T, s *e2e.Server, path string) float64 {
	t.Helper()
	a, err := s.Ask(t.Context(), http.MethodPost, s.Inference+"/v2/models/"+path+"/infer", []byte(fourColumns), "Content-Type", "application/json")
	if err != nil || a.Status != http.StatusOK {
		return -1
	}
	var n float64
	if _, err := fmt.Sscanf(string(outputsOf(t, a.Body)["y"].Data), "[%g", &n); err != nil {
		return -1
	}
	return n
}

// TestTritonRepository serves a store in the layout of Triton's model repository: its settings, its versions, its ensembles.
func TestTritonRepository(t *testing.T) {
	box := e2e.NewBox(t)
	box.Put(t, "add/1/model.onnx", rows(1))
	box.Put(t, "add/2/model.onnx", rows(2))
	box.Put(t, "add/labels.txt", []byte("north\nsouth\neast\nwest\n"))
	box.Put(t, "add/warmup/zeros.raw", make([]byte, 16))
	box.Put(t, "add/config.pbtxt", config("add", `
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 100 }
instance_group [ { kind: KIND_CPU count: 2 } ]
parameters { key: "intra_op_thread_count" value: { string_value: "1" } }
parameters { key: "mine" value: { string_value: "kept" } }
optimization { graph { level: 1 } }
model_warmup [ { name: "file" batch_size: 1 inputs { key: "x" value: { data_type: TYPE_FP32 dims: [ 4 ] input_data_file: "zeros.raw" } } },
               { name: "random" batch_size: 8 count: 2 inputs { key: "x" value: { data_type: TYPE_FP32 dims: [ 4 ] random_data: true } } } ]
no_such_field: 1`))
	box.Put(t, "named/1/other.onnx", rows(7))
	box.Put(t, "named/config.pbtxt", []byte("default_model_filename: \"other.onnx\"\nversion_policy { all { } }\n"))
	box.Put(t, "named/model-config.yaml", []byte("minWorkers: 1\nmaxWorkers: 1\nresponseTimeout: 77\n"))
	box.Put(t, "plain/1/model.onnx", rows(3))
	box.Put(t, "both/config.pbtxt", []byte(`platform: "ensemble" max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ] output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [
  { model_name: "add" model_version: -1 input_map { key: "x" value: "IN" } output_map { key: "y" value: "t" } },
  { model_name: "plain" model_version: -1 input_map { key: "x" value: "t" } output_map { key: "y" value: "OUT" } } ] }`))
	box.Put(t, "both/1/.keep", nil)
	box.Put(t, "python/config.pbtxt", []byte(`backend: "python"`))
	box.Put(t, "python/1/model.py", []byte("class TritonPythonModel: pass\n"))
	box.Put(t, "wrong/config.pbtxt", config("wrong", "instance_group [\n  { kind: KIND_TPU }\n]"))
	box.Put(t, "wrong/1/model.onnx", rows(1))
	box.Put(t, "mismatch/config.pbtxt", []byte(strings.ReplaceAll(string(config("mismatch", "")), "TYPE_FP32", "TYPE_INT64")))
	box.Put(t, "mismatch/labels.txt", []byte("a\n"))
	box.Put(t, "mismatch/1/model.onnx", rows(1))
	s := start(t, box)
	for _, model := range []string{"add", "named", "plain", "both"} {
		ready(t, s, model)
	}
	for path, want := range map[string]float64{"add": 2, "add/versions/2": 2, "add/versions/1": -1, "named": 7, "plain": 3} {
		if got := first(t, s, path); got != want {
			t.Errorf("%s gives %g, want %g", path, got, want)
		}
	}
	out := inferred(t, s, "both", strings.ReplaceAll(fourColumns, `"x"`, `"IN"`))["OUT"]
	if string(out.Data) != "[5.0,6.0,7.0,8.0]" && string(out.Data) != "[5,6,7,8]" {
		t.Errorf("the ensemble gives %s", out.Data)
	}
	get := func(path string) string {
		return string(s.MustAsk(t, http.StatusOK, http.MethodGet, s.Inference+path, nil).Body)
	}
	for path, parts := range map[string][]string{
		"/v2/models/add": {`{"name":"x","datatype":"FP32","shape":[-1,4]}`, `"platform":"onnxruntime_onnx"`},
		"/v2/models/add/config": {
			`"max_batch_size":8`, `"dims":[4]`, `"version_policy":{"latest":{"num_versions":1}}`, `"preferred_batch_size":[4]`, `"max_queue_delay_microseconds":100`, `"count":2`,
			`"mine":{"string_value":"kept"}`, `"label_filename":"labels.txt"`, `"kind":"KIND_CPU"`,
		},
		"/v2/models/named/config": {`"version_policy":{"all":{}}`, `"default_model_filename":"other.onnx"`},
		"/v2/models/both":         {`"platform":"ensemble"`, `{"name":"IN","datatype":"FP32","shape":[-1,4]}`},
		"/v2/models/both/config":  {`"max_batch_size":4`, `"ensemble_scheduling":{"step":[{"model_name":"add"`},
	} {
		text := get(path)
		for _, part := range parts {
			if !strings.Contains(text, part) {
				t.Errorf("%s has no %s: %s", path, part, text)
			}
		}
	}
	if text := string(s.MustAsk(t, http.StatusOK, http.MethodGet, s.Management+"/models/named", nil).Body); !strings.Contains(text, `"responseTimeout": 77`) {
		t.Errorf("model-config.yaml does not go before: %s", text)
	}
	class := strings.Replace(fourColumns, `{"inputs"`, `{"outputs": [{"name": "y", "parameters": {"classification": 1}}], "inputs"`, 1)
	if got := string(inferred(t, s, "add", class)["y"].Data); !strings.Contains(got, ":3:west") {
		t.Errorf("the best class is %s", got)
	}
	for name, want := range map[string]string{
		"python": "docs/triton.md", "wrong": "line 7: invalid value for enum type: KIND_TPU", "mismatch": "config.pbtxt has the type INT64 for the input",
	} {
		if !e2e.Eventually(patience, func() bool { return strings.Contains(e2e.Lines(s.Events(t, "model="+name))+s.Output(), want) }) {
			t.Errorf("%s: nobody says %q:%s", name, want, e2e.Lines(s.Events(t, "model="+name)))
		}
	}
}

// TestTritonVersions follows a policy: the newest version serves, and the one before it until then.
func TestTritonVersions(t *testing.T) {
	box := e2e.NewBox(t)
	box.Put(t, "add/labels.txt", []byte("a\n"))
	box.Put(t, "add/config.pbtxt", config("add", ""))
	box.Put(t, "add/1/model.onnx", rows(1))
	s := start(t, box, "model_store_settle", "40")
	ready(t, s, "add")
	load := s.StartLoad(t, e2e.LoadOptions{
		Clients: 2, Path: "/v2/models/add/infer", Header: map[string]string{"Content-Type": "application/json"}, Body: func() string { return fourColumns },
		Number: func(answer []byte) (int, error) {
			var n float64
			_, err := fmt.Sscanf(string(outputsOf(t, answer)["y"].Data), "[%g", &n)
			return int(n), err
		},
	})
	wait := func(path string, want float64) {
		t.Helper()
		got := 0.0
		if !e2e.Eventually(patience, func() bool { got = first(t, s, path); return got == want }) {
			t.Fatalf("%s gives %g, want %g:%s", path, got, want, e2e.Lines(s.Events(t, "")))
		}
	}
	box.Put(t, "add/2/model.onnx", []byte("no model")) // it never serves, and the first goes on
	wait("add", 1)
	box.Put(t, "add/3/model.onnx", rows(3))
	wait("add", 3)
	wait("add/versions/1", -1)
	box.Put(t, "add/config.pbtxt", config("add", "version_policy { specific { versions: [ 1, 3 ] } }"))
	wait("add/versions/1", 1)
	wait("add", 3)
	e2e.RequireNoFailure(t, load.Stop())
}
