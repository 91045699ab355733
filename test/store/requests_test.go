package store

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// counting answers with its number and how many requests of the sequence its process has seen; "end" ends the sequence.
const counting = `
class Handler:
    def initialize(self, context):
        self.counts = {}

    def handle(self, data, context):
        answers = []
        for i, row in enumerate(data):
            sequence = context.get_sequence_id(i)
            self.counts[sequence] = self.counts.get(sequence, 0) + 1
            if bytes(row["body"]) == b"end":
                context.set_response_header(i, context.header_key_sequence_end, sequence)
            answers.append(f"%d:{self.counts[sequence]}")
        return answers
`

// TestSequencesStayAcrossSwaps has sequences open while the model is replaced: they stay where their state is until they end, and new ones begin
// with the new version.
func TestSequencesStayAcrossSwaps(t *testing.T) {
	box := e2e.NewBox(t)
	place := func(number int) string {
		t.Helper()
		content := e2e.Archive{Name: model, Handler: fmt.Sprintf(counting, number), Config: "minWorkers: 1\nmaxWorkers: 1\nbatchSize: 4\nmaxBatchDelay: 5\n" +
			"sequenceBatching: true\nsequenceMaxIdleMSec: 60000\nmaxNumSequence: 4\nmaxSequenceJobQueueSize: 10\n"}.Bytes(t)
		box.Put(t, file, content)
		return e2e.Digest(content)
	}
	place(1)
	s := start(t, box)
	ask := func(sequence, body, want string) {
		t.Helper()
		got := s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+predict, []byte(body), "Content-Type", octets, "ts_request_sequence_id", sequence)
		if string(got.Body) != want {
			t.Errorf("sequence %s: answer %s, want %s", sequence, got.Body, want)
		}
	}
	if !e2e.Eventually(patience, func() bool { m, ok := s.Model(t, model, ""); return ok && m.State == "serving" }) {
		t.Fatalf("the model does not serve: %+v", s.Models(t))
	}
	for n := range 3 {
		ask("a", "x", fmt.Sprintf("1:%d", n+1))
		ask("b", "x", fmt.Sprintf("1:%d", n+1))
	}
	digest := place(2)
	if !e2e.Eventually(patience, func() bool { m, ok := s.Model(t, model, ""); return ok && m.Digest == digest && m.State == "serving" }) {
		t.Fatalf("the new version does not serve beside open sequences: %+v %s", s.Models(t), e2e.Lines(s.Events(t, "")))
	}
	ask("a", "x", "1:4")
	ask("c", "x", "2:1")
	ask("b", "x", "1:4")
	digest = place(3) // a third generation beside both
	if !e2e.Eventually(patience, func() bool { m, ok := s.Model(t, model, ""); return ok && m.Digest == digest && m.State == "serving" }) {
		t.Fatalf("the third version does not serve: %+v %s", s.Models(t), e2e.Lines(s.Events(t, "")))
	}
	ask("d", "x", "3:1")
	ask("c", "x", "2:2")
	ask("a", "end", "1:5")
	ask("b", "x", "1:5")
	ask("b", "end", "1:6")
	ask("c", "end", "2:3")
	ask("d", "end", "3:2")
	ask("a", "x", "3:1")
	if !e2e.Eventually(patience, func() bool { return len(box.Workers(t)) == 1 }) {
		t.Errorf("workers %v are left after the old sequences have ended: %s", box.Workers(t), e2e.Lines(s.Events(t, "")))
	}
}

// streaming sends a first piece, and the last one when the file that the body names is there.
const streaming = `
import os
import time

from ts.handler_utils.utils import send_intermediate_predict_response


class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        path = bytes(data[0]["body"]).decode()
        send_intermediate_predict_response(["%d begun;"], context.request_ids, "Intermediate Prediction success", 200, context)
        while path != "x" and not os.path.exists(path):
            time.sleep(0.01)
        return ["%d ended"]
`

// stepping answers each request in many steps, as a continuous batch does: one more while the file that the body names is not there.
const stepping = `
import os
import time


class Handler:
    def initialize(self, context):
        self.known = {}

    def handle(self, data, context):
        answers, over = [], []
        time.sleep(0.01)
        for i, row in enumerate(data):
            request = context.get_request_id(i)
            first = request not in self.known
            path = self.known.setdefault(request, bytes(row.get("body") or b"").decode())
            over.append(not first and (path == "x" or os.path.exists(path)))
            answers.append("%d begun;" if first else "%d ended" if over[-1] else "")
        context.stopping_criteria = [lambda answer, done=done: done for done in over]
        return answers
`

