package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const filling = `def handle(data, ctx):
    if data is None:
        return None
    return [b"x" * int(bytes(data[0]["body"])[:9])]
`

// TestLimitsOfBodies in both directions: what is within them goes through whole, what is over them is refused with the setting's name, and the worker goes on.
func TestLimitsOfBodies(t *testing.T) {
	const mega = 1 << 20
	box := NewBox(t)
	filler := Archive{Name: "filler", Handler: filling}
	body := func(reply, size int) string {
		head := fmt.Sprintf("%09d", reply)
		return head + strings.Repeat("y", size-len(head))
	}
	s := box.serving(t, Options{Config: map[string]string{"max_request_size": strconv.Itoa(30 * mega), "max_response_size": strconv.Itoa(30 * mega)}}, filler)
	restarts := func() int {
		d := s.described(t, "filler")
		return d.restarts()
	}
	if a := s.predict(t, "filler", octets, body(20*mega, 20*mega)); a.Status != http.StatusOK || len(a.Body) != 20*mega || strings.Trim(string(a.Body), "x") != "" {
		t.Errorf("20 MB in both directions: status %d, %d bytes", a.Status, len(a.Body))
	}
	s.requireTooLarge(t, box, body(1, 31*mega))
	a := s.predict(t, "filler", octets, body(31*mega, 20))
	if a.Status != http.StatusInternalServerError || len(a.Body) > mega {
		t.Errorf("an answer of 31 MB: status %d, %d bytes", a.Status, len(a.Body))
	}
	requireReason(t, a.Answer, "response_too_large", "max_response_size")

	// A body in chunks, of which nobody knows the length before, is not kept beyond the limit.
	before := s.Resources(t).Memory
	const size = 600 * mega
	sent := &counting{Reader: io.LimitReader(endless{}, size)}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.Inference+"/predictions/filler", io.NopCloser(sent))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", octets)
	if response, err := http.DefaultClient.Do(request); err == nil { // else the connection was cut while the client still sent
		if response.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("a body in chunks beyond the limit: status %d", response.StatusCode)
		}
		if err := response.Body.Close(); err != nil {
			t.Error(err)
		}
	}
	if after := s.Resources(t).Memory; after > before+size/4 && !RaceBuilt() {
		t.Errorf("the server has %d MB, and had %d before a body of %d MB in chunks that it refused after %d MB", after/mega, before/mega, size/mega, sent.read()/mega)
	}
	if a := s.predict(t, "filler", octets, body(5, 20)); a.Status != http.StatusOK || string(a.Body) != "xxxxx" || restarts() != 0 {
		t.Errorf("after all that: status %d: %s, %d restarts", a.Status, a.Body, restarts())
	}
	s.Stop(t)

	s = box.serving(t, Options{Config: map[string]string{"max_request_size": strconv.Itoa(64 << 10)}}, filler)
	s.requireTooLarge(t, box, body(1, 100<<10))
	if a := s.predict(t, "filler", octets, body(70<<10, 60<<10)); a.Status != http.StatusOK || len(a.Body) != 70<<10 {
		t.Errorf("60 KB, under a limit of 64 KB: status %d, %d bytes", a.Status, len(a.Body))
	}
}

// requireTooLarge sends a body that is over the limit. The answer has TorchServe's empty body; its head says which setting it is about, and the log has it.
func (s *Server) requireTooLarge(t *testing.T, box *Box, body string) {
	t.Helper()
	a := s.predict(t, "filler", octets, body)
	if a.Status != http.StatusRequestEntityTooLarge || len(a.Body) > 0 || !strings.Contains(a.Header.Get("X-Flambeau-Setting"), "max_request_size") {
		t.Errorf("a body of %d bytes: status %d, %v: %s", len(body), a.Status, a.Header, a.Body)
	}
	requireReason(t, a.Answer, "too_large", "max_request_size")
	if !Eventually(startLimit, func() bool { return tellsOf(t, box, "/predictions/filler", " 413 ") }) {
		t.Error("the log does not have it")
	}
}

// endless gives the letter 1 for ever.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '1'
	}
	return len(p), nil
}

// counting counts what is read; it is safe for concurrent use.
type counting struct {
	io.Reader

	mu sync.Mutex // guards n
	n  int
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += n
	return n, err
}

