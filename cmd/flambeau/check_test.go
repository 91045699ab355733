package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/modelstore/check"
)

// checkBox has archives of each kind of outcome: good.mar, bad.mar, odd.mar with a warning, and broken.mar.
func checkBox(t *testing.T) *box {
	t.Helper()
	b := newRunBox(t)
	b.pack(t, "good.mar", "length.py")
	folder := func(name, handler string) {
		dir := filepath.Join(b.dir, name)
		if err := os.MkdirAll(filepath.Join(dir, "MAR-INF"), 0o700); err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{
			"MAR-INF/MANIFEST.json": fmt.Sprintf(`{"runtime":"python","archiverVersion":"1","createdOn":"now","model":{"modelName":%q,"modelVersion":"1.0","handler":"handler.py"}}`, name),
			"handler.py":            handler + "open('ran', 'w')\n",
			"sitecustomize.py":      "open('ran', 'w')\n",
		} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	folder("bad", "import nobody_has_this\ndef handle(data, context):\n    return data\n")
	folder("odd", "def handle(data, context):\n    import nobody_has_this\n")
	const onnx = "\x08\x08\x3a\x00\x42\x02\x10\x11" // a version, a graph without anything, operators
	const ports = `input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ] output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]`
	for file, text := range map[string]string{
		"small/1/model.onnx": onnx, "small/config.pbtxt": "max_batch_size: 4 " + ports,
		"triton/1/.keep": "", "triton/config.pbtxt": `platform: "ensemble" max_batch_size: 16 ` + strings.NewReplacer(`"x"`, `"A"`, `"y"`, `"B"`).Replace(ports) +
			` ensemble_scheduling { step [ { model_name: "small" model_version: 1 input_map { key: "x" value: "A" } output_map { key: "y" value: "B" } } ] }`,
		"yaml/model-config.yaml":   "ensemble:\n  maxBatchSize: 3\n  steps:\n    - {model: small, inputs: {x: A}, outputs: {y: B}}\n    - {model: bare, inputs: {x: B}, outputs: {y: C}}\n    - {model: good, inputs: {x: C}, outputs: {y: D}}\n",
		"above/model-config.yaml":  "ensemble:\n  maxBatchSize: 5\n  steps:\n    - {model: yaml, inputs: {A: A}, outputs: {D: B}}\n    - {model: bare, inputs: {x: B}, outputs: {y: C}}\n",
		"itself/model-config.yaml": "# itself\nensemble:\n  steps:\n    - {model: itself, inputs: {x: A}, outputs: {y: B}}\n",
		"ping/model-config.yaml":   "ensemble:\n  steps:\n    - {model: good, inputs: {x: A}, outputs: {y: B}}\n    - {model: pong, inputs: {x: B}, outputs: {y: C}}\n",
		"pong/1/.keep":             "", "pong/config.pbtxt": `platform: "ensemble" ` + ports + ` ensemble_scheduling { step [
		{ model_name: "ping" model_version: -1 input_map { key: "A" value: "x" } output_map { key: "C" value: "y" } } ] }`,
		"uses/model-config.yaml": "ensemble:\n  steps:\n    - {model: ping, version: ../.., inputs: {x: A}, outputs: {y: B}}\n    - {model: .., inputs: {x: B}, outputs: {y: C}}\n",
		"task/model.onnx":        onnx, "task/model-config.yaml": "minWorkers: 1\nmaxWorkers: 1\nhandler: no_such_handler\n",
		"inner/1/model-config.yaml":   "ensemble:\n  maxBatchSize: 5\n  steps:\n    - {model: bare, inputs: {x: A}, outputs: {y: B}}\n    - {model: newest, inputs: {x: B}, outputs: {y: C}}\n    - {model: outer, inputs: {x: C}, outputs: {y: D}}\n",
		"outer/model-config.yaml":     "ensemble:\n  maxBatchSize: 5\n  steps:\n    - {model: inner, inputs: {A: A}, outputs: {D: B}}\n",
		"newest/9/model-config.yaml":  "ensemble:\n  steps:\n    - {model: good, inputs: {x: A}, outputs: {y: B}}\n", // takes any number of rows
		"newest/10/model-config.yaml": "ensemble:\n  maxBatchSize: 2\n  steps:\n    - {model: good, inputs: {x: A}, outputs: {y: B}}\n",
		"text/text":                   "not a program\n",
		"bare.onnx":                   onnx,
		"prog/model-config.yaml":      "plugin: prog\n", "prog/prog": "#!/bin/sh\n",
		"many/1/model.onnx": onnx, "many/2/m.onnx": onnx, "many/10/many": "#!/bin/sh\n", "many/10/model-config.yaml": "plugin: many\n",
	} {
		path := filepath.Join(b.dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(b.dir, "text/text"), 0o700); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(b.dir, "good.mar"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "broken.mar"), whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestCheck(t *testing.T) {
	t.Parallel()
	b := checkBox(t)
	tests := []struct {
		args   string
		status int
		stdout []string
		stderr string
	}{
		{"good.mar", exitOK, []string{"good.mar (packed 2.5): good, for Python 3."}, ""},
		{"bad", exitFound, []string{"bad (bad 1.0): 1 error and 0 warnings", "handler.py:1: error: module nobody_has_this is not there [import_missing]"}, ""},
		{"odd", exitOK, []string{"0 errors and 1 warning", "handler.py:2: warning: "}, ""},
		{"odd --strict", exitFound, []string{"0 errors and 1 warning"}, ""},
		{"good.mar bad nope.mar", exitFound, []string{"good.mar (packed 2.5): good", "1 error"}, "nope.mar could not be checked: the model nope.mar: no such file or directory"},
		{"good.mar nope.mar", exitFailed, []string{"good"}, "nope.mar could not be checked"},
		{"yaml", exitOK, []string{"yaml"}, ""},
		{"triton", exitFound, []string{"config.pbtxt", "up to 16 rows in a request, and step 1, the model small, only 4 [config_contradiction]"}, ""},
		{"above", exitFound, []string{"model-config.yaml:2: error", "up to 5 rows in a request, and step 1, the model yaml, only 3", "step 2, the model bare, only 4"}, ""},
		{"itself", exitFound, []string{"1 error and 0 warnings", "model-config.yaml:4: error: the ensemble would be made of itself: itself → itself [ensemble_circle]"}, ""},
		{"ping pong", exitFound, []string{"model-config.yaml:4: error: ", "itself: ping → pong → ping [", "config.pbtxt:2: error: ", "itself: pong → ping → pong ["}, ""},
		{"inner", exitFound, []string{
			"inner/1 (inner 1): 3 errors", "itself: inner → outer → inner [", "up to 5 rows in a request, and step 1, the model bare, only 4", "step 2, the model newest, only 2",
		}, ""},
		{"outer", exitFound, []string{"model-config.yaml:4: error: ", "itself: outer → inner → outer ["}, ""},
		{"uses", exitOK, []string{"uses (uses): good"}, ""},
		{"task", exitFound, []string{
			"1 error and", `model-config.yaml:3: error: the handler "no_such_handler" is none of image_classifier, text_classifier, embedding, object_detector, raw`, "[handler_missing]",
		}, ""},
		{"text", exitFound, []string{`text/text is no program that this machine can run: it is a text that begins with "not a program\n" [archive_unusable]`}, ""},
		{"broken.mar", exitFound, []string{"1 error", "[archive_unusable]"}, ""},
		{"prog", exitFound, []string{"may not be executed [archive_unusable]", "run `chmod +x prog`"}, ""},
		{"many", exitFound, []string{"many/1 (many 1)", "many/2 (many 2)", "many/10: 1 error", "run `chmod +x many`"}, ""},
		{"many/2", exitOK, []string{"many/2 (many 2)"}, ""},
		{"many/10", exitFound, []string{"run `chmod +x many`"}, ""},
		{"length/length.py", exitOK, []string{"length/length.py", "good"}, ""},
		{"length --handler length.py", exitOK, []string{"good"}, ""},
		{"length --handler nope.py", exitFound, []string{"[handler_missing]", "length.py"}, ""},
		{"good.mar --python nope", exitFailed, nil, "--python nope: "},
		{"good.mar --python /bin/true", exitFailed, nil, "good.mar could not be checked: "},
		{"good.mar --nope", exitFailed, nil, "unrecognized arguments: --nope"},
		{"", exitFailed, nil, "required: ARCHIVE"},
		{"--help", exitOK, []string{"0 good, 1 could not be checked, 2 errors were found"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			t.Parallel()
			got := b.run(t, append([]string{"check"}, strings.Fields(tt.args)...)...)
			if got.status != tt.status {
				t.Errorf("status %d, want %d", got.status, tt.status)
			}
			all := got.stdout + got.stderr
			for _, want := range append(tt.stdout, tt.stderr) {
				if !strings.Contains(all, want) {
					t.Errorf("%q is not in %q", want, all)
				}
			}
			for _, dir := range []string{b.dir, filepath.Join(b.dir, "bad"), filepath.Join(b.dir, "odd")} {
				if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
					t.Errorf("code of the archive was run in %s", dir)
				}
			}
		})
	}
}

const checkPage = "../../docs/check.md"

// TestCheckJSON holds the reports to the schema of the documentation.
func TestCheckJSON(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(checkPage)
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```json\n(\\{\n  \"\\$schema\".*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("there is no schema in docs/check.md")
	}
	var schema map[string]any
	if err := json.Unmarshal(block[1], &schema); err != nil {
		t.Fatalf("the schema: %v", err)
	}
	b := checkBox(t)
	got := b.run(t, "check", "--json", "good.mar", "bad", "odd", "broken.mar", "nope.mar")
	if got.status != exitFound {
		t.Errorf("status %d: %s", got.status, got.stderr)
	}
	var report struct {
		Archives []struct {
			Path     string
			Good     bool
			Error    string
			Findings []check.Finding
		}
	}
	var value any
	for _, into := range []any{&value, &report} {
		if err := json.Unmarshal([]byte(got.stdout), into); err != nil {
			t.Fatalf("%v in %s", err, got.stdout)
		}
	}
	for _, problem := range violations(schema, value, "$") {
		t.Error(problem)
	}
	if len(report.Archives) != 5 || !report.Archives[0].Good || report.Archives[1].Good || !report.Archives[2].Good || report.Archives[4].Error == "" {
		t.Errorf("%+v", report)
	}
	if found := report.Archives[1].Findings; len(found) != 1 || found[0].Code != check.ImportMissing || found[0].Line != 1 {
		t.Errorf("%+v", found)
	}
	// The schema notices what is wrong.
	for _, wrong := range []string{`{}`, `{"archives": [{}]}`, strings.Replace(got.stdout, `"error"`, `"fatal"`, 1), strings.Replace(got.stdout, `"findings"`, `"found"`, 1)} {
		var value any
		if err := json.Unmarshal([]byte(wrong), &value); err != nil {
			t.Fatal(err)
		}
		if len(violations(schema, value, "$")) == 0 {
			t.Errorf("the schema takes %.60s", wrong)
		}
	}
}

// violations says where a value is not what a JSON Schema asks for. It knows the keywords that docs/check.md uses, and fails on others.
func violations(schema map[string]any, value any, at string) []string {
	var found []string
	say := func(format string, args ...any) { found = append(found, at+": "+fmt.Sprintf(format, args...)) }
	for keyword, want := range schema {
		switch keyword {
		case "$schema", "title", "description":
		case "type":
			kinds := map[string]bool{}
			switch v := value.(type) {
			case map[string]any:
				kinds["object"] = true
			case []any:
				kinds["array"] = true
			case string:
				kinds["string"] = true
			case bool:
				kinds["boolean"] = true
			case float64:
				kinds["number"], kinds["integer"] = true, v == float64(int64(v))
			}
			if kind, _ := want.(string); !kinds[kind] {
				say("it is no %s: %v", want, value)
			}
		case "enum":
			if all, _ := want.([]any); !slices.Contains(all, value) {
				say("%v is none of %v", value, want)
			}
		case "minimum":
			least, _ := want.(float64)
			if n, ok := value.(float64); ok && n < least {
				say("%v is below %v", n, want)
			}
		case "required":
			object, _ := value.(map[string]any)
			keys, _ := want.([]any)
			for _, key := range keys {
				if name, _ := key.(string); object[name] == nil {
					say("%s is missing", key)
				}
			}
		case "properties":
			object, _ := value.(map[string]any)
			members, _ := want.(map[string]any)
			for key, member := range object {
				if inner, ok := members[key].(map[string]any); ok {
					found = append(found, violations(inner, member, at+"."+key)...)
				} else if schema["additionalProperties"] == false {
					say("there is no %s", key)
				}
			}
		case "additionalProperties":
		case "items":
			list, _ := value.([]any)
			inner, _ := want.(map[string]any)
			for i, item := range list {
				found = append(found, violations(inner, item, fmt.Sprintf("%s[%d]", at, i))...)
			}
		default:
			say("the keyword %s is not known here", keyword)
		}
	}
	return found
}

// TestCheckCodesAreDocumented: each code is in the page's table with its meaning, and no other.
func TestCheckCodesAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(checkPage)
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for _, m := range check.Codes() {
		fmt.Fprintf(&want, "| `%s` | %s |\n", m.Code, m.Text)
	}
	if !strings.Contains(string(page), "| code | meaning |\n| --- | --- |\n"+want.String()) {
		t.Errorf("docs/check.md has to have this table:\n%s", want.String())
	}
	known := map[check.Code]bool{}
	for _, m := range check.Codes() {
		if known[m.Code] {
			t.Errorf("%s is there twice", m.Code)
		}
		known[m.Code] = true
	}
	// What the Python side says has its codes from the same list.
	files, err := filepath.Glob("../../python_compat/src/flambeau/inspection/*.py")
	if err != nil || len(files) == 0 {
		t.Fatal("the Python side is not there")
	}
	count := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`"((?:handler|import|model_file|syntax|file)_[a-z_]+)"`).FindAllStringSubmatch(string(text), -1) {
			if m[1] == "model_file" {
				continue
			}
			count++
			if !known[check.Code(m[1])] {
				t.Errorf("%s: %s is no code", file, m[1])
			}
		}
	}
	if count == 0 {
		t.Error("the Python side has no codes")
	}
}
