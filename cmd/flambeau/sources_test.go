package main

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/internal/fault"
)

func TestShownSetting(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"all": "all",
		"a=http://u:p@ss@h/x.mar?sig=1#sha256=0,b=https://h/y.mar?X-Amz-Signature=2, c.mar": "a=http://h/x.mar?…#sha256=0,b=https://h/y.mar?…, c.mar",
		`{"marName": "x.mar", "url": "http://u@h/x.mar?sig=1"}`:                             `{"marName": "x.mar", "url": "http://h/x.mar?…"}`,
	} {
		if got := shownSetting(config.Value{Key: "load_models", Text: text}); got != want {
			t.Errorf("%s is shown as %s", text, got)
		}
	}
	if got := shownSetting(config.Value{Key: "allowed_urls", Text: "https?://a@b/.*"}); got != "https?://a@b/.*" {
		t.Errorf("allowed_urls is shown as %s", got)
	}
}

// TestSources: the settings decide what may be fetched from a server that only this machine can reach.
func TestSources(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x")) }))
	t.Cleanup(srv.Close)
	fetch := func(t *testing.T, properties, url string, own bool) error {
		t.Helper()
		dir := t.TempDir()
		file := filepath.Join(dir, "config.properties")
		if err := os.WriteFile(file, []byte(properties), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(config.Source{File: file})
		if err != nil {
			t.Fatal(err)
		}
		newOne := newFetcher
		if own {
			newOne = newOwnFetcher
		}
		f, err := newOne(cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		_, _, _, err = f.Fetch(t.Context(), url, dir, nil)
		return err
	}
	const exposed = "management_address=http://0.0.0.0:8081\n"
	for name, tt := range map[string]struct {
		properties, url string
		own             bool
		says            string // "": it works
	}{
		"management for this machine":          {},
		"by the name of localhost":             {properties: "management_address=http://localhost:8081\n"},
		"by a unix socket":                     {properties: "management_address=unix:/tmp/nobody.sock\n"},
		"management for everybody":             {properties: exposed, says: "loopback address"},
		"a network is listed":                  {properties: exposed + "archive_private_networks=127.0.0.0/8\n"},
		"another one is":                       {properties: exposed + "archive_private_networks=10.0.0.0/8\n", says: "loopback address"},
		"the host is listed":                   {properties: exposed + "allowed_urls=http://127.0.0.1:.*\n"},
		"any host is listed":                   {properties: exposed + "allowed_urls=.*\n", says: "loopback address"},
		"by a command":                         {properties: exposed, own: true},
		"the default list holds for stores":    {url: "azblob://b/x.mar?protocol=", says: "for the operator to allow"},
		"written out, too":                     {properties: "allowed_urls=file://.*|http(s)?://.*\n", url: "azblob://b/x.mar?protocol=", says: "for the operator to allow"},
		"a list of one's own is for them also": {properties: "allowed_urls=http://.*\n", url: "gs://b/x.mar", says: "add an expression that matches it to allowed_urls"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := tt.url
			if url == "" {
				url = srv.URL + "/x.mar"
			}
			err := fetch(t, tt.properties, url, tt.own)
			if tt.says == "" && err != nil {
				t.Error(err)
			}
			if f, ok := errors.AsType[*fault.Error](err); tt.says != "" && (!ok || !strings.Contains(f.Hint, tt.says)) {
				t.Errorf("%v", err)
			}
		})
	}
}
