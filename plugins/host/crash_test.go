package host_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/reexec"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

func TestDeaths(t *testing.T) {
	t.Parallel()
	kill := func(sig syscall.Signal) func(pid int) {
		return func(pid int) { _ = syscall.Kill(pid, sig) }
	}
	for name, tc := range map[string]struct {
		mode   reexec.Mode
		kill   func(pid int)
		status int
		want   backend.Crash
		texts  []string
	}{
		"exit":    {reexec.Crash, nil, 500, backend.Crash{Reason: backend.CrashExited, ExitCode: 3}, []string{"exit status 3", "about to crash"}},
		"137":     {reexec.Exit137, nil, 507, backend.Crash{Reason: backend.CrashKilled, ExitCode: 137}, []string{"exit status 137"}},
		"sigkill": {reexec.Wedge, kill(syscall.SIGKILL), 507, backend.Crash{Reason: backend.CrashKilled, ExitCode: -1, Signal: "SIGKILL"}, []string{"signal 9"}},
		"sigterm": {reexec.Wedge, kill(syscall.SIGTERM), 500, backend.Crash{Reason: backend.CrashKilled, ExitCode: -1, Signal: "SIGTERM"}, []string{"signal 15"}},
		"abort":   {reexec.Poison, nil, 500, backend.Crash{Reason: backend.CrashSignal, ExitCode: -1, Signal: "SIGABRT"}, []string{"signal 6", "panic: abort"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inst := ready(t, newLauncher(t), reexec.Spec(tc.mode))
			if tc.kill != nil {
				defer time.AfterFunc(100*time.Millisecond, func() { tc.kill(inst.PID()) }).Stop()
			}
			_, err := inst.Predict(t.Context(), []infer.Item{item("poison")})
			wantFault(t, err, fault.BackendDied, tc.texts...)
			if fault.Message(err) != "Worker died." || fault.HTTPStatus(err) != tc.status {
				t.Errorf("%d %q", fault.HTTPStatus(err), fault.Message(err))
			}
			<-inst.Done()
			wantFault(t, inst.Err(), fault.BackendDied, tc.texts...)
			got := backend.CrashOf(err)
			if got == nil || got != backend.CrashOf(inst.Err()) {
				t.Fatalf("crashes %v and %v", got, backend.CrashOf(inst.Err()))
			}
			brief := backend.Crash{Reason: got.Reason, ExitCode: got.ExitCode, Signal: got.Signal}
			if diff := cmp.Diff(tc.want, brief); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if got.PID != inst.PID() || got.Instance != inst.ID() || got.Together() != 1 {
				t.Errorf("%+v", got)
			}
			if err := inst.Stop(t.Context()); err != nil {
				t.Errorf("stop after death: %v", err)
			}
			wantFault(t, inst.Err(), fault.BackendDied)
		})
	}
}

