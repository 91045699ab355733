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
				slack := 1e-4
				if bytes.HasPrefix(items[k].Parts[0].Data, []byte("\xff\xd8")) {
					slack = 1e-3 // the decoders of JPEG differ
				}
				if err := near(got, want, slack); err != nil {
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
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if results[i].Err != nil || !bytes.Equal(results[i].Body, results[0].Body) {
			t.Errorf("form %d: %v, %s", i, results[i].Err, results[i].Body)
		}
	}
	for i, want := range map[int]string{5: "the picture cannot be read", 6: "the request is empty", 8: "came as a form"} {
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
		"handler: nothing":                                          `the handler "nothing" is none of`,
		"handler: object_detector":                                  "name the outputs with boxes, labels and scores",
		"handler: text_classifier":                                  "needs the file tokenizer.json",
		"handler: image_classifier\nonnx: {output: y}":              `the model has no output "y"`,
		"onnx: {image: {crop: [1]}}":                                "image.crop",
		"onnx: {image: {mean: [1, 2]}}":                             "image.mean",
		"onnx: {text: {pooling: max}}":                              "text.pooling",
		"onnx: {topK: -1}":                                          "topK",
		"onnx: {intraOpThreads: -1}":                                "negative",
		"onnx: {providers: [{options: {}}]}":                        "no name",
		"onnx: {graphOptimization: much}":                           "graph optimization",
		"onnx: {providers: [{name: NoSuchProvider}]}":               "NoSuchProvider",
		"onnx: {providers: [{name: CUDA}]}":                         "CUDA",
		"onnx: {providers: [{name: TensorRT}]}":                     "TensorRT",
		"onnx: [":                                                   settingsFile,
		"handler: image_classifier\nonnx: {image: {stretch: true}}": "image.stretch",
	} {
		dir := t.TempDir()
		if err := os.Symlink(filepath.Join(root, handlerImages, "model.onnx"), filepath.Join(dir, "model.onnx")); err != nil {
			t.Fatal(err)
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
