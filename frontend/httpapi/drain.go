package httpapi

import (
	"net/http"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// Drain takes the server out of traffic while it still serves.
type Drain interface {
	Begin() // says it is not ready from now on; again: nothing
	// End says that it is ready again. That of a server that ends is an error.
	End() error
	// Ending is closed when the server begins to end.
	Ending() <-chan struct{}
	// State gives since when the server says that it is not ready, zero while it does not, and how many requests are under way.
	State() (since time.Time, open int64)
}

// longestWait is the longest time that POST /admin/drain waits, in seconds.
const longestWait = 600

// adminDrain serves /admin/drain: GET tells, POST takes the server out of traffic and returns wait seconds later or, before that, when whoever asked has
// gone or the server ends, and DELETE takes it in again. Requests are served all the while.
func (a *API) adminDrain(q *request, params []pair) (answer, error) {
	d := a.opts.Admin.Drain
	if d == nil {
		return answer{}, absent("this server cannot be drained")
	}
	allowed := []string{}
	if q.head.Method == http.MethodPost {
		allowed = append(allowed, "wait")
	}
	if err := known(params, allowed...); err != nil {
		return answer{}, err
	}
	switch q.head.Method {
	case http.MethodGet:
	case http.MethodPost:
		wait, err := number(params, "wait", 0)
		if err != nil {
			return answer{}, err
		}
		if wait > longestWait {
			return answer{}, fault.Newf(fault.BadRequest, "Parameter wait is %d seconds, and %d are the most.", wait, longestWait)
		}
		d.Begin()
		timer := time.NewTimer(time.Duration(wait) * time.Second)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-d.Ending(): // it would hold up the end of the server
		case <-q.http.Context().Done():
		}
	case http.MethodDelete:
		if err := d.End(); err != nil {
			return answer{}, err
		}
	default:
		return answer{}, methodNotAllowed()
	}
	since, open := d.State()
	return marshal(struct {
		Draining bool       `json:"draining"`
		Since    *time.Time `json:"since"`
		Requests int64      `json:"requests"`
	}{!since.IsZero(), momentOf(since), open})
}