// TestStreamsEndWhereTheyBegan keeps a stream, and a request of a continuous batch, open over a swap.
func TestStreamsEndWhereTheyBegan(t *testing.T) {
	for name, tc := range map[string]struct{ handler, config string }{
		"stream":     {streaming, ""},
		"continuous": {stepping, "continuousBatching: true\nbatchSize: 2\nmaxBatchDelay: 5\n"},
	} {
		t.Run(name, func(t *testing.T) {
			box := e2e.NewBox(t)
			place := func(number int) string {
				t.Helper()
				content := e2e.Archive{Name: model, Config: tc.config, Handler: strings.ReplaceAll(tc.handler, "%d", strconv.Itoa(number))}.Bytes(t)
				box.Put(t, file, content)
				return e2e.Digest(content)
			}
			digest := place(1)
			s := start(t, box)
			s.RequireServing(t, model, digest)
			end := filepath.Join(box.Dir, "end")
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.Inference+predict, strings.NewReader(end))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Content-Type", octets)
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close() //nolint:errcheck // read below
			first := make([]byte, len("1 begun;"))
			if _, err := io.ReadFull(response.Body, first); err != nil || string(first) != "1 begun;" {
				t.Fatalf("first piece %q, %v", first, err)
			}
			digest = place(2)
			if !e2e.Eventually(patience, func() bool { m, ok := s.Model(t, model, ""); return ok && m.Digest == digest && m.State == "serving" }) {
				t.Fatalf("the new version does not serve beside an open stream: %+v %s", s.Models(t), e2e.Lines(s.Events(t, "")))
			}
			if got := answer(t, s, predict); got != "2 begun;2 ended" {
				t.Errorf("a new request is answered %q", got)
			}
			if err := os.WriteFile(end, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if rest, err := io.ReadAll(response.Body); err != nil || string(rest) != "1 ended" {
				t.Errorf("the stream ended with %q, %v", rest, err)
			}
			if !e2e.Eventually(patience, func() bool { return len(box.Workers(t)) == 1 }) {
				t.Errorf("workers %v are left after the stream has ended", box.Workers(t))
			}
		})
	}
}

// TestVersionsUnderLoad scales, changes the default version and unregisters versions while clients send without pause.
func TestVersionsUnderLoad(t *testing.T) {
	box := e2e.NewBox(t)
	for number := 1; number <= 2; number++ {
		a := e2e.Numbered(model, number, "")
		a.Version = strconv.Itoa(number)
		box.Put(t, fmt.Sprintf("m-%d.mar", number), a.Bytes(t))
	}
	s := start(t, box)
	requireAnswer(t, s, predict+"/1", 1)
	requireAnswer(t, s, predict, 2)
	load := s.StartLoad(t, e2e.LoadOptions{Clients: 6, Path: predict})
	admin := s.Management + "/models/" + model
	for _, workers := range []int{3, 1, 2, 1} {
		s.MustAsk(t, http.StatusOK, http.MethodPut, fmt.Sprintf("%s?min_worker=%d&max_worker=%d&synchronous=true", admin, workers, workers), nil)
	}
	// Each default is in force for all that is sent after the answer.
	var marks []struct {
		from, to time.Duration
		number   int
	}
	for i := range 6 {
		number := 1 + i%2
		s.MustAsk(t, http.StatusOK, http.MethodPut, fmt.Sprintf("%s/%d/set-default", admin, number), nil)
		from := load.Now()
		e2e.Pause(t.Context(), 100*time.Millisecond)
		marks = append(marks, struct {
			from, to time.Duration
			number   int
		}{from, load.Now(), number})
	}
	s.MustAsk(t, http.StatusOK, http.MethodDelete, admin+"/1", nil)
	e2e.Pause(t.Context(), 200*time.Millisecond)
	samples := load.Stop()
	e2e.RequireNoFailure(t, samples)
	for _, mark := range marks {
		for _, sample := range samples {
			if sample.Sent > mark.from && sample.Received < mark.to && sample.Number != mark.number {
				t.Errorf("with %d as the default: %+v", mark.number, sample)
				break
			}
		}
	}

	load = s.StartLoad(t, e2e.LoadOptions{Clients: 6, Path: predict, Body: func() string { return "sleep:0.01" }})
	e2e.Pause(t.Context(), 300*time.Millisecond)
	asked := load.Now()
	s.MustAsk(t, http.StatusOK, http.MethodDelete, admin, nil)
	e2e.Pause(t.Context(), 200*time.Millisecond)
	for _, sample := range e2e.Failures(load.Stop()) {
		if sample.Status != http.StatusNotFound || sample.Received < asked {
			t.Errorf("a request beside the end of the model failed in another way than by 404: %+v", sample)
			break
		}
	}
}
