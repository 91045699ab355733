package rollout

import (
	"cmp"
	"slices"
	"time"
)

// Readiness is how many workers of a version can take requests, and when the next one will.
type Readiness struct {
	Ready, Total int
	// Next is when a worker that is not ready is expected to be: its pause before the start, and what the last start took. Known says whether there is one.
	Next  time.Duration
	Known bool
}

// usualStart is how long a start is taken to last that nothing is known of.
const usualStart = 2 * time.Second

// Readiness tells about the workers of the generation that serves.
func (v *Version) Readiness() Readiness {
	v.mu.Lock()
	workers := slices.Clone(v.current.Load().workers)
	v.mu.Unlock()
	r := Readiness{Total: len(workers)}
	now := time.Now()
	for _, w := range workers {
		ready, next, known := w.expected(now)
		if ready {
			r.Ready++
		}
		if known && (!r.Known || next < r.Next) {
			r.Next, r.Known = next, true
		}
	}
	return r
}

// expected says whether the worker is ready, and else how long it will take until it is; known is false for one that has given up or is to end.
func (w *worker) expected(now time.Time) (ready bool, next time.Duration, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	usual := cmp.Or(w.usual, usualStart)
	switch {
	case w.failed || w.leaving:
		return false, 0, false
	case w.waiting:
		return false, max(w.startsAt.Sub(now), 0) + usual, true
	case w.current == nil:
		return false, usual, true
	}
	if s, _ := w.current.read(); s == Ready {
		return true, 0, false
	}
	if w.startsAt.IsZero() { // its first start
		return false, max(usual-now.Sub(w.created), usual/2), true //nolint:mnd // longer than usual: nobody knows
	}
	return false, max(usual-now.Sub(w.startsAt), usual/2), true //nolint:mnd // the same
}

// standing is what whoever counts a version's workers makes of one.
type standing int

const (
	standsNew   standing = iota // it is in its first start, or is to end
	standsReady                 // it takes batches
	standsAgain                 // it is started again after a failure
	standsAway                  // it failed, and is not started yet or never will be
)

func (w *worker) standing() standing {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.leaving:
		return standsNew
	case w.failed || w.waiting:
		return standsAway
	case w.isDown:
		return standsAgain
	case w.current == nil:
		return standsNew
	}
	switch s, _ := w.current.read(); s {
	case Ready:
		return standsReady
	case Failed, Stopped: // its supervisor is about to note it
		return standsAway
	case Starting, Loading, Warming, Draining, Stopping:
	}
	return standsNew
}

// isAbsent says that the worker failed, and has not come up since.
func (w *worker) isAbsent() bool {
	s := w.standing()
	return s == standsAgain || s == standsAway
}

// pausing notes when the next start is.
func (w *worker) pausing(pause time.Duration) {
	w.mu.Lock()
	w.startsAt = time.Now().Add(pause)
	w.mu.Unlock()
}
