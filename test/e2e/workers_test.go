package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// working is a handler that takes 50 ms, tells its process and how many threads it is to use, and hangs or ends when it is asked to.
const working = `import os
import time


class Handler:
    def initialize(self, context):
        self.kept = []

    def handle(self, data, context):
        answers = []
        for row in data:
            body = bytes(row.get("body") or b"").decode()
            if body == "hang":
                time.sleep(3600)
            if body == "abort":
                print("the last words", flush=True)
                os.abort()
            if body == "grow":
                self.kept.append(bytearray(b"x") * (64 << 20))
            time.sleep(0.05)
            answers.append("%d %s" % (os.getpid(), os.environ.get("OMP_NUM_THREADS", "-")))
        return answers
`

// working starts a server with the model w.
func (b *Box) working(t *testing.T, config string, settings map[string]string) *Server {
	t.Helper()
	if err := os.WriteFile(filepath.Join(b.Store, "w.mar"), Archive{Name: "w", Handler: working, Config: config}.Bytes(t), 0o600); err != nil {
		t.Fatal(err)
	}
	s := b.Start(t, Options{Config: settings})
	s.MustAsk(t, http.StatusOK, http.MethodPost, s.Management+"/models?url=w.mar&synchronous=true&initial_workers=1", nil)
	return s
}

// crowd lets clients ask without pause for a time, and gives how many answers there were.
func (s *Server) crowd(t *testing.T, clients int, d time.Duration) int64 {
	t.Helper()
	var all sync.WaitGroup
	var answers atomic.Int64
	for range clients {
		all.Go(func() {
			for end := time.Now().Add(d); time.Now().Before(end); {
				answer, err := s.Ask(t.Context(), http.MethodPost, s.Inference+"/predictions/w", []byte("x"))
				if err != nil || answer.Status != http.StatusOK {
					t.Errorf("%v %d %s", err, answer.Status, answer.Body)
					return
				}
				answers.Add(1)
			}
		})
	}
	all.Wait()
	return answers.Load()
}

// limited says whether this machine's control group has a processor quota.
func limited() bool {
	text, err := os.ReadFile("/sys/fs/cgroup/cpu.max")
	return err != nil || !strings.HasPrefix(string(text), "max")
}

func (s *Server) workersOf(t *testing.T, model string) int {
	t.Helper()
	m, _ := s.Model(t, model, "1.0")
	return m.Workers.Total
}

// TestWorkersFollowTheLoad with real processes: up while requests wait, down after that, to none, and up again for a request. Nothing fails.
func TestWorkersFollowTheLoad(t *testing.T) {
	box := NewBox(t)
	s := box.working(t, "minWorkers: 0\nmaxWorkers: 3\nkeepAlive: 3\n", map[string]string{"autoscale_calm_time": "2", "worker_threads": "share"})
	s.crowd(t, 16, 6*time.Second)
	if n := s.workersOf(t, "w"); n < 2 {
		t.Errorf("16 clients, and %d workers", n)
	}
	if !Eventually(60*time.Second, func() bool { return s.workersOf(t, "w") == 0 }) {
		t.Errorf("nobody asks, and there are %d workers", s.workersOf(t, "w"))
	}
	if !Eventually(10*time.Second, func() bool { return len(box.Workers(t)) == 0 }) {
		t.Errorf("%d processes are left", len(box.Workers(t)))
	}
	answer := s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+"/predictions/w", []byte("x"))
	if _, threads, _ := strings.Cut(string(answer.Body), " "); threads != strconv.Itoa(max(1, runtime.NumCPU()/3)) && !limited() {
		t.Errorf("a worker of 3 is to use %s threads of %d processors", threads, runtime.NumCPU())
	}
	steps := s.Events(t, "model=w&kind=scaled")
	if len(steps) < 4 {
		t.Errorf("the steps are\n%s", Lines(steps))
	}
	for _, e := range steps {
		if e.Who != "autoscale" || !strings.Contains(e.Reason, " → ") {
			t.Errorf("%+v", e)
		}
	}
}

