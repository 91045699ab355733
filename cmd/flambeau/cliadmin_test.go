package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// adminAPI answers as a Flambeau does below /admin, and keeps what it was asked.
type adminAPI struct {
	url string

	mu      sync.Mutex // guards what follows
	asked   []string
	bodies  []string
	traffic string
	events  []string // answers to GET /admin/events, one after the other; the last one again and again
	broken  bool     // the server answers nothing that can be read
	models  string   // what is answered to GET /admin/models instead, "" for the usual
}

func newAdminAPI(t *testing.T) *adminAPI {
	t.Helper()
	a := &adminAPI{traffic: `{"labels": {}, "weights": {}}`, events: []string{`{"events": []}`}}
	srv := httptest.NewServer(a)
	t.Cleanup(srv.Close)
	a.url = srv.URL
	return a
}

const (
	digest1 = "sha256:0123456789abcdef0123"
	digest2 = "sha256:fedcba9876543210fedc"
)

func (a *adminAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	a.asked = append(a.asked, r.Method+" "+r.URL.RequestURI())
	a.bodies = append(a.bodies, string(body))
	if !strings.HasPrefix(r.Header.Get("User-Agent"), "flambeau-cli/") {
		w.WriteHeader(http.StatusTeapot)
		return
	}
	answers := map[string]string{
		"/admin/models": `{"models": [
			{"name": "m", "version": "1.0", "default": true, "state": "updating", "workers": {"ready": 2, "total": 3}, "queue": {"waiting": 1, "limit": 100}, "batch_size": 8,
			 "p99_ms": 20.4, "memory_bytes": 104857600, "since": "2026-01-02T03:04:05Z", "reason": "", "generation": 3, "digest": "` + digest1 + `", "source": "m.mar",
			 "updating": {"generation": 4, "digest": "` + digest2 + `", "since": "2026-01-02T03:07:00Z", "state": "loading"}, "last_failure": null},
			{"name": "m", "version": "2.0", "default": false, "state": "serving", "workers": {"ready": 1, "total": 1}, "queue": {"waiting": 0, "limit": 100}, "batch_size": 1,
			 "p99_ms": 1234.5, "memory_bytes": 0, "since": "2026-01-01T01:00:00Z", "reason": "", "updating": null,
			 "last_failure": {"at": "2026-01-02T03:06:00Z", "digest": "x", "reason": "no module\nnamed \u001b[31mx", "attempts": 2}},
			{"name": "bad\tname", "version": "1", "default": true, "state": "failed", "workers": {"ready": 0, "total": 1}, "queue": {"waiting": 0, "limit": 5}, "batch_size": 1,
			 "p99_ms": null, "memory_bytes": 0, "since": null, "reason": "ImportError: torch\n(handler.py:3)", "updating": null, "last_failure": null}]}`,
		"/admin/models/m/history": `{"history": [
			{"id": 1, "at": "2026-01-01T03:07:10Z", "model": "m", "version": "1.0", "kind": "registered", "generation": 1, "digest": "` + digest1 + `", "source": "m.mar", "who": "start", "why": "", "reason": "", "took_ms": 0, "steps": []},
			{"id": 9, "at": "2026-01-02T03:06:10Z", "model": "m", "version": "1.0", "kind": "swap_failed", "generation": 2, "digest": "` + digest2 + `", "source": "m.mar", "who": "store", "why": "m.mar changed", "reason": "boom\nbang", "took_ms": 61000, "steps": []}]}`,
		"/admin/store": `{"entries": [
			{"path": "m.mar", "kind": "mar", "state": "settled", "reason": "", "since": "2026-01-02T03:07:05Z", "bytes": 3145728, "model": "m", "version": "1.0", "digest": "` + digest1 + `", "decision": "serving", "why": ""},
			{"path": "n.mar", "kind": "mar", "state": "changing", "reason": "still growing: 12 bytes", "since": "2026-01-02T03:07:09Z", "bytes": 12, "model": "", "version": "", "digest": "", "decision": "", "why": ""}]}`,
		"/admin/models/m/slow": slowRequests,
		"/admin/requests/id-1": slowRequests,
		"/admin/models/m/poison": `{"poison": [
			{"version": "1.0", "digest": "0123456789abcdef", "bytes": 3, "deaths": 2, "first": "2026-01-02T03:06:00Z", "last": "2026-01-02T03:07:00Z",
			 "until": "2026-01-02T03:17:00Z", "how": "signal: aborted\ncore dumped", "id": "id\u001b1", "refused": true},
			{"version": "1.0", "digest": "ffffffff01234567", "bytes": 7, "deaths": 1, "first": "2026-01-02T03:06:00Z", "last": "2026-01-02T03:06:00Z",
			 "until": "2026-01-02T03:16:00Z", "how": "exit status 1", "id": "b", "refused": false}]}`,
		"DELETE /admin/models/m/poison": `{"lifted": 1}`,
		"/admin/models/m/tuning": `{"model": "m", "version": "1.0", "p99Ms": 80, "now": {"batchSize": 38, "maxBatchDelay": 2.5},
			"bounds": {"batchSize": 64, "maxBatchDelay": 100}, "frozen": false, "config": "batchSize: 38\nmaxBatchDelay: 3\n"}`,
		"/admin/models/seq/tuning": `{"model": "seq", "version": "1.0", "p99Ms": 80, "now": {"batchSize": 10, "maxBatchDelay": 2.5},
			"bounds": {"batchSize": 64, "maxBatchDelay": 100}, "frozen": true, "config": "batchSize: 10\nmaxBatchDelay: 3\n",
			"workers": [{"worker": 9000, "batchSize": 10, "maxBatchDelay": 100}, {"worker": 9001, "batchSize": 64, "maxBatchDelay": 2.5}]}`,
		"PUT /admin/models/m/tuning": `{"model": "m", "version": "1.0", "p99Ms": 80, "now": {"batchSize": 38, "maxBatchDelay": 2.5},
			"bounds": {"batchSize": 64, "maxBatchDelay": 100}, "frozen": true, "config": "batchSize: 38\nmaxBatchDelay: 3\n"}`,
		"POST /admin/models/m/rollback": `{"model": "m", "version": "1.0", "digest": "` + digest2 + `", "source": "m.mar"}`,
		"POST /admin/models/m/reload":   `{"status": "ok"}`,
		"/models/m/all": `[{"modelName": "m", "modelVersion": "1.0", "modelUrl": "m.mar", "batchSize": 8, "workers": [{"id": "9000", "startTime": "s", "status": "READY", "memoryUsage": 0, "pid": 7,
			"state": "ready", "reason": "", "restarts": 0}], "jobQueueStatus": {"remainingCapacity": 99, "pendingRequests": 1}, "default": true, "state": "updating", "reason": "",
			"generation": 3, "digest": "` + digest1 + `", "source": "m.mar", "since": "2026-01-02T03:04:05Z", "swap": "dual", "labels": ["canary", "stable"], "weight": 87.5,
			"updating": {"generation": 4, "digest": "` + digest2 + `", "since": "2026-01-02T03:07:00Z", "state": "loading"},
			"lastFailure": {"at": "2026-01-01T03:07:10Z", "digest": "` + digest2 + `", "reason": "boom", "attempts": 22},
			"steps": [{"name": "open", "tookMs": 4.2}, {"name": "load", "tookMs": 2500}]}]`,
	}
	switch path := r.URL.Path; {
	case a.broken:
		printf(w, "%s", `{"x": 1}`)
	case path == "/admin/models" && a.models != "":
		printf(w, "%s", a.models)
	case path == "/admin/models/m/traffic":
		if r.Method == http.MethodPut {
			a.traffic = string(body)
		}
		printf(w, "%s", a.traffic)
	case path == "/admin/events":
		printf(w, "%s", a.events[0])
		if len(a.events) > 1 {
			a.events = a.events[1:]
		}
	case r.Method == http.MethodGet && answers[path] != "":
		printf(w, "%s", answers[path])
	case answers[r.Method+" "+path] != "":
		printf(w, "%s", answers[r.Method+" "+path])
	case strings.HasPrefix(path, "/admin/models/off/"):
		w.Header().Set("X-Flambeau-Hint", "this server does not watch its model store")
		w.WriteHeader(http.StatusNotFound)
		printf(w, "%s", `{"code": 404, "type": "ResourceNotFoundException", "message": "Requested resource is not found, please refer to API document."}`)
	default:
		w.WriteHeader(http.StatusNotFound)
		printf(w, "%s", `{"code": 404, "type": "ModelNotFoundException", "message": "Model not found: x"}`)
	}
}

