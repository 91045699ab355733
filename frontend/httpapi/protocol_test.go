package httpapi

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	bin "encoding/binary"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/frontend/dispatch"
	"github.com/flambeau-serve/flambeau/frontend/httpapi/token"
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

// TestBinaryInference asks a model that takes raw tensors in every way there is.
func TestBinaryInference(t *testing.T) {
	head := `{"id":"5","inputs":[{"name":"A","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}}]`
	for _, tc := range []struct {
		name, text, tail, head, wantTail string
		raw                              bool
	}{
		{
			name: "JSON", text: `{"inputs":[{"name":"A","shape":[1,2],"datatype":"FP32","data":[[1,2]]}]}`,
			head: `{"model_name":"adder","model_version":"3","outputs":[{"name":"X","datatype":"FP32","shape":[1,2],"data":[2,3]},{"name":"S","datatype":"BYTES","shape":[1],"data":["text"]}]}`,
		},
		{
			name: "raw in", text: head + "}", tail: floats(1, 2),
			head: `{"id":"5","model_name":"adder","model_version":"3","outputs":[{"name":"X","datatype":"FP32","shape":[1,2],"data":[2,3]},{"name":"S","datatype":"BYTES","shape":[1],"data":["text"]}]}`,
		},
		{
			name: "raw both ways", text: head + `,"outputs":[{"name":"X","parameters":{"binary_data":true}}]}`, tail: floats(1, 2),
			head: `{"id":"5","model_name":"adder","model_version":"3","outputs":[{"name":"X","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}}]}`, wantTail: floats(2, 3),
		},
		{
			name: "mixed", text: head + `,"parameters":{"binary_data_output":true},"outputs":[{"name":"S","parameters":{"binary_data":false}},{"name":"X"}]}`, tail: floats(1, 2),
			head: `{"id":"5","model_name":"adder","model_version":"3","outputs":[{"name":"S","datatype":"BYTES","shape":[1],"data":["text"]},` +
				`{"name":"X","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}}]}`, wantTail: floats(2, 3),
		},
		{
			name: "classes", text: head + `,"outputs":[{"name":"X","parameters":{"classification":1}}]}`, tail: floats(1, 2),
			head: `{"id":"5","model_name":"adder","model_version":"3","outputs":[{"name":"X","datatype":"BYTES","shape":[1,1],"data":["3.000000:1:high"]}]}`,
		},
		{
			name: "raw body", tail: floats(1, 2), raw: true,
			head: `{"model_name":"adder","model_version":"3","outputs":[{"name":"X","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}},` +
				`{"name":"S","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":8}}]}`, wantTail: floats(2, 3) + "\x04\x00\x00\x00text",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := withProtocol(t)
			var fields []string
			if tc.tail != "" {
				fields = append(fields, "Inference-Header-Content-Length: "+strconv.Itoa(len(tc.text)))
			}
			r := do(t, f.addr[Inference], "POST", "/v2/models/adder/versions/3/infer", tc.text+tc.tail, fields...)
			if r.status != 200 {
				t.Fatalf("%d %s", r.status, r.body)
			}
			n := len(r.body)
			if tc.wantTail != "" {
				var err error
				if n, err = strconv.Atoi(r.header.Get(oip.HeaderLength)); err != nil || r.header.Get("Content-Type") != "application/octet-stream" {
					t.Fatalf("%v %v", err, r.header)
				}
			} else if r.header.Get("Content-Type") != "application/json" || r.header.Get(oip.HeaderLength) != "" {
				t.Errorf("%v", r.header)
			}
			if diff := cmp.Diff(tc.head, r.body[:n]); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tc.wantTail, r.body[n:]); diff != "" {
				t.Error(diff)
			}
			if item := f.last(t); item.Rows != 1 {
				t.Errorf("%d rows", item.Rows)
			}
		})
	}
}

