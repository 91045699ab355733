package store

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// The plugin that was built with the first SDK; its own tests are beside it.
const firstPlugin = "../../handlersdk/handlertest/testdata/first/plugin"

// said is what a plugin is to say to a body.
type said struct {
	body   string
	status int
	has    string
}

func requireSaid(t *testing.T, s *e2e.Server, all []said) {
	t.Helper()
	for _, want := range all {
		a, err := s.Ask(t.Context(), http.MethodPost, s.Inference+predict, []byte(want.body), "Content-Type", "text/plain")
		if err != nil || a.Status != want.status || !strings.Contains(string(a.Body), want.has) {
			t.Errorf("%s: %d %s, %v; want %d with %q", want.body, a.Status, a.Body, err, want.status, want.has)
		}
	}
}

// requireText waits until a plugin answers a text with another.
func requireText(t *testing.T, s *e2e.Server, body, want string) {
	t.Helper()
	last := ""
	if !e2e.Eventually(patience, func() bool {
		a, err := s.Ask(t.Context(), http.MethodPost, s.Inference+predict, []byte(body), "Content-Type", "text/plain")
		last = fmt.Sprintf("%d %s %v", a.Status, a.Body, err)
		return err == nil && a.Status == http.StatusOK && string(a.Body) == want
	}) {
		t.Fatalf("it does not answer %s with %s, last: %s%s", body, want, last, e2e.Lines(s.Events(t, "")))
	}
}

// TestPluginOfFirstSDK serves a program that was built with the first release of the SDK, as one that was built today: answers, failures, its death, its logs,
// and swaps from and to today's.
func TestPluginOfFirstSDK(t *testing.T) {
	box := e2e.NewBox(t)
	name, first := filepath.Join(model, model), built(t, firstPlugin, runtime.GOARCH)
	putPlugin(t, box, name, first)
	box.Put(t, filepath.Join(model, "model-config.yaml"), []byte("minWorkers: 2\nmaxWorkers: 2\nbatchSize: 4\nmaxBatchDelay: 5\n"))
	s := start(t, box, "model_check", "strict")
	requireText(t, s, "hello", "HELLO")
	requireSaid(t, s, []said{
		{"refuse", http.StatusUnprocessableEntity, `I do not like`},
		{"panic", http.StatusServiceUnavailable, "Prediction failed"},
		{"miscount", http.StatusServiceUnavailable, "number of batch response mismatched"},
		{"memory", http.StatusInsufficientStorage, "Out of resources"},
		{"status", http.StatusNonAuthoritativeInfo, "203"},
		{"model", http.StatusOK, `"Name":"m","Version":"1.0"`},
		{"end", http.StatusInternalServerError, "Worker died."},
		{"and on", http.StatusOK, "AND ON"},
	})
	if a := s.MustAsk(t, http.StatusOK, http.MethodGet, s.Inference+"/v2/models/"+model, nil); !strings.Contains(string(a.Body), `"inputs":[]`) {
		t.Errorf("it is described as %s", a.Body)
	}
	if text, err := os.ReadFile(filepath.Join(box.Dir, "logs", "model_log.log")); err != nil || !strings.Contains(string(text), "the first plugin was asked for and on") {
		t.Errorf("its log has not what it printed (%v): %s", err, text)
	}
	if out := box.Flambeau(t, "check", filepath.Join(box.Store, model)); !strings.Contains(out, "does not say which version") {
		t.Errorf("the check says %s", out)
	}
	load := s.StartLoad(t, e2e.LoadOptions{Path: predict, Clients: 2})
	putPlugin(t, box, name, builtPlugin(t, 2, runtime.GOARCH))
	requireAnswer(t, s, predict, 2)
	putPlugin(t, box, name, first)
	requireText(t, s, "back", "BACK")
	e2e.RequireNoFailure(t, load.Stop())
}

// TestPluginOfLaterSDK serves a program that speaks this version of the protocol and a later one, and says what this release does not know. One that speaks later
// versions only is refused with the reason, be it by what its program says or by its handshake, and what serves goes on.
func TestPluginOfLaterSDK(t *testing.T) {
	box := e2e.NewBox(t)
	name := filepath.Join(model, model)
	const mark = "flambeau-backend-protocol="
	putPlugin(t, box, name, built(t, "./testdata/later", runtime.GOARCH, "main.versions=1,2", "main.marks="+mark+"2;"+mark+"1;"))
	s := start(t, box, "model_check", "strict")
	requireText(t, s, "hello", "HELLO")
	requireSaid(t, s, []said{{"fail", http.StatusInternalServerError, "for a reason of a later release"}, {"again", http.StatusOK, "AGAIN"}})
	if a := s.MustAsk(t, http.StatusOK, http.MethodGet, s.Inference+"/v2/models/"+model, nil); !strings.Contains(string(a.Body), `"platform":"later"`) {
		t.Errorf("it is described as %s", a.Body)
	}
	if out := box.Flambeau(t, "check", filepath.Join(box.Store, model)); strings.Contains(out, "protocol") {
		t.Errorf("the check says %s", out)
	}
	for how, marks := range map[string]string{"by its mark": mark + "2;" + mark + "3;", "by its handshake": ""} {
		before := newest(t, s)
		putPlugin(t, box, name, built(t, "./testdata/later", runtime.GOARCH, "main.versions=2,3", "main.marks="+marks))
		reason := requirePluginFailure(t, s, before)
		for _, want := range []string{"version 2 of the protocol", "version 1"} {
			if !strings.Contains(reason, want) {
				t.Errorf("%s: the reason is %q, want %q", how, reason, want)
			}
		}
		requireText(t, s, "on", "ON")
	}
}
