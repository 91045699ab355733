package onnx

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
)

// handlers gives the folder with models for the handlers, requests, and what Python answers.
func handlers(t *testing.T, prefix string) string {
	t.Helper()
	if dir := os.Getenv("FLAMBEAU_TEST_ONNX_HANDLERS"); dir != "" {
		return dir
	}
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), filepath.Join(prefix, "bin/python"), "testdata/handlers.py", dir).CombinedOutput() //nolint:gosec // the tests' Python
	if err == nil {
		return dir
	}
	if os.Getenv("FLAMBEAU_TEST_REQUIRED") != "" {
		t.Fatalf("%v: %s", err, out)
	}
	t.Skipf("the environment of FLAMBEAU_TEST_PYTHON lacks onnx, torchvision or matplotlib: %v: %.500s", err, out)
	return ""
}

// near compares JSON values; numbers may differ by slack, or by as much relative to what is large.
func near(got, want any, slack float64) error {
	switch w := want.(type) {
	case float64:
		if g, ok := got.(float64); !ok || math.Abs(g-w) > slack*max(1, math.Abs(w)) {
			return fmt.Errorf("%v, want %v", got, w)
		}
		return nil
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Errorf("%v, want %v", got, want)
		}
		for i := range w {
			if err := near(g[i], w[i], slack); err != nil {
				return fmt.Errorf("member %d: %w", i, err)
			}
		}
		return nil
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok || len(g) != len(w) {
			return fmt.Errorf("%v, want %v", got, want)
		}
		for name := range w {
			if err := near(g[name], w[name], slack); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	}
	if got != want {
		return fmt.Errorf("%v, want %v", got, want)
	}
	return nil
}

// TestAsThePythonHandlers sends what the Python handlers were sent, alone and together, and wants their answers.
func TestAsThePythonHandlers(t *testing.T) {
	prefix := environment(t)
	root := handlers(t, prefix)
	for _, name := range []string{handlerImages, handlerObjects, handlerTexts, handlerEmbedding} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(root, name)
			h := open(t, prefix, dir)
			files, err := filepath.Glob(filepath.Join(dir, "*.request"))
			if err != nil || len(files) == 0 {
				t.Fatalf("%q, %v", files, err)
			}
			var items []handlersdk.Item
			for _, file := range files {
				body, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				items = append(items, item("", body))
			}
			check := func(how string, k int, r handlersdk.Result) {
				t.Helper()
				text, err := os.ReadFile(strings.TrimSuffix(files[k], ".request") + ".answer")
				if err != nil {
					t.Fatal(err)
				}
				var got, want any
				unmarshal(t, r, &got)
				if err := json.Unmarshal(text, &want); err != nil {
					t.Fatal(err)
				}
				if err := near(got, want, 1e-4); err != nil {
					t.Errorf("%s, %s: %v", filepath.Base(files[k]), how, err)
				}
			}
			for k := range items {
				results, err := h.Handle(t.Context(), items[k:k+1])
				if err != nil {
					t.Fatal(err)
				}
				check("alone", k, results[0])
			}
			for range 2 {
				results, err := h.Handle(t.Context(), items)
				if err != nil {
					t.Fatal(err)
				}
				for k := range items {
					check("together", k, results[k])
				}
			}
			t.Logf("%d requests; joins %v, proven %v", len(items), h.joins.Load(), h.proven)
		})
	}
}

// formHeader is that of a body which curl -d sends.
func formHeader() []handlersdk.Field {
	return []handlersdk.Field{{Name: "Content-Type", Value: "application/x-www-form-urlencoded"}}
}

