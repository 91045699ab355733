package store

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// doubles is a Python handler of the Open Inference Protocol's shape: y = 2 * x, and parameters of the request as they came.
const doubles = `import json


class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        answers = []
        for row in data:
            body = row["body"]
            x = body["inputs"][0]
            parameters = json.dumps(body.get("parameters", {}), sort_keys=True)
            answers.append({"outputs": [
                {"name": "y", "datatype": "FP32", "shape": x["shape"], "data": [2 * v for v in x["data"]]},
                {"name": "seen", "datatype": "BYTES", "shape": [1], "data": [parameters]},
            ]})
        return answers
`

// tensorOf is an output as the protocol gives it.
type tensorOf struct {
	Name     string          `json:"name"`
	DataType string          `json:"datatype"`
	Shape    []int64         `json:"shape"`
	Data     json.RawMessage `json:"data"`
}

// inferred asks a model over the protocol and gives the outputs by name.
func inferred(t *testing.T, s *e2e.Server, model string, body string) map[string]tensorOf {
	t.Helper()
	answer := s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+"/v2/models/"+model+"/infer", []byte(body), "Content-Type", "application/json").Body
	return outputsOf(t, answer)
}

func outputsOf(t *testing.T, answer []byte) map[string]tensorOf {
	t.Helper()
	var response struct {
		Outputs []tensorOf `json:"outputs"`
	}
	if err := json.Unmarshal(answer, &response); err != nil {
		t.Fatalf("%v: %s", err, answer)
	}
	all := map[string]tensorOf{}
	for _, o := range response.Outputs {
		all[o.Name] = o
	}
	return all
}

// floats is a request of one FP32 tensor.
func floats(name string, parameters string, values ...string) string {
	return fmt.Sprintf(`{%s"inputs": [{"name": %q, "datatype": "FP32", "shape": [%d], "data": [%s]}]}`, parameters, name, len(values), strings.Join(values, ","))
}

// ready waits until a model is.
func ready(t *testing.T, s *e2e.Server, model string) {
	t.Helper()
	if !e2e.Eventually(patience, func() bool {
		a, err := s.Ask(t.Context(), http.MethodGet, s.Inference+"/v2/models/"+model+"/ready", nil)
		return err == nil && a.Status == http.StatusOK
	}) {
		t.Fatalf("%s does not get ready:%s", model, e2e.Lines(s.Events(t, "")))
	}
}

// chain is an ensemble of two ONNX models and a Python handler between them: ((x + one) * 2) + ten, and beside it x + ten.
const chain = `ensemble:
  inputs:
    - {name: IN, datatype: FP32, shape: [-1]}
  outputs: [OUT, ASIDE, SEEN]
  steps:
    - {model: one, inputs: {x: IN}, outputs: {y: a}}
    - {model: twice, inputs: {x: a}, outputs: {y: b, seen: SEEN}}
    - {model: ten, inputs: {x: b}, outputs: {y: OUT}}
    - {model: ten, inputs: {x: IN}, outputs: {y: ASIDE}}
`

// putChain fills the store with the ensemble first, which has to wait for its models.
func putChain(t *testing.T, box *e2e.Box) {
	t.Helper()
	box.Put(t, "chain/model-config.yaml", []byte(chain))
	box.Put(t, "one.onnx", adds(1))
	box.Put(t, "ten.onnx", adds(10))
	box.Put(t, "twice.mar", e2e.Archive{Name: "twice", Handler: doubles}.Bytes(t))
}

