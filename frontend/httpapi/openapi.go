package httpapi

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// torchServeVersion is the release whose API this is.
const torchServeVersion = "0.12.0"

// apiDoc is an OpenAPI document. Its paths, operation ids, parameters and statuses are TorchServe's, among them some that neither
// server has a use for: generated clients know them.
type apiDoc struct {
	OpenAPI string   `json:"openapi"`
	Info    apiInfo  `json:"info"`
	Paths   apiPaths `json:"paths"`
}

type apiInfo struct {
	Title       string `json:"title"`
	Description string `json:"description,omitempty"`
	Version     string `json:"version"`
}

// apiPaths are the paths in their order.
type apiPaths []apiPath

type apiPath struct {
	path string
	ops  []apiOperation
}

type apiOperation struct {
	method     string
	ID         string
	summary    string
	parameters []apiParameter
	answers    string // content type of a success
	statuses   []int
	takesBody  bool
	takesJSON  string // what its JSON body is; "" for none

	kinds []fault.Kind // with live: how it may fail, beside how any request may
	live  bool         // it is part of /openapi.json, which has to be exact
	key   string       // with live: the security scheme of the key that it needs, "" for none
	open  bool         // with live: it needs no key, whatever the others need, and its failures have the form of its successes
}

type apiParameter struct {
	In          string    `json:"in"`
	Name        string    `json:"name"`
	Description string    `json:"description"`
	Required    bool      `json:"required"`
	Schema      apiSchema `json:"schema"`
	Example     string    `json:"example,omitempty"`
}

type apiSchema struct {
	Type       string        `json:"type,omitempty"`
	Format     string        `json:"format,omitempty"`
	Enum       []string      `json:"enum,omitempty"`
	Default    any           `json:"default,omitempty"`
	Required   []string      `json:"required,omitempty"`
	Properties *apiErrorBody `json:"properties,omitempty"`
}

type apiErrorBody struct {
	Code    apiSchema `json:"code"`
	Type    apiSchema `json:"type"`
	Message apiSchema `json:"message"`
}

type apiContent map[string]struct {
	Schema apiSchema `json:"schema"`
}

type apiResponse struct {
	Description string     `json:"description"`
	Content     apiContent `json:"content,omitempty"`
}

type apiBody struct {
	Description string     `json:"description"`
	Content     apiContent `json:"content"`
	Required    bool       `json:"required"`
}

// MarshalJSON writes the paths as one object, in their order.
func (p apiPaths) MarshalJSON() ([]byte, error) {
	return object(p, func(path apiPath) (string, any) { return path.path, apiOperations(path.ops) })
}

type apiOperations []apiOperation

// MarshalJSON writes the operations as one object, in their order.
func (o apiOperations) MarshalJSON() ([]byte, error) {
	return object(o, func(op apiOperation) (string, any) { return op.method, op })
}

// MarshalJSON writes an operation with its responses.
func (o apiOperation) MarshalJSON() ([]byte, error) {
	op := struct {
		Description string                 `json:"description"`
		ID          string                 `json:"operationId"`
		Parameters  []apiParameter         `json:"parameters"`
		Body        *apiBody               `json:"requestBody,omitempty"`
		Responses   map[string]apiResponse `json:"responses"`
		Security    *[]map[string][]string `json:"security,omitempty"`
	}{Description: o.summary, ID: o.ID, Parameters: slices.Clone(o.parameters), Responses: map[string]apiResponse{}}
	if op.Parameters == nil {
		op.Parameters = []apiParameter{}
	}
	if o.takesBody {
		op.Body = &apiBody{"What the model takes.", content("*/*", binary()), true}
	}
	if o.takesJSON != "" {
		op.Body = &apiBody{o.takesJSON, content(jsonType, apiSchema{Type: "object"}), true}
	}
	for _, status := range o.statuses {
		op.Responses[strconv.Itoa(status)] = response(status, o.answers)
	}
	if o.live {
		op.Responses = o.liveResponses()
		if o.key != "" {
			op.Security = &[]map[string][]string{{o.key: {}}}
		}
		if o.open {
			op.Security = &[]map[string][]string{}
		}
	}
	return json.Marshal(op) //nolint:wrapcheck // only json.Marshal calls it
}

func object[T any](items []T, entry func(T) (string, any)) ([]byte, error) {
	b := []byte{'{'}
	for i, item := range items {
		if i > 0 {
			b = append(b, ',')
		}
		key, value := entry(item)
		text, err := json.Marshal(value)
		if err != nil {
			return nil, err //nolint:wrapcheck // only json.Marshal calls it
		}
		b = append(appendJSONString(b, key), ':')
		b = append(b, text...)
	}
	return append(b, '}'), nil
}

func content(kind string, schema apiSchema) apiContent {
	return apiContent{kind: {schema}}
}

