package telemetry

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lines collects log lines.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, regexp.MustCompile(`timestamp:\d+$`).ReplaceAllString(line, "timestamp:T"))
}

func newMetrics(t *testing.T, opts Options) (m *Metrics, server, model *lines) {
	t.Helper()
	server, model = &lines{}, &lines{}
	opts.Hostname, opts.ServerLog, opts.ModelLog = "vm", server.add, model.add
	m, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return m, server, model
}

func text(t *testing.T, m *Metrics, names ...string) string {
	t.Helper()
	var b bytes.Buffer
	if err := m.WriteText(&b, names); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// use does one of everything.
func use(m *Metrics) {
	echo, v1 := infer.ModelRef{Name: "echo"}, infer.ModelRef{Name: "echo", Version: "1.0"}
	for _, status := range []int{200, 204, 301, 404, 500, 199} {
		m.CountResponse(status)
	}
	ms := time.Millisecond
	m.Predicted(Prediction{Ref: echo, Queue: 9533425 * time.Nanosecond, Total: 27894038 * time.Nanosecond, Backend: 12 * ms})
	m.Predicted(Prediction{Ref: echo, Taken: v1, Queue: 2 * ms, Total: 14 * time.Second})
	m.Predicted(Prediction{Ref: v1, Queue: ms, Total: 3 * ms, Err: fault.New(fault.Overloaded, "full", nil)})
	m.Predicted(Prediction{Ref: infer.ModelRef{Name: "nomodel"}, Err: fault.New(fault.ModelNotFound, "Model not found: nomodel", nil)})
	m.Predicted(Prediction{Ref: infer.ModelRef{Name: "echo", Version: "9"}, Err: fault.New(fault.VersionNotFound, "no", nil)})
	m.WorkerLoaded(v1, 9000, 5529*ms)
	m.WorkerFailed(v1, "worker_died")
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	m.ModelChanged(ModelChange{Ref: v1, At: at.Add(-time.Hour), Generation: 1})
	m.ModelChanged(ModelChange{Ref: v1, At: at.Add(-time.Minute), Swap: SwapDone, Took: 1500 * ms, Generation: 2})
	m.ModelChanged(ModelChange{Ref: v1, At: at, Swap: SwapFailed, Took: time.Hour})
	m.ModelLine("[METRICS]PredictionTime.ms:0.01|#ModelName:echo,Level:Model|#type:GAUGE|#hostname:vm,1795972601,a21f,b32e")
	m.ModelLine("[METRICS]Odd.count:2|#B:x y,A:\\\"z|#type:COUNTER|#hostname:vm,1795972601")
	m.ModelLine("[METRICS]Sizes.B:0.3|#ModelName:echo|#type:HISTOGRAM|#hostname:vm,1795972601")
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-update rewrites it): %s", path, diff)
	}
}

