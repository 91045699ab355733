package httpapi

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/httpapi/token"
	"github.com/flambeau-serve/flambeau/frontend/oipserver"
	"github.com/flambeau-serve/flambeau/frontend/recent"
	"github.com/flambeau-serve/flambeau/internal/fault"
)

// torchServesRoutes are those that TorchServe has: they do not change, and what serves them are no tables but its rules.
func torchServesRoutes(port Port) []string {
	inference := []string{
		"GET /ping", "POST /predictions/{model_name}", "POST /predictions/{model_name}/{model_version}", "OPTIONS /predictions/{model_name}",
		"OPTIONS /predictions/{model_name}/{model_version}", "POST /explanations/{model_name}", "POST /explanations/{model_name}/{model_version}",
		"POST /invocations", "POST /models/{model_name}/invoke", "POST /v1/models/{model_name}:predict", "POST /v1/models/{model_name}:explain",
		"POST /v2/models/{model_name}/explain", "POST /{model_name}/predict", "POST /{model_name}/{model_version}/predict",
	}
	management := []string{
		"GET /models", "POST /models", "GET /models/{model_name}", "PUT /models/{model_name}", "DELETE /models/{model_name}", "OPTIONS /models/{model_name}",
		"GET /models/{model_name}/{model_version}", "PUT /models/{model_name}/{model_version}", "DELETE /models/{model_name}/{model_version}",
		"OPTIONS /models/{model_name}/{model_version}", "PUT /models/{model_name}/{model_version}/set-default", "GET /models/{model_name}/{model_version}/set-default",
		"OPTIONS /models/{model_name}/{model_version}/set-default", "GET /v1/models/{model_name}",
	}
	if port == Joint { // there TorchServe takes it for one of the inference API, which has no such route
		management = slices.DeleteFunc(management, func(route string) bool { return strings.HasSuffix(route, " "+versionPath) })
	}
	self := []string{"OPTIONS /", "GET /api-description"}
	return [ports][]string{
		Inference: slices.Concat(self, inference), Management: slices.Concat(self, management), MetricsPort: {"GET /metrics"},
		Joint: slices.Concat(self, inference, management, []string{"GET /metrics"}),
	}[port]
}

// routesOf are all the routes of a port: those of the tables that requests are served by, TorchServe's, and the few that are everywhere.
func routesOf(a *API, port Port) []string {
	all := append(torchServesRoutes(port), "GET /openapi.json", "GET /livez", "GET /readyz", "GET /startupz")
	if port == Management || port == Joint {
		for i := range a.adminTable {
			for _, op := range a.adminTable[i].ops {
				all = append(all, strings.ToUpper(op.method)+" "+a.adminTable[i].path)
			}
		}
	}
	if port == Inference || port == Joint {
		for i := range a.protocolTable {
			for _, method := range a.protocolTable[i].methods {
				if a.protocolTable[i].hidden == "" {
					all = append(all, method+" "+a.protocolTable[i].path)
				}
			}
		}
	}
	return all
}

// operation is an operation of a document.
type operation struct {
	Responses map[string]struct {
		Description string `json:"description"`
		Ref         string `json:"$ref"`
	} `json:"responses"`
	Parameters []parameter `json:"parameters"`
}

type parameter struct {
	Name, In string
	Required bool
}

// document reads a port's document: its operations by their methods and paths, and the descriptions of the responses that they refer to.
func document(t *testing.T, f *fixture, port Port, header ...string) (map[string]operation, map[string]string) {
	t.Helper()
	r := do(t, f.addr[port], "GET", "/openapi.json", "", header...)
	var doc struct {
		Paths      map[string]map[string]json.RawMessage
		Components struct {
			Responses map[string]struct{ Description string }
		}
	}
	if err := json.Unmarshal([]byte(r.body), &doc); err != nil {
		t.Fatalf("%v in %s", err, r.body)
	}
	ops, shared := map[string]operation{}, map[string]string{}
	for path, item := range doc.Paths {
		for method, text := range item {
			if method == "parameters" {
				continue
			}
			var op operation
			if err := json.Unmarshal(text, &op); err != nil {
				t.Fatalf("%s %s: %v in %s", method, path, err, text)
			}
			ops[strings.ToUpper(method)+" "+path] = op
		}
	}
	for name, response := range doc.Components.Responses {
		shared["#/components/responses/"+name] = response.Description
	}
	return ops, shared
}

