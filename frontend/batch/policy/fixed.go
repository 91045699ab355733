package policy

import "time"

// fixed is TorchServe's rule: a batch leaves when it is full, or when its oldest request has waited for the delay. With preferred sizes it also leaves
// as soon as it comes to one of them, as Triton's does.
type fixed struct {
	limits Limits
	steps  steps
}

var _ Policy = (*fixed)(nil)

// Decide implements Policy.
func (f *fixed) Decide(now Moment, s State) Decision {
	return fullOrLate(now, &s, f.limits, &f.steps)
}

// fullOrLate is the rule.
func fullOrLate(now Moment, s *State, l Limits, p *steps) Decision {
	have := s.have()
	if s.Running || have >= l.Size && len(p.sizes) == 0 {
		return Decision{Size: max(l.Size, s.Gathered)}
	}
	most := min(have, l.Size)
	if wait := s.Oldest + l.Delay - now; wait > 0 {
		if n := p.floor(most); n > 0 {
			return Decision{Size: max(n, s.Gathered)}
		}
		if have < l.Size {
			return Decision{Size: l.Size, Wait: wait}
		}
	}
	return Decision{Size: max(p.trim(most), s.Gathered)}
}

// Arrived implements Policy; the rule does not learn.
func (*fixed) Arrived(Moment) {}

// Left implements Policy.
func (*fixed) Left(Moment) {}

// Sent implements Policy.
func (*fixed) Sent(Moment, State, int) {}

// Done implements Policy.
func (*fixed) Done(Moment, int, time.Duration) {}

// Answered implements Policy.
func (*fixed) Answered(Moment, time.Duration) {}
