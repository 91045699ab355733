package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/frontend/httpapi/token"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// exchange is a request and what its answer must be.
type exchange struct {
	method, target string
	status         int
	has            string // a part of the body, see compact
}

func (f *fixture) check(t *testing.T, port Port, list []exchange, header ...string) {
	t.Helper()
	for _, e := range list {
		r := do(t, f.addr[port], e.method, e.target, "", header...)
		body := compact(r.body)
		if r.status != e.status || !strings.Contains(body, e.has) {
			t.Errorf("%s %s: got %d %.300s\nwant %d with %s", e.method, e.target, r.status, body, e.status, e.has)
		}
		if e.method != http.MethodHead && r.status >= 400 {
			var p struct {
				Code          int
				Type, Message string
			}
			if json.Unmarshal([]byte(r.body), &p) != nil || p.Code != r.status || r.header.Get("Content-Type") != "application/json" ||
				r.header.Get("X-Flambeau-Reason") == "" || !r.closes {
				t.Errorf("%s %s: %+v", e.method, e.target, r)
			}
		}
	}
}

// compact leaves the blanks between JSON tokens out.
func compact(body string) string {
	var b bytes.Buffer
	if json.Compact(&b, []byte(body)) != nil {
		return body
	}
	return b.String()
}

const (
	noRoute  = `"type":"ResourceNotFoundException","message":"Requested resource is not found, please refer to API document."`
	noMethod = `"type":"MethodNotAllowedException","message":"Requested method is not allowed, please refer to API document."`
	noModel  = `"type":"ModelNotFoundException","message":"Model not found: nomodel"`
)

func noVersion(model, version string) string {
	return fmt.Sprintf(`"type":"ModelVersionNotFoundException","message":"Model version: %s does not exist for model: %s"`, version, model)
}

func TestInferenceRoutes(t *testing.T) {
	serve(t).check(t, Inference, []exchange{
		{"GET", "/ping/anything", 200, `{"status":"Healthy"}`},
		{"GET", "/pingx", 404, noRoute},
		{"GET", "/PING", 404, noRoute},
		{"OPTIONS", "/?x", 200, `"title":"TorchServe APIs"`},
		{"OPTIONS", "//", 405, noMethod},
		{"DELETE", "/api-description/?x", 200, `"operationId":"version_predictions"`},
		{"GET", "/api-description/x", 404, noRoute},
		{"POST", "/predictions", 404, noRoute},
		{"POST", "/predictions/", 404, noRoute},
		{"POST", "/predictions///", 404, noRoute},
		{"POST", "/predictions//1.0", 404, `"message":"Model not found: "`},
		{"POST", "/predictions/echo//x", 404, noVersion("echo", "")},
		{"POST", "/predictions/echo/", 200, `"type":"bytearray"`},
		{"POST", "/predictions/echo%2F1.0%2Fx", 200, `"type":"bytearray"`},
		{"POST", "/predictions/echo/9", 404, noVersion("echo", "9")},
		{"POST", "/predictions/nomodel/9", 404, noModel},
		{"POST", "/predictions/..", 404, `"message":"Model not found: .."`},
		{"POST", "//predictions/echo", 404, noRoute},
		{"OPTIONS", "/predictions/echo/1.0/x", 200, `"title":"RESTful API for: echo","version":"1.0.0"`},
		{"OPTIONS", "/predictions/nomodel", 404, noModel},
		{"OPTIONS", "/predictions", 404, noRoute},
		{"POST", "/explanations/nomodel", 404, noModel},
		{"POST", "/models/echo/nope", 404, noRoute},
		{"POST", "/models/nomodel/invoke", 404, noModel},
		{"POST", "/models//invoke", 200, `"type":"bytearray"`},
		{"POST", "/models/echo/invoke/x", 404, noRoute},
		{"GET", "/models/echo", 404, noRoute},
		{"GET", "/models", 404, noRoute},
		{"POST", "/invocations?model_name=nomodel", 404, noModel},
		{"POST", "/invocations?model_name=", 200, `"model_name":{"latin1":""`},
		{"POST", "/invocations/x", 404, noRoute},
		{"POST", "/echo/predict", 200, `"type":"bytearray"`},
		{"POST", "/echo/9/predict", 404, noVersion("echo", "9")},
		{"POST", "/echo//predict", 404, noVersion("echo", "")},
		{"POST", "//predict", 404, `"message":"Model not found: "`},
		{"POST", "/predict", 404, noRoute},
		{"POST", "/echo/1.0/predict/x", 404, noRoute},
		{"POST", "/v1/models/echo:predictxyz", 200, `"type":"bytearray"`},
		{"POST", "/v1/models/a:b:predict", 404, `"message":"Model not found: a"`},
		{"POST", "/v1/models/echo:other", 404, noRoute},
		{"POST", "/v1/models/echo:predict/x", 404, noRoute},
		{"POST", "/v1/models/predict", 404, `"message":"Model not found: v1"`},
		{"GET", "/v1/models/echo", 404, noRoute},
		{"POST", "/v2/models/echo/explain", 200, `"type":"bytearray"`},
		{"POST", "/v2/models/echo/infer/x", 404, noRoute},
		{"GET", "/v2/health/live", 404, noRoute},
		{"GET", "/metrics", 404, noRoute},
		{"GET", "/token", 404, noRoute},
	})
}

