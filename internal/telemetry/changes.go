package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/flambeau-serve/flambeau/internal/infer"
)

// SwapOutcome is how the try to replace what serves of a version ended.
type SwapOutcome string

// The outcomes; the words are values of a label.
const (
	NoSwap         SwapOutcome = ""           // the change was no such try
	SwapDone       SwapOutcome = "swapped"    // the new archive serves
	SwapFailed     SwapOutcome = "failed"     // it did not come up, and the old one goes on
	SwapSuperseded SwapOutcome = "superseded" // a newer change came before it was ready
	SwapRefused    SwapOutcome = "refused"    // it was not even started
)

// ModelChange is a change of a model version as a whole.
type ModelChange struct {
	Ref        infer.ModelRef
	At         time.Time
	Swap       SwapOutcome
	Took       time.Duration // of a swap that was done: from its begin until the new archive served
	Generation int           // that serves since; 0 if the change is of no generation that serves
}

// changeMetrics are the metrics of changes. The zero value keeps nothing.
type changeMetrics struct {
	swaps              *prometheus.CounterVec
	duration           *prometheus.HistogramVec
	generation, latest *prometheus.GaugeVec
	entries            *prometheus.Desc
}

// swapBuckets are bounds in seconds: from a tiny model to one that is loaded for half an hour.
func swapBuckets() []float64 {
	return []float64{.1, .2, .5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800}
}

// addChanges registers the metrics of changes.
func (m *Metrics) addChanges(add func(name string, kind Kind, c prometheus.Collector, labels ...string) error) error {
	version := []string{labelModel, labelVersion}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, version)
	}
	m.changes = changeMetrics{
		swaps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: ModelSwaps, Help: "Tries to replace what serves of a model version, by how they ended.",
		}, []string{labelModel, labelVersion, labelOutcome}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: ModelSwapDuration, Help: "Time from the begin of a swap until the new archive served.", Buckets: swapBuckets(),
		}, version),
		generation: gauge(ModelGeneration, "Which load of the model version serves, counted from 1."),
		latest:     gauge(ModelLastChange, "When the model version was changed last."),
		entries:    prometheus.NewDesc(StoreEntries, "Archives in the model store, by their state.", []string{labelState}, nil),
	}
	for _, err := range []error{
		add(ModelSwaps, Counter, m.changes.swaps, labelModel, labelVersion, labelOutcome),
		add(ModelSwapDuration, Histogram, m.changes.duration, version...),
		add(ModelGeneration, Gauge, m.changes.generation, version...),
		add(ModelLastChange, Gauge, m.changes.latest, version...),
	} {
		if err != nil {
			return err
		}
	}
	if m.opts.Store == nil {
		return nil
	}
	return add(StoreEntries, Gauge, &storeCollector{entries: m.changes.entries, count: m.opts.Store}, labelState)
}

// ModelChanged notes a change of a model version.
func (m *Metrics) ModelChanged(c ModelChange) {
	if m.changes.swaps == nil {
		return
	}
	model, version := m.label(c.Ref)
	if c.Swap != NoSwap {
		m.changes.swaps.WithLabelValues(model, version, string(c.Swap)).Inc()
	}
	if c.Swap == SwapDone {
		m.changes.duration.WithLabelValues(model, version).Observe(c.Took.Seconds())
	}
	if c.Generation > 0 {
		m.changes.generation.WithLabelValues(model, version).Set(float64(c.Generation))
	}
	m.changes.latest.WithLabelValues(model, version).Set(float64(c.At.UnixMilli()) / 1e3)
}

func (c *changeMetrics) forget(labels prometheus.Labels) {
	if c.swaps == nil {
		return
	}
	c.swaps.DeletePartialMatch(labels)
	c.duration.DeletePartialMatch(labels)
	c.generation.DeletePartialMatch(labels)
	c.latest.DeletePartialMatch(labels)
}

// storeCollector counts the archives of the store when somebody asks for the metrics.
type storeCollector struct {
	entries *prometheus.Desc
	count   func() map[string]int
}

// Describe names the metric.
func (c *storeCollector) Describe(out chan<- *prometheus.Desc) { out <- c.entries }

// Collect gives the values of this moment.
func (c *storeCollector) Collect(out chan<- prometheus.Metric) {
	for state, n := range c.count() {
		out <- prometheus.MustNewConstMetric(c.entries, prometheus.GaugeValue, float64(n), state)
	}
}
