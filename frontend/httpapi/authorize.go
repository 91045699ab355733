package httpapi

import (
	"strings"

	"github.com/flambeau-serve/flambeau/frontend/httpapi/token"
	"github.com/flambeau-serve/flambeau/internal/fault"
)

const (
	tokenPath          = "/token"
	authorizationError = "Token Authorization failed. Token either incorrect, expired, or not provided correctly"
	rotationError      = "Token Authentication failed. Token either incorrect, expired, or not provided correctly"
	rotationHint       = "A request that has the text /token in its target or headers asks for a new key, and needs the API key and type=inference or " +
		"type=management. Write %2Ftoken if that is not meant."
)

// authorize checks the request's key. done means that the answer, of a key made anew, is the request's.
func (a *API) authorize(q *request) (ans answer, done bool, err error) {
	if a.opts.Keys == nil || q.port == MetricsPort {
		return answer{}, false, nil
	}
	given := q.head.Get("Authorization")
	ours := a.opts.Admin != nil && isAdmin(q.segments) // a model may be called token there
	switch {
	case q.port == Management && !ours && mentionsToken(q), q.port == Joint && q.segments[1] == tokenPath[1:]:
		ans, err = a.rotate(q, given)
		return ans, true, err
	case a.opts.Protocol != nil && q.port != Management && q.administers():
		err = a.check(given, token.Management)
	case q.port == Inference:
		err = a.check(given, token.Inference)
	case q.port == Management:
		err = a.check(given, token.Management)
	case isInference(q.segments):
		err = a.check(given, token.Inference)
	case ours || isManagement(q.segments):
		err = a.check(given, token.Management)
	default:
		err = a.check(given, token.Inference, token.Management)
	}
	return answer{}, false, err
}

// check lets a request pass that shows one of the keys.
func (a *API) check(given string, kinds ...token.Kind) error {
	for _, kind := range kinds {
		if a.opts.Keys.Allows(kind, given) {
			return nil
		}
	}
	return &fault.Error{
		Kind: fault.InvalidKey, Message: authorizationError,
		Hint: "Send the header Authorization: Bearer and the " + string(kinds[0]) + " key of " + token.FileName + ".",
	}
}

// rotate makes a key anew.
func (a *API) rotate(q *request, given string) (answer, error) {
	refused := &fault.Error{Kind: fault.InvalidKey, Message: rotationError, Hint: rotationHint}
	params, err := queryOf(q.head.Target)
	kind, _ := param(params, "type")
	wanted := token.Kind(kind)
	if err != nil || !a.opts.Keys.Allows(token.API, given) || wanted != token.Inference && wanted != token.Management {
		return answer{}, refused
	}
	if err := a.opts.Keys.Rotate(wanted); err != nil {
		return answer{}, fault.New(fault.Internal, "The new key could not be written to "+token.FileName+"; the old one still holds.", err)
	}
	return jsonAnswer([]byte("\n")), nil
}

// mentionsToken says whether TorchServe takes a request for one that wants a new key: it looks for the text anywhere in the
// head.
func mentionsToken(q *request) bool {
	if strings.Contains(q.head.Target, tokenPath) {
		return true
	}
	for i := range q.head.Fields {
		if strings.Contains(q.head.Fields[i].Value, tokenPath) || strings.Contains(q.head.Fields[i].Name, tokenPath) {
			return true
		}
	}
	return false
}
