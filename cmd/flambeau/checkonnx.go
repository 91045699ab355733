package main

import (
	"context"
	"os/exec"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// askONNX bounds how long the backend may take to tell which ONNX Runtime it loads.
const askONNX = 5 * time.Second

// onnxRuntime gives what tells the version of ONNX Runtime that a worker of an ONNX model would load. The backend itself looks for the library and loads it, so that
// it is the one that a worker has; a library that is installed later is found later.
func onnxRuntime(command func(dir string, workers int) (backend.ProcessSpec, error)) func(context.Context) string {
	return func(ctx context.Context) string {
		spec, err := command("/", 1)
		if err != nil {
			return "" // a load says what is missing
		}
		ctx, cancel := context.WithTimeout(ctx, askONNX)
		defer cancel()
		cmd := exec.CommandContext(ctx, spec.Path, "--onnxruntime") //nolint:gosec // the server's own backend
		cmd.Env, cmd.Dir, cmd.WaitDelay = spec.Env, spec.Dir, time.Second
		said, err := cmd.Output()
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(said))
	}
}
