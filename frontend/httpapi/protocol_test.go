package httpapi

import (
	"bytes"
	"context"
	bin "encoding/binary"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/dispatch"
	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/frontend/oipserver"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// fakeStats has numbers of its own for each version.
type fakeStats struct{}

func (fakeStats) Stats(ref infer.ModelRef) dispatch.Stats {
	if ref.Name != "adder" {
		return dispatch.Stats{}
	}
	ms := func(n int64, d int) dispatch.Spent {
		return dispatch.Spent{Count: n, Time: time.Duration(d) * time.Millisecond}
	}
	return dispatch.Stats{
		Inferences: 12, Executions: 3, Last: time.UnixMilli(1234), Success: ms(6, 60), Fail: ms(1, 5), Queue: ms(6, 6), Compute: ms(6, 54),
		Batches: []dispatch.BatchStats{{Rows: 4, Compute: ms(3, 27)}},
	}
}

// withProtocol makes a server that speaks the protocol, with the model adder, which takes raw tensors, and words, which streams.
func withProtocol(t *testing.T, change ...func(*Options)) *fixture {
	t.Helper()
	f := serve(t, append([]func(*Options){func(o *Options) {
		models, ok := o.Models.(*fakeModels)
		predictor, ok2 := o.Predictor.(*fakePredictor)
		if !ok || !ok2 {
			t.Fatal("the fixture's fakes are others")
		}
		models.archives["adder.mar"] = infer.ModelRef{Name: "adder", Version: "3"}
		models.archives["words.mar"] = infer.ModelRef{Name: "words", Version: "1.0"}
		models.archives["kserve.mar"] = infer.ModelRef{Name: "kserve", Version: "1.0"}
		models.add("adder")
		models.add("words")
		models.add("kserve")
		adder := models.find(infer.ModelRef{Name: "adder"})
		adder.Runtime, adder.Features = "onnx", map[string]bool{"oip_binary": true}
		adder.Ports = &backend.Description{
			MaxBatch: 8, Inputs: []backend.Port{{Name: "A", DataType: "FP32", Shape: []int64{-1, 2}}},
			Outputs: []backend.Port{{Name: "X", DataType: "FP32", Shape: []int64{-1, 2}}, {Name: "S", DataType: "BYTES", Shape: []int64{1}}},
			Labels:  map[string][]string{"X": {"low", "high"}},
		}
		predictor.handler = protocolHandler
		p, err := oipserver.New(oipserver.Options{Predictor: predictor, Models: models, Statistics: fakeStats{}, ModelAPI: true, Version: "9"})
		if err != nil {
			t.Fatal(err)
		}
		o.Protocol = p
	}}, change...)...)
	return f
}

// protocolHandler runs the models of withProtocol: adder adds 1, words streams its words, kserve answers as the kservev2 envelope does; others echo.
func protocolHandler(_ context.Context, ref infer.ModelRef, item infer.Item) (infer.Result, error) {
	switch ref.Name {
	case "adder":
		return adder(item)
	case "words":
		var in struct {
			Text string `json:"text_input"`
		}
		if err := json.Unmarshal(item.Parts[0].Data, &in); err != nil {
			return infer.Result{}, fault.New(fault.HandlerFailed, "no text", err)
		}
		words := strings.Fields(in.Text)
		for i, w := range words {
			if w == "fail" {
				return infer.Result{}, fault.New(fault.HandlerFailed, "failed on a word", nil)
			}
			if i < len(words)-1 && item.Emit != nil {
				item.Emit(infer.Result{Body: []byte(w + " ")})
			}
		}
		if len(words) == 0 {
			return infer.Result{}, &fault.Error{Kind: fault.HandlerFailed, Message: "no words", Code: 422}
		}
		return infer.Result{Body: []byte(words[len(words)-1])}, nil
	case "kserve":
		r, err := oip.DecodeRequest(item.Parts[0].Data, "")
		if err != nil {
			return infer.Result{}, err
		}
		r.Inputs[0].Name = "out"
		body, _, err := (&oip.Response{ID: "made", Model: "kserve", Outputs: r.Inputs}).Encode(func(string) bool { return false })
		return infer.Result{Body: body}, err
	}
	return infer.Result{Body: echo(item)}, nil
}

func adder(item infer.Item) (infer.Result, error) {
	r, err := oip.DecodeRequest(item.Parts[0].Data, header(item, "inference-header-content-length"))
	if err != nil {
		return infer.Result{}, err
	}
	if err := r.Inputs[0].Resolve(); err != nil {
		return infer.Result{}, err
	}
	values, err := r.Inputs[0].Floats()
	if err != nil {
		return infer.Result{}, err
	}
	for i := range values {
		values[i]++
	}
	text := tensor.Tensor{Name: "S", DType: tensor.Bytes, Shape: []int64{1}, Data: tensor.AppendElement(nil, []byte("text"))}
	answer := oip.Response{ID: r.ID, Model: "adder", Version: "3", Outputs: []oip.Tensor{{Tensor: tensor.FromFloats("X", r.Inputs[0].Shape, values)}, {Tensor: text}}}
	body, n, err := answer.Encode(r.IsBinary)
	res := infer.Result{Header: []infer.Field{{Name: "content-type", Value: "application/json"}}, Body: body}
	if n >= 0 {
		res.Header = []infer.Field{{Name: "content-type", Value: "application/octet-stream"}, {Name: "inference-header-content-length", Value: strconv.Itoa(n)}}
	}
	return res, err
}

func floats(values ...float32) string {
	var b []byte
	for _, v := range values {
		b = bin.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return string(b)
}

func TestProtocolReads(t *testing.T) {
	f := withProtocol(t)
	adderStats := `{"name":"adder","version":"3","last_inference":1234,"inference_count":12,"execution_count":3,"inference_stats":{` +
		`"success":{"count":6,"ns":60000000},"fail":{"count":1,"ns":5000000},"queue":{"count":6,"ns":6000000},"compute_input":{"count":6,"ns":0},` +
		`"compute_infer":{"count":6,"ns":54000000},"compute_output":{"count":6,"ns":0},"cache_hit":{"count":0,"ns":0},"cache_miss":{"count":0,"ns":0}},` +
		`"batch_stats":[{"batch_size":4,"compute_input":{"count":3,"ns":0},"compute_infer":{"count":3,"ns":27000000},"compute_output":{"count":3,"ns":0}}]}`
	for _, tc := range []struct {
		path   string
		status int
		want   string // JSON, or a part of it with a * before it
	}{
		{"/v2/health/live", 200, `{"live":true}`},
		{"/v2/health/ready", 200, `{"ready":true}`},
		{"/v2", 200, `*"binary_tensor_data"`},
		{"/v2/models/adder", 200, `{"name":"adder","versions":["3"],"platform":"onnxruntime_onnx","inputs":[{"name":"A","datatype":"FP32","shape":[-1,2]}],` +
			`"outputs":[{"name":"X","datatype":"FP32","shape":[-1,2]},{"name":"S","datatype":"BYTES","shape":[1]}]}`},
		{"/v2/models/adder/versions/3", 200, `*"versions":["3"]`},
		{"/v2/models/echo", 200, `{"name":"echo","versions":["1.0"],"platform":"python","inputs":[],"outputs":[]}`},
		{"/v2/models/nope", 404, `{"error":"Model not found: nope","code":404,"type":"ModelNotFoundException","message":"Model not found: nope"}`},
		{"/v2/models/adder/versions/4", 404, `*"error"`},
		{"/v2/models/adder/ready", 200, `{"name":"adder","ready":true}`},
		{"/v2/models/adder/versions/3/ready", 200, `{"name":"adder","ready":true}`},
		{"/v2/models/nope/ready", 404, `*"error"`},
		{"/v2/models/adder/config", 200, `*"max_batch_size":8,"input":[{"name":"A","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[2],`},
		{"/v2/models/adder/config", 200, `*"output":[{"name":"X","data_type":"TYPE_FP32","dims":[2],"label_filename":"","is_shape_tensor":false},{"name":"S","data_type":"TYPE_STRING",`},
		{"/v2/models/adder/stats", 200, `{"model_stats":[` + adderStats + `]}`},
		{"/v2/models/adder/versions/3/stats", 200, `{"model_stats":[` + adderStats + `]}`},
		{"/v2/models/stats", 200, "*" + adderStats},
		{"/v2/trace/setting", 200, `*"trace_level":["OFF"]`},
		{"/v2/models/adder/trace/setting", 200, `*"trace_level":["OFF"]`},
		{"/v2/models/nope/trace/setting", 404, `*"error"`},
		{"/v2/logging", 200, `*"log_info":true`},
		{"/v2/systemsharedmemory/status", 200, `[]`},
		{"/v2/systemsharedmemory/region/x/status", 400, `*"error"`},
		{"/v2/nosuch", 404, `*"error"`},
		{"/v2/models/adder/nosuch", 404, `*"error"`},
		{"/v2/repository/nosuch", 404, `*"error"`},
	} {
		r := do(t, f.addr[Inference], "GET", tc.path, "")
		got := r.body
		var compact bytes.Buffer
		if json.Compact(&compact, []byte(got)) == nil {
			got = compact.String()
		}
		part, isPart := strings.CutPrefix(tc.want, "*")
		if r.status != tc.status || isPart && !strings.Contains(got, part) || !isPart && got != tc.want {
			t.Errorf("%s: %d %s\nwant %d %s", tc.path, r.status, got, tc.status, tc.want)
		}
		if other := do(t, f.addr[Joint], "GET", tc.path, ""); other.status != r.status || other.body != r.body {
			t.Errorf("%s: the joint port answers %d %s", tc.path, other.status, other.body)
		}
	}
	if r := do(t, f.addr[Inference], "DELETE", "/v2/models/adder", ""); r.status != 405 {
		t.Errorf("%d", r.status)
	}
	if r := do(t, f.addr[Management], "GET", "/v2", ""); r.status != 404 || strings.Contains(r.body, `"error"`) {
		t.Errorf("on the management port there is no protocol: %d %s", r.status, r.body)
	}
}

func TestProtocolNotReady(t *testing.T) {
	f := withProtocol(t)
	f.models.sick = true
	if r := do(t, f.addr[Inference], "GET", "/v2/health/ready", ""); r.status != 503 || r.body != `{"ready":false}` {
		t.Errorf("%d %s", r.status, r.body)
	}
	if err := f.models.Scale(t.Context(), infer.ModelRef{Name: "adder"}, 0, 0, true); err != nil {
		t.Fatal(err)
	}
	if r := do(t, f.addr[Inference], "GET", "/v2/models/adder/ready", ""); r.status != 503 || r.body != `{"name":"adder","ready":false}` {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// TestWithoutTheProtocol pins that nothing but TorchServe's routes is there without the switch.
func TestWithoutTheProtocol(t *testing.T) {
	f := serve(t)
	for _, path := range []string{"/v2", "/v2/health/live", "/v2/models/echo", "/v2/models/echo/ready", "/v2/models/echo/config", "/v2/models/stats", "/v2/repository/index"} {
		if r := do(t, f.addr[Inference], "GET", path, ""); r.status != 404 || strings.Contains(r.body, `"error"`) {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
}
