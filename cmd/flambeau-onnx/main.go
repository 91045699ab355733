// Command flambeau-onnx is the native backend for ONNX models. The server starts one process of it for each worker.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
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
	envConfig  = "FLAMBEAU_MODEL_CONFIG"  // the file with the model's settings, if it is not the one in its folder
)

// askRuntime is the argument by which `flambeau check` asks which ONNX Runtime a model would run on.
const askRuntime = "--onnxruntime"

func main() {
	program, err := os.Executable()
	if err != nil {
		program = os.Args[0]
	}
	threads, err := strconv.Atoi(os.Getenv(envThreads))
	if err != nil {
		threads = 0
	}
	candidates := session.Candidates(os.Getenv(envLibrary), program, os.Getenv(envPrefix))
	if len(os.Args) == 2 && os.Args[1] == askRuntime {
		os.Exit(tellRuntime(candidates))
	}
	handlersdk.Serve(roomy{onnx.New(onnx.Options{
		Library: candidates, Threads: threads, Config: os.Getenv(envConfig),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})})
}

// roomy takes as many processors as suit the model, and collects garbage less often once it is there. The model lies outside Go's heap, so that what is left is small beside the requests, and the collector would run with
// every few of them.
type roomy struct{ *onnx.Handler }

// Initialize implements handlersdk.Handler.
func (r roomy) Initialize(ctx context.Context, m handlersdk.Model) error {
	if err := r.Handler.Initialize(ctx, m); err != nil {
		return err
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(processors(r.ReadsLong()))
	}
	if os.Getenv("GOGC") != "" {
		return nil
	}
	runtime.GC()
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	debug.SetGCPercent(percent(now.HeapAlloc))
	return nil
}

// processors is how many Go uses. The model's threads are not Go's, and what little Go does beside them is not to disturb them on several processors. A request
// that takes long to read has one of its own, so that a finished answer does not wait for it.
func processors(readsLong bool) int {
	if readsLong {
		return 2
	}
	return 1
}

// percent lets garbage take some dozen megabytes, or as much as what lives.
func percent(live uint64) int {
	const usual, room = 100, 48 << 20
	return max(usual, int(room*usual/max(live, 1<<20)))
}

// tellRuntime writes the version of the ONNX Runtime that a worker would load, and gives the exit status.
func tellRuntime(candidates []string) int {
	version, err := session.Init(candidates)
	if err != nil {
		fmt.Fprintln(os.Stderr, "flambeau-onnx:", err)
		return 1
	}
	if _, err := fmt.Fprintln(os.Stdout, version); err != nil {
		return 1
	}
	return 0
}
