package httpapi

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// Values that TorchServe takes for "not given".
const (
	unsetBatchSize     = -1
	unsetBatchDelay    = -100
	unsetTimeout       = -1
	jsonType           = "application/json"
	unsetBatchDelayRaw = -10000 // what a JSON body without the member becomes in TorchServe, which then waits minus ten seconds
)

// registration is what a client asks for, before it is checked.
type registration struct {
	url, name, handler, runtime                                     *string
	batchSize, batchDelay, workers, responseTimeout, startupTimeout *int
	synchronous                                                     *bool
}

// register registers a model. Parameters come from the query, or from a JSON body and then from nowhere else.
func (a *API) register(q *request, params []pair) (answer, error) {
	reg := registrationOf(params)
	if strings.EqualFold(q.mimeType(), jsonType) {
		var err error
		if reg, err = registrationJSON(q.body); err != nil {
			return answer{}, err
		}
	}
	spec, err := reg.spec()
	if err != nil {
		return answer{}, err
	}
	ctx, cancel := a.detached(q)
	defer cancel()
	done, err := a.opts.Models.Register(ctx, spec)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the model store's words are the client's
	}
	text := `Model "` + done.Ref.Name + `" Version: ` + done.Ref.Version + " registered with " + strconv.Itoa(done.Workers) + " initial workers"
	switch {
	case done.Workers == 0:
		return statusAnswer(text + ". Use scale workers API to add workers for the model."), nil
	case !spec.Synchronous:
		return acceptedAnswer(), nil
	}
	return statusAnswer(text), nil
}

func registrationOf(params []pair) registration {
	text := func(name string) *string {
		if v, ok := param(params, name); ok {
			return &v
		}
		return nil
	}
	synchronous := boolParam(params, "synchronous", true)
	return registration{
		url: text("url"), name: text("model_name"), handler: text("handler"), runtime: text("runtime"), synchronous: &synchronous,
		batchSize: maybeInt(params, "batch_size"), batchDelay: maybeInt(params, "max_batch_delay"), workers: maybeInt(params, "initial_workers"),
		responseTimeout: maybeInt(params, "response_timeout"), startupTimeout: maybeInt(params, "startup_timeout"),
	}
}

// registrationJSON reads a JSON body. Its errors are TorchServe's.
func registrationJSON(body []byte) (registration, error) {
	var reg registration
	texts := map[string]**string{"url": &reg.url, "model_name": &reg.name, "handler": &reg.handler, "runtime": &reg.runtime}
	numbers := map[string]**int{
		"batch_size": &reg.batchSize, "max_batch_delay": &reg.batchDelay, "initial_workers": &reg.workers,
		"response_timeout": &reg.responseTimeout, "startup_timeout": &reg.startupTimeout,
	}
	err := gsonObjectOf(body, func(name string, v gsonValue) (err error) {
		if into, ok := texts[name]; ok {
			*into, err = v.asString()
		} else if into, ok := numbers[name]; ok {
			*into, err = v.asInt()
		} else if name == "synchronous" {
			reg.synchronous, err = v.asBool()
		}
		return err
	})
	if errors.Is(err, errGsonNull) {
		return reg, javaError(fault.BadJSON, firstServerError, "NullPointerException",
			`Cannot invoke "org.pytorch.serve.http.messages.RegisterModelRequest.getModelUrl()" because "registerModelRequest" is null`)
	}
	return reg, err
}

// spec checks a registration.
func (reg registration) spec() (rollout.Spec, error) {
	switch {
	case reg.url == nil:
		return rollout.Spec{}, fault.New(fault.BadRequest, "Parameter url is required.", nil)
	case reg.runtime != nil && *reg.runtime != "python" && *reg.runtime != "python3" && *reg.runtime != "LSP":
		return rollout.Spec{}, fault.New(fault.BadRequest, "Invalid RuntimeType value: "+*reg.runtime, nil)
	case *reg.url == "":
		return rollout.Spec{}, fault.New(fault.ModelNotFound, "empty url", nil)
	}
	return rollout.Spec{
		URL: *reg.url, Name: orEmpty(reg.name), Handler: orEmpty(reg.handler), Runtime: orEmpty(reg.runtime),
		BatchSize: unless(reg.batchSize, unsetBatchSize), InitialWorkers: reg.workers,
		MaxBatchDelay:   duration(unless(unless(reg.batchDelay, unsetBatchDelay), unsetBatchDelayRaw), time.Millisecond),
		ResponseTimeout: duration(unless(reg.responseTimeout, unsetTimeout), time.Second),
		StartupTimeout:  duration(unless(reg.startupTimeout, unsetTimeout), time.Second),
		Synchronous:     reg.synchronous == nil || *reg.synchronous,
	}, nil
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// unless gives n, or nil for the value that means "not given".
func unless(n *int, unset int) *int {
	if n == nil || *n == unset {
		return nil
	}
	return n
}

func duration(n *int, unit time.Duration) *time.Duration {
	if n == nil {
		return nil
	}
	d := time.Duration(*n) * unit
	return &d
}
