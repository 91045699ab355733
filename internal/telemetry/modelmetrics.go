package telemetry

import (
	"log/slog"
	"slices"
	"strconv"
	"strings"
)

// metricMark begins a line of a worker's output that is a metric and not a log line.
const metricMark = "[METRICS]"

// mostModelMetrics bounds how many metrics handlers may make up (AutoDetect).
const mostModelMetrics = 1000

// modelMetric is a value that a handler measured.
type modelMetric struct {
	family   Family // without the host
	values   []string
	value    float64
	host     string
	requests string
}

// ModelLine takes a line of a worker's output. It gives false for a line that is no metric.
//
// A metric is NAME.UNIT:VALUE|#DIMENSION:VALUE,…|#type:KIND|#hostname:HOST,TIME[,REQUEST IDS] behind a mark, as TorchServe's
// Python library writes it. One that the catalog does not list, or that is no metric after all, is dropped.
func (m *Metrics) ModelLine(text string) bool {
	rest, ok := strings.CutPrefix(text, metricMark)
	if !ok {
		return false
	}
	metric, ok := parseModelMetric(rest)
	if !ok {
		m.warn("metric of a handler cannot be read", rest)
		return true
	}
	s := m.modelSeries(metric.family)
	if s == nil {
		return true
	}
	values := make([]string, 0, len(s.Dimensions))
	for _, d := range s.Dimensions[:len(s.Dimensions)-1] {
		i := slices.Index(metric.family.Dimensions, d)
		if i < 0 {
			m.warn("metric of a handler lacks a dimension that the configuration lists", s.Name)
			return true
		}
		values = append(values, metric.values[i])
	}
	if metric.host == "" {
		metric.host = m.opts.Hostname
	}
	s.record(metric.value, append(values, metric.host), metric.requests)
	return true
}

// modelSeries finds or makes the series of a handler's metric; nil when it is to be dropped.
func (m *Metrics) modelSeries(f Family) *series {
	m.mu.RLock()
	s := m.model[f.Name]
	m.mu.RUnlock()
	if s != nil || !m.opts.AutoDetect {
		return s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s = m.model[f.Name]; s != nil {
		return s
	}
	if len(m.model) >= mostModelMetrics {
		return nil
	}
	s, err := m.newSeries(f.onHost(), m.opts.ModelLog)
	if err != nil { // remembered as one to drop, so that it costs nothing more
		m.log.Warn("metric of a handler cannot be kept", slog.String(KeyMetric, f.Name), slog.String(KeyError, err.Error()))
		s = nil
	}
	m.model[f.Name] = s
	return s
}

// warn logs each problem once.
func (m *Metrics) warn(message, what string) {
	name, _, _ := strings.Cut(what, ":")
	key := message + name
	m.mu.Lock()
	done := m.warned[key] || len(m.warned) >= mostModelMetrics
	m.warned[key] = true
	m.mu.Unlock()
	if done {
		return
	}
	m.log.Warn("handler metric dropped", slog.String(KeyReason, message), slog.String(KeyMetric, what))
}

// parseModelMetric reads a metric line behind its mark.
func parseModelMetric(text string) (modelMetric, bool) {
	head, rest, ok := strings.Cut(text, "|#")
	if !ok {
		return modelMetric{}, false
	}
	colon := strings.LastIndexByte(head, ':')
	dot := strings.LastIndexByte(head[:max(colon, 0)], '.')
	if colon < 0 || dot < 0 {
		return modelMetric{}, false
	}
	value, err := strconv.ParseFloat(head[colon+1:], 64)
	if err != nil {
		return modelMetric{}, false
	}
	dimensions, tail, ok := cutLast(rest, "|#type:")
	kind, origin, found := strings.Cut(tail, "|#hostname:")
	if !ok || !found {
		return modelMetric{}, false
	}
	m := modelMetric{family: Family{Name: head[:dot], Unit: head[dot+1 : colon]}, value: value}
	switch m.family.Kind = Kind(strings.ToLower(kind)); m.family.Kind {
	case Counter, Gauge, Histogram:
	default:
		return modelMetric{}, false
	}
	if dimensions != "" {
		for d := range strings.SplitSeq(dimensions, ",") {
			name, v, _ := strings.Cut(d, ":")
			m.family.Dimensions = append(m.family.Dimensions, name)
			m.values = append(m.values, v)
		}
	}
	var when string
	m.host, when, _ = strings.Cut(origin, ",")
	_, m.requests, _ = strings.Cut(when, ",")
	return m, true
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
