package httpapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"slices"

	"github.com/flambeau-serve/flambeau/frontend/oipserver"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/malformed"
)

// administers says whether a request of the protocol changes the server, which needs the management key: it loads or unloads models, changes settings, or is
// about the shared memory that the server opens.
func (q *request) administers() bool {
	s := q.segments
	switch n := len(s); {
	case n < 4 || s[1] != "v2": //nolint:mnd // /v2/logging is the shortest
		return n == 3 && s[1] == "v2" && s[2] == "logging" && q.head.Method != http.MethodGet
	case s[2] == "repository":
		return s[n-1] != "index"
	case s[2] == "systemsharedmemory":
		return true
	case s[n-2] == "trace" && s[n-1] == "setting":
		return q.head.Method != http.MethodGet
	}
	return false
}

// repository serves the index, and loads and unloads models. The name of a repository, of which there is one only, is not looked at.
func (a *API) repository(q *request) (answer, error) {
	s := q.segments[3:]
	if n := len(s); n > 1 && s[0] != "models" {
		s = s[1:]
	}
	var body struct {
		Ready  bool                       `json:"ready"`
		Params map[string]json.RawMessage `json:"parameters"`
	}
	isIndex := len(s) == 1 && s[0] == "index"
	switch {
	case !isIndex && (len(s) != 3 || s[0] != "models" || s[2] != "load" && s[2] != "unload"):
		return answer{}, notFound()
	case q.head.Method != http.MethodPost && (!isIndex || q.head.Method != http.MethodGet):
		return answer{}, methodNotAllowed()
	case len(bytes.TrimSpace(q.body)) > 0:
		if err := json.Unmarshal(q.body, &body); err != nil {
			return answer{}, fault.New(fault.BadRequest, "the body is no JSON object that can be understood: "+malformed.JSON(err), err)
		}
	}
	if isIndex {
		return compactJSON(a.opts.Protocol.Index(body.Ready))
	}
	ctx, cancel := a.detached(q)
	defer cancel()
	done := jsonAnswer([]byte("{}"))
	if s[2] == "unload" {
		var dependents bool
		if given, ok := body.Params["unload_dependents"]; ok && json.Unmarshal(given, &dependents) != nil {
			return answer{}, fault.New(fault.BadRequest, "the parameter unload_dependents has to be true or false", nil)
		}
		return done, a.opts.Protocol.Unload(ctx, s[1], dependents)
	}
	o, err := overridesOf(body.Params)
	if err != nil {
		return answer{}, err
	}
	return done, a.opts.Protocol.Load(ctx, s[1], o)
}

// overridesOf reads the parameters of load: texts, files in base64.
func overridesOf(params map[string]json.RawMessage) (oipserver.Overrides, error) {
	text := func(name string) (value string, ok bool) { return value, json.Unmarshal(params[name], &value) == nil }
	file := func(name string) ([]byte, error) {
		value, ok := text(name)
		if !ok {
			return nil, errors.New("it has to be a text: the file in base64")
		}
		return base64.StdEncoding.DecodeString(value)
	}
	return oipserver.ParseOverrides(slices.Sorted(maps.Keys(params)), text, file)
}

// settings reads and changes settings.
func (a *API) settings(q *request, now func() any, change func(map[string]json.RawMessage) error) (answer, error) {
	switch q.head.Method {
	case http.MethodGet:
		return compactJSON(now())
	case http.MethodPost:
	default:
		return answer{}, methodNotAllowed()
	}
	var changes map[string]json.RawMessage
	if len(q.body) > 0 {
		if err := json.Unmarshal(q.body, &changes); err != nil {
			return answer{}, fault.New(fault.BadRequest, "the settings have to be a JSON object: "+malformed.JSON(err), err)
		}
	}
	if err := change(changes); err != nil {
		return answer{}, err
	}
	return compactJSON(now())
}

// traceSettings reads and changes those of a model, or of all models for "".
func (a *API) traceSettings(q *request, model string) (answer, error) {
	return a.settings(q, func() any { return a.opts.Protocol.TraceSettings(model) }, func(changes map[string]json.RawMessage) error {
		return a.opts.Protocol.ChangeTrace(model, changes)
	})
}

// sharedMemory serves /v2/systemsharedmemory: status, register and unregister, of one region or of all.
func (a *API) sharedMemory(q *request) (answer, error) {
	region, what, err := regionOf(q)
	if err != nil {
		return answer{}, err
	}
	if err := a.opts.Protocol.MayShare(q.network(), q.http.RemoteAddr); err != nil {
		return answer{}, err
	}
	switch what {
	case "status":
		return a.read(q, func() (any, error) { return a.opts.Protocol.Regions(region) })
	case "unregister":
		return jsonAnswer([]byte("{}")), a.opts.Protocol.UnregisterRegion(region)
	}
	var body oipserver.Region
	if err := json.Unmarshal(q.body, &body); err != nil {
		return answer{}, fault.New(fault.BadRequest, `the body has to be a JSON object {"key", "offset", "byte_size"}: `+malformed.JSON(err), err)
	}
	body.Name = region
	return jsonAnswer([]byte("{}")), a.opts.Protocol.RegisterRegion(body)
}

// network is what the request came over, as package net calls it; "" when that is not known.
func (q *request) network() string {
	if at, ok := q.http.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		return at.Network()
	}
	return ""
}

// regionOf gives the region that a path of shared memory names, "" for all of them, and what is to be done.
func regionOf(q *request) (region, what string, err error) {
	s := q.segments[3:]
	if len(s) == 3 && s[0] == "region" && s[1] != "" { //nolint:mnd // region/R/status
		region, s = s[1], s[2:]
	}
	if len(s) != 1 {
		return "", "", notFound()
	}
	isRead := q.head.Method == http.MethodGet || q.head.Method == http.MethodHead
	switch what = s[0]; {
	case what != "status" && what != "unregister" && (what != "register" || region == ""):
		err = notFound()
	case isRead != (what == "status") || !isRead && q.head.Method != http.MethodPost:
		err = methodNotAllowed()
	}
	return region, what, err
}

// cudaSharedMemory answers as a Triton that was built without it: there are no regions, and none can be registered.
func cudaSharedMemory(q *request) (answer, error) {
	region, what, err := regionOf(q)
	switch {
	case err != nil:
		return answer{}, err
	case what == "register":
		f := fault.Newf(fault.BadRequest, "failed to register CUDA shared memory region '%s': CUDA shared memory is not offered by this server", region)
		f.Code = statusNotImplemented
		return answer{}, f
	case what == "status" && region != "":
		return answer{}, fault.Newf(fault.BadRequest, "Unable to find cuda shared memory region: '%s'", region)
	case what == "status":
		return jsonAnswer([]byte("[]")), nil
	}
	return jsonAnswer([]byte("{}")), nil
}

// TakeBytes reserves bytes of the bound of all requests that are in memory, for another front; all or none. What was taken is to be given back.
func (a *API) TakeBytes(n int64) bool { return a.inflight.take(n) }

// GiveBytes gives back what was taken.
func (a *API) GiveBytes(n int64) { a.inflight.give(n) }
