package onnx

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
)

// TestDevices: the server's device reaches the providers that have devices, unless the model's file says another; without providers a device means CUDA.
func TestDevices(t *testing.T) {
	t.Parallel()
	cuda := func(options map[string]string) session.Provider {
		return session.Provider{Name: "CUDA", Options: options}
	}
	for _, c := range []struct {
		name    string
		given   []session.Provider
		gpu     int
		want    []session.Provider
		threads int
	}{
		{"nothing said, no device", nil, handlersdk.NoGPU, nil, 3},
		{"nothing said, a device", nil, 1, []session.Provider{cuda(map[string]string{"device_id": "1"})}, 3},
		{"TensorRT first", []session.Provider{{Name: "TensorrtExecutionProvider"}, cuda(nil)}, 2, []session.Provider{
			{Name: "TensorrtExecutionProvider", Options: map[string]string{"device_id": "2"}}, cuda(map[string]string{"device_id": "2"}),
		}, 3},
		{"the file's device", []session.Provider{cuda(map[string]string{"device_id": "0", "gpu_mem_limit": "1"})}, 1, []session.Provider{
			cuda(map[string]string{"device_id": "0", "gpu_mem_limit": "1"}),
		}, 3},
		{"the CPU in spite of a device", []session.Provider{{Name: "CPU"}}, 1, []session.Provider{{Name: "CPU", Options: map[string]string{}}}, 3},
	} {
		got := sessionOptions(session.Options{Providers: c.given}, 3, c.gpu)
		if !cmp.Equal(got.Providers, c.want) || got.IntraOp != c.threads {
			t.Errorf("%s: %s", c.name, cmp.Diff(c.want, got.Providers))
		}
	}
	if got := sessionOptions(session.Options{IntraOp: 2}, 3, handlersdk.NoGPU); got.IntraOp != 2 {
		t.Errorf("%d threads", got.IntraOp)
	}
}

// TestCUDA runs the real models on a GPU and compares with the CPU's answers. test/gpu/onnx_cuda.sh runs it; FLAMBEAU_TEST_CUDA=cpu does the same without a GPU.
func TestCUDA(t *testing.T) {
	device := 0
	switch os.Getenv("FLAMBEAU_TEST_CUDA") {
	case "":
		t.Skip("FLAMBEAU_TEST_CUDA is not set: there is no GPU")
	case "cpu":
		device = handlersdk.NoGPU
	}
	prefix := environment(t)
	files, err := filepath.Glob(filepath.Join(models(t, prefix), "*/case.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var c suiteCase
			if err := json.Unmarshal(text, &c); err != nil {
				t.Fatal(err)
			}
			h := openOn(t, prefix, filepath.Dir(file), device)
			for s := range c.Sets {
				var inputs []session.Input
				for i := range c.Sets[s].Inputs {
					inputs = append(inputs, session.Input{Name: c.Sets[s].Inputs[i].Name, Value: c.Sets[s].Inputs[i].value()})
				}
				results, err := h.Handle(t.Context(), []handlersdk.Item{binaryItem(t, inputs, h.names)})
				if err != nil {
					t.Fatal(err)
				}
				requireOutputs(t, &results[0], &c, s, 2e-3) // TF32 and other orders of sums
			}
		})
	}
}
