package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/flambeau-serve/flambeau/internal/infer"
)

// The values of a label: which way the number of workers was changed.
const (
	directionUp   = "up"
	directionDown = "down"
)

// workerSteps are the metrics of workers that come and go although nothing is wrong. The zero value keeps nothing.
type workerSteps struct{ scaled, recycled *prometheus.CounterVec }

func (m *Metrics) addWorkerSteps(add func(name string, kind Kind, c prometheus.Collector, labels ...string) error) error {
	counter := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{labelModel, labelVersion, label})
	}
	m.steps = workerSteps{
		scaled:   counter(AutoscaleSteps, "Times that the load changed a version's number of workers.", labelDirection),
		recycled: counter(WorkersRecycled, "Workers that were replaced because they had done their part, by how that ended.", labelOutcome),
	}
	if err := add(AutoscaleSteps, Counter, m.steps.scaled, labelModel, labelVersion, labelDirection); err != nil {
		return err
	}
	return add(WorkersRecycled, Counter, m.steps.recycled, labelModel, labelVersion, labelOutcome)
}

// Autoscaled notes that the load has changed a version's number of workers.
func (m *Metrics) Autoscaled(ref infer.ModelRef, up bool) {
	if m.steps.scaled == nil {
		return
	}
	direction := directionDown
	if up {
		direction = directionUp
	}
	model, version := m.label(ref)
	m.steps.scaled.WithLabelValues(model, version, direction).Inc()
}

// WorkerRecycled notes that a worker was replaced, or that the one that was to replace it did not come up.
func (m *Metrics) WorkerRecycled(ref infer.ModelRef, replaced bool) {
	if m.steps.recycled == nil {
		return
	}
	outcome := "failed"
	if replaced {
		outcome = "replaced"
	}
	model, version := m.label(ref)
	m.steps.recycled.WithLabelValues(model, version, outcome).Inc()
}

func (s workerSteps) forget(labels prometheus.Labels) {
	if s.scaled == nil {
		return
	}
	s.scaled.DeletePartialMatch(labels)
	s.recycled.DeletePartialMatch(labels)
}
