package host

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// errWedged is in the cause of a kill for missed heartbeats.
var errWedged = errors.New("wedged")

// autopsy is what can be told about a process that is gone.
type autopsy struct {
	at           time.Time
	memory       backend.CrashMemory // without Evidence
	killed       bool                // by the kernel's out-of-memory killer
	addressLimit int64               // bytes that it could address, 0 for no limit
}

// crashOf puts together what is known about an end that nobody had asked for.
func crashOf(e *ending, lines []backend.CrashLine) *backend.Crash {
	c := &backend.Crash{
		At: e.body.at, How: e.exit.String(), ExitCode: e.exit.code, Core: e.exit.core,
		Memory: e.body.memory, Lines: lines,
	}
	if e.cause != nil {
		c.Why = e.cause.Error()
	}
	if e.exit.signal != 0 {
		c.Signal = unix.SignalName(e.exit.signal)
	}
	c.Memory.Evidence = evidence(e, lines)
	switch {
	case c.Memory.Evidence != "":
		c.Reason = backend.CrashOutOfMemory
		if c.Memory.Limit == 0 || !e.body.killed && e.body.addressLimit > 0 && e.body.addressLimit < c.Memory.Limit {
			c.Memory.Limit, c.Memory.LimitOf, c.Memory.Used = e.body.addressLimit, addressSpace, 0
		}
	case e.exit.killed && errors.Is(e.cause, errWedged):
		c.Reason = backend.CrashWedged
	case e.exit.killed && fault.Is(e.cause, fault.ResponseTimeout):
		c.Reason = backend.CrashLate
	case e.exit.killed:
		c.Reason = backend.CrashBroken
	case e.exit.killedFromOutside():
		c.Reason = backend.CrashKilled
	case e.exit.signal != 0:
		c.Reason = backend.CrashSignal
	default:
		c.Reason = backend.CrashExited
	}
	return c
}

const addressSpace = "its address space (RLIMIT_AS)"

// killedFromOutside says whether what ended the process is sent by others: by an operator, a supervisor or the kernel.
func (s exitState) killedFromOutside() bool {
	switch s.signal { //nolint:exhaustive // the others come from outside
	case 0:
		return s.code == outOfMemoryCode
	case syscall.SIGILL, syscall.SIGTRAP, syscall.SIGABRT, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGSEGV, syscall.SIGSYS, syscall.SIGXFSZ,
		syscall.SIGXCPU, syscall.SIGPIPE, syscall.SIGALRM:
		return false
	}
	return true
}

// evidence says why the process is held to have run out of memory; "" when nothing says so.
func evidence(e *ending, lines []backend.CrashLine) string {
	if e.exit.killed {
		return ""
	}
	if e.body.killed {
		return fmt.Sprintf("the kernel's out-of-memory killer has ended it (oom_kill of its control group is %d)", e.body.memory.Kills)
	}
	if e.exit.signal == syscall.SIGABRT || e.exit.signal == 0 && e.exit.code != 0 {
		for _, line := range slices.Backward(lines) {
			if e.body.at.Sub(line.At) <= lastMoments && saysNoMemory(line.Text) {
				return "its last words are " + fmt.Sprintf("%q", line.Text)
			}
		}
	}
	return ""
}

// lastMoments is how long before its end the last words of a process may have been written.
const lastMoments = 10 * time.Second

// saysNoMemory knows what C++, Python, Go and PyTorch write when memory cannot be had and nobody catches that.
func saysNoMemory(line string) bool {
	return line == "MemoryError" || strings.HasPrefix(line, "MemoryError: ") ||
		strings.HasPrefix(line, "fatal error: out of memory") || strings.HasPrefix(line, "fatal error: runtime: out of memory") ||
		strings.HasPrefix(line, "fatal error: runtime: cannot allocate memory") ||
		strings.Contains(line, "std::bad_alloc") || strings.Contains(line, "can't allocate memory: you tried to allocate")
}

