// Package telemetry names what is measured and logged, keeps the metrics, and writes them as TorchServe does.
package telemetry

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// Mode says where values go: TorchServe's metrics_mode.
type Mode string

// The modes.
const (
	ModeLog        Mode = "log"        // to the log; /metrics is empty
	ModeLegacy     Mode = "legacy"     // the three ts_ counters to /metrics, the rest to the log
	ModePrometheus Mode = "prometheus" // to /metrics
)

// Options say what is measured and where it goes.
type Options struct {
	Mode       Mode
	Catalog    Catalog // the zero value means TorchServe's
	AutoDetect bool    // handlers may set metrics that the catalog does not list (TorchServe's model_metrics_auto_detect)
	Hostname   string  // "" means the machine's
	// ServerLog and ModelLog get a line for each value that goes to the log, without a time and a newline: the contents of
	// TorchServe's ts_metrics.log and model_metrics.log. They are called from the goroutine that measures. nil: nobody is told.
	ServerLog, ModelLog func(line string)
	// State says how the models are when /metrics is asked; nil: nothing is said about it.
	State func() []ModelState
	// Store says how many archives of the model store are in each state; nil: nothing is said about it.
	Store func() map[string]int
	// LabelQuota is how many model versions have series of their own; the rest share one. 0 means 1000.
	LabelQuota int
	Logger     *slog.Logger // nil: nothing is logged
}

// ModelState is how a model version is at a moment.
type ModelState struct {
	Ref               infer.ModelRef
	Waiting, Capacity int            // of its queue
	Workers           map[string]int // how many are in each state
}

// Prediction is one request that a queue was asked to take.
type Prediction struct {
	ID      string
	Ref     infer.ModelRef // as asked: without a version when the request named none
	Taken   infer.ModelRef // with the version that it went to; a zero one when that is not known
	Queue   time.Duration  // in the queue
	Backend time.Duration  // in the worker, 0 if that is not known
	Total   time.Duration
	Err     error // why there was no answer
}

// Metrics keeps all the values. Its methods are safe for concurrent use.
type Metrics struct {
	opts     Options
	registry *prometheus.Registry
	server   map[string]*series // by name; what the catalog does not list is not there
	own      ownMetrics
	changes  changeMetrics
	steps    workerSteps
	log      *slog.Logger
	shown    []*series // families of the server and, behind them, of the handlers, in the order they are written

	mu     sync.RWMutex // guards model, shown (appending), labels, warned
	model  map[string]*series
	labels map[infer.ModelRef]bool // versions that have series of their own
	warned map[string]bool
}

