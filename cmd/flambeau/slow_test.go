package main

import (
	"encoding/json"
	"strings"
	"testing"
)

const slowRequests = `{"requests": [
	{"id": "id-1", "model": "m", "version": "1.0", "arrived": "2026-01-02T03:07:00Z", "total_ms": 330.2, "waited_ms": 300, "gathered_ms": 10, "ran_ms": 20,
	 "batch": {"number": 13, "requests": ["id-1", "id-2"], "rows": 2, "worker": 9000, "pid": 77, "begun": "2026-01-02T03:07:00.310Z", "ran_ms": 20},
	 "behind": {"number": 12, "requests": ["id-0"], "rows": 1, "worker": 9000, "pid": 77, "begun": "2026-01-02T03:06:59.9Z", "ran_ms": 400},
	 "bytes_in": 12, "bytes_out": 3, "status": 0, "reason": "", "why": "queue 300ms behind batch 12 (1 request, 400ms in worker 9000)"},
	{"id": "id\u001b3", "model": "m", "version": "2.0", "arrived": "2026-01-02T03:06:00Z", "total_ms": 90, "waited_ms": 90, "gathered_ms": 0, "ran_ms": 0,
	 "batch": null, "behind": null, "bytes_in": 12, "bytes_out": 0, "status": 0, "reason": "client_timeout", "why": "queue 90ms, and no worker took it"}]}`

func TestSlow(t *testing.T) {
	t.Parallel()
	a := newAdminAPI(t)
	requireOutput(t, cli(a.env(), "slow", "m", "--limit", "5", "--since", "2m"), `WHEN     VERSION  TOTAL  WAITED  GATHERED  RAN    BATCH  REASON          ID    WHY
10s ago  1.0      330ms  300ms   10ms      20ms   2      -               id-1  queue 300ms behind batch 12 (1 request, 400ms in worker 9000)
1m ago   2.0      90ms   90ms    0.0ms     0.0ms  -      client_timeout  id?3  queue 90ms, and no worker took it
`)
	if request, _ := a.last(); request != "GET /admin/models/m/slow?limit=5&seconds=120" {
		t.Error(request)
	}
	var list []map[string]any
	if got := cli(a.env(), "slow", "m", "--json"); json.Unmarshal([]byte(got.stdout), &list) != nil || len(list) != 2 {
		t.Errorf("%+v", got)
	}
	for _, since := range []string{"x", "10", "0s", "10ms"} {
		if got := cli(a.env(), "slow", "m", "--since", since); got.status != exitUsage || !strings.Contains(got.stderr, "90s, 15m or 1h") {
			t.Errorf("--since %s: %+v", since, got)
		}
	}
	if got := cli(a.env(), "slow", "x"); got.status != exitFailed || got.stderr != "flambeau slow: error: Model not found: x\n" {
		t.Errorf("%+v", got)
	}
}

func TestTrace(t *testing.T) {
	t.Parallel()
	a := newAdminAPI(t)
	got := cli(a.env(), "trace", "id-1")
	if got.status != exitOK {
		t.Fatalf("%+v", got)
	}
	first, second, _ := strings.Cut(trimLines(got.stdout), "\n\n")
	for _, want := range []string{
		"request          id-1\n", "model            m 1.0\n", "outcome          answered\n", "bytes            12 in, 3 out\n", "  for a worker   300ms\n",
		"  for its batch  10ms\n", "  in the worker  20ms\n", "batch            number 13, worker 9000 (pid 77), 20ms: id-1 id-2\n",
		"behind           number 12, worker 9000 (pid 77), 400ms: id-0\n", "why              queue 300ms behind",
	} {
		if !strings.Contains(first, want) {
			t.Errorf("there is no %q in\n%s", want, first)
		}
	}
	if !strings.Contains(second, "failed: client_timeout\n") || strings.Contains(second, "batch  number") {
		t.Errorf("the second: %s", second)
	}
	if got := cli(a.env(), "trace", "none"); got.status != exitFailed || !strings.Contains(got.stderr, "not found") {
		t.Errorf("%+v", got)
	}
}
