package inspect

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/flambeau-serve/flambeau/plugins/backend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type command struct{ env []string }

func (c command) Spec(runtime, _ string) (backend.ProcessSpec, error) {
	if runtime == "LSP" {
		return backend.ProcessSpec{}, errors.New("no Python's")
	}
	python, err := exec.LookPath("python3")
	return backend.ProcessSpec{Path: python, Env: append(c.env, "PATH="+os.Getenv("PATH"))}, err
}

// asking makes an inspector whose script is this one.
func asking(t *testing.T, script string, limit time.Duration, env ...string) *Inspector {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a Python")
	}
	path := filepath.Join(t.TempDir(), "script.py")
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	i, err := New(Options{Command: command{env}, Script: func() (string, error) { return path, nil }, Limit: limit})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestInspect(t *testing.T) {
	t.Parallel()
	i := asking(t, "import os, sys\nprint(sys.stdin.read(), os.environ.get('PYTHONPATH'), os.environ['KEPT'], os.getcwd() == os.path.dirname(os.path.abspath(__file__)))\n",
		0, "PYTHONPATH=/x", "KEPT=y", "PYTHONINSPECT=1")
	got, err := i.Inspect(t.Context(), "python", []byte("question"))
	if err != nil || strings.TrimSpace(string(got)) != "question None y True" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := i.Inspect(t.Context(), "LSP", nil); err == nil {
		t.Error("a runtime that is none of Python's was asked")
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, script string
		limit        time.Duration
		crashed      bool
		text         string
	}{
		{"an exception", "raise ValueError('the reason')\n", 0, false, "exit status 1: ValueError: the reason"},
		{"a crash", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", 0, true, "segmentation fault"},
		{"too late", "import time\ntime.sleep(600)\n", 300 * time.Millisecond, false, ErrLate.Error()},
		{"too late, with a child", "import subprocess, sys\nsubprocess.call([sys.executable, '-c', 'import time; time.sleep(600)'])\n", 300 * time.Millisecond, false, ErrLate.Error()},
		{"too much", "import sys\nfor _ in range(33): sys.stdout.write('x' * (1 << 20))\n", time.Minute, false, "longer than"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := asking(t, tt.script, tt.limit).Inspect(t.Context(), "python3", nil)
			if err == nil || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%v, want %q", err, tt.text)
			}
			if crash := (*CrashError)(nil); errors.As(err, &crash) != tt.crashed {
				t.Errorf("%v is taken for a crash: %t", err, !tt.crashed)
			}
		})
	}
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("nobody waits")
	cancel(reason)
	if _, err := asking(t, "import time\ntime.sleep(600)\n", 0).Inspect(ctx, "python", nil); !errors.Is(err, reason) {
		t.Errorf("%v", err)
	}
}