// with changes what it answers.
func (a *adminAPI) with(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

// last is the latest request and its body.
func (a *adminAPI) last() (request, body string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked[len(a.asked)-1], a.bodies[len(a.bodies)-1]
}

func (a *adminAPI) env() []string { return []string{"FLAMBEAU_URL=" + a.url} }

func requireOutput(t *testing.T, got outcome, want string) {
	t.Helper()
	if diff := cmp.Diff(outcome{exitOK, want, ""}, outcome{got.status, trimLines(got.stdout), got.stderr}, cmp.AllowUnexported(outcome{})); diff != "" {
		t.Error(diff)
	}
}

func TestPSOfAdmin(t *testing.T) {
	t.Parallel()
	a := newAdminAPI(t)
	requireOutput(t, cli(a.env(), "ps"), `NAME      VERSION  STATE     WORKERS  QUEUE  BATCH  P99   MEM      SINCE    REASON
m         1.0 *    updating  2/3      1/100  8      20ms  100 MiB  3m ago   generation 4 is loading, for 10s
m         2.0      serving   1/1      0/100  1      1.2s  -        26h ago  the update of 1m ago failed: no module; named ?[31mx
bad?name  1 *      failed    0/1      0/5    1      -     -        -        ImportError: torch; (handler.py:3)
`)
	var models []map[string]any
	got := cli(a.env(), "ps", "--json")
	if err := json.Unmarshal([]byte(got.stdout), &models); err != nil || len(models) != 3 || models[0]["p99_ms"] != 20.4 || models[0]["since"] != "2026-01-02T03:04:05Z" {
		t.Errorf("%v %+v", err, got)
	}
	a.with(func() { a.broken = true })
	if got := cli(a.env(), "ps"); got.status != exitFailed || !strings.Contains(got.stderr, "has no list of models") {
		t.Errorf("%+v", got)
	}
}

// TestPSOfSleepers: a version without workers says whether requests start one.
func TestPSOfSleepers(t *testing.T) {
	t.Parallel()
	a := newAdminAPI(t)
	a.with(func() {
		a.models = `{"models": [
			{"name": "m", "version": "1", "default": true, "state": "idle", "queue": {"limit": 5}, "batch_size": 1,
			 "reason": "scaled to zero after 5m without a request (keepAlive); the next one starts a worker"},
			{"name": "n", "version": "1", "default": true, "state": "idle", "queue": {"limit": 5}, "batch_size": 1, "reason": "it has no workers"}]}`
	})
	requireOutput(t, cli(a.env(), "ps"), `NAME  VERSION  STATE  WORKERS  QUEUE  BATCH  P99  MEM  SINCE  REASON
m     1 *      idle   0/0      0/5    1      -    -    -      scaled to zero after 5m without a request (keepAlive); the next one starts a worker
n     1 *      idle   0/0      0/5    1      -    -    -      it has no workers
`)
}

func TestShowOfAdmin(t *testing.T) {
	t.Parallel()
	a := newAdminAPI(t)
	requireOutput(t, cli(a.env(), "show", "m"), `m 1.0 *: updating
  generation    3, serves since 3m ago
  traffic       87.5 % of what names no version; labels: canary, stable
  source        m.mar
  digest        `+digest1+`
  swap          dual
  last load     open 4.2ms, load 2.5s; 2.5s in all
  updating      generation 4 (fedcba987654) is loading, since 10s ago
  last failure  24h ago, at the 22nd try of fedcba987654: boom
  modelUrl      m.mar
  batchSize     8
  waiting       1 of 100

  WORKER  PID  STATE  MEMORY  RESTARTS  STARTED
  9000    7    ready  -       0         s
`)
}

// TestOfDigest: an archive that is refused before it was read has no digest, and "at the 1st try" then names none.
func TestOfDigest(t *testing.T) {
	t.Parallel()
	for digest, want := range map[string]string{"": "", digest2: " of fedcba987654"} {
		if got := ofDigest(digest); got != want {
			t.Errorf("%q: %q", digest, got)
		}
	}
}

func TestHistoryAndStore(t *testing.T) {
	t.Parallel()
	a := newAdminAPI(t)
	requireOutput(t, cli(a.env(), "history", "m", "--limit", "7"), `ID  WHEN     MODEL  VERSION  WHAT         GEN  DIGEST        TOOK  WHO    DETAILS
1   24h ago  m      1.0      registered   1    0123456789ab  -     start  m.mar
9   1m ago   m      1.0      swap_failed  2    fedcba987654  1m    store  m.mar; m.mar changed; boom; bang
`)
	if request, _ := a.last(); request != "GET /admin/models/m/history?limit=7" {
		t.Error(request)
	}
	requireOutput(t, cli(a.env(), "store"), `PATH   KIND  STATE     SIZE   SINCE   MODEL  VERSION  DIGEST        DECISION  REASON
m.mar  mar   settled   3 MiB  5s ago  m      1.0      0123456789ab  serving   -
n.mar  mar   changing  12 B   1s ago  -      -        -             -         still growing: 12 bytes
`)
	for _, command := range []string{"store", "history m"} {
		var list []map[string]any
		if got := cli(a.env(), append(strings.Fields(command), "--json")...); json.Unmarshal([]byte(got.stdout), &list) != nil || len(list) != 2 {
			t.Errorf("%s: %+v", command, got)
		}
	}
	if got := cli(a.env(), "history", "x"); got.status != exitFailed || got.stderr != "flambeau history: error: Model not found: x\n" {
		t.Errorf("%+v", got)
	}
	if got := cli(a.env(), "history", "off"); got.status != exitFailed ||
		got.stderr != "flambeau history: error: Requested resource is not found, please refer to API document.\nflambeau history: error: this server does not watch its model store\n" {
		t.Errorf("%+v", got)
	}
}

func TestTorchServeHasNoAdmin(t *testing.T) {
	t.Parallel()
	env := []string{"FLAMBEAU_URL=" + managementAPI(t), "FLAMBEAU_TOKEN=secret"}
	for _, command := range []string{"events", "events --follow", "history m", "store", "reload m", "rollback m --yes", "traffic m"} {
		if got := cli(env, strings.Fields(command)...); got.status != exitFailed || !strings.Contains(got.stderr, "it is a TorchServe, or an older Flambeau") {
			t.Errorf("%s: %+v", command, got)
		}
	}
}

const oneEvent = `{"events": [{"id": 41, "at": "2026-01-02T03:07:00Z", "model": "m", "version": "", "kind": "traffic", "generation": 0, "digest": "", "source": "",
	"who": "cli (127.0.0.1)", "why": "", "reason": "label canary: 2.0", "took_ms": 0, "steps": []}]}`

func TestEvents(t *testing.T) {
	t.Parallel()
	a := newAdminAPI(t)
	requireOutput(t, cli(a.env(), "events"), "no events\n")
	a.with(func() { a.events = []string{oneEvent} })
	requireOutput(t, cli(a.env(), "events", "--model", "a b", "--kind", "swapped", "--after", "7", "--limit", "3"),
		`ID  WHEN     MODEL  VERSION  WHAT     GEN  DIGEST  TOOK  WHO              DETAILS
41  10s ago  m      -        traffic  -    -       -     cli (127.0.0.1)  label canary: 2.0
`)
	if request, _ := a.last(); request != "GET /admin/events?after=7&kind=swapped&limit=3&model=a+b" {
		t.Error(request)
	}
}

// untilText ends a context when a text was written.
type untilText struct {
	bytes.Buffer
	text string
	end  context.CancelFunc
}

func (u *untilText) Write(b []byte) (int, error) {
	n, err := u.Buffer.Write(b)
	if strings.Contains(u.String(), u.text) {
		u.end()
	}
	return n, err //nolint:wrapcheck // a buffer's
}

func TestFollow(t *testing.T) {
	t.Parallel()
	for _, asJSON := range []bool{false, true} {
		a := newAdminAPI(t)
		later := strings.ReplaceAll(strings.ReplaceAll(oneEvent, "41", "42"), `"traffic"`, `"swapped"`)
		a.events = []string{oneEvent, `{"events": []}`, later, `{"events": []}`}
		ctx, end := context.WithTimeout(t.Context(), 30*time.Second)
		out := &untilText{text: "swapped", end: end}
		var stderr bytes.Buffer
		p := &program{environ: a.env(), stdout: out, stderr: &stderr}
		args := []string{"flambeau", "events", "--follow", "--limit", "5"}
		if asJSON {
			args = append(args, "--json")
		}
		if status := p.run(ctx, args); status != exitOK || stderr.Len() > 0 {
			t.Errorf("%d %s", status, stderr.String())
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], "traffic") || !strings.Contains(lines[1], "swapped") {
			t.Errorf("%q", lines)
		}
		if asJSON && !json.Valid([]byte(lines[1])) {
			t.Errorf("no JSON: %s", lines[1])
		}
		a.mu.Lock()
		if diff := cmp.Diff([]string{"GET /admin/events?limit=5", "GET /admin/events?after=41&limit=1000"}, a.asked[:2]); diff != "" {
			t.Error(diff)
		}
		a.mu.Unlock()
	}
}