func TestInvocationsNeedAName(t *testing.T) {
	f := serve(t)
	f.models.startup = []string{"echo", "faults"}
	f.check(t, Inference, []exchange{
		{"POST", "/invocations", 400, `"type":"BadRequestException","message":"Parameter model_name is required."`},
		{"POST", "/models//invoke", 404, `"message":"Model not found: "`},
	})
	if r := do(t, f.addr[Inference], "POST", "/invocations?model_name=echo", "model_name=nomodel", "Content-Type: "+formType); r.status != 200 {
		t.Errorf("the query's name does not win: %+v", r)
	}
	r := do(t, f.addr[Inference], "POST", "/invocations", "a=1&model_name=echo", "Content-Type: "+formType)
	if r.status != 200 || !strings.Contains(r.body, `"a"`) {
		t.Errorf("the form's name does not count: %+v", r)
	}
}

func TestSickServer(t *testing.T) {
	f := serve(t)
	f.models.sick = true
	r := do(t, f.addr[Inference], "GET", "/ping", "")
	if r.status != 500 || r.body != "{\n  \"status\": \"Unhealthy\"\n}\n" {
		t.Errorf("%+v", r)
	}
}

func TestManagementRoutes(t *testing.T) {
	f := serve(t)
	f.check(t, Management, []exchange{
		{"GET", "/models?limit=2", 200, `{"nextPageToken":"2","models":[{"modelName":"ctxinfo","modelUrl":"ctxinfo.mar"},{"modelName":"describer","modelUrl":"describer.mar"}]}`},
		{"GET", "/models?limit=2&next_page_token=4", 200, `{"models":[{"modelName":"respond","modelUrl":"respond.mar"}]}`},
		{"GET", "/models?limit=5", 200, `{"nextPageToken":"5","models":[{"modelName":"ctxinfo"`},
		{"GET", "/models?limit=0", 200, `{"nextPageToken":"0","models":[]}`},
		{"GET", "/models?limit=x&next_page_token=y", 200, `{"models":[{"modelName":"ctxinfo"`},
		{"GET", "/models?limit=-1&next_page_token=-1", 200, `{"models":[{"modelName":"ctxinfo"`},
		{"GET", "/models?next_page_token=99", 200, `{"models":[]}`},
		{"GET", "/models?next_page_token=2147483647&limit=1", 200, `{"models":[]}`},
		{"GET", "/models?limit=%zz", 403, `"type":"IllegalArgumentException"`},
		{"HEAD", "/models", 405, ""},
		{"OPTIONS", "/models", 405, noMethod},
		{"DELETE", "/models/", 405, noMethod},
		{"POST", "/models/echo", 405, noMethod},
		{"OPTIONS", "/models/echo/1.0", 200, `"title":"RESTful Management API for: echo","version":"0.12.0"`},
		{"OPTIONS", "/models/nomodel", 404, noModel},
		{"OPTIONS", "/models/echo/1.0/set-default", 200, `"title":"RESTful Management API for: echo"`},
		{"GET", "/models/nomodel", 404, noModel},
		{"GET", "/models/nomodel/all", 404, noModel},
		{"GET", "/models/echo/9", 404, noVersion("echo", "9")},
		{"GET", "/models//1.0", 404, `"message":"Model not found: "`},
		{"GET", "/models/echo/1.0/x", 404, noRoute},
		{"GET", "/models/echo/1.0/set-default/x", 404, noRoute},
		{"PUT", "/models/echo/9/set-default", 404, `"message":"Model version 9 does not exist for model echo"`},
		{"PUT", "/models/echo//set-default", 404, `"message":"Model version  does not exist for model echo"`},
		{"PUT", "/models/nomodel//set-default", 404, noModel},
		{"PUT", "/models/nomodel/1/set-default", 404, noModel},
		{"PUT", "/models/echo/1.0/set-default", 200, `{"status":"Default version successfully updated for model \"echo\" to \"1.0\""}`},
		{"GET", "/models/echo/x/set-default", 200, `"modelVersion":"1.0"`},
		{"POST", "/models/echo/1.0/set-default", 405, noMethod},
		{"DELETE", "/models/echo/1.0/set-default", 405, noMethod},
		{"PUT", "/models/echo", 202, `{"status":"Processing worker updates..."}`},
		{"PUT", "/models/echo?max_worker=0", 400, `"message":"max_worker cannot be less than min_worker."`},
		{"PUT", "/models/echo?min_worker=2&synchronous=TRUE", 200, `{"status":"Workers scaled to 2 for model: echo"}`},
		{"PUT", "/models/echo?model_version=1.0&synchronous=true", 200, `{"status":"Workers scaled to 1 for model: echo, version: 1.0"}`},
		{"PUT", "/models/echo/1.0?model_version=9&min_worker=x&synchronous=true", 200, `for model: echo, version: 1.0"}`},
		{"PUT", "/models/echo?model_version=", 404, noVersion("echo", "")},
		{"PUT", "/models/echo/9", 404, noVersion("echo", "9")},
		{"PUT", "/models/nomodel?min_worker=-1", 404, noModel},
		{"PUT", "/models/echo?min_worker=-1", 500, `"type":"IndexOutOfBoundsException","message":"Index -1 out of bounds for length 0"`},
		{"PUT", "/models/echo?min_worker=-1&max_worker=1", 400, `"message":"min_worker cannot be negative."`},
		{"GET", "/models/echo", 200, `"minWorkers":1`},
		{"GET", "/v1/models/echo", 200, `{"name":"echo","ready":true}`},
		{"GET", "/v1/models/echo:x", 200, `{"name":"echo","ready":true}`},
		{"GET", "/v1/models/nomodel", 404, noModel},
		{"POST", "/v1/models/echo", 405, noMethod},
		{"GET", "/v1/models", 404, noRoute},
		{"PUT", "/models/echo?min_worker=0&synchronous=true", 200, `{"status":"Workers scaled to 0 for model: echo"}`},
		{"GET", "/v1/models/echo", 200, `{"name":"echo","ready":false}`},
		{"GET", "/ping", 404, noRoute},
		{"POST", "/predictions/echo", 404, noRoute},
		{"GET", "/metrics", 404, noRoute},
		{"POST", "/models?url=echo_v2.mar", 200, `Model \"echo\" Version: 2.0 registered with 1 initial workers"`},
		{"GET", "/models/echo/all", 200, `"modelVersion":"2.0"`},
		{"DELETE", "/models/echo", 403, `"type":"InvalidModelVersionException","message":"Cannot remove default version for model echo"`},
		{"DELETE", "/models/echo/2.0", 200, `{"status":"Model \"echo\" unregistered"}`},
		{"DELETE", "/models/echo/2.0", 404, noVersion("echo", "2.0")},
		{"DELETE", "/models/nomodel", 404, noModel},
	})
	f.check(t, Inference, []exchange{
		{"POST", "/predictions/echo", 503, `"type":"ServiceUnavailableException","message":"Model \"echo\" has no worker to serve inference request. Please use scale workers ` +
			`API to add workers. If this is a sequence inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize"`},
		{"POST", "/predictions/echo/1.0", 503, `"message":"Model \"echo\" Version 1.0\" has no worker to serve inference request.`},
	})
	f.check(t, Management, []exchange{
		{"GET", "/models/echo?customized=true", 503, `"message":"Model \"echo\" has no worker to serve describe request. Please use scale workers API to add workers."`},
	})
}

