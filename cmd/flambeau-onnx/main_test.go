package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/handlertest"
	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
)

// TestPercent: a small heap may grow by some dozen megabytes before it is collected, a large one to twice its size as usual.
func TestPercent(t *testing.T) {
	for live, want := range map[uint64]int{0: 4800, 1 << 20: 4800, 4 << 20: 1200, 48 << 20: 100, 1 << 40: 100} {
		if got := percent(live); got != want {
			t.Errorf("%d bytes: %d, want %d", live, got, want)
		}
	}
}

// TestConformance: the backend keeps to the protocol as any plugin has to.
func TestConformance(t *testing.T) {
	python := os.Getenv("FLAMBEAU_TEST_PYTHON")
	if python == "" {
		python = "../../.venv-test/bin/python"
	}
	python, err := filepath.Abs(python)
	if err != nil {
		t.Fatal(err)
	}
	prefix := filepath.Dir(filepath.Dir(python))
	found, err := filepath.Glob(filepath.Join(prefix, "lib/python3*/site-packages/magika/models/standard_v3_3"))
	if err != nil || len(found) != 1 || len(session.Candidates("", os.Args[0], prefix)) == 0 {
		const what = "there is no magika with onnxruntime in the environment of FLAMBEAU_TEST_PYTHON (make test makes one)"
		if os.Getenv("FLAMBEAU_TEST_REQUIRED") != "" {
			t.Fatal(what)
		}
		t.Skip(what)
	}
	program := filepath.Join(t.TempDir(), "flambeau-onnx")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".") //nolint:gosec // a file of this test
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const rows = 2048
	sample := handlertest.Body("application/json", []byte("["+strings.TrimSuffix(strings.Repeat("97,", rows), ",")+"]"))
	refused := handlertest.Body("application/json", []byte("[[1, 2, 3]]"))
	opts := handlertest.Options{Dir: found[0], Model: "magika", Env: []string{"FLAMBEAU_PYTHON_PREFIX=" + prefix}, Sample: sample, Refused: &refused}
	handlertest.RunConformance(t, program, opts)

	p := handlertest.Start(t, program, opts)
	response := p.MustLoad()
	var description handlersdk.Description
	if err := json.Unmarshal(response.GetDescriptionJson(), &description); err != nil || description.Platform != "onnxruntime_onnx" || len(description.Inputs) != 1 {
		t.Errorf("%s, %v", response.GetDescriptionJson(), err)
	}
	results := p.MustAsk(sample, refused, sample)
	if r := results[1]; r.Failure == nil || r.Status != 400 || !strings.Contains(r.Failure.Message, "has the shape [1 3], and the model wants [-1 2048]") {
		t.Errorf("%d %s, %+v", r.Status, r.Body, r.Failure)
	}
	var got struct {
		Label []float64 `json:"target_label"`
	}
	for _, i := range []int{0, 2} {
		if err := json.Unmarshal(results[i].Body, &got); err != nil || len(got.Label) != 214 {
			t.Errorf("%.100s, %v, %+v", results[i].Body, err, results[i].Failure)
		}
	}
}
