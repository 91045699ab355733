package host_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/reexec"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/host"
)

// modeHost is this test binary as a server that is killed.
const modeHost reexec.Mode = "host"

// hostJob is what a helper host is to do, as JSON in its environment.
type hostJob struct {
	SocketDir string
	Path      string
	Args, Env []string
	Stuck     bool     // it will not get through its start
	Load      bool     // or only start
	Batches   []string // the last one is not waited for
}

const envHostJob = "FLAMBEAU_HOST_JOB"

// runHost prints "pid N" for the worker, then what the worker prints, then "ready", and waits to be killed.
func runHost() {
	var job hostJob
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err, detail(err))
		os.Exit(1)
	}
	if err := json.Unmarshal([]byte(os.Getenv(envHostJob)), &job); err != nil {
		fail(err)
	}
	l, err := host.New(host.Options{
		SocketDir: job.SocketDir, MaxMessageBytes: maxMessage,
		Limits: backend.Limits{Start: longLimit, Load: longLimit, Stop: longLimit},
	})
	if err != nil {
		fail(err)
	}
	ctx := context.Background()
	inst, err := l.Launch(ctx, backend.ProcessSpec{
		Path: job.Path, Args: job.Args, Env: job.Env,
		Output: func(line backend.OutputLine) { fmt.Println(line.Text) },
	})
	if err != nil {
		fail(err)
	}
	fmt.Println("pid", inst.PID())
	if job.Load {
		if _, err := inst.Load(ctx, backend.LoadSpec{GPU: backend.NoGPU}); err != nil {
			fail(err)
		}
	}
	for n, body := range job.Batches {
		if n < len(job.Batches)-1 {
			if _, err := inst.Predict(ctx, []infer.Item{item(body)}); err != nil {
				fail(err)
			}
			continue
		}
		go func() { _, _ = inst.Predict(ctx, []infer.Item{item(body)}) }()
	}
	fmt.Println("ready")
	select {}
}

// killHost runs a helper host until it is ready and so many processes have given their numbers, kills it with SIGKILL, and
// checks that nothing that it has started lives on.
func killHost(t *testing.T, job hostJob, processes int) {
	t.Helper()
	job.SocketDir = socketDir(t)
	text, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0]) //nolint:gosec // this binary
	cmd.Env = append(os.Environ(), reexec.Env(modeHost), envHostJob+"="+string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []int
	ready := job.Stuck
	for in := bufio.NewScanner(out); (!ready || len(pids) < processes) && in.Scan(); {
		ready = ready || in.Text() == "ready"
		for _, prefix := range []string{"pid ", "child "} {
			if number, ok := strings.CutPrefix(in.Text(), prefix); ok {
				pid, err := strconv.Atoi(number)
				if err != nil {
					t.Fatal(err)
				}
				pids = append(pids, pid)
			}
		}
	}
	for _, pid := range pids {
		if !alive(pid) {
			t.Errorf("process %d does not live", pid)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if len(pids) != processes {
		t.Fatalf("processes %v, want %d", pids, processes)
	}
	for _, pid := range pids {
		eventually(t, 2*time.Second, "process "+strconv.Itoa(pid)+" is gone", func() bool { return !alive(pid) })
	}
}

func TestNothingOutlivesAKilledHost(t *testing.T) {
	t.Parallel()
	spec := func(mode reexec.Mode) hostJob {
		s := reexec.Spec(mode)
		return hostJob{Path: s.Path, Args: s.Args, Env: s.Env, Load: true}
	}
	t.Run("idle", func(t *testing.T) {
		t.Parallel()
		killHost(t, spec(reexec.Echo), 1)
	})
	t.Run("not loaded", func(t *testing.T) {
		t.Parallel()
		job := spec(reexec.Echo)
		job.Load = false
		killHost(t, job, 1)
	})
	t.Run("in a batch that does not end", func(t *testing.T) {
		t.Parallel()
		job := spec(reexec.Wedge)
		job.Batches = []string{"a"}
		killHost(t, job, 1)
	})
	t.Run("before the lifeline is read", func(t *testing.T) {
		t.Parallel()
		killHost(t, hostJob{Path: "/bin/sh", Args: []string{"-c", "echo child $$ >&2; exec sleep 1000"}, Stuck: true}, 1)
	})
	t.Run("with a child", func(t *testing.T) {
		t.Parallel()
		killHost(t, spec(reexec.Fork), 2)
	})
}