func TestRegister(t *testing.T) {
	f := serve(t)
	f.check(t, Management, []exchange{
		{"POST", "/models", 400, `"type":"BadRequestException","message":"Parameter url is required."`},
		{"POST", "/models?url=", 404, `"type":"ModelNotFoundException","message":"empty url"`},
		{"POST", "/models?url=nope.mar", 404, `"message":"Model not found at: nope.mar"`},
		{"POST", "/models?url=kinds.mar&runtime=", 400, `"message":"Invalid RuntimeType value: "`},
		{"POST", "/models?url=echo.mar", 409, `"type":"ConflictStatusException"`},
		{"PUT", "/models?url=kinds.mar", 405, noMethod},
		{
			"POST", "/models/?url=kinds.mar&model_name=a%20b%2Fc%22%3C&initial_workers=0", 200,
			`{"status":"Model \"a b/c\"<\" Version: 1.0 registered with 0 initial workers. Use scale workers API to add workers for the model."}`,
		},
		{"POST", "/models?url=kinds.mar&synchronous=maybe", 202, `{"status":"Processing worker updates..."}`},
		{"GET", "/models/a%20b%2Fc", 404, `"message":"Model not found: a b"`},
	})
	ms, s := time.Millisecond, time.Second
	for _, tc := range []struct {
		query, json string
		want        rollout.Spec
	}{
		{"url=kinds.mar&model_name=&handler=h", "", rollout.Spec{URL: "kinds.mar", Handler: "h", Synchronous: true}},
		{"url=kinds.mar&batch_size=abc&max_batch_delay=1.5&response_timeout=&initial_workers=+1", "", rollout.Spec{URL: "kinds.mar", Synchronous: true}},
		{"url=kinds.mar&batch_size=-1&max_batch_delay=-100&response_timeout=-1&startup_timeout=-1&synchronous=no", "", rollout.Spec{URL: "kinds.mar"}},
		{"url=kinds.mar&batch_size=0&max_batch_delay=0&initial_workers=-3&response_timeout=7&startup_timeout=8&runtime=python3&synchronous=TRUE", "", rollout.Spec{
			URL: "kinds.mar", BatchSize: new(0), MaxBatchDelay: new(0 * ms), InitialWorkers: new(-3), ResponseTimeout: new(7 * s), StartupTimeout: new(8 * s),
			Runtime: "python3", Synchronous: true,
		}},
		{"url=other.mar&batch_size=9", `{"url":"kinds.mar","model_name":"m","batch_size":"5","initial_workers":0,"max_batch_delay":20}`, rollout.Spec{
			URL: "kinds.mar", Name: "m", BatchSize: new(5), MaxBatchDelay: new(20 * ms), InitialWorkers: new(0), Synchronous: true,
		}},
		{"", `{"url":"kinds.mar","synchronous":false,"max_batch_delay":-10000}`, rollout.Spec{URL: "kinds.mar"}},
	} {
		var header []string
		if tc.json != "" {
			header = []string{"Content-Type: Application/JSON; charset=utf-8"}
		}
		f.models.specs = nil
		do(t, f.addr[Management], "POST", "/models?"+tc.query, tc.json, header...)
		if diff := cmp.Diff([]rollout.Spec{tc.want}, f.models.specs); diff != "" {
			t.Errorf("%s %s: %s", tc.query, tc.json, diff)
		}
	}
	for body, want := range map[string]string{
		"{oops": `"type": "JsonSyntaxException"`, "": `"type": "NullPointerException"`, `{"url":[]}`: `"type": "JsonSyntaxException"`, "{}": `"type": "BadRequestException"`,
	} {
		if r := do(t, f.addr[Management], "POST", "/models?url=kinds.mar", body, "Content-Type: application/json"); !strings.Contains(r.body, want) {
			t.Errorf("%q: %+v", body, r)
		}
	}
	if r := do(t, f.addr[Management], "POST", "/models", "url=kinds.mar", "Content-Type: "+formType); r.status != 400 {
		t.Errorf("a form counts: %+v", r)
	}
}

