package httpapi

import (
	"net/http"
	"slices"

	"github.com/flambeau-serve/flambeau/internal/infer"
)

// protocolRoute is a path of the Open Inference Protocol, and what is served there. What is not in the table is not served.
type protocolRoute struct {
	path     string // names in braces stand for any segment
	segments []string
	methods  []string // that it answers; GET means HEAD, too
	serve    func(q *request, ref infer.ModelRef) (answer, error)

	// hidden is why /openapi.json does not have it, "" when it does.
	hidden string
}

// Where a path of the protocol names a model, and its version.
const (
	protocolModelAt   = 3 // /v2/models/M
	protocolVersionAt = 5 // /v2/models/M/versions/V
)

// isTorchServes says whether a path is one that TorchServe has, too, and nothing of the protocol by that method.
func isTorchServes(s []string, method string) bool {
	const segments = 5 // /v2/models/M/infer
	return len(s) == segments && s[2] == "models" && (s[4] == "explain" || s[4] == "infer" && method != http.MethodPost)
}

func (a *API) protocolRoutes() []protocolRoute {
	p := a.opts.Protocol
	if p == nil {
		return nil
	}
	get, post, both := []string{http.MethodGet}, []string{http.MethodPost}, []string{http.MethodGet, http.MethodPost}
	reads := func(value func() any) func(*request, infer.ModelRef) (answer, error) {
		return func(q *request, _ infer.ModelRef) (answer, error) {
			return a.read(q, func() (any, error) { return value(), nil })
		}
	}
	plain := func(serve func(*request) (answer, error)) func(*request, infer.ModelRef) (answer, error) {
		return func(q *request, _ infer.ModelRef) (answer, error) { return serve(q) }
	}
	routes := []protocolRoute{
		{path: "/v2", methods: get, serve: reads(func() any { return p.Metadata() })},
		{path: "/v2/health/live", methods: get, serve: reads(func() any { return map[string]bool{"live": true} })},
		{path: "/v2/health/ready", methods: get, serve: plain(a.protocolReady)},
		{path: "/v2/models/stats", methods: get, serve: plain(func(q *request) (answer, error) {
			return a.read(q, func() (any, error) { return p.Stats(infer.ModelRef{}) })
		})},
		{path: "/v2/logging", methods: both, serve: plain(func(q *request) (answer, error) {
			return a.settings(q, func() any { return p.LogSettings() }, p.ChangeLog)
		})},
		{path: "/v2/trace/setting", methods: both, serve: plain(func(q *request) (answer, error) { return a.traceSettings(q, "") })},
	}
	for _, repository := range []string{"/v2/repository", "/v2/repository/{repository_name}"} {
		routes = append(routes,
			protocolRoute{path: repository + "/index", methods: both, serve: plain(a.repository)},
			protocolRoute{path: repository + "/models/{model_name}/load", methods: post, serve: plain(a.repository)},
			protocolRoute{path: repository + "/models/{model_name}/unload", methods: post, serve: plain(a.repository)},
		)
	}
	const cuda = "a Triton without CUDA has no use for it either: there are no regions, and none can be registered"
	system := ""
	if !p.SharesMemory() {
		system = "this server offers none"
	}
	for _, memory := range []protocolRoute{
		{path: "/v2/systemsharedmemory", serve: plain(a.sharedMemory), hidden: system}, {path: "/v2/cudasharedmemory", serve: plain(cudaSharedMemory), hidden: cuda},
	} {
		for path, methods := range map[string][]string{
			"/status": get, "/unregister": post, "/region/{region_name}/status": get, "/region/{region_name}/register": post, "/region/{region_name}/unregister": post,
		} {
			routes = append(routes, protocolRoute{path: memory.path + path, methods: methods, serve: memory.serve, hidden: memory.hidden})
		}
	}
	routes = slices.Concat(routes, a.protocolModelRoutes("/v2/models/{model_name}"), a.protocolModelRoutes("/v2/models/{model_name}/versions/{model_version}"))
	for i := range routes {
		routes[i].segments = segmentsOf(routes[i].path)
	}
	return routes
}

// protocolModelRoutes are those of a model, or of a version of one.
func (a *API) protocolModelRoutes(of string) []protocolRoute {
	p := a.opts.Protocol
	get, post := []string{http.MethodGet}, []string{http.MethodPost}
	reads := func(value func(ref infer.ModelRef) (any, error)) func(*request, infer.ModelRef) (answer, error) {
		return func(q *request, ref infer.ModelRef) (answer, error) {
			return a.read(q, func() (any, error) { return value(ref) })
		}
	}
	return []protocolRoute{
		{path: of, methods: get, serve: reads(func(ref infer.ModelRef) (any, error) { return p.Model(ref) })},
		{path: of + "/ready", methods: get, serve: a.modelReady},
		{path: of + "/config", methods: get, serve: reads(func(ref infer.ModelRef) (any, error) { return p.Config(ref) })},
		{path: of + "/stats", methods: get, serve: reads(func(ref infer.ModelRef) (any, error) { return p.Stats(ref) })},
		{path: of + "/infer", methods: post, serve: func(q *request, ref infer.ModelRef) (answer, error) {
			if q.head.Method != http.MethodPost {
				return answer{}, notFound()
			}
			return a.infer(q, ref)
		}},
		{path: of + "/generate", methods: post, serve: a.generate},
		{path: of + "/generate_stream", methods: post, serve: a.generateStream},
		{path: of + "/trace/setting", methods: []string{http.MethodGet, http.MethodPost}, serve: func(q *request, ref infer.ModelRef) (answer, error) {
			if _, err := a.opts.Models.Describe(ref); err != nil {
				return answer{}, err //nolint:wrapcheck // the model store's words are the client's
			}
			return a.traceSettings(q, ref.Name)
		}},
	}
}
