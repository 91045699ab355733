package e2e

import (
	"testing"
	"time"
)

// Phase is the time in which one number is the right answer, on a load's clock. Unlike a Mark it may bring an earlier number back.
type Phase struct {
	Number int
	Asked  time.Duration // when the change to it was asked for: no answer can have it before
	Done   time.Duration // when the server had said that it is what serves: every request that is sent later has this answer, or that of a later phase
}

// Outdated gives the samples with an answer that is of no phase that can have been in force: of one that a completed change had ended before the request was sent, or of
// one that nobody had asked for when the answer came. Phases are in the order of time, and the first one is in force from the beginning.
func Outdated(samples []Sample, phases []Phase) []Sample {
	var wrong []Sample
	for _, s := range samples {
		if s.Failure != "" {
			continue
		}
		first := 0
		for k := range phases {
			if phases[k].Done < s.Sent {
				first = k
			}
		}
		right := false
		for _, p := range phases[first:] {
			right = right || p.Number == s.Number && p.Asked <= s.Received
		}
		if !right {
			wrong = append(wrong, s)
		}
	}
	return wrong
}

// RequireInPhase fails the test when an answer is outdated.
func RequireInPhase(t *testing.T, samples []Sample, phases []Phase) {
	t.Helper()
	showSamples(t, "had an answer of a version that was not in force any more, or not yet", Outdated(samples, phases), len(samples))
}