// TestWorkGoesOnWithoutItsClient lets the client leave in the middle of a registration and of scaling.
func TestWorkGoesOnWithoutItsClient(t *testing.T) {
	f := serve(t)
	begun, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	f.models.onWork = func(ctx context.Context) {
		begun <- struct{}{}
		<-goOn
		if _, ok := ctx.Deadline(); !ok {
			t.Error("the work has no limit")
		}
		done <- ctx.Err()
	}
	for i, request := range []string{"POST /models?url=kinds.mar", "PUT /models/echo?min_worker=3&synchronous=true"} {
		c := dial(t, f.addr[Management])
		c.send(request + " HTTP/1.1\r\n\r\n")
		<-begun
		_ = c.Close()
		goOn <- struct{}{}
		if err := <-done; err != nil {
			t.Errorf("%s was abandoned: %v", request, err)
		}
		f.waitAccess(t, i+1)
	}
	if _, err := f.models.Describe(infer.ModelRef{Name: "kinds"}); err != nil {
		t.Error(err)
	}
	if d, _ := f.models.Describe(infer.ModelRef{Name: "echo"}); len(d.Workers) != 3 {
		t.Errorf("%d workers", len(d.Workers))
	}
}

func TestDescribe(t *testing.T) {
	f := serve(t)
	f.predictor.waiting = 3
	f.models.mu.Lock()
	d := f.models.find(infer.ModelRef{Name: "echo"})
	d.Workers[0].Ready, d.Workers[0].Memory, d.Workers[0].GPU = false, 123, 1
	d.DeviceIDs, d.ParallelLevel, d.MaxBatchDelay, d.ClientTimeout = []int{0, 1}, 2, 1500*time.Millisecond, 700*time.Millisecond
	f.models.mu.Unlock()
	golden(t, "describe.golden", do(t, f.addr[Management], "GET", "/models/echo", "").body)
}

