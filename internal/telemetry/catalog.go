package telemetry

import (
	"fmt"
	"slices"

	"github.com/goccy/go-yaml"

	"github.com/flambeau-serve/flambeau/internal/malformed"
)

// Kind is the kind of a metric.
type Kind string

// The kinds, by their names in Prometheus' text format.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Family is one metric: its name, and the names of its dimensions in order.
type Family struct {
	Name       string
	Unit       string
	Kind       Kind
	Dimensions []string
}

// Catalog says which metrics there are: the server's own, and those that handlers may set. A metric that is in neither list is
// dropped (but see Options.AutoDetect).
type Catalog struct {
	Server []Family // the last dimension is the host's name
	Model  []Family // the host's name is added to the dimensions
}

// TorchServeCatalog is what TorchServe's own metrics.yaml lists.
func TorchServeCatalog() Catalog {
	host := []string{labelLevel, labelHostname}
	device := []string{labelLevel, labelDevice, labelHostname}
	model := []string{labelTSModel, labelTSVersion, labelTSHost}
	handler := []string{labelModelName, labelLevel}
	return Catalog{
		Server: []Family{
			{Requests2XX, unitCount, Counter, host},
			{Requests4XX, unitCount, Counter, host},
			{Requests5XX, unitCount, Counter, host},
			{InferenceRequests, unitCount, Counter, model},
			{InferenceLatency, unitMicroseconds, Counter, model},
			{QueueLatency, unitMicroseconds, Counter, model},
			{QueueTime, unitMilliseconds, Gauge, host},
			{WorkerThreadTime, unitMilliseconds, Gauge, host},
			{WorkerLoadTime, unitMilliseconds, Gauge, []string{labelWorkerName, labelLevel, labelHostname}},
			{CPUUtilization, unitPercent, Gauge, host},
			{MemoryUsed, unitMegabytes, Gauge, host},
			{MemoryAvailable, unitMegabytes, Gauge, host},
			{MemoryUtilization, unitPercent, Gauge, host},
			{DiskUsage, unitGigabytes, Gauge, host},
			{DiskUtilization, unitPercent, Gauge, host},
			{DiskAvailable, unitGigabytes, Gauge, host},
			{GPUMemoryUtilization, unitPercent, Gauge, device},
			{GPUMemoryUsed, unitMegabytes, Gauge, device},
			{GPUUtilization, unitPercent, Gauge, device},
		},
		Model: []Family{
			{HandlerTime, "ms", Gauge, handler},
			{PredictionTime, "ms", Gauge, handler},
		},
	}
}

// ParseCatalog reads a metrics.yaml in TorchServe's form: the lists ts_metrics and model_metrics, each with counters, gauges and
// histograms.
func ParseCatalog(text []byte) (Catalog, error) {
	type entry struct {
		Name       string   `yaml:"name"`
		Unit       string   `yaml:"unit"`
		Dimensions []string `yaml:"dimensions"`
	}
	type lists struct {
		Counter   []entry `yaml:"counter"`
		Gauge     []entry `yaml:"gauge"`
		Histogram []entry `yaml:"histogram"`
	}
	var file struct {
		Server lists `yaml:"ts_metrics"`
		Model  lists `yaml:"model_metrics"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return Catalog{}, fmt.Errorf("the metrics configuration cannot be read: %s", malformed.YAML(err))
	}
	seen := map[string]bool{}
	families := func(l lists) ([]Family, error) {
		var all []Family
		for _, group := range []struct {
			kind    Kind
			entries []entry
		}{{Counter, l.Counter}, {Gauge, l.Gauge}, {Histogram, l.Histogram}} {
			for _, e := range group.entries {
				f := Family{Name: e.Name, Unit: e.Unit, Kind: group.kind, Dimensions: e.Dimensions}
				if err := f.check(); err != nil {
					return nil, err
				}
				if seen[f.Name] {
					return nil, fmt.Errorf("the metrics configuration has %s twice", f.Name)
				}
				seen[f.Name] = true
				all = append(all, f)
			}
		}
		return all, nil
	}
	var c Catalog
	var err error
	if c.Server, err = families(file.Server); err != nil {
		return Catalog{}, err
	}
	if c.Model, err = families(file.Model); err != nil {
		return Catalog{}, err
	}
	return c, nil
}

// check says what is wrong with a family.
func (f Family) check() error {
	if !validName(f.Name, true) {
		return fmt.Errorf("metric name %q is not one: letters, digits, _ and : only", f.Name)
	}
	for i, d := range f.Dimensions {
		if !validName(d, false) {
			return fmt.Errorf("dimension %q of metric %s is not a label name: letters, digits and _ only", d, f.Name)
		}
		if slices.Contains(f.Dimensions[:i], d) {
			return fmt.Errorf("metric %s has the dimension %s twice", f.Name, d)
		}
	}
	return nil
}

// validName says whether text is a name in Prometheus' text format.
func validName(text string, colons bool) bool {
	for i := range len(text) {
		c := text[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || colons && c == ':'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return text != ""
}
