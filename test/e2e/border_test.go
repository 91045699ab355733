package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// digest is the answer of testdata/digest.py.
type digest struct {
	SHA   string `json:"sha"`
	ID    string `json:"id"`
	Batch int    `json:"batch"`
	Size  int    `json:"size"`
}

// TestEveryAnswerBelongsToItsRequest lets 20 clients send 10,000 requests to batches of 4, and checks each answer against its own request.
func TestEveryAnswerBelongsToItsRequest(t *testing.T) {
	const clients, requests = 20, 10_000
	box := NewBox(t)
	box.Pack(t, "digest", "testdata/digest.py")
	s := box.Start(t, Options{})
	s.MustAsk(t, http.StatusOK, http.MethodPost, s.Management+"/models?url=digest.mar&batch_size=4&max_batch_delay=5&initial_workers=2", nil)
	var sizes [5]atomic.Int64
	var left atomic.Int64
	left.Store(requests)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for n := left.Add(-1); n >= 0; n = left.Add(-1) {
				if size := s.askDigest(t, n); size > 0 && size < len(sizes) {
					sizes[size].Add(1)
				}
			}
		})
	}
	all.Wait()
	if sizes[4].Load() == 0 {
		t.Error("no request was ever in a batch of 4")
	}
	t.Logf("requests by the size of their batch: 1: %d, 2: %d, 3: %d, 4: %d", sizes[1].Load(), sizes[2].Load(), sizes[3].Load(), sizes[4].Load())
}

// askDigest sends the n-th request and gives the size of its batch, 0 if something was wrong.
func (s *Server) askDigest(t *testing.T, n int64) int {
	t.Helper()
	mine := strconv.FormatInt(n, 10)
	body := []byte(strings.Repeat(mine+"-", int(n%97)+1))
	answer, err := s.Ask(t.Context(), http.MethodPost, s.Inference+"/predictions/digest", body, "X-Mine", mine, "Content-Type", octets)
	if err != nil {
		t.Error(err)
		return 0
	}
	var got digest
	if err := json.Unmarshal(answer.Body, &got); err != nil || answer.Status != http.StatusOK {
		t.Errorf("request %d: status %d: %s", n, answer.Status, answer.Body)
		return 0
	}
	sum := sha256.Sum256(body)
	if got.SHA != hex.EncodeToString(sum[:]) || got.ID != answer.Header.Get("X-Request-Id") || answer.Header.Get("X-Saw") != mine {
		t.Errorf("request %d got another one's answer: %+v, header %q", n, got, answer.Header.Get("X-Saw"))
	}
	if got.Size != 4 || got.Batch > 4 {
		t.Errorf("request %d: a batch of %d, configured %d", n, got.Batch, got.Size)
	}
	return got.Batch
}

// startRogue serves testdata/rogue.py.
func startRogue(t *testing.T, settings ...string) (*Box, *Server) {
	t.Helper()
	box := NewBox(t)
	box.Pack(t, "rogue", "testdata/rogue.py")
	s := box.Start(t, Options{})
	s.MustAsk(t, http.StatusOK, http.MethodPost, s.Management+"/models?url=rogue.mar&"+strings.Join(settings, "&"), nil)
	return box, s
}

func (s *Server) tell(ctx context.Context, what string) (Answer, error) {
	return s.Ask(ctx, http.MethodPost, s.Inference+"/predictions/rogue", []byte(what), "Content-Type", octets)
}

func (s *Server) mustTell(t *testing.T, what string) string {
	t.Helper()
	return string(s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+"/predictions/rogue", []byte(what), "Content-Type", octets).Body)
}