// TestFormsOfAPicture: as a file, in base64, in a JSON string, in a form's field, and as a request of the protocol, which passes the handler by.
func TestFormsOfAPicture(t *testing.T) {
	prefix := environment(t)
	dir := filepath.Join(handlers(t, prefix), handlerImages)
	h := open(t, prefix, dir)
	file, err := os.ReadFile(filepath.Join(dir, "d.request"))
	if err != nil {
		t.Fatal(err)
	}
	text := base64.StdEncoding.EncodeToString(file)
	zeros := `{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3,224,224],"data":[` + strings.TrimSuffix(strings.Repeat("0,", 3*224*224), ",") + `]}]}`
	results, err := h.Handle(t.Context(), []handlersdk.Item{
		item("image/png", file),
		item("text/plain", []byte(text)),
		item(jsonType, []byte(`"`+text+`"`)),
		{Parts: []handlersdk.Part{{Name: "data", Data: file}}},
		{Parts: []handlersdk.Part{{Name: "picture", Data: file}}},
		item("", []byte("no picture")),
		item("", nil),
		item(jsonType, []byte(zeros)),
		{Parts: []handlersdk.Part{{Name: "a picture"}}},
		{Header: formHeader()},
		{Header: formHeader(), Parts: []handlersdk.Part{{Name: "\x8f", Data: []byte("J")}}},
		{Header: formHeader(), Parts: []handlersdk.Part{{Name: "\x8f", Data: []byte("J")}, {Name: "q", Data: []byte("x")}}},
		{Parts: []handlersdk.Part{{Name: "a", Data: file}, {Name: "b", Data: file}}},
		{Header: []handlersdk.Field{{Name: "explain", Value: "True"}}, Parts: []handlersdk.Part{{Name: "body", Data: file}}},
		{Header: []handlersdk.Field{{Name: "explain", Value: "False"}}, Parts: []handlersdk.Part{{Name: "body", Data: file}}},
		{Header: formHeader(), Parts: []handlersdk.Part{{Name: "data", Data: []byte(text[:len(text)/8*4])}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if results[i].Err != nil || !bytes.Equal(results[i].Body, results[0].Body) {
			t.Errorf("form %d: %v, %s", i, results[i].Err, results[i].Body)
		}
	}
	if results[14].Err != nil || !bytes.Equal(results[14].Body, results[0].Body) {
		t.Errorf("%v, %s", results[14].Err, results[14].Body)
	}
	for i, want := range map[int]string{
		5: "the picture cannot be read", 6: "the request is empty", 8: "came as a form", 9: "came as a form", 10: "came as a form", 11: "came as a form",
		12: "the request has 2 parts, and none of them is called data", 13: "no explanations",
		15: "picture cannot be decoded",
	} {
		if results[i].Err == nil || !strings.Contains(results[i].Err.Error(), want) {
			t.Errorf("form %d: %v", i, results[i].Err)
		}
	}
	var response struct {
		Outputs []struct{ Shape []int }
	}
	unmarshal(t, results[7], &response)
	if len(response.Outputs) != 1 || response.Outputs[0].Shape[1] != 12 {
		t.Errorf("%s", results[7].Body)
	}
}

// TestSettingsThatAreWrong: what the file says has to mean something, for this model.
func TestSettingsThatAreWrong(t *testing.T) {
	prefix := environment(t)
	root := handlers(t, prefix)
	for text, want := range map[string]string{
		"handler: nothing":                                           `the handler "nothing" is none of`,
		"handler: object_detector":                                   "name the outputs with boxes, labels and scores",
		"handler: text_classifier":                                   "needs the file tokenizer.json",
		"handler: image_classifier\nonnx: {output: y}":               `the model has no output "y"`,
		"onnx: {image: {crop: [1]}}":                                 "image.crop",
		"onnx: {image: {mean: [1, 2]}}":                              "image.mean",
		"onnx: {text: {pooling: max}}":                               "text.pooling",
		"onnx: {topK: -1}":                                           "topK",
		"onnx: {intraOpThreads: -1}":                                 "negative",
		"onnx: {providers: [{options: {}}]}":                         "no name",
		"onnx: {graphOptimization: much}":                            "graph optimization",
		"onnx: {providers: [{name: NoSuchProvider}]}":                "NoSuchProvider",
		"onnx: {providers: [{name: CUDA}]}":                          "CUDA",
		"onnx: {providers: [{name: TensorRT}]}":                      "TensorRT",
		"onnx: [":                                                    settingsFile,
		"handler: image_classifier\nonnx: {image: {stretch: true}}":  "image.stretch",
		"handler: [image_classifier]":                                "the handler [image_classifier] is no name",
		"handler: 5":                                                 "the handler 5 is no name",
		"onnx: {topk: 3}":                                            `below onnx there is no key "topk"; the keys are arena, batching,`,
		"onnx: {image: {normalise: true}}":                           `below onnx.image there is no key "normalise"; the keys are bgr, crop,`,
		"onnx: {providers: [{name: CPU, option: {}}]}":               `below onnx.providers there is no key "option"; the keys are name, options`,
		"onnx: {image: {std: [0, 1, 1]}}":                            "cannot be 0",
		"onnx: {image: {scale: 0}}":                                  "cannot be 0",
		"onnx: {image: {mean: [.nan, 0, 0]}}":                        "has to be finite",
		"handler: image_classifier\nonnx: {image: {crop: [96, 64]}}": "pictures are made 96 wide and 64 high, which image.crop below onnx changes, and the model has x FP32 [-1 3 224 224]",
		"# a model for each token\nhandler: text_classifier":         `wants an output of [rows, classes], and "last_hidden_state" is FP32 [-1 -1 16]`,
		"# objects\nhandler: object_detector\nonnx: {outputs: {boxes: scores, labels: labels, scores: boxes}}": "boxes have a dimension more than scores",
	} {
		dir := t.TempDir()
		from := filepath.Join(root, handlerImages)
		switch {
		case strings.HasPrefix(text, "# a model for each token"):
			from = filepath.Join(root, handlerEmbedding)
		case strings.HasPrefix(text, "# objects"):
			from = filepath.Join(root, handlerObjects)
		}
		for _, name := range []string{"model.onnx", "tokenizer.json"} {
			if name == "tokenizer.json" && filepath.Base(from) != handlerEmbedding {
				continue
			}
			if err := os.Symlink(filepath.Join(from, name), filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, settingsFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		h := New(Options{Library: session.Candidates("", os.Args[0], prefix), Logger: slog.New(slog.DiscardHandler)})
		err := h.Initialize(t.Context(), handlersdk.Model{Name: "m", Dir: dir, GPU: handlersdk.NoGPU})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestClassWithoutLabel: the log tells of it when the model is loaded, and names it; with a label for each class it says nothing.
func TestClassWithoutLabel(t *testing.T) {
	prefix := environment(t)
	from := filepath.Join(handlers(t, prefix), handlerImages)
	for text, want := range map[string]string{`{"0": "a", "2": "c"}`: "class=1 classes=12", `{"object_type_names": ["a","b","c","d","e","f","g","h","i","j","k","l"]}`: ""} {
		dir := t.TempDir()
		for name, content := range map[string]string{labelsFile: text, settingsFile: "handler: image_classifier\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(filepath.Join(from, "model.onnx"), filepath.Join(dir, "model.onnx")); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		h := New(Options{Library: session.Candidates("", os.Args[0], prefix), Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
		if err := h.Initialize(t.Context(), handlersdk.Model{Name: "m", Dir: dir, GPU: handlersdk.NoGPU}); err != nil {
			t.Fatal(err)
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		if got := log.String(); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%s: the log has %q, want %q", text, got, want)
		}
	}
}