func TestInferenceErrors(t *testing.T) {
	f := withProtocol(t)
	good := `{"inputs":[{"name":"A","shape":[1,2],"datatype":"FP32","data":[1,2]}]`
	for _, tc := range []struct {
		path, body, header string
		status             int
		want               string
	}{
		{path: "nope", body: good + "}", status: 404, want: "Model not found: nope"},
		{path: "adder/versions/9", body: good + "}", status: 404, want: "9"},
		{path: "adder", body: "{", status: 400, want: "failed to parse"},
		{path: "adder", body: `{"inputs":[{"name":"B","shape":[1],"datatype":"FP32","data":[1]}]}`, status: 400, want: "unexpected inference input 'B'"},
		{path: "adder", body: `{"inputs":[{"name":"A","shape":[1],"datatype":"INT32","data":[1]}]}`, status: 400, want: "data-type is 'INT32'"},
		{path: "adder", body: good + `,"outputs":[{"name":"Z"}]}`, status: 400, want: "unexpected inference output 'Z'"},
		{path: "adder", body: good + `,"outputs":[{"name":"S","parameters":{"classification":1}}]}`, status: 400, want: "has no numbers"},
		{path: "adder", body: good + "}", header: "Inference-Header-Content-Length: 9999", status: 400, want: "should be in range"},
		{path: "adder", body: "abc", header: "Inference-Header-Content-Length: 0", status: 400, want: "bytes"},
		{path: "echo", body: "abc", header: "Inference-Header-Content-Length: 0", status: 400, want: "exactly one input"},
		{path: "adder", body: "abc", header: "Content-Encoding: gzip", status: 400, want: "unpacked"},
		{path: "adder", body: "abc", header: "Content-Encoding: br", status: 415, want: "br"},
		{path: "echo", body: good + `,"parameters":{"binary_data_output":true}}`, status: 500, want: "not one of the Open Inference Protocol"},
	} {
		fields := strings.FieldsFunc(tc.header, func(r rune) bool { return r == '\n' })
		r := do(t, f.addr[Inference], "POST", "/v2/models/"+tc.path+"/infer", tc.body, fields...)
		var e struct {
			Error   string `json:"error"`
			Message string `json:"message"`
			Code    int    `json:"code"`
		}
		if err := json.Unmarshal([]byte(r.body), &e); err != nil || r.status != tc.status || !strings.Contains(e.Error, tc.want) || e.Message != e.Error || e.Code != r.status {
			t.Errorf("%s %.40s: %d %s, want %d %s (%v)", tc.path, tc.body, r.status, r.body, tc.status, tc.want, err)
		}
	}
}

