// Package policy decides when a batch leaves and with how many requests; it knows no clock, starts nothing and is told what happens.
package policy

import (
	"fmt"
	"slices"
	"time"
)

// Moment is a point in time, counted from one that does not change while a Policy lives. A policy compares moments and never asks for one.
type Moment = time.Duration

// Policy decides for one queue. Its methods are called one at a time, with moments that never go back, and none of them allocates.
//
// A queue that holds a free slot asks Decide with what it has, takes as many requests as the answer allows, and either lets the batch go or waits
// and asks again: after the wait, or as soon as something arrives, leaves or is done.
type Policy interface {
	// Decide says what to do with what can be taken now. It changes nothing that a second call would see.
	Decide(now Moment, s State) Decision

	Arrived(now Moment)
	// Left is told of a request that arrived and will not be run: its client went, or its time was over.
	Left(now Moment)
	// Sent is told of each batch that a worker begins, by what there was just before and how many requests left; and of those that join a batch that
	// is running.
	Sent(now Moment, s State, size int)
	// Done is told of the requests that Sent was told of, when they are done, before anybody has their answers. A time of 0 or less says nothing about
	// the model: the batch failed, or had several steps.
	Done(now Moment, size int, took time.Duration)
	// Answered is told how long each request took that was run, from its arrival to its answer.
	Answered(now Moment, total time.Duration)
}

// State is what a queue has at hand while it holds a free slot.
type State struct {
	Gathered int    // requests that the batch has
	Waiting  int    // others that it could take now
	Free     int    // slots that are free besides this one
	Busy     int    // slots that run a batch
	Oldest   Moment // when the oldest one of them all arrived
	Slot     Moment // when the queue got the slot
	// Running says that a continuous batch asks between two of its steps: nobody waits for others then, and only Decision.Size counts.
	Running bool
}

// have is how large a batch could be now.
func (s *State) have() int { return s.Gathered + s.Waiting }

// begun is the moment since which a batch could have left.
func (s *State) begun() Moment { return max(s.Oldest, s.Slot) }

// slots is how many there are.
func (s *State) slots() int { return s.Busy + s.Free + 1 }

// Decision is what a queue is to do.
type Decision struct {
	Size int           // the batch takes requests up to so many; never below 1 nor below what it has
	Wait time.Duration // how long it may wait for more; 0: it leaves now, with what there is
}

// Limits bound every policy.
type Limits struct {
	Size  int           // most requests of a batch; below 1 counts as 1
	Delay time.Duration // how long a request waits for others; below 0 counts as 0
}

// Rule names a policy.
type Rule string

// The rules that settings may name.
const (
	Adaptive   Rule = "adaptive"   // learns where waiting pays
	TorchServe Rule = "torchserve" // a batch leaves when it is full or its oldest request has waited for the delay
)

// Options choose a policy.
type Options struct {
	Limits
	// Rule is Adaptive when empty.
	Rule Rule
	// Preferred are sizes at which the model is at its best. A batch that has come to one of them and cannot come to the next leaves at once.
	// Those above Size are of no use and ignored.
	Preferred []int
	// Padded says that the model pads a batch to the next preferred size, so that all sizes up to it cost the same.
	Padded bool
	// Goal is the 99th percentile, from a request's arrival to its answer, toward which Limits are narrowed while the queue runs; 0 for none.
	// It needs the adaptive rule.
	Goal time.Duration
}

// Equal says whether two Options choose the same, so that what was learned for one holds for the other.
func (o Options) Equal(other Options) bool {
	a, b := o.normal(), other.normal()
	return a.Limits == b.Limits && a.Rule == b.Rule && a.Padded == b.Padded && a.Goal == b.Goal && slices.Equal(a.Preferred, b.Preferred)
}

// normal gives Options with what is left out filled in, and without what has no effect.
func (o Options) normal() Options {
	o.Size, o.Delay = max(o.Size, 1), max(o.Delay, 0)
	if o.Rule == "" {
		o.Rule = Adaptive
	}
	var sizes []int
	for _, n := range o.Preferred {
		if n <= o.Size {
			sizes = append(sizes, n)
		}
	}
	slices.Sort(sizes)
	o.Preferred = slices.Compact(sizes)
	if len(o.Preferred) == 0 {
		o.Padded = false
	}
	return o
}

// New makes a policy that has learned nothing yet.
func New(o Options) (Policy, error) {
	for _, n := range o.Preferred {
		if n < 1 {
			return nil, fmt.Errorf("preferred batch size %d: it must be at least 1", n)
		}
	}
	if o.Goal < 0 {
		return nil, fmt.Errorf("latency goal %s: it must not be negative", o.Goal)
	}
	o = o.normal()
	sizes := steps{sizes: o.Preferred, padded: o.Padded}
	switch {
	case o.Rule == TorchServe && o.Goal > 0:
		return nil, fmt.Errorf("a latency goal of %s needs the rule %q: under %q size and delay are fixed", o.Goal, Adaptive, TorchServe)
	case o.Rule == TorchServe:
		return &fixed{limits: o.Limits, steps: sizes}, nil
	case o.Rule != Adaptive:
		return nil, fmt.Errorf("batching rule %q: it must be %q or %q", o.Rule, Adaptive, TorchServe)
	case o.Goal > 0:
		return newTuned(o.Limits, sizes, o.Goal), nil
	default:
		return newLearning(o.Limits, sizes), nil
	}
}