func TestDescribeWithDetails(t *testing.T) {
	f := serve(t)
	f.models.mu.Lock()
	d := f.models.find(infer.ModelRef{Name: "echo"})
	d.State, d.Reason = "failed", "it is broken (handler.py:3)"
	d.Workers[0].Ready, d.Workers[0].State, d.Workers[0].Reason, d.Workers[0].Restarts = false, "waiting", "it is broken (handler.py:3)", 2
	f.models.mu.Unlock()
	f.check(t, Management, []exchange{
		{"GET", "/models/echo?details=true", 200, `"gpuUsage":"N/A","state":"waiting","reason":"it is broken (handler.py:3)","restarts":2}`},
		{"GET", "/models/echo/all?details=True", 200, `"default":true,"state":"failed","reason":"it is broken (handler.py:3)","generation":0,`},
		{"GET", "/models/describer?details=true&customized=true", 200, `"default":true,"state":"","reason":"","generation":0,"digest":"","source":"","since":null,"swap":"","labels":[],"weight":0,"updating":null,"lastFailure":null,"steps":[]`},
	})
	for _, target := range []string{"/models/echo", "/models/echo/all", "/models/echo?details=no"} {
		if r := do(t, f.addr[Management], "GET", target, ""); strings.Contains(r.body, "broken") || strings.Contains(r.body, `"default"`) {
			t.Errorf("%s tells what nobody asked for: %s", target, r.body)
		}
	}
}

func TestCustomDescription(t *testing.T) {
	f := serve(t)
	get := func(target string, header ...string) reply {
		return do(t, f.addr[Management], "GET", target, "", header...)
	}
	if r := get("/models/describer/1.0?customized=True", "describe: no", "X-a: b"); r.status != 200 ||
		!strings.Contains(r.body, "\"customizedMetadata\": {\n      \"doc\": \"made for conformance\",\n      \"inputs\": 2\n    }") {
		t.Errorf("%+v", r)
	}
	if it := f.last(t); !it.Alone || len(it.Parts) != 0 || header(it, "describe") != "True" || header(it, "X-a") != "b" {
		t.Errorf("the handler saw %+v", it)
	}
	if r := get("/models/describer?customized=true", "x-mode: list"); !strings.Contains(r.body, `"customizedMetadata": {}`) {
		t.Errorf("%+v", r)
	}
	if r := get("/models/describer?customized=true", "x-mode: ctype"); r.header.Get("Content-Type") != "text/plain" {
		t.Errorf("%+v", r)
	}
	if r := get("/models/describer?customized=true", "x-mode: raise"); r.status != 503 || !strings.Contains(r.body, "Prediction failed") {
		t.Errorf("%+v", r)
	}
	for _, target := range []string{"/models/describer?customized=yes", "/models/describer/all?customized=true"} {
		if r := get(target); r.status != 200 || strings.Contains(r.body, "customizedMetadata") {
			t.Errorf("%s: %+v", target, r)
		}
	}
}

