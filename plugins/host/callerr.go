package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// What clients read, word for word as TorchServe says it.
const textDied = "Worker died."

// outOfMemoryCode is the exit code of a process that a shell or a container saw killed by SIGKILL, which is what the
// kernel's out-of-memory killer sends, among others.
const outOfMemoryCode = 128 + int(syscall.SIGKILL)

// exitState is how a process ended.
type exitState struct {
	code   int            // exit code; -1 when it was ended by a signal
	signal syscall.Signal // 0 when it ended by itself
	killed bool           // whether this server sent the signal
	core   bool           // the kernel has written a core file
}

// String says it for people.
func (s exitState) String() string {
	switch {
	case s.killed:
		return "killed by the server"
	case s.signal != 0:
		return fmt.Sprintf("killed by signal %d (%v)", int(s.signal), s.signal)
	default:
		return fmt.Sprintf("exit status %d", s.code)
	}
}

// ending is the end of an instance, once it is known.
type ending struct {
	exit  exitState
	asked bool           // the server has asked for it
	cause error          // why the server killed it, nil if it did not
	last  []string       // its last lines on stderr
	body  autopsy        // what was found
	crash *backend.Crash // nil when it was asked for
}

// fault is what the calls that the end has cut off get, and what Err gives; nil is for an end that was asked for.
func (e *ending) fault() error {
	if e.asked {
		return nil
	}
	f := fault.New(fault.BackendDied, textDied, e.cause)
	how := e.exit.String()
	if e.crash != nil {
		f.Cause = &backend.CrashError{Crash: e.crash, Cause: e.cause}
		how = e.crash.String()
		if e.crash.Reason == backend.CrashOutOfMemory {
			f.Kind, f.Message, f.Hint = fault.BackendOutOfMemory, outOfMemoryText(e.crash.Memory), outOfMemoryHint
			how += "; " + e.crash.Memory.Evidence
		}
	}
	if f.Kind == fault.BackendDied && !e.exit.killed && (e.exit.signal == syscall.SIGKILL || e.exit.code == outOfMemoryCode) {
		f.Code = outOfMemoryStatus() // TorchServe's answer to every SIGKILL
	}
	f.Detail = lastWords(how, e.last)
	return f
}

// lastWords is a Detail: how a process ended, and what it said before.
func lastWords(how string, lines []string) string {
	if len(lines) == 0 {
		return how + "; it wrote nothing to standard error"
	}
	return how + "; its last lines on standard error:\n" + strings.Join(lines, "\n")
}

// callError is the one place that tells a death from a cancellation: err is why a call failed, ctx is the caller's, gone is
// the instance's end or nil while it lives.
func callError(ctx context.Context, err error, gone *ending) error {
	if gone != nil {
		// Whatever the call has seen of it, and even if its caller has given up by now: the process ended by itself.
		if f := gone.fault(); f != nil {
			return f
		}
	}
	if ctx.Err() != nil {
		return contextError(ctx)
	}
	if gone != nil {
		return fault.New(fault.Draining, "Worker stopped.", err)
	}
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	return fault.New(fault.Internal, "the worker could not be asked", err)
}

// contextError is why ctx ended: in the words of whoever ended it, if these are a fault.
func contextError(ctx context.Context) error {
	cause := context.Cause(ctx)
	if _, ok := errors.AsType[*fault.Error](cause); ok {
		return cause
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fault.New(fault.ResponseTimeout, "the worker did not answer in time", cause)
	}
	return fault.New(fault.Cancelled, "nobody waits for the answer any more", cause)
}
