package httpapi

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/flambeau-serve/flambeau/frontend/openapi"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// loaded serves /openapi.json, which describes what this listener answers now. TorchServe has nothing there, and a server that is to have only what
// TorchServe has neither.
func (a *API) loaded(q *request) (answer, bool, error) {
	if a.opts.Protocol == nil || len(q.segments) != 2 || q.segments[1] != "openapi.json" {
		return answer{}, false, nil
	}
	if q.head.Method != http.MethodGet && q.head.Method != http.MethodHead {
		return answer{}, true, methodNotAllowed()
	}
	text, err := a.describeLoaded(q.port)
	if err != nil {
		return answer{}, true, fault.New(fault.Internal, "Internal error.", err)
	}
	sum := sha256.Sum256(text)
	tag := `"` + hex.EncodeToString(sum[:16]) + `"`
	ans := jsonAnswer(text)
	ans.fields = []infer.Field{{Name: "ETag", Value: tag}}
	if hasTag(q.head.Get("If-None-Match"), tag) {
		ans.status, ans.body = statusNotModified, nil
	}
	return ans, true, nil
}

// hasTag says whether an If-None-Match header has the tag, or any.
func hasTag(header, tag string) bool {
	for one := range strings.SplitSeq(header, ",") {
		one = strings.TrimPrefix(strings.TrimSpace(one), "W/")
		if one == tag || one == "*" {
			return true
		}
	}
	return false
}

// describeLoaded writes the document of a listener.
func (a *API) describeLoaded(port Port) ([]byte, error) {
	opts := openapi.Options{
		Title: "Flambeau", Version: a.opts.Protocol.Metadata().Version, Keys: a.opts.Keys != nil && port != MetricsPort,
		Inference: port == Inference || port == Joint, Management: port == Management || port == Joint, Extra: map[string]json.RawMessage{},
	}
	opts.ModelAPI = a.opts.ModelAPI && opts.Inference
	opts.SharedMemory = a.opts.Protocol.SharesMemory()
	opts.Models = a.loadedModels()
	for _, p := range a.livePaths(port, &opts) {
		if port == Joint && p.path == versionPath {
			continue // it is the inference API's there, which has no such route
		}
		for i := range p.ops {
			p.ops[i].live = true
			p.ops[i].parameters = withExamples(p.ops[i].parameters, opts.Models)
		}
		text, err := json.Marshal(apiOperations(p.ops))
		if err != nil {
			return nil, err //nolint:wrapcheck // it is wrapped by the caller
		}
		opts.Extra[p.path] = text
	}
	return openapi.Build(opts) //nolint:wrapcheck // the same
}

// livePaths are the paths of a port's document that are described here.
func (a *API) livePaths(port Port, opts *openapi.Options) []apiPath {
	managementKey := ""
	if opts.Keys {
		managementKey = openapi.ManagementKey
	}
	paths := []apiPath{{"/openapi.json", []apiOperation{{
		method: "get", ID: "openapi", summary: "Describes what this listener answers now. The answer has an ETag.", answers: jsonType, statuses: []int{statusOK, statusNotModified},
	}}}}
	paths = append(paths, probePaths()...)
	if opts.Keys && !opts.Inference {
		paths[0].ops[0].key = managementKey
	}
	if port != MetricsPort {
		paths = append(paths, selfPaths()...)
	}
	if opts.Management {
		paths = slices.Concat(paths, withKey(managementKey, modelsPath()), withKey(managementKey, withOptions(modelPaths())...), withKey(managementKey, kservePath()))
		if a.opts.Admin != nil {
			paths = slices.Concat(paths, withKey(managementKey, a.adminPaths()...))
		}
		if opts.Keys {
			paths = append(paths, rotationPath())
		}
	}
	if a.opts.Metrics != nil && (port == MetricsPort || port == Joint) {
		paths = append(paths, metricsPath())
	}
	return paths
}

func withKey(key string, paths ...apiPath) []apiPath {
	for _, p := range paths {
		for i := range p.ops {
			p.ops[i].key = key
		}
	}
	return paths
}

// probePaths are the probes.
func probePaths() []apiPath {
	probe := func(name, what string, parameters ...apiParameter) apiPath {
		return apiPath{"/" + name, []apiOperation{{
			method: "get", ID: name, summary: what, answers: jsonType, statuses: []int{statusOK, statusUnavailable}, parameters: parameters, open: true,
		}}}
	}
	return []apiPath{
		probe(probeLive, "Says that the server runs."),
		probe(probeStarted, "Says whether what was there at the start has come up, or failed."),
		probe(probeReady, "Says whether the server is to be sent requests. With parameters it needs the key of this address.",
			queryParam("verbose", "string", nil, "Tells how each model is."), queryParam("model", "string", nil, "Asks about one model alone."),
			queryParam("version", "string", nil, "Its version.")),
	}
}

// selfPaths are TorchServe's descriptions of the API. No key protects them.
func selfPaths() []apiPath {
	describe := func(path, method, id string) apiPath {
		return apiPath{path, []apiOperation{{method: method, ID: id, summary: "Describes the API, as TorchServe does.", answers: jsonType, statuses: []int{statusOK}, open: true}}}
	}
	return []apiPath{describe("/", "options", "apiDescription"), describe("/api-description", "get", "apiDescriptionAgain")}
}

