// Command flambeau-onnx is the native backend for ONNX models. The server starts one process of it for each worker.
package main

import (
	"log/slog"
	"os"
	"strconv"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/plugins/onnx"
	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
)

// What the server tells the process by its environment.
const (
	envLibrary = "FLAMBEAU_ONNXRUNTIME"   // ONNX Runtime's library, or the folder that it is in
	envPrefix  = "FLAMBEAU_PYTHON_PREFIX" // the Python environment that may hold one
	envThreads = "FLAMBEAU_THREADS"       // for a model that does not say
)

func main() {
	program, err := os.Executable()
	if err != nil {
		program = os.Args[0]
	}
	threads, err := strconv.Atoi(os.Getenv(envThreads))
	if err != nil {
		threads = 0
	}
	handlersdk.Serve(onnx.New(onnx.Options{
		Library: session.Candidates(os.Getenv(envLibrary), program, os.Getenv(envPrefix)), Threads: threads,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}))
}
