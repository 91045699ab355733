package e2e

import (
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// poisoned is one of GET /admin/models/M/poison.
type poisoned struct {
	Digest  string `json:"digest"`
	Deaths  int    `json:"deaths"`
	Refused bool   `json:"refused"`
	ID      string `json:"id"`
}

func (s *Server) poison(t *testing.T) []poisoned {
	t.Helper()
	var list struct {
		Poison []poisoned `json:"poison"`
	}
	s.admin(t, "/admin/models/rogue/poison", &list)
	return list.Poison
}

// loads counts how often a worker has loaded the rogue model.
func (s *Server) loads() int { return strings.Count(s.Output(), "rogue is loading") }

// TestOneRequestThatAborts sends a batch of eight with one request that ends the process: the seven others are answered. The same request is refused when
// it comes again, until it is lifted.
func TestOneRequestThatAborts(t *testing.T) {
	box, s := startRogue(t, "initial_workers=1", "batch_size=8", "max_batch_delay=5000")
	const bomb = "abort:now"
	answers := make(chan Answer, 8)
	var all sync.WaitGroup
	for i := range cap(answers) {
		all.Go(func() {
			what := "sleep:0.01"
			if i == 3 {
				what = bomb
			}
			answer, err := s.tell(t.Context(), what)
			if err != nil {
				t.Error(err)
			}
			answers <- answer
		})
	}
	all.Wait()
	close(answers)
	count := map[int]int{}
	var failed Answer
	for answer := range answers {
		if count[answer.Status]++; answer.Status != http.StatusOK {
			failed = answer
		}
	}
	if count[http.StatusOK] != 7 || count[http.StatusInternalServerError] != 1 {
		t.Fatalf("answers by status: %v; want 7 with 200, and one 500", count)
	}
	requireReason(t, failed, "worker_died", "this request")
	s.mustTell(t, "pid")
	const starts = 3 // the first one, and one for each of the two that died
	if !Eventually(startLimit, func() bool { return s.loads() >= starts }) || s.loads() > starts {
		t.Errorf("workers were started %d times, want %d", s.loads(), starts)
	}

	again, err := s.tell(t.Context(), bomb)
	if err != nil || again.Status != http.StatusInternalServerError {
		t.Fatalf("the same request again: status %d, %v", again.Status, err)
	}
	requireReason(t, again, "poisoned", "flambeau poison")
	if s.mustTell(t, "pid"); s.loads() != starts {
		t.Error("a request that is refused has ended a worker")
	}
	list := s.poison(t)
	if len(list) != 1 || !list[0].Refused || list[0].Deaths != 2 || list[0].ID != failed.Header.Get("X-Request-Id") {
		t.Fatalf("remembered: %+v; want the request %s, which has ended two workers", list, failed.Header.Get("X-Request-Id"))
	}

	digest := list[0].Digest[:12]
	if said := box.Flambeau(t, "poison", "rogue", "--url", s.Management); !strings.Contains(said, digest) || !strings.Contains(said, "SIGABRT") && !strings.Contains(said, "signal 6") {
		t.Errorf("flambeau poison does not name %s and its signal:\n%s", digest, said)
	}
	if said := box.Flambeau(t, "poison", "rogue", "--lift", digest, "--url", s.Management); !strings.Contains(said, "1 may be tried again") {
		t.Errorf("flambeau poison --lift: %s", said)
	}
	if left := s.poison(t); len(left) > 0 {
		t.Errorf("after the lift it is remembered still: %+v", left)
	}
	lifted, err := s.tell(t.Context(), bomb)
	if err != nil || lifted.Status != http.StatusInternalServerError {
		t.Fatalf("after the lift: status %d, %v", lifted.Status, err)
	}
	requireReason(t, lifted, "worker_died", "this request")
	s.mustTell(t, "pid")
	if !Eventually(startLimit, func() bool { return s.loads() > starts }) || s.loads() > starts+1 {
		t.Errorf("after the lift workers were started %d times in all, want %d", s.loads(), starts+1)
	}
}

func requireReason(t *testing.T, answer Answer, reason, hint string) {
	t.Helper()
	if got := answer.Header.Get("X-Flambeau-Reason"); got != reason {
		t.Errorf("reason %q, want %q: %s", got, reason, answer.Body)
	}
	if got := answer.Header.Get("X-Flambeau-Hint"); !strings.Contains(got, hint) {
		t.Errorf("the hint of %q does not say %q: %s", reason, hint, got)
	}
}

// TestTrace asks where the time of a request went that has waited behind a slow one.
func TestTrace(t *testing.T) {
	box, s := startRogue(t, "initial_workers=1")
	s.mustTell(t, "pid")
	var slow Answer
	var all sync.WaitGroup
	all.Go(func() {
		var err error
		if slow, err = s.tell(t.Context(), "sleep:0.3"); err != nil || slow.Status != http.StatusOK {
			t.Errorf("the slow one: status %d, %v", slow.Status, err)
		}
	})
	if !Eventually(startLimit, func() bool { return s.drained(t).Requests == 1 }) {
		t.Fatal("the slow request did not arrive")
	}
	answer, err := s.tell(t.Context(), "pid")
	all.Wait()
	if err != nil || answer.Status != http.StatusOK {
		t.Fatalf("status %d, %v", answer.Status, err)
	}
	id, neighbour := answer.Header.Get("X-Request-Id"), slow.Header.Get("X-Request-Id")

	said := box.Flambeau(t, "trace", id, "--url", s.Management)
	for _, want := range []string{id, neighbour, "queue ", " behind batch ", "for a worker", "in the worker"} {
		if !strings.Contains(said, want) {
			t.Errorf("flambeau trace does not say %q:\n%s", want, said)
		}
	}
	r := s.history(t, id)
	if sum := r.Waited + r.Gathered + r.Ran; math.Abs(r.Total-sum) > 1 {
		t.Errorf("total %v ms, its parts %v ms: %+v", r.Total, sum, r)
	}
	took := s.history(t, neighbour).Total
	if len(r.Behind.Requests) != 1 || r.Behind.Requests[0] != neighbour || r.Waited > took {
		t.Errorf("it waited %v ms behind %v; want %s, which took %v ms", r.Waited, r.Behind.Requests, neighbour, took)
	}
	if said := box.Flambeau(t, "slow", "rogue", "--limit", "2", "--url", s.Management); !strings.Contains(said, id) || !strings.Contains(said, neighbour) {
		t.Errorf("flambeau slow does not list %s and %s:\n%s", neighbour, id, said)
	}
}

// history is what the server tells of one request that it has answered.
type history struct {
	Total    float64 `json:"total_ms"`
	Waited   float64 `json:"waited_ms"`
	Gathered float64 `json:"gathered_ms"`
	Ran      float64 `json:"ran_ms"`
	Behind   struct {
		Requests []string `json:"requests"`
	} `json:"behind"`
}

func (s *Server) history(t *testing.T, id string) history {
	t.Helper()
	var told struct {
		Requests []history `json:"requests"`
	}
	s.admin(t, "/admin/requests/"+id, &told)
	if len(told.Requests) != 1 {
		t.Fatalf("%d requests have the id %s", len(told.Requests), id)
	}
	return told.Requests[0]
}