// TestKilledWorkerCostsItsOwnBatchOnly kills a worker under load: what it had fails at once, everything else is answered, and a new worker is
// there without help.
func TestKilledWorkerCostsItsOwnBatchOnly(t *testing.T) {
	_, s := startRogue(t, "initial_workers=1")
	const queued = 8
	statuses := make(chan int, queued+1)
	var all sync.WaitGroup
	send := func() {
		answer, err := s.tell(t.Context(), "sleep:0.2")
		if err != nil {
			t.Error(err)
		}
		statuses <- answer.Status
	}
	pid, err := strconv.Atoi(s.mustTell(t, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	for range queued {
		all.Go(send)
	}
	if !Eventually(startLimit, func() bool { return s.pending(t) >= queued-2 }) {
		t.Fatal("the requests did not queue up")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	close(statuses)
	count := map[int]int{}
	for status := range statuses {
		count[status]++
	}
	// TorchServe takes a SIGKILL that it did not send for the out-of-memory killer's, and says 507.
	if count[http.StatusInsufficientStorage] > 1 || count[http.StatusOK]+count[http.StatusInsufficientStorage] != queued {
		t.Errorf("answers by status: %v; want one 507 at most, and 200 for the rest", count)
	}
	if now := s.mustTell(t, "pid"); now == strconv.Itoa(pid) {
		t.Error("the killed worker still answers")
	}
}

// pending is the number of requests that wait for the rogue model.
func (s *Server) pending(t *testing.T) int {
	t.Helper()
	var described []struct {
		JobQueueStatus struct {
			PendingRequests int `json:"pendingRequests"`
		} `json:"jobQueueStatus"`
	}
	answer := s.MustAsk(t, http.StatusOK, http.MethodGet, s.Management+"/models/rogue", nil)
	if err := json.Unmarshal(answer.Body, &described); err != nil || len(described) != 1 {
		t.Fatalf("description: %v: %s", err, answer.Body)
	}
	return described[0].JobQueueStatus.PendingRequests
}

// TestKilledServerLeavesNoProcess kills the server while one worker loops for ever beside a child of its own, and another one sleeps.
func TestKilledServerLeavesNoProcess(t *testing.T) {
	box, s := startRogue(t, "initial_workers=2")
	ctx, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for _, what := range []string{"loop:", "sleep:1000"} {
		all.Go(func() { _, _ = s.tell(ctx, what) }) // it fails when the server dies
	}
	busy := func() bool {
		var sleeping bool
		for _, pid := range box.Processes(t) {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // the process may be gone
			sleeping = sleeping || string(name) == "sleep\n"
		}
		return sleeping
	}
	if !Eventually(startLimit, busy) {
		t.Fatal("the handler did not start its child")
	}
	s.Kill(t)
	if !Eventually(2*time.Second, func() bool { return len(box.Processes(t)) == 0 }) {
		t.Errorf("processes %v outlive the server by more than 2 s", box.Processes(t))
	}
	leave()
	all.Wait()
	// The next server in the same folders clears away what the killed one could not.
	box.Start(t, Options{}).Stop(t)
}

// TestResponseTimeout has a request that takes too long: it fails in time, and the next one is answered by a new worker.
func TestResponseTimeout(t *testing.T) {
	_, s := startRogue(t, "initial_workers=1", "response_timeout=1")
	first := s.mustTell(t, "pid")
	s.MustAsk(t, http.StatusInternalServerError, http.MethodPost, s.Inference+"/predictions/rogue", []byte("loop:"), "Content-Type", octets)
	if second := s.mustTell(t, "pid"); second == first {
		t.Error("the worker that hangs was not replaced")
	}
}

// TestHandlerThatForks uses a pool of processes inside the handler, under load.
func TestHandlerThatForks(t *testing.T) {
	_, s := startRogue(t, "initial_workers=2")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 5 {
				answer, err := s.tell(t.Context(), "fork:5")
				if err != nil || strings.Join(strings.Fields(string(answer.Body)), "") != `{"doubled":[0,2,4,6,8]}` {
					t.Errorf("%d %s, %v", answer.Status, answer.Body, err)
				}
			}
		})
	}
	all.Wait()
}

// TestHandlersOutputIsInTheLog finds everything that a handler writes in model_log.log, with the model's name and the request's id.
func TestHandlersOutputIsInTheLog(t *testing.T) {
	box, s := startRogue(t, "initial_workers=1")
	answer, err := s.tell(t.Context(), "shout:out")
	if err != nil {
		t.Fatal(err)
	}
	id := answer.Header.Get("X-Request-Id")
	var text string
	found := func() bool {
		content, err := os.ReadFile(filepath.Join(box.Dir, "logs", "model_log.log"))
		if err != nil {
			return false
		}
		text = string(content)
		for _, want := range []string{"printed out", "warned out", "raw out"} {
			line, ok := lineWith(text, want)
			if !ok || !strings.Contains(line, "rogue") || !strings.Contains(line, id) {
				return false
			}
		}
		return strings.Contains(text, "rogue is loading")
	}
	if !Eventually(startLimit, found) {
		t.Errorf("the log does not have all lines with model and request id %s:\n%s", id, text)
	}
}

func lineWith(text, what string) (string, bool) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, what) {
			return line, true
		}
	}
	return "", false
}

// TestSIGTERMAnswersWhatRuns stops the server while requests run and wait: all are answered, then it ends with status 0.
func TestSIGTERMAnswersWhatRuns(t *testing.T) {
	_, s := startRogue(t, "initial_workers=1")
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			answer, err := s.tell(t.Context(), "sleep:0.5")
			if err != nil || answer.Status != http.StatusOK {
				t.Errorf("status %d, %v", answer.Status, err)
			}
		})
	}
	if !Eventually(startLimit, func() bool { return s.pending(t) == 2 }) {
		t.Fatal("the requests did not arrive")
	}
	s.Stop(t)
	all.Wait()
}

// TestUnregisterAndScaleDownLoseNothing removes workers and then the model while requests run and wait.
func TestUnregisterAndScaleDownLoseNothing(t *testing.T) {
	for _, tc := range []struct{ name, method, path string }{
		{"scale down", http.MethodPut, "/models/rogue?min_worker=1&synchronous=true"},
		{"unregister", http.MethodDelete, "/models/rogue"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, s := startRogue(t, "initial_workers=2")
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					answer, err := s.tell(t.Context(), "sleep:0.5")
					if err != nil || answer.Status != http.StatusOK {
						t.Errorf("status %d, %v: %s", answer.Status, err, answer.Body)
					}
				})
			}
			if !Eventually(startLimit, func() bool { return s.pending(t) == 2 }) {
				t.Fatal("the requests did not arrive")
			}
			s.MustAsk(t, http.StatusOK, tc.method, s.Management+tc.path, nil)
			all.Wait()
		})
	}
}
