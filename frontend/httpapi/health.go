package httpapi

import (
	"net/http"
	"slices"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// Readiness says which models have to be ready for the server to be. The zero value: all of them.
type Readiness struct {
	Any   bool     // one is enough
	Names []string // only these count; they have to be loaded
}

// The probes, which TorchServe does not have: it answers 404 there. No key is needed to hear that all is well or not.
const (
	probeLive    = "livez"
	probeReady   = "readyz"
	probeStarted = "startupz"
)

// healthAnswer is what the probes answer.
type healthAnswer struct {
	Status   string        `json:"status"`
	Reason   string        `json:"reason,omitempty"` // why it is not well, in a word
	Draining *bool         `json:"draining,omitempty"`
	Models   []modelHealth `json:"models,omitempty"`
}

// modelHealth is how one model is.
type modelHealth struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Ready   bool   `json:"ready"`
	Counts  bool   `json:"counts"` // the server is not ready without it
	State   string `json:"state"`
	Workers struct {
		Ready  int `json:"ready"`
		Wanted int `json:"wanted"`
	} `json:"workers"`
	Reason string `json:"reason"`
}

// probe answers the probes, on every port.
func (a *API) probe(q *request) (answer, bool, error) {
	if len(q.segments) != 2 || q.segments[1] != probeLive && q.segments[1] != probeReady && q.segments[1] != probeStarted {
		return answer{}, false, nil
	}
	if q.head.Method != http.MethodGet && q.head.Method != http.MethodHead {
		return answer{}, true, methodNotAllowed()
	}
	var h healthAnswer
	well := true
	switch q.segments[1] {
	case probeLive:
		h.Status = "live"
	case probeStarted:
		if h.Status = "started"; !a.hasStarted() {
			h.Status, h.Reason, well = "starting", "models", false
		}
	default:
		params, err := queryOf(q.head.Target)
		if err != nil {
			return answer{}, true, err
		}
		if len(params) > 0 { // names and reasons are for those who have a key
			if ans, done, err := a.authorize(q); done || err != nil {
				return ans, true, err
			}
		}
		if h, well, err = a.readiness(params); err != nil {
			return answer{}, true, err
		}
	}
	ans, err := marshal(h)
	if !well {
		ans.status = statusUnavailable
	}
	return ans, true, err
}

// hasStarted says whether every model that was there has come up or failed once. From then on it stays so.
func (a *API) hasStarted() bool {
	if a.started.Load() {
		return true
	}
	for _, listed := range a.opts.Models.List() {
		versions, err := a.opts.Models.DescribeAll(listed.Name)
		if err == nil && slices.ContainsFunc(versions, func(d rollout.Description) bool { return d.State == "deploying" }) {
			return false
		}
	}
	a.started.Store(true)
	return true
}

// readiness answers /readyz: for the server, or with ?model=M for that model alone; with ?verbose it tells how each model is.
func (a *API) readiness(params []pair) (h healthAnswer, ready bool, err error) {
	_, verbose := param(params, "verbose")
	draining := a.draining()
	if name, one := param(params, "model"); one {
		version, _ := param(params, "version")
		d, err := a.opts.Models.Describe(infer.ModelRef{Name: name, Version: version})
		if err != nil {
			return h, false, err //nolint:wrapcheck // the model store's words are the client's
		}
		m := healthOf(&d)
		m.Counts = a.counts(name)
		h.Models, ready = []modelHealth{m}, m.Workers.Ready > 0
	} else {
		h.Models = a.modelsHealth()
		ready = a.enough(h.Models)
	}
	switch {
	case draining:
		h.Status, h.Reason, ready = "not ready", fault.Draining.String(), false
	case ready:
		h.Status = "ready"
	default:
		h.Status, h.Reason = "not ready", "models"
	}
	if verbose {
		h.Draining = &draining
	} else {
		h.Models = nil
	}
	return h, ready, nil
}

func (a *API) draining() bool {
	if a.opts.Admin == nil || a.opts.Admin.Drain == nil {
		return false
	}
	since, _ := a.opts.Admin.Drain.State()
	return !since.IsZero()
}

// modelsHealth tells of the default version of each model, and of those that have to be there and are not.
func (a *API) modelsHealth() []modelHealth {
	all := []modelHealth{}
	for _, listed := range a.opts.Models.List() {
		d, err := a.opts.Models.Describe(infer.ModelRef{Name: listed.Name})
		if err != nil {
			continue // it was unregistered in this moment
		}
		m := healthOf(&d)
		m.Counts = a.counts(m.Name)
		all = append(all, m)
	}
	for _, name := range a.opts.Readiness.Names {
		if !slices.ContainsFunc(all, func(m modelHealth) bool { return m.Name == name }) {
			all = append(all, modelHealth{Name: name, Counts: true, State: "not loaded", Reason: "readiness_models names it, and there is no model of that name"})
		}
	}
	return all
}

func (a *API) counts(name string) bool {
	return len(a.opts.Readiness.Names) == 0 || slices.Contains(a.opts.Readiness.Names, name)
}

// enough says whether the models that count are ready. One that is to have no workers is as it should be.
func (a *API) enough(models []modelHealth) bool {
	if a.opts.Readiness.Any {
		return slices.ContainsFunc(models, func(m modelHealth) bool { return m.Workers.Ready > 0 })
	}
	return !slices.ContainsFunc(models, func(m modelHealth) bool { return m.Counts && !m.Ready })
}

// healthOf tells how a version is: it is ready when a worker of it is, however many there should be.
func healthOf(d *rollout.Description) modelHealth {
	m := modelHealth{Name: d.Ref.Name, Version: d.Ref.Version, State: d.State, Reason: d.Reason}
	for i := range d.Workers {
		if d.Workers[i].Ready {
			m.Workers.Ready++
		}
	}
	m.Workers.Wanted = d.MinWorkers
	m.Ready = m.Workers.Ready > 0 || d.MinWorkers == 0 && len(d.Workers) == 0
	return m
}
