// Package httpapi serves TorchServe's REST API: inference, management, metrics, and the descriptions of them.
package httpapi

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/flambeau-serve/flambeau/frontend/httpapi/token"
	"github.com/flambeau-serve/flambeau/frontend/oipserver"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// Predictor takes requests to the models' queues.
type Predictor interface {
	// Submit blocks until the answer, or the reason why there is none.
	Submit(ctx context.Context, ref infer.ModelRef, item infer.Item) (infer.Result, error)
	// Refuse says why a request would be refused now, of which there is only the header yet, and size bytes of payload to come, 0 if nobody knows. Nil says
	// nothing: Submit has the last word.
	Refuse(ctx context.Context, ref infer.ModelRef, item infer.Item, size int64) error
	// Queue says how many requests wait for a version, and how many may.
	Queue(ref infer.ModelRef) (waiting, capacity int, err error)
}

// Models administers the models. Its errors carry the messages that TorchServe's clients know.
type Models interface {
	Register(ctx context.Context, spec rollout.Spec) (rollout.Registered, error)
	Scale(ctx context.Context, ref infer.ModelRef, minimum, maximum int, synchronous bool) error
	Unregister(ctx context.Context, ref infer.ModelRef) error
	SetDefault(ctx context.Context, ref infer.ModelRef) error
	List() []rollout.Listed
	Describe(ref infer.ModelRef) (rollout.Description, error)
	DescribeAll(name string) ([]rollout.Description, error)
	StartupModels() []string
	Healthy() bool
}

// Metrics writes and counts what is measured.
type Metrics interface {
	// WriteText writes the families of those names in Prometheus' text format, all of them when there are no names.
	WriteText(w io.Writer, names []string) error
	// CountResponse counts an answer by its status.
	CountResponse(status int)
	// CountUnread counts a request that was refused before its model was known, by the reason.
	CountUnread(reason string)
}

// CORS are header values that go out with every answer, as TorchServe sends them, whatever the request. An empty one is left out.
type CORS struct{ Origin, Methods, Headers string }

// Options are what an API needs. Zero values mean what their comments say.
type Options struct {
	Predictor Predictor         // required
	Models    Models            // required
	Metrics   Metrics           // nil: nothing is counted, and there is no /metrics
	Admin     *Admin            // nil: there is no /admin
	Protocol  *oipserver.Server // nil: below /v2 there is only what TorchServe has
	Keys      *token.Keys
	Logger    *slog.Logger      // nil: nothing is logged
	AccessLog func(AccessEntry) // called after each answer, from the request's goroutine; nil: nobody is told

	ModelAPI      bool // models may be registered and unregistered over the API (TorchServe's enable_model_api)
	OpenInference bool // the few answers under /v2 that TorchServe gives with ts_open_inference_protocol
	CORS          CORS
	Readiness     Readiness // which models have to be ready for /readyz

	MaxRequestSize   int64 // bytes of a request's body; 0 means TorchServe's 6553500
	MaxInflightBytes int64 // bytes of all the bodies in memory; 0 for no limit

	HeadTimeout  time.Duration // from a request head's first byte to its last; 0 means 30 s
	BodyPause    time.Duration // between two parts of a body; 0 means 60 s
	IdleTimeout  time.Duration // without any request on a connection; 0 means 5 min
	AdminTimeout time.Duration // of registering and scaling, which go on when the client leaves; 0 means 1 h
}

const (
	defaultMaxRequestSize = 6553500
	defaultHeadTimeout    = 30 * time.Second
	defaultBodyPause      = time.Minute
	defaultIdleTimeout    = 5 * time.Minute
	defaultAdminTimeout   = time.Hour
)

// Port says which of TorchServe's APIs a listener serves.
type Port int

// The ports. Joint is inference and management on one, as TorchServe does when both addresses are the same.
const (
	Inference Port = iota
	Management
	MetricsPort
	Joint
	ports
)

// String is the port's name in logs.
func (p Port) String() string {
	return [...]string{"inference", "management", "metrics", "joint"}[p]
}

// API serves requests. It keeps no goroutines of its own.
type API struct {
	opts     Options
	log      *slog.Logger
	inflight budget
	scratch  sync.Pool // buffers for what nobody reads
	fixed    fixedHeaders
	started  atomic.Bool // what was there at the start has come up, or failed
	// What is served below /admin and, of the Open Inference Protocol, below /v2.
	adminTable    []adminRoute
	protocolTable []protocolRoute
	docs          [ports][]byte // API descriptions
	engines       [ports]http.Handler
}

// New makes an API.
func New(opts Options) (*API, error) {
	if opts.Predictor == nil || opts.Models == nil {
		return nil, errors.New("httpapi needs a Predictor and Models")
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	orDefault(&opts.MaxRequestSize, defaultMaxRequestSize)
	orDefault(&opts.HeadTimeout, defaultHeadTimeout)
	orDefault(&opts.BodyPause, defaultBodyPause)
	orDefault(&opts.IdleTimeout, defaultIdleTimeout)
	orDefault(&opts.AdminTimeout, defaultAdminTimeout)
	a := &API{opts: opts, log: opts.Logger, fixed: newFixedHeaders(opts.CORS)}
	a.inflight.limit = opts.MaxInflightBytes
	a.adminTable, a.protocolTable = a.adminRoutes(), a.protocolRoutes()
	gin.SetMode(gin.ReleaseMode) // gin's debug mode prints to stdout
	for port := range ports {
		a.docs[port] = a.describeAPI(port)
		engine := gin.New()
		engine.NoRoute(a.handler(port)) // the one handler: TorchServe's routes are none that a path tree could tell
		a.engines[port] = engine
	}
	return a, nil
}

// Inference serves the inference API.
func (a *API) Inference() http.Handler { return a.engines[Inference] }

// Management serves the management API.
func (a *API) Management() http.Handler { return a.engines[Management] }

// Metrics serves the metrics API.
func (a *API) Metrics() http.Handler { return a.engines[MetricsPort] }

// Joint serves all of them, inference first.
func (a *API) Joint() http.Handler { return a.engines[Joint] }

func orDefault[T ~int64](value *T, standard T) {
	if *value <= 0 {
		*value = standard
	}
}
