package host_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/host"
)

// pythonSpec builds the library and gives how to start testdata/worker.py on it.
func pythonSpec(t testing.TB) backend.ProcessSpec {
	t.Helper()
	if testing.Short() {
		t.Skip("builds the C library")
	}
	for _, tool := range []string{"python3", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	python, err := exec.CommandContext(t.Context(), "python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(t.TempDir(), "libflambeau.so")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildmode=c-shared", "-o", library, "../../cmd/libflambeau") //nolint:gosec // our own
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	worker, err := filepath.Abs("testdata/worker.py")
	if err != nil {
		t.Fatal(err)
	}
	return backend.ProcessSpec{
		Path: strings.TrimSpace(string(python)), Args: []string{"-u", worker, library},
		Env: append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1"),
	}
}

func predictOne(t *testing.T, inst backend.Instance, body string) ([]byte, error) {
	t.Helper()
	got, err := inst.Predict(t.Context(), []infer.Item{item(body)})
	if err != nil {
		return nil, err
	}
	return got[0].Body, got[0].Err
}

func TestPython(t *testing.T) {
	t.Parallel()
	spec := pythonSpec(t)
	t.Run("batches", func(t *testing.T) {
		t.Parallel()
		testPythonBatches(t, spec)
	})
	t.Run("batches while Go collects garbage all the time", func(t *testing.T) {
		t.Parallel()
		testPythonUnderGC(t, spec)
	})
	t.Run("load", func(t *testing.T) {
		t.Parallel()
		inst := launch(t, newLauncher(t), spec)
		_, err := inst.Load(t.Context(), backend.LoadSpec{Handler: "broken"})
		wantFault(t, err, fault.LoadFailed, "ValueError: broken", "Traceback")
	})
	t.Run("stop ends a loop in C", func(t *testing.T) {
		t.Parallel()
		out := newLines()
		spec := spec
		spec.Output = out.add
		inst := ready(t, newLauncher(t, func(o *host.Options) { o.Limits.Stop = shortLimit }), spec)
		result := make(chan error, 1)
		go func() {
			_, err := predictOne(t, inst, "loop")
			result <- err
		}()
		out.wait(t, "looping")
		if err := inst.Stop(t.Context()); err == nil || alive(inst.PID()) {
			t.Errorf("%v", err)
		}
		wantFault(t, <-result, fault.Draining)
	})
	t.Run("kill in a batch", func(t *testing.T) {
		t.Parallel()
		inst := ready(t, newLauncher(t), spec)
		defer time.AfterFunc(200*time.Millisecond, func() { _ = syscall.Kill(inst.PID(), syscall.SIGKILL) }).Stop()
		_, err := predictOne(t, inst, "wait")
		wantFault(t, err, fault.BackendDied, "signal 9")
		<-inst.Done()
	})
	t.Run("heartbeats", func(t *testing.T) {
		t.Parallel()
		testPythonHeartbeats(t, spec)
	})
	t.Run("exit in a batch", func(t *testing.T) {
		t.Parallel()
		inst := ready(t, newLauncher(t), spec)
		_, err := predictOne(t, inst, "exit")
		wantFault(t, err, fault.BackendDied, "exit status 5")
	})
	t.Run("crash in a batch", func(t *testing.T) {
		t.Parallel()
		inst := ready(t, newLauncher(t), spec)
		_, err := predictOne(t, inst, "segv")
		wantFault(t, err, fault.BackendDied, "signal 11")
	})
	t.Run("answers that are none", func(t *testing.T) {
		t.Parallel()
		out := newLines()
		spec := spec
		spec.Output = out.add
		inst := ready(t, newLauncher(t), spec)
		_, err := predictOne(t, inst, "garbage")
		wantFault(t, err, fault.Internal, "malformed frame")
		_, err = predictOne(t, inst, "other")
		wantFault(t, err, fault.Internal, "the answer is to batch 8680820740569200760")
		out.wait(t, "malformed frame") // what the caller of flambeau_give was told
		if got, err := predictOne(t, inst, "fine"); err != nil || string(got) != "fine" {
			t.Errorf("%q, %v", got, err)
		}
	})
	t.Run("misuse of the library", func(t *testing.T) {
		t.Parallel()
		cmd := exec.CommandContext(t.Context(), spec.Path, "testdata/misuse.py", spec.Args[2]) //nolint:gosec // our own
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("interrupt", func(t *testing.T) {
		t.Parallel()
		inst := ready(t, newLauncher(t), spec)
		if err := syscall.Kill(inst.PID(), syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if got, err := predictOne(t, inst, "still here"); err != nil || string(got) != "still here" {
			t.Errorf("%q, %v", got, err)
		}
	})
	t.Run("forks under load", func(t *testing.T) {
		t.Parallel()
		testPythonForks(t, spec)
	})
	t.Run("host killed in a loop in C, with a child", func(t *testing.T) {
		t.Parallel()
		killHost(t, hostJob{Path: spec.Path, Args: spec.Args, Env: spec.Env, Load: true, Batches: []string{"child", "loop"}}, 2)
	})
	t.Run("host killed before load", func(t *testing.T) {
		t.Parallel()
		killHost(t, hostJob{Path: spec.Path, Args: spec.Args, Env: spec.Env}, 1)
	})
	t.Run("by hand", func(t *testing.T) {
		t.Parallel()
		cmd := exec.CommandContext(t.Context(), spec.Path, spec.Args...) //nolint:gosec // our own
		// 4 is where it expects the log.
		cmd.ExtraFiles = []*os.File{os.Stderr, os.Stderr}
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "started by it, not by hand") {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// testPythonUnderGC has a collection run while jobs are handed to C: what C keeps of an earlier job is a dead address, which the collector must never
// take for a pointer.
func testPythonUnderGC(t *testing.T, spec backend.ProcessSpec) {
	t.Helper()
	spec.Env = append(spec.Env, "GOGC=1")
	inst := launch(t, newLauncher(t), spec)
	if _, err := inst.Load(t.Context(), backend.LoadSpec{}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			for i := range 150 {
				body := strings.Repeat(strconv.Itoa(n), 1+(i*104729)%1_500_000)
				if got, err := predictOne(t, inst, body); err != nil || string(got) != body {
					t.Errorf("batch %d: %d bytes for %d, %v", i, len(got), len(body), err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func testPythonBatches(t *testing.T, spec backend.ProcessSpec) {
	t.Helper()
	out := newLines()
	spec.Output = out.add
	inst := launch(t, newLauncher(t), spec)
	info, err := inst.Load(t.Context(), backend.LoadSpec{Model: infer.ModelRef{Name: "m"}, GPU: 3, BatchSize: 8})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]bool{"python": true}, info.Features); diff != "" {
		t.Errorf("features: %s", diff)
	}
	out.wait(t, "loading m 3 8")
	big := strings.Repeat("0123456789abcdef", 20<<16)
	got, err := inst.Predict(t.Context(), []infer.Item{item("a"), item(""), item(big)})
	if err != nil || string(got[0].Body) != "a" || len(got[1].Body) != 0 || !bytes.Equal(got[2].Body, []byte(big)) {
		t.Errorf("%v", err)
	}
	var wg sync.WaitGroup
	for n := range 50 {
		wg.Go(func() {
			body := strconv.Itoa(n)
			if got, err := predictOne(t, inst, body); err != nil || string(got) != body {
				t.Errorf("%q for %q, %v", got, body, err)
			}
		})
	}
	wg.Wait()
	if threads := statusField(t, inst.PID(), "Threads"); threads > 12 {
		t.Errorf("the worker has %d threads", threads)
	}
	begin := time.Now()
	if err := inst.Stop(t.Context()); err != nil || inst.Err() != nil {
		t.Errorf("stop: %v, %v", err, inst.Err())
	}
	if d := time.Since(begin); d > 1500*time.Millisecond {
		t.Errorf("a polite end took %v: go-plugin's two seconds are in it", d)
	}
}

// statusField reads a number from /proc/PID/status.
func statusField(t *testing.T, pid int, name string) int {
	t.Helper()
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			n, err := strconv.Atoi(strings.Fields(value)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("%s is not in %s", name, status)
	return 0
}

func testPythonForks(t *testing.T, spec backend.ProcessSpec) {
	t.Helper()
	inst := ready(t, newLauncher(t), spec)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if got, err := predictOne(t, inst, "echo"); err != nil || string(got) != "echo" {
					t.Errorf("%q, %v", got, err)
					return
				}
			}
		})
	}
	for range 20 {
		if got, err := predictOne(t, inst, "fork"); err != nil || string(got) != "[0, 1, 4, 9]" {
			t.Errorf("%q, %v", got, err)
			break
		}
	}
	close(stop)
	wg.Wait()
}
