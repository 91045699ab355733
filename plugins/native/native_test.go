package native

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestONNX(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "flambeau-onnx")
	c := New(Options{
		ONNX: program, CPUs: 8, Library: "/ort", Prefix: func() string { return "/venv" }, Env: []string{"A=1", "SECRET=2", "FLAMBEAU_HOME=/x"},
		Hidden: func(name string) bool { return name == "SECRET" },
	})
	if _, err := c.ONNX("/m", 1); err == nil || !strings.Contains(err.Error(), program) {
		t.Errorf("a program that is not there: %v", err)
	}
	if err := os.WriteFile(program, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if spec, err := c.Plugin("/m", "/m/p", []string{"-v"}, 2); err != nil || spec.Path != "/m/p" || spec.Dir != "/m" || !slices.Equal(spec.Args, []string{"-v"}) ||
		!slices.Contains(spec.Env, "FLAMBEAU_THREADS=4") || slices.Contains(spec.Env, "SECRET=2") || slices.Contains(spec.Env, "FLAMBEAU_HOME=/x") {
		t.Errorf("%+v, %v", spec, err)
	}
	if _, err := c.Plugin("/m", "", nil, 1); err == nil || !strings.Contains(err.Error(), "plugin") {
		t.Errorf("a plugin without a program: %v", err)
	}
	for workers, threads := range map[int]string{1: "8", 3: "2", 20: "1", 0: "8"} {
		spec, err := c.ONNX("/m", workers)
		want := []string{"A=1", "FLAMBEAU_THREADS=" + threads, "FLAMBEAU_ONNXRUNTIME=/ort", "FLAMBEAU_PYTHON_PREFIX=/venv"}
		if err != nil || spec.Path != program || spec.Dir != "/m" || !slices.Equal(spec.Env, want) {
			t.Errorf("%d workers: %+v, %v", workers, spec, err)
		}
	}
}
