package openapi

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// models are one of each kind.
func models() []Model {
	addsub := &backend.Description{
		Inputs:  []backend.Port{{Name: "A", DataType: "FP32", Shape: []int64{-1, 2}}, {Name: "B", DataType: "INT64", Shape: []int64{}}},
		Outputs: []backend.Port{{Name: "SUM", DataType: "FP32", Shape: []int64{-1, 2}}},
		Accepts: []string{jsonType, formType},
	}
	picture := &backend.Description{
		Inputs: []backend.Port{{Name: "x", DataType: "FP32", Shape: []int64{-1, 3, 224, 224}}}, Accepts: []string{"image/jpeg", formType},
	}
	texts := &backend.Description{Inputs: []backend.Port{{Name: "text_input", DataType: bytesType, Shape: []int64{1}}}}
	return []Model{
		{Name: "echo", Version: "2.0", Default: true, Runtime: "python", Digest: "abc"},
		{Name: "echo", Version: "1.0", Runtime: "python"},
		{Name: "cats", Version: "1.0", Default: true, Runtime: "python3", Handler: "image_classifier"},
		{Name: "words", Version: "1.0", Default: true, Runtime: "python", Handler: "text_classifier"},
		{Name: "addsub", Version: "1.0", Default: true, Runtime: "onnx", Ports: addsub},
		{Name: "dogs", Version: "1.0", Default: true, Runtime: "onnx", Ports: picture},
		{Name: "a b", Version: "1.0", Default: true, Runtime: "onnx"}, // not ready yet
		{Name: "pipe", Version: "1.0", Default: true, Runtime: "ensemble", Ports: texts},
		{Name: "a_b", Version: "1.0", Default: true, Runtime: "plugin", Ports: texts},
	}
}

func build(t *testing.T, opts Options) (map[string]any, []byte) {
	t.Helper()
	text, err := Build(opts)
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	return doc, text
}

// at follows a path of members.
func at(t *testing.T, v any, path ...string) any {
	t.Helper()
	for _, name := range path {
		members, isObject := v.(map[string]any)
		next, found := members[name]
		if !isObject || !found {
			t.Fatalf("there is no %q of %q in %v", name, path, slices.Sorted(maps.Keys(members)))
		}
		v = next
	}
	return v
}

func TestSameForSameModels(t *testing.T) {
	t.Parallel()
	opts := Options{Title: "Flambeau", Version: "1", Inference: true, Models: models(), Extra: map[string]json.RawMessage{"/x": []byte(`{}`)}}
	_, first := build(t, opts)
	slices.Reverse(opts.Models)
	if _, second := build(t, opts); !bytes.Equal(first, second) {
		t.Error(cmp.Diff(string(first), string(second)))
	}
	for i := range opts.Models {
		changed := slices.Clone(opts.Models)
		changed[i].Digest = "another"
		if _, other := build(t, Options{Title: "Flambeau", Version: "1", Inference: true, Models: changed, Extra: opts.Extra}); bytes.Equal(first, other) {
			t.Errorf("another archive of %s changes nothing", changed[i].Name)
		}
	}
}

// TestReferences looks at what a schema of OpenAPI does not see, and generators of clients trip over.
func TestReferences(t *testing.T) {
	t.Parallel()
	doc, _ := build(t, Options{Title: "Flambeau", Version: "1", Keys: true, ModelAPI: true, Inference: true, Models: models()})
	ids := map[string]string{}
	paths, _ := at(t, doc, "paths").(map[string]any)
	for path, item := range paths {
		members, _ := item.(map[string]any)
		for method, op := range members {
			if method == "parameters" {
				continue
			}
			id, _ := at(t, op, "operationId").(string)
			if other, taken := ids[id]; taken {
				t.Errorf("%s and %s are both called %s", path, other, id)
			}
			ids[id] = path
			at(t, op, "responses", "400")
		}
		if strings.Contains(path, "{") != (members["parameters"] != nil) {
			t.Errorf("%s: parameters %v", path, members["parameters"])
		}
	}
	var follow func(v any)
	follow = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if target, isRef := v["$ref"].(string); isRef {
				at(t, doc, strings.Split(strings.TrimPrefix(target, "#/"), "/")...)
			}
			for _, member := range v {
				follow(member)
			}
		case []any:
			for _, member := range v {
				follow(member)
			}
		}
	}
	follow(doc)
	schemes, _ := at(t, doc, "components", "securitySchemes").(map[string]any)
	if got := slices.Sorted(maps.Keys(schemes)); !slices.Equal(got, []string{InferenceKey, ManagementKey}) {
		t.Errorf("security schemes %q", got)
	}
	at(t, doc, "security")
}

