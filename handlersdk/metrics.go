package handlersdk

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
)

// Unit is the unit of a metric, in TorchServe's words.
type Unit string

// The units that TorchServe has; another one may be used as well.
const (
	Milliseconds Unit = "Milliseconds"
	Seconds      Unit = "Seconds"
	Percent      Unit = "Percent"
	Count        Unit = "Count"
	Bytes        Unit = "Bytes"
	Kilobytes    Unit = "Kilobytes"
	Megabytes    Unit = "Megabytes"
	Gigabytes    Unit = "Gigabytes"
	NoUnit       Unit = "unit"
)

// Metrics reports what a handler measures to the server, which treats it as it treats that of Python handlers: a metric has to be listed in the server's
// metrics configuration, unless model_metrics_auto_detect is on. Make it with NewMetrics. Its methods are safe for concurrent use.
type Metrics struct {
	model string
	level string
	host  string
	out   func() io.Writer
	now   func() time.Time

	mu sync.Mutex // guards writing: a line is whole
}

// NewMetrics makes the metrics of a model, which have the dimensions ModelName and Level before those that the author names.
func NewMetrics(m Model) *Metrics {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	// Not os.Stdout itself: it is another file once the server is connected.
	return &Metrics{model: m.Name, level: "Model", host: host, out: func() io.Writer { return os.Stdout }, now: time.Now}
}

// Metric is one of the Metrics.
type Metric struct {
	metrics    *Metrics
	kind       string
	name       string
	unit       Unit
	dimensions []string
}

// Counter makes a metric that only grows. dimensions are names; each Report gives their values.
func (m *Metrics) Counter(name string, unit Unit, dimensions ...string) *Metric {
	return m.metric("COUNTER", name, unit, dimensions)
}

// Gauge makes a metric that has its last value.
func (m *Metrics) Gauge(name string, unit Unit, dimensions ...string) *Metric {
	return m.metric("GAUGE", name, unit, dimensions)
}

// Histogram makes a metric whose values are counted by their size.
func (m *Metrics) Histogram(name string, unit Unit, dimensions ...string) *Metric {
	return m.metric("HISTOGRAM", name, unit, dimensions)
}

func (m *Metrics) metric(kind, name string, unit Unit, dimensions []string) *Metric {
	if unit == "" {
		unit = NoUnit
	}
	return &Metric{metrics: m, kind: kind, name: name, unit: unit, dimensions: append([]string{"ModelName", "Level"}, dimensions...)}
}

// Report reports a value: what a counter grows by, what a gauge is now, or one observation of a histogram. values are those of the dimensions, in their
// order. The context of Handle says which requests it is about. An error means that it was not reported: a counter cannot fall, and each dimension needs
// its value.
func (m *Metric) Report(ctx context.Context, value float64, values ...string) error {
	values = append([]string{m.metrics.model, m.metrics.level}, values...)
	switch {
	case len(values) != len(m.dimensions):
		return fmt.Errorf("metric %s has the dimensions %v, and %d values were given for them", m.name, m.dimensions[2:], len(values)-2)
	case m.kind == "COUNTER" && value < 0:
		return fmt.Errorf("the counter %s cannot grow by %v", m.name, value)
	case !plain(m.name) || m.name == "" || !plain(string(m.unit)):
		return fmt.Errorf("the name %q or unit %q of a metric has characters that have a meaning in its line", m.name, m.unit)
	}
	var b strings.Builder
	b.WriteString("[METRICS]" + m.name + "." + string(m.unit) + ":" + strconv.FormatFloat(value, 'g', -1, 64) + "|#")
	for i, name := range m.dimensions {
		if i > 0 {
			b.WriteByte(',')
		}
		if !plain(name) || !plain(values[i]) {
			return fmt.Errorf("the dimension %q of metric %s, or its value %q, has one of the characters that have a meaning in its line: , : | or a newline", name, m.name, values[i])
		}
		b.WriteString(name + ":" + values[i])
	}
	b.WriteString("|#type:" + m.kind + "|#hostname:" + m.metrics.host + "," + strconv.FormatInt(m.metrics.now().Unix(), 10))
	if ids, _ := ctx.Value(idsKey{}).([]string); len(ids) > 0 {
		b.WriteString("," + strings.Join(ids, ","))
	}
	b.WriteByte('\n')
	return m.metrics.write(b.String())
}

func (m *Metrics) write(line string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, err := io.WriteString(m.out(), line)
	return err
}

// plain says whether a text can be part of a metric's line.
func plain(s string) bool { return !strings.ContainsAny(s, ",:|#\r\n"+string(backendv1.MarkerPrefix)) }
