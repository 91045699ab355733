package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// held is a handler that loads once a file is gone, and fails to load while another one is there.
const held = `import os
import time

hold, broken = %q, %q
while os.path.exists(hold):
    time.sleep(0.05)
if os.path.exists(broken):
    raise RuntimeError("flaky is broken")


def handle(data, ctx):
    return [str(os.getpid())] * len(data or [])
`

// gates are the files of a held handler.
type gates struct{ hold, broken string }

func (g gates) archive(name, config string) Archive {
	return Archive{Name: name, Handler: fmt.Sprintf(held, g.hold, g.broken), Config: config}
}

func shut(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// probed is what the probes say at one moment.
type probed struct {
	Live, Ready int
	Models      map[string]int
}

// probe asks for everything once. For goroutines: an error is the test's.
func (s *Server) probe(ctx context.Context, t *testing.T, models ...string) probed {
	t.Helper()
	status := func(path string) int {
		answer, err := s.Ask(ctx, http.MethodGet, s.Inference+path, nil)
		if err != nil && ctx.Err() == nil {
			t.Errorf("%s: %v", path, err)
		}
		return answer.Status
	}
	p := probed{Live: status("/livez"), Ready: status("/readyz"), Models: map[string]int{}}
	for _, name := range models {
		p.Models[name] = status("/readyz?model=" + name)
	}
	return p
}

// watchLiveness asks every 200 ms until the test's end, or until the result is called: the server has to be live each time.
func (s *Server) watchLiveness(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var watch sync.WaitGroup
	watch.Go(func() {
		for ctx.Err() == nil {
			if p := s.probe(ctx, t); p.Live != http.StatusOK && ctx.Err() == nil {
				t.Errorf("liveness: status %d", p.Live)
			}
			Pause(ctx, 200*time.Millisecond)
		}
	})
	stop = func() {
		cancel()
		watch.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// TestHealthIsHonest follows three models, one that loads slowly and one whose worker is killed, comes back, and at last does not: what the probes say is what a
// request meets, and liveness is never in doubt.
func TestHealthIsHonest(t *testing.T) {
	box := NewBox(t)
	at := func(name string) string { return filepath.Join(box.Dir, name) }
	slow, flaky := gates{at("slow.hold"), at("slow.broken")}, gates{at("flaky.hold"), at("flaky.broken")}
	shut(t, slow.hold)
	for _, a := range []Archive{{Name: "good", Handler: good}, slow.archive("slowload", ""), flaky.archive("flaky", "maxRetryTimeoutInSec: 3\n")} {
		box.Put(t, a.Name+".mar", a.Bytes(t))
	}
	s := box.Start(t, Options{Command: []string{"flambeau", "serve", "--model-store", box.Store}})
	stop := s.watchLiveness(t)
	// With a limit of a second or two the request of a model that is not ready is not answered well; one of a model that is ready has all the time of a busy machine.
	require := func(when string, ready bool, models map[string]bool) {
		t.Helper()
		names := []string{}
		for name := range models {
			names = append(names, name)
		}
		want, last := probed{Live: http.StatusOK, Ready: http.StatusServiceUnavailable, Models: map[string]int{}}, probed{}
		if ready {
			want.Ready = http.StatusOK
		}
		for name, ready := range models {
			if want.Models[name] = http.StatusServiceUnavailable; ready {
				want.Models[name] = http.StatusOK
			}
		}
		if !Eventually(startLimit, func() bool {
			last = s.probe(t.Context(), t, names...)
			return fmt.Sprint(last) == fmt.Sprint(want)
		}) {
			t.Errorf("%s: %+v, want %+v", when, last, want)
		}
		for name, ready := range models {
			limit := "1"
			if ready {
				limit = "60"
			}
			if a := s.predict(t, name, octets, "x", "X-Request-Timeout", limit); (a.Status == http.StatusOK) != ready {
				t.Errorf("%s: ready is %v of %s, and a request has status %d: %s", when, ready, name, a.Status, a.Body)
			}
		}
	}
	require("while one loads", false, map[string]bool{"good": true, "slowload": false, "flaky": true})
	open(t, slow.hold)
	require("when all are loaded", true, map[string]bool{"good": true, "slowload": true, "flaky": true})

	kill := func() {
		t.Helper()
		pid, err := strconv.Atoi(string(s.predict(t, "flaky", octets, "x").Body))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	shut(t, flaky.hold)
	kill()
	require("when a worker was killed", false, map[string]bool{"good": true, "flaky": false})
	for _, w := range s.described(t, "flaky").Workers {
		if w.Status == "READY" || w.State == "ready" {
			t.Errorf("the killed worker is described as %+v", w)
		}
	}
	open(t, flaky.hold)
	require("when it is back", true, map[string]bool{"good": true, "flaky": true})

	shut(t, flaky.broken)
	kill()
	require("when it does not come back", false, map[string]bool{"good": true, "flaky": false})
	if !Eventually(startLimit, func() bool { return s.described(t, "flaky").Workers[0].State == "failed" }) {
		t.Errorf("its restarts have no end: %+v", s.described(t, "flaky"))
	}
	require("when it was given up", false, map[string]bool{"good": true, "flaky": false})
	requirePing(t, s, http.StatusInternalServerError, "Unhealthy")
	s.MustAsk(t, http.StatusOK, http.MethodDelete, s.Management+"/models/flaky", nil)
	require("without it", true, map[string]bool{"good": true, "slowload": true})
	requirePing(t, s, http.StatusOK, "Healthy")
	stop()
}

// requirePing has TorchServe's form, whatever the state.
func requirePing(t *testing.T, s *Server, status int, word string) {
	t.Helper()
	a := s.MustAsk(t, status, http.MethodGet, s.Inference+"/ping", nil)
	var told map[string]any
	if err := json.Unmarshal(a.Body, &told); err != nil || told["status"] != word && !strings.Contains(string(a.Body), word) {
		t.Errorf("/ping: %v: %s, want %s", err, a.Body, word)
	}
}

const measuring = `def handle(data, ctx):
    if data is None:
        return None
    ctx.metrics.add_counter("cats", 2)
    ctx.metrics.add_time("prep", 12.5)
    if data[0]["body"].get("bad"):
        raise ValueError()
    return ["ok"] * len(data)
`

// sample is a line of Prometheus' text format.
type sample struct {
	name, labels string
	value        float64
}

// metrics are the server's; what is no text in Prometheus' format fails the test.
func (s *Server) metrics(t *testing.T) []sample {
	t.Helper()
	var all []sample
	typed := map[string]bool{}
	for line := range strings.Lines(string(s.MustAsk(t, http.StatusOK, http.MethodGet, s.Metrics+"/metrics", nil).Body)) {
		line = strings.TrimSuffix(line, "\n")
		if fields := strings.Fields(line); strings.HasPrefix(line, "# TYPE ") && len(fields) == 4 {
			typed[fields[2]] = true
			continue
		}
		if strings.HasPrefix(line, "# HELP ") {
			continue
		}
		space := strings.LastIndexByte(line, ' ')
		if space < 0 {
			t.Fatalf("a line of the metrics: %q", line)
		}
		value, err := strconv.ParseFloat(line[space+1:], 64)
		name, labels, labelled := strings.Cut(line[:space], "{")
		base := name
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if cut, is := strings.CutSuffix(name, suffix); is && typed[cut] {
				base = cut
			}
		}
		if err != nil || !typed[base] || labelled && !strings.HasSuffix(labels, "}") {
			t.Fatalf("a line of the metrics: %q, %v", line, err)
		}
		all = append(all, sample{name, labels, value})
	}
	return all
}

// valueOf adds up the samples of a name whose labels have all the words.
func valueOf(all []sample, name string, words ...string) (sum float64, found int) {
	for _, s := range all {
		if s.name == name && !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(s.labels, word) }) {
			sum += s.value
			found++
		}
	}
	return sum, found
}

// TestMetricsWithoutSettings reads what there is without any configuration of metrics: requests by their outcome, times, queue, workers, and what the handler
// counts, also for the request that failed. A thousand names of models that are not there add nothing.
func TestMetricsWithoutSettings(t *testing.T) {
	box := NewBox(t)
	box.Put(t, "m.mar", Archive{Name: "m", Handler: measuring}.Bytes(t))
	s := box.Start(t, Options{Command: []string{"flambeau", "serve", "--model-store", box.Store}})
	for _, bad := range []bool{false, true, false, false} {
		status := http.StatusOK
		if bad {
			status = http.StatusServiceUnavailable
		}
		if a := s.predict(t, "m", asJSON, fmt.Sprintf(`{"bad": %v}`, bad)); a.Status != status {
			t.Errorf("bad is %v: status %d: %s", bad, a.Status, a.Body)
		}
	}
	require := func(want float64, name string, words ...string) {
		t.Helper()
		var got float64
		var found int
		if !Eventually(startLimit, func() bool {
			got, found = valueOf(s.metrics(t), name, words...)
			return got == want && found > 0
		}) {
			t.Errorf("%s with %q: %v in %d samples, want %v", name, words, got, found, want)
		}
	}
	version := []string{`model="m"`, `version="1.0"`}
	require(3, "flambeau_request_duration_seconds_count", version...)
	require(3, "flambeau_queue_duration_seconds_count", version...)
	require(3, "flambeau_request_duration_seconds_bucket", append(version, `le="+Inf"`)...)
	require(1, "flambeau_request_failures_total", append(version, `reason="handler_failed"`)...)
	require(4, "ts_inference_requests_total", `model_name="m"`)
	require(1, "Requests5XX")
	require(0, "flambeau_queue_depth", version...)
	require(1, "flambeau_workers", append(version, `state="ready"`)...)
	require(8, "cats", `ModelName="m"`)
	require(12.5, "prep", `ModelName="m"`)

	before := len(s.metrics(t))
	for n := range 1000 {
		if a := s.predict(t, "nobody-"+strconv.Itoa(n), octets, "x"); a.Status != http.StatusNotFound {
			t.Fatalf("a model that is not there: status %d: %s", a.Status, a.Body)
		}
	}
	after := s.metrics(t)
	if len(after) > before+20 {
		t.Errorf("%d samples before a thousand unknown names, and %d after them", before, len(after))
	}
	for _, one := range after {
		if strings.Contains(one.labels, "nobody-") {
			t.Errorf("an unknown name is in the metrics: %+v", one)
		}
	}
}
