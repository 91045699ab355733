package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/flambeau-serve/flambeau/frontend/oipserver"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// protocol serves the Open Inference Protocol as its own clients know it. What only TorchServe has below /v2 is left to others.
func (a *API) protocol(q *request) (answer, bool, error) {
	s := q.segments
	if !q.protocol {
		return answer{}, false, nil
	}
	var ans answer
	var err error
	switch n := len(s); {
	case n == 2:
		ans, err = a.read(q, func() (any, error) { return a.opts.Protocol.Metadata(), nil })
	case s[2] == "health" && n == 4 && s[3] == "live":
		ans, err = a.read(q, func() (any, error) { return map[string]bool{"live": true}, nil })
	case s[2] == "health" && n == 4 && s[3] == "ready":
		ans, err = a.protocolReady(q)
	case s[2] == "models" && n == 4 && s[3] == "stats":
		ans, err = a.read(q, func() (any, error) { return a.opts.Protocol.Stats(infer.ModelRef{}) })
	case s[2] == "models" && n > 3:
		return a.protocolModel(q)
	case s[2] == "repository":
		ans, err = a.repository(q)
	case s[2] == "logging" && n == 3:
		ans, err = a.settings(q, oipserver.LogSettings)
	case s[2] == "trace" && n == 4 && s[3] == "setting":
		ans, err = a.settings(q, oipserver.TraceSettings)
	case s[2] == "systemsharedmemory" || s[2] == "cudasharedmemory":
		ans, err = sharedMemory(q)
	default:
		err = notFound()
	}
	return ans, true, err
}

// protocolModel serves what is below /v2/models/M, and a version.
func (a *API) protocolModel(q *request) (answer, bool, error) {
	ref, rest := infer.ModelRef{Name: q.segments[3]}, q.segments[4:]
	if len(rest) > 1 && rest[0] == "versions" {
		ref.Version, rest = rest[1], rest[2:]
		if ref.Version == "" {
			return answer{}, true, a.noSuchVersion(ref)
		}
	}
	var ans answer
	var err error
	switch what := strings.Join(rest, "/"); {
	case what == "infer" && q.head.Method == http.MethodPost:
		ans, err = a.infer(q, ref)
	case (what == "infer" || what == "explain") && ref.Version == "":
		return answer{}, false, nil // TorchServe's
	case what == "":
		ans, err = a.read(q, func() (any, error) { return a.opts.Protocol.Model(ref) })
	case what == "ready":
		ans, err = a.modelReady(q, ref)
	case what == "config":
		ans, err = a.read(q, func() (any, error) { return a.opts.Protocol.Config(ref) })
	case what == "stats":
		ans, err = a.read(q, func() (any, error) { return a.opts.Protocol.Stats(ref) })
	case what == "generate":
		ans, err = a.generate(q, ref)
	case what == "generate_stream":
		ans, err = a.generateStream(q, ref)
	case what == "trace/setting":
		if _, err = a.opts.Models.Describe(ref); err == nil {
			ans, err = a.settings(q, oipserver.TraceSettings)
		}
	default:
		err = notFound()
	}
	return ans, true, err
}

// read answers a GET with a value's JSON.
func (a *API) read(q *request, get func() (any, error)) (answer, error) {
	if q.head.Method != http.MethodGet && q.head.Method != http.MethodHead {
		return answer{}, methodNotAllowed()
	}
	v, err := get()
	if err != nil {
		return answer{}, err
	}
	return compactJSON(v)
}

func compactJSON(v any) (answer, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return answer{}, fault.New(fault.Internal, "the answer cannot be written", err)
	}
	return jsonAnswer(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), nil
}

// protocolReady says also by the status whether inferences can be taken.
func (a *API) protocolReady(q *request) (answer, error) {
	ready := a.opts.Protocol.Ready()
	ans, err := a.read(q, func() (any, error) { return map[string]bool{"ready": ready}, nil })
	if !ready {
		ans.status = statusUnavailable
	}
	return ans, err
}

func (a *API) modelReady(q *request, ref infer.ModelRef) (answer, error) {
	ready := false
	ans, err := a.read(q, func() (_ any, err error) {
		ready, err = a.opts.Protocol.ModelReady(ref)
		return struct {
			Name  string `json:"name"`
			Ready bool   `json:"ready"`
		}{ref.Name, ready}, err
	})
	if !ready {
		ans.status = statusUnavailable
	}
	return ans, err
}

// isRepositoryChange says whether a path loads or unloads models, which needs the management key.
func isRepositoryChange(segments []string) bool {
	return len(segments) > 3 && segments[1] == "v2" && segments[2] == "repository" && segments[len(segments)-1] != "index"
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
			return answer{}, fault.New(fault.BadRequest, "the body is no JSON object that can be understood: "+err.Error(), err)
		}
	}
	if isIndex {
		return compactJSON(a.opts.Protocol.Index(body.Ready))
	}
	ctx, cancel := a.detached(q)
	defer cancel()
	if s[2] == "unload" {
		return jsonAnswer([]byte("{}")), a.opts.Protocol.Unload(ctx, s[1])
	}
	overrides := make([]string, 0, len(body.Params))
	for name := range body.Params {
		overrides = append(overrides, name)
	}
	slices.Sort(overrides)
	return jsonAnswer([]byte("{}")), a.opts.Protocol.Load(ctx, s[1], overrides)
}

// sharedMemory answers that there are no regions, and that none can be registered.
func sharedMemory(q *request) (answer, error) {
	s := q.segments
	switch {
	case len(s) > 3 && s[len(s)-1] == "status" && q.head.Method == http.MethodGet:
		if len(s) > 4 { //nolint:mnd // /v2/…/region/R/status
			return answer{}, fault.Newf(fault.BadRequest, "Unable to find shared memory region '%s'", s[len(s)-2])
		}
		return jsonAnswer([]byte("[]")), nil
	case s[len(s)-1] == "unregister" && q.head.Method == http.MethodPost:
		return jsonAnswer([]byte("{}")), nil
	case s[len(s)-1] == "register":
		f := fault.New(fault.BadRequest, "shared memory is not offered by this server: send and receive the tensors in the body", nil)
		f.Code = statusNotImplemented
		return answer{}, f
	}
	return answer{}, notFound()
}

// settings reads and changes settings.
func (a *API) settings(q *request, now oipserver.Settings) (answer, error) {
	if q.head.Method == http.MethodGet {
		return jsonAnswer([]byte(now)), nil
	}
	if q.head.Method != http.MethodPost {
		return answer{}, methodNotAllowed()
	}
	var changes map[string]json.RawMessage
	if len(q.body) > 0 {
		if err := json.Unmarshal(q.body, &changes); err != nil {
			return answer{}, fault.New(fault.BadRequest, "the settings have to be a JSON object: "+err.Error(), err)
		}
	}
	return jsonAnswer([]byte(now)), now.Check(changes)
}

// waiting is the context of an inference.
func (q *request) waiting() context.Context { return q.http.Context() }
