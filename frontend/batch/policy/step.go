package policy

import (
	"fmt"
	"time"
)

// Reason is why limits were changed, or were not although the goal is missed.
type Reason string

// The reasons that there are.
const (
	ShorterDelay Reason = "shorter_delay" // batches were kept for others too long
	SmallerBatch Reason = "smaller_batch" // large batches run too long
	LargerBatch  Reason = "larger_batch"  // the goal leaves room, and batches are full
	LongerDelay  Reason = "longer_delay"  // the goal leaves room, and batches leave at the end of the delay without being full
	Undone       Reason = "undone"        // the step before did not help
	OutOfReach   Reason = "out_of_reach"  // no limits within the bounds would help: nothing was changed
)

// Step is a change of limits toward a goal, with the numbers that it was decided by.
type Step struct {
	At       Moment
	Reason   Reason
	From, To Limits
	Goal     time.Duration
	P99      time.Duration // of the answers since the look before
	Before   time.Duration // of Undone: what P99 had been before the step that is undone
	Answers  int
	Over     time.Duration // how long that took
	Held     time.Duration // 99th percentile of how long batches were kept for others
	Size     int           // the mean batch
	Largest  int           // the largest batch
	Takes    time.Duration // how long a batch of Largest takes
	Would    time.Duration // how long one of To.Size takes
}

// String says what was done and why, for people.
func (s Step) String() string {
	why := fmt.Sprintf("%s: p99 was %s over %d answers in %s, the goal is %s; ", s.change(), short(s.P99), s.Answers, short(s.Over), short(s.Goal))
	switch s.Reason {
	case ShorterDelay:
		return why + fmt.Sprintf("batches waited up to %s for others", short(s.Held))
	case SmallerBatch:
		return why + fmt.Sprintf("a batch of %d takes %s, one of %d takes %s", s.Largest, short(s.Takes), s.To.Size, short(s.Would))
	case LargerBatch:
		return why + fmt.Sprintf("batches are full, and one of %d takes %s instead of %s", s.To.Size, short(s.Would), short(s.Takes))
	case LongerDelay:
		return why + fmt.Sprintf("batches leave with %d of %d on average", s.Size, s.From.Size)
	case Undone:
		return why + fmt.Sprintf("it had been %s before the last change, which is taken back", short(s.Before))
	case OutOfReach:
		return why + fmt.Sprintf("batches of up to %d take %s and wait up to %s for others: no other size or delay would help; add workers, or send less",
			s.Largest, short(s.Takes), short(s.Held))
	default:
		return why
	}
}

// change says what changes.
func (s *Step) change() string {
	size, delay := fmt.Sprintf("batch size %d", s.From.Size), "delay "+short(s.From.Delay)
	if s.From.Size != s.To.Size {
		size += fmt.Sprintf(" -> %d", s.To.Size)
	}
	if s.From.Delay != s.To.Delay {
		delay += " -> " + short(s.To.Delay)
	}
	switch {
	case s.From == s.To:
		return size + " and " + delay + " are kept"
	case s.From.Size == s.To.Size:
		return delay
	case s.From.Delay == s.To.Delay:
		return size
	default:
		return size + ", " + delay
	}
}

// short writes a time with three digits.
func short(d time.Duration) string {
	unit := time.Nanosecond
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}
