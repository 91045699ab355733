package onnx

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
)

// withLength is a request of the protocol whose JSON part has a length.
func withLength(length, body string) handlersdk.Item {
	it := item(binaryType, []byte(body))
	it.Header = []handlersdk.Field{{Name: "inference-header-content-length", Value: length}}
	return it
}

// TestBinaryRequests: raw tensors before and behind, one body without JSON, and requests that are wrong, each with what is wrong.
func TestBinaryRequests(t *testing.T) {
	h := magika(t)
	parsed, err := json.Marshal(features(python))
	if err != nil {
		t.Fatal(err)
	}
	x, err := tensor.ParseJSON("bytes", tensor.Int32, []int64{1, 2048}, parsed)
	if err != nil {
		t.Fatal(err)
	}
	raw := string(x.Data)
	head := func(size int, more string) string {
		return `{"inputs":[{"name":"bytes","shape":[1,2048],"datatype":"INT32","parameters":{"binary_data_size":` + strconv.Itoa(size) + `}}]` + more + `}`
	}
	good := head(len(raw), `,"outputs":[{"name":"target_label"}],"id":"a"`)
	binary := head(len(raw), `,"parameters":{"binary_data_output":true}`)
	override := head(len(raw), `,"parameters":{"binary_data_output":true},"outputs":[{"name":"target_label","parameters":{"binary_data":false}}]`)
	length := func(s string) string { return strconv.Itoa(len(s)) }
	items := []handlersdk.Item{
		withLength(length(good), good+raw), withLength(length(binary), binary+raw), withLength(length(override), override+raw), withLength("0", raw),
	}
	wrong := []struct{ length, body, want string }{
		{"99999", good, "has to be the length of the body's JSON part"},
		{"-1", good + raw, "has to be the length"},
		{"x", good + raw, "has to be the length"},
		{length(good), good + raw[:100], "has 8192 bytes by its parameter binary_data_size, and the body has 100 more"},
		{length(good), good + raw + "xy", "2 bytes follow the request's last tensor"},
		{length(head(8, "")), head(8, "") + raw[:8], "are 8192 bytes, and there are 8"},
		{"0", raw[:7], "do not make up whole rows"},
		{length(head(8192, `,"outputs":[{"name":"y"}]`)), head(8192, `,"outputs":[{"name":"y"}]`) + raw, `no output "y"`},
		{length(`{"inputs":[{"name":"bytes","shape":[1,2048],"datatype":"INT32"}]}`), `{"inputs":[{"name":"bytes","shape":[1,2048],"datatype":"INT32"}]}`, "neither data nor"},
		{"5", `[1,2]` + raw, "no JSON object"},
		{"2", `{}` + raw, "8192 bytes follow"},
	}
	for _, w := range wrong {
		items = append(items, withLength(w.length, w.body))
	}
	results, err := h.Handle(t.Context(), items)
	if err != nil {
		t.Fatal(err)
	}
	for i, isBinary := range []bool{false, true, false, true} {
		r := &results[i]
		if r.Err != nil {
			t.Errorf("request %d: %v", i, r.Err)
			continue
		}
		said := slices.ContainsFunc(r.Header, func(f handlersdk.Field) bool { return f.Name == lengthHeader })
		if said != isBinary {
			t.Errorf("request %d: headers %v", i, r.Header)
		}
		if echoed := strings.Contains(string(r.Body), `"id":"a"`); echoed != (i == 0) {
			t.Errorf("request %d: %.100s", i, r.Body)
		}
	}
	for i, w := range wrong {
		if r := results[4+i]; r.Err == nil || !strings.Contains(r.Err.Error(), w.want) {
			t.Errorf("%s: %v, want %q", w.length, r.Err, w.want)
		}
	}
}

func TestDescription(t *testing.T) {
	h := magika(t)
	want := handlersdk.Description{
		Platform: "onnxruntime_onnx", MaxBatch: manyRows, Inputs: []handlersdk.Port{{Name: "bytes", DataType: tensor.Int32, Shape: []int64{-1, 2048}}},
		Outputs: []handlersdk.Port{{Name: "target_label", DataType: tensor.FP32, Shape: []int64{-1, 214}}},
		Accepts: []string{"application/json", "application/x-npy", "application/octet-stream", "multipart/form-data"},
	}
	if got := h.Describe(); !cmp.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
	// What clients read as max_batch_size: without batchSize what Triton says of such a model, else that.
	for batchSize, want := range map[int]int{0: manyRows, 1: manyRows, 2: 2, 64: 64} {
		h.model.BatchSize = batchSize
		if got := h.Describe().MaxBatch; got != want {
			t.Errorf("batchSize %d is told as max_batch %d, want %d", batchSize, got, want)
		}
	}
	h.joins.Store(false) // a first dimension that is fixed, or batching: false
	if got := h.Describe().MaxBatch; got != 0 {
		t.Errorf("max_batch is %d for a model without rows", got)
	}
	if !slices.Contains(h.Features(), handlersdk.FeatureOIPBinary) {
		t.Errorf("features %v", h.Features())
	}
}
