package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// packRanks makes an archive of testdata/ranks.py with the model configuration, and with more files.
func packRanks(t *testing.T, box *Box, name, config string, extra ...string) {
	t.Helper()
	path := filepath.Join(box.Dir, name+".yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"--model-name", name, "--version", "1.0", "--handler", absolute(t, "testdata/ranks.py"), "--config-file", path, "--export-path", box.Store,
	}
	if len(extra) > 0 {
		args = append(args, "--extra-files", strings.Join(extra, ","))
	}
	box.Run(t, "torch-model-archiver", args...)
}

const tensorParallel = "minWorkers: 1\nmaxWorkers: 1\nparallelType: tp\ntorchrun:\n  nproc-per-node: 2\n  OMP_NUMBER_THREADS: 2\n"

// summed is the answer to the word sum of testdata/ranks.py.
type summed struct {
	Sum     float64 `json:"sum"`
	Rank    int     `json:"rank"`
	PIDs    []int   `json:"pids"`
	Threads string  `json:"threads"`
}

// askRanks has the ranks of a model add up 1 and 2.
func askRanks(t *testing.T, s *Server, model string) summed {
	t.Helper()
	answer := s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+"/predictions/"+model, []byte("sum:1"), "Content-Type", octets)
	var got summed
	if err := json.Unmarshal(answer.Body, &got); err != nil || got.Sum != 3 || got.Rank != 0 || len(got.PIDs) != 2 || got.PIDs[0] == got.PIDs[1] {
		t.Fatalf("the answer of the ranks: %s, %v", answer.Body, err)
	}
	return got
}

// TestRanksWorkTogether serves a model of two ranks that speak to each other over gloo: rank 0 answers, also in pieces, and everybody's output is
// in the log under the rank's name.
func TestRanksWorkTogether(t *testing.T) {
	box := NewBox(t)
	packRanks(t, box, "ranks", tensorParallel)
	s := box.Start(t, Options{Args: []string{"--models", "ranks=ranks.mar"}})
	if got := askRanks(t, s, "ranks"); got.Threads != "2" {
		t.Errorf("OMP_NUM_THREADS of the ranks: %q", got.Threads)
	}
	answer := s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+"/predictions/ranks", []byte("stream:3"), "Content-Type", octets)
	if string(answer.Body) != "0;2;4;end" {
		t.Errorf("the streamed answer: %q", answer.Body)
	}
	var described []struct {
		ParallelType  string `json:"parallelType"`
		ParallelLevel int    `json:"parallelLevel"`
		Workers       []struct {
			ID string `json:"id"`
		} `json:"workers"`
	}
	answer = s.MustAsk(t, http.StatusOK, http.MethodGet, s.Management+"/models/ranks", nil)
	if err := json.Unmarshal(answer.Body, &described); err != nil || described[0].ParallelType != "tp" || described[0].ParallelLevel != 2 ||
		described[0].Workers[0].ID != "29500" {
		t.Errorf("description: %s, %v", answer.Body, err)
	}
	var text string
	if !Eventually(startLimit, func() bool {
		content, err := os.ReadFile(filepath.Join(box.Dir, "logs", "model_log.log"))
		text = string(content)
		return err == nil && strings.Contains(text, "[rank 0] summed 3.0") && strings.Contains(text, "[rank 1] summed 3.0")
	}) {
		t.Errorf("the log does not have what both ranks wrote:\n%s", text)
	}
}

// TestPipelineGoesToRankZero sends batches of a pipeline to rank 0 alone: another rank would end of them, and the worker with it.
func TestPipelineGoesToRankZero(t *testing.T) {
	box := NewBox(t)
	packRanks(t, box, "pipe", strings.Replace(tensorParallel, ": tp", ": pp", 1))
	s := box.Start(t, Options{Args: []string{"--models", "pipe=pipe.mar"}})
	const batches = 20
	for range batches {
		answer := s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+"/predictions/pipe", []byte("alone:"), "Content-Type", octets)
		if got := strings.Join(strings.Fields(string(answer.Body)), ""); got != `{"rank":0,"world":2}` {
			t.Errorf("answer: %s", got)
		}
	}
	answer := s.MustAsk(t, http.StatusOK, http.MethodGet, s.Management+"/models/pipe", nil)
	if !strings.Contains(string(answer.Body), `"READY"`) {
		t.Errorf("after the batches: %s", answer.Body)
	}
}