func binary() apiSchema { return apiSchema{Type: "string", Format: "binary"} }

func response(status int, kind string) apiResponse {
	if status < firstErrorStatus {
		r := apiResponse{Description: "The request was done, or is being done."}
		switch kind {
		case "":
		case jsonType:
			r.Content = content(kind, apiSchema{Type: "object"})
		default:
			r.Content = content(kind, binary())
		}
		return r
	}
	return apiResponse{Description: "The request was refused, or failed.", Content: content(jsonType, apiSchema{
		Type: "object", Required: []string{"code", "type", "message"},
		Properties: &apiErrorBody{Code: apiSchema{Type: "integer"}, Type: apiSchema{Type: "string"}, Message: apiSchema{Type: "string"}},
	})}
}

// describeAPI describes a port's API as TorchServe does, with /admin if that is there.
func (a *API) describeAPI(port Port) []byte {
	doc := apiDoc{OpenAPI: "3.0.1", Info: apiInfo{"TorchServe APIs", "Serves machine learning models, as TorchServe does.", torchServeVersion}}
	if port != MetricsPort {
		doc.Paths = append(doc.Paths, apiPath{"/", []apiOperation{
			{method: "options", ID: "apiDescription", summary: "Describes the API.", answers: jsonType, statuses: []int{200, 500}},
		}})
	}
	if port == Inference || port == Joint {
		doc.Paths = append(doc.Paths, inferencePaths()...)
	}
	described := apiPath{"/api-description", []apiOperation{
		{method: "get", ID: "api-description", summary: "Describes the API.", answers: jsonType, statuses: []int{200, 500}},
	}}
	if port == Inference || port == Joint {
		doc.Paths = append(doc.Paths, described)
	}
	if port == Management || port == Joint {
		doc.Paths = append(doc.Paths, append([]apiPath{modelsPath()}, modelPaths()...)...)
		if a.opts.Admin != nil {
			doc.Paths = append(doc.Paths, a.adminPaths()...)
		}
	}
	if port == Management {
		doc.Paths = append(doc.Paths, described)
	}
	doc.Paths = append(doc.Paths, metricsPath())
	return doc.text()
}

func metricsPath() apiPath {
	return apiPath{"/metrics", []apiOperation{{
		method: "get", ID: "metrics", summary: "Gives the metrics in Prometheus' text format.", answers: metricsType, statuses: []int{200, 500},
		parameters: []apiParameter{queryParam("name[]", "string", nil, "Families to give, all of them without it.")},
	}}}
}

// describeModel describes how a model is asked. The first path is misspelled in TorchServe, and so it is here.
func describeModel(name string) []byte {
	doc := apiDoc{OpenAPI: "3.0.1", Info: apiInfo{Title: "RESTful API for: " + name, Version: "1.0.0"}}
	for _, path := range []string{"/prediction/" + name, "/v1/models/{model_name}:predict", "/v2/models/{model_name}/infer"} {
		doc.Paths = append(doc.Paths, apiPath{path, []apiOperation{
			{method: "post", ID: name, summary: "Runs a request on the model " + name + ".", statuses: []int{200, 500}},
		}})
	}
	return doc.text()
}

// describeModelAdmin describes how a model is administered.
func describeModelAdmin(name string) []byte {
	return apiDoc{
		OpenAPI: "3.0.1", Info: apiInfo{Title: "RESTful Management API for: " + name, Version: torchServeVersion}, Paths: modelPaths(),
	}.text()
}

// text is the document as it is sent.
func (d apiDoc) text() []byte {
	text, err := prettyJSON(d)
	if err != nil {
		panic(err) // it is made of strings and numbers
	}
	return text
}

func inferencePaths() []apiPath {
	predict := func(path, id, which string, parameters ...apiParameter) apiPath {
		return apiPath{path, []apiOperation{{
			method: "post", ID: id, summary: "Runs a request on " + which + " of a model.", answers: "*/*", takesBody: true,
			parameters: parameters, statuses: []int{200, 404, 500, 503},
		}}}
	}
	name, version := pathParam("model_name", "The model's name."), pathParam("model_version", "The model's version.")
	return []apiPath{
		{"/ping", []apiOperation{
			{method: "get", ID: "ping", summary: "Says whether the models have the workers that they should have.", answers: jsonType, statuses: []int{200, 500}},
		}},
		predict("/v1/models/{model_name}:predict", "predictions", "the default version", name),
		predict("/v2/models/{model_name}/infer", "predictions", "the default version", name),
		predict("/predictions/{model_name}", "predictions", "the default version", name),
		predict("/predictions/{model_name}/{model_version}", "version_predictions", "a version", name, version),
	}
}