func TestRollback(t *testing.T) {
	t.Parallel()
	a := newAdminAPI(t)
	requireOutput(t, cli(a.env(), "rollback", "m/1.0", "--to", "fedc", "-y"), "m 1.0 serves fedcba987654 again (m.mar)\n")
	if request, _ := a.last(); request != "POST /admin/models/m/rollback?to=fedc&version=1.0" {
		t.Error(request)
	}
	if got := cli(a.env(), "rollback", "m", "--yes", "--json"); got.status != exitOK || !json.Valid([]byte(got.stdout)) {
		t.Errorf("%+v", got)
	}
	for answer, does := range map[string]bool{"y\n": true, "YES\n": true, "n\n": false, "": false, "\n": false} {
		a := newAdminAPI(t)
		var stdout, stderr bytes.Buffer
		p := &program{environ: a.env(), stdin: strings.NewReader(answer), stdout: &stdout, stderr: &stderr, now: func() time.Time { return time.Date(2026, 1, 2, 3, 7, 10, 0, time.UTC) }}
		status := p.run(t.Context(), []string{"flambeau", "rollback", "m"})
		request, _ := a.last()
		if asked := "m 1.0 serves 0123456789ab (m.mar) since 3m ago\ngo back to the archive before? [y/N] "; !strings.HasPrefix(stderr.String(), asked) {
			t.Errorf("asked %q", stderr.String())
		}
		if did := strings.HasPrefix(request, "POST"); did != does || (status == exitOK) != does {
			t.Errorf("%q: %d, %s", answer, status, request)
		}
	}
}

