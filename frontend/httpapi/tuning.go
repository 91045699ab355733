package httpapi

import (
	"fmt"
	"net/http"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/dispatch"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// TuningControl shows and keeps what was found for a latency goal.
type TuningControl interface {
	Tuning(ref infer.ModelRef) (dispatch.Tuning, error)
	Freeze(ref infer.ModelRef, on bool) error
}

// tuningAnswer is how a version's batches are tuned. Times are in milliseconds.
type tuningAnswer struct {
	Model   string       `json:"model"`
	Version string       `json:"version"`
	Goal    float64      `json:"p99Ms"`
	Now     tuningLimits `json:"now"`
	Bounds  tuningLimits `json:"bounds"`
	Frozen  bool         `json:"frozen"`
	Config  string       `json:"config"` // what keeps it, as lines of model-config.yaml
	// Workers has each worker's own, where the requests of a sequence go to one worker: Now, and Config, are the smallest and the shortest of them.
	Workers []tuningWorker `json:"workers,omitempty"`
}

type tuningWorker struct {
	Worker int `json:"worker"`
	tuningLimits
}

type tuningLimits struct {
	Size  int     `json:"batchSize"`
	Delay float64 `json:"maxBatchDelay"`
}

// adminTuning serves /admin/models/M/tuning: GET tells what was found for the latency goal of a version, PUT keeps it (frozen=true) or lets it move again.
func (a *API) adminTuning(q *request, model string, params []pair) (answer, error) {
	control := a.opts.Admin.Tuning
	if control == nil {
		return answer{}, absent("this server does not tune batches")
	}
	version, _ := param(params, "version")
	ref := infer.ModelRef{Name: model, Version: version}
	switch q.head.Method {
	case http.MethodGet:
		if err := known(params, "version"); err != nil {
			return answer{}, err
		}
	case http.MethodPut:
		if err := known(params, "version", "frozen"); err != nil {
			return answer{}, err
		}
		text, _ := param(params, "frozen")
		if text != "true" && text != "false" {
			return answer{}, fault.Newf(fault.BadRequest, "Parameter frozen is %q: it has to be true or false.", text)
		}
		if err := control.Freeze(ref, text == "true"); err != nil {
			return answer{}, err //nolint:wrapcheck // the queue's words are the client's
		}
	default:
		return answer{}, methodNotAllowed()
	}
	t, err := control.Tuning(ref)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the same
	}
	d, err := a.opts.Models.Describe(ref)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the same
	}
	told := tuningAnswer{
		Model: model, Version: d.Ref.Version, Goal: milliseconds(t.Goal), Frozen: t.Frozen,
		Now:    tuningLimits{t.Size, milliseconds(t.Delay)},
		Bounds: tuningLimits{t.MostSize, milliseconds(t.MostDelay)},
		Config: fmt.Sprintf("batchSize: %d\nmaxBatchDelay: %d\n", t.Size, (t.Delay+time.Millisecond-1)/time.Millisecond),
	}
	for _, w := range t.Workers {
		told.Workers = append(told.Workers, tuningWorker{w.Worker, tuningLimits{w.Size, milliseconds(w.Delay)}})
	}
	return marshal(told)
}
