package httpapi

import (
	"net/http"
	"strings"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// route finds the request's route. Each API is asked in turn whether the request is its own.
func (a *API) route(q *request) (answer, error) {
	type part func(*request) (answer, bool, error)
	for _, ask := range [ports][]part{
		Inference:   {a.loaded, a.protocol, a.inference, a.openInference},
		Management:  {a.loaded, a.management, a.admin},
		MetricsPort: {a.loaded, a.metrics},
		Joint:       {a.loaded, a.protocol, a.inference, a.management, a.admin, a.openInference, a.metrics},
	}[q.port] {
		if ans, mine, err := ask(q); mine {
			return ans, err
		}
	}
	return answer{}, notFound()
}

// isInference says whether a path is the inference API's, whatever becomes of it there.
func isInference(segments []string) bool {
	n := len(segments)
	switch segments[1] {
	case "ping", "predictions", "explanations", "invocations":
		return true
	case "models":
		if n == 4 {
			return true
		}
	case "v1":
		if n == 4 && segments[2] == "models" && (strings.Contains(segments[3], ":predict") || strings.Contains(segments[3], ":explain")) {
			return true
		}
	case "v2":
		if n == 5 && segments[2] == "models" && (segments[4] == "infer" || segments[4] == "explain") {
			return true
		}
	}
	return (n == 3 || n == 4) && segments[n-1] == "predict"
}

// inference serves the inference API: any method will do, even one that does not exist.
func (a *API) inference(q *request) (answer, bool, error) {
	if !isInference(q.segments) {
		return answer{}, false, nil
	}
	if q.segments[1] == "ping" {
		ans, err := a.ping()
		return ans, true, err
	}
	to, how, err := a.wanted(q)
	if err != nil {
		return answer{}, true, err
	}
	ans, err := a.predict(q, to, how)
	return ans, true, err
}

// wanted says what a request of the inference API is for, and what its route does differently.
func (a *API) wanted(q *request) (target, options, error) {
	switch s, n := q.segments, len(q.segments); {
	case s[1] == "predictions", s[1] == "explanations":
		return predictions(s)
	case s[1] == "invocations" && n == 2: // SageMaker's
		params, err := queryOf(q.head.Target)
		return a.startupModel(param(params, "model_name")), options{query: true}, err
	case s[1] == "models" && s[3] == "invoke":
		return a.startupModel(s[2], true), options{query: true}, nil
	case s[1] == "invocations", s[1] == "models":
		return target{}, options{}, notFound()
	case s[1] == "v1" && s[n-1] != "predict":
		name, _, _ := strings.Cut(s[3], ":")
		return target{name: name, named: true}, options{explain: explains(!strings.Contains(s[3], ":predict"))}, nil
	case s[1] == "v2" && n == 5:
		return target{name: s[3], named: true}, options{explain: explains(s[4] == "explain")}, nil
	case n == 4:
		return target{name: s[1], named: true, version: s[2], versioned: true}, options{query: true}, nil
	default:
		return target{name: s[1], named: true}, options{query: true}, nil
	}
}

// ping answers whether the default versions have the workers that they should have.
func (a *API) ping() (answer, error) {
	if a.opts.Models.Healthy() {
		return jsonAnswer([]byte("{\n  \"status\": \"Healthy\"\n}\n")), nil
	}
	ans := jsonAnswer([]byte("{\n  \"status\": \"Unhealthy\"\n}\n"))
	ans.status = firstServerError
	return ans, nil
}

// predictions is wanted for /predictions/M and /explanations/M, a version and anything after it.
func predictions(s []string) (target, options, error) {
	if len(s) < 3 {
		return target{}, options{}, notFound()
	}
	to := target{name: s[2], named: true}
	if len(s) > 3 {
		to.version, to.versioned = s[3], true
	}
	path := strings.Join(s[min(len(s), 4):], "/")
	return to, options{explain: explains(s[1] == "explanations"), path: &path}, nil
}

// startupModel fills a missing name in when only one model was loaded at start.
func (a *API) startupModel(name string, named bool) target {
	if name == "" {
		if names := a.opts.Models.StartupModels(); len(names) == 1 {
			return target{name: names[0], named: true}
		}
	}
	return target{name: name, named: named}
}

// target is what a request is for, as far as its path says.
type target struct {
	name      string
	named     bool
	version   string
	versioned bool // the version may be the empty text, which is none that a model has
}

// options are what the routes do differently.
type options struct {
	query   bool    // query parameters become fields
	explain string  // value of the header explain that the handler sees, "" for none
	path    *string // value of the header url_path, nil for none
}

func explains(yes bool) string {
	if yes {
		return "True"
	}
	return "False"
}

// predict runs a request on a model, or describes the model's route to OPTIONS.
func (a *API) predict(q *request, to target, how options) (answer, error) {
	parts, err := q.parts(how.query)
	if err != nil {
		return answer{}, err
	}
	if !to.named {
		if to.name, to.named = textOf(parts, "model_name"); !to.named {
			return answer{}, fault.New(fault.BadRequest, "Parameter model_name is required.", nil)
		}
	}
	ref := infer.ModelRef{Name: to.name, Version: to.version}
	if to.versioned && to.version == "" {
		return answer{}, a.noSuchVersion(ref)
	}
	if q.head.Method == http.MethodOptions {
		if _, err := a.opts.Models.Describe(ref); err != nil {
			return answer{}, err //nolint:wrapcheck // the model store's words are the client's
		}
		return jsonAnswer(describeModel(ref.Name)), nil
	}
	header := q.handlerHeader(2)
	if how.path != nil {
		header = append(header, infer.Field{Name: "url_path", Value: *how.path})
	}
	if how.explain != "" {
		header = append(header, infer.Field{Name: "explain", Value: how.explain})
	}
	out := &stream{api: a, request: q}
	res, err := a.opts.Predictor.Submit(q.http.Context(), ref, infer.Item{ID: q.id, Header: header, Parts: parts, Peer: q.peer(), Emit: out.emit})
	if out.end() {
		return out.last(res, err)
	}
	if err != nil {
		return answer{}, noWorker(err, ref)
	}
	return handlerAnswer(res)
}

// noWorker gives a refusal to predict TorchServe's words.
func noWorker(err error, ref infer.ModelRef) error {
	return unavailable(err, ref, "inference", " If this is a sequence inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize")
}

// noSuchVersion is the answer to an empty version, which TorchServe looks for like any other.
func (a *API) noSuchVersion(ref infer.ModelRef) error {
	if _, err := a.opts.Models.Describe(infer.ModelRef{Name: ref.Name}); err != nil {
		return err //nolint:wrapcheck // the model store's words are the client's
	}
	return fault.Newf(fault.VersionNotFound, "Model version: %s does not exist for model: %s", ref.Version, ref.Name)
}

// handlerAnswer is the answer that a handler made.
func handlerAnswer(res infer.Result) (answer, error) {
	if res.Status != 0 && (res.Status < lowestStatus || res.Status > highestStatus) {
		return answer{}, &fault.Error{Kind: fault.HandlerFailed, Message: "Invalid response status.", Code: res.Status}
	}
	return answer{status: res.Status, fields: res.Header, body: res.Body}, nil
}