func TestPrometheusMode(t *testing.T) {
	state := func() []ModelState {
		return []ModelState{{Ref: infer.ModelRef{Name: "echo", Version: "1.0"}, Waiting: 3, Capacity: 100, Workers: map[string]int{"ready": 2, "failed": 1}}}
	}
	store := func() map[string]int { return map[string]int{"settled": 3, "changing": 0, "incomplete": 1} }
	m, server, model := newMetrics(t, Options{Mode: ModePrometheus, AutoDetect: true, State: state, Store: store})
	use(m)
	got := text(t, m)
	golden(t, "prometheus.golden", got)
	if len(server.all)+len(model.all) != 0 {
		t.Errorf("values went to the log: %v %v", server.all, model.all)
	}
	problems, err := promlint.New(strings.NewReader(got)).Lint()
	if err != nil {
		t.Fatalf("Prometheus cannot read it: %v", err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "flambeau_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

func TestFamiliesWithoutValues(t *testing.T) {
	m, _, _ := newMetrics(t, Options{Mode: ModePrometheus})
	got := text(t, m)
	for _, f := range slices.Concat(TorchServeCatalog().Server, TorchServeCatalog().Model) {
		want := fmt.Sprintf("# HELP %s Torchserve prometheus %s metric with unit: %s\n# TYPE %s %s\n", f.Name, f.Kind, f.Unit, f.Name, f.Kind)
		if !strings.Contains(got, want) {
			t.Errorf("missing: %s", want)
		}
	}
	if strings.Contains(got, "flambeau_") {
		t.Errorf("families of our own without values: %s", got)
	}
}

func TestNamesFilter(t *testing.T) {
	m, _, _ := newMetrics(t, Options{Mode: ModePrometheus})
	use(m)
	got := text(t, m, "Requests4XX", "nosuch", QueueTime)
	want := "# HELP Requests4XX Torchserve prometheus counter metric with unit: Count\n# TYPE Requests4XX counter\n" +
		"Requests4XX{Level=\"Host\",Hostname=\"vm\",} 1.0\n" +
		"# HELP QueueTime Torchserve prometheus gauge metric with unit: Milliseconds\n# TYPE QueueTime gauge\n" +
		"QueueTime{Level=\"Host\",Hostname=\"vm\",} 2.0\n"
	if got != want {
		t.Errorf("got %s", got)
	}
	if got := text(t, m, "nosuch"); got != "" {
		t.Errorf("got %s", got)
	}
}

func TestLogMode(t *testing.T) {
	m, server, model := newMetrics(t, Options{Mode: ModeLog, AutoDetect: true, State: func() []ModelState { panic("nobody asks") }})
	use(m)
	m.WorkerGone(infer.ModelRef{Name: "echo", Version: "1.0"}, 9000)
	m.Forget(infer.ModelRef{Name: "echo"})
	if got := text(t, m); got != "" {
		t.Errorf("/metrics is not empty: %s", got)
	}
	golden(t, "log.golden", strings.Join(server.all, "\n")+"\n--- model\n"+strings.Join(model.all, "\n")+"\n")
}

func TestLegacyMode(t *testing.T) {
	m, server, model := newMetrics(t, Options{Mode: ModeLegacy})
	use(m)
	golden(t, "legacy.golden", text(t, m)+"--- log\n"+strings.Join(server.all, "\n")+"\n--- model\n"+strings.Join(model.all, "\n")+"\n")
}

func TestModeIsChecked(t *testing.T) {
	if _, err := New(Options{Mode: "loud"}); err == nil || !strings.Contains(err.Error(), "loud") {
		t.Errorf("got %v", err)
	}
}

func TestUnlistedMetricsAreDropped(t *testing.T) {
	m, _, _ := newMetrics(t, Options{Mode: ModePrometheus, Catalog: Catalog{Server: []Family{{Requests2XX, unitCount, Counter, []string{"Level", "Hostname"}}}, Model: []Family{
		{"Cost", "EUR", Gauge, []string{"A", "B"}},
	}}})
	use(m)
	if !m.ModelLine("[METRICS]Cost.EUR:5|#B:b,A:a,C:c|#type:GAUGE|#hostname:w,1") {
		t.Error("not taken for a metric")
	}
	m.ModelLine("[METRICS]Cost.EUR:6|#B:b|#type:GAUGE|#hostname:w,1") // lacks a dimension
	got := text(t, m)
	if strings.Contains(got, "QueueTime") || strings.Contains(got, "Odd") || !strings.Contains(got, "Requests2XX{Level=\"Host\",Hostname=\"vm\",} 2.0\n") ||
		!strings.Contains(got, "Cost{A=\"a\",B=\"b\",Hostname=\"w\",} 5.0\n") {
		t.Errorf("got %s", got)
	}
}

func TestLabelBudget(t *testing.T) {
	m, _, _ := newMetrics(t, Options{Mode: ModePrometheus, LabelQuota: 3})
	for i := range 1000 {
		m.Predicted(Prediction{Ref: infer.ModelRef{Name: fmt.Sprint("unknown", i)}, Err: fault.New(fault.ModelNotFound, "no", nil)})
	}
	if got := text(t, m, InferenceRequests, Failures); strings.Contains(got, "unknown") || strings.Count(got, "\n") != 5 {
		t.Errorf("unknown models make series: %s", got)
	}
	for i := range 10 {
		m.Predicted(Prediction{Ref: infer.ModelRef{Name: fmt.Sprint("m", i)}})
	}
	if got := text(t, m, PredictionTime); strings.Count(got, "\n") != 2+3+1 || !strings.Contains(got, `ModelName="other"`) {
		t.Errorf("handlers' values beyond the budget: %s", got)
	}
	if got := text(t, m, InferenceRequests); strings.Count(got, "\n") != 2+3+1 || !strings.Contains(got, `{model_name="other",model_version="other",hostname="vm",} 7.0`) {
		t.Errorf("beyond the budget: %s", got)
	}
	m.Forget(infer.ModelRef{Name: "m1"})
	m.Forget(infer.ModelRef{Name: "m9"}) // had no series of its own
	m.Predicted(Prediction{Ref: infer.ModelRef{Name: "new"}})
	if got := text(t, m, InferenceRequests, RequestDuration, PredictionTime); strings.Contains(got, `"m1"`) || !strings.Contains(got, `{model_name="new",model_version="default",hostname="vm",} 1.0`) {
		t.Errorf("after forgetting: %s", got)
	}
}

func TestMadeUpMetricsAreBounded(t *testing.T) {
	m, _, _ := newMetrics(t, Options{Mode: ModePrometheus, AutoDetect: true})
	for i := range 2 * mostModelMetrics {
		m.ModelLine(fmt.Sprintf("[METRICS]M%d.count:1|#|#type:COUNTER|#hostname:vm,1", i))
	}
	if got := len(regexp.MustCompile(`# TYPE M\d+ `).FindAllString(text(t, m), -1)); got == 0 || got > mostModelMetrics {
		t.Errorf("%d metrics", got)
	}
}

func TestWorkerGone(t *testing.T) {
	m, _, _ := newMetrics(t, Options{Mode: ModePrometheus})
	v1 := infer.ModelRef{Name: "echo", Version: "1.0"}
	m.WorkerLoaded(v1, 9000, time.Second)
	m.WorkerLoaded(v1, 9001, time.Second)
	m.WorkerGone(v1, 9000)
	if got := text(t, m, WorkerLoadTime); strings.Contains(got, "W-9000") || !strings.Contains(got, `{WorkerName="W-9001-echo_1.0",Level="Host",Hostname="vm",} 1000.0`) {
		t.Errorf("got %s", got)
	}
}

func TestModelLine(t *testing.T) {
	m, _, model := newMetrics(t, Options{Mode: ModeLog, AutoDetect: true})
	for _, line := range []string{"", "hello", " [METRICS]A.b:1|#|#type:GAUGE|#hostname:h,1"} {
		if m.ModelLine(line) {
			t.Errorf("%q was taken for a metric", line)
		}
	}
	for _, line := range []string{
		"[METRICS]", "[METRICS]Failed to update metric with name:x", "[METRICS]A:1|#|#type:GAUGE|#hostname:h,1", "[METRICS]A.b:x|#|#type:GAUGE|#hostname:h,1",
		"[METRICS]A.b:1|#|#type:ODD|#hostname:h,1", "[METRICS]A.b:1|#|#hostname:h,1", "[METRICS]A b.c:1|#|#type:GAUGE|#hostname:h,1", "[METRICS]A.b:1|#x y:1|#type:GAUGE|#hostname:h,1",
		"[METRICS]A.b:1|#x:1,x:2|#type:GAUGE|#hostname:h,1",
	} {
		if !m.ModelLine(line) {
			t.Errorf("%q was not taken for a metric", line)
		}
	}
	if len(model.all) != 0 {
		t.Errorf("logged: %v", model.all)
	}
	m.ModelLine("[METRICS]a.b.ms:-1.5E3|#|#type:GAUGE|#hostname:,1,r\xff\n")
	m.ModelLine("[METRICS]Ok.ms:-1.5E3|#|#type:GAUGE|#hostname:,1,r\xff\n")
	if diff := cmp.Diff([]string{"Ok.ms:-1500.0|#|#hostname:vm,requestID:r\xff ,timestamp:T"}, model.all); diff != "" {
		t.Error(diff)
	}
}

func FuzzModelLine(f *testing.F) {
	f.Add("PredictionTime.ms:0.01|#ModelName:echo,Level:Model|#type:GAUGE|#hostname:vm,1795972601,a21f")
	f.Add("A.b:1|#x:|#type:counter|#hostname:h")
	f.Fuzz(func(t *testing.T, line string) {
		m, err := New(Options{Mode: ModePrometheus, AutoDetect: true, Hostname: "vm"})
		if err != nil {
			t.Fatal(err)
		}
		m.ModelLine(metricMark + line)
		var b bytes.Buffer
		if err := m.WriteText(&b, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := promlint.New(&b).Lint(); err != nil {
			t.Fatalf("%q makes a text that cannot be read: %v", line, err)
		}
	})
}

func TestJavaFloat(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0.0", 1: "1.0", -2.5: "-2.5", 0.01: "0.01", 0.001: "0.001", 0.0009: "9.0E-4", 9999999: "9999999.0", 1e7: "1.0E7", 12345678.5: "1.23456785E7", 1e-10: "1.0E-10", 27894.038: "27894.038",
		math.Inf(1): "+Inf", math.Inf(-1): "-Inf", 1e300: "1.0E300",
	} {
		if got := javaFloat(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
	if got := javaFloat(math.NaN()); got != "NaN" {
		t.Errorf("got %s", got)
	}
}

func TestParseCatalog(t *testing.T) {
	c, err := ParseCatalog([]byte(`
dimensions:
  - &host "Hostname"
ts_metrics:
  counter:
    - {name: Requests2XX, unit: Count, dimensions: [Level, *host]}
  gauge: []
model_metrics:
  histogram:
    - name: Sizes
      unit: B
`))
	want := Catalog{
		Server: []Family{{"Requests2XX", "Count", Counter, []string{"Level", "Hostname"}}},
		Model:  []Family{{"Sizes", "B", Histogram, nil}},
	}
	if diff := cmp.Diff(want, c); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	for _, bad := range []string{
		"ts_metrics: [", "ts_metrics: {counter: [{name: 'a b'}]}", "ts_metrics: {counter: [{name: a, dimensions: ['b-c']}]}",
		"ts_metrics: {counter: [{name: a}], gauge: [{name: a}]}", "model_metrics: {counter: [{name: a, dimensions: [b, b]}]}", "ts_metrics: {counter: [{}]}",
	} {
		if _, err := ParseCatalog([]byte(bad)); err == nil {
			t.Errorf("no error: %s", bad)
		}
	}
}

func TestSystemMetrics(t *testing.T) {
	proc := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(proc, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("stat", "cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 2 3\n")
	write("meminfo", "MemTotal:       4096 kB\nMemFree: 1 kB\nMemAvailable:   1024 kB\n")
	synctest.Test(t, func(t *testing.T) {
		m, _, _ := newMetrics(t, Options{Mode: ModePrometheus})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.CollectSystem(ctx, SystemOptions{Interval: time.Minute, Proc: proc}) }()
		synctest.Wait()
		got := text(t, m, CPUUtilization, MemoryUsed, MemoryAvailable, MemoryUtilization, DiskUsage, DiskAvailable, DiskUtilization)
		for _, want := range []string{
			"CPUUtilization{Level=\"Host\",Hostname=\"vm\",} 20.0\n", "MemoryUsed{Level=\"Host\",Hostname=\"vm\",} 3.0\n", "MemoryAvailable{Level=\"Host\",Hostname=\"vm\",} 1.0\n",
			"MemoryUtilization{Level=\"Host\",Hostname=\"vm\",} 75.0\n", "DiskUsage{", "DiskAvailable{", "DiskUtilization{",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("%q is missing in %s", want, got)
			}
		}
		write("stat", "cpu  150 0 100 750 100 0 0 0 50 0\n")
		<-time.After(time.Minute)
		synctest.Wait()
		if got := text(t, m, CPUUtilization); !strings.Contains(got, "} 50.0\n") {
			t.Errorf("since the last look: %s", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestPanicOfTheSystemMetrics costs one look at the machine.
func TestPanicOfTheSystemMetrics(t *testing.T) {
	proc := t.TempDir()
	for name, text := range map[string]string{"stat": "cpu  100 0 100 700 100 0 0 0 50 0\n", "meminfo": "MemTotal: 4096 kB\nMemAvailable: 1024 kB\n"} {
		if err := os.WriteFile(filepath.Join(proc, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		lines := 0
		m, err := New(Options{
			Mode: ModeLog, Hostname: "vm", Logger: slog.New(slog.NewTextHandler(&log, nil)), ModelLog: func(string) {},
			ServerLog: func(string) {
				if lines++; lines == 2 {
					panic("a bug of the log")
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.CollectSystem(ctx, SystemOptions{Interval: time.Minute, Proc: proc}) }()
		<-time.After(90 * time.Second)
		cancel()
		if err := <-done; err != nil || lines < 7 {
			t.Errorf("%v, %d lines", err, lines)
		}
		if n := strings.Count(log.String(), "level=ERROR"); n != 1 || !strings.Contains(log.String(), "panic while the machine was measured: a bug of the log") {
			t.Errorf("%d errors: %s", n, log.String())
		}
	})
}

func TestSystemMetricsThatCannotBeRead(t *testing.T) {
	proc := t.TempDir()
	for name, text := range map[string]string{"stat": "intr 1 2", "meminfo": "MemTotal: x"} {
		if err := os.WriteFile(filepath.Join(proc, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m, _, _ := newMetrics(t, Options{Mode: ModePrometheus})
	if _, err := m.collectOnce(SystemOptions{Proc: proc, Disk: proc + "/nowhere"}, cpuTimes{}); err == nil {
		t.Error("no error")
	}
	if _, err := m.collectOnce(SystemOptions{Proc: proc + "/nowhere", Disk: "/"}, cpuTimes{}); err == nil {
		t.Error("no error")
	}
	if got := text(t, m, CPUUtilization, MemoryUsed); strings.Contains(got, "{") {
		t.Errorf("values out of nothing: %s", got)
	}
	if err := m.CollectSystem(t.Context(), SystemOptions{}); err == nil {
		t.Error("no error without an interval")
	}
}

func TestConcurrentUse(t *testing.T) {
	m, _, _ := newMetrics(t, Options{Mode: ModePrometheus, AutoDetect: true, LabelQuota: 5})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 50 {
				ref := infer.ModelRef{Name: fmt.Sprint("m", (i+n)%10)}
				m.Predicted(Prediction{Ref: ref, Total: time.Millisecond})
				m.ModelLine(fmt.Sprintf("[METRICS]M%d.count:1|#A:b|#type:COUNTER|#hostname:vm,1", n%7))
				m.Forget(ref)
				text(t, m)
			}
		})
	}
	wg.Wait()
}
