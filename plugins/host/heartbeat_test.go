package host_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/reexec"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/host"
)

// hasty has heartbeats that are soon missed.
func hasty(o *host.Options) {
	o.Heartbeat = host.Heartbeat{Interval: 20 * time.Millisecond, Patience: 200 * time.Millisecond}
}

// A process that is stopped is found and killed, with what it has and without anything, while it loads and after that.
func TestWedgedProcessIsKilled(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, inst backend.Instance, err error) {
		t.Helper()
		wantFault(t, err, fault.BackendDied, "wedged", "T: stopped by a signal", "killed by the server")
		if c := backend.CrashOf(err); c == nil || c.Reason != backend.CrashWedged || c.ByItself() {
			t.Errorf("%+v", c)
		}
		if fault.Message(err) != "Worker died." || fault.HTTPStatus(err) != 500 || alive(inst.PID()) {
			t.Errorf("%v", err)
		}
	}
	t.Run("idle", func(t *testing.T) {
		t.Parallel()
		inst := ready(t, newLauncher(t, hasty), reexec.Spec(reexec.Echo))
		_ = syscall.Kill(inst.PID(), syscall.SIGSTOP)
		<-inst.Done()
		check(t, inst, inst.Err())
	})
	t.Run("in a batch", func(t *testing.T) {
		t.Parallel()
		inst := ready(t, newLauncher(t, hasty), reexec.Spec(reexec.Wedge))
		defer time.AfterFunc(50*time.Millisecond, func() { _ = syscall.Kill(inst.PID(), syscall.SIGSTOP) }).Stop()
		_, err := inst.Predict(t.Context(), []infer.Item{item("a")})
		check(t, inst, err)
		if c := backend.CrashOf(err); c.Together() != 1 {
			t.Errorf("%+v", c)
		}
	})
	t.Run("in its load", func(t *testing.T) {
		t.Parallel()
		inst := launch(t, newLauncher(t, hasty), reexec.Spec(reexec.SlowLoad))
		defer time.AfterFunc(50*time.Millisecond, func() { _ = syscall.Kill(inst.PID(), syscall.SIGSTOP) }).Stop()
		_, err := inst.Load(t.Context(), backend.LoadSpec{GPU: backend.NoGPU})
		check(t, inst, err)
	})
}

// A handler that uses all processors, or that never ends, is not wedged.
func TestBusyProcessIsNotKilled(t *testing.T) {
	t.Parallel()
	t.Run("busy", func(t *testing.T) {
		t.Parallel()
		inst := ready(t, newLauncher(t, hasty), reexec.Spec(reexec.Burn))
		got, err := inst.Predict(t.Context(), []infer.Item{item("1s")})
		if err != nil || string(got[0].Body) != "1s" {
			t.Errorf("%v", err)
		}
	})
	t.Run("waits for ever", func(t *testing.T) {
		t.Parallel()
		inst := ready(t, newLauncher(t, hasty), reexec.Spec(reexec.Wedge))
		defer kill(inst)
		late := time.NewTimer(time.Second) // many heartbeats
		defer late.Stop()
		go func() { _, _ = inst.Predict(t.Context(), []infer.Item{item("a")}) }()
		select {
		case <-inst.Done():
			t.Error(inst.Err())
		case <-late.C:
		}
	})
}

// kill ends an instance that would not end when it is asked to.
func kill(inst backend.Instance) {
	_ = syscall.Kill(inst.PID(), syscall.SIGKILL)
	<-inst.Done()
}

// Without heartbeats a stopped process is nobody's business but the response timeout's.
func TestHeartbeatsCanBeOff(t *testing.T) {
	t.Parallel()
	inst := ready(t, newLauncher(t, func(o *host.Options) {
		o.Heartbeat = host.Heartbeat{Interval: -1, Patience: time.Millisecond}
	}), reexec.Spec(reexec.Echo))
	_ = syscall.Kill(inst.PID(), syscall.SIGSTOP)
	late := time.NewTimer(1500 * time.Millisecond) // longer than the default interval
	defer late.Stop()
	select {
	case <-inst.Done():
		t.Error(inst.Err())
	case <-late.C:
	}
	_ = syscall.Kill(inst.PID(), syscall.SIGCONT)
	if got, err := inst.Predict(t.Context(), []infer.Item{item("a")}); err != nil || string(got[0].Body) != "a" {
		t.Errorf("%v", err)
	}
}

// Python's handlers answer heartbeats whatever they do, also while they hold the interpreter's lock.
func testPythonHeartbeats(t *testing.T, spec backend.ProcessSpec) {
	t.Helper()
	inst := ready(t, newLauncher(t, hasty), spec)
	out := make(chan error, 1)
	go func() {
		_, err := inst.Predict(t.Context(), []infer.Item{item("loop")})
		out <- err
	}()
	late := time.NewTimer(time.Second)
	defer late.Stop()
	select {
	case err := <-out:
		t.Fatalf("a busy handler: %v", err)
	case <-late.C:
	}
	_ = syscall.Kill(inst.PID(), syscall.SIGSTOP)
	err := <-out
	wantFault(t, err, fault.BackendDied, "wedged")
	if !strings.Contains(backend.CrashOf(err).String(), "stopped by a signal") {
		t.Error(backend.CrashOf(err))
	}
}