func TestModelAPIOff(t *testing.T) {
	f := serve(t, func(o *Options) { o.ModelAPI = false })
	f.check(t, Management, []exchange{
		{"POST", "/models", 405, noMethod},
		{"DELETE", "/models/nomodel", 405, noMethod},
		{"PUT", "/models/echo", 202, "Processing"},
		{"PUT", "/models/echo/1.0/set-default", 200, "updated"},
		{"OPTIONS", "/models/nomodel", 404, noModel},
	})
	if r := do(t, f.addr[Management], "POST", "/models?url=kinds.mar", ""); !strings.Contains(r.header.Get("X-Flambeau-Hint"), "enable_model_api") {
		t.Errorf("%+v", r)
	}
}

func TestJointPort(t *testing.T) {
	f := serve(t, func(o *Options) { o.OpenInference = true })
	f.check(t, Joint, []exchange{
		{"GET", "/ping", 200, "Healthy"},
		{"POST", "/predictions/echo", 200, "bytearray"},
		{"GET", "/models", 200, `"modelName":"echo"`},
		{"GET", "/models/echo", 200, `"modelName":"echo"`},
		{"OPTIONS", "/models/echo", 200, "RESTful Management API for: echo"},
		{"GET", "/models/echo/1.0", 404, noRoute},
		{"DELETE", "/models/echo/1.0", 404, noRoute},
		{"GET", "/models/echo/all", 404, noRoute},
		{"GET", "/models/echo/invoke", 200, "bytearray"},
		{"PUT", "/models/echo/1.0/set-default", 200, "updated"},
		{"GET", "/v1/models/echo", 200, `"ready":true`},
		{"GET", "/v1/models/echo:predict", 200, "bytearray"},
		{"GET", "/v2/health/ready", 200, `{"ready":true}`},
		{"GET", "/metrics?name[]=a", 200, "metrics [a]"},
		{"POST", "/models?url=nope.mar", 404, "Model not found at: nope.mar"},
		{"GET", "/api-description", 200, `"/models/{model_name}/{model_version}/set-default"`},
		{"GET", "/foo", 404, noRoute},
	})
}

func TestOpenInference(t *testing.T) {
	f := serve(t, func(o *Options) { o.OpenInference = true })
	f.check(t, Inference, []exchange{
		{"GET", "/v2/", 200, `{"name":"Torchserve","version":"0.12.0","extenstion":["kserve","kubeflow"]}`},
		{"POST", "/v2/health/live", 200, `{"live":true}`},
		{"GET", "/v2/health/ready", 200, `{"ready":true}`},
		{"GET", "/v2/models/echo", 404, noRoute},
		{"GET", "/v2/nosuch", 404, noRoute},
		{"POST", "/v2/models/echo/infer", 200, "bytearray"},
	})
	r := do(t, f.addr[Inference], "POST", "/v2/models/echo/versions/1.0/infer", "{}")
	if r.status != 501 || r.body != "{\n  \"error\": \"Model versioning is not yet supported.\"\n}\n" {
		t.Errorf("%+v", r)
	}
	f.check(t, Management, []exchange{{"GET", "/v2", 404, noRoute}})
}

func TestMetricsPort(t *testing.T) {
	f := serve(t)
	f.check(t, MetricsPort, []exchange{
		{"GET", "/metrics", 200, "metrics []"},
		{"OPTIONS", "/metrics", 200, "metrics []"},
		{"GET", "/metrics/x/y?name[]=a&other=b&name%5B%5D=c", 200, "metrics [a c]"},
		{"GET", "/metrics?name[]=%zz", 403, "invalid hex byte"},
		{"GET", "/", 405, noMethod},
		{"OPTIONS", "/", 200, `"operationId":"metrics"`},
		{"GET", "/ping", 404, noRoute},
		{"GET", "/models", 404, noRoute},
	})
	f.metrics.fail = errors.New("out of ink")
	if r := do(t, f.addr[MetricsPort], "GET", "/metrics", ""); r.status != 500 || strings.Contains(r.body, "ink") {
		t.Errorf("%+v", r)
	}
	var seen []int
	for _, e := range f.waitAccess(t, 9) {
		seen = append(seen, e.Status)
	}
	if diff := cmp.Diff(seen, f.metrics.statuses); diff != "" {
		t.Errorf("counted otherwise than logged: %s", diff)
	}
	none := serve(t, func(o *Options) { o.Metrics = nil })
	none.check(t, Joint, []exchange{{"GET", "/metrics", 404, noRoute}})
}

