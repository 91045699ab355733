package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/handlertest"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
)

const small = `{"beg_size": 3, "block_size": 8, "padding_token": 256, "target_labels_space": ["go", "python"]}`

func loaded(t *testing.T, labels bool) *step {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.min.json"), []byte(small), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &step{labels: labels}
	if err := s.Initialize(t.Context(), handlersdk.Model{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	return s
}

func request(body string) handlersdk.Item { return handlertest.Body("application/json", []byte(body)) }

// ask runs one request whose answer is given to the other end.
func ask(t *testing.T, s *step, body string) string {
	t.Helper()
	results, err := s.Handle(t.Context(), []handlersdk.Item{request(body)})
	if err != nil || results[0].Err != nil {
		t.Fatalf("%v %v", err, results)
	}
	return string(results[0].Body)
}

func TestFeatures(t *testing.T) {
	s := loaded(t, false)
	got := ask(t, s, `{"inputs": [{"name": "content", "datatype": "BYTES", "shape": [2], "data": ["  ab", "abcdefghij"]}]}`)
	numbers := tensor.Tensor{Name: "features", DType: tensor.Int32, Shape: []int64{2, 6}}
	_, raw, _ := strings.Cut(got, `"binary_data_size":48}}]}`)
	numbers.Data = []byte(raw)
	all, err := numbers.Floats()
	if err != nil || numbers.Check() != nil {
		t.Fatalf("%v %q", err, got)
	}
	want := []float32{'a', 'b', 256, ' ', 'a', 'b', 'a', 'b', 'c', 'h', 'i', 'j'}
	for i := range want {
		if all[i] != want[i] {
			t.Fatalf("%v, want %v", all, want)
		}
	}
}

func TestLabels(t *testing.T) {
	got := ask(t, loaded(t, true), `{"inputs": [{"name": "scores", "datatype": "FP32", "shape": [2, 2], "data": [0.25, 0.75, 0.5, 0.25]}]}`)
	if !strings.Contains(got, `"shape":[2]`) || !strings.Contains(got, "python") || !strings.Contains(got, "\x02\x00\x00\x00go") {
		t.Errorf("%q", got)
	}
	results, err := loaded(t, true).Handle(t.Context(), []handlersdk.Item{request(`{}`), request(`{"inputs": [{"name": "scores", "datatype": "FP32", "shape": [1], "data": [1]}]}`)})
	if err != nil || results[0].Err == nil || results[1].Err == nil {
		t.Errorf("%v %v", err, results)
	}
}

func TestConformance(t *testing.T) {
	program := filepath.Join(t.TempDir(), "step")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.min.json"), []byte(small), 0o600); err != nil {
		t.Fatal(err)
	}
	refused := request("no request")
	handlertest.RunConformance(t, program, handlertest.Options{
		Dir: dir, Sample: request(`{"inputs": [{"name": "content", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}`), Refused: &refused,
	})
}
