package openapi

import (
	"strings"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// rest describes TorchServe's other ways to ask a model, which have its name as a parameter.
func (b *builder) rest() {
	anything := object{"description": "Whatever the model takes.", "content": object{"*/*": object{"schema": object{}}}}
	for _, r := range []struct{ path, id, summary string }{
		{"/explanations/{model_name}", "explain", "Ask the model's handler for an explanation."},
		{"/explanations/{model_name}/{model_version}", "explainVersion", "Ask a version's handler for an explanation."},
		{"/v1/models/{model_name}:predict", "kserve1Predict", "Run a request, as KServe's version 1 has it."},
		{"/v1/models/{model_name}:explain", "kserve1Explain", "Ask the model's handler for an explanation, as KServe's version 1 has it."},
		{"/v2/models/{model_name}/explain", "protocolExplain", "Ask the model's handler for an explanation."},
		{"/invocations", "invoke", "Run a request, as SageMaker has it: on the model of the parameter or the field model_name, or on the only one that was there at the start."},
		{"/models/{model_name}/invoke", "invokeModel", "Run a request, as SageMaker has it."},
		{"/{model_name}/predict", "oldPredict", "Run a request. TorchServe has it for clients of its forerunner."},
		{"/{model_name}/{model_version}/predict", "oldPredictVersion", "Run a request on a version. TorchServe has it for clients of its forerunner."},
	} {
		responses := b.failures(object{ok: object{"description": "The answer of the model's handler, of the type that it gives it."}}, strings.HasPrefix(r.path, "/v2/"), append(working(), fault.BadForm)...)
		responses["default"] = object{"description": "What the handler answers by a status of its own choice."}
		op := b.operation(nil, r.id, r.summary, responses)
		op["requestBody"] = anything
		if strings.HasPrefix(r.id, "old") {
			op["deprecated"] = true
		}
		item := object{"post": op}
		switch {
		case strings.Contains(r.path, "{"):
			item["parameters"] = b.pathParameters(strings.Contains(r.path, "{model_version}"))
		default:
			op["parameters"] = list{object{"name": "model_name", "in": "query", "description": "The model's name.", "schema": object{"type": "string"}}}
		}
		b.paths[r.path] = item
	}
}
