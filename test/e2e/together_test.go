package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// packConfigured makes an archive of a handler with a model-config.yaml.
func (b *Box) packConfigured(t *testing.T, name, handler, config string) {
	t.Helper()
	file := filepath.Join(b.Dir, name+".yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	b.Run(t, "torch-model-archiver", "--model-name", name, "--version", "1.0", "--handler", absolute(t, handler), "--config-file", file,
		"--export-path", b.Store, "--force")
}

// startTogether serves testdata/together.py, a handler whose requests run together on one worker.
func startTogether(t *testing.T, config, query string) (*Box, *Server) {
	t.Helper()
	box := NewBox(t)
	box.packConfigured(t, "together", "testdata/together.py", "asyncCommunication: true\n"+config)
	s := box.Start(t, Options{})
	s.MustAsk(t, http.StatusOK, http.MethodPost, s.Management+"/models?url=together.mar&initial_workers=1"+query, nil)
	return box, s
}

func (s *Server) together(t *testing.T, words string) Answer {
	t.Helper()
	answer, err := s.Ask(t.Context(), http.MethodPost, s.Inference+"/predictions/together", []byte(words), "Content-Type", octets)
	if err != nil {
		t.Error(err)
	}
	return answer
}

func (s *Server) mustTogether(t *testing.T, words string) string {
	t.Helper()
	answer := s.together(t, words)
	if answer.Status != http.StatusOK {
		t.Fatalf("%s: status %d: %s", words, answer.Status, answer.Body)
	}
	return string(answer.Body)
}

// meet sends n requests, each of which is answered only when all of them are inside of the handler.
func (s *Server) meet(t *testing.T, n int) {
	t.Helper()
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			answer := s.together(t, fmt.Sprintf("meet:%d", n))
			if answer.Status != http.StatusOK || string(answer.Body) != answer.Header.Get("X-Request-Id") {
				t.Errorf("status %d, request %s: %s", answer.Status, answer.Header.Get("X-Request-Id"), answer.Body)
			}
		})
	}
	all.Wait()
}

// TestCoroutinesRunTogether needs 200 requests inside of one worker's handler at the same time, which is more than TorchServe's queue holds.
func TestCoroutinesRunTogether(t *testing.T) {
	_, s := startTogether(t, "", "")
	s.meet(t, 200)
	if got := s.mustTogether(t, "first seen"); got != "first seen" {
		t.Errorf("a request saw what others did to their contexts: %s", got)
	}
	ticks := func() int {
		n, err := strconv.Atoi(s.mustTogether(t, "ticks"))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if first := ticks(); !Eventually(startLimit, func() bool { return ticks() > first }) {
		t.Error("the handler's own task stands still")
	}
}

func TestCoroutinesRunTogetherInBatches(t *testing.T) {
	_, s := startTogether(t, "", "&batch_size=4&max_batch_delay=20")
	s.meet(t, 32)
}

// open begins a streamed request and gives the rest of its body after a first piece.
func (s *Server) open(t *testing.T, words, first string) io.ReadCloser {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.Inference+"/predictions/together", strings.NewReader(words))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", octets)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	piece := make([]byte, len(first))
	if _, err := io.ReadFull(response.Body, piece); err != nil || string(piece) != first {
		t.Errorf("first piece %q, %v", piece, err)
	}
	return response.Body
}

func rest(t *testing.T, body io.ReadCloser) string {
	t.Helper()
	text, err := io.ReadAll(body)
	if err != nil {
		t.Error(err)
	}
	if err := body.Close(); err != nil {
		t.Error(err)
	}
	return string(text)
}

// TestStreamsOfOneWorkerKeepApart has two streams of one worker open, and ends them in the opposite order.
func TestStreamsOfOneWorkerKeepApart(t *testing.T) {
	_, s := startTogether(t, "", "")
	one, two := s.open(t, "say:one; wait:1 say:more; pid", "one;"), s.open(t, "say:two; wait:2 say:also; pid", "two;")
	pid := s.mustTogether(t, "let:2 pid")
	if got := rest(t, two); got != "also;"+pid {
		t.Errorf("the second stream went on with %q", got)
	}
	s.mustTogether(t, "let:1")
	if got := rest(t, one); got != "more;"+pid {
		t.Errorf("the first stream went on with %q", got)
	}
}

