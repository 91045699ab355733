package recent

import (
	"fmt"
	"time"
)

// little is what no part of a request's time has to explain.
const little = time.Millisecond

// Why says in a line where most of the request's time went.
func (r *Request) Why() string {
	parts := []struct {
		took time.Duration
		text func() string
	}{{r.Waited, r.whyWaited}, {r.Gathered, r.whyGathered}, {r.Ran, r.whyRan}}
	longest := parts[0]
	for _, p := range parts[1:] {
		if p.took > longest.took {
			longest = p
		}
	}
	if longest.took < little {
		return "nothing took long"
	}
	return longest.text()
}

func (r *Request) whyWaited() string {
	b := r.Behind
	switch {
	case b != nil:
		return fmt.Sprintf("queue %s behind batch %d (%s, %s in worker %d)", round(r.Waited), b.Number, plural(len(b.Requests), "request"), round(b.Ran), b.Worker)
	case r.Batch == nil:
		return fmt.Sprintf("queue %s, and no worker took it", round(r.Waited))
	}
	return fmt.Sprintf("queue %s until a worker was ready", round(r.Waited))
}

func (r *Request) whyGathered() string {
	if r.Batch == nil {
		return fmt.Sprintf("batch %s of waiting for others", round(r.Gathered))
	}
	return fmt.Sprintf("batch %s of waiting for others, until there were %d", round(r.Gathered), len(r.Batch.Requests))
}

func (r *Request) whyRan() string {
	if r.Batch == nil {
		return fmt.Sprintf("worker %s", round(r.Ran))
	}
	if n := len(r.Batch.Requests); n > 1 {
		return fmt.Sprintf("worker %d took %s for the batch of %d", r.Batch.Worker, round(r.Ran), n)
	}
	return fmt.Sprintf("worker %d took %s", r.Batch.Worker, round(r.Ran))
}

// round leaves about three digits.
func round(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond)
	case d >= 100*time.Millisecond:
		return d.Round(time.Millisecond)
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(time.Microsecond)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
