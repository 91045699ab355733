package httpapi

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

const (
	modelAPIHint = "Models can be registered and unregistered over the API only when the server is started with enable_model_api=true (--enable-model-api)."
	mostListed   = 100
)

// isManagement says whether a path is the management API's, whatever becomes of it there.
func isManagement(segments []string) bool {
	return segments[1] == "models" || segments[1] == "v1" && len(segments) == 4 && segments[2] == "models"
}

// management serves the management API.
func (a *API) management(q *request) (answer, bool, error) {
	if !isManagement(q.segments) {
		return answer{}, false, nil
	}
	if q.segments[1] == "v1" {
		ans, err := a.ready(q)
		return ans, true, err
	}
	params, err := queryOf(q.head.Target)
	if err != nil {
		return answer{}, true, err
	}
	var ans answer
	switch n := len(q.segments); {
	case n == 2:
		ans, err = a.allModels(q, params)
	case n <= 4:
		ref := infer.ModelRef{Name: q.segments[2]}
		if n == 4 {
			ref.Version = q.segments[3]
		}
		ans, err = a.oneModel(q, ref, params)
	case n == 5 && q.segments[4] == "set-default":
		ans, err = a.defaultVersion(q, infer.ModelRef{Name: q.segments[2], Version: q.segments[3]})
	default:
		err = notFound()
	}
	return ans, true, err
}

// allModels serves /models.
func (a *API) allModels(q *request, params []pair) (answer, error) {
	switch q.head.Method {
	case http.MethodGet:
		return a.list(params)
	case http.MethodPost:
		if !a.opts.ModelAPI {
			return answer{}, modelAPIOff()
		}
		return a.register(q, params)
	}
	return answer{}, methodNotAllowed()
}

// oneModel serves /models/M and /models/M/V.
func (a *API) oneModel(q *request, ref infer.ModelRef, params []pair) (answer, error) {
	switch q.head.Method {
	case http.MethodGet:
		return a.describe(q, ref, params)
	case http.MethodPut:
		return a.scale(q, ref, params)
	case http.MethodDelete:
		if !a.opts.ModelAPI {
			return answer{}, modelAPIOff()
		}
		return a.unregister(q, ref)
	case http.MethodOptions:
		return a.describeAdmin(ref)
	}
	return answer{}, methodNotAllowed()
}

// defaultVersion serves /models/M/V/set-default. GET describes the default version, as TorchServe does; its DELETE, which
// unregisters the default version there, is refused.
func (a *API) defaultVersion(q *request, ref infer.ModelRef) (answer, error) {
	switch q.head.Method {
	case http.MethodPut:
		if err := a.setDefault(rollout.WithActor(q.http.Context(), actorOf(q)), ref); err != nil {
			return answer{}, err
		}
		return statusAnswer(`Default version successfully updated for model "` + ref.Name + `" to "` + ref.Version + `"`), nil
	case http.MethodGet:
		return a.describe(q, infer.ModelRef{Name: ref.Name}, nil)
	case http.MethodOptions:
		return a.describeAdmin(infer.ModelRef{Name: ref.Name})
	}
	return answer{}, methodNotAllowed()
}

func (a *API) setDefault(ctx context.Context, ref infer.ModelRef) error {
	if ref.Version != "" {
		return a.opts.Models.SetDefault(ctx, ref) //nolint:wrapcheck // the model store's words are the client's
	}
	if _, err := a.opts.Models.Describe(infer.ModelRef{Name: ref.Name}); err != nil {
		return err //nolint:wrapcheck // the model store's words are the client's
	}
	return fault.Newf(fault.VersionNotFound, "Model version %s does not exist for model %s", ref.Version, ref.Name)
}

// describeAdmin describes the management routes of a model that exists.
func (a *API) describeAdmin(ref infer.ModelRef) (answer, error) {
	if _, err := a.opts.Models.Describe(ref); err != nil {
		return answer{}, err //nolint:wrapcheck // the model store's words are the client's
	}
	return jsonAnswer(describeModelAdmin(ref.Name)), nil
}

// unregister removes a version. It is not left half done when the client leaves.
func (a *API) unregister(q *request, ref infer.ModelRef) (answer, error) {
	ctx, cancel := a.detached(q)
	defer cancel()
	if err := a.opts.Models.Unregister(ctx, ref); err != nil {
		return answer{}, err //nolint:wrapcheck // the model store's words are the client's
	}
	return statusAnswer(`Model "` + ref.Name + `" unregistered`), nil
}

