package store

import (
	"bytes"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// Secrets of a URL that an archive is fetched from.
const (
	urlUser      = "olga-secret"
	urlPassword  = "hunter2-secret"
	urlSignature = "5ca1ab1e-secret"
	urlToken     = "t0ken-secret"
)

// signed serves an archive to whoever has the right password and signature, and gives its URL with them.
func signed(t *testing.T, content []byte) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if query.Get("X-Amz-Signature") != urlSignature || query.Get("access_token") != urlToken || query.Get("part") != "7" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		if !strings.HasSuffix(r.URL.Path, "/"+file) {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write(content)
	}))
	t.Cleanup(srv.Close)
	return strings.Replace(srv.URL, "http://", "http://"+urlUser+":"+urlPassword+"@", 1) + "/" + file + "?part=7&X-Amz-Signature=" + urlSignature + "&access_token=" + urlToken
}

// requireNoSecret looks for the secrets in a text.
func requireNoSecret(t *testing.T, what string, text []byte) {
	t.Helper()
	for _, secret := range []string{urlUser, urlPassword, urlSignature, urlToken} {
		if at := bytes.Index(text, []byte(secret)); at >= 0 {
			t.Errorf("%s tells %s: …%s…", what, secret, text[max(0, at-120):min(len(text), at+60)])
		}
	}
}

// requireNoSecretOnDisk looks into all the files that a server has written: logs, state, snapshots. The configuration that the test wrote is its own.
func requireNoSecretOnDisk(t *testing.T, box *e2e.Box) {
	t.Helper()
	err := filepath.WalkDir(box.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || entry.Name() == "e2e.properties" {
			return err
		}
		text, err := os.ReadFile(path) //nolint:gosec // a folder of this test
		requireNoSecret(t, path, text)
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestSecretsOfURLsAreNotTold registers models from URLs with a password, a signature and a token, well and badly: they are fetched with all of it, and nothing that the
// server writes or answers has any of it. The rest of the URL is told as it is.
func TestSecretsOfURLsAreNotTold(t *testing.T) {
	box := e2e.NewBox(t)
	address := signed(t, e2e.Numbered(model, 1, "").Bytes(t))
	s := start(t, box)
	post := func(status int, query string) {
		t.Helper()
		got := s.MustAsk(t, status, http.MethodPost, s.Management+"/models?"+query, nil)
		requireNoSecret(t, "the answer to the registration", got.Body)
		for name, values := range got.Header {
			requireNoSecret(t, "its header "+name, []byte(strings.Join(values, " ")))
		}
	}
	post(http.StatusOK, "url="+url.QueryEscape(address)+"&initial_workers=1&synchronous=true")
	requireAnswer(t, s, predict, 1)
	post(http.StatusInternalServerError, "url="+url.QueryEscape(address)+"&model_name=again") // the file is there already; such failures are in the log with their targets
	for _, path := range []string{
		"/models", "/models/" + model, "/models/" + model + "?details=true", "/admin/models", "/admin/events", "/admin/models/" + model + "/history", "/admin/store",
	} {
		requireNoSecret(t, path, s.MustAsk(t, http.StatusOK, http.MethodGet, s.Management+path, nil).Body)
	}
	if told := string(s.MustAsk(t, http.StatusOK, http.MethodGet, s.Management+"/models/"+model, nil).Body); !strings.Contains(told, "/"+file+"?part=7&X-Amz-Signature=***&access_token=***") {
		t.Errorf("the description does not tell the rest of the URL: %s", told)
	}
	for _, command := range [][]string{{"ps"}, {"show", model}, {"events"}, {"history", model}, {"store"}, {"ps", "--json"}, {"show", model, "--json"}, {"events", "--json"}} {
		requireNoSecret(t, "flambeau "+strings.Join(command, " "), []byte(box.Flambeau(t, append(command, "--url", s.Management)...)))
	}
	// The URL as it was given is still known: the model can be fetched again by it.
	s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+"/v2/repository/models/"+model+"/unload", nil)
	s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+"/v2/repository/models/"+model+"/load", nil)
	requireAnswer(t, s, predict, 1)
	s.MustAsk(t, http.StatusOK, http.MethodDelete, s.Management+"/models/"+model, nil) // it may have been too early for the store to have seen the copy
	s.MustAsk(t, http.StatusNotFound, http.MethodGet, s.Management+"/models/"+model, nil)

	missing := strings.Replace(address, "/"+file, "/none.mar", 1)
	post(http.StatusNotFound, "url="+url.QueryEscape(strings.Replace(address, "/"+file, "/../"+file, 1)))
	post(http.StatusBadRequest, "url="+url.QueryEscape(missing))
	post(http.StatusBadRequest, "url="+missing+"&model_name=x") // what follows the first & is the request's own
	post(http.StatusNotFound, "url="+url.QueryEscape(strings.Replace(address, "http://", "nope://", 1)))
	post(http.StatusBadRequest, "url="+url.QueryEscape(strings.Replace(address, "127.0.0.1", "127.0.0.1:1", 1)))
	s.Stop(t)
	requireNoSecret(t, "the terminal", []byte(s.Output()))
	requireNoSecretOnDisk(t, box)
	lines, err := os.ReadFile(filepath.Join(box.Dir, "logs", "access_log.log"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(lines), `"POST /models?url=`); n != 7 || !strings.Contains(string(lines), "&initial_workers=1&synchronous=true HTTP/1.1\" 200 ") {
		t.Errorf("%d registrations are in the access log, want 7:\n%s", n, lines)
	}
}

// TestSecretsOfListedURLsAreNotTold is about the models that the torchserve command loads at its start, and about its snapshots.
func TestSecretsOfListedURLsAreNotTold(t *testing.T) {
	box := e2e.NewBox(t)
	address := signed(t, e2e.Numbered(model, 1, "").Bytes(t))
	s := box.Start(t, e2e.Options{
		Command: []string{"torchserve", "--start", "--foreground"}, Config: map[string]string{"load_models": "m=" + address + ",x=" + strings.Replace(address, file, "none.mar", 1)},
	})
	requireAnswer(t, s, predict, 1)
	s.Stop(t)
	requireNoSecret(t, "the terminal", []byte(s.Output()))
	if saved, err := filepath.Glob(filepath.Join(box.Dir, "logs", "config", "*")); err != nil || len(saved) == 0 {
		t.Errorf("there is no snapshot: %v", err)
	}
	requireNoSecretOnDisk(t, box)
}