// A bundle tells what the process did, and not what was in the requests.
func TestCrashBundle(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	inst := ready(t, newLauncher(t), reexec.Spec(reexec.Poison))
	if _, err := inst.Predict(t.Context(), []infer.Item{item("fine")}); err != nil {
		t.Fatal(err)
	}
	items := []infer.Item{
		{ID: "one", Rows: 3, Parts: []infer.Part{{Name: "body", ContentType: "application/json", Data: []byte("secret-1")}, {Name: "k", Data: []byte("v")}}},
		{ID: "two", Parts: []infer.Part{{Name: "body", Data: []byte("poison")}}},
		{ID: "three"},
	}
	_, err := inst.Predict(t.Context(), items)
	c := backend.CrashOf(err)
	if c == nil {
		t.Fatal(err)
	}
	want := []backend.CrashRequest{
		{ID: "one", Rows: 3, Parts: []backend.CrashPart{{Name: "body", ContentType: "application/json", Bytes: 8}, {Name: "k", Bytes: 1}}},
		{ID: "two", Parts: []backend.CrashPart{{Name: "body", Bytes: 6}}},
		{ID: "three", Parts: []backend.CrashPart{}},
	}
	if diff := cmp.Diff(want, c.Requests, cmpopts.IgnoreFields(backend.CrashRequest{}, "Batch", "Ran")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	took := time.Since(begun).Seconds()
	if c.Served != 1 || c.Ran <= 0 || c.Ran > took || c.Requests[0].Ran < 0 || c.Requests[0].Ran > c.Ran || c.At.Before(begun) || c.Loading {
		t.Errorf("%+v of %v s", c, took)
	}
	if c.Memory.Peak < 1<<20 || c.Memory.Evidence != "" {
		t.Errorf("memory %+v", c.Memory)
	}
	text := fmt.Sprintf("%+v", *c)
	if strings.Contains(text, "secret-1") {
		t.Error("the content of a request is in it")
	}
	streams := map[string]bool{}
	for i, l := range c.Lines {
		streams[l.Stream+" "+l.Text] = true
		if l.At.Before(begun) || l.At.After(time.Now()) || i > 0 && l.At.Before(c.Lines[i-1].At) {
			t.Errorf("line %d: %+v", i, l)
		}
	}
	if !streams["stdout to stdout before the end"] || !streams["stderr panic: abort"] || len(c.Lines) > 100 {
		t.Errorf("lines %v", c.Lines)
	}
}

// A process that ends in its load, or with nothing to do, says so; one that is asked to end has not crashed.
func TestCrashWithoutRequests(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	loading := launch(t, l, reexec.Spec(reexec.ExitInLoad))
	_, err := loading.Load(t.Context(), backend.LoadSpec{GPU: backend.NoGPU})
	if c := backend.CrashOf(err); c == nil || !c.Loading || c.ExitCode != 4 || len(c.Requests) != 0 {
		t.Errorf("%+v", c)
	}
	idle := ready(t, l, reexec.Spec(reexec.Echo))
	_ = syscall.Kill(idle.PID(), syscall.SIGKILL)
	<-idle.Done()
	if c := backend.CrashOf(idle.Err()); c == nil || c.Loading || len(c.Requests) != 0 || c.ByItself() {
		t.Errorf("%+v", c)
	}
	_, err = idle.Predict(t.Context(), []infer.Item{item("late")})
	if !errors.Is(err, backend.ErrNotDelivered) || !fault.Is(err, fault.BackendDied) {
		t.Errorf("a batch for a dead process: %v", err)
	}
	stopped := ready(t, l, reexec.Spec(reexec.Echo))
	if err := stopped.Stop(t.Context()); err != nil || backend.CrashOf(stopped.Err()) != nil {
		t.Errorf("%v, %v", err, stopped.Err())
	}
}

// The last 50 lines of each stream are kept.
func TestCrashKeepsTheLastLines(t *testing.T) {
	t.Parallel()
	inst := ready(t, newLauncher(t), reexec.Spec(reexec.Chatty))
	for range 60 {
		if _, err := inst.Predict(t.Context(), []infer.Item{item("a")}); err != nil {
			t.Fatal(err)
		}
	}
	_ = syscall.Kill(inst.PID(), syscall.SIGTERM)
	<-inst.Done()
	count := map[string]int{}
	for _, l := range backend.CrashOf(inst.Err()).Lines {
		count[l.Stream]++
	}
	if diff := cmp.Diff(map[string]int{"stdout": 50, "stderr": 50}, count); diff != "" {
		t.Error(diff)
	}
}

// memoryGroup makes a control group with a limit for one process below the group of this one, and gives how to start a process in it.
func memoryGroup(t *testing.T, limit int64) func(backend.ProcessSpec) backend.ProcessSpec {
	t.Helper()
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		var dir string
		var files map[string]string
		switch {
		case slices.Contains(strings.Split(fields[1], ","), "memory"):
			dir = "/sys/fs/cgroup/memory"
			files = map[string]string{"memory.limit_in_bytes": strconv.FormatInt(limit, 10)}
		case fields[1] == "":
			dir = "/sys/fs/cgroup"
			files = map[string]string{"memory.max": strconv.FormatInt(limit, 10), "memory.swap.max": "0"}
		default:
			continue
		}
		dir = filepath.Join(dir, fields[2], "flambeau-test-"+strconv.Itoa(os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			eventually(t, longLimit, "the control group is empty", func() bool { return unix.Rmdir(dir) == nil })
		})
		for file, value := range files {
			if err = os.WriteFile(filepath.Join(dir, file), []byte(value), 0); err != nil {
				break
			}
		}
		if err == nil {
			return func(spec backend.ProcessSpec) backend.ProcessSpec {
				spec.Args = append([]string{"-c", "echo $$ >" + dir + "/cgroup.procs && exec \"$0\" \"$@\"", spec.Path}, spec.Args...)
				spec.Path = "/bin/sh"
				return spec
			}
		}
	}
	t.Skip("no control group with a memory limit can be made here")
	return nil
}

