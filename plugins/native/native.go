// Package native makes the commands of backends that are programs of their own, without Python: flambeau-onnx.
package native

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// The variables by which a backend is told about its machine.
const (
	libraryVariable = "FLAMBEAU_ONNXRUNTIME"
	prefixVariable  = "FLAMBEAU_PYTHON_PREFIX"
	threadsVariable = "FLAMBEAU_THREADS"
)

// Options are what a Command needs.
type Options struct {
	ONNX    string        // the program flambeau-onnx; "" or one that is not there: ONNX models are refused, with what to do
	Library string        // ONNX Runtime's library, or its folder; "": where it usually is
	Prefix  func() string // of the Python environment that may hold ONNX Runtime, "" for none; nil: there is none
	CPUs    int           // processors that the server may use
	Env     []string
	Hidden  func(name string) bool // variables of Env that backends must not see; nil hides none
}

// Command makes the commands of native backends.
type Command struct {
	opts Options
	env  []string
}

// New makes a Command.
func New(opts Options) *Command {
	c := &Command{opts: opts}
	for _, entry := range opts.Env {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "FLAMBEAU_") || opts.Hidden != nil && opts.Hidden(name) {
			continue
		}
		c.env = append(c.env, entry)
	}
	return c
}

// Plugin is the command of a worker of a plugin: the author's program, which runs in the model's folder.
func (c *Command) Plugin(dir, program string, args []string, workers int) (backend.ProcessSpec, error) {
	if program == "" {
		return backend.ProcessSpec{}, fmt.Errorf("the model in %s has no program that could be started: put one that is called as the model into its folder, "+
			"or name one by the key plugin of its model-config.yaml", dir)
	}
	return backend.ProcessSpec{Path: program, Args: args, Env: c.environment(workers), Dir: dir}, nil
}

// environment is that of a worker: its share of the processors, and where ONNX Runtime may be, which plugins may use as well.
func (c *Command) environment(workers int) []string {
	env := append(append([]string(nil), c.env...), threadsVariable+"="+strconv.Itoa(max(1, c.opts.CPUs/max(1, workers))))
	if c.opts.Library != "" {
		env = append(env, libraryVariable+"="+c.opts.Library)
	}
	if c.opts.Prefix == nil {
		return env
	}
	if prefix := c.opts.Prefix(); prefix != "" {
		env = append(env, prefixVariable+"="+prefix)
	}
	return env
}

// ONNX is the command of a worker for the ONNX model in dir. The processors are shared between the workers that the model has.
func (c *Command) ONNX(dir string, workers int) (backend.ProcessSpec, error) {
	if _, err := os.Stat(c.opts.ONNX); c.opts.ONNX == "" || err != nil {
		return backend.ProcessSpec{}, fmt.Errorf("the program flambeau-onnx, which runs ONNX models, is not beside the server (%s); install the flambeau "+
			"wheel again, or run `make build` in a checkout", c.opts.ONNX)
	}
	return backend.ProcessSpec{Path: c.opts.ONNX, Env: c.environment(workers), Dir: dir}, nil
}
