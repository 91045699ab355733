package client

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake answers as a management API with many models does; key is the token that it wants.
func fake(key string, joint bool) http.Handler {
	fail := func(w http.ResponseWriter, status int, kind, message string) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{"code": status, "type": kind, "message": message})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key != "" && r.Header.Get("Authorization") != "Bearer "+key {
			fail(w, 400, "InvalidKeyException", "Token Authorization failed.")
			return
		}
		switch r.URL.EscapedPath() {
		case "/models":
			if r.URL.Query().Get("next_page_token") == "" {
				_, _ = io.WriteString(w, `{"nextPageToken": "2", "models": [{"modelName": "a"}, {"modelName": "b"}]}`)
			} else {
				_, _ = io.WriteString(w, `{"models": [{"modelName": "c d"}]}`)
			}
		case "/models/a", "/models/c%20d", "/models/a/1.0":
			_, _ = io.WriteString(w, `[{"modelName": "a", "modelVersion": "1.0"}]`)
		case "/models/a/all", "/models/c%20d/all":
			if joint {
				fail(w, 404, "ResourceNotFoundException", "Requested resource is not found, please refer to API document.")
				return
			}
			_, _ = io.WriteString(w, `[{"modelName": "a", "modelVersion": "1.0"}, {"modelName": "a", "modelVersion": "2.0"}]`)
		case "/html":
			_, _ = io.WriteString(w, "<html>")
		default:
			fail(w, 404, "ModelNotFoundException", "Model not found: "+r.URL.Path)
		}
	})
}

func newClient(t *testing.T, opts Options) *Client {
	t.Helper()
	if opts.Timeout == 0 {
		opts.Timeout = 10 * time.Second
	}
	c, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNames(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(fake("k", false))
	t.Cleanup(srv.Close)
	c := newClient(t, Options{URL: srv.URL + "/", Token: "k"})
	got, err := c.Names(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "b", "c d"}, got); diff != "" {
		t.Error(diff)
	}
	var refused *RefusedError
	_, err = newClient(t, Options{URL: srv.URL}).Names(t.Context())
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "FLAMBEAU_TOKEN") {
		t.Errorf("without a key: %v", err)
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	for _, joint := range []bool{false, true} {
		srv := httptest.NewServer(fake("", joint))
		t.Cleanup(srv.Close)
		c := newClient(t, Options{URL: strings.TrimPrefix(srv.URL, "http://")})
		for _, tt := range []struct {
			name, version string
			want          int
		}{{"a", "all", 2}, {"a", "", 1}, {"a", "1.0", 1}, {"c d", "all", 2}} {
			want := tt.want
			if joint {
				want = 1
			}
			got, err := c.Describe(t.Context(), tt.name, tt.version)
			if err != nil || len(got) != want {
				t.Errorf("joint %v: %s %s: %d descriptions, %v, want %d", joint, tt.name, tt.version, len(got), err, want)
			}
		}
		if _, err := c.Describe(t.Context(), "x", "all"); err == nil || !strings.Contains(err.Error(), "Model not found: /models/x") {
			t.Errorf("unknown: %v", err)
		}
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	for _, url := range []string{"http://127.0.0.1:1", "127.0.0.1:1", "unix:" + socket, "http://0.0.0.0:1", "http://[::]:1"} {
		_, err := newClient(t, Options{URL: url, Origin: "management_address"}).Names(t.Context())
		var unreachable *UnreachableError
		if !errors.As(err, &unreachable) || !strings.Contains(err.Error(), "no server answers at "+url+" (management_address)") {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, url := range []string{"", "ftp://h", "http://", "http://h:x y"} {
		if _, err := New(Options{URL: url}); err == nil {
			t.Errorf("%q was accepted", url)
		}
	}
}

func TestNoModelServer(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/bad") {
			w.WriteHeader(http.StatusBadGateway)
		}
		_, _ = io.WriteString(w, "<html>")
	}))
	t.Cleanup(srv.Close)
	for path, says := range map[string]string{"": "no model server's management API", "/bad": "502 Bad Gateway: <html>"} {
		if _, err := newClient(t, Options{URL: srv.URL + path}).Names(t.Context()); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want one that says %q", path, err, says)
		}
	}
}

func TestUnixSocket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "fl") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: fake("", false), ReadHeaderTimeout: time.Second}}
	srv.Start()
	t.Cleanup(srv.Close)
	if names, err := newClient(t, Options{URL: "unix:" + filepath.Join(dir, "s")}).Names(t.Context()); err != nil || len(names) != 3 {
		t.Errorf("%v, %v", names, err)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	srv := httptest.NewTLSServer(fake("", false))
	t.Cleanup(srv.Close)
	srv.Config.ErrorLog = nil
	root := filepath.Join(t.TempDir(), "root.pem")
	if err := os.WriteFile(root, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := newClient(t, Options{URL: srv.URL}).Names(t.Context()); err == nil || !strings.Contains(err.Error(), "--insecure") {
		t.Errorf("an unknown certificate: %v", err)
	}
	for _, opts := range []Options{{RootFile: root}, {Insecure: true}, {Insecure: true, RootFile: "/nope"}} {
		opts.URL = srv.URL
		if _, err := newClient(t, opts).Names(t.Context()); err != nil {
			t.Errorf("%+v: %v", opts, err)
		}
	}
}

func TestSummary(t *testing.T) {
	t.Parallel()
	ready, loading := Worker{Status: "READY", Memory: 2}, Worker{Status: "UNLOADING"}
	for want, d := range map[string]Description{
		"idle": {}, "serving": {Workers: []Worker{ready}}, "loading": {Workers: []Worker{loading}}, "degraded": {Workers: []Worker{ready, loading}},
		"failed": {State: "failed", Workers: []Worker{ready}},
	} {
		if got := d.Summary(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if d := (Description{Workers: []Worker{ready, ready, loading}}); d.Memory() != 4 || d.Ready() != 2 {
		t.Errorf("memory %d, ready %d", d.Memory(), d.Ready())
	}
}
