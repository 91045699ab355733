package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/frontend/httpapi/token"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// fakeAdmin is everything behind /admin, in memory.
type fakeAdmin struct {
	mu       sync.Mutex
	traffic  map[string]rollout.Traffic
	filters  []EventFilter
	limits   []int
	events   []Event
	entries  []StoreEntry
	calls    []string
	actors   []rollout.Actor
	deadline bool
}

func (f *fakeAdmin) options() *Admin {
	return &Admin{Latency: f, Traffic: f, Journal: f, Store: f}
}

func (f *fakeAdmin) Latency(ref infer.ModelRef) (p50, p99 time.Duration, n int) {
	if ref.Name != "echo" {
		return 0, 0, 0
	}
	return 1500 * time.Microsecond, 20 * time.Millisecond, 7
}

func (f *fakeAdmin) Traffic(name string) (rollout.Traffic, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if name == "nomodel" {
		return rollout.Traffic{}, fault.Newf(fault.ModelNotFound, "Model not found: %s", name)
	}
	return f.traffic[name], nil
}

func (f *fakeAdmin) SetTraffic(ctx context.Context, name string, t rollout.Traffic) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note(ctx, "traffic "+name)
	if t.Sticky == "bad" {
		return fault.New(fault.BadRequest, "sticky is bad", nil)
	}
	f.traffic[name] = t
	return nil
}

func (f *fakeAdmin) Events(filter EventFilter) []Event {
	f.filters = append(f.filters, filter)
	return f.events
}

func (f *fakeAdmin) History(model string, limit int) []Event {
	f.limits = append(f.limits, limit)
	if model == "echo" || model == "bygone" {
		return f.events
	}
	return nil
}

func (f *fakeAdmin) Entries() []StoreEntry { return f.entries }

func (f *fakeAdmin) Reload(ctx context.Context, model string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note(ctx, "reload "+model)
	if model == "nomodel" {
		return fault.Newf(fault.ModelNotFound, "Model not found: %s", model)
	}
	return nil
}

func (f *fakeAdmin) Rollback(ctx context.Context, model, version, to string) (RolledBack, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note(ctx, fmt.Sprintf("rollback %s %q %q", model, version, to))
	if to == "none" {
		return RolledBack{}, fault.New(fault.Conflict, "there is no earlier archive", nil)
	}
	return RolledBack{Model: model, Version: "1.0", Digest: "sha256:ab", Source: "echo.mar"}, nil
}

// note keeps who called; f.mu is held.
func (f *fakeAdmin) note(ctx context.Context, call string) {
	f.calls, f.actors = append(f.calls, call), append(f.actors, rollout.ActorOf(ctx))
	_, f.deadline = ctx.Deadline()
}

func serveAdmin(t *testing.T, change ...func(*Options)) (*fixture, *fakeAdmin) {
	t.Helper()
	admin := &fakeAdmin{traffic: map[string]rollout.Traffic{}}
	return serve(t, append(change, func(o *Options) { o.Admin = admin.options() })...), admin
}

