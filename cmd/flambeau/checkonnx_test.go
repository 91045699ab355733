package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// TestONNXRuntimeOfTheBackend asks programs in the place of flambeau-onnx; test/e2e asks the real one.
func TestONNXRuntimeOfTheBackend(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, tt := range map[string]struct{ script, want string }{
		"tells":  {`[ "$1" = --onnxruntime ] && [ "$WHERE" = here ] && echo 1.26.0`, "1.26.0"},
		"lacks":  {"echo no ONNX Runtime >&2; exit 1", ""},
		"silent": {"exit 0", ""},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+tt.script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		got := onnxRuntime(func(string, int) (backend.ProcessSpec, error) {
			return backend.ProcessSpec{Path: path, Env: []string{"WHERE=here"}, Dir: dir}, nil
		})(t.Context())
		if got != tt.want {
			t.Errorf("one that %s: %q, want %q", name, got, tt.want)
		}
	}
	if got := onnxRuntime(func(string, int) (backend.ProcessSpec, error) {
		return backend.ProcessSpec{}, errors.New("it is not there")
	})(t.Context()); got != "" {
		t.Errorf("without a backend: %q", got)
	}
}
