package store

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// backends are the processes that the server has started for models. One that only tells the version of ONNX Runtime, which the check of an archive asks for, is none.
func backends(t *testing.T, box *e2e.Box, s *e2e.Server) []int {
	t.Helper()
	return slices.DeleteFunc(box.Processes(t), func(pid int) bool {
		line := box.CommandLine(pid)
		return pid == s.PID() || !strings.Contains(line, "flambeau-onnx") || strings.Contains(line, "--onnxruntime")
	})
}

// requireAdded waits until the model adds a number.
func requireAdded(t *testing.T, s *e2e.Server, number int) {
	t.Helper()
	last := ""
	if !e2e.Eventually(patience, func() bool {
		a, err := s.Ask(t.Context(), http.MethodPost, s.Inference+predict, []byte("[0]"), "Content-Type", "application/json")
		last = string(a.Body)
		if err != nil || a.Status != http.StatusOK {
			return false
		}
		n, err := added(a.Body)
		return err == nil && n == number
	}) {
		t.Fatalf("the model does not add %d: %s; %s", number, last, e2e.Lines(s.Events(t, "")))
	}
}

// TestONNXReloads unloads and loads one ONNX model again and again. Without it no process of it is left, and in the end the server holds what it held in the beginning.
func TestONNXReloads(t *testing.T) {
	const warm = 3
	reloads := long(t, "FLAMBEAU_RELOADS", 12)
	box := e2e.NewBox(t)
	box.Put(t, model+".onnx", adds(1))
	s := start(t, box, "model_store_settle", "40", "default_workers_per_model", "1")
	requireAdded(t, s, 1)
	reload := func() {
		t.Helper()
		s.MustAsk(t, http.StatusOK, http.MethodDelete, s.Management+"/models/"+model, nil)
		if !e2e.Eventually(patience, func() bool { return len(backends(t, box, s)) == 0 }) {
			t.Fatalf("its processes are still there: %v", backends(t, box, s))
		}
		s.MustAsk(t, http.StatusOK, http.MethodPost, s.Management+"/models?url="+model+".onnx&initial_workers=1&synchronous=true", nil)
		requireAdded(t, s, 1)
	}
	for range warm {
		reload()
	}
	e2e.Pause(t.Context(), time.Second)
	before := s.Resources(t)
	for range reloads {
		reload()
	}
	after := settled(t, s, before)
	t.Logf("%d reloads", reloads)
	requireSame(t, before, after)
	if n := len(backends(t, box, s)); n != 1 {
		t.Errorf("there are %d processes of the model", n)
	}
}

// TestONNXBackendIsKilled kills the backend while it has a request: that one fails, the server stays, tells the cause, and the next ones are answered.
func TestONNXBackendIsKilled(t *testing.T) {
	box := e2e.NewBox(t)
	box.Put(t, model+".onnx", adds(1))
	s := start(t, box, "default_workers_per_model", "1")
	requireAdded(t, s, 1)
	pid, all := s.PID(), backends(t, box, s)
	if len(all) != 1 {
		t.Fatalf("processes %v", all)
	}
	signal := func(n syscall.Signal) {
		t.Helper()
		if err := syscall.Kill(all[0], n); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP) // so that the request is there, and is not answered
	answers := make(chan e2e.Answer, 1)
	failed := make(chan error, 1)
	go func() {
		a, err := s.Ask(t.Context(), http.MethodPost, s.Inference+predict, []byte("[0]"), "Content-Type", "application/json")
		answers <- a
		failed <- err
	}()
	e2e.Pause(t.Context(), time.Second)
	signal(syscall.SIGSEGV)
	signal(syscall.SIGCONT)
	a, err := <-answers, <-failed
	if err != nil || a.Status != http.StatusInternalServerError || !strings.Contains(string(a.Body), "Worker died.") {
		t.Errorf("the request is answered with %d %s, %v", a.Status, a.Body, err)
	}
	requireAdded(t, s, 1)
	if s.PID() != pid {
		t.Error("the server was started again")
	}
	if again := backends(t, box, s); len(again) != 1 || again[0] == all[0] {
		t.Errorf("processes %v, before %v", again, all)
	}
	requireLogged(t, box, "SIGSEGV")
	if text := e2e.Lines(s.Events(t, "")); !strings.Contains(text, "worker_failed") {
		t.Errorf("no event tells of it: %s", text)
	}
}

// requireLogged wants a text in one of the server's log files.
func requireLogged(t *testing.T, box *e2e.Box, want string) {
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
		if strings.Contains(string(text), want) {
			return
		}
	}
	t.Errorf("no log says %q", want)
}
