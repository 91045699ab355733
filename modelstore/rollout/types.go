// Package rollout makes what runs equal to what is wanted: it registers model versions, starts and supervises their workers, and hands
// their slots to the batcher.
package rollout

import (
	"encoding/json"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// Spec is what a registration asks for. A nil pointer means that the caller did not say.
type Spec struct {
	URL             string
	Name            string // "": the manifest's, and for a start-up model without one the file's
	Handler         string // "": the manifest's, else the server's default handler
	Runtime         string // "": the manifest's
	BatchSize       *int
	MaxBatchDelay   *time.Duration
	InitialWorkers  *int // nil: the server's default for a start-up model and for a registration
	ResponseTimeout *time.Duration
	StartupTimeout  *time.Duration
	MaxWorkers      int  // with Exact: the most workers
	Exact           bool // what is given here goes before every other source (TorchServe's snapshots)
	AtStartup       bool // listed in load_models or --models
	Synchronous     bool // Register returns when all the workers are ready, and takes the model back if they do not get ready
	// Archive was opened already; URL is then only what is shown. Whoever takes the Spec owns it, and closes it also on failure. Nil: URL is opened.
	Archive *archive.Archive
	// Version replaces the one that the archive says: for layouts whose folders are named by versions. "": the archive's.
	Version string
	// Steps are what was done for the load already.
	Steps []Step
}

// Registered is what came of a registration.
type Registered struct {
	Ref     infer.ModelRef // with the version
	Workers int            // workers asked for
}

// Preset is what the server's configuration says about a version before it is registered (TorchServe's models= JSON). Zero values mean
// that it does not say.
type Preset struct {
	MinWorkers, MaxWorkers, BatchSize              int
	MaxBatchDelay, ResponseTimeout, StartupTimeout time.Duration
	Runtime                                        string
}

// Listed is one line of the list of models.
type Listed struct {
	Name, URL string // URL of the default version, as in its Description
}

// Description is a model version as it runs now.
type Description struct {
	Ref                                 infer.ModelRef
	URL                                 string // for people: without passwords and signatures, which TorchServe tells
	Address                             string // the URL as it was given, for registering the model again and not to be told
	Runtime                             string
	Handler                             string // that its registration asked for; "" for the archive's or the server's
	Runs                                string // the handler that it runs, whoever asked for it
	MinWorkers, MaxWorkers              int
	BatchSize                           int
	MaxBatchDelay                       time.Duration
	ResponseTimeout, StartupTimeout     time.Duration
	MaxRetryTimeout, ClientTimeout      time.Duration
	ParallelType                        string
	ParallelLevel                       int
	DeviceType                          string // "cpu" or "gpu"
	DeviceIDs                           []int  // nil when the model does not choose
	ContinuousBatching, Stateful        bool
	UseJobTicket, UseVenv               bool
	SequenceMaxIdle, SequenceTimeout    time.Duration
	MaxNumSequence, MaxSequenceJobQueue int
	QueueSize                           int // most requests that may wait
	Default                             bool
	LoadedAtStartup                     bool
	State                               string // deploying, serving, updating, degraded, failed, idle (no workers), draining
	Dormant                             bool   // it has no workers, and the next request has one started
	Reason                              string // why it is not serving: the last failure's line, "" when it is
	Workers                             []Worker

	Generation  int       // which load of the version serves, counted from 1
	Digest      string    // of its archive, "" when not known
	Source      string    // where its archive is in the store, "" for none
	Since       time.Time // when this generation began to serve; zero before it does
	Steps       []Step    // of its load
	Swap        string    // dual or in_place
	Updating    *Update   // nil when nothing is being started
	LastFailure *Failure  // nil when the last update went well
	Labels      []string  // labels that name this version, sorted
	Weight      float64   // percent of the model's unversioned requests that it gets

	Triton   json.RawMessage      // the model's config.pbtxt, in the words of Triton's model configuration; nil without one
	Ports    *backend.Description // what the workers say that the model takes and gives; nil before one is ready, and when they say nothing
	Features map[string]bool      // optional abilities of the workers; nil before one is ready. It is not to be changed
}

// Worker is one worker slot of a version as it is now.
type Worker struct {
	ID        int // TorchServe's: counted from initial_worker_port, never reused
	StartTime time.Time
	Ready     bool
	State     string // starting, loading, ready, waiting (to be started again), failed, draining
	Restarts  int    // how often its process was started again
	Reason    string // why it is not ready, or why it was started again last
	PID       int    // 0 while there is no process
	Memory    int64  // resident bytes of its process, 0 when not known
	GPU       int    // backend.NoGPU without one
}
