package httpapi

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/httpapi/token"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// state sets how a model of a fixture is.
func (f *fixture) state(name, state, reason string, workers ...bool) {
	f.models.mu.Lock()
	defer f.models.mu.Unlock()
	d := f.models.find(infer.ModelRef{Name: name})
	d.State, d.Reason, d.MinWorkers, d.Workers = state, reason, max(len(workers), 1), nil
	for i, ready := range workers {
		d.Workers = append(d.Workers, rollout.Worker{ID: i, Ready: ready})
	}
	if len(workers) == 0 {
		d.MinWorkers = 0
	}
}

func TestReadyz(t *testing.T) {
	f := serve(t)
	any1 := serve(t, func(o *Options) { o.Readiness.Any = true })
	listed := serve(t, func(o *Options) { o.Readiness.Names = []string{"echo", "absent"} })
	for _, tc := range []struct {
		name string
		f    *fixture
		set  func(*fixture)
		path string
		want int
		text string
	}{
		{"all ready", f, func(*fixture) {}, "/readyz", 200, `{"status":"ready"}`},
		{"one worker of two", f, func(f *fixture) { f.state("echo", "degraded", "it died", true, false) }, "/readyz", 200, `{"status":"ready"}`},
		{"no worker", f, func(f *fixture) { f.state("echo", "failed", "no weights", false) }, "/readyz", 503, `{"status":"not ready","reason":"models"}`},
		{"the reason", f, nil, "/readyz?verbose", 503, `"name":"echo","version":"1.0","ready":false,"counts":true,"state":"failed","workers":{"ready":0,"wanted":1},"reason":"no weights"`},
		{"that model", f, nil, "/readyz?model=echo", 503, `{"status":"not ready","reason":"models"}`},
		{"its version", f, nil, "/readyz?model=echo&version=1.0&verbose", 503, `"draining":false,"models":[{"name":"echo"`},
		{"another model", f, nil, "/readyz?model=faults", 200, `{"status":"ready"}`},
		{"no such model", f, nil, "/readyz?model=nope", 404, `Model not found: nope`},
		{"no such version", f, nil, "/readyz?model=echo&version=9", 404, `Model version: 9 does not exist`},
		{"it is to have no workers", f, func(f *fixture) { f.state("echo", "idle", "") }, "/readyz", 200, `{"status":"ready"}`},
		{"and cannot be asked", f, nil, "/readyz?model=echo", 503, `not ready`},
		{"any, one is", any1, func(f *fixture) { f.state("echo", "failed", "", false) }, "/readyz", 200, `{"status":"ready"}`},
		{"any, none is", any1, func(f *fixture) {
			for _, name := range []string{"echo", "ctxinfo", "respond", "faults", "describer"} {
				f.state(name, "failed", "", false)
			}
		}, "/readyz", 503, `"reason":"models"`},
		{"a listed one is not loaded", listed, func(f *fixture) { f.state("faults", "failed", "", false) }, "/readyz?verbose", 503, `"name":"absent","version":"","ready":false,"counts":true,"state":"not loaded"`},
	} {
		if tc.set != nil {
			tc.set(tc.f)
		}
		for _, port := range []Port{Inference, Management, MetricsPort, Joint} {
			r := do(t, tc.f.addr[port], "GET", tc.path, "")
			var compact strings.Builder
			for line := range strings.SplitSeq(r.body, "\n") {
				compact.WriteString(strings.ReplaceAll(strings.TrimSpace(line), `": `, `":`))
			}
			if r.status != tc.want || !strings.Contains(compact.String(), tc.text) || !json.Valid([]byte(r.body)) {
				t.Errorf("%s, %s: %d %s, want %d with %s", tc.name, port, r.status, compact.String(), tc.want, tc.text)
			}
		}
	}
}

func TestDrainingIsNotReady(t *testing.T) {
	drain := &fakeDrain{}
	drain.Begin()
	f := serve(t, func(o *Options) { o.Admin = &Admin{Drain: drain} })
	if r := do(t, f.addr[Inference], "GET", "/readyz", ""); r.status != 503 || !strings.Contains(r.body, `"draining"`) {
		t.Errorf("%d %s", r.status, r.body)
	}
	for _, path := range []string{"/livez", "/startupz"} {
		if r := do(t, f.addr[Inference], "GET", path, ""); r.status != 200 {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
}

func TestStartupz(t *testing.T) {
	f := serve(t)
	f.state("echo", "deploying", "", false)
	if r := do(t, f.addr[Inference], "GET", "/startupz", ""); r.status != 503 || !strings.Contains(r.body, `"starting"`) {
		t.Errorf("%d %s", r.status, r.body)
	}
	f.state("echo", "failed", "no weights", false)
	for range 2 {
		if r := do(t, f.addr[Inference], "GET", "/startupz", ""); r.status != 200 || !strings.Contains(r.body, `"started"`) {
			t.Errorf("what has failed is no reason to wait: %d %s", r.status, r.body)
		}
		f.state("faults", "deploying", "", false) // a later one
	}
}

func TestProbesNeedNoKey(t *testing.T) {
	keys, err := token.New(token.Options{Dir: t.TempDir(), Expiration: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	f := serve(t, func(o *Options) { o.Keys = keys })
	for path, want := range map[string]int{
		"/livez": 200, "/readyz": 200, "/startupz": 200, "/readyz?verbose": 400, "/readyz?model=echo": 400, "/livez/x": 400, "/readyz/echo": 400,
	} {
		for _, port := range []Port{Inference, Management, Joint} {
			if r := do(t, f.addr[port], "GET", path, ""); r.status != want {
				t.Errorf("%s %s: %d %s", port, path, r.status, r.body)
			}
		}
	}
	if r := do(t, f.addr[Inference], "POST", "/livez", ""); r.status != 405 {
		t.Errorf("POST: %d", r.status)
	}
	if r := do(t, f.addr[Inference], "HEAD", "/livez", ""); r.status != 200 || r.body != "" {
		t.Errorf("HEAD: %d %q", r.status, r.body)
	}
}
