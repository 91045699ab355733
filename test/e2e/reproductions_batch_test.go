package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const oneBad = `def handle(data, ctx):
    if data is None:
        return None
    out = []
    for i, row in enumerate(data):
        n = row["body"]["n"]
        if n < 0:
            ctx.set_response_status(code=422, phrase="negative", idx=i)
            ctx.set_response_header(i, "X-Why", "negative")
        out.append({"n": n, "batch": len(data)})
    return out
`

// TestStatusOfOneRequestInABatch has a handler refuse one of three that come together: the others do not notice.
func TestStatusOfOneRequestInABatch(t *testing.T) {
	box := NewBox(t)
	s := box.serving(t, Options{}, Archive{Name: "m", Handler: oneBad, Config: "batchSize: 4\nmaxBatchDelay: 1000\n"})
	together := 0
	for i, a := range s.atOnce(t, "m", `{"n": 1}`, `{"n": -5}`, `{"n": 3}`) {
		var got struct{ N, Batch int }
		if err := json.Unmarshal(a.Body, &got); err != nil {
			t.Errorf("%v: %s", err, a.Body)
		}
		want, status, why := []int{1, -5, 3}[i], http.StatusOK, ""
		if want < 0 {
			status, why = http.StatusUnprocessableEntity, "negative"
		}
		if got.N != want || a.Status != status || a.Header.Get("X-Why") != why {
			t.Errorf("%d: status %d, X-Why %q: %s", want, a.Status, a.Header.Get("X-Why"), a.Body)
		}
		if got.Batch > 1 {
			together++
		}
	}
	if together < 2 {
		t.Errorf("%d of them were in a batch with others", together)
	}
}

const alwaysOne = `def handle(data, ctx):
    if data is None:
        return None
    return {"0": "one"} if data[0]["body"].get("dict") else ["one"]
`

// TestTooFewResults has a handler answer once for three: all three get the same error, at once, which says how many there were; one alone is answered.
func TestTooFewResults(t *testing.T) {
	box := NewBox(t)
	s := box.serving(t, Options{}, Archive{Name: "m", Handler: alwaysOne, Config: "batchSize: 4\nmaxBatchDelay: 1000\n"})
	three := s.atOnce(t, "m", `{}`, `{}`, `{}`)
	for _, a := range three {
		if a.Status != http.StatusServiceUnavailable || string(a.Body) != string(three[0].Body) || !strings.Contains(string(a.Body), "number of batch response mismatched") {
			t.Errorf("status %d: %s", a.Status, a.Body)
		}
		requireReason(t, a.Answer, "handler_failed", "the handler returned 1 results for a batch of 3 requests")
		if a.took > 10*time.Second {
			t.Errorf("told after %v", a.took)
		}
	}
	if a := s.predict(t, "m", asJSON, `{}`); a.Status != http.StatusOK || string(a.Body) != "one" {
		t.Errorf("one alone: status %d: %s", a.Status, a.Body)
	}
	a := s.predict(t, "m", asJSON, `{"dict": true}`)
	if a.Status != http.StatusServiceUnavailable || !strings.Contains(string(a.Body), "Invalid model predict output") {
		t.Errorf("a dict: status %d: %s", a.Status, a.Body)
	}
	requireReason(t, a.Answer, "handler_failed", "the handler returned a dict; it must return a list")
}

const failing = `import os
from ts.utils.util import PredictionException


def handle(data, ctx):
    if data is None:
        return None
    kind = data[0]["body"]["kind"]
    if kind == "value":
        raise ValueError("db password is hunter2")
    if kind == "pred":
        raise PredictionException("image too small", 422)
    if kind == "mem":
        raise MemoryError()
    return [str(os.getpid())]
`

// TestErrorsOfHandlers has a handler fail in three ways: each has its status, none tells the client what the exception said or ends the worker, and the log has
// the traceback with the model's name and the request's id.
func TestErrorsOfHandlers(t *testing.T) {
	box := NewBox(t)
	s := box.serving(t, Options{}, Archive{Name: "failing", Handler: failing})
	pid := string(s.predict(t, "failing", asJSON, `{"kind": "ok"}`).Body)
	for _, tc := range []struct {
		kind, says, logged string
		status             int
	}{
		{"value", "Prediction failed", "ValueError: db password is hunter2", http.StatusServiceUnavailable},
		{"pred", "image too small", "", http.StatusUnprocessableEntity},
		{"mem", "Out of resources", "MemoryError", http.StatusInsufficientStorage},
	} {
		a := s.predict(t, "failing", asJSON, fmt.Sprintf(`{"kind": %q}`, tc.kind))
		var told struct {
			Code          int
			Type, Message string
		}
		if err := json.Unmarshal(a.Body, &told); err != nil || a.Status != tc.status || told.Code != tc.status || told.Type == "" || told.Message != tc.says {
			t.Errorf("%s: status %d, %v: %s", tc.kind, a.Status, err, a.Body)
		}
		if said := string(a.Body) + fmt.Sprint(a.Header); strings.Contains(said, "hunter2") {
			t.Errorf("%s: the client is told %s", tc.kind, said)
		}
		id := a.Header.Get("X-Request-Id")
		if tc.logged != "" && !Eventually(startLimit, func() bool { return tellsOf(t, box, tc.logged, "failing", id) }) {
			t.Errorf("%s: no record of the log has %q, the model and the request %s", tc.kind, tc.logged, id)
		}
	}
	if a := s.predict(t, "failing", asJSON, `{"kind": "ok"}`); a.Status != http.StatusOK || string(a.Body) != pid {
		t.Errorf("after that: status %d: %s, and the process was %s", a.Status, a.Body, pid)
	}
}