// A worker that takes more memory than it may is reported as that, with the limit and the use; one that somebody kills in the same group is not.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	const limit = 96 << 20
	in := memoryGroup(t, limit)
	l := newLauncher(t)
	other := ready(t, l, in(reexec.Spec(reexec.Echo)))
	inst := ready(t, l, in(reexec.Spec(reexec.Bomb)))
	_, err := inst.Predict(t.Context(), []infer.Item{item("a")})
	wantFault(t, err, fault.BackendOutOfMemory, "out of memory", "96.0 MiB", "oom_kill")
	if fault.HTTPStatus(err) != 507 || !strings.HasPrefix(fault.Message(err), "Worker died. It ran out of memory when it used ") {
		t.Errorf("%d %s", fault.HTTPStatus(err), fault.Message(err))
	}
	t.Log(fault.Message(err), "|", detail(err))
	c := backend.CrashOf(err)
	if c == nil || c.Reason != backend.CrashOutOfMemory || c.Memory.Limit != limit || c.Memory.Peak < limit/4 || c.Memory.Used < limit/2 || c.Memory.Kills < 1 {
		t.Fatalf("%+v", c)
	}
	<-inst.Done()
	select {
	case <-other.Done():
		t.Skip("the kernel has chosen both")
	default:
	}
	_ = syscall.Kill(other.PID(), syscall.SIGKILL)
	<-other.Done()
	if c := backend.CrashOf(other.Err()); c == nil || c.Reason != backend.CrashKilled || !c.Memory.Spared {
		t.Errorf("one that was killed by hand: %+v", c)
	}
}

// A limit of the address space makes a program fail by itself; its last words say why.
func TestOutOfAddressSpace(t *testing.T) {
	t.Parallel()
	spec := reexec.Spec(reexec.Bomb)
	spec.Args = append([]string{"-c", "ulimit -v 2097152; exec \"$0\" \"$@\"", spec.Path}, spec.Args...)
	spec.Path = "/bin/sh"
	spec.Env = slices.DeleteFunc(spec.Env, func(e string) bool { return strings.HasPrefix(e, "GOMEMLIMIT=") })
	inst, err := newLauncher(t).Launch(t.Context(), spec)
	if err != nil {
		t.Skip("this test binary needs more address space for itself: ", err) // with the race detector
	}
	load(t, inst, backend.LoadSpec{GPU: backend.NoGPU})
	_, err = inst.Predict(t.Context(), []infer.Item{item("a")})
	if text := detail(err); strings.Contains(text, "for -race mode") || strings.Contains(text, "ThreadSanitizer") {
		t.Skip("the race detector itself has no address space left")
	}
	wantFault(t, err, fault.BackendOutOfMemory, "out of memory", "2.0 GiB", "its last words are")
}
