package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// stepSeen is what testdata/countdown.py saw of a request in one step.
type stepSeen struct {
	Step  int      `json:"step"`
	Batch int      `json:"batch"`
	Row   []string `json:"row"`
	Mine  string   `json:"mine"`
	Part  any      `json:"part"`
}

func startCountdown(t *testing.T, query string) (*Box, *Server) {
	t.Helper()
	box := NewBox(t)
	box.packConfigured(t, "countdown", "testdata/countdown.py", "continuousBatching: true\n")
	s := box.Start(t, Options{})
	s.MustAsk(t, http.StatusOK, http.MethodPost, s.Management+"/models?url=countdown.mar&initial_workers=1&"+query, nil)
	return box, s
}

// count sends a request and gives what was seen of it, and the answer's head.
func (s *Server) count(t *testing.T, body, mine string) ([]stepSeen, Answer) {
	t.Helper()
	answer, err := s.Ask(t.Context(), http.MethodPost, s.Inference+"/predictions/countdown", []byte(body), "Content-Type", octets, "X-Mine", mine)
	if err != nil {
		t.Error(err)
		return nil, answer
	}
	if answer.Status != http.StatusOK {
		t.Errorf("%s: status %d: %s", body, answer.Status, answer.Body)
	}
	var steps []stepSeen
	for line := range strings.Lines(string(answer.Body)) {
		var one stepSeen
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Errorf("%s: %q: %v", body, line, err)
		}
		steps = append(steps, one)
	}
	for i, one := range steps {
		first := i == 0
		if one.Step != i+1 || one.Mine != mine || slices.Contains(one.Row, "body") != first || len(one.Row) > 1 || (one.Part != nil) != first {
			t.Errorf("request %s: step %d saw %+v", body, i+1, one)
		}
	}
	return steps, answer
}

// TestContinuousBatch has requests of 1, 2 and 4 steps in one batch, which has to be full before it begins: it shrinks as they end.
func TestContinuousBatch(t *testing.T) {
	_, s := startCountdown(t, "batch_size=3&max_batch_delay=100000")
	var all sync.WaitGroup
	for n, sizes := range map[int][]int{1: {3}, 2: {3, 2}, 4: {3, 2, 1, 1}} {
		all.Go(func() {
			body := strconv.Itoa(n)
			steps, answer := s.count(t, body, "client "+body)
			var got []int
			for _, one := range steps {
				got = append(got, one.Batch)
			}
			if !slices.Equal(got, sizes) {
				t.Errorf("the request of %d steps was in batches of %v, want %v", n, got, sizes)
			}
			streamed := answer.Header.Get("Ts_stream_next")
			if want := map[bool]string{true: "true"}[n > 1]; streamed != want {
				t.Errorf("the request of %d steps has the header ts_stream_next: %q", n, streamed)
			}
		})
	}
	all.Wait()
}

// TestContinuousBatchTakesNewRequests has a request run through a batch that another one stays in.
func TestContinuousBatchTakesNewRequests(t *testing.T) {
	box, s := startCountdown(t, "batch_size=2&max_batch_delay=10")
	file := filepath.Join(box.Dir, "end")
	var all sync.WaitGroup
	ended := make(chan struct{})
	all.Go(func() {
		defer close(ended)
		s.count(t, "until:"+file, "long")
	})
	// The long one has begun once a short one finds it in its batch.
	if !Eventually(startLimit, func() bool {
		steps, _ := s.count(t, "3", "short")
		return len(steps) == 3 && steps[0].Batch == 2 && steps[2].Batch == 2
	}) {
		t.Error("no request ever was beside the long one")
	}
	select {
	case <-ended:
		t.Error("the long one has ended")
	default:
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Error(err)
	}
	all.Wait()
}