// TestEnsembleAnswersAsItsSteps compares an ensemble with its models, called one after another.
func TestEnsembleAnswersAsItsSteps(t *testing.T) {
	box := e2e.NewBox(t)
	putChain(t, box)
	box.Put(t, "outer/model-config.yaml", []byte(`ensemble:
  steps:
    - {model: chain, inputs: {IN: X}, outputs: {OUT: m}}
    - {model: one, inputs: {x: m}, outputs: {y: Y}}
`))
	s := start(t, box)
	for _, model := range []string{"one", "ten", "twice", "chain", "outer"} {
		ready(t, s, model)
	}
	a := inferred(t, s, "one", floats("x", "", "1", "2.5"))["y"].Data
	b := inferred(t, s, "twice", fmt.Sprintf(`{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": %s}]}`, a))["y"].Data
	want := inferred(t, s, "ten", fmt.Sprintf(`{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": %s}]}`, b))["y"].Data
	got := inferred(t, s, "chain", floats("IN", `"parameters": {"mine": "x", "sequence_id": 7}, `, "1", "2.5"))
	if string(got["OUT"].Data) != string(want) || string(want) != "[14,17]" && string(want) != "[14.0,17.0]" {
		t.Errorf("the ensemble gives %s, its models one after another %s", got["OUT"].Data, want)
	}
	if aside := string(got["ASIDE"].Data); aside != "[11,12.5]" && aside != "[11.0,12.5]" {
		t.Errorf("the step beside gives %s", aside)
	}
	if seen := string(got["SEEN"].Data); !strings.Contains(seen, `\"mine\": \"x\"`) || !strings.Contains(seen, `\"sequence_id\": 7`) {
		t.Errorf("the handler has seen the parameters %s", seen)
	}
	if y := string(inferred(t, s, "outer", floats("X", "", "1", "2.5"))["Y"].Data); y != "[15,18]" && y != "[15.0,18.0]" {
		t.Errorf("an ensemble in an ensemble gives %s", y)
	}
	plain := s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+"/predictions/chain", []byte(floats("IN", "", "0")), "Content-Type", "application/json").Body
	if out := string(outputsOf(t, plain)["OUT"].Data); out != "[12]" && out != "[12.0]" {
		t.Errorf("/predictions gives %s", plain)
	}
	meta := string(s.MustAsk(t, http.StatusOK, http.MethodGet, s.Inference+"/v2/models/chain", nil).Body)
	for _, part := range []string{`"platform":"ensemble"`, `{"name":"IN","datatype":"FP32","shape":[-1]}`, `{"name":"OUT","datatype":"FP32","shape":[-1]}`} {
		if !strings.Contains(meta, part) {
			t.Errorf("the metadata has no %s: %s", part, meta)
		}
	}
	config := string(s.MustAsk(t, http.StatusOK, http.MethodGet, s.Inference+"/v2/models/chain/config", nil).Body)
	if !strings.Contains(config, `"ensemble_scheduling":{"step":[{"model_name":"one","model_version":-1,"input_map":{"x":"IN"},"output_map":{"y":"a"}`) {
		t.Errorf("the configuration has no steps: %s", config)
	}
	stats := string(s.MustAsk(t, http.StatusOK, http.MethodGet, s.Inference+"/v2/models/chain/stats", nil).Body)
	if !strings.Contains(stats, `"inference_count":3`) {
		t.Errorf("the statistics do not count three requests: %s", stats)
	}
}

// TestEnsembleWhoseModelIsSwapped replaces a model of an ensemble again and again while eight clients ask it: none of them notices but by the answers.
func TestEnsembleWhoseModelIsSwapped(t *testing.T) {
	const clients = 8
	swaps := long(t, "FLAMBEAU_SWAPS", 10)
	box := e2e.NewBox(t)
	putChain(t, box)
	s := start(t, box, "model_store_settle", "40")
	ready(t, s, "chain")
	var newest atomic.Int64
	load := s.StartLoad(t, e2e.LoadOptions{
		Clients: clients, Path: "/v2/models/chain/infer", Every: 2 * time.Millisecond, Header: map[string]string{"Content-Type": "application/json"},
		Body: func() string { return floats("IN", "", "0") },
		Number: func(answer []byte) (int, error) {
			var response struct {
				Outputs []struct{ Data []any }
			}
			if err := json.Unmarshal(answer, &response); err != nil || len(response.Outputs) != 3 || len(response.Outputs[0].Data) != 1 {
				return 0, fmt.Errorf("%q, %w", answer, err)
			}
			n, _ := response.Outputs[0].Data[0].(float64)
			if half := (int64(n) - 10) / 2; half > newest.Load() { // the number that the first model adds
				newest.Store(half)
			}
			return int(n), nil
		},
	})
	for number := 2; number <= swaps+1; number++ {
		box.Put(t, "one.onnx", adds(number))
		if !e2e.Eventually(patience, func() bool { return newest.Load() == int64(number) }) {
			t.Fatalf("the ensemble does not answer with the model that adds %d, but %d; %d requests failed;%s", number, newest.Load(), load.Failed(), e2e.Lines(s.Events(t, "")))
		}
	}
	samples := load.Stop()
	t.Logf("%d swaps of a model; %d requests of %d clients, %d failed", swaps, len(samples), clients, len(e2e.Failures(samples)))
	e2e.RequireNoFailure(t, samples)
}

