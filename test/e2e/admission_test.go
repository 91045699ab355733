package e2e

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// patientHandler sleeps for as many seconds as it is sent, notes each request in a file, and tells how much time was left.
const patientHandler = `import os, time


def handle(data, context):
    if data is None:
        return None
    answers = []
    for index, row in enumerate(data):
        with open(os.environ["E2E_CALLS"], "a") as calls:
            calls.write("call\n")
        left = context.get_time_left(index)
        time.sleep(float(row.get("body") or row.get("data")))
        answers.append(str(left))
    return answers
`

// startPatient starts a server with a model of one worker and the given settings, and gives what counts the calls of its handler.
func startPatient(t *testing.T, settings string) (box *Box, s *Server, calls func() int) {
	t.Helper()
	box = NewBox(t)
	file := filepath.Join(box.Dir, "calls")
	s = box.Start(t, Options{Env: []string{"E2E_CALLS=" + file}, Config: map[string]string{"metrics_mode": "prometheus"}})
	box.packWith(t, "patient", patientHandler, "", "--config-file", settings)
	s.MustAsk(t, http.StatusOK, http.MethodPost, s.Management+"/models?url=patient.mar&initial_workers=1&synchronous=true", nil)
	return box, s, func() int {
		text, err := os.ReadFile(file)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.Count(string(text), "call")
	}
}

func (s *Server) sleep(ctx context.Context, seconds string, header ...string) (Answer, error) {
	return s.Ask(ctx, http.MethodPost, s.Inference+"/predictions/patient", []byte(seconds), header...)
}

// TestAFullQueueSaysWhy sends twelve requests at once to a queue of four, each of which takes 0.7 s.
func TestAFullQueueSaysWhy(t *testing.T) {
	box, s, calls := startPatient(t, "minWorkers: 1\nmaxWorkers: 1\nbatchSize: 1\njobQueueSize: 4\n")
	if _, err := s.sleep(t.Context(), "0.7"); err != nil { // so that it knows how long they take
		t.Fatal(err)
	}
	const clients = 12
	type told struct {
		Answer

		took time.Duration
	}
	answers := make(chan told, clients)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			begun := time.Now()
			answer, err := s.sleep(t.Context(), "0.7")
			if err != nil {
				t.Error(err)
			}
			answers <- told{answer, time.Since(begun)}
		})
	}
	all.Wait()
	close(answers)
	good, refused := 0, 0
	for a := range answers {
		switch a.Status {
		case http.StatusOK:
			good++
		case http.StatusServiceUnavailable:
			refused++
			h := a.Header
			if h.Get("X-Flambeau-Reason") != "queue_full" || h.Get("Retry-After") != "1" || !strings.Contains(h.Get("X-Flambeau-Hint"), "queue is full: 4 of 4") ||
				!strings.Contains(h.Get("X-Flambeau-Setting"), "jobQueueSize") {
				t.Errorf("a refusal: %v", h)
			}
			for _, number := range []string{"waiting=4", "limit=4", "workers_ready=1", "workers_total=1", "mean_service_ms=7", "retry_after_ms="} {
				if !strings.Contains(h.Get("X-Flambeau-Numbers"), number) {
					t.Errorf("%s is not among the numbers: %s", number, h.Get("X-Flambeau-Numbers"))
				}
			}
			if a.took > 500*time.Millisecond { // on a machine that is busy with starting twelve clients
				t.Errorf("refused after %v", a.took)
			}
		default:
			t.Errorf("status %d: %s", a.Status, a.Body)
		}
	}
	if good != 5 || refused != 7 || calls() != 6 {
		t.Errorf("%d answered, %d refused, %d calls; want 5, 7 and 6", good, refused, calls())
	}
	metrics := string(s.MustAsk(t, http.StatusOK, http.MethodGet, s.Metrics+"/metrics?name[]=flambeau_request_failures_total", nil).Body)
	if !strings.Contains(metrics, `model="patient",version="1.0",reason="queue_full",} 7.0`) {
		t.Error(metrics)
	}
	requireTexts(t, "flambeau ps", box.Run(t, "flambeau", "ps", "--url", s.Management), []string{"refused 7 lately", "queue_full"})
	requireTexts(t, "flambeau show", box.Run(t, "flambeau", "show", "patient", "--url", s.Management), []string{"refused lately", "queue_full"})
}

// TestWorkThatNobodyWaitsFor has clients leave, and others run out of time, while they wait for a worker.
func TestWorkThatNobodyWaitsFor(t *testing.T) {
	_, s, calls := startPatient(t, "minWorkers: 1\nmaxWorkers: 1\nbatchSize: 4\nmaxBatchDelay: 10\njobQueueSize: 1000\n")
	answer, err := s.sleep(t.Context(), "0", "X-Request-Timeout", "5.5")
	left, wrong := strconv.ParseFloat(string(answer.Body), 64)
	if err != nil || wrong != nil || left <= 0 || left > 5.5 {
		t.Fatalf("the handler had %q seconds left (%v)", answer.Body, err)
	}
	for _, value := range []string{"0", "soon", "-1"} {
		answer, err := s.sleep(t.Context(), "0", "X-Request-Timeout", value)
		if err != nil || answer.Status != http.StatusBadRequest || answer.Header.Get("X-Flambeau-Hint") == "" {
			t.Errorf("X-Request-Timeout: %s: %d %v %v", value, answer.Status, answer.Header, err)
		}
	}
	before := calls()
	var busy, all sync.WaitGroup
	busy.Go(func() {
		if answer, err := s.sleep(t.Context(), "4"); err != nil || answer.Status != http.StatusOK {
			t.Errorf("the one that runs: %v %v", answer.Status, err)
		}
	})
	if !Eventually(startLimit, func() bool { return calls() == before+1 }) {
		t.Fatal("nothing runs")
	}
	ctx, leave := context.WithCancel(t.Context())
	var late atomic.Int64
	for range 100 {
		all.Go(func() {
			if _, err := s.sleep(ctx, "0"); err == nil {
				t.Error("a client that left has an answer")
			}
		})
	}
	for range 20 {
		all.Go(func() {
			answer, err := s.sleep(t.Context(), "0", "X-Request-Timeout", "0.5")
			if err == nil && answer.Status == http.StatusGatewayTimeout && answer.Header.Get("X-Flambeau-Reason") == "queue_timeout" &&
				strings.Contains(answer.Header.Get("X-Flambeau-Numbers"), "timeout_ms=500") {
				late.Add(1)
				return
			}
			t.Errorf("one that is out of time: %d %v %v", answer.Status, answer.Header, err)
		})
	}
	time.AfterFunc(time.Second, leave)
	all.Wait()
	busy.Wait()
	if answer, err := s.sleep(t.Context(), "0"); err != nil || answer.Status != http.StatusOK || string(answer.Body) == "" {
		t.Errorf("after all that: %d %v", answer.Status, err)
	}
	if got := calls() - before; late.Load() != 20 || got != 2 {
		t.Errorf("%d were told that they were late, and the handler had %d requests; want 20, and the one that ran and the last one", late.Load(), got)
	}
}