func TestReload(t *testing.T) {
	t.Parallel()
	a := newAdminAPI(t)
	requireOutput(t, cli(a.env(), "reload", "m"), "m serves what is in the model store\n")
	if got := cli(a.env(), "reload", "m", "--json"); got.stdout != "{\n  \"status\": \"ok\"\n}\n" {
		t.Errorf("%+v", got)
	}
}

func TestTrafficCommand(t *testing.T) {
	t.Parallel()
	a := newAdminAPI(t)
	requireOutput(t, cli(a.env(), "traffic", "m"), "m: all requests that name no version go to the default version\n")
	got := cli(a.env(), "traffic", "m", "--label", "stable=1.0", "--label", "canary=2.0", "--weight", "canary=12.345", "--weight", "3.0=20", "--sticky", "cookie:uid")
	requireOutput(t, got, `label   canary               2.0
label   stable               1.0
weight  3.0                  20 %
weight  canary               12.345 %
weight  the default version  67.655 %
header  x-flambeau-version
sticky  cookie:uid
`)
	tests := []struct{ args, body string }{
		{"--header X-V", `{"labels":{"canary":"2.0","stable":"1.0"},"weights":{"3.0":20,"canary":12.345},"header":"X-V","sticky":"cookie:uid"}`},
		{"--weight 3.0=0 --sticky none", `{"labels":{"canary":"2.0","stable":"1.0"},"weights":{"canary":12.345},"header":"X-V"}`},
		{"--label canary=", `{"labels":{"stable":"1.0"},"weights":{},"header":"X-V"}`},
		{"--clear --label next=3.0", `{"labels":{"next":"3.0"},"weights":{}}`},
		{"--clear", `{"labels":{},"weights":{}}`},
	}
	for _, tt := range tests {
		got := cli(a.env(), append([]string{"traffic", "m", "--json"}, strings.Fields(tt.args)...)...)
		request, body := a.last()
		var text bytes.Buffer
		if err := json.Compact(&text, []byte(got.stdout)); err != nil || got.status != exitOK || request != "PUT /admin/models/m/traffic" || body != tt.body || text.String() != body {
			t.Errorf("%s: %s %s, want %s; %+v", tt.args, request, body, tt.body, got)
		}
	}
}

