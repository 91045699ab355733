package httpapi

import (
	"net/http"
	"strings"

	"github.com/flambeau-serve/flambeau/frontend/httpapi/wire"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// smallBody is the longest body that is read whatever becomes of its request: that costs less than asking twice.
const smallBody = 64 << 10

// refuse refuses a request whose body is large before any of it is read, if it would be refused afterwards anyway. TorchServe reads all of it first.
func (a *API) refuse(q *request) error {
	if q.head.Length != wire.Chunked && q.head.Length <= smallBody || q.port != Inference && q.port != Joint {
		return nil
	}
	ref, ok := a.askedFor(q)
	if !ok {
		return nil
	}
	item := infer.Item{ID: q.id, Header: q.head.Fields, Peer: q.peer()}
	err := a.opts.Predictor.Refuse(q.http.Context(), ref, item, q.payload())
	if err == nil || q.protocol {
		return err //nolint:wrapcheck // its faults are the client's
	}
	return noWorker(err, ref)
}

// askedFor gives the model that a request for a prediction names, as far as its head says.
func (a *API) askedFor(q *request) (ref infer.ModelRef, ok bool) {
	s := q.segments
	if q.protocol && !isTorchServes(s, q.head.Method) {
		if q.head.Method != http.MethodPost || len(s) <= protocolModelAt+1 || s[2] != "models" {
			return ref, false
		}
		ref.Name = s[protocolModelAt]
		rest := s[protocolModelAt+1:]
		if len(rest) > 2 && rest[0] == "versions" {
			ref.Version, rest = rest[1], rest[2:]
		}
		return ref, len(rest) == 1 && (rest[0] == "infer" || rest[0] == "generate" || rest[0] == "generate_stream")
	}
	if !isInference(s) || s[1] == "ping" || q.head.Method == http.MethodOptions {
		return ref, false
	}
	to, _, err := a.wanted(q)
	if err != nil || !to.named || to.versioned && to.version == "" {
		return ref, false
	}
	return infer.ModelRef{Name: to.name, Version: to.version}, true
}

// payload is how many bytes the request's item will have at least, 0 if that takes its body to tell: of a form only the values count, and what the Open Inference Protocol
// carries may be written in a longer or a shorter way.
func (q *request) payload() int64 {
	contentType := q.head.Get("Content-Type")
	_, form := boundaryOf(contentType)
	if q.head.Length == wire.Chunked || q.protocol || form || strings.EqualFold(mimeOf(contentType), formType) {
		return 0
	}
	return q.head.Length
}

// answersEarly says whether a request can be answered before its body has come, and makes it so: the client may stop sending when it sees the answer. What it sends
// all the same is read then.
func (a *API) answersEarly(q *request) bool {
	return !q.bodyDone && q.http.Header.Get("Expect") == "" && http.NewResponseController(q.w).EnableFullDuplex() == nil
}