// TestEnsembleWithoutItsModel takes a model away and brings it back.
func TestEnsembleWithoutItsModel(t *testing.T) {
	box := e2e.NewBox(t)
	putChain(t, box)
	s := start(t, box)
	ready(t, s, "chain")
	s.MustAsk(t, http.StatusOK, http.MethodDelete, s.Management+"/models/twice", nil)
	ask := func() e2e.Answer {
		a, err := s.Ask(t.Context(), http.MethodPost, s.Inference+"/v2/models/chain/infer", []byte(floats("IN", "", "0")), "Content-Type", "application/json")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := ask(); a.Status != http.StatusServiceUnavailable || !strings.Contains(string(a.Body), "step 2 (model 'twice')") {
		t.Errorf("without its model: %d %s", a.Status, a.Body)
	}
	if a, err := s.Ask(t.Context(), http.MethodGet, s.Inference+"/v2/models/chain/ready", nil); err != nil || a.Status == http.StatusOK {
		t.Errorf("it is ready without its model: %d %v", a.Status, err)
	}
	s.MustAsk(t, http.StatusOK, http.MethodPost, s.Management+"/models?url=twice.mar&initial_workers=1&synchronous=true", nil)
	ready(t, s, "chain")
	if a := ask(); a.Status != http.StatusOK {
		t.Errorf("with its model again: %d %s", a.Status, a.Body)
	}
}

// TestEnsemblesThatCannotBe are refused with the reason.
func TestEnsemblesThatCannotBe(t *testing.T) {
	step := func(model, inputs, outputs string) string {
		return fmt.Sprintf("    - {model: %s, inputs: {%s}, outputs: {%s}}\n", model, inputs, outputs)
	}
	box := e2e.NewBox(t)
	box.Put(t, "one.onnx", adds(1))
	want := map[string][2]string{
		"circle":   {step("one", "x: A, z: C", "y: B") + step("one", "x: B", "y: C"), "circle"},
		"absent":   {step("nobody", "x: A", "y: B"), "needs the model nobody, which is not registered"},
		"noinput":  {step("one", "z: A", "y: B"), `no input "z"; it has 'x'`},
		"nooutput": {step("one", "x: A", "z: B"), `no output "z"; it has 'y'`},
		"itself":   {step("itself", "A: A", "B: B"), "itself: itself → itself"},
		"type":     {step("one", "x: A", "y: B") + "  inputs: [{name: A, datatype: INT64}]\n", "is INT64 for the ensemble, and FP32 for step 1 (one)"},
		"shape":    {step("one", "x: A", "y: B") + "  inputs: [{name: A, shape: [-1, 4]}]\n", "has the shape [-1 4] for the ensemble, and [-1] for step 1 (one)"},
		"twice":    {step("one", "x: A", "y: B") + step("one", "x: A", "y: B"), "given twice"},
		"rows":     {step("one", "x: A", "y: B") + "  maxBatchSize: 9\n", "takes up to 9 rows in a request, and step 1, the model one, only 4"},
		"key":      {step("one", "x: A", "y: B") + "  inputz: [A]\n", `no key "inputz"`},
		"ping":     {step("pong", "A: A", "B: B"), "made of itself"},
		"pong":     {step("ping", "A: A", "B: B"), ""},
	}
	for name, w := range want {
		box.Put(t, name+"/model-config.yaml", []byte("ensemble:\n  steps:\n"+w[0]))
	}
	s := start(t, box)
	for name, w := range want {
		var seen string
		if !e2e.Eventually(patience, func() bool {
			seen = e2e.Lines(s.Events(t, "model="+name)) + s.Output()
			at := strings.Index(seen, w[1])
			return at >= 0
		}) {
			t.Errorf("%s: nobody says %q:\n%s", name, w[1], e2e.Lines(s.Events(t, "model="+name)))
		}
		if a, err := s.Ask(t.Context(), http.MethodGet, s.Inference+"/v2/models/"+name+"/ready", nil); err != nil || a.Status == http.StatusOK {
			t.Errorf("%s is ready: %d, %v", name, a.Status, err)
		}
	}
}