// TestPythonHandlers has what becomes of requests to a backend that takes JSON only.
func TestPythonHandlers(t *testing.T) {
	f := withProtocol(t)
	plain := `{"inputs":[{"name":"A","shape":[1,2],"datatype":"FP32","data":[1,2]}]}`
	r := do(t, f.addr[Inference], "POST", "/v2/models/kserve/infer", plain)
	if r.status != 200 || !strings.Contains(r.body, `"id":"made"`) {
		t.Errorf("a plain request is answered as the handler does: %d %s", r.status, r.body)
	}
	if p := f.last(t).Parts[0]; p.ContentType != "application/json" || string(p.Data) != plain {
		t.Errorf("it comes as it is: %+v", p)
	}
	text := `{"id":"me","parameters":{"sequence_id":7,"sequence_start":true},"inputs":[{"name":"A","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}}],` +
		`"outputs":[{"name":"out","parameters":{"binary_data":true}}]}`
	r = do(t, f.addr[Inference], "POST", "/v2/models/kserve/infer", text+floats(1, 2), "Inference-Header-Content-Length: "+strconv.Itoa(len(text)), "X-Mine: 1")
	if r.status != 200 || !strings.HasPrefix(r.body, `{"id":"me","model_name":"kserve","model_version":"1.0","outputs":[{"name":"out"`) || !strings.HasSuffix(r.body, floats(1, 2)) {
		t.Errorf("%d %q", r.status, r.body)
	}
	item := f.last(t)
	if p := item.Parts[0]; p.Name != "body" || p.ContentType != "application/json" || !strings.Contains(string(p.Data), `"data":[1,2]`) {
		t.Errorf("%+v", p)
	}
	if header(item, "X-Mine") != "1" || header(item, "content-length") != strconv.Itoa(len(item.Parts[0].Data)) || header(item, "ts_request_sequence_id") != "7" ||
		header(item, "ts_request_sequence_start") != "true" || header(item, oip.HeaderLength) != "" {
		t.Errorf("%v", item.Header)
	}
	// What TorchServe's clients send passes as it is, whatever it is.
	r = do(t, f.addr[Inference], "POST", "/v2/models/echo/infer", "x", "Content-Type: text/plain")
	if r.status != 200 || !strings.Contains(r.body, `"value": "x"`) {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r = do(t, f.addr[Inference], "POST", "/v2/models/echo/explain", "x", "Content-Type: text/plain"); r.status != 200 || header(f.last(t), "explain") != "True" {
		t.Errorf("%d %s", r.status, r.body)
	}
}

func TestCompression(t *testing.T) {
	f := withProtocol(t)
	text := `{"inputs":[{"name":"A","shape":[400,2],"datatype":"FP32","parameters":{"binary_data_size":3200}}],"parameters":{"binary_data_output":true}}`
	values := make([]float32, 800)
	body := text + floats(values...)
	pack := map[string]func(io.Writer) io.WriteCloser{
		"gzip": func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }, "deflate": func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) },
	}
	for kind, writer := range pack {
		var packed bytes.Buffer
		w := writer(&packed)
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		r := do(t, f.addr[Inference], "POST", "/v2/models/adder/infer", packed.String(), "Content-Encoding: "+kind, "Accept-Encoding: br, "+kind,
			"Inference-Header-Content-Length: "+strconv.Itoa(len(text)))
		if r.status != 200 || r.header.Get("Content-Encoding") != kind || len(r.body) > 2000 {
			t.Fatalf("%s: %d %v %d bytes", kind, r.status, r.header, len(r.body))
		}
		var reader io.Reader
		var err error
		if kind == "gzip" {
			reader, err = gzip.NewReader(strings.NewReader(r.body))
		} else {
			reader, err = zlib.NewReader(strings.NewReader(r.body))
		}
		if err != nil {
			t.Fatal(err)
		}
		whole, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(r.header.Get(oip.HeaderLength))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := oip.DecodeResponse(whole, strconv.Itoa(n))
		if err != nil || len(answer.Outputs[0].Data) != 3200 {
			t.Errorf("%s: %v", kind, err)
		}
	}
	small := withProtocol(t, func(o *Options) { o.MaxRequestSize = 1000 })
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	if _, err := w.Write(make([]byte, 500_000)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if r := do(t, small.addr[Inference], "POST", "/v2/models/adder/infer", bomb.String(), "Content-Encoding: gzip"); r.status != 400 || !strings.Contains(r.body, "larger than 1000 bytes") {
		t.Errorf("%d %s", r.status, r.body)
	}
}

func TestAcceptedEncoding(t *testing.T) {
	for header, want := range map[string]string{
		"": "", "br": "", "gzip": "gzip", "deflate": "deflate", "deflate, gzip": "gzip", "gzip;q=0, deflate;q=0.5": "deflate", "GZIP ; q=1": "gzip", "*": "",
	} {
		if got := acceptedEncoding(header); got != want {
			t.Errorf("%q: %q, want %q", header, got, want)
		}
	}
}

