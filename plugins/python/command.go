// Package python says how a Python worker is started. The worker itself is the package flambeau.worker in python_compat.
package python

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// Options are what the command of a worker depends on. Find is required.
type Options struct {
	// Find looks where the parts of a worker are on this machine. It is asked when a worker needs them, until it has found them: a Python that is
	// installed while the server runs is used. It may be called several times at once.
	Find func() (Place, error)
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

// Place is where the parts of a Python worker are. Interpreter and Home are required.
type Place struct {
	Interpreter string // Python for the runtime "python"
	Python3     string // Python for the runtime "python3"; "" means Interpreter
	Home        string // folder of the packages flambeau and ts
	Library     string // libflambeau.so; "" means flambeau/_lib/libflambeau.so in Home
}

// MissingError says which part of a Python worker this machine does not have, and what to do about it. Models without Python are served all the same.
type MissingError struct{ Cause error }

// Error is the cause's text.
func (e *MissingError) Error() string { return e.Cause.Error() }

// Unwrap gives the cause.
func (e *MissingError) Unwrap() error { return e.Cause }

// NoPython is true: it is the machine that lacks something, and not the model.
func (e *MissingError) NoPython() bool { return true }

// Command makes the commands of workers. Its methods are safe for concurrent use.
type Command struct {
	opts  Options
	found atomic.Pointer[parts] // nil until they were found
}

// parts are what was found, and what follows from it.
type parts struct {
	Place

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

// New makes a Command. Nothing is looked for before a worker needs it.
func New(opts Options) (*Command, error) {
	if opts.Find == nil {
		return nil, errors.New("python: Find is required")
	}
	return &Command{opts: opts}, nil
}

// parts finds the parts of a worker, the first time that they are all there. Its errors are MissingErrors.
func (c *Command) parts() (*parts, error) {
	if p := c.found.Load(); p != nil {
		return p, nil
	}
	place, err := c.opts.Find()
	if err != nil {
		return nil, &MissingError{err}
	}
	if place.Interpreter == "" || place.Home == "" {
		return nil, errors.New("python: Interpreter and Home are required")
	}
	place.Python3 = cmp.Or(place.Python3, place.Interpreter)
	place.Library = cmp.Or(place.Library, filepath.Join(place.Home, "flambeau", "_lib", "libflambeau.so"))
	p := &parts{Place: place, script: filepath.Join(place.Home, "flambeau", "worker", "__main__.py")}
	for _, file := range []string{p.script, place.Library} {
		if _, err := os.Stat(file); err != nil {
			return nil, &MissingError{fmt.Errorf("a part of the Python worker is missing: %w; install the flambeau wheel again, or run `make build` in a checkout", err)}
		}
	}
	p.env = c.environment(place.Library)
	c.found.CompareAndSwap(nil, p) // several may have looked at once, and found the same
	return c.found.Load(), nil
}

// Missing looks whether a worker could be started, and says what it lacks; nil when nothing is missing.
func (c *Command) Missing() error {
	_, err := c.parts()
	return err
}

func (c *Command) environment(library string) []string {
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
		"FLAMBEAU_LIBRARY="+library,
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

// Prefix is the environment that the workers' Python belongs to, "" where there is none.
func (c *Command) Prefix() string {
	p, err := c.parts()
	if err != nil {
		return ""
	}
	return filepath.Dir(filepath.Dir(p.Interpreter))
}

// InstallScript is the program that installs models' requirements; plugins/python/deps runs it.
func (c *Command) InstallScript() (string, error) {
	return c.packaged("flambeau", "dependencies.py")
}

// InspectScript is the program that reads the code of archives; plugins/python/inspect runs it.
func (c *Command) InspectScript() (string, error) {
	return c.packaged("flambeau", "inspection", "__main__.py")
}

func (c *Command) packaged(path ...string) (string, error) {
	p, err := c.parts()
	if err != nil {
		return "", err
	}
	return filepath.Join(append([]string{p.Home}, path...)...), nil
}

// WithoutBytecode makes a worker write no bytecode beside the code that it imports. Python takes bytecode for that of a source file by its size and the
// second in which it was written: in a folder that changes while the server runs, a second edit within one second would not be seen.
func WithoutBytecode(spec backend.ProcessSpec) backend.ProcessSpec {
	spec.Env = append(slices.Clone(spec.Env), "PYTHONDONTWRITEBYTECODE=1")
	return spec
}

// Spec is the command of a worker whose model was unpacked to dir. runtime is the model's: python or python3.
func (c *Command) Spec(runtime, dir string) (backend.ProcessSpec, error) {
	if runtime != "python" && runtime != "python3" {
		return backend.ProcessSpec{}, fmt.Errorf("runtime %q is not one of Python's", runtime)
	}
	p, err := c.parts()
	if err != nil {
		return backend.ProcessSpec{}, err
	}
	interpreter := p.Interpreter
	if runtime == "python3" {
		interpreter = p.Python3
	}
	return backend.ProcessSpec{Path: interpreter, Args: []string{p.script}, Dir: dir, Env: p.env}, nil
}
