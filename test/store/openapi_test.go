package store

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// anything is a handler that answers whatever it is sent.
const anything = `import json


class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        answers = []
        for row in data:
            body = row.get("body", row.get("data", ""))
            answers.append(bytes(body) if isinstance(body, (bytes, bytearray)) else json.dumps(body))
        return answers
`

// TestDescriptionIsTrue asks a server with a Python handler, an ONNX model and a plugin for /openapi.json, whether that is valid, and whether it answers
// as it says, whatever is sent: to each of its examples with 200, and to what schemathesis makes of the schemas without an undocumented failure, in time.
func TestDescriptionIsTrue(t *testing.T) {
	box := e2e.NewBox(t)
	old := exec.CommandContext(t.Context(), box.Python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))").Run() != nil
	if old {
		t.Skip("schemathesis is installed for Python 3.11 and later")
	}
	box.Put(t, "adds.onnx", adds(3))
	box.Put(t, "echo.mar", e2e.Archive{Name: "echo", Handler: anything}.Bytes(t))
	putPlugin(t, box, filepath.Join(model, model), builtPlugin(t, 5, runtime.GOARCH))
	s := start(t, box, "model_store_settle", "40", "enable_model_api", "false")
	for _, name := range []string{"adds", "echo", model} {
		if !e2e.Eventually(patience, func() bool {
			m, _ := s.Model(t, name, "1.0")
			return m.State == "serving"
		}) {
			t.Fatalf("%s does not serve:%s", name, e2e.Lines(s.Events(t, "")))
		}
	}
	for name, at := range map[string]string{"inference": s.Inference, "management": s.Management, "metrics": s.Metrics} {
		file := filepath.Join(box.Dir, name+".json")
		described := s.MustAsk(t, http.StatusOK, http.MethodGet, at+"/openapi.json", nil)
		if again := s.MustAsk(t, http.StatusOK, http.MethodGet, at+"/openapi.json", nil); !bytes.Equal(described.Body, again.Body) {
			t.Errorf("the description of %s is another one the second time", name)
		}
		if err := os.WriteFile(file, described.Body, 0o600); err != nil {
			t.Fatal(err)
		}
		box.Run(t, "openapi-spec-validator", file)
	}
	described := s.MustAsk(t, http.StatusOK, http.MethodGet, s.Inference+"/openapi.json", nil)
	askExamples(t, s, described.Body)
	for _, at := range []string{s.Inference, s.Management, s.Metrics} {
		tryEverything(t, box, at)
	}
	scaled := s.Events(t, "kind=scaled")
	if !slices.ContainsFunc(scaled, func(e e2e.Event) bool {
		return e.Reason == "minimum 1, maximum 2" || e.Reason == "minimum 2, maximum 2"
	}) {
		t.Errorf("nothing was scaled to two workers:%s", e2e.Lines(scaled))
	}
	s.MustAsk(t, http.StatusOK, http.MethodDelete, s.Management+"/admin/drain", nil)
	for _, name := range []string{"adds", "echo", model} {
		s.MustAsk(t, http.StatusOK, http.MethodPut, s.Management+"/models/"+name+"?min_worker=1&max_worker=1&synchronous=true", nil)
		if m, _ := s.Model(t, name, "1.0"); m.State != "serving" {
			t.Errorf("%s is %s afterwards: %s", name, m.State, m.Reason)
		}
	}
	tag := described.Header.Get("ETag")
	s.MustAsk(t, http.StatusNotModified, http.MethodGet, s.Inference+"/openapi.json", nil, "If-None-Match", tag)
	box.Put(t, "adds.onnx", adds(4))
	if !e2e.Eventually(patience, func() bool {
		a, err := s.Ask(t.Context(), http.MethodGet, s.Inference+"/openapi.json", nil, "If-None-Match", tag)
		return err == nil && a.Status == http.StatusOK && a.Header.Get("ETag") != tag
	}) {
		t.Error("the description is the same after a swap")
	}
}

// askExamples sends each example of a description to where it belongs.
func askExamples(t *testing.T, s *e2e.Server, description []byte) {
	t.Helper()
	var doc struct {
		Paths map[string]struct {
			Post struct {
				RequestBody struct {
					Content map[string]struct {
						Example json.RawMessage `json:"example"`
					} `json:"content"`
				} `json:"requestBody"`
			} `json:"post"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(description, &doc); err != nil {
		t.Fatal(err)
	}
	asked := 0
	for path, item := range doc.Paths {
		for kind, content := range item.Post.RequestBody.Content {
			if content.Example == nil || strings.Contains(path, "{") {
				continue
			}
			a := s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+path, content.Example, "Content-Type", kind)
			if len(a.Body) == 0 {
				t.Errorf("%s answers its example with nothing", path)
			}
			asked++
		}
	}
	if asked < 6 { // predict and infer of the ONNX model, generate of the others, with and without a version
		t.Errorf("%d examples", asked)
	}
}

// tryEverything runs schemathesis. The short run tries the same each time. It scales up to two workers: testdata/openapi_checks.py sees to that.
func tryEverything(t *testing.T, box *e2e.Box, at string) {
	t.Helper()
	examples := long(t, "FLAMBEAU_SCHEMATHESIS", 0)
	checks := "only_refusals,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance"
	args := []string{
		"run", at + "/openapi.json", "--checks", checks, "--no-color", "--request-timeout", "30", "--max-failures", "5", "--suppress-health-check", "all",
	}
	if examples > 0 {
		args = append(args, "--max-examples", strconv.Itoa(examples))
	} else {
		args = append(args, "--max-examples", "5", "--generation-deterministic", "--phases", "examples,coverage,fuzzing", "--exclude-path-regex", "/1[.]0")
	}
	cmd := box.Command(t.Context(), "schemathesis", args...)
	hooks, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(cmd.Env, "PYTHONPATH="+hooks, "SCHEMATHESIS_HOOKS=openapi_checks", "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("schemathesis on %s: %v\n%s", at, err, out)
	}
	if !strings.Contains(string(out), "passed") {
		t.Errorf("schemathesis on %s tried nothing:\n%s", at, out)
	}
}
