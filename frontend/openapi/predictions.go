package openapi

import (
	"slices"
	"strings"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

const (
	jsonType   = "application/json"
	textType   = "text/plain"
	binaryType = "application/octet-stream"
	npyType    = "application/x-npy"
	formType   = "multipart/form-data"
	fieldsType = "application/x-www-form-urlencoded"
	eventsType = "text/event-stream"
	ok         = "200"
)

// working are the failures that any request to a model may have: all that there are, but those of the management API and those that nobody is left to read.
func working() []fault.Kind {
	elsewhere := []fault.Kind{
		fault.RouteNotFound, fault.MethodNotAllowed, fault.InvalidKey, fault.BadForm, fault.BadJSON, fault.Conflict, fault.InvalidModel, fault.InvalidVersion,
		fault.DownloadFailed, fault.DependencyFailed, fault.NoDevices, fault.Cancelled,
	}
	return slices.DeleteFunc(fault.Kinds(), func(k fault.Kind) bool { return slices.Contains(elsewhere, k) })
}

// predict describes POST /predictions/NAME.
func (b *builder) predict(m *Model, id, of string) object {
	answer := object{"description": "The answer of the model's handler, of the type that it gives it. One in several pieces comes in chunks."}
	switch {
	case m.isONNX():
		answer = object{"description": "The model's answer.", "content": onnxAnswer(m)}
	case m.isEnsemble():
		answer = object{"description": "The outputs.", "content": object{jsonType: object{"schema": inferResponse(m)}, binaryType: object{"schema": binary("")}}}
	}
	kinds := working()
	if accepts(m, formType) || accepts(m, fieldsType) {
		kinds = append(kinds, fault.BadForm)
	}
	responses := b.failures(object{ok: answer}, false, kinds...)
	if !m.isONNX() && !m.isEnsemble() {
		responses["default"] = object{"description": "What the handler answers by a status of its own choice."}
	}
	op := b.operation(m, id, "Run a request on "+of+".", responses)
	content := object{}
	for _, kind := range m.accepts() {
		content[kind] = bodyOf(m, kind)
	}
	op["requestBody"] = object{"required": true, "content": content}
	return op
}

func (m *Model) isONNX() bool { return m.Runtime == "onnx" }

// isEnsemble says whether it is a pipeline of other models, which takes requests of the Open Inference Protocol wherever they are sent.
func (m *Model) isEnsemble() bool { return m.Runtime == "ensemble" && described(m) }

// takesTensors says whether a body of JSON has the model's inputs as arrays.
func (m *Model) takesTensors() bool {
	return m.isONNX() && m.Ports != nil && !accepts(m, "image/jpeg") && !accepts(m, textType)
}

func accepts(m *Model, kind string) bool { return slices.Contains(m.accepts(), kind) }

// accepts are the media types of the bodies that a model takes: what it says itself, or what is known of the handlers that TorchServe has built in. What
// a handler of the user's own takes is not known: it gets whatever is sent.
func (m *Model) accepts() []string {
	if m.Ports != nil && len(m.Ports.Accepts) > 0 {
		return m.Ports.Accepts
	}
	if m.isONNX() {
		return []string{jsonType, npyType, binaryType}
	}
	if m.isEnsemble() {
		if len(m.Ports.Inputs) == 1 && m.Ports.Inputs[0].DataType == bytesType {
			return []string{jsonType, binaryType} // the second is that input's only element
		}
		return []string{jsonType}
	}
	if m.Runtime == "python" || m.Runtime == "python3" {
		switch m.Handler {
		case "image_classifier", "image_segmenter", "object_detector":
			return []string{"image/jpeg", "image/png", binaryType, formType}
		case "text_classifier":
			return []string{textType, jsonType, formType}
		}
	}
	return []string{jsonType, textType, binaryType, formType, fieldsType}
}

// bodyOf describes a body of a media type.
func bodyOf(m *Model, kind string) object {
	switch kind {
	case jsonType:
		if m.isEnsemble() {
			return inferBody(m)
		}
		if m.takesTensors() {
			return tensorsBody(m.Ports)
		}
		if m.isONNX() && accepts(m, textType) {
			return textsBody()
		}
		return object{"schema": object{"description": "Any JSON that the model's handler takes."}}
	case textType:
		return object{"schema": object{"type": "string"}}
	case formType:
		return formBody(m)
	case fieldsType:
		return object{"schema": object{"type": "object", "additionalProperties": object{"type": "string"}}}
	case npyType:
		return object{"schema": binary("A .npy file: what numpy.save writes.")}
	}
	if m.takesTensors() {
		return object{"schema": binary("The elements of the input, little-endian, one after the other.")}
	}
	return object{"schema": binary("")}
}

// formBody is a form whose parts are the inputs, or the part data, which handlers of pictures read.
func formBody(m *Model) object {
	if m.takesTensors() {
		properties, required := object{}, list{}
		for i := range m.Ports.Inputs {
			properties[m.Ports.Inputs[i].Name] = binary("A .npy file, JSON, or the elements.")
			required = append(required, m.Ports.Inputs[i].Name)
		}
		return object{"schema": object{"type": "object", "properties": properties, "required": required}}
	}
	if accepts(m, "image/jpeg") {
		return object{"schema": object{"type": "object", "required": list{"data"}, "properties": object{"data": binary("A picture.")}}}
	}
	return object{"schema": object{"type": "object", "additionalProperties": binary("")}}
}

// textsBody is what text_classifier and embedding take as JSON.
func textsBody() object {
	texts := object{"anyOf": list{object{"type": "string"}, object{"type": "array", "minItems": 1, "items": object{"type": "string"}}}}
	return object{
		"schema":  object{"anyOf": list{texts, object{"type": "object", "required": list{"text"}, "properties": object{"text": texts}}}},
		"example": object{"text": "some text"},
	}
}

func binary(what string) object {
	s := object{"type": "string", "format": "binary"}
	if what != "" {
		s["description"] = what
	}
	return s
}

// onnxAnswer is what the ONNX backend answers: an object of nested arrays, or what its handlers make of them.
func onnxAnswer(m *Model) object {
	if !m.takesTensors() {
		return object{jsonType: object{"schema": object{"description": "What the Python handler of the same name answers."}}}
	}
	properties := object{}
	for i := range m.Ports.Outputs {
		properties[m.Ports.Outputs[i].Name] = answered(&m.Ports.Outputs[i])
	}
	return object{
		jsonType: object{"schema": object{"type": "object", "description": "An array for each output.", "properties": properties}},
		npyType:  object{"schema": binary("A .npy file, for a request with Accept: " + npyType + " and a model with one output.")},
	}
}

// generates says whether generate is of use: for models that take texts, and for handlers that take any object.
func generates(m *Model) bool {
	if m.Ports == nil || len(m.Ports.Inputs) == 0 {
		return !m.isONNX() && !strings.HasPrefix(m.accepts()[0], "image/")
	}
	for i := range m.Ports.Inputs {
		if m.Ports.Inputs[i].DataType == bytesType {
			return true
		}
	}
	return false
}