func TestCORS(t *testing.T) {
	f := serve(t, func(o *Options) { o.CORS = CORS{Origin: "https://a", Headers: "X-C"} })
	for _, r := range []reply{
		do(t, f.addr[Inference], "GET", "/ping", ""), do(t, f.addr[Inference], "GET", "/nope", ""), do(t, f.addr[MetricsPort], "GET", "/metrics", "", "Origin: https://b"),
	} {
		if r.header.Get("Access-Control-Allow-Origin") != "https://a" || r.header.Get("Access-Control-Allow-Headers") != "X-C" || len(r.header.Values("Vary")) != 0 ||
			len(r.header.Values("Access-Control-Allow-Methods")) != 0 {
			t.Errorf("%+v", r.header)
		}
	}
	r := do(t, f.addr[Inference], "POST", "/predictions/respond", `{"headers":{"Access-Control-Allow-Origin":"*"}}`)
	if got := r.header.Values("Access-Control-Allow-Origin"); len(got) != 1 || got[0] != "*" {
		t.Errorf("the handler's header does not win: %v", got)
	}
}

func TestHandlerFailures(t *testing.T) {
	f := serve(t)
	for _, tc := range []struct {
		body   string
		status int
		has    string
		reason string
	}{
		{"keyerror", 503, `"type": "InternalServerException",` + "\n  \"message\": \"Prediction failed\"", "handler_failed"},
		{"pe:418", 418, `"code": 418,` + "\n  \"type\": \"InternalServerException\",\n  \"message\": \"custom message\"", "handler_failed"},
		{"pe:299", 299, `"code": 299`, "handler_failed"},
		{"pe:413", 507, `"code": 507`, "handler_failed"},
		{"pe:999", 999, `"code": 999`, "handler_failed"},
		{"pe:42", 500, `"code": 500`, "handler_failed"},
		{"pe:199", 500, `"code": 500`, "handler_failed"},
		{"pe:1000", 500, `"code": 500`, "handler_failed"},
		{"exit", 500, `"message": "Worker died."`, "worker_died"},
		{"full", 503, `"message": "Model \"faults\" has no worker to serve inference request.`, "queue_full"},
		{"bug", 500, `"message": "Internal error."`, "internal"},
	} {
		r := do(t, f.addr[Inference], "POST", "/predictions/faults", tc.body)
		if r.status != tc.status || !strings.Contains(r.body, tc.has) || r.header.Get("X-Flambeau-Reason") != tc.reason || strings.Contains(r.body, "Traceback") {
			t.Errorf("%s: %+v", tc.body, r)
		}
	}
	if r := do(t, f.addr[Inference], "POST", "/predictions/faults", "pe:200"); r.status != 200 || r.body != "error" || r.header.Get("Content-Type") != "" {
		t.Errorf("%+v", r)
	}
	r := do(t, f.addr[Inference], "POST", "/predictions/faults", "full")
	if r.header.Get("Retry-After") != "1" || r.header.Get("X-Flambeau-Hint") != "Raise job_queue_size." {
		t.Errorf("%+v", r.header)
	}
	f.predictor.handler = func(context.Context, infer.ModelRef, infer.Item) (infer.Result, error) {
		return infer.Result{}, &fault.Error{Kind: fault.Draining, Message: "The server\nis shutting down."}
	}
	if r := do(t, f.addr[Inference], "POST", "/predictions/faults", ""); r.header.Get("X-Flambeau-Hint") != "The server is shutting down." {
		t.Errorf("%+v", r.header)
	}
}