// withOptions adds to the routes of models that OPTIONS describes them, which TorchServe's own descriptions leave out.
func withOptions(paths []apiPath) []apiPath {
	for i := range paths {
		first := &paths[i].ops[0]
		op := apiOperation{
			method: "options", ID: first.ID + "_options", summary: "Describes how a model is administered, as TorchServe does.", answers: jsonType,
			statuses: []int{statusOK}, kinds: []fault.Kind{fault.ModelNotFound, fault.VersionNotFound},
		}
		for _, p := range first.parameters {
			if p.In == "path" {
				op.parameters = append(op.parameters, p)
			}
		}
		paths[i].ops = append(paths[i].ops, op)
		if first.method == "get" {
			first.parameters = append(slices.Clone(first.parameters),
				queryParam("customized", "boolean", false, "Whether the model's handler is asked to describe itself, too."),
				queryParam("details", "boolean", false, "Whether to tell what TorchServe does not."))
		}
		if strings.HasSuffix(paths[i].path, "/set-default") {
			get := op
			get.method, get.ID, get.summary = "get", "describeDefault", "Describes the default version of a model, as TorchServe does."
			paths[i].ops = append(paths[i].ops, get)
		}
	}
	return paths
}

// kservePath is the state of a model as KServe's version 1 has it.
func kservePath() apiPath {
	return apiPath{"/v1/models/{model_name}", []apiOperation{{
		method: "get", ID: "kserve1Model", summary: "Says whether a model has workers, as KServe's version 1 has it.", answers: jsonType,
		parameters: []apiParameter{pathParam("model_name", "The model's name.")}, statuses: []int{statusOK}, kinds: []fault.Kind{fault.ModelNotFound},
	}}}
}

// rotationPath is where a key is made anew, with a key of its own.
func rotationPath() apiPath {
	kind := apiParameter{In: "query", Name: "type", Description: "Which key.", Required: true, Schema: apiSchema{Type: "string", Enum: []string{"inference", "management"}}}
	return apiPath{tokenPath, []apiOperation{{
		method: "get", ID: "rotateKey", summary: "Makes a key anew, and writes it to key_file.json. It needs the API key of that file.", parameters: []apiParameter{kind},
		statuses: []int{statusOK}, kinds: []fault.Kind{fault.InvalidKey},
	}}}
}

// withExamples gives the parameters of paths the name and version of a model as examples.
func withExamples(parameters []apiParameter, models []openapi.Model) []apiParameter {
	if len(models) == 0 {
		return parameters
	}
	parameters = slices.Clone(parameters)
	for i := range parameters {
		switch p := &parameters[i]; {
		case p.In != "path":
		case p.Name == "model_name":
			p.Example = models[0].Name
		case p.Name == "model_version":
			p.Example = models[0].Version
		}
	}
	return parameters
}

// loadedModels are all the versions of all the models.
func (a *API) loadedModels() []openapi.Model {
	var models []openapi.Model
	for _, listed := range a.opts.Models.List() {
		versions, err := a.opts.Models.DescribeAll(listed.Name)
		if err != nil {
			continue // it was unregistered in this moment
		}
		for i := range versions {
			d := &versions[i]
			models = append(models, openapi.Model{
				Name: d.Ref.Name, Version: d.Ref.Version, Default: d.Default, Runtime: d.Runtime, Handler: d.Runs, Digest: d.Digest, Source: d.URL, Ports: d.Ports,
			})
		}
	}
	return models
}

// liveResponses are an operation's answers as they are: JSON of any form, and any failure with TorchServe's error object.
func (o *apiOperation) liveResponses() map[string]apiResponse {
	all := map[string]apiResponse{"default": response(firstErrorStatus, "")}
	if !o.open {
		o.failures(all)
	}
	for _, status := range o.statuses {
		r := response(status, o.answers)
		if had, is := all[strconv.Itoa(status)]; is {
			r = had
		}
		switch {
		case status == statusNotModified:
			r = apiResponse{Description: "It is as the client has it."}
		case (status < firstErrorStatus || o.open) && o.answers == jsonType:
			r.Content = content(jsonType, apiSchema{})
		}
		all[strconv.Itoa(status)] = r
	}
	return all
}

// failures adds the statuses by which an operation may fail, with the reasons behind each.
func (o *apiOperation) failures(responses map[string]apiResponse) {
	kinds := slices.Concat(o.kinds, openapi.AnyRequest())
	if o.key != "" {
		kinds = append(kinds, fault.InvalidKey)
	}
	reasons := map[int][]string{}
	for _, k := range kinds {
		status := fault.HTTPStatus(fault.New(k, "", nil))
		if !slices.Contains(reasons[status], k.String()) {
			reasons[status] = append(reasons[status], k.String())
		}
	}
	for status, why := range reasons {
		slices.Sort(why)
		r := response(status, "")
		r.Description = "It failed: " + strings.Join(why, ", ") + "."
		if status == statusTooLarge { // that answer has no body
			r.Content = nil
		}
		responses[strconv.Itoa(status)] = r
	}
}
