package telemetry

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// ownMetrics are the metrics that TorchServe does not have. The zero value keeps nothing.
type ownMetrics struct {
	duration, queue               *prometheus.HistogramVec
	failures, starts, breakdowns  *prometheus.CounterVec
	depth, capacity, workerStates *prometheus.Desc
	panics                        *prometheus.CounterVec
}

// durationBuckets are bounds in seconds: from what a small model takes to what a patient client waits.
func durationBuckets() []float64 {
	return []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 120}
}

// addOwn registers the metrics that TorchServe does not have, and appends them to what is shown.
func (m *Metrics) addOwn() error {
	version := []string{labelModel, labelVersion}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: durationBuckets()}, version)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append([]string{labelModel, labelVersion}, labels...))
	}
	m.own = ownMetrics{
		duration:   histogram(RequestDuration, "Time from taking a request to its answer, answered requests only."),
		queue:      histogram(QueueDuration, "Time that answered requests waited in the queue."),
		failures:   counter(Failures, "Requests to models that got no answer, by the reason; without a model when there is none of that name.", labelReason),
		starts:     counter(WorkerStarts, "Workers that got ready, first starts and restarts."),
		breakdowns: counter(WorkerFailures, "Workers that ended unasked or did not get ready, by the reason.", labelReason),
		panics: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: Panics, Help: "Bugs of the server that cost a batch its answers, a worker, or less, and not the server itself, by where they were. Its log has their stacks.",
		}, []string{labelPart}),
		depth:        prometheus.NewDesc(QueueDepth, "Requests that wait in the queue.", version, nil),
		capacity:     prometheus.NewDesc(QueueCapacity, "Requests that may wait in the queue.", version, nil),
		workerStates: prometheus.NewDesc(Workers, "Workers by their state.", append([]string{labelModel, labelVersion}, labelState), nil),
	}
	add := func(name string, kind Kind, c prometheus.Collector, labels ...string) error {
		if err := m.registry.Register(c); err != nil {
			return fmt.Errorf("metric %s cannot be registered: %w", name, err)
		}
		m.shown = append(m.shown, &series{Family: Family{Name: name, Kind: kind, Dimensions: labels}, own: true})
		return nil
	}
	for _, err := range []error{
		add(RequestDuration, Histogram, m.own.duration, version...),
		add(QueueDuration, Histogram, m.own.queue, version...),
		add(Failures, Counter, m.own.failures, labelModel, labelVersion, labelReason),
		add(WorkerStarts, Counter, m.own.starts, version...),
		add(WorkerFailures, Counter, m.own.breakdowns, labelModel, labelVersion, labelReason),
		add(Panics, Counter, m.own.panics, labelPart),
	} {
		if err != nil {
			return err
		}
	}
	if err := m.addWorkerSteps(add); err != nil {
		return err
	}
	if err := m.addChanges(add); err != nil {
		return err
	}
	if m.opts.State == nil {
		return nil
	}
	if err := add(QueueDepth, Gauge, &stateCollector{own: &m.own, state: m.opts.State}, version...); err != nil {
		return err
	}
	m.shown = append(m.shown, &series{Family: Family{Name: QueueCapacity, Kind: Gauge, Dimensions: version}, own: true},
		&series{Family: Family{Name: Workers, Kind: Gauge, Dimensions: []string{labelModel, labelVersion, labelState}}, own: true})
	return nil
}

// Part is where a panic was that was contained; the word is part of the interface.
type Part string

// The parts.
const (
	PartQueue  Part = "queue"
	PartWorker Part = "worker" // what looks after a worker
	PartOther  Part = "other"  // the model store, and whoever is told of what happens
)

// Panicked counts a panic that was contained.
func (m *Metrics) Panicked(part Part) {
	if m.own.panics != nil {
		m.own.panics.WithLabelValues(string(part)).Inc()
	}
}

func (o *ownMetrics) answered(model, version string, p Prediction) {
	if o.duration != nil {
		o.duration.WithLabelValues(model, version).Observe(p.Total.Seconds())
		o.queue.WithLabelValues(model, version).Observe(p.Queue.Seconds())
	}
}

func (o *ownMetrics) failed(model, version, reason string) {
	if o.failures != nil {
		o.failures.WithLabelValues(model, version, reason).Inc()
	}
}

func (o *ownMetrics) started(model, version string) {
	if o.starts != nil {
		o.starts.WithLabelValues(model, version).Inc()
	}
}

func (o *ownMetrics) workerFailed(model, version, reason string) {
	if o.breakdowns != nil {
		o.breakdowns.WithLabelValues(model, version, reason).Inc()
	}
}

func (o *ownMetrics) forget(labels prometheus.Labels) {
	if o.duration == nil {
		return
	}
	o.duration.DeletePartialMatch(labels)
	o.queue.DeletePartialMatch(labels)
	o.failures.DeletePartialMatch(labels)
	o.starts.DeletePartialMatch(labels)
	o.breakdowns.DeletePartialMatch(labels)
}

// stateCollector asks how the models are when somebody asks for the metrics, so that nothing has to be kept up to date.
type stateCollector struct {
	own   *ownMetrics
	state func() []ModelState
}

// Describe names the metrics.
func (c *stateCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.own.depth
	out <- c.own.capacity
	out <- c.own.workerStates
}

// Collect gives the values of this moment.
func (c *stateCollector) Collect(out chan<- prometheus.Metric) {
	for _, s := range c.state() {
		model, version := s.Ref.Name, s.Ref.Version
		out <- prometheus.MustNewConstMetric(c.own.depth, prometheus.GaugeValue, float64(s.Waiting), model, version)
		out <- prometheus.MustNewConstMetric(c.own.capacity, prometheus.GaugeValue, float64(s.Capacity), model, version)
		for state, n := range s.Workers {
			out <- prometheus.MustNewConstMetric(c.own.workerStates, prometheus.GaugeValue, float64(n), model, version, state)
		}
	}
}
