package main

import (
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/handlertest"
)

// environment finds the Python environment of the tests, whose packages bring the model and ONNX Runtime.
func environment(t *testing.T) (prefix, model string) {
	t.Helper()
	python := os.Getenv("FLAMBEAU_TEST_PYTHON")
	if python == "" {
		python = "../../.venv-test/bin/python"
	}
	python, err := filepath.Abs(python)
	if err != nil {
		t.Fatal(err)
	}
	prefix = filepath.Dir(filepath.Dir(python))
	found, err := filepath.Glob(filepath.Join(prefix, "lib/python3*/site-packages/magika/models/standard_v3_3"))
	if err != nil || len(found) != 1 {
		t.Skipf("there is no magika 1.0 in %s (make test makes an environment with it; FLAMBEAU_TEST_PYTHON names the Python of another)", prefix)
	}
	return prefix, found[0]
}

// The answers are those of the same model's Python handler (examples/magika).
func TestMagika(t *testing.T) {
	prefix, model := environment(t)
	program := filepath.Join(t.TempDir(), "magika-go")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var samples []handlersdk.Item
	right := []struct {
		file, label string
		score       float64
	}{{"tide.py", "python", 0.999600}, {"tide.go.txt", "go", 0.999979}, {"tide.json", "json", 0.897123}}
	for _, r := range right {
		content, err := os.ReadFile(filepath.Join("../magika/samples", r.file))
		if err != nil {
			t.Fatal(err)
		}
		samples = append(samples, handlertest.Body("application/octet-stream", content))
	}
	opts := handlertest.Options{Dir: model, Env: []string{"FLAMBEAU_PYTHON_PREFIX=" + prefix}, Sample: samples[0]}
	handlertest.RunConformance(t, program, opts)
	p := handlertest.Start(t, program, opts)
	p.MustLoad()
	check := func(i int, r handlertest.Result) {
		t.Helper()
		var got answer
		if err := json.Unmarshal(r.Body, &got); err != nil || got.Label != right[i].label || math.Abs(got.Score-right[i].score) > 1e-4 {
			t.Errorf("%s: %s, %v, %+v", right[i].file, r.Body, err, r.Failure)
		}
	}
	for i, r := range p.MustAsk(samples...) {
		check(i, r)
		check(i, p.MustAsk(samples[i])[0])
	}
}
