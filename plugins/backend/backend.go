// Package backend is the process border as the server sees it: who starts a backend process, what it can be asked, and how
// batches get a free one. plugins/host implements it with real processes, plugins/backendtest with fakes.
package backend

import (
	"context"
	"errors"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
)

// Launcher starts backend processes.
type Launcher interface {
	// Launch returns after the handshake. ctx bounds the start, not the life of the process.
	Launch(ctx context.Context, spec ProcessSpec) (Instance, error)
}

// Instance is one backend process, from its handshake to its end. Its methods are safe for concurrent use.
type Instance interface {
	ID() string // never reused: a restart is another Instance
	PID() int
	// Load hands the model over and returns when the handler is ready. It is called once, before Predict.
	Load(ctx context.Context, m LoadSpec) (Info, error)
	// Predict returns len(items) results in order, or one error for them all. Before that it calls the Emit of each item with
	// its intermediate answers, if the backend gives any.
	Predict(ctx context.Context, items []infer.Item) ([]infer.Result, error)
	Done() <-chan struct{} // closed once the process is gone and reaped
	Err() error            // why it went; nil before Done and after an asked-for Stop
	// Stop asks the process to end, and kills its process group when ctx ends. It always returns, after Done.
	Stop(ctx context.Context) error
}

// Killer is an Instance whose process can be ended as one that has failed.
type Killer interface {
	// Kill ends the process at once and returns after Done. Its end is a crash then, unless it was asked for before: Err gives it, with cause.
	Kill(cause error)
}

// Waiter is an Instance whose Load may have to wait for somebody else.
type Waiter interface {
	// OnWait sets what Load calls: with the reason when it cannot end before somebody else does something, and with nil when it goes on. It is called
	// before Load, if at all.
	OnWait(tell func(why error))
}

// ProcessSpec says how to start a backend process.
type ProcessSpec struct {
	Path string   // executable
	Args []string // without the executable
	Env  []string // whole environment, KEY=VALUE
	Dir  string   // working folder
	// Output is called for each line that the process writes, from one goroutine per stream. It must not block for long.
	Output func(OutputLine)
}

// Stream tells which of a process's outputs a line came from.
type Stream int

// The streams.
const (
	Stdout Stream = iota
	Stderr
)

// OutputLine is one line of what a backend process wrote.
type OutputLine struct {
	Stream     Stream
	Level      string   // "" or what the handler's logger said: DEBUG, INFO, WARNING, ERROR, CRITICAL
	RequestIDs []string // requests that were being handled when it was written; nil outside of requests
	Text       string   // without the newline
}

// NoGPU is LoadSpec.GPU on a machine or for a model without one.
const NoGPU = -1

// LoadSpec says what a backend process is to load.
type LoadSpec struct {
	Model               infer.ModelRef
	Dir                 string // the unpacked archive
	Handler             string // as in the manifest: "handler.py", "module:function", a built-in's name
	Envelope            string // request envelope, "" for none
	GPU                 int    // device number, NoGPU for CPU
	BatchSize           int    // largest batch that will be sent
	LimitMaxImagePixels bool
	MaxResponseBytes    int64 // largest single answer that the server accepts; 0 for no limit
}

// Info is what a backend tells about itself after Load.
type Info struct {
	Features    map[string]bool // optional abilities of this backend
	Concurrent  bool            // it runs several batches at the same time; else one after another
	Ahead       bool            // it may be given the next batch while one runs
	Description *Description    // nil when it says nothing about the model
}

// Description is what a backend tells about the model that it has loaded, in the words of the Open Inference Protocol. Its JSON form is that of
// docs/protocol.md.
type Description struct {
	Platform string              `json:"platform,omitempty"`  // "" when it does not say
	MaxBatch int                 `json:"max_batch,omitempty"` // rows that an input may have; 0: the model has no dimension for them
	Inputs   []Port              `json:"inputs,omitempty"`
	Outputs  []Port              `json:"outputs,omitempty"`
	Labels   map[string][]string `json:"labels,omitempty"` // names of the classes, by output
	// Accepts are the media types of the bodies that /predictions takes, the usual one first; nil when it does not say.
	Accepts []string `json:"accepts,omitempty"`
	Steps   []Step   `json:"-"` // of an ensemble, which no process is; nil for everything else
}

// Step is one model of an ensemble. The maps have the ensemble's tensors by the model's own names.
type Step struct {
	Model, Version  string // Version is "" for the default one
	Inputs, Outputs map[string]string
}

// Port is one input or output of a model.
type Port struct {
	Name     string  `json:"name"`
	DataType string  `json:"datatype"` // FP32, INT64, BYTES, …
	Shape    []int64 `json:"shape"`    // -1 for a dimension of any size
}

// Pool hands out slots of one model version's ready instances. It outlives every swap behind it.
type Pool interface {
	// Acquire waits for a ready instance with a free slot, before a batch is gathered, so that batches are formed as late
	// as they can be.
	Acquire(ctx context.Context) (Slot, error)
	// AcquireFrom is Acquire for one of Workers, whose instances keep what they know of a sequence of requests.
	AcquireFrom(ctx context.Context, worker int) (Slot, error)
	// AcquireAlone is Acquire for what should have an instance, and so its process, to itself: it waits until one has nothing to do, and gives up to most of
	// its slots, at least one; nobody else gets any until all of these are released. Where that would keep others waiting for long, they are let in
	// beside: how many requests the process had is known from its crash.
	AcquireAlone(ctx context.Context, most int) ([]Slot, error)
	// Workers gives the workers that are ready or may get ready. A worker keeps its identifier when its instance is replaced.
	Workers() []int
	// Pin keeps a worker for AcquireFrom, also when it is to end, until as many calls of Unpin: it knows what its sequences need. It says no, and does
	// nothing, for one that is to end already: it is none of Workers any more.
	Pin(worker int) bool
	Unpin(worker int)
	// Free is how many slots could be had at once. It is a hint: the number may be another one a moment later.
	Free() int
}

// ErrNotSent is what Execute says of a batch of which nothing was sent, because the instance had died or was to end, and no other was free: there may be
// another slot for it.
var ErrNotSent = errors.New("the batch was not sent: its instance has died or is to end")

// Slot is the right to run one batch on an instance.
type Slot interface {
	// Execute runs the batch. The first call may end with ErrNotSent; the slot is then good for nothing but Release.
	Execute(ctx context.Context, items []infer.Item) ([]infer.Result, error)
	// Continuous says that the instance that has run the batch answers in steps: each Execute is one of them.
	Continuous() bool
	// InTurn says that the instance runs one batch after another, although it may have been given this one while it ran another.
	InTurn() bool
	// Worker gives the worker that the instance is of, and the instance's process.
	Worker() (id, pid int)
	// Retiring says that the instance is to take nothing new: who runs several batches on one slot ends soon.
	Retiring() bool
	Release() // exactly once; the last one lets a draining instance go
}

// Limits are the time limits of a backend's life; each is required.
type Limits struct {
	Start time.Duration // process start to handshake
	Load  time.Duration // Load's answer
	Stop  time.Duration // polite end before the group is killed
}
