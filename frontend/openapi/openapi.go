// Package openapi describes, as an OpenAPI document, how the models are asked that are loaded at this moment.
package openapi

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// Model is one version of a model.
type Model struct {
	Name, Version string
	Default       bool   // requests without a version may go to it
	Runtime       string // python, python3, onnx, plugin, ensemble
	Handler       string // "" when not known; the built-in ones say what they take
	Digest        string // of the archive, "" when not known
	Source        string // the archive, as it is shown
	// Ports are what the model says of itself, nil when it says nothing.
	Ports *backend.Description
}

// Options say what is described.
type Options struct {
	Title, Version string // of the server
	Keys           bool   // requests need a key
	// Inference adds what clients of models need: the paths of Models, and the Open Inference Protocol's.
	Inference bool
	// ModelAPI adds that clients of the protocol may load and unload models; both need the management key.
	ModelAPI bool
	// SharedMemory adds that local clients may register regions of it.
	SharedMemory bool
	Models       []Model
	// Extra are path items that are described elsewhere, as JSON, by their paths.
	Extra map[string]json.RawMessage
	// Management says that operations of Extra need the management key, by the security scheme's name ManagementKey.
	Management bool
}

// The names of the security schemes.
const (
	InferenceKey  = "inferenceKey"
	ManagementKey = "managementKey"
)

// specification is the release of OpenAPI that documents are written in.
const specification = "3.1.0"

// object is a JSON object. Its members are written in the order of their names, so that equal documents are equal byte by byte.
type object = map[string]any

type list = []any

// document is a whole OpenAPI document.
type document struct {
	OpenAPI    string   `json:"openapi"`
	Info       object   `json:"info"`
	Servers    []object `json:"servers"`
	Tags       []object `json:"tags,omitempty"`
	Security   list     `json:"security,omitempty"`
	Paths      object   `json:"paths"`
	Components object   `json:"components"`
}

// builder makes one document.
type builder struct {
	opts      Options
	paths     object
	responses object
	schemas   object
	ids       map[string]bool // operation identifiers that are taken
}

// Build writes the document, the same for the same options.
func Build(opts Options) ([]byte, error) {
	opts.Models = slices.SortedStableFunc(slices.Values(opts.Models), func(x, y Model) int {
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Version, y.Version))
	})
	b := &builder{opts: opts, paths: object{}, responses: object{}, schemas: object{"Error": errorSchema(), "ProtocolError": protocolErrorSchema()}, ids: map[string]bool{}}
	doc := document{
		OpenAPI: specification, Info: object{"title": opts.Title, "version": opts.Version, "description": about}, Servers: []object{{"url": "/"}}, Paths: b.paths,
	}
	if opts.Inference {
		doc.Tags = b.models()
		b.server()
		b.rest()
	}
	for path, item := range opts.Extra {
		b.paths[path] = item
	}
	doc.Components = object{"schemas": b.schemas, "responses": b.responses}
	if opts.Keys {
		doc.Components["securitySchemes"] = b.securitySchemes()
		if opts.Inference {
			doc.Security = list{object{InferenceKey: list{}}}
		}
	}
	text, err := json.MarshalIndent(doc, "", " ")
	if err != nil {
		return nil, fmt.Errorf("the description of the API: %w", err)
	}
	return append(text, '\n'), nil
}

const about = "What is loaded at this moment. Errors have the reason in the header X-Flambeau-Reason, and what to do about them in X-Flambeau-Hint."

func (b *builder) securitySchemes() object {
	scheme := func(which string) object {
		return object{"type": "http", "scheme": "bearer", "description": "The " + which + " key of key_file.json, which the server writes into the folder that it was started in."}
	}
	all := object{}
	if b.opts.Inference {
		all[InferenceKey] = scheme("inference")
	}
	if b.opts.Management || b.opts.ModelAPI {
		all[ManagementKey] = scheme("management")
	}
	return all
}

// models describes the models, and gives a tag for each name.
func (b *builder) models() []object {
	models := b.opts.Models
	var tags []object
	for i := range models {
		m := &models[i]
		if i == 0 || models[i-1].Name != m.Name {
			tags = append(tags, object{"name": m.Name})
		}
		tag := tags[len(tags)-1]
		versions, _ := tag["x-flambeau-versions"].(list)
		tag["x-flambeau-versions"] = append(versions, object{
			"version": m.Version, "default": m.Default, "runtime": m.Runtime, "digest": m.Digest, "source": m.Source,
		})
		if m.Default {
			tag["description"] = "The model " + m.Name + " (" + m.Runtime + "), version " + m.Version + " unless a path names another one."
			b.model(m, false)
		}
		b.model(m, true)
	}
	return tags
}

