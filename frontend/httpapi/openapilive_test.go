package httpapi

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/httpapi/token"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// described reads /openapi.json of a port, and gives its paths.
func described(t *testing.T, f *fixture, port Port, header ...string) (reply, []string) {
	t.Helper()
	r := do(t, f.addr[port], "GET", "/openapi.json", "", header...)
	if r.status != 200 || r.header.Get("Content-Type") != "application/json" || r.header.Get("ETag") == "" {
		t.Fatalf("%s: %d %v %s", port, r.status, r.header, r.body)
	}
	var doc struct {
		OpenAPI string                     `json:"openapi"`
		Paths   map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal([]byte(r.body), &doc); err != nil || !strings.HasPrefix(doc.OpenAPI, "3.") {
		t.Fatalf("%s: %v, version %q", port, err, doc.OpenAPI)
	}
	var paths []string
	for path := range doc.Paths {
		paths = append(paths, path)
	}
	return r, paths
}

func TestDescriptionOfWhatIsLoaded(t *testing.T) {
	f := withProtocol(t)
	inference := []string{"/predictions/echo", "/predictions/adder/3", "/v2/models/adder/infer", "/v2/models/words/generate_stream", "/v2/models/{model_name}/ready", "/ping"}
	management := []string{"/models", "/models/{model_name}/{model_version}/set-default"}
	for _, tc := range []struct {
		port     Port
		has, not []string
	}{
		{Inference, inference, slices.Concat(management, []string{"/metrics"})},
		{Management, management, slices.Concat(inference, []string{"/metrics"})},
		{MetricsPort, []string{"/metrics", "/openapi.json"}, slices.Concat(inference, management)},
		{Joint, slices.Concat(inference, management, []string{"/metrics"}), nil},
	} {
		_, paths := described(t, f, tc.port)
		for _, path := range tc.has {
			if !slices.Contains(paths, path) {
				t.Errorf("%s does not describe %s", tc.port, path)
			}
		}
		for _, path := range tc.not {
			if slices.Contains(paths, path) {
				t.Errorf("%s describes %s, which it does not answer", tc.port, path)
			}
		}
	}
	if r := do(t, f.addr[Inference], "POST", "/openapi.json", "{}"); r.status != 405 {
		t.Errorf("POST: %d", r.status)
	}
	if r := do(t, f.addr[Inference], "GET", "/openapi.json/x", ""); r.status != 404 {
		t.Errorf("below it: %d", r.status)
	}
}

func TestTagOfDescription(t *testing.T) {
	f := withProtocol(t)
	first, _ := described(t, f, Inference)
	again, _ := described(t, f, Inference)
	tag := first.header.Get("ETag")
	if first.body != again.body || again.header.Get("ETag") != tag {
		t.Error("nothing has changed, and the description has")
	}
	for header, status := range map[string]int{tag: 304, "*": 304, `"x", W/` + tag: 304, `"x"`: 200, "": 200} {
		r := do(t, f.addr[Inference], "GET", "/openapi.json", "", "If-None-Match: "+header)
		if r.status != status || r.header.Get("ETag") != tag || (r.body == "") != (status == 304) {
			t.Errorf("If-None-Match %s: %d with %d bytes", header, r.status, len(r.body))
		}
	}
	if r := do(t, f.addr[Inference], "HEAD", "/openapi.json", ""); r.status != 200 || r.body != "" || r.header.Get("ETag") != tag {
		t.Errorf("HEAD: %d %q", r.status, r.body)
	}
	if err := f.models.Unregister(t.Context(), infer.ModelRef{Name: "words"}); err != nil {
		t.Fatal(err)
	}
	without, paths := described(t, f, Inference)
	if slices.Contains(paths, "/predictions/words") || without.header.Get("ETag") == tag {
		t.Error("a model that is gone is described")
	}
	f.models.find(infer.ModelRef{Name: "adder"}).Digest = "sha256:another"
	if swapped, _ := described(t, f, Inference); swapped.header.Get("ETag") == without.header.Get("ETag") {
		t.Error("the tag stays the same when a model is swapped")
	}
}

// TestNothingWhereTorchServeHasNothing pins that a server that is to have only what TorchServe has answers as it does.
func TestNothingWhereTorchServeHasNothing(t *testing.T) {
	f := serve(t)
	for port := range ports {
		if r := do(t, f.addr[port], "GET", "/openapi.json", ""); r.status != 404 || !strings.Contains(r.body, notFoundMessage) {
			t.Errorf("%s: %d %s", port, r.status, r.body)
		}
	}
}

func TestDescriptionNeedsTheKey(t *testing.T) {
	keys, err := token.New(token.Options{Dir: t.TempDir(), Expiration: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	f := withProtocol(t, func(o *Options) { o.Keys = keys })
	for _, port := range []Port{Inference, Management, Joint} {
		if r := do(t, f.addr[port], "GET", "/openapi.json", ""); r.status != 400 || !strings.Contains(r.body, "InvalidKeyException") {
			t.Errorf("%s without a key: %d %s", port, r.status, r.body)
		}
	}
	if r, _ := described(t, f, MetricsPort); strings.Contains(r.body, "securitySchemes") {
		t.Error("the metrics need no key")
	}
}