// outOfMemoryText says it to the client, with the limit and the use that are known.
func outOfMemoryText(m backend.CrashMemory) string {
	text := textDied + " It ran out of memory"
	if m.Peak > 0 {
		text += " when it used " + bytesText(m.Peak)
	}
	switch {
	case m.Limit > 0 && m.LimitOf == addressSpace:
		text += "; it may address " + bytesText(m.Limit)
	case m.Limit > 0 && m.Used > 0:
		text += fmt.Sprintf("; its control group used %s of a limit of %s", bytesText(m.Used), bytesText(m.Limit))
	case m.Limit > 0:
		text += "; the limit of its control group is " + bytesText(m.Limit)
	default:
		text += "; no limit is set, so the machine had no more"
	}
	return text + "."
}

const outOfMemoryHint = "Raise the memory limit, send less at once (batch size, size of the inputs), or run fewer workers."

// bytesText writes a size for people.
func bytesText(n int64) string {
	const unit = 1 << 10
	value, units := float64(n), []string{"bytes", "KiB", "MiB", "GiB", "TiB"}
	for len(units) > 1 && value >= unit {
		value, units = value/unit, units[1:]
	}
	if units[0] == "bytes" {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%.1f %s", value, units[0])
}

// wordsOf gives the last lines of both streams, in the order of their times.
func (p *process) wordsOf() []backend.CrashLine {
	var all []backend.CrashLine
	for name, kept := range map[string]*lastLines{"stdout": &p.lastOut, "stderr": &p.last} {
		for _, line := range kept.timed() {
			all = append(all, backend.CrashLine{At: line.at, Stream: name, Text: line.text})
		}
	}
	slices.SortStableFunc(all, func(a, b backend.CrashLine) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Stream, b.Stream))
	})
	return all
}

// requestsOf gives what the process has and has not answered, and the number of batches that it has answered.
func (x *exchange) requestsOf(now time.Time) (_ []backend.CrashRequest, served uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	requests := []backend.CrashRequest{}
	for id, w := range x.waiting {
		if w.sent.IsZero() {
			continue
		}
		requests = append(requests, ran(shapesOf(id, w.items), now.Sub(w.sent))...)
	}
	for _, a := range x.abandoned {
		requests = append(requests, ran(slices.Clone(a.requests), now.Sub(a.sent))...)
	}
	slices.SortStableFunc(requests, func(a, b backend.CrashRequest) int { return cmp.Compare(a.Batch, b.Batch) })
	return requests, x.served
}

// abandoned is a batch that the process has and nobody waits for.
type abandoned struct {
	sent     time.Time
	requests []backend.CrashRequest
}

// shapesOf gives what a bundle tells of a batch's requests, but for how long the process had them.
func shapesOf(id uint64, items []infer.Item) []backend.CrashRequest {
	requests := make([]backend.CrashRequest, len(items))
	for i := range items {
		it := &items[i]
		requests[i] = backend.CrashRequest{ID: it.ID, Batch: id, Rows: it.Rows, Parts: make([]backend.CrashPart, len(it.Parts))}
		for n, part := range it.Parts {
			requests[i].Parts[n] = backend.CrashPart{Name: part.Name, ContentType: part.ContentType, Bytes: len(part.Data)}
		}
	}
	return requests
}

// ran notes for how long the process has had requests.
func ran(requests []backend.CrashRequest, d time.Duration) []backend.CrashRequest {
	for i := range requests {
		requests[i].Ran = d.Seconds()
	}
	return requests
}

// undelivered adds to the error of a batch that the process never had that it is not what ended it.
func undelivered(err error, sent bool) error {
	f, ok := errors.AsType[*fault.Error](err)
	if sent || !ok || f.Kind != fault.BackendDied && f.Kind != fault.BackendOutOfMemory {
		return err
	}
	own := *f
	own.Cause = errors.Join(backend.ErrNotDelivered, f.Cause)
	return &own
}
