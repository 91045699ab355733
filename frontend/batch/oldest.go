package batch

import "time"

// Oldest is for how long that request waits for a worker that has waited longest, and 0 when none waits.
func (q *Queue) Oldest() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return elapsed(q.waiting.oldest())
}

// Oldest is for how long that request waits for its worker that has waited longest, and 0 when none waits. One that waits for the answer to another one
// of its own sequence does not count: no other worker could have it.
func (s *Sequences) Oldest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var since time.Time
	for _, q := range s.open {
		if q.jobs.Len() > 0 && q.running == 0 {
			since = earlier(since, first(&q.jobs).arrived)
		}
	}
	return elapsed(since)
}

// earlier gives the earlier one of two times; a zero one is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

func elapsed(since time.Time) time.Duration {
	if since.IsZero() {
		return 0
	}
	return time.Since(since)
}
