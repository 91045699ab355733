package oipserver

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/frontend/batch"
	"github.com/flambeau-serve/flambeau/frontend/dispatch"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// traced are the requests of a trace file: for each its model, and the names of its timestamps.
func traced(t *testing.T, path string) (models []string, events [][]string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		ID         int
		Model      string `json:"model_name"`
		Version    any    `json:"model_version"`
		Timestamps []traceEvent
	}
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	for _, one := range all {
		if one.Model != "" {
			models = append(models, one.Model)
			continue
		}
		var names []string
		var last int64
		for _, e := range one.Timestamps {
			if e.NS < last {
				t.Errorf("%s goes back in time: %s", e.Name, text)
			}
			last = e.NS
			names = append(names, e.Name)
		}
		events = append(events, names)
	}
	return models, events
}

func TestTrace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.json")
	w := newWorld()
	s := serve(t, w, func(o *Options) { o.TraceFile = path })
	w.observe = func(id string) {
		s.Observed(dispatch.Observation{ID: id, Total: 3, Times: batch.Times{Queued: 1, Ran: 1}})
	}
	number := 0
	ask := func(model string, times int) {
		t.Helper()
		for range times {
			number++
			id := string(rune('a' + number))
			if _, err := s.Infer(t.Context(), infer.ModelRef{Name: model}, &Call{ID: id, Request: request(), Came: time.Now(), Front: "HTTP_RECV"}, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	set := func(model string, pairs ...string) {
		t.Helper()
		if err := s.ChangeTrace(model, settings(pairs...)); err != nil {
			t.Fatal(err)
		}
	}
	ask("adder", 2)
	set("adder", "trace_level", `["TIMESTAMPS"]`, "trace_rate", `"2"`, "trace_count", "3")
	ask("handler", 2) // not this one
	ask("adder", 3)   // one of them
	ask("adder", 9)   // two more, and then no more
	if got := s.TraceSettings("adder"); !cmp.Equal(got, TraceSettings{[]string{"TIMESTAMPS"}, "2", "0", "0", path, "triton"}) {
		t.Errorf("%+v", got)
	}
	if got := s.TraceSettings("").Level; !cmp.Equal(got, []string{"OFF"}) {
		t.Errorf("%v", got)
	}
	set("adder", "trace_level", "null", "trace_rate", "null", "trace_count", "null")
	set("", "trace_level", `["TIMESTAMPS"]`, "trace_rate", "1", "log_frequency", "2")
	ask("handler", 3)
	set("handler", "trace_level", `"OFF"`)
	ask("handler", 1)
	set("", "trace_level", "null")
	ask("adder", 1)
	if got := s.TraceSettings("adder"); got.Level[0] != "OFF" || got.Rate != "1" {
		t.Errorf("%+v", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s.tracer.writer = nil // closed already
	models, events := traced(t, path)
	if !cmp.Equal(models, []string{"adder", "adder", "adder"}) {
		t.Errorf("%v", models)
	}
	want := []string{"HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END", "REQUEST_END"}
	if diff := cmp.Diff(want, events[0]); diff != "" {
		t.Error(diff)
	}
	for file, count := range map[string]int{path + ".0": 2, path + ".1": 1} {
		if models, _ := traced(t, file); len(models) != count {
			t.Errorf("%s: %v", file, models)
		}
	}
}

func TestTraceSettings(t *testing.T) {
	s := serve(t, newWorld(), func(o *Options) { o.TraceFile = filepath.Join(t.TempDir(), "trace") })
	for _, tc := range [][2]string{
		{"trace_level", `["TENSORS"]`},
		{"trace_level", `["LOUD"]`},
		{"trace_level", "1"},
		{"trace_rate", "0"},
		{"trace_rate", `"x"`},
		{"trace_count", "-2"},
		{"log_frequency", "-1"},
		{"trace_file", `"/etc/passwd"`},
		{"trace_mode", `"opentelemetry"`},
		{"zz", "1"},
		{"trace_rate", "1e3"},
		{"trace_rate", "99999999999"},
	} {
		wantRefused(t, s.ChangeTrace("", settings(tc[0], tc[1])), "")
	}
	if err := s.ChangeTrace("", settings("trace_file", `"`+s.opts.TraceFile+`"`, "trace_mode", `"triton"`)); err != nil {
		t.Errorf("what it is already: %v", err)
	}
	off := serve(t, newWorld())
	wantRefused(t, off.ChangeTrace("", settings("trace_level", `["TIMESTAMPS"]`)), "trace file name is not given")
	if err := off.ChangeTrace("adder", settings("trace_level", `["OFF"]`)); err != nil {
		t.Error(err)
	}
}
