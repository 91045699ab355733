package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// counted is the answer of testdata/counter.py.
type counted struct {
	Sequence string `json:"sequence"`
	Count    int    `json:"count"`
	PID      int    `json:"pid"`
	Batch    int    `json:"batch"`
}

// TestSequencesKeepTheirWorker runs several sequences at once on two workers: each is counted without a gap, by one process.
func TestSequencesKeepTheirWorker(t *testing.T) {
	const sequences, requests = 6, 20
	box := NewBox(t)
	config := filepath.Join(box.Dir, "sequences.yaml")
	if err := os.WriteFile(config, []byte("minWorkers: 2\nmaxWorkers: 2\nbatchSize: 3\nmaxBatchDelay: 5\nsequenceBatching: true\n"+
		"sequenceMaxIdleMSec: 60000\nmaxNumSequence: 6\nmaxSequenceJobQueueSize: 10\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	box.Run(t, "torch-model-archiver", "--model-name", "counter", "--version", "1.0", "--handler", absolute(t, "testdata/counter.py"),
		"--config-file", config, "--export-path", box.Store)
	s := box.Start(t, Options{Args: []string{"--models", "counter=counter.mar"}})
	ask := func(sequence, body string) counted {
		header := []string{"Content-Type", octets}
		if sequence != "" {
			header = append(header, "ts_request_sequence_id", sequence)
		}
		answer, err := s.Ask(t.Context(), http.MethodPost, s.Inference+"/predictions/counter", []byte(body), header...)
		var got counted
		if err != nil || json.Unmarshal(answer.Body, &got) != nil || answer.Status != http.StatusOK {
			t.Errorf("sequence %s: status %d %s, %v", sequence, answer.Status, answer.Body, err)
		}
		return got
	}
	pids := make([]int, sequences)
	var all sync.WaitGroup
	for n := range sequences {
		all.Go(func() {
			name := fmt.Sprintf("s%d", n)
			for i := range requests {
				got := ask(name, "x")
				if i == 0 {
					pids[n] = got.PID
				}
				if got.Sequence != name || got.Count != i+1 || got.PID != pids[n] {
					t.Errorf("request %d of sequence %s, begun by process %d: %+v", i+1, name, pids[n], got)
				}
			}
		})
	}
	all.Wait()
	used := map[int]int{}
	for _, pid := range pids {
		used[pid]++
	}
	if len(used) != 2 {
		t.Errorf("sequences by process: %v; want both workers used", used)
	}
	s.MustAsk(t, http.StatusServiceUnavailable, http.MethodPost, s.Inference+"/predictions/counter", []byte("x"), "Content-Type", octets,
		"ts_request_sequence_id", "one-too-many")
	ask("s0", "end")
	var minted counted
	if !Eventually(startLimit, func() bool { // the end makes room when the answer is on its way already
		answer, err := s.Ask(t.Context(), http.MethodPost, s.Inference+"/predictions/counter", []byte("x"), "Content-Type", octets)
		return err == nil && answer.Status == http.StatusOK && json.Unmarshal(answer.Body, &minted) == nil
	}) {
		t.Error("the sequence that the handler ended did not make room for another")
	}
	if !strings.HasPrefix(minted.Sequence, "ts-seq-") || minted.Count != 1 {
		t.Errorf("a request without a sequence: %+v", minted)
	}
}
