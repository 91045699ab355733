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
	if !q.protocol {
		return answer{}, false, nil
	}
	s := q.segments
	if isTorchServes(s, q.head.Method) {
		return answer{}, false, nil
	}
	var ref infer.ModelRef
	if len(s) > protocolModelAt && s[2] == "models" {
		ref.Name = s[protocolModelAt]
		if len(s) > protocolVersionAt && s[protocolVersionAt-1] == "versions" {
			if ref.Version = s[protocolVersionAt]; ref.Version == "" {
				return answer{}, true, a.noSuchVersion(ref)
			}
		}
	}
	for i := range a.protocolTable {
		if r := &a.protocolTable[i]; matches(r.segments, s) {
			ans, err := r.serve(q, ref)
			return ans, true, err
		}
	}
	return answer{}, true, notFound()
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
func (a *API) protocolTooLarge(q *request, why error) []byte {
	if a.opts.Protocol == nil || q.port == Management || q.port == MetricsPort || !strings.HasPrefix(q.head.Target, "/v2/") || q.head.Method == http.MethodHead {
		return nil
	}
	p := problemOf(why)
	p.status = statusTooLarge
	return protocolErrorJSON(p, q.id)
}
