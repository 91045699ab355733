package httpapi

import (
	"time"

	"github.com/flambeau-serve/flambeau/frontend/recent"
	"github.com/flambeau-serve/flambeau/internal/fault"
)

// Requests remembers the latest requests and the slowest ones.
type Requests interface {
	// Slow gives a model's slowest requests since a time, the slowest first.
	Slow(model string, since time.Time, limit int) []recent.Request
	// Find gives the requests that had an ID, the oldest first.
	Find(id string) []recent.Request
}

// Request is a request as /admin tells about it.
type Request struct {
	ID       string    `json:"id"`
	Model    string    `json:"model"`
	Version  string    `json:"version"`
	Arrived  time.Time `json:"arrived"`
	TotalMS  float64   `json:"total_ms"`
	WaitedMS float64   `json:"waited_ms"`
	// GatheredMS is how long its batch waited for others, RanMS how long the worker took.
	GatheredMS float64 `json:"gathered_ms"`
	RanMS      float64 `json:"ran_ms"`
	Batch      *Batch  `json:"batch"`  // null when it did not get to a worker
	Behind     *Batch  `json:"behind"` // null when it found a free worker
	BytesIn    int64   `json:"bytes_in"`
	BytesOut   int64   `json:"bytes_out"`
	Status     int     `json:"status"`
	Reason     string  `json:"reason"` // of its failure, "" when it was answered well
	Why        string  `json:"why"`    // where most of the time went
}

// Batch is a run of a batch as /admin tells about it.
type Batch struct {
	Number   uint64    `json:"number"`
	Requests []string  `json:"requests"` // their IDs
	Rows     int       `json:"rows"`
	Worker   int       `json:"worker"`
	PID      int       `json:"pid"`
	Begun    time.Time `json:"begun"`
	RanMS    float64   `json:"ran_ms"`
}

func requestsOf(all []recent.Request) (answer, error) {
	told := make([]Request, 0, len(all))
	for i := range all {
		r := &all[i]
		told = append(told, Request{
			ID: r.ID, Model: r.Model, Version: r.Version, Arrived: r.Arrived.UTC(), TotalMS: milliseconds(r.Total), WaitedMS: milliseconds(r.Waited),
			GatheredMS: milliseconds(r.Gathered), RanMS: milliseconds(r.Ran), Batch: batchOf(r.Batch), Behind: batchOf(r.Behind),
			BytesIn: r.BytesIn, BytesOut: r.BytesOut, Status: r.Status, Reason: r.Reason, Why: r.Why(),
		})
	}
	return marshal(struct {
		Requests []Request `json:"requests"`
	}{told})
}

func batchOf(b *recent.Batch) *Batch {
	if b == nil {
		return nil
	}
	return &Batch{Number: b.Number, Requests: b.Requests, Rows: b.Rows, Worker: b.Worker, PID: b.PID, Begun: b.Begun.UTC(), RanMS: milliseconds(b.Ran)}
}

const (
	fewSlow     = 10            // requests that are told when nobody says how many
	longestPast = 7 * 24 * 3600 // seconds that may be asked for
)

// adminSlow serves GET /admin/models/M/slow: the slowest requests of the last hour, or of the last so many seconds.
func (a *API) adminSlow(model string, params []pair) (answer, error) {
	if a.opts.Admin.Requests == nil {
		return answer{}, absent("this server does not remember requests (request_history=false)")
	}
	if err := known(params, "limit", "seconds"); err != nil {
		return answer{}, err
	}
	if err := a.exists(model); err != nil {
		return answer{}, err
	}
	limit, err := number(params, "limit", fewSlow)
	if err != nil {
		return answer{}, err
	}
	seconds, err := number(params, "seconds", 0)
	if err != nil {
		return answer{}, err
	}
	if limit < 1 || limit > mostEvents || seconds > longestPast {
		return answer{}, fault.Newf(fault.BadRequest, "Parameter limit is from 1 to %d, seconds from 1 to %d.", mostEvents, longestPast)
	}
	var since time.Time
	if seconds > 0 {
		since = time.Now().Add(-time.Duration(seconds) * time.Second)
	}
	return requestsOf(a.opts.Admin.Requests.Slow(model, since, int(limit)))
}

// adminRequest serves GET /admin/requests/ID.
func (a *API) adminRequest(id string, params []pair) (answer, error) {
	if a.opts.Admin.Requests == nil {
		return answer{}, absent("this server does not remember requests (request_history=false)")
	}
	if err := known(params); err != nil {
		return answer{}, err
	}
	found := a.opts.Admin.Requests.Find(id)
	if len(found) == 0 {
		f := fault.Newf(fault.RouteNotFound, "Request not found: %s", id)
		f.Hint = "of each model the latest 1000 requests and the slowest 100 of the last hour are remembered; the id is that of the answer's header x-request-id"
		return answer{}, f
	}
	return requestsOf(found)
}
