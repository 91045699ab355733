package onnx

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
)

// environment gives the Python environment with onnxruntime and the models of the tests, or skips the test.
func environment(t testing.TB) string {
	t.Helper()
	python := os.Getenv("FLAMBEAU_TEST_PYTHON")
	if python == "" {
		python = "../../.venv-test/bin/python"
	}
	prefix := filepath.Dir(filepath.Dir(python))
	found, err := filepath.Glob(filepath.Join(prefix, "lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.so*"))
	if err == nil && len(found) > 0 {
		return prefix
	}
	const what = "there is no onnxruntime in the environment of FLAMBEAU_TEST_PYTHON (make test makes one)"
	if os.Getenv("FLAMBEAU_TEST_REQUIRED") != "" {
		t.Fatal(what)
	}
	t.Skip(what)
	return ""
}

// magika loads the model of the package magika.
func magika(t testing.TB) *Handler {
	t.Helper()
	prefix := environment(t)
	dirs, err := filepath.Glob(filepath.Join(prefix, "lib/python3*/site-packages/magika/models/standard_v3_3"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("the package magika is not in %s", prefix)
	}
	h := New(Options{Library: session.Candidates("", os.Args[0], prefix), Logger: slog.New(slog.DiscardHandler)})
	if err := h.Initialize(t.Context(), handlersdk.Model{Name: "magika", Version: "1.0", Dir: dirs[0], GPU: handlersdk.NoGPU}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// features are magika's for a content that is shorter than a thousand bytes: it from its begin, and it up to its end, filled up with 256.
func features(text string) []int64 {
	const half, padding = 1024, 256
	begin, end := strings.TrimLeft(text, " \t\r\n"), strings.TrimRight(text, " \t\r\n")
	all := make([]int64, 2*half)
	for i := range all {
		all[i] = padding
	}
	for i := range min(len(begin), half) {
		all[i] = int64(begin[i])
	}
	for i := range min(len(end), half) {
		all[2*half-1-i] = int64(end[len(end)-1-i])
	}
	return all
}

func item(contentType string, body []byte) handlersdk.Item {
	return handlersdk.Item{ID: "x", Parts: []handlersdk.Part{{Name: "body", ContentType: contentType, Data: body}}}
}

const (
	python   = "import os\nfrom pathlib import Path\n\ndef main():\n    for p in Path('.').iterdir():\n        print(os.fspath(p))\n\nif __name__ == '__main__':\n    main()\n"
	jsonText = `{"name": "x", "values": [1, 2, 3], "nested": {"a": true, "b": null}}`
)

// TestFormsOfARequest sends the same content in every form, together: all in one run of the model, with the same right answer.
func TestFormsOfARequest(t *testing.T) {
	h := magika(t)
	row := features(python)
	list, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := tensor.ParseJSON("bytes", tensor.Int32, []int64{1, 2048}, list)
	if err != nil {
		t.Fatal(err)
	}
	npy, err := parsed.AppendNPY(nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := json.Marshal([][]int64{features(jsonText), row})
	if err != nil {
		t.Fatal(err)
	}
	protocol := `{"id":"42","inputs":[{"name":"bytes","shape":[1,2048],"datatype":"INT32","data":` + string(list) + `}]}`
	items := []handlersdk.Item{
		item("application/json", list), item("application/json", []byte(`{"bytes":[`+string(list)+`]}`)), item("", npy), item("application/octet-stream", parsed.Data),
		item("application/json", []byte(protocol)), item("application/json", other), item("application/json", []byte(`{"byte":[1]}`)),
		item("application/json", []byte(`[[1,2,3]]`)),
		{Parts: []handlersdk.Part{{Name: "bytes", Data: npy}}},
		item("application/json", append([]byte("[1"), bytes.Repeat([]byte(" "), len(parsed.Data)-2)...)), // cut off, and as long as a row of elements
		item("application/json", []byte(`{"bytes":"`+strings.Repeat("a", len(parsed.Data)-2)+`"}`)),
		{Parts: []handlersdk.Part{{Name: "bytes", ContentType: "application/json", Data: bytes.Repeat([]byte("["), len(parsed.Data))}}},
		item("application/x-www-form-urlencoded", append([]byte("[1,\n2"), bytes.Repeat([]byte(" "), len(parsed.Data)-6)...)), // as curl says of what it sends
		item("", append([]byte("[\x01\xff"), parsed.Data[3:]...)),                                                             // elements that begin like JSON
	}
	results, err := h.Handle(t.Context(), items)
	if err != nil {
		t.Fatal(err)
	}
	const label = 143
	isPython := func(name string, scores []float64) {
		t.Helper()
		if len(scores) != 214 || math.Abs(scores[label]-1) > 1e-2 {
			t.Errorf("%s: %d scores, %g for python", name, len(scores), scores[min(label, len(scores)-1)])
		}
	}
	var first struct {
		Label []float64 `json:"target_label"`
	}
	unmarshal(t, results[0], &first)
	isPython("one row without a batch", first.Label)
	for i, name := range map[int]string{1: "object", 2: ".npy", 3: "raw", 5: "two rows", 8: "part"} {
		var got struct {
			Label [][]float64 `json:"target_label"`
		}
		unmarshal(t, results[i], &got)
		if len(got.Label) == 0 {
			t.Errorf("%s: %.200s", name, results[i].Body)
			continue
		}
		isPython(name, got.Label[len(got.Label)-1])
	}
	var response struct {
		ID, Model_Name string //nolint:revive,staticcheck // the protocol's name
		Outputs        []struct {
			Name, Datatype string
			Shape          []int64
			Data           []float64
		}
	}
	unmarshal(t, results[4], &response)
	if response.ID != "42" || response.Model_Name != "magika" || len(response.Outputs) != 1 || response.Outputs[0].Datatype != "FP32" {
		t.Errorf("%+v", response)
	} else {
		isPython("protocol", response.Outputs[0].Data)
	}
	if results[13].Err != nil {
		t.Errorf("elements that begin like JSON: %v", results[13].Err)
	}
	for i, want := range map[int]string{
		6: `no input "byte"; it has bytes INT32 [-1 2048]`, 7: "has the shape [1 3], and the model wants [-1 2048]",
		9: "no JSON array that fits", 10: "no JSON array that fits", 11: "no JSON array that fits", 12: "no JSON array that fits",
	} {
		if results[i].Err == nil || !strings.Contains(results[i].Err.Error(), want) {
			t.Errorf("request %d: %v, want %q", i, results[i].Err, want)
		}
	}
}

func unmarshal(t *testing.T, r handlersdk.Result, into any) {
	t.Helper()
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	if err := json.Unmarshal(r.Body, into); err != nil {
		t.Fatalf("%v: %.200s", err, r.Body)
	}
}
