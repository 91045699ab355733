package telemetry

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// WriteText writes the families of those names, all of them when there are no names, in Prometheus' text format as TorchServe
// writes it: labels in the order of the dimensions with a comma after each, numbers as Java writes them, and families
// without a value too.
func (m *Metrics) WriteText(w io.Writer, names []string) error {
	gathered, err := m.registry.Gather()
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	values := make(map[string]*dto.MetricFamily, len(gathered))
	for _, f := range gathered {
		values[f.GetName()] = f
	}
	m.mu.RLock()
	shown := slices.Clone(m.shown)
	m.mu.RUnlock()
	out := bufio.NewWriter(w)
	for _, s := range shown {
		if len(names) > 0 && !slices.Contains(names, s.Name) {
			continue
		}
		family := values[s.Name]
		help := s.help()
		if s.own {
			if help = family.GetHelp(); family == nil {
				continue
			}
		}
		help = strings.NewReplacer("\\", `\\`, "\n", `\n`).Replace(help)
		_, _ = out.WriteString("# HELP " + s.Name + " " + help + "\n# TYPE " + s.Name + " " + string(s.Kind) + "\n") // Flush tells of an error
		for _, metric := range family.GetMetric() {
			writeMetric(out, s, metric)
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

func writeMetric(out *bufio.Writer, s *series, metric *dto.Metric) {
	labels := labelText(s.Dimensions, metric.GetLabel())
	switch s.Kind {
	case Counter:
		writeSample(out, s.Name, labels, metric.GetCounter().GetValue())
	case Gauge:
		writeSample(out, s.Name, labels, metric.GetGauge().GetValue())
	case Histogram:
		h := metric.GetHistogram()
		for _, b := range h.GetBucket() {
			writeSample(out, s.Name+"_bucket", labels+`le="`+javaFloat(b.GetUpperBound())+`",`, float64(b.GetCumulativeCount()))
		}
		writeSample(out, s.Name+"_bucket", labels+`le="+Inf",`, float64(h.GetSampleCount()))
		writeSample(out, s.Name+"_count", labels, float64(h.GetSampleCount()))
		writeSample(out, s.Name+"_sum", labels, h.GetSampleSum())
	}
}

func writeSample(out *bufio.Writer, name, labels string, value float64) {
	_, _ = out.WriteString(name) // a bufio.Writer keeps its first error for Flush
	if labels != "" {
		_, _ = out.WriteString("{" + labels + "}")
	}
	_, _ = out.WriteString(" " + javaFloat(value) + "\n")
}

// labelText writes the labels in the order of the dimensions; the client library has sorted them.
func labelText(dimensions []string, labels []*dto.LabelPair) string {
	var b strings.Builder
	for _, d := range dimensions {
		for _, l := range labels {
			if l.GetName() == d {
				b.WriteString(d + `="` + strings.NewReplacer("\\", `\\`, "\n", `\n`, `"`, `\"`).Replace(l.GetValue()) + `",`)
			}
		}
	}
	return b.String()
}

// javaFloat writes a number as Java's Double.toString does.
func javaFloat(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "+Inf"
	case math.IsInf(v, -1):
		return "-Inf"
	case math.IsNaN(v):
		return "NaN"
	}
	if a := math.Abs(v); a != 0 && (a < 1e-3 || a >= 1e7) {
		mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(v, 'E', -1, 64), "E")
		if !strings.Contains(mantissa, ".") {
			mantissa += ".0"
		}
		e, err := strconv.Atoi(exponent)
		if err != nil {
			return mantissa + "E" + exponent
		}
		return mantissa + "E" + strconv.Itoa(e)
	}
	text := strconv.FormatFloat(v, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}
