package httpapi

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/httpapi/token"
	"github.com/flambeau-serve/flambeau/frontend/httpapi/wire"
	"github.com/flambeau-serve/flambeau/frontend/oipserver"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

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
	for _, path := range []string{"/v2/trace/setting", "/v2/models/adder/trace/setting"} {
		if r := do(t, f.addr[Inference], "POST", path, `{"trace_level":["TIMESTAMPS"]}`); r.status != 400 || !strings.Contains(r.body, "trace file name is not given") {
			t.Errorf("%d %s", r.status, r.body)
		}
		if r := do(t, f.addr[Inference], "POST", path, `{"trace_rate":"5"}`); r.status != 200 || !strings.Contains(r.body, `"trace_rate":"5"`) {
			t.Errorf("%d %s", r.status, r.body)
		}
		if r := do(t, f.addr[Inference], "DELETE", path, ""); r.status != 405 {
			t.Errorf("%d %s", r.status, r.body)
		}
	}
}

func TestSharedMemoryRoutes(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x"), []byte(floats(1, 2)+floats(0, 0)), 0o600); err != nil {
		t.Fatal(err)
	}
	f := withProtocol(t, func(o *Options) {
		p, err := oipserver.New(oipserver.Options{Predictor: o.Predictor, Models: o.Models, SharedMemory: dir})
		if err != nil {
			t.Fatal(err)
		}
		o.Protocol = p
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	})
	const at = "/v2/systemsharedmemory"
	for _, tc := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", at + "/region/r/register", `{"key":"/x","offset":0,"byte_size":16}`, 200, "{}"},
		{"POST", at + "/region/r/register", `{"key":"/x","offset":0,"byte_size":16}`, 409, "already in manager"},
		{"POST", at + "/region/s/register", `{"key":"/x","offset":18446744073709551615,"byte_size":16}`, 400, "error"},
		{"POST", at + "/region/s/register", `{"key":"/../x","byte_size":16}`, 400, "failed to register"},
		{"POST", at + "/region/s/register", `[`, 400, "JSON"},
		{"POST", at + "/register", `{}`, 404, "error"},
		{"POST", at + "/region//register", `{}`, 404, "error"},
		{"GET", at + "/region/r/register", ``, 405, "error"},
		{"GET", at + "/status", ``, 200, `[{"name":"r","key":"/x","offset":0,"byte_size":16}]`},
		{"GET", at + "/region/r/status", ``, 200, `[{"name":"r","key":"/x","offset":0,"byte_size":16}]`},
		{"GET", at + "/region/q/status", ``, 400, "Unable to find"},
		{"POST", at + "/status", ``, 405, "error"},
		{
			"POST", "/v2/models/adder/infer", `{"inputs":[{"name":"A","shape":[1,2],"datatype":"FP32","parameters":{"shared_memory_region":"r","shared_memory_byte_size":8}}],` +
				`"outputs":[{"name":"X","parameters":{"shared_memory_region":"r","shared_memory_byte_size":8,"shared_memory_offset":8}}]}`, 200, `"outputs":[{"name":"X","datatype":"FP32","shape":[1,2]}]`,
		},
		{
			"POST", "/v2/models/kserve/infer", `{"inputs":[{"name":"A","shape":[1,2],"datatype":"FP32","parameters":{"shared_memory_region":"r","shared_memory_byte_size":8,"shared_memory_offset":8}}]}`,
			200, `"data":[2,3]`,
		},
		{"POST", at + "/region/r/unregister", ``, 200, "{}"},
		{"POST", at + "/unregister", ``, 200, "{}"},
		{"GET", at + "/status", ``, 200, `[]`},
		{"GET", at, ``, 404, "error"},
		{"GET", "/v2/cudasharedmemory/status", ``, 200, `[]`},
		{"GET", "/v2/cudasharedmemory/region/c/status", ``, 400, "Unable to find"},
		{"POST", "/v2/cudasharedmemory/region/c/register", `{}`, 501, "CUDA"},
		{"POST", "/v2/cudasharedmemory/unregister", ``, 200, `{}`},
	} {
		if r := do(t, f.addr[Inference], tc.method, tc.path, tc.body); r.status != tc.status || !strings.Contains(r.body, tc.want) {
			t.Errorf("%s %s %s: %d %s, want %d %s", tc.method, tc.path, tc.body, r.status, r.body, tc.status, tc.want)
		}
	}
	off := withProtocol(t)
	if r := do(t, off.addr[Inference], "POST", at+"/region/r/register", `{"key":"/x","byte_size":16}`); r.status != 501 || r.header.Get("X-Flambeau-Hint") == "" {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// TestTooLargeForClientsOfTheProtocol has an error to read, which TorchServe's clients do not get.
func TestTooLargeForClientsOfTheProtocol(t *testing.T) {
	f := withProtocol(t, func(o *Options) { o.MaxRequestSize = 100 })
	body := strings.Repeat("x", 200)
	if r := do(t, f.addr[Inference], "POST", "/v2/models/adder/infer", body); r.status != 413 || !strings.Contains(r.body, `"error": "The request is larger than 100 bytes."`) {
		t.Errorf("%d %q", r.status, r.body)
	}
	if r := do(t, f.addr[Inference], "POST", "/predictions/adder", body); r.status != 413 || r.body != "" {
		t.Errorf("%d %q", r.status, r.body)
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
			{"POST", "/v2/logging", "inference", 400},
			{"POST", "/v2/logging", "management", 200},
			{"GET", "/v2/logging", "inference", 200},
			{"POST", "/v2/models/echo/trace/setting", "inference", 400},
			{"POST", "/v2/trace/setting", "management", 200},
			{"GET", "/v2/trace/setting", "inference", 200},
			{"GET", "/v2/systemsharedmemory/status", "inference", 400},
			{"GET", "/v2/systemsharedmemory/region/x/status", "inference", 400},
			{"POST", "/v2/systemsharedmemory/region/x/register", "inference", 400},
			{"POST", "/v2/systemsharedmemory/unregister", "inference", 400},
			{"GET", "/v2/systemsharedmemory/status", "management", 200},
			{"POST", "/v2/systemsharedmemory/unregister", "management", 200},
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

// TestSharedMemoryIsForThisMachine has it neither registered nor shown over the network.
func TestSharedMemoryIsForThisMachine(t *testing.T) {
	f := newFakeModels()
	p, err := oipserver.New(oipserver.Options{Predictor: &fakePredictor{}, Models: f, SharedMemory: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	a := &API{opts: Options{Protocol: p}}
	for _, tc := range []struct {
		peer  string
		local net.Addr
		taken bool
	}{
		{"192.0.2.1:4", &net.TCPAddr{}, false},
		{"[2001:db8::1]:4", &net.TCPAddr{}, false},
		{"127.0.0.1:4", &net.TCPAddr{}, true},
		{"@", &net.UnixAddr{Net: "unix"}, true},
	} {
		for _, what := range [][2]string{{"GET", "status"}, {"POST", "unregister"}} {
			r := httptest.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, tc.local), what[0], "/v2/systemsharedmemory/"+what[1], http.NoBody)
			r.RemoteAddr = tc.peer
			_, err := a.sharedMemory(&request{http: r, head: &wire.Head{Method: what[0]}, segments: []string{"", "v2", "systemsharedmemory", what[1]}})
			if (err == nil) != tc.taken || err != nil && fault.HTTPStatus(err) != 403 {
				t.Errorf("%s of %s: %v", what[1], tc.peer, err)
			}
		}
	}
}
