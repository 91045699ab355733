package batch

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// pace knows how long batches take, and which run: from that it tells when the next ones can leave the queue. The zero value is ready.
type pace struct {
	mu      sync.Mutex // guards what follows; it is taken under the queues' own
	mean    time.Duration
	known   bool // mean is of something
	running map[*timedSlot]time.Time
}

// recent is the weight of the latest batch in the mean.
const recent = 0.25

// timed has what runs on a slot counted.
func (p *pace) timed(slot backend.Slot) backend.Slot { return &timedSlot{Slot: slot, pace: p} }

// timedSlot is a slot whose executions are timed.
type timedSlot struct {
	backend.Slot

	pace *pace
}

// Execute implements backend.Slot.
func (s *timedSlot) Execute(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
	begun := s.pace.begin(s)
	unsent := true // a panic says nothing about the model either
	defer func() { s.pace.end(s, begun, unsent) }()
	results, err := s.Slot.Execute(ctx, items)
	unsent = errors.Is(err, backend.ErrNotSent)
	return results, err //nolint:wrapcheck // the worker's faults are the client's
}

func (p *pace) begin(s *timedSlot) time.Time {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		p.running = map[*timedSlot]time.Time{}
	}
	p.running[s] = now
	return now
}

func (p *pace) end(s *timedSlot, begun time.Time, unsent bool) {
	took := time.Since(begun)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.running, s)
	switch {
	case unsent:
	case !p.known:
		p.mean, p.known = took, true
	default:
		p.mean += time.Duration(recent * float64(took-p.mean))
	}
}

// forecast is what is known about when batches leave the queue.
type forecast struct {
	mean  time.Duration // of a batch in a worker; 0 when not known
	busy  int           // batches that run
	after time.Duration // until as many batches as were asked for have left the queue
	known bool          // after is one; else no worker is there that runs anything or could
}

// ahead tells when the next n batches can have left the queue, with free slots beside those that run. A batch leaves when a slot is free for it, and takes it for
// the mean time.
func (p *pace) ahead(now time.Time, n, free int) forecast {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := forecast{mean: p.mean, busy: len(p.running)}
	if f.busy+free == 0 {
		return f
	}
	mean := p.mean
	ends := make([]time.Duration, 0, f.busy+free)
	for _, begun := range p.running {
		ran := now.Sub(begun)
		if !p.known { // nothing has ended yet: it is taken to be half done
			mean = max(mean, 2*ran) //nolint:mnd // half done
		}
	}
	for _, begun := range p.running {
		left := mean - now.Sub(begun)
		ends = append(ends, max(left, mean/overdueParts)) // one that takes longer than usual may end at any moment
	}
	for range free {
		ends = append(ends, 0)
	}
	f.known = true
	for range max(n, 1) {
		next := 0
		for i := range ends {
			if ends[i] < ends[next] {
				next = i
			}
		}
		f.after = ends[next]
		if ends[next] += mean; mean == 0 { // nothing is known of later ones
			break
		}
	}
	return f
}

// overdueParts is the part of the mean time that a batch is given which should have ended already.
const overdueParts = 8

// batches is how many batches of a size n requests make.
func batches(n, size int) int {
	size = max(size, 1)
	return (max(n, 1) + size - 1) / size
}

// since gives how long ago a moment was, 0 for none.
func since(now, at time.Time) time.Duration {
	if at.IsZero() {
		return 0
	}
	return now.Sub(at)
}
