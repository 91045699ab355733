package httpapi

import (
	"slices"
	"strings"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// adminRoute is a path below /admin: what is served there, and what is said of it. What is not in the table is not served.
type adminRoute struct {
	path     string // {model_name} and {request_id} stand for any segment
	segments []string
	ops      []apiOperation // the methods that it has
	serve    func(q *request, params []pair) (answer, error)
}

// has says whether the route has a method.
func (r *adminRoute) has(method string) bool {
	return slices.ContainsFunc(r.ops, func(op apiOperation) bool { return strings.ToUpper(op.method) == method })
}

// matches says whether the segments of a path are those of a route, where those in braces stand for any.
func matches(route, path []string) bool {
	if len(route) != len(path) {
		return false
	}
	for i, segment := range route {
		if segment != path[i] && !strings.HasPrefix(segment, "{") {
			return false
		}
	}
	return true
}

// Where a path below /admin names something.
const (
	adminRequestAt = 3 // /admin/requests/ID
	adminModelAt   = 3 // /admin/models/M/what
)

// adminPaths are the routes that TorchServe does not have.
func (a *API) adminPaths() []apiPath {
	all := make([]apiPath, len(a.adminTable))
	for i := range a.adminTable {
		all[i] = apiPath{a.adminTable[i].path, slices.Clone(a.adminTable[i].ops)}
	}
	return all
}

func (a *API) adminRoutes() []adminRoute {
	limit := queryParam("limit", "integer", fewEvents, "How many to give at most, 1000 at most: the newest ones.")
	op := func(method, id, what string, parameters ...apiParameter) apiOperation {
		return apiOperation{
			method: method, ID: id, summary: what, answers: jsonType, parameters: parameters, statuses: []int{200, 404, 500}, kinds: []fault.Kind{fault.RouteNotFound},
		}
	}
	// of are those of a model's routes.
	routes := slices.Concat(a.modelRoutes(limit, op), []adminRoute{
		{
			path: "/admin/models", ops: []apiOperation{op("get", "adminModels", "Lists all the versions of all the models, and how they run.")},
			serve: func(_ *request, params []pair) (answer, error) { return a.adminModels(params) },
		},
		{
			path: "/admin/events", ops: []apiOperation{op("get", "adminEvents", "Tells what happened, the oldest first.",
				queryParam("model", "string", nil, "Only events of this model."), queryParam("version", "string", nil, "Only events of this version."),
				queryParam("kind", "string", nil, "Only events of this kind."),
				queryParam("after", "integer", nil, "Only events after the one with this id, and the first of them."), limit)},
			serve: func(_ *request, params []pair) (answer, error) { return a.adminEvents(params) },
		},
		{
			path: "/admin/store", ops: []apiOperation{op("get", "adminStore", "Lists the archives of the model store, and what was decided about them.")},
			serve: func(_ *request, params []pair) (answer, error) { return a.adminStore(params) },
		},
		{
			path: "/admin/drain", ops: []apiOperation{
				op("get", "adminDrain", "Tells whether the server says that it is not ready, and how many requests are under way."),
				op("post", "adminBeginDrain", "Has the server say that it is not ready, while it still serves.",
					queryParam("wait", "integer", 0, "How many seconds to wait before the answer, 600 at most.")),
				fails(op("delete", "adminEndDrain", "Has the server say that it is ready again."), fault.Conflict),
			},
			serve: a.adminDrain,
		},
		{
			path: "/admin/requests/{request_id}", ops: []apiOperation{op("get", "adminRequest", "Tells where the time of a request went.",
				pathParam("request_id", "The request's id: the header x-request-id of its answer."))},
			serve: func(q *request, params []pair) (answer, error) {
				return a.adminRequest(q.segments[adminRequestAt], params)
			},
		},
	})
	for i := range routes {
		routes[i].segments = segmentsOf(routes[i].path)
	}
	return routes
}

// modelRoutes are what is below /admin/models/M.
func (a *API) modelRoutes(limit apiParameter, op func(method, id, what string, parameters ...apiParameter) apiOperation) []adminRoute {
	name, version := pathParam("model_name", "The model's name."), queryParam("version", "string", nil, "The version; not given: the default one.")
	of := func(serve func(q *request, model string, params []pair) (answer, error)) func(*request, []pair) (answer, error) {
		return func(q *request, params []pair) (answer, error) { return serve(q, q.segments[adminModelAt], params) }
	}
	plain := func(serve func(model string, params []pair) (answer, error)) func(*request, []pair) (answer, error) {
		return of(func(_ *request, model string, params []pair) (answer, error) { return serve(model, params) })
	}
	about := func(method, id, what string, parameters ...apiParameter) apiOperation {
		return fails(op(method, id, what, slices.Concat([]apiParameter{name}, parameters)...), fault.ModelNotFound, fault.VersionNotFound)
	}
	const path = "/admin/models/{model_name}/"
	setTraffic := about("put", "adminSetTraffic", "Sets how requests find the versions of a model; replaces what was set.")
	setTraffic.takesJSON = "labels (label: version), weights (version or label: percent), header (a name), sticky (header:NAME or cookie:NAME)."
	rollback := about("post", "adminRollback", "Makes an earlier archive of a model serve.", version,
		queryParam("to", "string", nil, "The beginning of the archive's digest; not given: the one before."))
	reload := about("post", "adminReload", "Looks at a model's files again, also at those that failed.")
	frozen := queryParam("frozen", "boolean", nil, "true keeps what was found as it is, false lets it move again.")
	frozen.Required = true
	digest := queryParam("digest", "string", nil, "The beginning of the request's digest, 8 characters or more.")
	digest.Required = true
	return []adminRoute{
		{path: path + "history", ops: []apiOperation{about("get", "adminHistory", "Tells what changed what serves of a model, the oldest first.", limit)}, serve: plain(a.adminHistory)},
		{path: path + "rollback", ops: []apiOperation{changes(rollback, 409)}, serve: of(a.adminRollback)},
		{path: path + "reload", ops: []apiOperation{changes(reload)}, serve: of(a.adminReload)},
		{
			path: path + "traffic", ops: []apiOperation{about("get", "adminTraffic", "Tells how requests find the versions of a model."), changes(setTraffic)},
			serve: of(a.adminTraffic),
		},
		{
			path: path + "tuning", ops: []apiOperation{
				about("get", "adminTuning", "Tells the batch size and delay that were found for the latency goal of a version.", version),
				fails(about("put", "adminFreezeTuning", "Keeps the batch size and delay that were found, or lets them move again.", version, frozen), fault.BadRequest),
			},
			serve: of(a.adminTuning),
		},
		{
			path: path + "poison", ops: []apiOperation{
				about("get", "adminPoison", "Lists the requests that have ended workers."),
				about("delete", "adminLiftPoison", "Lets a request that was refused for having ended workers be tried again.", digest),
			},
			serve: of(a.adminPoison),
		},
		{
			path: path + "crashes", ops: []apiOperation{about("get", "adminCrashes", "Tells the latest crashes of workers, with what is known about each.",
				queryParam("version", "string", nil, "The version; not given: all of them."))},
			serve: plain(a.adminCrashes),
		},
		{
			path: path + "slow", ops: []apiOperation{about("get", "adminSlow", "Lists the slowest requests, and where their time went.",
				queryParam("limit", "integer", fewSlow, "How many to give at most."), queryParam("seconds", "integer", nil, "Only those of the last so many seconds; not given: of the last hour."))},
			serve: plain(a.adminSlow),
		},
	}
}

// fails adds how an operation may fail.
func fails(op apiOperation, kinds ...fault.Kind) apiOperation {
	op.kinds = slices.Concat(op.kinds, kinds)
	return op
}

// changes makes an operation one that may have a version of a model loaded.
func changes(op apiOperation, more ...int) apiOperation {
	op.statuses = append([]int{200, 400, 404, 500}, more...)
	slices.Sort(op.statuses)
	return fails(op, loading()...)
}

// loading is how the load of a model may fail.
func loading() []fault.Kind {
	return []fault.Kind{
		fault.Conflict, fault.InvalidModel, fault.InvalidVersion, fault.DownloadFailed, fault.DependencyFailed, fault.StartFailed, fault.LoadFailed, fault.NoDevices,
		fault.MemoryGuard, fault.Draining,
	}
}
