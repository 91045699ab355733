// Package python says how a Python worker is started. The worker itself is the package flambeau.worker in python_compat.
package python

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// Options are what the command of a worker depends on. Interpreter and Home are required.
type Options struct {
	Interpreter string // Python for the runtime "python"
	Python3     string // Python for the runtime "python3"; "" means Interpreter
	Home        string // folder of the packages flambeau and ts
	Library     string // libflambeau.so; "" means flambeau/_lib/libflambeau.so in Home
	// Env is the environment that workers inherit, KEY=VALUE.
	Env []string
	// Hidden says which variables of Env workers must not see; nil hides none.
	Hidden func(name string) bool
	// MetricsConfig is the metrics.yaml that handlers' metrics are checked against; "" means TorchServe's.
	MetricsConfig string
	// DecodeInput lets workers decode JSON and text bodies (TorchServe's decode_input_request).
	DecodeInput bool
	// IPEX and IPEXGPU are passed on to handlers (ipex_enable, ipex_gpu_enable).
	IPEX, IPEXGPU bool
}

// Command makes the commands of workers.
type Command struct {
	opts   Options
	script string
	env    []string
}

// Extras are what the installed dependencies of a model add to the command of its workers.
type Extras struct {
	Interpreter string // in place of the server's; "" for that
	Packages    string // folder of packages that goes onto the module search path, "" for none
	Installed   bool   // whether the model's requirements file was installed
}

// The variables by which workers are told about dependencies; flambeau.worker reads them.
const (
	packagesVariable  = "FLAMBEAU_MODEL_PACKAGES"
	installedVariable = "FLAMBEAU_REQUIREMENTS_INSTALLED"
)

// Add gives the command with the extras.
func (x Extras) Add(spec backend.ProcessSpec) backend.ProcessSpec {
	if x.Interpreter != "" {
		spec.Path = x.Interpreter
	}
	spec.Env = slices.Clone(spec.Env) // it may be shared by all commands
	if x.Packages != "" {
		spec.Env = append(spec.Env, packagesVariable+"="+x.Packages)
	}
	if x.Installed {
		spec.Env = append(spec.Env, installedVariable+"=true")
	}
	return spec
}

// ownVariables are the server's and the process border's: a worker gets its own values or none.
var ownVariables = [...]string{"FLAMBEAU_PLUGIN", "FLAMBEAU_MAX_MESSAGE_BYTES", "FLAMBEAU_LIBRARY", "FLAMBEAU_HOME", "FLAMBEAU_PYTHON", "FLAMBEAU_METRICS_CONFIG", packagesVariable, installedVariable}

// New looks whether the worker and its library are there.
func New(opts Options) (*Command, error) {
	if opts.Interpreter == "" || opts.Home == "" {
		return nil, errors.New("python: Interpreter and Home are required")
	}
	if opts.Python3 == "" {
		opts.Python3 = opts.Interpreter
	}
	if opts.Library == "" {
		opts.Library = filepath.Join(opts.Home, "flambeau", "_lib", "libflambeau.so")
	}
	c := &Command{opts: opts, script: filepath.Join(opts.Home, "flambeau", "worker", "__main__.py")}
	for _, file := range []string{c.script, opts.Library} {
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("a part of the Python worker is missing: %w; install the flambeau wheel again, or run `make build` in a checkout", err)
		}
	}
	c.env = c.environment()
	return c, nil
}

func (c *Command) environment() []string {
	var env []string
	for _, entry := range c.opts.Env {
		name, _, _ := strings.Cut(entry, "=")
		if c.isOwn(name) || c.opts.Hidden != nil && c.opts.Hidden(name) {
			continue
		}
		env = append(env, entry)
	}
	if c.opts.MetricsConfig != "" {
		env = append(env, "FLAMBEAU_METRICS_CONFIG="+c.opts.MetricsConfig)
	}
	return append(env,
		"FLAMBEAU_LIBRARY="+c.opts.Library,
		fmt.Sprintf("TS_DECODE_INPUT_REQUEST=%t", c.opts.DecodeInput),
		fmt.Sprintf("TS_IPEX_ENABLE=%t", c.opts.IPEX),
		fmt.Sprintf("TS_IPEX_GPU_ENABLE=%t", c.opts.IPEXGPU),
	)
}

func (c *Command) isOwn(name string) bool {
	for _, own := range ownVariables {
		if name == own {
			return true
		}
	}
	return strings.HasPrefix(name, "TS_DECODE_INPUT_REQUEST") || strings.HasPrefix(name, "TS_IPEX_")
}

// Interpreter is the Python of workers whose models do not choose another one.
func (c *Command) Interpreter() string { return c.opts.Interpreter }

// InstallScript is the program that installs models' requirements; plugins/python/deps runs it.
func (c *Command) InstallScript() string {
	return filepath.Join(c.opts.Home, "flambeau", "dependencies.py")
}

// InspectScript is the program that reads the code of archives; plugins/python/inspect runs it.
func (c *Command) InspectScript() string {
	return filepath.Join(c.opts.Home, "flambeau", "inspection", "__main__.py")
}

// WithoutBytecode makes a worker write no bytecode beside the code that it imports. Python takes bytecode for that of a source file by its size and the
// second in which it was written: in a folder that changes while the server runs, a second edit within one second would not be seen.
func WithoutBytecode(spec backend.ProcessSpec) backend.ProcessSpec {
	spec.Env = append(slices.Clone(spec.Env), "PYTHONDONTWRITEBYTECODE=1")
	return spec
}

// Spec is the command of a worker whose model was unpacked to dir. runtime is the model's: python or python3.
func (c *Command) Spec(runtime, dir string) (backend.ProcessSpec, error) {
	interpreter := c.opts.Interpreter
	switch runtime {
	case "python":
	case "python3":
		interpreter = c.opts.Python3
	default:
		return backend.ProcessSpec{}, fmt.Errorf("runtime %q is not one of Python's", runtime)
	}
	return backend.ProcessSpec{Path: interpreter, Args: []string{c.script}, Dir: dir, Env: c.env}, nil
}