func (c *counting) read() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// TestServerIsAskedToEnd by SIGTERM, and by the interrupt that a terminal sends to every process of its foreground: at once it is not ready and takes nothing more, what was sent before
// is answered, and it ends with status 0 and leaves nothing.
func TestServerIsAskedToEnd(t *testing.T) {
	for _, tc := range []struct {
		name  string
		ask   func(pid int) error
		group bool
	}{
		{"SIGTERM", func(pid int) error { return syscall.Kill(pid, syscall.SIGTERM) }, false},
		{"Ctrl-C", func(pid int) error { return syscall.Kill(-pid, syscall.SIGINT) }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			box := NewBox(t)
			options := Options{Config: map[string]string{"shutdown_timeout": "60"}}
			if tc.group {
				options.Wrap = []string{"setsid"} // its own group, as a terminal's foreground is
			}
			s := box.serving(t, options, Archive{Name: "sleepy", Handler: sleepy})
			answers := make(chan timed, 3)
			for range cap(answers) {
				go func() { answers <- s.predict(t, "sleepy", asJSON, `{"s": 2}`) }()
			}
			if !Eventually(startLimit, func() bool { return s.described(t, "sleepy").JobQueueStatus.PendingRequests == cap(answers)-1 }) {
				t.Fatal("the requests did not arrive")
			}
			if err := tc.ask(s.PID()); err != nil {
				t.Fatal(err)
			}
			if !Eventually(startLimit, func() bool { return !s.healthy(t) }) || len(answers) == cap(answers) {
				t.Error("it is not unready before it has answered")
			}
			refused, err := s.Ask(t.Context(), http.MethodPost, s.Inference+"/predictions/sleepy", []byte(`{}`), "Content-Type", asJSON)
			if err == nil && (refused.Status != http.StatusServiceUnavailable || refused.Header.Get("X-Flambeau-Reason") != "draining") {
				t.Errorf("one that comes now: status %d: %s", refused.Status, refused.Body)
			}
			for range cap(answers) {
				if a := <-answers; a.Status != http.StatusOK {
					t.Errorf("one that was there: status %d: %s", a.Status, a.Body)
				}
			}
			begun := time.Now()
			if status := s.exitStatus(t); status != 0 {
				t.Errorf("exit status %d", status)
			}
			if took := time.Since(begun); took > 20*time.Second {
				t.Errorf("it ended %v after the last answer", took)
			}
			box.RequireNothingLeft(t)
		})
	}
}

// TestEndIsBounded asks a server to end while a request runs that takes longer than it may take.
func TestEndIsBounded(t *testing.T) {
	const limit = 5 * time.Second
	box := NewBox(t)
	s := box.serving(t, Options{Config: map[string]string{"shutdown_timeout": "5"}}, Archive{Name: "sleepy", Handler: sleepy})
	mark, cut := filepath.Join(box.Dir, "running"), make(chan Answer, 1)
	go func() {
		answer, err := s.Ask(t.Context(), http.MethodPost, s.Inference+"/predictions/sleepy", []byte(fmt.Sprintf(`{"s": 60, "mark": %q}`, mark)), "Content-Type", asJSON)
		if err != nil { // the connection was closed
			answer = Answer{}
		}
		cut <- answer
	}()
	if !Eventually(startLimit, func() bool { return there(mark) }) {
		t.Fatal("the request does not run")
	}
	begun := time.Now()
	s.signal(t, syscall.SIGTERM)
	if status := s.exitStatus(t); status != 1 || !strings.Contains(s.Output(), "requests were cut off: 1") {
		t.Errorf("exit status %d, and no word of what was cut off", status)
	}
	if took := time.Since(begun); took > limit+15*time.Second {
		t.Errorf("it ended after %v, the limit is %v", took, limit)
	}
	if a := <-cut; a.Status == http.StatusOK {
		t.Errorf("a request of a minute was answered: %s", a.Body)
	}
	box.RequireNothingLeft(t)
}

const working2s = `import os
import time


def handle(data, ctx):
    if data is None:
        return None
    time.sleep(2)
    with open(os.environ["E2E_CALLS"], "a") as calls:
        calls.write("done\n")
    return ["ok"] * len(data)
`

// TestRunningWorkBeforeUnregistering and before workers are taken away has two requests that run and two that wait: all of them are answered, and the
// answer to the removal comes after that.
func TestRunningWorkBeforeUnregistering(t *testing.T) {
	for _, tc := range []struct {
		name, method, path string
		before             int // of the four, how many have to be done when the removal is answered
	}{
		{"unregister", http.MethodDelete, "/models/m", 4},
		{"scale down", http.MethodPut, "/models/m?min_worker=1&max_worker=1&synchronous=true", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			box := NewBox(t)
			calls := filepath.Join(box.Dir, "calls")
			s := box.serving(t, Options{Env: []string{"E2E_CALLS=" + calls}}, Archive{Name: "m", Handler: working2s})
			s.MustAsk(t, http.StatusOK, http.MethodPut, s.Management+"/models/m?min_worker=2&max_worker=2&synchronous=true", nil)
			answers := make(chan timed, 4)
			for range cap(answers) {
				go func() { answers <- s.predict(t, "m", octets, "x") }()
			}
			if !Eventually(startLimit, func() bool { return s.described(t, "m").JobQueueStatus.PendingRequests == cap(answers)-2 }) {
				t.Fatal("the requests did not arrive")
			}
			s.MustAsk(t, http.StatusOK, tc.method, s.Management+tc.path, nil)
			done, err := os.ReadFile(calls)
			if err != nil || bytes.Count(done, []byte("done")) < tc.before {
				t.Errorf("the removal was answered when %q was done (%v), want %d", done, err, tc.before)
			}
			for range cap(answers) {
				if a := <-answers; a.Status != http.StatusOK {
					t.Errorf("status %d: %s", a.Status, a.Body)
				}
			}
		})
	}
}