func TestRepository(t *testing.T) {
	f := withProtocol(t)
	addr := f.addr[Inference]
	r := do(t, addr, "POST", "/v2/repository/index", "")
	if r.status != 200 || !strings.Contains(r.body, `{"name":"adder","version":"3","state":"READY"}`) {
		t.Errorf("%d %s", r.status, r.body)
	}
	for _, tc := range []struct {
		path, body string
		status     int
	}{
		{"adder/load", "{}", 200},
		{"adder/load", `{"parameters":{"config":"{}"}}`, 400},
		{"adder/load", "[", 400},
		{"nope/load", "", 404},
		{"nope/unload", "", 200},
		{"adder/nosuch", "", 404},
		{"adder/unload", `{"parameters":{"unload_dependents":false}}`, 200},
	} {
		if r := do(t, addr, "POST", "/v2/repository/models/"+tc.path, tc.body); r.status != tc.status {
			t.Errorf("%s: %d %s, want %d", tc.path, r.status, r.body, tc.status)
		}
	}
	if r := do(t, addr, "GET", "/v2/models/adder/ready", ""); r.status != 404 {
		t.Errorf("%d", r.status)
	}
	if r := do(t, addr, "POST", "/v2/repository/models/adder/load", ""); r.status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := do(t, addr, "GET", "/v2/models/adder/ready", ""); r.status != 200 {
		t.Errorf("%d", r.status)
	}
	if err := f.models.Scale(t.Context(), infer.ModelRef{Name: "adder"}, 0, 0, true); err != nil {
		t.Fatal(err)
	}
	if r := do(t, addr, "POST", "/v2/repository/index", `{"ready":true}`); strings.Contains(r.body, "adder") {
		t.Errorf("%s", r.body)
	}
}

func TestRepositorySwitch(t *testing.T) {
	f := serve(t, func(o *Options) {
		p, err := oipserver.New(oipserver.Options{Predictor: o.Predictor, Models: o.Models})
		if err != nil {
			t.Fatal(err)
		}
		o.Protocol = p
	})
	for _, what := range []string{"load", "unload"} {
		if r := do(t, f.addr[Inference], "POST", "/v2/repository/models/echo/"+what, "{}"); r.status != 405 || r.header.Get("X-Flambeau-Hint") == "" {
			t.Errorf("%s: %d %s", what, r.status, r.body)
		}
	}
	if r := do(t, f.addr[Inference], "POST", "/v2/repository/index", ""); r.status != 200 {
		t.Errorf("%d", r.status)
	}
	if _, err := f.models.Describe(infer.ModelRef{Name: "echo"}); err != nil {
		t.Errorf("%v", err)
	}
}

func TestSettings(t *testing.T) {
	f := withProtocol(t)
	for body, status := range map[string]int{
		`{"log_verbose_level":0}`: 200, `{"log_info": true, "log_format":null}`: 200, `{"log_info":false}`: 400, `{"nosuch":1}`: 400, `[`: 400, ``: 200,
	} {
		if r := do(t, f.addr[Inference], "POST", "/v2/logging", body); r.status != status {
			t.Errorf("%s: %d %s", body, r.status, r.body)
		}
	}
	if r := do(t, f.addr[Inference], "POST", "/v2/models/adder/trace/setting", `{"trace_level":["TIMESTAMPS"]}`); r.status != 400 {
		t.Errorf("%d %s", r.status, r.body)
	}
}