func TestTexts(t *testing.T) {
	t.Parallel()
	p := &program{now: func() time.Time { return time.Unix(1e9, 0) }}
	for seconds, want := range map[int64]string{-5: "0s ago", 0: "0s ago", 59: "59s ago", 60: "1m ago", 3599: "59m ago", 7200: "2h ago", 47 * 3600: "47h ago", 48 * 3600: "2d ago"} {
		if got := p.ago(time.Unix(1e9-seconds, 0)); got != want {
			t.Errorf("%d s: %s, want %s", seconds, got, want)
		}
	}
	for ms, want := range map[float64]string{0: "0.0ms", .04: "0.0ms", 9.94: "9.9ms", 9.96: "10ms", 999: "999ms", 1000: "1.0s", 59_900: "59.9s", 61_000: "1m"} {
		if got := millisText(ms); got != want {
			t.Errorf("%v ms: %s, want %s", ms, got, want)
		}
	}
	for n, want := range map[int]string{1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 11: "11th", 12: "12th", 13: "13th", 21: "21st", 111: "111th"} {
		if got := ordinal(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
	if got := printable("a\x1b[1m\u009b\u202eb\né"); got != "a?[1m??b?é" {
		t.Errorf("%q", got)
	}
	if got := shortDigest("sha256:ab") + shortDigest("0123456789abcdef") + shortDigest(""); got != "ab0123456789ab" {
		t.Error(got)
	}
}
