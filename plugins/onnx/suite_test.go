package onnx

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
)

// suiteValue is a value of testdata/cases.py.
type suiteValue struct {
	Name     string       `json:"name"`
	DataType tensor.DType `json:"datatype"`
	Shape    []int64      `json:"shape"`
	Data     []byte       `json:"data"`
	List     []suiteValue `json:"list"`
	Keys     *suiteValue  `json:"keys"`
	Values   *suiteValue  `json:"values"`
	None     bool         `json:"none"`
}

func (v *suiteValue) tensor() *tensor.Tensor {
	return &tensor.Tensor{Name: v.Name, DType: v.DataType, Shape: v.Shape, Data: v.Data}
}

func (v *suiteValue) value() session.Value {
	switch {
	case v.None:
		return session.Value{}
	case v.Keys != nil:
		return session.Value{Keys: v.Keys.tensor(), Values: v.Values.tensor()}
	case v.DataType == "":
		list := []session.Value{}
		for i := range v.List {
			list = append(list, v.List[i].value())
		}
		return session.Value{List: list}
	}
	return session.Of(v.tensor())
}

type suiteCase struct {
	Passes bool    `json:"passes"` // in Python
	Why    string  `json:"why"`
	Rtol   float64 `json:"rtol"`
	Atol   float64 `json:"atol"`
	Sets   []struct {
		Inputs  []suiteValue `json:"inputs"`
		Outputs []suiteValue `json:"outputs"`
	} `json:"sets"`
}

// suite gives the folder with the cases: that of FLAMBEAU_TEST_ONNX_CASES, or one that is made by the environment's Python if it has the package onnx.
func suite(t *testing.T, prefix string) string {
	t.Helper()
	if dir := os.Getenv("FLAMBEAU_TEST_ONNX_CASES"); dir != "" {
		return dir
	}
	if found, err := filepath.Glob(filepath.Join(prefix, "lib/python3*/site-packages/onnx/backend/test/data/light")); err != nil || len(found) == 0 {
		const what = "the package onnx is not in the environment of FLAMBEAU_TEST_PYTHON, and FLAMBEAU_TEST_ONNX_CASES names no folder with its cases"
		if os.Getenv("FLAMBEAU_TEST_REQUIRED") != "" {
			t.Fatal(what)
		}
		t.Skip(what)
	}
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), filepath.Join(prefix, "bin/python"), "testdata/cases.py", dir).CombinedOutput() //nolint:gosec // the tests' Python
	if err != nil {
		t.Fatalf("cases.py: %v\n%s", err, out)
	}
	t.Logf("%s", out)
	return dir
}

// beyond names cases that onnxruntime passes in Python and that cannot be passed here, with the reason.
var beyond = map[string]string{ //nolint:gochecknoglobals // a table, never changed
	"test_loop13_seq": "its input is an empty sequence, which the C interface cannot make",
}

// TestConformanceSuite runs every case that the onnx package ships or makes: what onnxruntime passes in Python has to be passed here, by a run of the session and, where
// all values are tensors, by a binary request of the Open Inference Protocol.
func TestConformanceSuite(t *testing.T) {
	if testing.Short() {
		t.Skip("two thousand models")
	}
	prefix := environment(t)
	files, err := filepath.Glob(filepath.Join(suite(t, prefix), "*/*/case.json"))
	if err != nil || len(files) < 1000 {
		t.Fatalf("%d cases, %v", len(files), err)
	}
	library := session.Candidates("", os.Args[0], prefix)
	passed, requests, refused := 0, 0, map[string]int{}
	for _, file := range files {
		name := filepath.Base(filepath.Dir(file))
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var c suiteCase
		if err := json.Unmarshal(text, &c); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if !c.Passes {
			refused[filepath.Base(filepath.Dir(filepath.Dir(file)))]++
			continue
		}
		asked, err := pass(t, library, filepath.Dir(file), &c)
		reason, known := beyond[name]
		switch {
		case err == nil && known:
			t.Errorf("%s passes, and is known not to: %s", name, reason)
		case err != nil && known:
			t.Logf("%s: %s (%v)", name, reason, err)
		case err != nil:
			t.Errorf("%s: %v", name, err)
		default:
			passed++
			requests += asked
		}
	}
	t.Logf("%d cases pass, %d by requests too, %d do not; onnxruntime in Python does not pass %v others", passed, requests, len(beyond), refused)
}

// pass runs a case and says whether it was asked by a request, too.
func pass(t *testing.T, library []string, dir string, c *suiteCase) (asked int, err error) {
	t.Helper()
	h := New(Options{Library: library, Logger: slog.New(slog.DiscardHandler)})
	if err := h.Initialize(t.Context(), handlersdk.Model{Name: "m", Version: "1.0", Dir: dir, GPU: handlersdk.NoGPU}); err != nil {
		return 0, err
	}
	defer func() {
		if closing := h.Close(); closing != nil {
			t.Error(closing)
		}
	}()
	for s := range c.Sets {
		set := &c.Sets[s]
		var inputs []session.Input
		var outputs []string
		plain := true
		for i := range set.Inputs {
			v := &set.Inputs[i]
			plain = plain && v.DataType != ""
			if !v.None {
				inputs = append(inputs, session.Input{Name: v.Name, Value: v.value()})
			}
		}
		for i := range set.Outputs {
			outputs = append(outputs, set.Outputs[i].Name)
			plain = plain && set.Outputs[i].DataType != ""
		}
		got, err := h.session.Run(t.Context(), inputs, outputs)
		if err != nil {
			return 0, err
		}
		for i := range got {
			if err := equal(got[i], set.Outputs[i].value(), c.Rtol, c.Atol); err != nil {
				return 0, fmt.Errorf("output %s: %w", outputs[i], err)
			}
		}
		if !plain || len(set.Inputs) == 0 {
			continue
		}
		answered, err := ask(t, h, inputs, outputs)
		if err != nil {
			return 0, fmt.Errorf("by a request: %w", err)
		}
		for i := range answered {
			if err := equal(session.Of(&answered[i]), set.Outputs[i].value(), c.Rtol, c.Atol); err != nil {
				return 0, fmt.Errorf("by a request: output %s: %w", outputs[i], err)
			}
		}
		asked = 1
	}
	return asked, nil
}

