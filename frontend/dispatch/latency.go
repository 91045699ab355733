package dispatch

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/batch"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

const (
	windowSize = 1024            // answers that a version's latency is computed of
	windowAge  = 5 * time.Minute // and how old they may be
)

// window has the times of a version's latest answers: a ring of a fixed size.
type window struct {
	born  time.Time
	tally tally

	inside  atomic.Int64 // requests that wait and run, as far as somebody waits for them
	refused refusals

	mu    sync.Mutex // guards what follows
	ring  [windowSize]answer
	next  int // where the next one goes
	count int
}

// answer is when a request was answered, counted from the window's birth, and how long that took.
type answer struct{ at, took time.Duration }

func newWindow() *window { return &window{born: time.Now()} }

// observe notes a request that arrived at begun and is answered now.
func (w *window) observe(now, begun time.Time) {
	a := answer{now.Sub(w.born), now.Sub(begun)}
	w.mu.Lock()
	w.ring[w.next] = a
	w.next = (w.next + 1) % windowSize
	w.count = min(w.count+1, windowSize)
	w.mu.Unlock()
}

// latency sorts a copy, outside of the lock.
func (w *window) latency(now time.Time) (p50, p99 time.Duration, n int) {
	oldest := now.Sub(w.born) - windowAge
	w.mu.Lock()
	times := make([]time.Duration, 0, w.count)
	for _, a := range w.ring[:w.count] {
		if a.at >= oldest {
			times = append(times, a.took)
		}
	}
	w.mu.Unlock()
	if n = len(times); n == 0 {
		return 0, 0, 0
	}
	slices.Sort(times)
	at := func(percent int) time.Duration { return times[(n*percent+99)/100-1] } // the nearest rank
	return at(50), at(99), n
}

// Latency gives the median and the 99th percentile of how long the version that ref names took to answer, from the arrival of a request to its answer:
// over the last five minutes, and over the latest 1024 answers at most. n is of how many; failed requests are not among them.
func (d *Dispatcher) Latency(ref infer.ModelRef) (p50, p99 time.Duration, n int) {
	v, err := d.opts.Models.Resolve(ref)
	if err != nil {
		return 0, 0, 0
	}
	d.mu.Lock()
	w := d.windows[v]
	d.mu.Unlock()
	if w == nil {
		return 0, 0, 0
	}
	return w.latency(time.Now())
}

// answered notes how a version answered a request that arrived at begun; one that was removed meanwhile needs no note.
func (d *Dispatcher) answered(v *rollout.Version, begun time.Time, item *infer.Item, times batch.Times, err error) {
	d.mu.Lock()
	w := d.windows[v]
	d.mu.Unlock()
	if w == nil {
		return
	}
	now := time.Now()
	if err == nil {
		w.observe(now, begun)
	} else {
		w.refused.note(now, err)
	}
	w.tally.count(now, now.Sub(begun), max(item.Rows, 1), times, err != nil)
}
