package check

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/modelstore/archive"
)

// storeOf opens a store that has these files.
func storeOf(t *testing.T, files map[string]string) *archive.Store {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		writeFile(t, filepath.Join(dir, name), text)
	}
	return storeAt(t, dir)
}

func storeAt(t *testing.T, dir string) *archive.Store {
	t.Helper()
	store, err := archive.New(archive.Options{Store: dir, Temp: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

func openEntry(t *testing.T, store *archive.Store, place string) *archive.Archive {
	t.Helper()
	a, err := store.OpenEntry(t.Context(), place)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// steps is the configuration of an ensemble of models, each after the other.
func steps(models ...string) string {
	lines := []string{"ensemble:", "  steps:"}
	for i, model := range models {
		in, out := string(rune('A'+i)), string(rune('B'+i))
		lines = append(lines, "    - model: "+model, "      inputs: {x: "+in+"}", "      outputs: {y: "+out+"}")
	}
	return strings.Join(lines, "\n") + "\n"
}

func TestEnsemblesOfThemselves(t *testing.T) {
	t.Parallel()
	const ports = `input [ { name: "A" data_type: TYPE_FP32 dims: [ 1 ] } ] output [ { name: "B" data_type: TYPE_FP32 dims: [ 1 ] } ]`
	files := map[string]string{
		"triton/1/.keep": "",
		"triton/config.pbtxt": `platform: "ensemble" ` + ports + `
ensemble_scheduling { step [
  { model_name: "triton" model_version: -1 input_map { key: "x" value: "A" } output_map { key: "y" value: "B" } } ] }`,
	}
	graph := map[string][]string{
		"itself": {"one", "itself"}, "a": {"one", "b"}, "b": {"one", "c", "two"}, "c": {"a"}, "above": {"a", "b", "above2"}, "fine": {"top", "top", "fine2"}, "top": {"one"}, "version": {"version"},
	}
	for name, models := range graph {
		files[name+"/model-config.yaml"] = steps(models...)
	}
	delete(files, "version/model-config.yaml")
	files["version/2/model-config.yaml"] = steps("version")
	store := storeOf(t, files)
	asked := 0
	beside := func(ctx context.Context, _ *archive.Archive, model, _ string) *archive.Archive {
		asked++
		if graph[model] == nil {
			return nil
		}
		a, err := store.OpenEntry(ctx, model)
		if err != nil {
			t.Error(err)
		}
		return a
	}
	const code = "error ensemble_circle model-config.yaml:"
	for place, w := range map[string]want{
		"itself": {code + "6", []string{"made of itself: itself → itself", "take one of these models out"}}, "version/2": {code + "3", []string{"version → version"}},
		"triton": {"error ensemble_circle config.pbtxt:3", []string{"triton → triton"}},
		"a":      {code + "6", []string{"a → b → c → a"}}, "b": {code + "6", []string{"b → c → a → b"}}, "c": {code + "3", []string{"c → a → b → c"}},
		"above": {}, "fine": {}, "top": {},
	} {
		a := openEntry(t, store, place)
		asked = 0
		r := check(t, Options{Inspector: someFacts(nil), Ensemble: beside}, a)
		if w.head == "" {
			expect(t, &r, nil)
		} else {
			expect(t, &r, []want{w})
		}
		if asked > len(graph) {
			t.Errorf("%s: %d models were looked for", place, asked)
		}
		r = check(t, Options{Inspector: someFacts(nil)}, a) // what lies beside it is not known
		if direct := place == "itself" || place == "triton" || place == "version/2"; (r.Errors() == 1) != direct {
			t.Errorf("%s alone: %s", place, r.Text())
		}
	}
}

func TestStepLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"model: a.b\n": 1, "# model\nmodel: a.bc\n- {model: 'a.b', x: 1}": 3, "x\n\"model\":  \"a.b\"}": 2, "\nmodel_name: \"a.b\"": 2, "models: a.b": 0, "model: axb": 0, "": 0, "submodel: a.b": 0,
	} {
		if got := stepLine([]byte(text), "a.b"); got != want {
			t.Errorf("%q: line %d, want %d", text, got, want)
		}
	}
}

// TestTasksOfONNX: what the backend would not load is an error, and what it takes is none.
func TestTasksOfONNX(t *testing.T) {
	t.Parallel()
	model := onnx(8, 17, "", nil)
	const pbtxt = `platform: "onnxruntime_onnx" max_batch_size: 4 optimization { graph { level: 1 } }`
	const unknown, refused = "error handler_missing model-config.yaml:", "error config_refused model-config.yaml:"
	says := []string{`"no_such_handler" is none of image_classifier, text_classifier, embedding, object_detector, raw`, "leave the key out"}
	for name, c := range map[string]struct {
		files map[string]string
		want  []want
	}{
		"none":        {files: map[string]string{"m/model.onnx": model}},
		"no key":      {files: map[string]string{"m/model.onnx": model, "m/model-config.yaml": "onnx: {topK: 1}\n"}},
		"unknown":     {map[string]string{"m/model.onnx": model, "m/model-config.yaml": "# x\nhandler: no_such_handler\n"}, []want{{unknown + "2", says}}},
		"quoted":      {map[string]string{"m/model.onnx": model, "m/model-config.yaml": "handler: 'Raw'\n"}, []want{{unknown + "1", []string{`"Raw" is none of`}}}},
		"mapping":     {files: map[string]string{"m/model.onnx": model, "m/model-config.yaml": "handler: {a: b}\n"}}, // of a Python handler: the backend leaves it alone
		"number":      {map[string]string{"m/model.onnx": model, "m/model-config.yaml": "handler: 5\n"}, []want{{refused + "1", []string{"the handler 5 is no name"}}}},
		"misspelt":    {map[string]string{"m/model.onnx": model, "m/model-config.yaml": "topk: 1\nonnx:\n  topk: 5\n"}, []want{{refused + "3", []string{`below onnx there is no key "topk"; the keys are arena,`}}}},
		"no value":    {map[string]string{"m/model.onnx": model, "m/model-config.yaml": "onnx: {image: {\n  mean: [0, 0, 0],\n  'std': [1, 0, 1]}}\n"}, []want{{refused + "3", []string{"image.std cannot be 0"}}}},
		"wrong type":  {map[string]string{"m/model.onnx": model, "m/model-config.yaml": "onnx:\n  topK: many\n"}, []want{{strings.TrimSuffix(refused, ":"), []string{`line 2: "topK" is the string "many" and has to be a whole number`}}}},
		"raw":         {files: map[string]string{"m/model.onnx": model, "m/model-config.yaml": "handler: raw\n"}},
		"images":      {files: map[string]string{"m/model.onnx": model, "m/model-config.yaml": "handler: image_classifier\n"}},
		"texts":       {files: map[string]string{"m/model.onnx": model, "m/model-config.yaml": "handler: text_classifier\n"}},
		"embedding":   {files: map[string]string{"m/model.onnx": model, "m/model-config.yaml": "handler: embedding\n"}},
		"objects":     {files: map[string]string{"m/model.onnx": model, "m/model-config.yaml": "handler: object_detector\n"}},
		"triton":      {map[string]string{"m/1/model.onnx": model, "m/config.pbtxt": pbtxt, "m/model-config.yaml": "# y\nhandler: no_such_handler\n"}, []want{{unknown + "2", says}}},
		"triton's":    {map[string]string{"m/1/model.onnx": model, "m/config.pbtxt": pbtxt, "m/1/model-config.yaml": "handler: no_such_handler\n"}, []want{{unknown + "1", says}}},
		"triton raw":  {files: map[string]string{"m/1/model.onnx": model, "m/config.pbtxt": pbtxt, "m/model-config.yaml": "handler: raw\n"}},
		"triton none": {files: map[string]string{"m/1/model.onnx": model, "m/config.pbtxt": pbtxt}},
		"python":      {files: map[string]string{"m/MAR-INF/MANIFEST.json": `{"model":{"modelName":"m","modelVersion":"1","handler":"h.py","configFile":"model-config.yaml"}}`, "m/h.py": goodHandler, "m/model-config.yaml": "handler: no_such_handler\n"}},
	} {
		place := "m"
		if strings.HasPrefix(name, "triton") {
			place = "m/1"
		}
		given := someFacts(nil)
		given["base"] = map[string]bool{}
		r := check(t, Options{Inspector: given}, openEntry(t, storeOf(t, c.files), place))
		expect(t, &r, c.want)
		if t.Failed() {
			t.Fatalf("%s", name)
		}
	}
}