// scale changes the number of workers.
func (a *API) scale(q *request, ref infer.ModelRef, params []pair) (answer, error) {
	minimum := intParam(params, "min_worker", 1)
	maximum := intParam(params, "max_worker", minimum)
	synchronous := boolParam(params, "synchronous", false)
	shown := ""
	if ref.Version == "" {
		if v, ok := param(params, "model_version"); ok {
			if ref.Version = v; v == "" {
				return answer{}, a.noSuchVersion(ref)
			}
		}
	}
	if ref.Version != "" {
		shown = ", version: " + ref.Version
	}
	if maximum < minimum {
		return answer{}, fault.New(fault.BadRequest, "max_worker cannot be less than min_worker.", nil)
	}
	if minimum < 0 {
		return answer{}, a.negativeWorkers(ref, maximum)
	}
	ctx, cancel := a.detached(q)
	defer cancel()
	if err := a.opts.Models.Scale(ctx, ref, minimum, maximum, synchronous); err != nil {
		return answer{}, err //nolint:wrapcheck // the model store's words are the client's
	}
	if !synchronous {
		return acceptedAnswer(), nil
	}
	return statusAnswer("Workers scaled to " + strconv.Itoa(minimum) + " for model: " + ref.Name + shown), nil
}

// negativeWorkers refuses numbers below zero: with TorchServe's words where it fails on them, without touching a worker.
func (a *API) negativeWorkers(ref infer.ModelRef, maximum int) error {
	if _, err := a.opts.Models.Describe(ref); err != nil {
		return err //nolint:wrapcheck // the model store's words are the client's
	}
	if maximum < 0 {
		return javaError(fault.BadRequest, firstServerError, "IndexOutOfBoundsException", "Index -1 out of bounds for length 0")
	}
	return fault.New(fault.BadRequest, "min_worker cannot be negative.", nil)
}

// list serves the list of models, a page at a time.
func (a *API) list(params []pair) (answer, error) {
	limit := intParam(params, "limit", mostListed)
	if limit > mostListed || limit < 0 {
		limit = mostListed
	}
	models := a.opts.Models.List()
	from := max(intParam(params, "next_page_token", 0), 0)
	to := from + limit
	type item struct {
		Name string `json:"modelName"`
		URL  string `json:"modelUrl"`
	}
	page := struct {
		Next   *string `json:"nextPageToken,omitempty"`
		Models []item  `json:"models"`
	}{Models: []item{}}
	if to <= len(models) { // also when nothing comes after it, as TorchServe does
		next := strconv.Itoa(to)
		page.Next = &next
	}
	for _, m := range models[min(from, len(models)):min(to, len(models))] {
		page.Models = append(page.Models, item{m.Name, m.URL})
	}
	return marshal(page)
}

// ready serves KServe's GET /v1/models/M: a model is ready that has workers, whatever they do.
func (a *API) ready(q *request) (answer, error) {
	if q.head.Method != http.MethodGet {
		return answer{}, methodNotAllowed()
	}
	name, _, _ := strings.Cut(q.segments[3], ":")
	d, err := a.opts.Models.Describe(infer.ModelRef{Name: name})
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the model store's words are the client's
	}
	return marshal(struct {
		Name  string `json:"name"`
		Ready bool   `json:"ready"`
	}{name, len(d.Workers) > 0})
}

// detached is a context for work that must not be left half done: it outlives the client, but not the limit. It says who asked for the work.
func (a *API) detached(q *request) (context.Context, context.CancelFunc) {
	return context.WithTimeout(rollout.WithActor(context.WithoutCancel(q.http.Context()), actorOf(q)), a.opts.AdminTimeout)
}

func modelAPIOff() error {
	return &fault.Error{Kind: fault.MethodNotAllowed, Message: methodMessage, Hint: modelAPIHint}
}

// intParam reads a number; what cannot be read as a Java int counts as not given.
func intParam(params []pair, name string, standard int) int {
	if n := maybeInt(params, name); n != nil {
		return *n
	}
	return standard
}

func maybeInt(params []pair, name string) *int {
	text, ok := param(params, name)
	if !ok {
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return nil
	}
	i := int(n)
	return &i
}

// boolParam reads a truth: "true" in any case, or not.
func boolParam(params []pair, name string, standard bool) bool {
	if text, ok := param(params, name); ok {
		return strings.EqualFold(text, "true")
	}
	return standard
}