// withEverything is a server that has all there is.
func withEverything(t *testing.T, change ...func(*Options)) *fixture {
	t.Helper()
	admin := &fakeAdmin{}
	return withProtocol(t, append([]func(*Options){func(o *Options) {
		p, err := oipserver.New(oipserver.Options{Predictor: o.Predictor, Models: o.Models, Statistics: fakeStats{}, ModelAPI: true, Version: "9", SharedMemory: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		o.Protocol, o.Admin = p, admin.options()
		o.Admin.Drain, o.Admin.Poison, o.Admin.Tuning, o.Admin.Crashes = newFakeDrain(), &fakePoison{}, &fakeTuning{}, &fakeCrashes{}
		o.Admin.Requests = recent.New(recent.Options{})
	}}, change...)...)
}

// named gives a route with a model and a version in the places for them.
func named(route, model, version string) string {
	return strings.NewReplacer("{model_name}", model, "{model_version}", version, "{repository_name}", "r", "{region_name}", "g", "{request_id}", "i").Replace(route)
}

// TestEveryRouteIsDescribed: what is served is in /openapi.json, for any model or for each one that has it, and what is in /openapi.json is served.
func TestEveryRouteIsDescribed(t *testing.T) {
	f := withEverything(t)
	models := f.api.loadedModels()
	for port := range ports {
		ops, _ := document(t, f, port)
		known := map[string]bool{}
		for _, route := range routesOf(f.api, port) {
			known[route] = true
			_, found := ops[route]
			for _, m := range models {
				known[named(route, m.Name, m.Version)] = true
				if _, is := ops[named(route, m.Name, m.Version)]; is {
					found = true
				}
			}
			if !found {
				t.Errorf("%s serves %s, and does not describe it", port, route)
			}
		}
		for route := range ops {
			method, path, _ := strings.Cut(route, " ")
			r := do(t, f.addr[port], method, named(path, "echo", "1.0"), "")
			if r.status == 405 || r.status == 404 && strings.Contains(r.body, notFoundMessage) && r.header.Get(hintHeader) == "" {
				t.Errorf("%s describes %s, and answers %d %s", port, route, r.status, r.body)
			}
			if !known[route] {
				t.Errorf("%s describes %s, which no table has", port, route)
			}
		}
	}
}

// TestOtherMethodsAreRefused: the tables have the methods that are served, and no others.
func TestOtherMethodsAreRefused(t *testing.T) {
	f := withEverything(t)
	methods := []string{"GET", "POST", "PUT", "DELETE"}
	try := func(port Port, path string, has []string) {
		for _, method := range methods {
			r := do(t, f.addr[port], method, named(path, "nomodel", "1.0"), "")
			if refused := r.status == 405; refused == slices.Contains(has, method) {
				t.Errorf("%s %s: %d %s", method, path, r.status, r.body)
			}
		}
	}
	for i := range f.api.adminTable {
		r := &f.api.adminTable[i]
		var has []string
		for _, op := range r.ops {
			has = append(has, strings.ToUpper(op.method))
		}
		try(Management, r.path, has)
	}
	for i := range f.api.protocolTable {
		if r := &f.api.protocolTable[i]; !strings.HasSuffix(r.path, "/infer") && !strings.Contains(r.path, "trace/setting") { // other methods are TorchServe's, or find no model first
			try(Inference, r.path, r.methods)
		}
	}
}

// TestEveryFaultIsDescribed: whatever internal/fault has a status for is told of where it can come, with the reason.
func TestEveryFaultIsDescribed(t *testing.T) {
	keys, err := token.New(token.Options{Dir: t.TempDir(), Expiration: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	// Documents need a key then: they are made here.
	f := withEverything(t, func(o *Options) { o.Keys = keys })
	text, err := f.api.describeLoaded(Joint)
	if err != nil {
		t.Fatal(err)
	}
	told := string(text)
	for _, kind := range fault.Kinds() {
		if kind == fault.Cancelled { // nobody is left to read it
			continue
		}
		if !strings.Contains(told, kind.String()) {
			t.Errorf("the reason %s is not told of", kind)
		}
	}

	ops, shared := document(t, withEverything(t), Inference)
	for _, route := range []string{
		"POST /predictions/echo", "POST /predictions/adder/3", "POST /v2/models/adder/infer", "POST /v2/models/words/generate", "POST /v2/models/words/generate_stream",
		"POST /explanations/{model_name}", "POST /invocations", "POST /v1/models/{model_name}:predict",
	} {
		op, found := ops[route]
		if !found {
			t.Fatalf("no %s among %q", route, slices.Sorted(maps.Keys(ops)))
		}
		for _, kind := range fault.Kinds() {
			err := fault.New(kind, "", nil)
			if !fault.Refused(err) && !slices.Contains([]fault.Kind{
				fault.BadRequest, fault.ModelNotFound, fault.VersionNotFound, fault.TooLarge, fault.HandlerFailed, fault.BackendDied, fault.BackendOutOfMemory,
				fault.ResponseTimeout, fault.ResponseTooLarge, fault.ClientTimeout, fault.Poisoned, fault.MemoryGuard, fault.StartFailed, fault.LoadFailed, fault.Internal,
			}, kind) {
				continue
			}
			status, _ := json.Marshal(fault.HTTPStatus(err))
			response := op.Responses[string(status)]
			if about := response.Description + shared[response.Ref]; !strings.Contains(about, kind.String()) {
				t.Errorf("%s: status %s, reason %s: it is described as %q", route, status, kind, about)
			}
		}
	}
}

// TestPlacesAreParameters: every place in a path is a parameter, and the tuning of a model has its own.
func TestPlacesAreParameters(t *testing.T) {
	ops, _ := document(t, withEverything(t), Management)
	for route, op := range ops {
		for place := range strings.SplitSeq(route, "/") {
			name, is := strings.CutPrefix(place, "{")
			if is && !slices.Contains(op.Parameters, parameter{Name: strings.TrimSuffix(name, "}"), In: "path", Required: true}) {
				t.Errorf("%s has no parameter %s", route, name)
			}
		}
	}
	tuning, names := ops["PUT /admin/models/{model_name}/tuning"], []string{}
	for _, p := range tuning.Parameters {
		names = append(names, p.Name)
	}
	if !slices.Equal(names, []string{"model_name", "version", "frozen"}) {
		t.Errorf("the parameters of tuning are %q", names)
	}
}
