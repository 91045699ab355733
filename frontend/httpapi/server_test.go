package httpapi

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func newAPI(t *testing.T) *API {
	t.Helper()
	models := newFakeModels("echo")
	api, err := New(Options{Predictor: &fakePredictor{models: models}, Models: models})
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// start serves until the test ends.
func start(t *testing.T, s *Server) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Serve(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}

func TestNewNeedsItsParts(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Error("no error without a Predictor and Models")
	}
}

func TestUnixSocket(t *testing.T) {
	api := newAPI(t)
	path := filepath.Join(t.TempDir(), "s")
	old, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := api.Listen(t.Context(), "unix:"+path, Inference, nil); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a socket that is in use was taken: %v", err)
	}
	if socket, ok := old.(*net.UnixListener); ok {
		socket.SetUnlinkOnClose(false)
	}
	_ = old.Close()
	s, err := api.Listen(t.Context(), "unix:"+path, Inference, nil) // the dead one's file is in the way
	if err != nil {
		t.Fatal(err)
	}
	start(t, s)
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://h/ping", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := hc.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if body, _ := io.ReadAll(res.Body); res.StatusCode != statusOK || !strings.Contains(string(body), "Healthy") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	if s.Addr() != path {
		t.Errorf("address %q", s.Addr())
	}
}

func TestFileThatIsNoSocketStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := newAPI(t).Listen(t.Context(), "unix:"+path, Inference, nil); err == nil {
		t.Error("listens on a file")
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "mine" {
		t.Errorf("the file is gone: %v", err)
	}
}

func TestTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"h"}}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}
	s, err := newAPI(t).Listen(t.Context(), "127.0.0.1:0", Inference, config)
	if err != nil {
		t.Fatal(err)
	}
	start(t, s)
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}}} //nolint:gosec // the test's own server
	conn, err := dialer.DialContext(t.Context(), "tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if secure, ok := conn.(*tls.Conn); !ok || secure.ConnectionState().NegotiatedProtocol != "http/1.1" {
		t.Errorf("speaks something else: %v", ok)
	}
	if _, err := io.WriteString(conn, "GET /predictions/nope HTTP/1.1\r\nX: y\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(conn)
	if err != nil || !strings.Contains(string(text), "Model not found: nope") {
		t.Errorf("%v %s", err, text)
	}
	if config.NextProtos != nil {
		t.Error("the caller's configuration was changed")
	}
}

func TestShutdownWaitsForAnswers(t *testing.T) {
	models := newFakeModels("echo")
	f := &fixture{models: models, predictor: &fakePredictor{models: models}}
	started, release := blocking(f)
	api, err := New(Options{Predictor: f.predictor, Models: models})
	if err != nil {
		t.Fatal(err)
	}
	s, err := api.Listen(t.Context(), "127.0.0.1:0", Inference, nil)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	busy, idle := dial(t, s.Addr()), dial(t, s.Addr())
	idle.send("GET /ping HTTP/1.1\r\n\r\n")
	idle.receive("GET")
	busy.send("POST /predictions/echo HTTP/1.1\r\nContent-Length: 1\r\n\r\nx")
	<-started

	down := make(chan error, 1)
	go func() { down <- s.Shutdown(context.Background()) }()
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if _, err := idle.br.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("an idle connection stays open: %v", err)
	}
	select {
	case err := <-down:
		t.Fatalf("Shutdown did not wait: %v", err)
	default:
	}
	close(release)
	if r := busy.receive("POST"); r.status != 200 || r.body != "done" || !busy.ended(r) {
		t.Errorf("%+v", r)
	}
	if err := <-down; err != nil {
		t.Error(err)
	}
}

func TestShutdownDoesNotWaitForever(t *testing.T) {
	models := newFakeModels("echo")
	f := &fixture{models: models, predictor: &fakePredictor{models: models}}
	started, _ := blocking(f)
	api, err := New(Options{Predictor: f.predictor, Models: models})
	if err != nil {
		t.Fatal(err)
	}
	s, err := api.Listen(t.Context(), "127.0.0.1:0", Inference, nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve() }()
	c := dial(t, s.Addr())
	c.send("POST /predictions/echo HTTP/1.1\r\nContent-Length: 1\r\n\r\nx")
	<-started
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), s.Addr()) {
		t.Errorf("got %v", err)
	}
}

// TestPlainHandler uses the handlers without a listener of ours: names are as net/http leaves them, the rest works.
func TestPlainHandler(t *testing.T) {
	api := newAPI(t)
	for _, tc := range []struct {
		handler http.Handler
		target  string
		has     string
	}{
		{api.Inference(), "/predictions/echo", `"latin1": "x"`},
		{api.Management(), "/models", "PUT"},
		{api.Metrics(), "/", "MethodNotAllowed"},
		{api.Joint(), "/ping", "Healthy"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, tc.target, strings.NewReader("x"))
		w := httptest.NewRecorder()
		tc.handler.ServeHTTP(w, r)
		if tc.has != "PUT" && !strings.Contains(w.Body.String(), tc.has) {
			t.Errorf("%s: %d %s", tc.target, w.Code, w.Body)
		}
	}
}

func TestPortNames(t *testing.T) {
	for port, want := range map[Port]string{Inference: "inference", Management: "management", MetricsPort: "metrics", Joint: "joint"} {
		if port.String() != want {
			t.Errorf("%d is %q", port, port)
		}
	}
}

func TestAccessLine(t *testing.T) {
	e := AccessEntry{
		Took: 1234 * time.Microsecond, Peer: "127.0.0.1:5", Method: "GET", Target: "/a?b=\"c\"\n\x00é", Version: "HTTP/1.1", Status: 200,
	}
	if got, want := e.Line(), `/127.0.0.1:5 "GET /a?b=\"c\"\n\x00é HTTP/1.1" 200 1`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