// binaryItem is a request of the protocol with raw tensors.
func binaryItem(t *testing.T, inputs []session.Input, outputs []string) handlersdk.Item {
	t.Helper()
	type object = map[string]any
	var ins, outs []object
	var raw []byte
	for _, in := range inputs {
		x := in.Value.Tensor
		ins = append(ins, object{"name": in.Name, "datatype": x.DType, "shape": x.Shape, "parameters": object{"binary_data_size": len(x.Data)}})
		raw = append(raw, x.Data...)
	}
	for _, name := range outputs {
		outs = append(outs, object{"name": name, "parameters": object{"binary_data": true}})
	}
	head, err := json.Marshal(object{"id": "7", "inputs": ins, "outputs": outs, "parameters": object{"custom": 1}})
	if err != nil {
		t.Fatal(err)
	}
	it := item(binaryType, append(head, raw...))
	it.Header = []handlersdk.Field{{Name: "Inference-Header-Content-Length", Value: strconv.Itoa(len(head))}}
	return it
}

// ask asks by a binary request and reads the binary answer.
func ask(t *testing.T, h *Handler, inputs []session.Input, outputs []string) ([]tensor.Tensor, error) {
	t.Helper()
	results, err := h.Handle(t.Context(), []handlersdk.Item{binaryItem(t, inputs, outputs)})
	if err != nil {
		return nil, err
	}
	if results[0].Err != nil {
		return nil, results[0].Err
	}
	return binaryOutputs(&results[0])
}

func binaryOutputs(r *handlersdk.Result) ([]tensor.Tensor, error) {
	i := slices.IndexFunc(r.Header, func(f handlersdk.Field) bool { return f.Name == lengthHeader })
	if i < 0 {
		return nil, fmt.Errorf("no header %s: %.300s", lengthHeader, r.Body)
	}
	n, err := strconv.Atoi(r.Header[i].Value)
	if err != nil || n > len(r.Body) {
		return nil, fmt.Errorf("%s: %q", lengthHeader, r.Header[i].Value)
	}
	var response struct {
		ID      string `json:"id"`
		Outputs []struct {
			Name       string       `json:"name"`
			DataType   tensor.DType `json:"datatype"`
			Shape      []int64      `json:"shape"`
			Parameters struct {
				Size int `json:"binary_data_size"`
			} `json:"parameters"`
		} `json:"outputs"`
	}
	if err := json.Unmarshal(r.Body[:n], &response); err != nil {
		return nil, err
	}
	if response.ID != "7" {
		return nil, fmt.Errorf("the id is %q", response.ID)
	}
	rest := r.Body[n:]
	var all []tensor.Tensor
	for _, o := range response.Outputs {
		if o.Parameters.Size > len(rest) {
			return nil, fmt.Errorf("output %s is cut off", o.Name)
		}
		all = append(all, tensor.Tensor{Name: o.Name, DType: o.DataType, Shape: o.Shape, Data: rest[:o.Parameters.Size]})
		rest = rest[o.Parameters.Size:]
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%d bytes too many", len(rest))
	}
	return all, nil
}

// equal compares as numpy's allclose does.
func equal(got, want session.Value, rtol, atol float64) error {
	switch {
	case got.IsNone() != want.IsNone():
		return fmt.Errorf("got %+v, want %+v", got, want)
	case want.Tensor != nil && got.Tensor != nil:
		return equalTensors(got.Tensor, want.Tensor, rtol, atol)
	case want.List != nil:
		if len(got.List) != len(want.List) {
			return fmt.Errorf("%d members, want %d", len(got.List), len(want.List))
		}
		for i := range want.List {
			if err := equal(got.List[i], want.List[i], rtol, atol); err != nil {
				return err
			}
		}
	case want.Keys != nil && got.Keys != nil:
		if err := equalTensors(got.Keys, want.Keys, rtol, atol); err != nil {
			return err
		}
		return equalTensors(got.Values, want.Values, rtol, atol)
	}
	return nil
}

func equalTensors(got, want *tensor.Tensor, rtol, atol float64) error {
	if got.DType != want.DType || !slices.Equal(got.Shape, want.Shape) {
		return fmt.Errorf("%s %v, want %s %v", got.DType, got.Shape, want.DType, want.Shape)
	}
	if err := got.Check(); err != nil {
		return err
	}
	if want.DType == tensor.Bytes || !strings.Contains("FP16 BF16 FP32 FP64", string(want.DType)) {
		if !slices.Equal(got.Data, want.Data) {
			return fmt.Errorf("%s: %.80x, want %.80x", got.DType, got.Data, want.Data)
		}
		return nil
	}
	x, err := got.Floats()
	if err != nil {
		return err
	}
	y, err := want.Floats()
	if err != nil {
		return err
	}
	for i := range y {
		g, w := float64(x[i]), float64(y[i])
		if g != w && !(math.IsNaN(g) && math.IsNaN(w)) && !(math.Abs(g-w) <= atol+rtol*math.Abs(w)) {
			return fmt.Errorf("element %d is %g, want %g", i, g, w)
		}
	}
	return nil
}
