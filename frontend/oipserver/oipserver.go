// Package oipserver answers the calls of the Open Inference Protocol from the models and their queues, for each of the protocol's fronts.
package oipserver

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/flambeau-serve/flambeau/frontend/dispatch"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// Predictor takes requests to the models' queues.
type Predictor interface {
	Submit(ctx context.Context, ref infer.ModelRef, item infer.Item) (infer.Result, error)
}

// Models administers the models.
type Models interface {
	Register(ctx context.Context, spec rollout.Spec) (rollout.Registered, error)
	Unregister(ctx context.Context, ref infer.ModelRef) error
	List() []rollout.Listed
	Describe(ref infer.ModelRef) (rollout.Description, error)
	DescribeAll(name string) ([]rollout.Description, error)
	Healthy() bool
}

// Statistics tells what versions have done.
type Statistics interface {
	Stats(ref infer.ModelRef) dispatch.Stats
}

// Store is the watched model store.
type Store interface {
	// Reload looks at a model's files again, and returns when they serve, or with the reason why not.
	Reload(ctx context.Context, model string) error
	Archives() []Archive
}

// Archive is what the store holds for a version.
type Archive struct {
	Model, Version string // Model is "" for what cannot be read
	Why            string // why it is not served, if it is not
}

// Options are what a Server needs.
type Options struct {
	Predictor  Predictor  // required
	Models     Models     // required
	Statistics Statistics // nil: all counts are 0
	Store      Store      // nil: what was unloaded is registered again by its URL
	ModelAPI   bool       // models may be loaded and unregistered
	Version    string     // of the server
	// Sequence are the names of the headers that carry sequences; the dispatcher's.
	Sequence dispatch.SequenceHeaders

	Logging    Logging      // nil: what is logged cannot be changed
	TraceFile  string       // of traced requests; "": none can be traced
	TraceBytes int64        // of all files of them together; 0 means 256 MiB
	Logger     *slog.Logger // nil: nothing is logged

	// SharedMemory is the folder where the system has its shared memory objects; "": clients cannot use any.
	SharedMemory   string
	MaxSharedBytes int64 // of one request's inputs in shared memory; 0 means 64 MiB

	Archives   Archives   // nil: load takes no configuration and no files
	Deployer   Deployer   // the same
	Dependents Dependents // nil: no model needs another one
	Temp       string     // folder for what a client sends as files, until it is unpacked; "" for the system's
}

const defaultSharedBytes = 64 << 20

// Archives opens models.
type Archives interface {
	// OpenEntry opens what lies at a place of the model store, OpenFile a file anywhere.
	OpenEntry(ctx context.Context, place string) (*archive.Archive, error)
	OpenFile(ctx context.Context, path string) (*archive.Archive, error)
}

// Deployer makes a version of an archive, or has it take the place of what runs.
type Deployer interface {
	Deploy(ctx context.Context, spec rollout.Spec) (rollout.Registered, error)
}

// Dependents knows which models are made of others.
type Dependents interface {
	// DependentsOf names the models that only this one is made of, directly or by others of them.
	DependentsOf(model string) []string
}

// Budget bounds the bytes of all the requests in memory, whatever front they came by.
type Budget interface {
	TakeBytes(n int64) bool // all or none
	GiveBytes(n int64)
}

// Server answers. Its methods are safe for concurrent use.
type Server struct {
	opts     Options
	memory   *sharedMemory // nil when clients cannot use any
	budget   Budget        // of what is read of it; nil for no bound. Set before the first request.
	tracer   *tracer
	startLog LogLevels // what was logged when the server started

	changing sync.Mutex // one change of what is logged at a time

	mu         sync.Mutex // guards what follows
	unloaded   map[string][]rollout.Spec
	overridden map[string]overridden // models that were loaded with a configuration or files of a client
}

// New makes a Server.
func New(opts Options) (*Server, error) {
	if opts.Predictor == nil || opts.Models == nil {
		return nil, errors.New("oipserver needs a Predictor and Models")
	}
	if opts.Sequence.ID == "" {
		opts.Sequence = dispatch.SequenceHeaders{ID: "ts_request_sequence_id", Start: "ts_request_sequence_start", End: "ts_request_sequence_end"}
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.MaxSharedBytes <= 0 {
		opts.MaxSharedBytes = defaultSharedBytes
	}
	s := &Server{opts: opts, unloaded: map[string][]rollout.Spec{}, overridden: map[string]overridden{}}
	s.startLog = s.logLevels()
	var writer *traceWriter
	if opts.TraceFile != "" {
		writer = newTraceWriter(opts.TraceFile, opts.TraceBytes, opts.Logger)
	}
	s.tracer = newTracer(opts.TraceFile, writer)
	if opts.SharedMemory != "" {
		s.memory = &sharedMemory{dir: opts.SharedMemory, regions: map[string]*region{}}
	}
	return s, nil
}

// Bound has what is read of shared memory count as requests do. It may be called before the first request only: who has the budget is often made of the
// server.
func (s *Server) Bound(b Budget) { s.budget = b }

// Close writes the traces that are left and closes the regions of shared memory. It may be called once, when the fronts have ended.
func (s *Server) Close() error {
	err := s.UnregisterRegion("")
	if s.tracer.writer != nil {
		err = errors.Join(err, s.tracer.writer.close())
	}
	return err
}

// Ready says whether the server can take inferences: whether the models have the workers that they should have.
func (s *Server) Ready() bool { return s.opts.Models.Healthy() }

// ModelReady says whether a version has a worker that is ready. One that is not there is an error.
func (s *Server) ModelReady(ref infer.ModelRef) (bool, error) {
	d, err := s.opts.Models.Describe(ref)
	if err != nil {
		return false, err //nolint:wrapcheck // the model store's words are the client's
	}
	return isReady(&d) && s.stepsReady(&d), nil
}

// isReady says whether a version takes inferences: it has a worker that is ready, or starts one for the next request.
func isReady(d *rollout.Description) bool {
	if d.Dormant {
		return true
	}
	for i := range d.Workers {
		if d.Workers[i].Ready {
			return true
		}
	}
	return false
}
