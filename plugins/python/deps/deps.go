// Package deps installs what Python models require into folders that outlive the server and that all workers share.
package deps

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// Options say how models' requirements are installed. Script, Folders, Limit and Logger are required.
type Options struct {
	// Script tells where flambeau/dependencies.py of python_compat is.
	Script func() (string, error)
	// Folders are where the installed packages may be kept; the first that can be used is.
	Folders []string
	// Env is the environment of pip, KEY=VALUE. Its own variables and configuration files are honoured.
	Env []string
	// Requirements says whether requirements files are installed (TorchServe's install_py_dep_per_model). Virtual environments are made without
	// it, too, as TorchServe does.
	Requirements bool
	// Limit is how long one installation may take.
	Limit  time.Duration
	Logger *slog.Logger
}

// Request is what a model asks for.
type Request struct {
	Model        infer.ModelRef
	Interpreter  string // absolute path of the Python that the model would run on
	Dir          string // the unpacked archive
	Requirements string // its requirements file, relative to Dir; "" for none
	Venv         bool   // whether it wants a virtual environment of its own (TorchServe's useVenv)
}

// Environment is where a model's packages are. It stays until Release.
type Environment struct {
	Interpreter string // the Python to run the model on
	Packages    string // folder that goes onto its module search path, "" for none
	Installed   bool   // whether the model's requirements file was installed

	held *held // nil when nothing is held
}

// Release lets the packages be removed when nobody has asked for them for a long time. It may be called more than once.
func (e *Environment) Release() { e.held.release() }

// Installer installs requirements. Its methods are safe for concurrent use.
type Installer struct {
	opts Options
	// life ends when Close is called: it ends the installations.
	life context.Context //nolint:containedctx // a life-long "done", not a call's context
	end  context.CancelCauseFunc

	mu      sync.Mutex // guards closed
	closed  bool
	running sync.WaitGroup
}

// New checks the options. Nothing is written before the first installation.
func New(opts Options) (*Installer, error) {
	if opts.Script == nil || len(opts.Folders) == 0 || opts.Limit <= 0 || opts.Logger == nil {
		return nil, errors.New("deps: Script, Folders, Limit and Logger are required")
	}
	i := &Installer{opts: opts}
	i.life, i.end = context.WithCancelCause(context.Background())
	return i, nil
}

var errClosing = fault.New(fault.Draining, "the server is shutting down", nil)

// Close ends the installations that go on, and returns when they have ended. None can be begun after it.
func (i *Installer) Close() {
	i.mu.Lock()
	i.closed = true
	i.mu.Unlock()
	i.end(errClosing)
	i.running.Wait()
}

// Install makes what the model asks for, unless it has been made before, by this server or another one. The errors are fault.DependencyFailed
// in TorchServe's words, with pip's last lines as the hint, unless the installation was cut off.
func (i *Installer) Install(ctx context.Context, r Request) (*Environment, error) {
	log := i.opts.Logger.With("model", r.Model.Name, "version", r.Model.Version)
	if r.Requirements != "" && !i.opts.Requirements {
		log.InfoContext(ctx, "the model's requirements are not installed, since install_py_dep_per_model is not true", "requirements", r.Requirements)
		r.Requirements = ""
	}
	if r.Requirements == "" && !r.Venv {
		return &Environment{Interpreter: r.Interpreter}, nil
	}
	ctx, end, err := i.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	env, err := i.install(ctx, r, log)
	if err != nil {
		return nil, i.asFault(ctx, r, err)
	}
	return env, nil
}

// begin makes Close wait for an installation, and end it; it sets the time limit.
func (i *Installer) begin(ctx context.Context) (context.Context, func(), error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return ctx, nil, errClosing
	}
	i.running.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	unwatch := context.AfterFunc(i.life, func() { cancel(errClosing) })
	ctx, stop := context.WithTimeoutCause(ctx, i.opts.Limit, errLate)
	return ctx, func() {
		stop()
		unwatch()
		cancel(nil)
		i.running.Done()
	}, nil
}

