package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// against makes a client of a server, and a recorder that begins now.
func against(t *testing.T, o *options, handler http.HandlerFunc) (*client, *recorder) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	o.addr, o.path, o.limit = server.Listener.Addr().String(), "/", 20*time.Second
	c, err := newClient(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c, &recorder{start: time.Now()}
}

// TestPaceWithoutAnswers sends to a server that answers nothing until everything was sent that was due.
func TestPaceWithoutAnswers(t *testing.T) {
	o := &options{bytes: 10, rate: 200, length: time.Second / 2, patient: 2, most: 1000}
	var begun time.Time
	c, r := against(t, o, func(_ http.ResponseWriter, q *http.Request) {
		select {
		case <-time.After(time.Until(begun.Add(o.length))):
		case <-q.Context().Done():
		}
	})
	begun = r.start
	openLoop(t.Context(), o, c, r)
	if len(r.samples) < 50 || len(r.errors) != 0 {
		t.Fatalf("%d requests, errors %v", len(r.samples), r.errors)
	}
	kinds := map[kind]int{}
	for _, s := range r.samples {
		kinds[s.kind]++
		if s.status != 200 || s.begun < s.due || s.due >= o.length || s.answered < o.length {
			t.Fatalf("%+v", s)
		}
	}
	if d := kinds[attentive] - kinds[patient]; d < -1 || d > 1 {
		t.Errorf("kinds %v", kinds)
	}
}

// TestWhatIsTooMuchIsNotSent has room for one request at a time.
func TestWhatIsTooMuchIsNotSent(t *testing.T) {
	o := &options{rate: 1000, length: time.Second / 10, most: 1}
	c, r := against(t, o, func(http.ResponseWriter, *http.Request) { <-time.After(time.Second / 5) })
	openLoop(t.Context(), o, c, r)
	sent := 0
	for _, s := range r.samples {
		if s.kind != unsent {
			sent++
		}
	}
	if sent != 1 || len(r.samples) < 10 || len(r.errors) == 0 {
		t.Errorf("%d of %d were sent; %v", sent, len(r.samples), r.errors)
	}
}

// TestEarlyAnswers has a server that answers before it has read anything: an attentive client has its answer before its last byte is written, and the next
// request gets a new connection.
func TestEarlyAnswers(t *testing.T) {
	const size = 64 << 20 // more than fits into the buffers of a connection
	for _, how := range []kind{attentive, patient} {
		c, r := against(t, &options{bytes: size}, func(w http.ResponseWriter, q *http.Request) {
			if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
				t.Error(err)
			}
			w.Header().Set("Connection", "close")
			w.Header().Set("Content-Length", "0") // else the answer has no end before its body was read
			w.WriteHeader(http.StatusServiceUnavailable)
			_ = http.NewResponseController(w).Flush()
			_, _ = io.CopyN(io.Discard, q.Body, size) // the client may be gone
		})
		for range 2 {
			c.ask(t.Context(), 0, how, r)
		}
		for _, s := range r.samples {
			if s.status != 503 || s.answered < 0 || how == patient && s.sent < 0 || how == attentive && s.sent >= 0 {
				t.Errorf("%+v", s)
			}
		}
		if len(r.samples) != 2 || len(r.errors) != 0 || len(c.idle) != 0 {
			t.Errorf("%d requests, %d connections, %v", len(r.samples), len(c.idle), r.errors)
		}
	}
}

// TestPhases lets two clients come and one of them go.
func TestPhases(t *testing.T) {
	phases, err := parsePhases("1:100ms,2:200ms,1:100ms")
	if err != nil {
		t.Fatal(err)
	}
	o := &options{bytes: 1, phases: phases}
	c, r := against(t, o, func(http.ResponseWriter, *http.Request) { <-time.After(10 * time.Millisecond) })
	closedLoop(t.Context(), o, c, r)
	if len(r.errors) != 0 || len(c.idle) != 2 {
		t.Fatalf("%v, %d connections", r.errors, len(c.idle))
	}
	together := 0 // moments with two requests: only in the second phase
	for i, s := range r.samples {
		for _, other := range r.samples[i+1:] {
			if s.begun < other.answered && other.begun < s.answered {
				together++
				if min(s.due, other.due) >= 300*time.Millisecond || max(s.due, other.due) < 100*time.Millisecond {
					t.Errorf("two clients at %v and %v", s.due, other.due)
				}
			}
		}
	}
	if together == 0 {
		t.Error("never were there two clients")
	}
	var out strings.Builder
	if err := r.write(&out); err != nil || strings.Count(out.String(), "\n") != len(r.samples)+1 || !strings.HasSuffix(out.String(), ",200,patient\n") {
		t.Errorf("%v %.200s", err, out.String())
	}
}

func TestParsePhases(t *testing.T) {
	got, err := parsePhases("1:10s,64:1m")
	if diff := cmp.Diff([]phase{{1, 10 * time.Second}, {64, time.Minute}}, got, cmp.AllowUnexported(phase{})); err != nil || diff != "" {
		t.Error(err, diff)
	}
	for _, text := range []string{"", "1", "0:1s", "1:x", "a:1s", "1:1s,"} {
		if _, err := parsePhases(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