// model adds the paths of a version; versioned are those that name it.
func (b *builder) model(m *Model, versioned bool) {
	name, suffix, id := url.PathEscape(m.Name), "", m.Name
	of := "the model " + m.Name
	protocol := "/v2/models/" + name
	if versioned {
		suffix = "/" + url.PathEscape(m.Version)
		protocol += "/versions" + suffix
		of = "version " + m.Version + " of " + of
		id += "_" + m.Version
	}
	b.paths["/predictions/"+name+suffix] = object{"post": b.predict(m, b.id("predict", id), of), "options": b.describe(m, b.id("describe", id), of)}
	b.paths[protocol+"/infer"] = object{"post": b.infer(m, b.id("infer", id), of)}
	if generates(m) {
		b.paths[protocol+"/generate"] = object{"post": b.generate(m, b.id("generate", id), of, false)}
		b.paths[protocol+"/generate_stream"] = object{"post": b.generate(m, b.id("generate_stream", id), of, true)}
	}
}

// describe describes OPTIONS of a model, where TorchServe describes it.
func (b *builder) describe(m *Model, id, of string) object {
	answer := object{"description": "An OpenAPI document.", "content": object{jsonType: object{"schema": object{"type": "object"}}}}
	return b.operation(m, id, "Describe "+of+", as TorchServe does.", b.failures(object{ok: answer}, false, fault.ModelNotFound, fault.VersionNotFound))
}

// id makes an operation identifier that no other operation has, of characters that programs may use in names.
func (b *builder) id(what, name string) string {
	text := what + "_" + strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
			return r
		}
		return '_'
	}, name)
	for n, base := 2, text; b.ids[text]; n++ {
		text = base + "_" + strconv.Itoa(n)
	}
	b.ids[text] = true
	return text
}

// operation is what all operations of a model have.
func (b *builder) operation(m *Model, id, summary string, responses object) object {
	op := object{"operationId": id, "summary": summary, "responses": responses}
	if m != nil {
		op["tags"] = list{m.Name}
	}
	return op
}

// failures adds the responses of kinds of faults, and of those that any request may have, to the responses of an operation: one for each status.
func (b *builder) failures(responses object, protocol bool, kinds ...fault.Kind) object {
	kinds = slices.Concat(kinds, AnyRequest())
	if b.opts.Keys {
		kinds = append(kinds, fault.InvalidKey)
	}
	reasons := map[int][]fault.Kind{}
	for _, k := range kinds {
		status := fault.HTTPStatus(fault.New(k, "", nil))
		if !slices.Contains(reasons[status], k) {
			reasons[status] = append(reasons[status], k)
		}
	}
	for status, why := range reasons {
		responses[strconv.Itoa(status)] = b.failure(status, protocol, why...)
	}
	return responses
}

// AnyRequest are the faults that a request may have wherever it is sent to.
func AnyRequest() []fault.Kind {
	return []fault.Kind{fault.BadRequest, fault.BadEscape, fault.TooLarge, fault.ServerBytes, fault.Internal}
}

// failure refers to the response of a status and its reasons.
func (b *builder) failure(status int, protocol bool, kinds ...fault.Kind) object {
	var why []string
	again := false
	for _, k := range kinds {
		_, later := fault.RetryDelay(fault.New(k, "", nil))
		why, again = append(why, k.String()), again || later
	}
	slices.Sort(why)
	schema := "Error"
	if protocol {
		schema = "ProtocolError"
	}
	name := schema + "_" + strconv.Itoa(status) + "_" + strings.Join(why, "_")
	headers := object{
		"X-Flambeau-Reason":  object{"description": "The reason in a word.", "schema": object{"type": "string"}},
		"X-Flambeau-Hint":    object{"description": "What can be done about it.", "schema": object{"type": "string"}},
		"X-Flambeau-Numbers": object{"description": "The figures behind a refusal.", "schema": object{"type": "string"}},
		"X-Flambeau-Setting": object{"description": "The setting that would change a refusal, and where that is.", "schema": object{"type": "string"}},
	}
	if again {
		headers["Retry-After"] = object{"description": "Seconds until the request may be sent again.", "schema": object{"type": "integer", "minimum": 0}}
	}
	response := object{"description": "It failed: " + strings.Join(why, ", ") + ".", "headers": headers}
	if protocol || status != fault.HTTPStatus(fault.New(fault.TooLarge, "", nil)) { // that answer has no body elsewhere
		response["content"] = object{jsonType: object{"schema": ref(schema)}}
	}
	b.responses[name] = response
	return object{"$ref": "#/components/responses/" + name}
}

func ref(schema string) object { return object{"$ref": "#/components/schemas/" + schema} }

func errorSchema() object {
	return object{
		"type": "object", "required": list{"code", "type", "message"},
		"properties": object{
			"code": object{"type": "integer", "description": "The status."}, "type": object{"type": "string", "description": "TorchServe's name of the failure."},
			"message": object{"type": "string"},
		},
	}
}

func protocolErrorSchema() object {
	s := errorSchema()
	s["required"] = list{"error", "code", "type", "message"}
	properties, _ := s["properties"].(object)
	properties["error"] = object{"type": "string", "description": "The message, where the Open Inference Protocol has it."}
	return s
}