// TestFailureOfACoroutineIsItsOwn lets requests fail in every way while others wait: by an error, by the response timeout, and at last by the death of
// the worker, after which those that were in it are answered by the next one.
func TestFailureOfACoroutineIsItsOwn(t *testing.T) {
	box, s := startTogether(t, "responseTimeout: 2\n", "")
	pid := s.mustTogether(t, "pid")
	if a := s.together(t, "raise:x"); a.Status != http.StatusServiceUnavailable || !strings.Contains(string(a.Body), "Prediction failed") {
		t.Errorf("an error: status %d: %s", a.Status, a.Body)
	}
	late := make(chan Answer, 1)
	go func() { late <- s.together(t, "wait:never") }()
	var got *Answer
	for got == nil { // the worker answers others, so it goes on
		select {
		case a := <-late:
			got = &a
		default:
			if now := s.mustTogether(t, "pid"); now != pid {
				t.Fatalf("the worker is another one now")
			}
		}
	}
	if got.Status != http.StatusInternalServerError || !strings.Contains(string(got.Body), "Worker died.") {
		t.Errorf("the late one: status %d: %s", got.Status, got.Body)
	}
	if now := s.mustTogether(t, "pid"); now != pid {
		t.Errorf("the worker was replaced because of one late request")
	}
	file := filepath.Join(box.Dir, "released")
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if now := s.mustTogether(t, "enter file:"+file+" pid"); now == pid {
				t.Error("a request that had waited was answered by the worker that died")
			}
		})
	}
	if !Eventually(startLimit, func() bool { return s.mustTogether(t, "entered") == "5" }) {
		t.Error("the five did not come in")
	}
	all.Go(func() {
		a := s.together(t, "die")
		if reason := a.Header.Get("X-Flambeau-Reason"); a.Status != http.StatusInternalServerError || reason != "worker_died" {
			t.Errorf("the death: status %d, reason %q: %s", a.Status, reason, a.Body)
		}
	})
	if !Eventually(startLimit, func() bool { return !alive(pid) }) {
		t.Error("the worker goes on")
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil { // those that are tried again need not wait
		t.Fatal(err)
	}
	all.Wait()
}

// alive says whether there is a process of that number.
func alive(pid string) bool {
	_, err := os.Stat("/proc/" + pid)
	return err == nil
}

// TestEndLetsCoroutinesFinish ends the model, and then the server, while requests run.
func TestEndLetsCoroutinesFinish(t *testing.T) {
	box, s := startTogether(t, "", "")
	run := func(file string) <-chan string {
		out := make(chan string, 1)
		body := s.open(t, "say:begun; file:"+file+" pid", "begun;")
		go func() { out <- rest(t, body) }()
		return out
	}
	finish := func(file string, outs ...<-chan string) {
		t.Helper()
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, out := range outs {
			if got := <-out; got == "" {
				t.Error("a request was cut off")
			}
		}
	}
	file := filepath.Join(box.Dir, "first")
	one, two := run(file), run(file)
	gone := make(chan Answer, 1)
	go func() {
		a, err := s.Ask(t.Context(), http.MethodDelete, s.Management+"/models/together", nil)
		if err != nil {
			t.Error(err)
		}
		gone <- a
	}()
	if !Eventually(startLimit, func() bool { return s.together(t, "pid").Status == http.StatusNotFound }) {
		t.Error("the model is still there")
	}
	finish(file, one, two)
	if a := <-gone; a.Status != http.StatusOK {
		t.Errorf("unregister: status %d: %s", a.Status, a.Body)
	}

	s.MustAsk(t, http.StatusOK, http.MethodPost, s.Management+"/models?url=together.mar&initial_workers=1", nil)
	file = filepath.Join(box.Dir, "second")
	three, four := run(file), run(file)
	stopped := make(chan struct{})
	go func() {
		s.Stop(t)
		close(stopped)
	}()
	if !Eventually(startLimit, func() bool { return !s.healthy(t) }) {
		t.Error("the server is still healthy after SIGTERM")
	}
	finish(file, three, four)
	<-stopped
}