func TestModels(t *testing.T) {
	t.Parallel()
	doc, _ := build(t, Options{Title: "Flambeau", Version: "1", Inference: true, Models: models()})
	if doc["security"] != nil {
		t.Error("a key is asked for, and there are none")
	}
	paths, _ := at(t, doc, "paths").(map[string]any)
	for path, want := range map[string]bool{
		"/predictions/echo": true, "/predictions/echo/1.0": true, "/predictions/echo/2.0": true, "/predictions/a%20b": true,
		"/v2/models/echo/infer": true, "/v2/models/echo/versions/2.0/infer": true, "/v2/models/echo/generate": true, "/v2/models/a_b/generate_stream": true,
		"/v2/models/addsub/generate": false, "/v2/models/cats/generate": false, "/v2/models/a%20b/generate": false, "/v2": true, "/ping": true,
		"/v2/models/{model_name}/versions/{model_version}/config": true, "/v2/repository/index": true,
	} {
		if _, found := paths[path]; found != want {
			t.Errorf("%s is described: %t, want %t", path, found, want)
		}
	}
	for path, want := range map[string][]string{
		"/predictions/echo":   {fieldsType, jsonType, formType, binaryType, textType},
		"/predictions/cats":   {"image/jpeg", "image/png", formType, binaryType},
		"/predictions/words":  {jsonType, formType, textType},
		"/predictions/addsub": {jsonType, formType},
		"/predictions/dogs":   {"image/jpeg", formType},
		"/predictions/a%20b":  {jsonType, npyType, binaryType},
		"/predictions/pipe":   {jsonType, binaryType},
	} {
		content, _ := at(t, paths, path, "post", "requestBody", "content").(map[string]any)
		slices.Sort(want)
		if got := slices.Sorted(maps.Keys(content)); !slices.Equal(got, want) {
			t.Errorf("%s takes %q, want %q", path, got, want)
		}
	}
	body := at(t, paths, "/predictions/addsub", "post", "requestBody", "content", jsonType)
	if diff := cmp.Diff(map[string]any{"A": []any{[]any{0.5, 0.5}}, "B": 0.0}, at(t, body, "example")); diff != "" {
		t.Error(diff)
	}
	infer := at(t, paths, "/v2/models/addsub/versions/1.0/infer", "post", "requestBody", "content", jsonType)
	if diff := cmp.Diff(map[string]any{"inputs": []any{
		map[string]any{"name": "A", "datatype": "FP32", "shape": []any{1.0, 2.0}, "data": []any{0.5, 0.5}},
		map[string]any{"name": "B", "datatype": "INT64", "shape": []any{}, "data": []any{0.0}},
	}}, at(t, infer, "example")); diff != "" {
		t.Error(diff)
	}
	large, _ := at(t, paths, "/v2/models/dogs/infer", "post", "requestBody", "content", jsonType).(map[string]any)
	if large["example"] != nil {
		t.Error("the example of a picture is a megabyte")
	}
	if diff := cmp.Diff([]any{
		map[string]any{"version": "1.0", "default": false, "runtime": "python", "digest": "", "source": ""},
		map[string]any{"version": "2.0", "default": true, "runtime": "python", "digest": "abc", "source": ""},
	}, tagOf(t, doc, "echo")["x-flambeau-versions"]); diff != "" {
		t.Error(diff)
	}
}