// New makes the metrics. The error says what is wrong with the catalog.
func New(opts Options) (*Metrics, error) {
	switch opts.Mode {
	case ModeLog, ModeLegacy, ModePrometheus:
	default:
		return nil, fmt.Errorf("metrics mode %q is not one: it is log, legacy or prometheus", opts.Mode)
	}
	if opts.Hostname == "" {
		name, err := os.Hostname()
		if err != nil {
			name = "localhost"
		}
		opts.Hostname = name
	}
	if opts.Catalog.Server == nil && opts.Catalog.Model == nil {
		opts.Catalog = TorchServeCatalog()
	}
	if opts.LabelQuota <= 0 {
		opts.LabelQuota = defaultLabelQuota
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Metrics{
		opts: opts, registry: prometheus.NewRegistry(), server: map[string]*series{}, log: opts.Logger,
		model: map[string]*series{}, labels: map[infer.ModelRef]bool{}, warned: map[string]bool{},
	}
	for _, f := range opts.Catalog.Server {
		s, err := m.newSeries(f, opts.ServerLog)
		if err != nil {
			return nil, err
		}
		m.server[f.Name] = s
	}
	for _, f := range opts.Catalog.Model {
		s, err := m.newSeries(f.onHost(), opts.ModelLog)
		if err != nil {
			return nil, err
		}
		m.model[f.Name] = s
	}
	if opts.Mode == ModePrometheus {
		if err := m.addOwn(); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// CountResponse counts an HTTP answer. As in TorchServe, what is neither a success nor a client's error counts as a server's.
func (m *Metrics) CountResponse(status int) {
	name := Requests5XX
	switch {
	case status >= 200 && status < 300:
		name = Requests2XX
	case status >= 400 && status < 500:
		name = Requests4XX
	}
	m.set(name, 1, levelHost, m.opts.Hostname)
}

// CountUnread counts a request that was refused before anybody knew which model it is for, by the reason: a word of internal/fault.
func (m *Metrics) CountUnread(reason string) { m.own.failed(noModel, noModel, reason) }

// Predicted counts a request to a model. A model that does not exist makes no series.
func (m *Metrics) Predicted(p Prediction) {
	if fault.Is(p.Err, fault.ModelNotFound, fault.VersionNotFound) {
		m.own.failed(noModel, noModel, fault.KindOf(p.Err).String())
		return
	}
	model, version := m.label(p.Ref)
	host := m.opts.Hostname
	m.set(InferenceRequests, 1, model, version, host)
	taken, takenVersion := model, version // TorchServe's metrics have what was asked for, ours what it came to
	if p.Taken.Name != "" {
		taken, takenVersion = m.label(p.Taken)
	}
	if p.Err != nil {
		m.own.failed(taken, takenVersion, fault.KindOf(p.Err).String())
		return
	}
	m.set(InferenceLatency, microseconds(p.Total), model, version, host)
	m.set(QueueLatency, microseconds(p.Queue), model, version, host)
	m.set(QueueTime, float64(p.Queue.Milliseconds()), levelHost, host)
	m.set(WorkerThreadTime, float64(max(p.Total-p.Queue-p.Backend, 0).Milliseconds()), levelHost, host)
	m.predicted(model, p)
	m.own.answered(taken, takenVersion, p)
}

// predicted sets the gauge that TorchServe's workers set after each batch, if the catalog has it as TorchServe's has.
func (m *Metrics) predicted(model string, p Prediction) {
	m.mu.RLock()
	s := m.model[PredictionTime]
	m.mu.RUnlock()
	if s != nil && slices.Equal(s.Dimensions, []string{labelModelName, labelLevel, labelHostname}) {
		s.record(float64(p.Backend.Microseconds())/1e3, []string{model, levelModel, m.opts.Hostname}, p.ID)
	}
}

// WorkerLoaded notes that a worker got ready, and how long that took.
func (m *Metrics) WorkerLoaded(ref infer.ModelRef, worker int, took time.Duration) {
	m.set(WorkerLoadTime, float64(took.Milliseconds()), workerName(ref, worker), levelHost, m.opts.Hostname)
	model, version := m.label(ref)
	m.own.started(model, version)
}

// WorkerFailed notes that a worker ended though nobody asked it to, or did not get ready. reason is a word of internal/fault.
func (m *Metrics) WorkerFailed(ref infer.ModelRef, reason string) {
	model, version := m.label(ref)
	m.own.workerFailed(model, version, reason)
}

// WorkerGone forgets the values of a worker that will not come back.
func (m *Metrics) WorkerGone(ref infer.ModelRef, worker int) {
	if s := m.server[WorkerLoadTime]; s != nil {
		s.forget(prometheus.Labels{labelWorkerName: workerName(ref, worker)})
	}
}

// Forget drops the series of a model version that was unregistered, so that names that come and go do not pile up. The series of
// requests that named no version stay while there are other versions; forget them with an empty version.
func (m *Metrics) Forget(ref infer.ModelRef) {
	if ref.Version == "" {
		ref.Version = defaultVersion
	}
	m.mu.Lock()
	had := m.labels[ref]
	delete(m.labels, ref)
	m.mu.Unlock()
	if !had {
		return
	}
	for _, name := range []string{InferenceRequests, InferenceLatency, QueueLatency} {
		if s := m.server[name]; s != nil {
			s.forget(prometheus.Labels{labelTSModel: ref.Name, labelTSVersion: ref.Version})
		}
	}
	m.own.forget(prometheus.Labels{labelModel: ref.Name, labelVersion: ref.Version})
	m.changes.forget(prometheus.Labels{labelModel: ref.Name, labelVersion: ref.Version})
	m.steps.forget(prometheus.Labels{labelModel: ref.Name, labelVersion: ref.Version})
	if ref.Version == defaultVersion {
		m.forgetModel(ref.Name)
	}
}

// forgetModel drops what the handlers of a model measured: those series know no versions.
func (m *Metrics) forgetModel(name string) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, s := range m.model {
		if s != nil && slices.Contains(s.Dimensions, labelModelName) {
			s.forget(prometheus.Labels{labelModelName: name})
		}
	}
}

// label gives a version's labels: its own, until so many have some that the rest must share.
func (m *Metrics) label(ref infer.ModelRef) (model, version string) {
	if ref.Version == "" {
		ref.Version = defaultVersion
	}
	m.mu.RLock()
	known := m.labels[ref]
	m.mu.RUnlock()
	if known {
		return ref.Name, ref.Version
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.labels[ref] && len(m.labels) >= m.opts.LabelQuota {
		return otherModels, otherModels
	}
	m.labels[ref] = true
	return ref.Name, ref.Version
}

// set gives a value of the server's own metric.
func (m *Metrics) set(name string, value float64, labels ...string) {
	if s := m.server[name]; s != nil && len(labels) == len(s.Dimensions) {
		s.record(value, labels, "")
	}
}

func workerName(ref infer.ModelRef, worker int) string {
	return "W-" + strconv.Itoa(worker) + "-" + ref.Name + "_" + ref.Version
}

func microseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// inLegacy says whether a metric goes to /metrics in legacy mode.
func inLegacy(name string) bool { return strings.HasPrefix(name, "ts_") }
