package httpapi

import (
	"context"
	"net/http"

	"github.com/flambeau-serve/flambeau/frontend/poison"
	"github.com/flambeau-serve/flambeau/internal/fault"
)

// Poison is the memory of requests that have ended workers.
type Poison interface {
	// List gives what is remembered of all versions of a model.
	List(model string) ([]Poisoned, error)
	// Lift forgets the requests of a model whose digests begin so, and says how many these were.
	Lift(ctx context.Context, model, digest string) (int, error)
}

// Poisoned is a request that has ended workers of a version.
type Poisoned struct {
	Version string `json:"version"`
	poison.Entry
}

// shortestDigest is how much of a digest has to be given, in characters.
const shortestDigest = 8

// adminPoison serves /admin/models/M/poison: GET lists the requests that have ended workers, DELETE lets one be tried again.
func (a *API) adminPoison(q *request, model string, params []pair) (answer, error) {
	book := a.opts.Admin.Poison
	if book == nil {
		return answer{}, absent("this server does not remember requests that end workers")
	}
	switch q.head.Method {
	case http.MethodGet:
		if err := known(params); err != nil {
			return answer{}, err
		}
		list, err := book.List(model)
		if err != nil {
			return answer{}, err //nolint:wrapcheck // the model store's words are the client's
		}
		if list == nil {
			list = []Poisoned{}
		}
		return marshal(struct {
			Poison []Poisoned `json:"poison"`
		}{list})
	case http.MethodDelete:
		if err := known(params, "digest"); err != nil {
			return answer{}, err
		}
		digest, _ := param(params, "digest")
		if len(digest) < shortestDigest {
			return answer{}, fault.Newf(fault.BadRequest, "Parameter digest is the beginning of a request's digest, of %d characters or more.", shortestDigest)
		}
		n, err := book.Lift(q.http.Context(), model, digest)
		if err != nil {
			return answer{}, err //nolint:wrapcheck // the same
		}
		if n == 0 {
			return answer{}, fault.Newf(fault.RouteNotFound, "No request of model %s that is refused has a digest that begins with %s.", model, digest)
		}
		return marshal(struct {
			Lifted int `json:"lifted"`
		}{n})
	}
	return answer{}, methodNotAllowed()
}