// TestRecycledWorkers are replaced after so many requests, or when they have grown, and nobody notices.
func TestRecycledWorkers(t *testing.T) {
	box := NewBox(t)
	s := box.working(t, "minWorkers: 1\nmaxWorkers: 1\nrecycle:\n  requests: 20\n", nil)
	pid := string(s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+"/predictions/w", []byte("x")).Body)
	s.crowd(t, 2, 4*time.Second)
	if now := string(s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+"/predictions/w", []byte("x")).Body); now == pid {
		t.Errorf("it is %s still", now)
	}
	recycled := s.Events(t, "model=w&kind=recycled")
	if len(recycled) == 0 || !strings.Contains(recycled[0].Reason, "recycle.requests is 20") || recycled[0].Who != "recycle" {
		t.Fatalf("the events are\n%s", Lines(recycled))
	}
	s.Stop(t)
	s = box.working(t, "minWorkers: 1\nmaxWorkers: 1\nrecycle:\n  memoryMb: 200\n", nil)
	for range 4 {
		s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+"/predictions/w", []byte("grow"))
	}
	if !Eventually(30*time.Second, func() bool {
		all := s.Events(t, "model=w&kind=recycled")
		return len(all) > 0 && strings.Contains(all[len(all)-1].Reason, "recycle.memoryMb is 200")
	}) {
		t.Errorf("it may grow: %s", Lines(s.Events(t, "model=w")))
	}
}

// bundle is what the test reads of a crash.
type bundle struct {
	Worker     int    `json:"worker"`
	Generation int    `json:"generation"`
	Restarts   int    `json:"restarts"`
	Reason     string `json:"reason"`
	Signal     string `json:"signal"`
	Requests   []struct {
		Parts []struct{ Name string }
	} `json:"requests"`
	Lines []struct{ Text string } `json:"lines"`
}

func (s *Server) crashes(t *testing.T) []bundle {
	t.Helper()
	var list struct{ Crashes []bundle }
	if err := json.Unmarshal(s.MustAsk(t, http.StatusOK, http.MethodGet, s.Management+"/admin/models/w/crashes", nil).Body, &list); err != nil {
		t.Fatal(err)
	}
	return list.Crashes
}

// TestCrashesAreTold of workers that abort, hang or are stopped: over the API, by the command, and in the events.
func TestCrashesAreTold(t *testing.T) {
	box := NewBox(t)
	s := box.working(t, "minWorkers: 1\nmaxWorkers: 1\nresponseTimeout: 2\n", map[string]string{"heartbeat_timeout": "2"})
	ask := func(body string) {
		t.Helper()
		s.MustAsk(t, http.StatusInternalServerError, http.MethodPost, s.Inference+"/predictions/w", []byte(body))
	}
	serves := func(crashes int) {
		t.Helper()
		if !Eventually(30*time.Second, func() bool {
			m, _ := s.Model(t, "w", "1.0")
			return m.Workers.Ready == 1 && len(s.crashes(t)) >= crashes
		}) {
			t.Fatalf("%d crashes: %+v", crashes, s.crashes(t))
		}
	}
	ask("abort")
	serves(1)
	if c := s.crashes(t)[0]; c.Reason != "crashed" || c.Signal != "SIGABRT" || c.Generation != 1 || len(c.Requests) != 1 || len(c.Lines) == 0 {
		t.Errorf("%+v", c)
	}
	before := len(s.crashes(t))
	ask("hang")
	serves(before + 1)
	if c := s.crashes(t)[0]; c.Reason != "timed_out" || len(c.Requests) != 1 || c.Restarts == 0 {
		t.Errorf("%+v", c)
	}
	for _, pid := range box.Workers(t) {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	serves(before + 2)
	if c := s.crashes(t)[0]; c.Reason != "wedged" {
		t.Errorf("%+v", c)
	}
	if all := s.Events(t, "model=w&kind=worker_failed"); len(all) < 3 || !strings.Contains(all[len(all)-1].Reason, "wedged") {
		t.Errorf("the events are\n%s", Lines(all))
	}
	shown := box.Flambeau(t, "show", "w", "--crashes", "--url", s.Management)
	requireTexts(t, "flambeau show --crashes", shown, []string{"wedged", "timed_out", "killed by signal 6 (aborted)", "the last words", "generation 1"})
}
