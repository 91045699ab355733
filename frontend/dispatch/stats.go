package dispatch

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/batch"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// Spent is how often something was done, and how long all that took.
type Spent struct {
	Count int64
	Time  time.Duration
}

func (s *Spent) add(d time.Duration) {
	s.Count++
	s.Time += d
}

// Stats are what a version has done since it was registered, in the Open Inference Protocol's terms.
type Stats struct {
	Inferences int64     // samples that were answered well
	Executions int64     // batches that ran, and of which a request was answered well
	Last       time.Time // when the latest answer was given; zero before the first
	Success    Spent     // requests, from their arrival to their answer
	Fail       Spent
	Queue      Spent // of those that were answered well: until their batch left
	Compute    Spent // the same: in the worker
	Batches    []BatchStats
}

// BatchStats are the executions of one batch size, counted in samples.
type BatchStats struct {
	Rows    int
	Compute Spent
}

// tally counts for Stats.
type tally struct {
	mu    sync.Mutex // guards what follows
	stats Stats      // but for Batches
	sizes map[int]*Spent
}

// mostSizes bounds the batch sizes that are told apart; others count as the next power of two.
const mostSizes = 256

func (t *tally) count(now time.Time, total time.Duration, rows int, times batch.Times, failed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.stats
	s.Last = now
	if failed {
		s.Fail.add(total)
	} else {
		s.Inferences += int64(rows)
		s.Success.add(total)
		s.Queue.add(times.Queued)
		s.Compute.add(times.Ran)
	}
	if failed || times.Run == nil || !times.Run.First() { // an execution counts when it has answered one request at least, as in Triton
		return
	}
	s.Executions++
	if t.sizes == nil {
		t.sizes = map[int]*Spent{}
	}
	size := times.Run.Rows
	if t.sizes[size] == nil && len(t.sizes) >= mostSizes {
		for size = 1; size < times.Run.Rows; size *= 2 {
		}
	}
	if t.sizes[size] == nil {
		t.sizes[size] = &Spent{}
	}
	t.sizes[size].add(times.Ran)
}

func (t *tally) read() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.stats
	for _, size := range slices.SortedFunc(maps.Keys(t.sizes), cmp.Compare[int]) {
		s.Batches = append(s.Batches, BatchStats{size, *t.sizes[size]})
	}
	return s
}

// Stats gives what the version that ref names has done since it was registered.
func (d *Dispatcher) Stats(ref infer.ModelRef) Stats {
	v, err := d.opts.Models.Resolve(ref)
	if err != nil {
		return Stats{}
	}
	d.mu.Lock()
	w := d.windows[v]
	d.mu.Unlock()
	if w == nil {
		return Stats{}
	}
	return w.tally.read()
}
