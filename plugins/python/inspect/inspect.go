// Package inspect has a model's own Python read the code of its archive, and runs none of that code.
package inspect

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// DefaultLimit is how long one inspection may take unless Options say otherwise.
const DefaultLimit = 10 * time.Second

const (
	mostOutput = 32 << 20
	mostErrors = 4 << 10
	waitDelay  = time.Second
)

// Options say which Python reads. Command and Script are required.
type Options struct {
	// Command gives the command of the worker that the model would run in: its interpreter and environment are used.
	Command interface {
		Spec(runtime, dir string) (backend.ProcessSpec, error)
	}
	// Interpreter takes the place of the worker's, if it is not "".
	Interpreter string
	// Script tells where flambeau/inspection/__main__.py of python_compat is.
	Script func() (string, error)
	Limit  time.Duration // 0: DefaultLimit
}

// Inspector reads archives. It is safe for concurrent use.
type Inspector struct{ opts Options }

// New checks the options.
func New(opts Options) (*Inspector, error) {
	if opts.Command == nil || opts.Script == nil {
		return nil, errors.New("inspect: Command and Script are required")
	}
	opts.Limit = cmp.Or(opts.Limit, DefaultLimit)
	return &Inspector{opts: opts}, nil
}

// CrashError is a Python that was ended by a signal while it read the archive's files.
type CrashError struct{ Python, How string }

// Error says which and how.
func (e *CrashError) Error() string { return e.Python + " was ended by a signal: " + e.How }

// Crashed is true: the archive did it.
func (e *CrashError) Crashed() bool { return true }

// ErrLate means that the reading took too long.
var ErrLate = errors.New("it took too long")

// Inspect asks the question (docs/check.md) of the Python of a runtime, "python" or "python3", and gives its answer, both as JSON.
func (i *Inspector) Inspect(ctx context.Context, runtime string, question []byte) ([]byte, error) {
	script, err := i.opts.Script()
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what is missing
	}
	if _, err := os.Stat(script); err != nil {
		return nil, fmt.Errorf("a part of the Python worker is missing: %w; install the flambeau wheel again", err)
	}
	folder := filepath.Dir(script)
	spec, err := i.opts.Command.Spec(runtime, folder)
	if err != nil {
		return nil, err //nolint:wrapcheck // it says which runtime it is
	}
	ctx, cancel := context.WithTimeoutCause(ctx, i.opts.Limit, ErrLate)
	defer cancel()
	out, said := &bounded{most: mostOutput}, &bounded{most: mostErrors}
	path := cmp.Or(i.opts.Interpreter, spec.Path)
	cmd := exec.CommandContext(ctx, path, "-B", script) //nolint:gosec // the worker's own interpreter
	cmd.Dir, cmd.Env = folder, withoutModulePath(spec.Env)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(question), out, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // it is not reaped yet: the group is its own
	cmd.WaitDelay = waitDelay
	err = cmd.Run()
	switch exit := (*exec.ExitError)(nil); {
	case err == nil && !out.full:
		return out.kept.Bytes(), nil
	case err == nil:
		return nil, fmt.Errorf("the answer of %s is longer than %d bytes", path, mostOutput)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s: %w", path, context.Cause(ctx))
	case errors.As(err, &exit) && exit.ExitCode() < 0:
		return nil, &CrashError{Python: path, How: exit.ProcessState.String()}
	default:
		return nil, fmt.Errorf("%s: %w%s", path, err, lastLine(said.kept.String()))
	}
}

// withoutModulePath takes PYTHONPATH out of an environment. It travels in the question: entries of it may mean the model's folder, and a
// sitecustomize.py there would be run.
func withoutModulePath(env []string) []string {
	kept := make([]string, 0, len(env))
	for _, entry := range env {
		switch name, _, _ := strings.Cut(entry, "="); name {
		case "PYTHONPATH", "PYTHONSTARTUP", "PYTHONINSPECT":
		default:
			kept = append(kept, entry)
		}
	}
	return append(kept, "PYTHONIOENCODING=utf-8", "PYTHONDONTWRITEBYTECODE=1")
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if last := strings.TrimSpace(lines[len(lines)-1]); last != "" {
		return ": " + last
	}
	return ""
}

// bounded keeps the beginning of what is written to it, and never fails. It is no bytes.Buffer: that would be filled by its ReadFrom.
type bounded struct {
	kept bytes.Buffer
	most int
	full bool
}

// Write keeps what there is room for.
func (b *bounded) Write(p []byte) (int, error) {
	room := b.most - b.kept.Len()
	if b.full = b.full || len(p) > room; !b.full {
		return b.kept.Write(p)
	}
	b.kept.Write(p[:min(room, len(p))])
	return len(p), nil
}