var errLate = errors.New("the time limit is over")

func (i *Installer) install(ctx context.Context, r Request, log *slog.Logger) (*Environment, error) {
	store, err := openStore(i.opts.Folders)
	if err != nil {
		return nil, err
	}
	key, err := i.key(ctx, r)
	if err != nil {
		return nil, err
	}
	at := store.path(key)
	built := false
	kept, err := store.take(ctx, key, log, func(part string) error {
		built = true
		return i.build(ctx, r, part, at, log)
	})
	if err != nil {
		return nil, err
	}
	if !built {
		log.InfoContext(ctx, "the model's packages were installed before", "path", at)
	}
	env := &Environment{Interpreter: r.Interpreter, Installed: r.Requirements != "", held: kept}
	if r.Venv {
		env.Interpreter = filepath.Join(at, "venv", "bin", "python")
	} else {
		env.Packages = filepath.Join(at, "packages")
	}
	return env, nil
}

// build makes the contents of part, which will be moved to at.
func (i *Installer) build(ctx context.Context, r Request, part, at string, log *slog.Logger) error {
	args := []string{"packages", part, at}
	if r.Venv {
		args[0] = "venv"
	}
	if r.Requirements != "" {
		args = append(args, filepath.Join(r.Dir, filepath.FromSlash(r.Requirements)))
	}
	log.InfoContext(ctx, "installing the model's packages, once for all that require the same", "requirements", r.Requirements, "virtual_environment", r.Venv,
		"python", r.Interpreter, "path", at, "limit", i.opts.Limit)
	begun := time.Now()
	out := &lastLines{log: log}
	stop := out.report(begun)
	err := i.run(ctx, r, out, out, args...)
	stop()
	if err != nil {
		log.ErrorContext(ctx, "the model's packages could not be installed", "error", err.Error(), "after", since(begun), "detail", out.text(keptLines))
		return &installError{cause: err, status: exitStatus(err), lines: out}
	}
	log.InfoContext(ctx, "the model's packages are installed", "after", since(begun))
	return nil
}

func since(t time.Time) time.Duration { return time.Since(t).Round(time.Millisecond) }

// installError is a script that has failed.
type installError struct {
	cause  error
	status int
	lines  *lastLines
}

// Error gives the end of what pip said.
func (e *installError) Error() string {
	if said := e.lines.text(shownLines); said != "" {
		return said
	}
	return e.cause.Error()
}

// Unwrap gives how the process ended.
func (e *installError) Unwrap() error { return e.cause }

// statusNoVenv is the script's exit status when the virtual environment could not be made.
const statusNoVenv = 3

// asFault gives an error TorchServe's words.
func (i *Installer) asFault(ctx context.Context, r Request, err error) error {
	var failed *installError
	isScript := errors.As(err, &failed)
	f := fault.New(fault.DependencyFailed, "Custom pip package installation failed for model "+r.Model.Name, err)
	switch cause := context.Cause(ctx); {
	case ctx.Err() != nil && errors.Is(cause, errLate):
		f.Hint = fmt.Sprintf("it took longer than dependency_timeout, %s", i.opts.Limit)
		if isScript {
			f.Hint += "; the last lines: " + failed.Error()
		}
	case ctx.Err() != nil && errors.Is(cause, errClosing):
		return errClosing
	case ctx.Err() != nil:
		return fault.New(fault.Cancelled, "the installation of packages for model "+r.Model.Name+" was given up", cause)
	case isScript && failed.status == statusNoVenv:
		f.Message, f.Hint = "Virtual environment creation failed for model "+r.Model.Name, failed.Error()
	default:
		f.Hint = err.Error()
	}
	if isScript {
		f.Detail = failed.lines.text(keptLines)
	}
	return f
}