func modelsPath() apiPath {
	return apiPath{"/models", []apiOperation{
		{
			method: "get", ID: "listModels", summary: "Lists the models.", answers: jsonType, statuses: []int{200, 500},
			parameters: []apiParameter{
				queryParam("limit", "integer", 100, "How many to list, 100 at most."),
				queryParam("next_page_token", "string", nil, "Where to go on: nextPageToken of the page before."),
			},
		},
		{
			method: "post", ID: "registerModel", summary: "Registers a model. Needs enable_model_api.", answers: jsonType,
			kinds:    slices.Concat(loading(), []fault.Kind{fault.ModelNotFound, fault.MethodNotAllowed, fault.BadJSON}),
			statuses: []int{200, 202, 210, 400, 404, 409, 500},
			parameters: []apiParameter{
				{In: "query", Name: "url", Description: "The archive: a name in the model store, a folder, or a URL that allowed_urls lets in.", Required: true, Schema: apiSchema{Type: "string"}},
				queryParam("model_name", "string", nil, "The model's name, instead of the archive's."),
				queryParam("handler", "string", nil, "The handler, instead of the archive's."),
				{In: "query", Name: "runtime", Description: "The runtime, instead of the archive's.", Schema: apiSchema{Type: "string", Enum: []string{"python", "python3", "LSP"}}},
				queryParam("batch_size", "integer", 1, "How many requests the handler gets at once."),
				queryParam("max_batch_delay", "integer", 100, "How long a request may wait for others, in milliseconds."),
				queryParam("response_timeout", "integer", 120, "How long the handler may take to answer, in seconds."),
				queryParam("startup_timeout", "integer", 120, "How long the handler may take to load, in seconds."),
				queryParam("initial_workers", "integer", 0, "How many workers to start."),
				queryParam("synchronous", "boolean", true, "Whether to answer only when the workers are ready."),
				queryParam("s3_sse_kms", "boolean", false, "Whether the URL is of an object that S3 decrypts with a KMS key."),
			},
		},
	}}
}

func modelPaths() []apiPath {
	name, version := pathParam("model_name", "The model's name."), pathParam("model_version", "The model's version.")
	scaling := []apiParameter{
		queryParam("min_worker", "integer", 1, "How many workers there must be at least."),
		queryParam("max_worker", "integer", 1, "How many there may be."),
		queryParam("number_gpu", "integer", 0, "Not used."),
	}
	waiting := []apiParameter{
		queryParam("synchronous", "boolean", false, "Whether to answer only when it is done."),
		queryParam("timeout", "integer", -1, "Not used."),
	}
	noModel := []fault.Kind{fault.ModelNotFound, fault.VersionNotFound}
	ops := func(prefix, which string, at ...apiParameter) []apiOperation {
		return []apiOperation{
			{method: "get", ID: prefix + "describeModel", summary: "Describes " + which + " of a model.", answers: jsonType, parameters: at, statuses: []int{200, 404, 500}, kinds: append(noModel, asking()...)},
			{
				method: "put", ID: prefix + "setAutoScale", summary: "Changes the number of workers of " + which + ".", answers: jsonType,
				parameters: slices.Concat(at, scaling, waiting), statuses: []int{200, 202, 210, 400, 404, 500},
				kinds: append(noModel, fault.StartFailed, fault.LoadFailed, fault.NoDevices, fault.MemoryGuard, fault.Draining, fault.Conflict),
			},
			{
				method: "delete", ID: prefix + "unregisterModel", summary: "Unregisters " + which + ". Needs enable_model_api.", answers: jsonType,
				parameters: slices.Concat(at, waiting), statuses: []int{200, 202, 404, 408, 500}, kinds: append(noModel, fault.MethodNotAllowed, fault.InvalidVersion, fault.Conflict),
			},
		}
	}
	return []apiPath{
		{"/models/{model_name}", ops("", "the default version", name)},
		{versionPath, ops("version_", "a version", name, version)},
		{"/models/{model_name}/{model_version}/set-default", []apiOperation{{
			method: "put", ID: "setDefault", summary: "Makes a version the default one.", answers: jsonType,
			parameters: []apiParameter{name, version}, statuses: []int{200, 404, 500}, kinds: noModel,
		}}},
	}
}

// versionPath is where a version is administered.
const versionPath = "/models/{model_name}/{model_version}"

// asking is how asking a handler to describe itself may fail (customized=true).
func asking() []fault.Kind {
	return []fault.Kind{fault.NoWorker, fault.NoReadyWorker, fault.Overloaded, fault.HandlerFailed, fault.BackendDied, fault.ResponseTimeout, fault.QueueTimeout}
}

func pathParam(name, what string) apiParameter {
	return apiParameter{In: "path", Name: name, Description: what, Required: true, Schema: apiSchema{Type: "string"}}
}

func queryParam(name, kind string, standard any, what string) apiParameter {
	return apiParameter{In: "query", Name: name, Description: what, Schema: apiSchema{Type: kind, Default: standard}}
}