// tellsOf says whether a record of a log file has all the words. Lines that begin with a space go on with the record before them, a traceback for instance.
func tellsOf(t *testing.T, box *Box, words ...string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(box.Dir, "logs", "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		record := ""
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, " ") || strings.HasPrefix(line, "detail:") {
				record += line
			} else {
				record = line
			}
			if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(record, word) }) {
				return true
			}
		}
	}
	return false
}

const batchSizes = `import time


def handle(data, ctx):
    if data is None:
        return None
    for row in data:
        if "mark" in row["body"]:
            open(row["body"]["mark"], "w").close()
        time.sleep(row["body"].get("s", 0))
    return [len(data)] * len(data)
`

// TestWhatALoneRequestPays of the batch delay, by TorchServe's rule and by the default one. The delays are long, so that a busy machine does not matter.
func TestWhatALoneRequestPays(t *testing.T) {
	const delay = 500 * time.Millisecond
	for _, rule := range []string{"torchserve", "adaptive"} {
		t.Run(rule, func(t *testing.T) {
			sized := func(name string, size, delay int) Archive {
				return Archive{Name: name, Handler: batchSizes, Config: fmt.Sprintf("batchSize: %d\nmaxBatchDelay: %d\nbatching: %s\nresponseTimeout: 60\n", size, delay, rule)}
			}
			box := NewBox(t)
			s := box.serving(t, Options{}, sized("lone", 8, 500), sized("full", 8, 30_000), sized("steady", 100, 500), sized("queued", 8, 3000))
			require := func(what string, a timed, size string, from, to time.Duration) {
				t.Helper()
				if a.Status != http.StatusOK || string(a.Body) != size || a.took < from || a.took > to {
					t.Errorf("%s: status %d, a batch of %s after %v; want one of %s after %v to %v", what, a.Status, a.Body, a.took, size, from, to)
				}
			}
			require("one alone", s.predict(t, "lone", asJSON, `{}`), "1", delay, delay+5*time.Second)
			for _, a := range s.atOnce(t, "full", slices.Repeat([]string{`{}`}, 8)...) {
				require("a full batch", a, "8", 0, 15*time.Second)
			}
			s.steadily(t, "steady", 30, 100*time.Millisecond, delay+1500*time.Millisecond)

			running, mark := make(chan timed, 1), filepath.Join(box.Dir, "running")
			go func() { running <- s.predict(t, "queued", asJSON, fmt.Sprintf(`{"s": 4, "mark": %q}`, mark)) }()
			if !Eventually(startLimit, func() bool { return there(mark) }) {
				t.Fatal("the long one does not run")
			}
			three := make(chan []timed, 1)
			go func() { three <- s.atOnce(t, "queued", `{}`, `{}`, `{}`) }()
			require("the one that runs", <-running, "1", 4*time.Second, time.Minute)
			ended := time.Now()
			for _, a := range <-three { // they have waited for 4 s already
				require("one that was queued", a, "3", 3*time.Second, time.Minute)
			}
			if extra := time.Since(ended); extra > 2*time.Second {
				t.Errorf("those that had waited longer than the delay of 3 s were answered %v after the batch before them", extra)
			}
		})
	}
}

// steadily sends a request every so often, whatever has been answered: none may take longer than the limit.
func (s *Server) steadily(t *testing.T, model string, n int, every, limit time.Duration) {
	t.Helper()
	answers := make(chan timed, n)
	for range n {
		go func() { answers <- s.predict(t, model, asJSON, `{}`) }()
		Pause(t.Context(), every)
	}
	for range n {
		if a := <-answers; a.Status != http.StatusOK || a.took > limit {
			t.Errorf("one of many that come steadily: status %d after %v, want at most %v", a.Status, a.took, limit)
		}
	}
}

func there(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
