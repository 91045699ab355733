package policy

import (
	"math/bits"
	"time"
)

// spread is a histogram of times with classes of about 5 % of their size.
type spread struct {
	count   [spreadClasses]uint32
	n       int
	highest time.Duration
}

const (
	spreadShift   = 14 // times below 2^14 ns, 16 µs, are one class
	spreadParts   = 16 // classes of an octave
	spreadOctaves = 24 // the last one ends at 275 s
	spreadClasses = spreadParts*spreadOctaves + 1
)

func (s *spread) add(d time.Duration) {
	s.n++
	s.highest = max(s.highest, d)
	x := uint64(max(d, 0))
	octave := bits.Len64(x) - 1 - spreadShift
	if octave < 0 {
		s.count[0]++
		return
	}
	part := int(x>>(octave+spreadShift-4)) - spreadParts
	s.count[min(1+octave*spreadParts+part, spreadClasses-1)]++
}

// percentile gives a time that percent of those that were added are not above, 0 without any. Within a class it takes them to lie evenly.
func (s *spread) percentile(percent int) time.Duration {
	rank := (s.n*percent + 99) / 100
	for class, count := range s.count {
		if rank > int(count) {
			rank -= int(count)
			continue
		}
		if count == 0 {
			continue
		}
		from, to := spreadClass(class)
		if to = min(to, s.highest); class == spreadClasses-1 {
			to = s.highest
		}
		return from + time.Duration(float64(to-from)*float64(rank)/float64(count))
	}
	return s.highest
}

// spreadClass gives the bounds of a class.
func spreadClass(class int) (from, to time.Duration) {
	if class == 0 {
		return 0, 1 << spreadShift
	}
	octave, part := (class-1)/spreadParts, (class-1)%spreadParts
	scale := octave + spreadShift - 4
	return time.Duration(spreadParts+part) << scale, time.Duration(spreadParts+part+1) << scale
}

// window is what is measured between two looks at the goal.
type window struct {
	begun   Moment
	total   spread // of the answers
	held    spread // of the batches: how long each was kept for others with a slot at hand
	full    int    // batches that left with the most requests allowed
	late    int    // batches that left not full at the end of the delay allowed
	taken   int    // requests of all batches
	largest int    // batch
	opened  bool
}

func (w *window) open(now Moment) { *w = window{begun: now, opened: true} }

func (w *window) sent(held time.Duration, size int, l Limits) {
	w.held.add(held)
	w.taken += size
	w.largest = max(w.largest, size)
	switch {
	case size >= l.Size:
		w.full++
	case held >= l.Delay:
		w.late++
	}
}

func (w *window) meanSize() int { return max(w.taken/max(w.held.n, 1), 1) }