func TestTokens(t *testing.T) {
	dir := t.TempDir()
	keys, err := token.New(token.Options{Dir: dir, Expiration: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	f := serve(t, func(o *Options) { o.Keys = keys })
	read := func() map[string]string {
		text, err := os.ReadFile(filepath.Join(dir, token.FileName))
		if err != nil {
			t.Fatal(err)
		}
		var file map[string]struct{ Key string }
		if err := json.Unmarshal(text, &file); err != nil {
			t.Fatal(err)
		}
		return map[string]string{"inference": file["inference"].Key, "management": file["management"].Key, "API": file["API"].Key}
	}
	auth := func(kind string) string { return "Authorization: Bearer " + read()[kind] }
	refused := `"type":"InvalidKeyException","message":"` + authorizationError + `"`
	rotation := `"type":"InvalidKeyException","message":"` + rotationError + `"`

	f.check(t, Inference, []exchange{
		{"POST", "/predictions/echo", 400, refused},
		{"GET", "/ping", 400, refused},
		{"GET", "/nope", 400, refused},
		{"GET", "/pi%zz", 403, "invalid hex byte"},
		{"GET", "/", 405, noMethod},
		{"OPTIONS", "/", 200, "openapi"},
		{"GET", "/api-description", 200, "openapi"},
		{"OPTIONS", "/predictions/echo", 400, refused},
	})
	f.check(t, Inference, []exchange{{"GET", "/ping", 200, "Healthy"}, {"GET", "/nope", 404, noRoute}, {"GET", "/token", 404, noRoute}}, auth("inference"))
	f.check(t, Inference, []exchange{{"GET", "/ping", 400, refused}, {"GET", "/token?type=inference", 400, refused}}, auth("management"))
	f.check(t, Inference, []exchange{{"GET", "/ping", 200, "Healthy"}}, auth("inference"), "authorization: Bearer x")
	f.check(t, Management, []exchange{{"GET", "/models", 400, refused}}, auth("inference"))
	f.check(t, Management, []exchange{{"GET", "/models", 400, refused}}, auth("API"))
	f.check(t, Management, []exchange{{"GET", "/models", 200, "models"}, {"GET", "/models?x=/tokens", 400, rotation}}, auth("management"))
	f.check(t, Management, []exchange{{"GET", "/models", 400, rotation}}, auth("management"), "Referer: http://h/token")
	f.check(t, MetricsPort, []exchange{{"GET", "/metrics", 200, "metrics"}})

	before := read()
	f.check(t, Management, []exchange{
		{"GET", "/token", 400, rotation},
		{"GET", "/token?type=other", 400, rotation},
		{"GET", "/token?type=Inference", 400, rotation},
		{"GET", "/token?type=API", 400, rotation},
		{"GET", "/token?type=inference&x=%zz", 400, rotation},
	}, auth("API"))
	f.check(t, Management, []exchange{{"GET", "/token?type=inference", 400, rotation}}, auth("management"))
	if diff := cmp.Diff(before, read()); diff != "" {
		t.Errorf("a refused request changed the keys: %s", diff)
	}
	r := do(t, f.addr[Management], "BREW", "/models?x=/token&type=inference", "", auth("API"))
	after := read()
	if r.status != 200 || r.body != "\n" || r.header.Get("Content-Type") != "application/json" {
		t.Errorf("%+v", r)
	}
	if after["inference"] == before["inference"] || after["management"] != before["management"] || after["API"] != before["API"] {
		t.Errorf("before %v, after %v", before, after)
	}
	f.check(t, Inference, []exchange{{"GET", "/ping", 400, refused}}, "Authorization: Bearer "+before["inference"])
	f.check(t, Inference, []exchange{{"GET", "/ping", 200, "Healthy"}}, auth("inference"))

	f.check(t, Joint, []exchange{{"GET", "/ping", 200, "Healthy"}, {"GET", "/models", 400, refused}, {"GET", "/metrics", 200, "metrics"}}, auth("inference"))
	f.check(t, Joint, []exchange{{"GET", "/ping", 400, refused}, {"GET", "/models", 200, "models"}, {"GET", "/nope", 404, noRoute}}, auth("management"))
	f.check(t, Joint, []exchange{{"GET", "/token?type=management", 200, ""}}, auth("API"))
	if read()["management"] == after["management"] {
		t.Error("the joint port does not make a key anew")
	}

	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if r := do(t, f.addr[Management], "GET", "/token?type=management", "", "Authorization: Bearer "+after["API"]); r.status != 500 || strings.Contains(r.body, dir) {
		t.Errorf("%+v", r)
	}
}

// TestRefusedBodyIsReadFirst refuses a request whose client is still sending: it must get to read why.
func TestRefusedBodyIsReadFirst(t *testing.T) {
	keys, err := token.New(token.Options{Dir: t.TempDir(), Expiration: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	f := serve(t, func(o *Options) { o.Keys = keys })
	if r := do(t, f.addr[Inference], "POST", "/predictions/echo", strings.Repeat("x", 6_000_000)); r.status != 400 {
		t.Errorf("%+v", r)
	}
}

func TestDescriptions(t *testing.T) {
	f := serve(t)
	for port, name := range map[Port]string{Inference: "inference", Management: "management", MetricsPort: "metrics", Joint: "joint"} {
		golden(t, "api-"+name+".golden", do(t, f.addr[port], "OPTIONS", "/", "").body)
	}
	golden(t, "api-model.golden", do(t, f.addr[Inference], "OPTIONS", "/predictions/echo", "").body)
}
