package httpapi

import (
	"bytes"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// metricsType is the content type of Prometheus' text format, as TorchServe writes it.
const metricsType = "text/plain; version=0.0.4; charset=utf-8"

// metrics serves /metrics and everything below it, to any method.
func (a *API) metrics(q *request) (answer, bool, error) {
	if q.segments[1] != "metrics" || a.opts.Metrics == nil {
		return answer{}, false, nil
	}
	params, err := queryOf(q.head.Target)
	if err != nil {
		return answer{}, true, err
	}
	var names []string
	for _, p := range params {
		if p.name == "name[]" {
			names = append(names, p.value)
		}
	}
	var b bytes.Buffer
	if err := a.opts.Metrics.WriteText(&b, names); err != nil {
		return answer{}, true, fault.New(fault.Internal, "The metrics could not be gathered.", err)
	}
	return answer{kind: metricsType, body: b.Bytes()}, true, nil
}
