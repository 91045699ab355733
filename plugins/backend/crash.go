package backend

import (
	"errors"
	"time"
)

// CrashReason says in one word why a backend process ended without being asked to.
type CrashReason string

// The reasons.
const (
	CrashExited      CrashReason = "exited"        // it ended by itself, with an exit status
	CrashSignal      CrashReason = "crashed"       // by a signal that a process brings upon itself: SIGSEGV, SIGABRT and the like
	CrashKilled      CrashReason = "killed"        // by a signal that comes from outside: SIGKILL, SIGTERM and the like
	CrashOutOfMemory CrashReason = "out_of_memory" // memory ran out, and there is evidence
	CrashWedged      CrashReason = "wedged"        // it was alive and answered no heartbeat, and the server killed it
	CrashLate        CrashReason = "timed_out"     // it did not answer within the response timeout, and the server killed it
	CrashBroken      CrashReason = "broken"        // nothing could be asked of it any more, and the server killed it
)

// ErrNotDelivered is in the error of a Predict whose batch was not given to the process before that ended: the batch has nothing to do with the end.
var ErrNotDelivered = errors.New("the batch was not given to the process")

// Crash is what is known about the end of a backend process that nobody had asked for. A CrashError with it is in the chain of the errors that Predict,
// Load and Err give then; CrashOf finds it. It is not to be changed.
type Crash struct {
	Instance string      `json:"instance"` // Instance.ID
	PID      int         `json:"pid"`
	At       time.Time   `json:"at"`
	Ran      float64     `json:"ran_seconds"` // from its start to its end
	Reason   CrashReason `json:"reason"`
	How      string      `json:"how"`                   // in words, with the exit status or the signal
	ExitCode int         `json:"exit_code"`             // -1 when a signal ended it
	Signal   string      `json:"signal,omitempty"`      // its name, as SIGSEGV
	Core     bool        `json:"core_dumped,omitempty"` // the kernel has written a core file
	Loading  bool        `json:"loading,omitempty"`     // it was loading the model
	Served   uint64      `json:"served"`                // batches that it had answered
	Memory   CrashMemory `json:"memory"`
	// Requests are what it was given and had not answered, the oldest first.
	Requests []CrashRequest `json:"requests"`
	// Lines are the last ones that it wrote: 50 of each stream at most, in the order of their times.
	Lines []CrashLine `json:"lines"`
	Why   string      `json:"why,omitempty"` // why the server killed it, "" if it did not
}

// CrashMemory is what is known about the memory of a process that ended, in bytes. Zero values are not known.
type CrashMemory struct {
	Peak     int64  `json:"peak_bytes,omitempty"`     // the most that was resident
	Limit    int64  `json:"limit_bytes,omitempty"`    // that it lived under
	LimitOf  string `json:"limit_of,omitempty"`       // what has that limit: its control group, or its address space
	Used     int64  `json:"used_bytes,omitempty"`     // the most that all of the limited group used
	Evidence string `json:"oom_evidence,omitempty"`   // why it is held to be out of memory; "" when it is not
	Spared   bool   `json:"oom_unlikely,omitempty"`   // the kernel counts whom it kills for memory, and has not killed it
	Kills    int64  `json:"oom_kill_count,omitempty"` // of its control group, this one included
}

// CrashRequest is a request that a process had when it ended: its shape, not its content.
type CrashRequest struct {
	ID    string      `json:"id"`
	Batch uint64      `json:"batch"`          // requests of one number were one batch
	Ran   float64     `json:"ran_seconds"`    // for how long the process had had it
	Rows  int         `json:"rows,omitempty"` // samples in it, 0 when not known
	Parts []CrashPart `json:"parts"`
}

// CrashPart is a part of a request without its content.
type CrashPart struct {
	Name        string `json:"name"`
	ContentType string `json:"content_type,omitempty"`
	Bytes       int    `json:"bytes"`
}

// CrashLine is a line that a process wrote.
type CrashLine struct {
	At     time.Time `json:"at"`
	Stream string    `json:"stream"` // stdout or stderr
	Text   string    `json:"text"`
}

// String says how the process ended.
func (c *Crash) String() string {
	if c.Why != "" {
		return c.How + ": " + c.Why
	}
	return c.How
}

// CrashError is the crash as an error.
type CrashError struct {
	*Crash

	Cause error // why the server killed the process, nil if it did not
}

// Error says how the process ended.
func (e *CrashError) Error() string { return e.String() }

// Unwrap gives why the server killed the process.
func (e *CrashError) Unwrap() error { return e.Cause }

// Together is how many requests the process had when it ended.
func (c *Crash) Together() int { return len(c.Requests) }

// ByItself says whether the process has ended by what it did.
func (c *Crash) ByItself() bool {
	return c.Reason == CrashExited || c.Reason == CrashSignal || c.Reason == CrashOutOfMemory || c.Reason == CrashBroken
}

// ByOthers says whether something from outside has ended the process: a signal, or this server because it was stopped. Where neither this nor ByItself is
// so, nobody knows: a SIGKILL may be the kernel's for memory.
func (c *Crash) ByOthers() bool {
	return c.Reason == CrashWedged || c.Reason == CrashLate || c.Reason == CrashKilled && (c.Memory.Spared || c.Signal != "" && c.Signal != "SIGKILL")
}

// CrashOf finds the crash that an error is about; nil when it is about none.
func CrashOf(err error) *Crash {
	if e, ok := errors.AsType[*CrashError](err); ok {
		return e.Crash
	}
	return nil
}
