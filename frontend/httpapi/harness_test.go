package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/flambeau-serve/flambeau/internal/infer"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is an API over fakes that listens on its ports.
type fixture struct {
	api       *API
	models    *fakeModels
	predictor *fakePredictor
	metrics   *fakeMetrics
	addr      [ports]string

	mu     sync.Mutex
	access []AccessEntry
}

// serve starts an API with the models echo, ctxinfo, respond, faults and describer.
func serve(t *testing.T, change ...func(*Options)) *fixture {
	t.Helper()
	f := &fixture{models: newFakeModels("echo"), metrics: &fakeMetrics{}}
	f.predictor = &fakePredictor{models: f.models}
	for _, name := range []string{"ctxinfo", "respond", "faults", "describer"} {
		f.models.add(name)
	}
	opts := Options{Predictor: f.predictor, Models: f.models, Metrics: f.metrics, ModelAPI: true, AccessLog: func(e AccessEntry) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.access = append(f.access, e)
	}}
	for _, c := range change {
		c(&opts)
	}
	api, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	f.api = api
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	for port := range ports {
		s, err := api.Listen(t.Context(), "127.0.0.1:0", port, nil)
		if err != nil {
			t.Fatal(err)
		}
		f.addr[port] = s.Addr()
		wg.Go(func() {
			if err := s.Serve(); err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := s.Shutdown(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	return f
}

// items are the requests that reached the predictor.
func (f *fixture) items() []infer.Item {
	f.predictor.mu.Lock()
	defer f.predictor.mu.Unlock()
	return slices.Clone(f.predictor.seen)
}

// last is the latest of them.
func (f *fixture) last(t *testing.T) infer.Item {
	t.Helper()
	all := f.items()
	if len(all) == 0 {
		t.Fatal("no request reached the predictor")
	}
	return all[len(all)-1]
}

type fakeMetrics struct {
	mu       sync.Mutex
	statuses []int
	fail     error
}

func (m *fakeMetrics) WriteText(w io.Writer, names []string) error {
	_, _ = fmt.Fprintf(w, "metrics %v\n", names)
	return m.fail
}

func (m *fakeMetrics) CountUnread(string) {}

func (m *fakeMetrics) CountResponse(status int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.statuses = append(m.statuses, status)
}

// client is a connection that sends bytes as they are.
type client struct {
	t *testing.T
	net.Conn
	seen bytes.Buffer
	br   *bufio.Reader
}

func dial(t *testing.T, addr string) *client {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, Conn: conn}
	c.br = bufio.NewReader(io.TeeReader(conn, &c.seen))
	return c
}

func (c *client) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c.Conn, text); err != nil {
		c.t.Fatal(err)
	}
}

// reply is a response as a client sees it.
type reply struct {
	status int
	header http.Header
	body   string
	closes bool // it has Connection: close
}

// receive reads a response to a request with that method.
func (c *client) receive(method string) reply {
	c.t.Helper()
	res, err := http.ReadResponse(c.br, &http.Request{Method: method})
	if err != nil {
		c.t.Fatalf("reading the answer: %v; so far %q", err, c.seen.String())
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatalf("reading the answer's body: %v", err)
	}
	_ = res.Body.Close()
	return reply{res.StatusCode, res.Header, string(body), res.Close}
}

// ended says whether the server closes the connection. An open one is found out by another request, which it must answer.
func (c *client) ended(r reply) bool {
	c.t.Helper()
	if r.closes {
		if _, err := c.br.ReadByte(); err == nil {
			c.t.Error("something comes after the last answer")
		}
		return true
	}
	if _, err := io.WriteString(c.Conn, "GET / HTTP/1.1\r\n\r\n"); err != nil {
		return true
	}
	res, err := http.ReadResponse(c.br, nil)
	if err != nil {
		return true
	}
	_ = res.Body.Close()
	return false
}

// do sends one request on a connection of its own.
func do(t *testing.T, addr, method, target string, body string, header ...string) reply {
	t.Helper()
	c := dial(t, addr)
	text := method + " " + target + " HTTP/1.1\r\n" + strings.Join(append(append([]string{"Host: h"}, header...), ""), "\r\n")
	if body != "" || method == http.MethodPost || method == http.MethodPut {
		text += fmt.Sprintf("Content-Length: %d\r\n", len(body))
	}
	c.send(text + "\r\n" + body)
	return c.receive(method)
}

var uuidForm = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`)

// golden compares text with a file of testdata.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s (-update rewrites it): %s", path, diff)
	}
}

// readable shows bytes with their line ends as line ends and everything else unseen as escapes.
func readable(b []byte) string {
	text := strings.ReplaceAll(string(b), "\r\n", "\n")
	var out strings.Builder
	for _, r := range []byte(text) {
		if r == '\n' || r >= ' ' && r < 0x7f {
			out.WriteByte(r)
		} else {
			fmt.Fprintf(&out, `\x%02x`, r)
		}
	}
	return uuidForm.ReplaceAllString(out.String(), "<uuid>")
}
