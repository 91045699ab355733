// Package oipserver answers the calls of the Open Inference Protocol from the models and their queues, for each of the protocol's fronts.
package oipserver

import (
	"context"
	"errors"
	"sync"

	"github.com/flambeau-serve/flambeau/frontend/dispatch"
	"github.com/flambeau-serve/flambeau/internal/infer"
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
}

// Server answers. Its methods are safe for concurrent use.
type Server struct {
	opts Options

	mu       sync.Mutex // guards what follows
	unloaded map[string][]rollout.Spec
}

// New makes a Server.
func New(opts Options) (*Server, error) {
	if opts.Predictor == nil || opts.Models == nil {
		return nil, errors.New("oipserver needs a Predictor and Models")
	}
	if opts.Sequence.ID == "" {
		opts.Sequence = dispatch.SequenceHeaders{ID: "ts_request_sequence_id", Start: "ts_request_sequence_start", End: "ts_request_sequence_end"}
	}
	return &Server{opts: opts, unloaded: map[string][]rollout.Spec{}}, nil
}

// Ready says whether the server can take inferences: whether the models have the workers that they should have.
func (s *Server) Ready() bool { return s.opts.Models.Healthy() }

// ModelReady says whether a version has a worker that is ready. One that is not there is an error.
func (s *Server) ModelReady(ref infer.ModelRef) (bool, error) {
	d, err := s.opts.Models.Describe(ref)
	if err != nil {
		return false, err //nolint:wrapcheck // the model store's words are the client's
	}
	return isReady(&d), nil
}

func isReady(d *rollout.Description) bool {
	for i := range d.Workers {
		if d.Workers[i].Ready {
			return true
		}
	}
	return false
}
