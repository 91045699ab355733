package httpapi

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

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
		{path: "adder", body: good + `,"parameters":{"timeout":"5"}}`, status: 400, want: `the parameter timeout is the string "5", and has to be`},
		{path: "adder", body: good + `,"outputs":[{"name":"X","parameters":{"classification":"3"}}]}`, status: 400, want: "the parameter classification of output 'X' is"},
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
	for _, body := range []string{ // with a name that the protocol has, and a value of the handler's own
		`{"parameters":{"timeout":"5"},"inputs":"a text"}`, `{"parameters":{"timeout":"5"},"inputs":[{"name":"A","shape":[1],"datatype":"INT32","data":[1]}]}`,
	} {
		if r = do(t, f.addr[Inference], "POST", "/v2/models/echo/infer", body); r.status != 200 {
			t.Errorf("%s: %d %s", body, r.status, r.body)
		}
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
}

// packed compresses n zero bytes.
func packed(t *testing.T, n int, writer func(io.Writer) io.WriteCloser) string {
	t.Helper()
	var b bytes.Buffer
	w := writer(&b)
	if _, err := w.Write(make([]byte, n)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestBodiesThatUnpackToTooMuch are answered as those that are as large without being packed.
func TestBodiesThatUnpackToTooMuch(t *testing.T) {
	f := withProtocol(t, func(o *Options) { o.MaxRequestSize = 1000 })
	for kind, writer := range map[string]func(io.Writer) io.WriteCloser{
		"gzip": func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }, "deflate": func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) },
	} {
		bomb := packed(t, 500_000, writer)
		for _, path := range []string{"adder/infer", "kserve/infer", "words/generate", "words/generate_stream"} {
			r := do(t, f.addr[Inference], "POST", "/v2/models/"+path, bomb, "Content-Encoding: "+kind)
			var e struct {
				Error, Reason, Setting, Hint string
				Numbers                      map[string]int
			}
			if err := json.Unmarshal([]byte(r.body), &e); err != nil || r.status != 413 || e.Error != "The unpacked body of the request is larger than 1000 bytes." ||
				e.Reason != "too_large" || e.Numbers["bytes_limit"] != 1000 || e.Setting != "max_request_size in config.properties" || !strings.Contains(e.Hint, "max_request_size") ||
				r.header.Get(settingHeader) != e.Setting {
				t.Errorf("%s %s: %d %s (%v)", kind, path, r.status, r.body, err)
			}
		}
		c := dial(t, f.addr[Inference])
		head := "POST /v2/models/adder/infer HTTP/1.1\r\nContent-Encoding: " + kind + "\r\n"
		c.send(head + "Content-Length: " + strconv.Itoa(len(bomb)) + "\r\n\r\n" + bomb)
		if r := c.receive("POST"); r.status != 413 {
			t.Errorf("%s: %+v", kind, r)
		}
		c.send(head + "Transfer-Encoding: chunked\r\n\r\n" + strconv.FormatInt(int64(len(bomb)), 16) + "\r\n" + bomb + "\r\n0\r\n\r\n")
		if r := c.receive("POST"); r.status != 413 {
			t.Errorf("%s in chunks, on a connection that was to go on: %+v", kind, r)
		}
		for name, tc := range map[string]struct{ body, want string }{
			"another format": {strings.Repeat("x", 50), "it is not in the format " + kind},
			"cut":            {packed(t, 500, writer)[:12], "it ends too early"},
			"empty":          {"", "it ends too early"},
		} {
			if r := do(t, f.addr[Inference], "POST", "/v2/models/adder/infer", tc.body, "Content-Encoding: "+kind); r.status != 400 || !strings.Contains(r.body, tc.want) {
				t.Errorf("%s %s: %d %s", kind, name, r.status, r.body)
			}
		}
		small := []byte(packed(t, 500, writer))
		small[len(small)-6] ^= 1 // of gzip's checksum, or the data
		if r := do(t, f.addr[Inference], "POST", "/v2/models/adder/infer", string(small), "Content-Encoding: "+kind); r.status != 400 || !strings.Contains(r.body, "it is damaged") {
			t.Errorf("%s: %d %s", kind, r.status, r.body)
		}
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
		{"adder/generate", `{"A":[1,2],"timeout":"5"}`, 400, `*the parameter timeout is the string`},
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
