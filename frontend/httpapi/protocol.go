package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"

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
		ans, err = a.settings(q, func() any { return a.opts.Protocol.LogSettings() }, a.opts.Protocol.ChangeLog)
	case s[2] == "trace" && n == 4 && s[3] == "setting":
		ans, err = a.traceSettings(q, "")
	case s[2] == "systemsharedmemory":
		ans, err = a.sharedMemory(q)
	case s[2] == "cudasharedmemory":
		ans, err = cudaSharedMemory(q)
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
			ans, err = a.traceSettings(q, ref.Name)
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

// waiting is the context of an inference.
func (q *request) waiting() context.Context { return q.http.Context() }

// protocolTooLarge is what clients of the protocol read about a request that is too large; nil for others, whose path nobody has looked at yet.
func (a *API) protocolTooLarge(q *request) []byte {
	if a.opts.Protocol == nil || q.port == Management || q.port == MetricsPort || !strings.HasPrefix(q.head.Target, "/v2/") || q.head.Method == http.MethodHead {
		return nil
	}
	p := problemOf(a.tooLarge())
	p.status = statusTooLarge
	return protocolErrorJSON(p, q.id)
}
