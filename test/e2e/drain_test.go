package e2e

import (
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestDrainTakesRequestsForAWhile asks a server to end that has drain_accept_for: it is not ready at once, still answers, and ends with status 0.
func TestDrainTakesRequestsForAWhile(t *testing.T) {
	_, s := startRogueWith(t, "initial_workers=1", map[string]string{"drain_accept_for": "4", "shutdown_timeout": "20"})
	var all sync.WaitGroup
	all.Go(func() {
		if answer, err := s.tell(t.Context(), "sleep:1"); err != nil || answer.Status != http.StatusOK {
			t.Errorf("before the signal: status %d, %v", answer.Status, err)
		}
	})
	if !Eventually(startLimit, func() bool { return s.drained(t).Requests == 1 }) {
		t.Fatal("the request did not arrive")
	}
	s.signal(t, syscall.SIGTERM)
	if !Eventually(startLimit, func() bool { return !s.healthy(t) }) {
		t.Fatal("the server is still healthy after SIGTERM")
	}
	if s.ended() {
		t.Fatal("the server has ended before drain_accept_for was over")
	}
	if answer, err := s.tell(t.Context(), "sleep:0"); err != nil || answer.Status != http.StatusOK {
		t.Errorf("while it drains: status %d, %v", answer.Status, err)
	}
	all.Wait()
	if status := s.exitStatus(t); status != 0 {
		t.Errorf("exit status %d", status)
	}
}

// TestSecondSignalEndsTheWait asks twice while nothing is under way: the rest of drain_accept_for is not waited for, and nothing was lost.
func TestSecondSignalEndsTheWait(t *testing.T) {
	_, s := startRogueWith(t, "initial_workers=1", map[string]string{"drain_accept_for": "50", "shutdown_timeout": "300"})
	s.signal(t, syscall.SIGTERM)
	if !Eventually(startLimit, func() bool { return !s.healthy(t) }) {
		t.Fatal("the server is still healthy after SIGTERM")
	}
	begun := time.Now()
	s.Stop(t)
	if took := time.Since(begun); took > 25*time.Second {
		t.Errorf("it ended %v after the second signal", took)
	}
}

// TestSecondSignal asks twice while a request runs that takes longer than anybody waits: nothing is left behind.
func TestSecondSignal(t *testing.T) {
	box, s := startRogueWith(t, "initial_workers=1", map[string]string{"worker_stop_timeout": "1", "shutdown_timeout": "300"})
	var all sync.WaitGroup
	all.Go(func() {
		if answer, err := s.tell(t.Context(), "sleep:600"); err == nil && answer.Status == http.StatusOK {
			t.Error("a request of ten minutes was answered")
		}
	})
	if !Eventually(startLimit, func() bool { return s.drained(t).Requests == 1 }) {
		t.Fatal("the request did not arrive")
	}
	s.signal(t, syscall.SIGTERM)
	if !Eventually(startLimit, func() bool { return !s.healthy(t) }) {
		t.Fatal("the server is still healthy after SIGTERM")
	}
	s.signal(t, syscall.SIGTERM)
	if status := s.exitStatus(t); status != 1 || !strings.Contains(s.Output(), "requests were cut off: 1 (") {
		t.Errorf("exit status %d, and no word of what was cut off", status)
	}
	all.Wait()
	box.RequireNothingLeft(t)
}

// TestDrainByHand takes a server out of traffic and in again, as a hook before the end of a pod does.
func TestDrainByHand(t *testing.T) {
	_, s := startRogueWith(t, "initial_workers=1", nil)
	s.MustAsk(t, http.StatusOK, http.MethodPost, s.Management+"/admin/drain", nil)
	s.MustAsk(t, http.StatusInternalServerError, http.MethodGet, s.Inference+"/ping", nil)
	if answer, err := s.tell(t.Context(), "sleep:0"); err != nil || answer.Status != http.StatusOK {
		t.Errorf("while it drains: status %d, %v", answer.Status, err)
	}
	if d := s.drained(t); !d.Draining || d.Since.IsZero() {
		t.Errorf("it tells %+v", d)
	}
	s.MustAsk(t, http.StatusOK, http.MethodDelete, s.Management+"/admin/drain", nil)
	s.MustAsk(t, http.StatusOK, http.MethodGet, s.Inference+"/ping", nil)
}

// drainState is what GET /admin/drain answers.
type drainState struct {
	Draining bool
	Since    time.Time
	Requests int
}

func (s *Server) drained(t *testing.T) (d drainState) {
	t.Helper()
	s.admin(t, "/admin/drain", &d)
	return d
}

// exitStatus waits for the server's end, which has to come by itself.
func (s *Server) exitStatus(t *testing.T) int {
	t.Helper()
	select {
	case <-s.Done():
	case <-time.After(stopLimit):
		t.Fatal("the server still runs")
	}
	return s.cmd.ProcessState.ExitCode()
}

func (s *Server) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

// startRogueWith is startRogue for a server with settings.
func startRogueWith(t *testing.T, query string, config map[string]string) (*Box, *Server) {
	t.Helper()
	box := NewBox(t)
	box.Pack(t, "rogue", "testdata/rogue.py")
	s := box.Start(t, Options{Config: config})
	s.MustAsk(t, http.StatusOK, http.MethodPost, s.Management+"/models?url=rogue.mar&"+query, nil)
	return box, s
}
