package policy

import "time"

// learning is the adaptive rule. It begins as TorchServe's. Once several batches have left that were not full, it waits only for requests that it
// expects, and only for as long as a fuller batch saves more time than the waiting costs. It expects those that are missing to the crowd that there
// was of late, at the pace at which they came of late.
type learning struct {
	limits Limits
	steps  steps

	trial int // batches that left by TorchServe's rule and would have left otherwise by what was learned, or were not full
	crowd crowd
	costs costs
	gaps  gaps
	slots int    // how many slots there are, as far as was seen
	last  Moment // the last arrival or end of a batch, after which the next arrival is expected
	told  bool   // last is known

	// Computed at the end of each batch, in nanoseconds.
	budget   float64 // the longest time that a fuller batch is worth
	patience float64 // how long the next arrival is waited for
	pace     float64 // how long it takes when it comes
	paced    bool    // the two are known
}

const (
	// trialBatches are the batches that are not full and yet are let go by TorchServe's rule, before what was learned counts.
	trialBatches = 5
	// worth is how much of a batch's fixed time may be spent on making it fuller: more than all of it is lost.
	worth = 1.
	// lenience is how much longer than best the policy waits: what comes later than ever before is not noticed else.
	lenience = 2
)

var _ Policy = (*learning)(nil)

func newLearning(l Limits, p steps) *learning { return &learning{limits: l, steps: p} }

// Decide implements Policy.
func (a *learning) Decide(now Moment, s State) Decision {
	if s.Running || a.trial < trialBatches {
		return fullOrLate(now, &s, a.limits, &a.steps)
	}
	have := s.have()
	missing := max(a.crowd.most-a.crowd.running-have, 0)
	size := max(a.share(&s), s.Gathered)
	target := a.target(size, have, missing)
	leave := Decision{Size: max(a.steps.trim(min(have, size)), s.Gathered)}
	if have >= target {
		leave.Size = max(target, s.Gathered)
		return leave
	}
	if s.Free > 0 && s.Free*size >= missing { // who comes finds another slot
		return leave
	}
	begun := s.begun()
	gain := a.gain(have, target-have)
	patience, end := gain/4, float64(begun)+gain
	if a.paced {
		patience = min(a.patience, gain)
		if float64(now)+float64(target-have)*a.pace > end {
			return leave
		}
	}
	until := min(float64(max(a.last, begun))+patience, end, float64(begun+a.limits.Delay))
	if wait := Moment(until) - now; wait > 0 {
		return Decision{Size: size, Wait: wait}
	}
	return leave
}

// gain is how much time a batch is worth that grows from have by more requests. In a steady crowd those that it leaves behind need a batch of their own,
// or hold up another one: its fixed time is saved. Where others come anyhow, the time for each request is what falls.
func (a *learning) gain(have, more int) float64 {
	if a.crowd.steady {
		return a.budget
	}
	return a.budget * min(1, float64(more)/float64(have))
}

// share is the largest batch that leaves enough for the other slots.
func (a *learning) share(s *State) int {
	slots := s.slots()
	all := max(a.crowd.most, a.crowd.running+s.have(), 1)
	return min(a.steps.ceil((all+slots-1)/slots), a.limits.Size)
}

// target is the size that a batch is worth waiting for: what may come, down to a preferred size.
func (a *learning) target(size, have, missing int) int {
	most := min(size, have+missing)
	if n := a.steps.floor(most); n >= have || n > 0 && have > size {
		return n
	}
	return most
}

// Arrived implements Policy.
func (a *learning) Arrived(now Moment) {
	if a.told && a.crowd.missing() > 0 {
		a.gaps.arrived(now - a.last)
	}
	a.crowd.arrived()
	a.last, a.told = now, true
}

// Left implements Policy.
func (a *learning) Left(Moment) { a.crowd.left() }

// Sent implements Policy.
func (a *learning) Sent(now Moment, s State, size int) {
	if !s.Running && a.trial < trialBatches && (size < a.limits.Size || size > a.share(&s) || a.costs.known() && float64(now-s.begun()) > a.budget) {
		a.trial++
	}
	a.crowd.sent(size, s.have()-size)
	a.slots = s.slots()
}

// Done implements Policy.
func (a *learning) Done(now Moment, size int, took time.Duration) {
	if a.told && a.crowd.missing() > 0 {
		a.gaps.nothing(now - a.last)
	}
	a.crowd.ended(size, a.slots)
	if took > 0 {
		a.costs.observe(a.steps.cost(size), took)
	}
	a.last, a.told = now, true
	a.budget = worth * a.costs.fixed
	a.patience, a.pace, a.paced = a.gaps.best(a.budget)
	a.patience *= lenience
	a.gaps.forget()
}

// Answered implements Policy.
func (*learning) Answered(Moment, time.Duration) {}