// TestDeadRankCostsItsOwnBatchOnly has rank 1 end in the middle of a batch, and be killed between two: the worker comes back with new ranks,
// another worker does not notice, and nothing is left of the old ones.
func TestDeadRankCostsItsOwnBatchOnly(t *testing.T) {
	box := NewBox(t)
	packRanks(t, box, "ranks", tensorParallel)
	packRanks(t, box, "bystander", tensorParallel)
	s := box.Start(t, Options{Args: []string{"--models", "ranks=ranks.mar", "bystander=bystander.mar"}})
	before, bystander := askRanks(t, s, "ranks"), askRanks(t, s, "bystander")
	// Rank 0 may find out first, from gloo, and answer with what the handler raised.
	answer, err := s.Ask(t.Context(), http.MethodPost, s.Inference+"/predictions/ranks", []byte("exit:1"), "Content-Type", octets)
	if err != nil || answer.Status != http.StatusInternalServerError && answer.Status != http.StatusServiceUnavailable {
		t.Errorf("a batch in which rank 1 ends: %d %s, %v", answer.Status, answer.Body, err)
	}
	after := askFresh(t, s, before.PIDs)
	if err := syscall.Kill(after.PIDs[1], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	last := askFresh(t, s, after.PIDs)
	if !Eventually(goneLimit, func() bool {
		return !slices.ContainsFunc(box.Processes(t), func(pid int) bool { return slices.Contains(slices.Concat(before.PIDs, after.PIDs), pid) })
	}) {
		t.Errorf("of the ranks %v and %v some are left", before.PIDs, after.PIDs)
	}
	if again := askRanks(t, s, "bystander"); !slices.Equal(again.PIDs, bystander.PIDs) || slices.Equal(last.PIDs, before.PIDs) {
		t.Errorf("the other model's ranks were %v and are %v", bystander.PIDs, again.PIDs)
	}
}

// askFresh asks until ranks other than the old ones answer: the worker needs a moment to see that a rank is gone.
func askFresh(t *testing.T, s *Server, old []int) summed {
	t.Helper()
	var got summed
	if !Eventually(startLimit, func() bool {
		answer, err := s.Ask(t.Context(), http.MethodPost, s.Inference+"/predictions/ranks", []byte("sum:1"), "Content-Type", octets)
		return err == nil && answer.Status == http.StatusOK && json.Unmarshal(answer.Body, &got) == nil && !slices.Equal(got.PIDs, old)
	}) {
		t.Fatal("the worker did not come back with new ranks")
	}
	return got
}

// TestKilledServerLeavesNoRank kills the server while both ranks, in sessions of their own, loop beside children of theirs.
func TestKilledServerLeavesNoRank(t *testing.T) {
	box := NewBox(t)
	packRanks(t, box, "ranks", tensorParallel)
	s := box.Start(t, Options{Args: []string{"--models", "ranks=ranks.mar"}})
	askRanks(t, s, "ranks")
	ctx, leave := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	asking.Go(func() { // it fails when the server dies
		_, _ = s.Ask(ctx, http.MethodPost, s.Inference+"/predictions/ranks", []byte("loop:"), "Content-Type", octets)
	})
	if !Eventually(startLimit, func() bool { return sleepers(t, box) == 2 }) {
		t.Fatal("the ranks did not start their children")
	}
	s.Kill(t)
	if !Eventually(2*time.Second, func() bool { return len(box.Processes(t)) == 0 }) {
		t.Errorf("processes %v outlive the server by more than 2 s", box.Processes(t))
	}
	leave()
	asking.Wait()
	box.Start(t, Options{}).Stop(t) // clears away what the killed one could not
}

// sleepers counts the box's processes that are called sleep.
func sleepers(t *testing.T, box *Box) int {
	t.Helper()
	n := 0
	for _, pid := range box.Processes(t) {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // the process may be gone
		if string(name) == "sleep\n" {
			n++
		}
	}
	return n
}

// TestRankThatDoesNotLoad has rank 1 alone refuse: the registration fails at once, though rank 0 is content, and the log says which rank and why.
func TestRankThatDoesNotLoad(t *testing.T) {
	box := NewBox(t)
	trigger := filepath.Join(box.Dir, "fail-at-load")
	if err := os.WriteFile(trigger, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	packRanks(t, box, "ranks", tensorParallel, trigger)
	s := box.Start(t, Options{})
	answer := s.MustAsk(t, http.StatusInternalServerError, http.MethodPost, s.Management+"/models?url=ranks.mar", nil)
	if !strings.Contains(string(answer.Body), "Failed to start workers for model ranks version: 1.0") {
		t.Errorf("answer: %s", answer.Body)
	}
	var text string
	if !Eventually(startLimit, func() bool {
		content, err := os.ReadFile(filepath.Join(box.Dir, "logs", "ts_log.log"))
		text = string(content)
		return err == nil && strings.Contains(text, "rank 1: ValueError: rank 1 does not want to (ranks.py:")
	}) {
		t.Errorf("the log does not say which rank failed, and why:\n%s", text)
	}
}
