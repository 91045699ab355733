package telemetry

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// series are the values of one family, and where they go.
type series struct {
	Family
	vector interface { // nil when nothing goes to /metrics
		prometheus.Collector
		DeletePartialMatch(labels prometheus.Labels) int
	}
	update func(value float64, labels []string)
	log    func(line string) // nil when nothing goes to the log
	own    bool              // not TorchServe's: it is written only when it has values
}

// javaBuckets are the bounds that Prometheus' Java client gives a histogram.
func javaBuckets() []float64 {
	return []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10}
}

// newSeries makes the series of a family and registers them where the mode wants them. The caller holds no lock, or has the
// Metrics for itself.
func (m *Metrics) newSeries(f Family, log func(string)) (*series, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	s := &series{Family: f, update: func(float64, []string) {}}
	if m.opts.Mode != ModePrometheus && (m.opts.Mode != ModeLegacy || !inLegacy(f.Name)) {
		s.log = log
		return s, nil
	}
	help := s.help()
	switch f.Kind {
	case Counter:
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: f.Name, Help: help}, f.Dimensions)
		s.vector = v
		s.update = func(value float64, labels []string) {
			if value >= 0 {
				v.WithLabelValues(labels...).Add(value)
			}
		}
	case Gauge:
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: f.Name, Help: help}, f.Dimensions)
		s.vector, s.update = v, func(value float64, labels []string) { v.WithLabelValues(labels...).Set(value) }
	case Histogram:
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: f.Name, Help: help, Buckets: javaBuckets()}, f.Dimensions)
		s.vector, s.update = v, func(value float64, labels []string) { v.WithLabelValues(labels...).Observe(value) }
	}
	if err := m.registry.Register(s.vector); err != nil {
		return nil, fmt.Errorf("metric %s cannot be registered: %w", f.Name, err)
	}
	m.shown = append(m.shown, s)
	return s, nil
}

// help is TorchServe's text for all its metrics.
func (f Family) help() string {
	return fmt.Sprintf("Torchserve prometheus %s metric with unit: %s", f.Kind, f.Unit)
}

// onHost gives the family with the host's name as its last dimension.
func (f Family) onHost() Family {
	f.Dimensions = append(append(make([]string, 0, len(f.Dimensions)+1), f.Dimensions...), labelHostname)
	return f
}

// record gives a value. There are as many labels as dimensions.
func (s *series) record(value float64, labels []string, requests string) {
	if s.log != nil {
		s.log(s.line(value, labels, requests))
	}
	for i, l := range labels {
		if strings.ToValidUTF8(l, "") != l {
			labels[i] = strings.ToValidUTF8(l, "\ufffd") // the client library panics on anything else
		}
	}
	s.update(value, labels)
}

// line is a value as TorchServe logs it. The last label is the host's name.
func (s *series) line(value float64, labels []string, requests string) string {
	var b strings.Builder
	b.Grow(usualLine)
	b.WriteString(s.Name)
	b.WriteByte('.')
	b.WriteString(s.Unit)
	b.WriteByte(':')
	b.WriteString(javaFloat(value))
	b.WriteString("|#")
	last := len(labels) - 1
	for i, l := range labels[:last] {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(s.Dimensions[i])
		b.WriteByte(':')
		b.WriteString(l)
	}
	b.WriteString("|#hostname:")
	b.WriteString(labels[last])
	if requests != "" {
		b.WriteString(",requestID:")
		b.WriteString(requests)
	}
	b.WriteString(",timestamp:")
	b.WriteString(strconv.FormatInt(time.Now().Unix(), 10))
	line := b.String()
	if !strings.ContainsAny(line, "\n\r") { // nearly always
		return line
	}
	return strings.NewReplacer("\n", " ", "\r", " ").Replace(line)
}

// usualLine is a length that most lines do not exceed.
const usualLine = 192

func (s *series) forget(labels prometheus.Labels) {
	if s.vector != nil {
		s.vector.DeletePartialMatch(labels)
	}
}
