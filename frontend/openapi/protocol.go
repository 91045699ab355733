package openapi

import (
	"maps"
	"strconv"
	"strings"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// headerLength is the header that says how long the JSON part of a body is that has raw tensors behind it.
const headerLength = "Inference-Header-Content-Length"

// infer describes POST …/infer.
func (b *builder) infer(m *Model, id, of string) object {
	answer := object{"description": "The outputs. They are " + binaryType + ", with the header " + headerLength + ", when the request asks for raw tensors."}
	responses := b.failures(object{ok: answer}, true, append(working(), fault.BadForm)...)
	responses["415"] = b.failure(statusUnsupported, true, fault.BadRequest)
	op := b.operation(m, id, "Run an inference of the Open Inference Protocol on "+of+".", responses)
	request, response := object{"schema": ref("InferRequest")}, object{"schema": ref("InferResponse")}
	if described(m) {
		request, response = inferBody(m), object{"schema": inferResponse(m)}
	}
	content := object{jsonType: request}
	if described(m) {
		content[binaryType] = object{"schema": binary("JSON as of " + jsonType + ", and raw tensors behind it; or, with " + headerLength + ": 0, the elements of the only input.")}
		answer["content"] = object{jsonType: response, binaryType: object{"schema": binary("")}}
		op["parameters"] = list{object{
			"name": headerLength, "in": "header", "description": "How many bytes of the body are JSON, when raw tensors are behind it.",
			"schema": object{"type": "integer", "minimum": 0},
		}}
	} else {
		answer["description"] = "The handler's answer, as it gives it."
		responses["default"] = object{"description": "What the handler answers by a status of its own choice."}
	}
	op["requestBody"] = object{"required": true, "content": content}
	b.schemas["InferRequest"], b.schemas["InferResponse"] = inferRequestSchema(), inferResponseSchema(tensorSchema())
	return op
}

// statusForbidden is what clients on other machines read who ask for shared memory, statusUnsupported is HTTP's for a Content-Encoding that is not known,
// statusUnavailable for what is not ready.
const (
	statusForbidden   = 403
	statusUnsupported = 415
	statusUnavailable = 503
)

// described says whether the model tells what its tensors are.
func described(m *Model) bool { return m.Ports != nil && len(m.Ports.Inputs) > 0 }

// inferBody is a request with the model's own tensors.
func inferBody(m *Model) object {
	n := len(m.Ports.Inputs)
	inputs, examples := list{}, list{}
	for i := range m.Ports.Inputs {
		inputs = append(inputs, port(&m.Ports.Inputs[i]))
		if e, ok := portExample(&m.Ports.Inputs[i]); ok {
			examples = append(examples, e)
		}
	}
	items := inputs[0]
	if n > 1 {
		items = object{"anyOf": inputs}
	}
	s := inferRequestSchema()
	properties, _ := s["properties"].(object)
	properties["inputs"] = object{"type": "array", "minItems": n, "maxItems": n, "items": items}
	names := list{}
	for i := range m.Ports.Outputs {
		names = append(names, m.Ports.Outputs[i].Name)
	}
	if len(names) > 0 {
		properties["outputs"] = requested(object{"enum": names})
	}
	body := object{"schema": s}
	if len(examples) == n {
		body["example"] = object{"inputs": examples}
	}
	return body
}

func inferResponse(m *Model) object {
	outputs := list{}
	for i := range m.Ports.Outputs {
		p := &m.Ports.Outputs[i]
		outputs = append(outputs, answeredPort(p))
		if p.DataType != bytesType {
			outputs = append(outputs, classified(p))
		}
	}
	if len(outputs) == 0 {
		return inferResponseSchema(tensorSchema())
	}
	return inferResponseSchema(object{"anyOf": outputs})
}

func inferRequestSchema() object {
	tensor := tensorSchema()
	tensor["required"] = list{"name", "datatype", "shape", "data"}
	return object{
		"type": "object", "required": list{"inputs"},
		"properties": object{
			"id": object{"type": "string"}, "parameters": parameters(),
			"inputs": object{"type": "array", "minItems": 1, "items": tensor}, "outputs": requested(object{"type": "string"}),
		},
	}
}

func requested(name object) object {
	return object{
		"type": "array", "description": "The outputs that are wanted; not given: all of them.",
		"items": object{"type": "object", "required": list{"name"}, "properties": object{"name": name, "parameters": parameters()}},
	}
}

func inferResponseSchema(tensor object) object {
	return object{
		"type": "object", "required": list{"model_name", "outputs"},
		"properties": object{
			"model_name": object{"type": "string"}, "model_version": object{"type": "string"}, "id": object{"type": "string"}, "parameters": object{"type": "object"},
			"outputs": object{"type": "array", "items": tensor},
		},
	}
}

// tensorSchema is any tensor.
func tensorSchema() object {
	return object{
		"type": "object", "required": list{"name", "datatype", "shape"},
		"properties": object{
			"name": object{"type": "string"},
			"datatype": object{"enum": list{
				"BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP16", "BF16", "FP32", "FP64", bytesType,
			}},
			"shape": object{"type": "array", "items": object{"type": "integer", "minimum": 0}},
			"data":  object{"type": "array"}, "parameters": object{"type": "object"},
		},
	}
}

// generate describes POST …/generate and …/generate_stream.
func (b *builder) generate(m *Model, id, of string, stream bool) object {
	answer := object{"description": "The outputs, as members of one object.", "content": object{jsonType: object{"schema": object{"type": "object"}}}}
	summary := "Generate with " + of + "."
	if stream {
		answer = object{
			"description": "A server-sent event for each piece of the answer, an object each.",
			"content":     object{eventsType: object{}},
		}
		summary = "Generate with " + of + ", as a stream."
	}
	responses := b.failures(object{ok: answer}, true, working()...)
	responses["415"] = b.failure(statusUnsupported, true, fault.BadRequest)
	properties, required, example := object{}, list{}, object{}
	if described(m) {
		for i := range m.Ports.Inputs {
			p := &m.Ports.Inputs[i]
			e, value := element(p.DataType)
			properties[p.Name] = object{"anyOf": list{e, object{"type": "array", "items": e}}}
			required, example[p.Name] = append(required, p.Name), value
		}
	} else {
		responses["default"] = object{"description": "What the handler answers by a status of its own choice."}
		example["text_input"] = "some text"
	}
	schema := object{"type": "object", "properties": properties, "description": "The inputs by their names; other members are parameters."}
	if len(required) > 0 {
		schema["required"] = required
	}
	op := b.operation(m, id, summary, responses)
	op["requestBody"] = object{"required": true, "content": object{jsonType: object{"schema": schema, "example": example}}}
	return op
}

// server describes the paths that are no one model's.
func (b *builder) server() {
	get := func(path, id, summary string, schema object, protocol bool, kinds ...fault.Kind) {
		answer := object{"description": "The answer.", "content": object{jsonType: object{"schema": schema}}}
		b.paths[path] = object{"get": b.operation(nil, id, summary, b.failures(object{ok: answer}, protocol, kinds...))}
	}
	thing := object{"type": "object"}
	flag := func(name string) object {
		return object{"type": "object", "required": list{name}, "properties": object{name: object{"type": "boolean"}}}
	}
	get("/ping", "ping", "Say whether the models have the workers that they should have.", object{
		"type": "object", "required": list{"status"}, "properties": object{"status": object{"enum": list{"Healthy", "Unhealthy"}}},
	}, false)
	b.alsoAnswers("/ping", fault.HTTPStatus(fault.New(fault.Internal, "", nil)))
	get("/v2", "protocolServer", "Describe the server.", object{
		"type": "object", "required": list{"name", "version", "extensions"},
		"properties": object{"name": object{"type": "string"}, "version": object{"type": "string"}, "extensions": object{"type": "array", "items": object{"type": "string"}}},
	}, true)
	get("/v2/health/live", "protocolLive", "Say that the server runs.", flag("live"), true)
	get("/v2/health/ready", "protocolReady", "Say whether inferences can be taken.", flag("ready"), true)
	b.alsoAnswers("/v2/health/ready", statusUnavailable)
	get("/v2/models/stats", "protocolStatistics", "Tell what all models have done.", thing, true)
	const one, version = "/v2/models/{model_name}", "/v2/models/{model_name}/versions/{model_version}"
	for _, path := range []string{one, version} {
		id := map[string]string{one: "", version: "Version"}[path]
		get(path, "protocolModel"+id, "Describe a model: its versions, inputs and outputs.", modelSchema(), true, fault.ModelNotFound, fault.VersionNotFound)
		get(path+"/ready", "protocolReady"+id+"Model", "Say whether a model has a worker that is ready.", flag("ready"), true, fault.ModelNotFound, fault.VersionNotFound)
		b.alsoAnswers(path+"/ready", statusUnavailable)
		get(path+"/config", "protocolConfig"+id, "Tell how a model runs.", thing, true, fault.ModelNotFound, fault.VersionNotFound)
		get(path+"/stats", "protocolStatistics"+id+"Model", "Tell what a model has done.", thing, true, fault.ModelNotFound, fault.VersionNotFound)
		for _, what := range []string{"", "/ready", "/config", "/stats"} {
			if item, found := b.paths[path+what].(object); found {
				item["parameters"] = b.pathParameters(path == version)
			}
		}
	}
	b.repository()
	b.settings("/v2/logging", "protocolLogging", "what is logged")
	b.settings("/v2/trace/setting", "protocolTracing", "what is traced")
	b.settings(one+"/trace/setting", "protocolModelTracing", "what is traced of a model", fault.ModelNotFound)
	b.settings(version+"/trace/setting", "protocolVersionModelTracing", "what is traced of a model", fault.ModelNotFound, fault.VersionNotFound)
	if b.opts.SharedMemory {
		b.sharedMemory()
	}
}

// sharedMemory describes the regions of memory that local clients register.
func (b *builder) sharedMemory() {
	const memory = "/v2/systemsharedmemory"
	named := list{object{
		"name": "region_name", "in": "path", "required": true, "description": "The region's name.", "schema": object{"type": "string", "minLength": 1}, "example": "none",
	}}
	add := func(method, path, id, summary string, body, answer object) {
		done := object{"description": "It is done.", "content": object{jsonType: object{"schema": answer}}}
		responses := b.failures(object{ok: done}, true)
		responses[strconv.Itoa(statusForbidden)] = b.failure(statusForbidden, true, fault.BadRequest, fault.BadEscape)
		op := b.operation(nil, id, summary, responses)
		if b.opts.Keys {
			op["security"] = list{object{ManagementKey: list{}}}
		}
		if body != nil {
			op["requestBody"] = object{"required": true, "content": object{jsonType: object{"schema": body}}}
		}
		item := object{method: op}
		if strings.Contains(path, "{") {
			item["parameters"] = named
		}
		b.paths[memory+path] = item
	}
	text, count := object{"type": "string"}, object{"type": "integer", "minimum": 0}
	region := object{"type": "object", "properties": object{"name": text, "key": text, "offset": count, "byte_size": count}}
	regions := object{"type": "array", "items": region}
	body := object{"type": "object", "required": list{"key", "byte_size"}, "properties": object{"key": text, "offset": count, "byte_size": count}}
	add("get", "/status", "protocolRegions", "List the regions of shared memory.", nil, regions)
	add("post", "/unregister", "protocolForgetRegions", "Forget all regions.", nil, object{"type": "object"})
	add("get", "/region/{region_name}/status", "protocolRegion", "Describe a region.", nil, regions)
	add("post", "/region/{region_name}/register", "protocolTakeRegion", "Register a region of /dev/shm.", body, object{"type": "object"})
	add("post", "/region/{region_name}/unregister", "protocolForgetRegion", "Forget a region.", nil, object{"type": "object"})
}

// alsoAnswers adds the status of what is not as it should be, whose answer has the form of a success, or of a failure.
func (b *builder) alsoAnswers(path string, status int) {
	item, _ := b.paths[path].(object)
	op, _ := item["get"].(object)
	responses, _ := op["responses"].(object)
	well, _ := responses[ok].(object)
	content, _ := well["content"].(object)
	success, _ := content[jsonType].(object)
	failure := "Error"
	if path != "/ping" {
		failure = "ProtocolError"
	}
	responses[strconv.Itoa(status)] = object{
		"description": "It is not as it should be.", "content": object{jsonType: object{"schema": object{"anyOf": list{success["schema"], ref(failure)}}}},
	}
}

// repository describes the index of models.
func (b *builder) repository() {
	answer := object{"description": "What is registered, and what else lies in the store.", "content": object{jsonType: object{"schema": object{
		"type": "array", "items": object{"type": "object", "required": list{"name"}, "properties": object{"name": object{"type": "string"}}},
	}}}}
	op := b.operation(nil, "protocolIndex", "List the models.", b.failures(object{ok: answer}, true, fault.BadRequest))
	op["requestBody"] = object{"content": object{jsonType: object{"schema": object{
		"type": "object", "properties": object{"ready": object{"type": "boolean", "description": "Only those that are ready."}},
	}}}}
	all := b.operation(nil, "protocolIndexAll", "List the models.", b.failures(object{ok: answer}, true))
	b.paths["/v2/repository/index"] = object{"get": all, "post": op}
	b.paths["/v2/repository/{repository_name}/index"] = object{
		"get": renamed(all, "protocolNamedIndexAll"), "post": renamed(op, "protocolNamedIndex"), "parameters": list{repositoryName()},
	}
	if !b.opts.ModelAPI {
		return
	}
	for what, summary := range map[string]string{"load": "Load a model, or look at its files again.", "unload": "Unload a model."} {
		done := object{"description": "It is done.", "content": object{jsonType: object{"schema": object{"type": "object"}}}}
		op := b.operation(nil, "protocol_"+what, summary, b.failures(object{ok: done}, true,
			fault.BadRequest, fault.ModelNotFound, fault.InvalidModel, fault.InvalidVersion, fault.Conflict, fault.LoadFailed, fault.StartFailed, fault.MemoryGuard, fault.Draining))
		op["requestBody"] = object{"content": object{jsonType: object{"schema": object{"type": "object", "properties": object{"parameters": object{"type": "object"}}}}}}
		if b.opts.Keys {
			op["security"] = list{object{ManagementKey: list{}}}
		}
		b.paths["/v2/repository/models/{model_name}/"+what] = object{"post": op, "parameters": b.pathParameters(false)}
		b.paths["/v2/repository/{repository_name}/models/{model_name}/"+what] = object{
			"post": renamed(op, "protocol_named_"+what), "parameters": append(list{repositoryName()}, b.pathParameters(false)...),
		}
	}
}

// renamed is an operation that is there under another path, too.
func renamed(op object, id string) object {
	other := maps.Clone(op)
	other["operationId"] = id
	return other
}

func repositoryName() object {
	return object{
		"name": "repository_name", "in": "path", "required": true, "description": "There is one repository, whatever its name.",
		"schema": object{"type": "string", "minLength": 1}, "example": "store",
	}
}

// settings describes the protocol's settings, which are read and changed at the same place.
func (b *builder) settings(path, id, summary string, kinds ...fault.Kind) {
	answer := object{"description": "The settings as they are.", "content": object{jsonType: object{"schema": object{"type": "object"}}}}
	change := b.operation(nil, id+"Change", "Change "+summary+".", b.failures(object{ok: answer}, true, append(kinds, fault.BadRequest, fault.MethodNotAllowed)...))
	if b.opts.Keys {
		change["security"] = list{object{ManagementKey: list{}}}
	}
	change["requestBody"] = object{"content": object{jsonType: object{"schema": object{"type": "object"}}}}
	item := object{"get": b.operation(nil, id, "Tell "+summary+".", b.failures(object{ok: answer}, true, kinds...)), "post": change}
	if strings.Contains(path, "{") {
		item["parameters"] = b.pathParameters(strings.Contains(path, "{model_version}"))
	}
	b.paths[path] = item
}

// pathParameters are the name of a model and, if need be, a version, with those that are loaded as examples.
func (b *builder) pathParameters(version bool) list {
	text := func(name, what string) object {
		return object{"name": name, "in": "path", "required": true, "description": what, "schema": object{"type": "string", "minLength": 1}}
	}
	name, number := text("model_name", "The model's name."), text("model_version", "The version.")
	if len(b.opts.Models) > 0 {
		name["example"], number["example"] = b.opts.Models[0].Name, b.opts.Models[0].Version
	}
	if version {
		return list{name, number}
	}
	return list{name}
}

func modelSchema() object {
	ports := object{"type": "array", "items": object{
		"type": "object", "required": list{"name", "datatype", "shape"},
		"properties": object{
			"name": object{"type": "string"}, "datatype": object{"type": "string"},
			"shape": object{"type": "array", "description": "-1 is any length.", "items": object{"type": "integer", "minimum": -1}},
		},
	}}
	return object{
		"type": "object", "required": list{"name", "versions", "platform", "inputs", "outputs"},
		"properties": object{
			"name": object{"type": "string"}, "platform": object{"type": "string"}, "versions": object{"type": "array", "items": object{"type": "string"}},
			"inputs": ports, "outputs": ports,
		},
	}
}