func TestAdminModels(t *testing.T) {
	f, _ := serveAdmin(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	f.models.mu.Lock()
	f.models.models = f.models.models[:2] // echo and ctxinfo
	d := f.models.find(infer.ModelRef{Name: "echo"})
	d.State, d.Since, d.Generation, d.Digest, d.Source, d.Swap, d.Labels, d.Weight = "updating", at, 3, "sha256:ab", "echo.mar", "dual", []string{"stable"}, 90
	d.Updating = &rollout.Update{Generation: 4, Digest: "sha256:cd", Since: at, State: "loading"}
	d.LastFailure = &rollout.Failure{At: at, Digest: "sha256:cd", Reason: "no <module>", Attempts: 2}
	d.Steps = []rollout.Step{{Name: "load", Took: 1234567 * time.Microsecond}}
	d.Workers = append(d.Workers, rollout.Worker{Memory: 5}, rollout.Worker{Memory: 7})
	f.models.mu.Unlock()
	f.predictor.waiting = 4
	golden(t, "admin-models.golden", do(t, f.addr[Management], "GET", "/admin/models", "").body)
	f.check(t, Management, []exchange{
		{"GET", "/models/echo?details=true", 200, `"since":"2026-01-02T02:04:05Z","swap":"dual","labels":["stable"],"weight":90,"updating":{"generation":4,"digest":"sha256:cd",` +
			`"since":"2026-01-02T02:04:05Z","state":"loading"},"lastFailure":{"at":"2026-01-02T02:04:05Z","digest":"sha256:cd","reason":"no <module>","attempts":2},` +
			`"steps":[{"name":"load","tookMs":1234.567}]`},
	})
}

func TestAdminRoutes(t *testing.T) {
	f, admin := serveAdmin(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	admin.events = []Event{{ID: 7, At: at, Model: "echo", Version: "1.0", Kind: "swapped", Generation: 2, Digest: "d", Source: "s", Who: "store", Why: "w", Reason: "r"}}
	const event = `[{"id":7,"at":"2026-01-02T03:04:05Z","model":"echo","version":"1.0","kind":"swapped","generation":2,"digest":"d","source":"s","who":"store","why":"w",` +
		`"reason":"r","took_ms":0,"steps":[]}]}`
	list := []exchange{
		{"GET", "/admin/models/", 200, `{"models":[{"name":"ctxinfo"`},
		{"GET", "/admin/models?x=1", 400, `"message":"Parameter x is not known here."`},
		{"GET", "/admin/models?a=%zz", 403, `"type":"IllegalArgumentException"`},
		{"POST", "/admin/models", 405, noMethod},
		{"OPTIONS", "/admin/models", 405, noMethod},
		{"HEAD", "/admin/models", 405, ""},
		{"GET", "/admin", 404, noRoute},
		{"GET", "/admin/nope", 404, noRoute},
		{"GET", "/admin/models/echo", 404, noRoute},
		{"GET", "/admin/models/echo/nope", 404, noRoute},
		{"GET", "/admin/models/echo/history/x", 404, noRoute},
		{"GET", "/adminx/models", 404, noRoute},
		{"GET", "/admin/events", 200, `{"events":` + event},
		{"GET", "/admin/events?model=m&version=1&kind=swapped&after=18446744073709551&limit=1000", 200, `{"events":` + event},
		{"GET", "/admin/events?limit=0", 400, `"message":"Parameter limit is 0: it can be from 1 to 1000."`},
		{"GET", "/admin/events?limit=1001", 400, `it can be from 1 to 1000`},
		{"GET", "/admin/events?limit=x", 400, `"message":"Parameter limit is \"x\": it has to be a whole number, 0 or more."`},
		{"GET", "/admin/events?after=-1", 400, `Parameter after is \"-1\"`},
		{"GET", "/admin/events?models=m", 400, `Parameter models is not known here`},
		{"GET", "/admin/events?model=m&model=n", 400, `Parameter model is given twice`},
		{"DELETE", "/admin/events", 405, noMethod},
		{"GET", "/admin/models/echo/history", 200, `{"history":` + event},
		{"GET", "/admin/models/bygone/history?limit=3", 200, `{"history":` + event},
		{"GET", "/admin/models/respond/history", 200, `{"history":[]}`},
		{"GET", "/admin/models/nomodel/history", 404, noModel},
		{"PUT", "/admin/models/echo/history", 405, noMethod},
		{"GET", "/admin/store", 200, `{"entries":[]}`},
		{"POST", "/admin/store", 405, noMethod},
		{"GET", "/admin/store?limit=3", 400, "not known"},
		{"POST", "/admin/models/echo/reload", 200, `{"status":"Model \"echo\" serves what is in the model store"}`},
		{"POST", "/admin/models/nomodel/reload", 404, noModel},
		{"GET", "/admin/models/echo/reload", 405, noMethod},
		{"POST", "/admin/models/echo/reload?now=1", 400, "not known"},
		{"POST", "/admin/models/echo/rollback", 200, `{"model":"echo","version":"1.0","digest":"sha256:ab","source":"echo.mar","from_version":"","from_digest":""}`},
		{"POST", "/admin/models/echo/rollback?version=1.0&to=abc", 200, `"digest":"sha256:ab"`},
		{"POST", "/admin/models/echo/rollback?to=none", 409, `"message":"there is no earlier archive"`},
		{"POST", "/admin/models/echo/rollback?digest=ab", 400, "not known"},
		{"GET", "/admin/models/echo/rollback", 405, noMethod},
		{"GET", "/admin/models/nomodel/traffic", 404, noModel},
		{"DELETE", "/admin/models/echo/traffic", 405, noMethod},
		{"GET", "/admin/models/echo/traffic?x", 400, "not known"},
	}
	f.check(t, Management, list)
	f.check(t, Joint, list)
	f.check(t, Inference, []exchange{{"GET", "/admin/models", 404, noRoute}, {"POST", "/admin/models/echo/rollback", 404, noRoute}})
	f.check(t, MetricsPort, []exchange{{"GET", "/admin/models", 404, noRoute}})
	f.check(t, Joint, []exchange{{"POST", "/admin/predict", 404, `Model not found: admin`}}) // as in TorchServe
	if diff := cmp.Diff([]EventFilter{{Limit: 100}, {Model: "m", Version: "1", Kind: "swapped", After: 18446744073709551, Limit: 1000}}, admin.filters[:2]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]int{100, 3, 100, 100}, admin.limits[:4]); diff != "" {
		t.Error(diff)
	}
	want := []string{"reload echo", "reload nomodel", `rollback echo "" ""`, `rollback echo "1.0" "abc"`, `rollback echo "" "none"`}
	if diff := cmp.Diff(want, admin.calls[:5]); diff != "" || !admin.deadline {
		t.Error(diff)
	}
}

func TestAdminTraffic(t *testing.T) {
	f, admin := serveAdmin(t)
	put := func(body string, header ...string) reply {
		return do(t, f.addr[Management], "PUT", "/admin/models/echo/traffic", body, header...)
	}
	r := put(`{"labels": {"canary": "2.0"}, "weights": {"canary": 12.5}, "header": "X-V", "sticky": "cookie:uid"}`, "User-Agent: flambeau-cli/1.0")
	want := rollout.Traffic{Labels: map[string]string{"canary": "2.0"}, Weights: map[string]float64{"canary": 12.5}, Header: "X-V", Sticky: "cookie:uid"}
	var got rollout.Traffic
	if err := json.Unmarshal([]byte(r.body), &got); err != nil || r.status != 200 {
		t.Fatalf("%v %+v", err, r)
	}
	if diff := cmp.Diff(want, got) + cmp.Diff(want, admin.traffic["echo"]); diff != "" {
		t.Error(diff)
	}
	if r := do(t, f.addr[Management], "GET", "/admin/models/echo/traffic", ""); compact(r.body) != `{"labels":{"canary":"2.0"},"weights":{"canary":12.5},"header":"X-V","sticky":"cookie:uid"}` {
		t.Error(r.body)
	}
	for body, says := range map[string]string{
		"": "it is empty", "null": "it is null", "[]": "it is an array and has to be an object", `{"weight": {}}`: `the member \"weight\" is not known`,
		`{"weights": {"a": "x"}}`: `\"weights\" is a string and has to be a number`, `{} {}`: "something follows the object", `{"sticky": "bad"}`: "sticky is bad",
		`{`: "it ends too early",
	} {
		if r := put(body); r.status != 400 || !strings.Contains(r.body, says) || r.header.Get("X-Flambeau-Reason") != "bad_request" {
			t.Errorf("%q: %+v", body, r)
		}
	}
	if r := put("{}"); r.status != 200 || !admin.traffic["echo"].IsZero() {
		t.Errorf("clearing: %+v", r)
	}
	if got := admin.actors; got[0].Who != "cli (127.0.0.1)" || got[len(got)-1].Who != "api (127.0.0.1)" {
		t.Errorf("%+v", got)
	}
}

// TestAdminOff: without it, and for what a server does not do, the routes do not exist.
func TestAdminOff(t *testing.T) {
	routes := []string{
		"GET /admin/models", "GET /admin/events", "GET /admin/store", "GET /admin/models/echo/history", "POST /admin/models/echo/reload",
		"POST /admin/models/echo/rollback", "GET /admin/models/echo/traffic",
	}
	off, bare := serve(t), serve(t, func(o *Options) { o.Admin = &Admin{} })
	for i, route := range routes {
		method, target, _ := strings.Cut(route, " ")
		for _, port := range []Port{Management, Joint} {
			off.check(t, port, []exchange{{method, target, 404, noRoute}})
		}
		r := do(t, bare.addr[Management], method, target, "")
		if i > 0 && (r.status != 404 || !strings.HasPrefix(r.header.Get("X-Flambeau-Hint"), "this server ")) || i == 0 && !strings.Contains(r.body, `"p99_ms": null`) {
			t.Errorf("%s: %+v", route, r)
		}
	}
}

// TestAdminNeedsTheManagementKey on both ports that have it; a model whose name begins with token is no request for a new key.
func TestAdminNeedsTheManagementKey(t *testing.T) {
	dir := t.TempDir()
	keys, err := token.New(token.Options{Dir: dir, Expiration: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	f, admin := serveAdmin(t, func(o *Options) { o.Keys = keys })
	text, err := os.ReadFile(filepath.Join(dir, token.FileName))
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]struct{ Key string }
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	refused := `"type":"InvalidKeyException","message":"` + authorizationError + `"`
	for _, port := range []Port{Management, Joint} {
		for _, header := range [][]string{nil, {"Authorization: Bearer " + file["inference"].Key}, {"Authorization: Bearer " + file["API"].Key}} {
			f.check(t, port, []exchange{
				{"GET", "/admin/models", 400, refused},
				{"POST", "/admin/models/echo/rollback", 400, refused},
				{"GET", "/admin/nope", 400, refused},
				{"GET", "/admin/models/tokenizer/traffic?type=management", 400, refused},
			}, header...)
		}
		f.check(t, port, []exchange{
			{"GET", "/admin/models", 200, `"name":"echo"`}, {"GET", "/admin/models/tokenizer/traffic", 200, "labels"}, {"GET", "/admin/nope", 404, noRoute},
		}, "Authorization: Bearer "+file["management"].Key, "X-Path: /token")
	}
	if len(admin.calls) != 0 {
		t.Errorf("requests without the key did %v", admin.calls)
	}
}

// TestWhoChangesModels: what the management API does says who asked for it.
func TestWhoChangesModels(t *testing.T) {
	f := serve(t)
	var actors []rollout.Actor
	f.models.onWork = func(ctx context.Context) { actors = append(actors, rollout.ActorOf(ctx)) }
	f.check(t, Management, []exchange{{"POST", "/models?url=kinds.mar", 200, ""}, {"PUT", "/models/kinds?min_worker=2&synchronous=true", 200, ""}})
	if diff := cmp.Diff([]rollout.Actor{{Who: "api (127.0.0.1)"}, {Who: "api (127.0.0.1)"}}, actors); diff != "" {
		t.Error(diff)
	}
}

func TestAdminIsDescribed(t *testing.T) {
	f, _ := serveAdmin(t)
	for port, want := range map[Port]bool{Inference: false, Management: true, Joint: true, MetricsPort: false} {
		r := do(t, f.addr[port], "GET", "/api-description", "")
		if got := strings.Contains(r.body, `"/admin/models/{model_name}/traffic"`); got != want {
			t.Errorf("%s: %v", port, got)
		}
	}
	golden(t, "api-management-admin.golden", do(t, f.addr[Management], "OPTIONS", "/", "").body)
}