// TestAnswersAreTyped: what a model gives is described with the names, types and shapes of its outputs, by either route.
func TestAnswersAreTyped(t *testing.T) {
	t.Parallel()
	doc, _ := build(t, Options{Title: "Flambeau", Version: "1", Inference: true, Models: models()})
	number := map[string]any{"type": []any{"number", "null"}}
	row := map[string]any{"type": "array", "minItems": 2.0, "maxItems": 2.0, "items": number}
	sum := at(t, doc, "paths", "/predictions/addsub", "post", "responses", "200", "content", jsonType, "schema", "properties", "SUM")
	if diff := cmp.Diff([]any{map[string]any{"type": "array", "items": row}, row}, at(t, sum, "anyOf")); diff != "" {
		t.Error(diff)
	}
	if text, _ := at(t, sum, "description").(string); !strings.Contains(text, "FP32 of shape [-1, 2]") {
		t.Errorf("it is described as %q", text)
	}
	outputs := at(t, doc, "paths", "/v2/models/addsub/infer", "post", "responses", "200", "content", jsonType, "schema", "properties", "outputs", "items", "anyOf")
	all, _ := outputs.([]any)
	if len(all) != 2 {
		t.Fatalf("one output, as it is or its best classes: %v", outputs)
	}
	for i, want := range []string{"FP32", bytesType} {
		properties := at(t, all[i], "properties")
		if got := at(t, properties, "datatype", "const"); got != want || at(t, properties, "name", "const") != "SUM" {
			t.Errorf("%d: %v", i, properties)
		}
	}
	if diff := cmp.Diff([]any{map[string]any{"type": "integer", "minimum": 0.0}, map[string]any{"const": 2.0}}, at(t, all[0], "properties", "shape", "prefixItems")); diff != "" {
		t.Error(diff)
	}
	if isExact(&backend.Port{Name: "any", DataType: "FP32", Shape: []int64{-1}}) {
		t.Error("an output that may have any shape is described as a row")
	}
}

func tagOf(t *testing.T, doc map[string]any, name string) map[string]any {
	t.Helper()
	tags, _ := at(t, doc, "tags").([]any)
	for _, one := range tags {
		if tag, _ := one.(map[string]any); tag["name"] == name {
			return tag
		}
	}
	t.Fatalf("no tag %s in %v", name, tags)
	return nil
}

// TestElements has the limits of each datatype, which travel as they are: a program that reads them must not lose digits.
func TestElements(t *testing.T) {
	t.Parallel()
	for datatype, want := range map[string]string{
		"BOOL": `{"type":"boolean"} false`, "INT8": `{"maximum":127,"minimum":-128,"type":"integer"} 0`, "UINT8": `{"maximum":255,"minimum":0,"type":"integer"} 0`,
		"INT16": `{"maximum":32767,"minimum":-32768,"type":"integer"} 0`, "UINT16": `{"maximum":65535,"minimum":0,"type":"integer"} 0`,
		"INT32": `{"maximum":2147483647,"minimum":-2147483648,"type":"integer"} 0`, "UINT32": `{"maximum":4294967295,"minimum":0,"type":"integer"} 0`,
		"INT64":  `{"maximum":9223372036854775807,"minimum":-9223372036854775808,"type":"integer"} 0`,
		"UINT64": `{"maximum":18446744073709551615,"minimum":0,"type":"integer"} 0`,
		"FP16":   `{"maximum":65504,"minimum":-65504,"type":"number"} 0.5`, "FP64": `{"type":"number"} 0.5`,
		"FP32": `{"maximum":3e+38,"minimum":-3e+38,"type":"number"} 0.5`, "BF16": `{"maximum":3e+38,"minimum":-3e+38,"type":"number"} 0.5`,
		bytesType: `{"type":"string"} "text"`, "": `{} 0`,
	} {
		schema, value := element(datatype)
		one, err := json.Marshal(schema)
		if err != nil {
			t.Fatal(err)
		}
		two, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(one) + " " + string(two); got != want {
			t.Errorf("%s: %s, want %s", datatype, got, want)
		}
	}
}

func TestShapes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		shape []int64
		dims  []int64
		ok    bool
	}{
		{nil, nil, true},
		{[]int64{-1, 2, -1}, []int64{1, 2, 1}, true},
		{[]int64{0, 2}, []int64{0, 2}, false},
		{[]int64{8, 8}, []int64{8, 8}, true},
		{[]int64{8, 9}, []int64{8, 9}, false},
		{[]int64{1 << 40, 1 << 40}, []int64{1 << 40, 1 << 40}, false},
	} {
		dims, _, ok := sizes(tt.shape)
		if !slices.Equal(dims, tt.dims) || ok != tt.ok {
			t.Errorf("%v: %v, %t", tt.shape, dims, ok)
		}
	}
	want := object{"type": "array", "items": object{"type": "array", "minItems": int64(2), "maxItems": int64(2), "items": object{"type": "boolean"}}}
	if diff := cmp.Diff(want, nested("BOOL", []int64{-1, 2})); diff != "" {
		t.Error(diff)
	}
}