func TestGenerate(t *testing.T) {
	f := withProtocol(t)
	addr := f.addr[Inference]
	for _, tc := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"words/generate", `{"text_input":"a b c","id":"7"}`, 200, `{"id":"7","model_name":"words","model_version":"1.0","text_output":"a b c"}`},
		{"words/generate", `{"text_input":"one"}`, 200, `{"model_name":"words","model_version":"1.0","text_output":"one"}`},
		{"words/generate_stream", `{"text_input":"a b"}`, 200, `data: {"model_name":"words","model_version":"1.0","text_output":"a "}` + "\n\n" +
			`data: {"model_name":"words","model_version":"1.0","text_output":"b"}` + "\n\n"},
		{"words/generate_stream", `{"text_input":"a fail"}`, 200, `data: {"model_name":"words","model_version":"1.0","text_output":"a "}` + "\n\n" +
			`data: {"error":"failed on a word"}` + "\n\n"},
		{"words/generate_stream", `{"text_input":""}`, 422, `*"no words"`},
		{"words/generate", `[]`, 400, `*JSON object`},
		{"nope/generate", `{}`, 404, `*Model not found`},
		{"adder/generate", `{"A":[1,2],"id":"x","temperature":0.5}`, 200, `{"id":"x","model_name":"adder","model_version":"3","X":[2,3],"S":"text"}`},
		{"adder/generate", `{"B":[1,2]}`, 400, `*expected 1 inputs`},
		{"adder/generate_stream", `{"A":[1,2]}`, 200, `data: {"model_name":"adder","model_version":"3","X":[2,3],"S":"text"}` + "\n\n"},
	} {
		r := do(t, addr, "POST", "/v2/models/"+tc.path, tc.body)
		part, isPart := strings.CutPrefix(tc.want, "*")
		if r.status != tc.status || isPart && !strings.Contains(r.body, part) || !isPart && r.body != tc.want {
			t.Errorf("%s %s: %d %s\nwant %d %s", tc.path, tc.body, r.status, r.body, tc.status, tc.want)
		}
		if strings.HasSuffix(tc.path, "stream") && r.status == 200 && r.header.Get("Content-Type") != eventType {
			t.Errorf("%s: %v", tc.path, r.header)
		}
	}
	if r := do(t, addr, "GET", "/v2/models/words/generate", ""); r.status != 405 {
		t.Errorf("%d", r.status)
	}
}

// TestTimeoutParameter has a request that gives up by itself.
func TestTimeoutParameter(t *testing.T) {
	f := withProtocol(t)
	f.predictor.handler = func(ctx context.Context, _ infer.ModelRef, _ infer.Item) (infer.Result, error) {
		<-ctx.Done()
		return infer.Result{}, context.Cause(ctx)
	}
	r := do(t, f.addr[Inference], "POST", "/v2/models/adder/infer", `{"parameters":{"timeout":1000},"inputs":[{"name":"A","shape":[1,2],"datatype":"FP32","data":[1,2]}]}`)
	if r.status != 504 || !strings.Contains(r.body, "within its timeout of 1ms") {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// TestRepositoryNeedsTheManagementKey has models loaded and unloaded on the inference port, which is not for those who may only infer.
func TestRepositoryNeedsTheManagementKey(t *testing.T) {
	dir := t.TempDir()
	keys, err := token.New(token.Options{Dir: dir, Expiration: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	f := withProtocol(t, func(o *Options) { o.Keys = keys })
	text, err := os.ReadFile(filepath.Join(dir, token.FileName))
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]struct{ Key string }
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, port := range []Port{Inference, Joint} {
		for _, tc := range []struct {
			method, path, kind string
			status             int
		}{
			{"POST", "/v2/repository/models/echo/unload", "inference", 400},
			{"POST", "/v2/repository/models/echo/load", "inference", 400},
			{"POST", "/v2/repository/x/models/echo/unload", "inference", 400},
			{"POST", "/v2/repository/models/echo/unload", "management", 200},
			{"POST", "/v2/repository/models/echo/load", "management", 200},
			{"POST", "/v2/repository/index", "inference", 200},
			{"GET", "/v2/models/echo", "inference", 200},
			{"GET", "/v2/models/echo", "none", 400},
			{"GET", "/v2/health/ready", "none", 400},
		} {
			r := do(t, f.addr[port], tc.method, tc.path, "", "Authorization: Bearer "+file[tc.kind].Key)
			if r.status != tc.status {
				t.Errorf("%s %s with the %s key: %d %s", port, tc.path, tc.kind, r.status, r.body)
			}
			if r.status == 400 && !strings.Contains(r.body, `"error": "Token Authorization failed`) {
				t.Errorf("%s", r.body)
			}
		}
	}
}
