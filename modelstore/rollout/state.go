package rollout

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
)

// State is where one backend instance is in its life.
type State int

// The states, in the order of an ordinary life.
const (
	Starting State = iota // its process was started, the handshake is awaited
	Loading               // the handler loads the model
	Warming               // the first requests are tried
	Ready                 // it takes batches
	Draining              // it finishes what it has and takes nothing new
	Stopping              // it was told to end
	Failed                // it did not come up, or died
	Stopped               // its process is gone and reaped
)

// String gives the state's word.
func (s State) String() string {
	words := [...]string{"starting", "loading", "warming", "ready", "draining", "stopping", "failed", "stopped"}
	if s < 0 || int(s) >= len(words) {
		return fmt.Sprintf("state %d", int(s))
	}
	return words[s]
}

// next is the table of all the changes that exist. No state goes back: a restart is a new instance.
func next(s State) []State {
	switch s {
	case Starting:
		return []State{Loading, Failed}
	case Loading:
		return []State{Warming, Failed}
	case Warming:
		return []State{Ready, Failed}
	case Ready:
		return []State{Draining, Failed}
	case Draining:
		return []State{Stopping, Stopped}
	case Stopping, Failed:
		return []State{Stopped}
	case Stopped:
		return nil
	default:
		return nil
	}
}

// Event is one change of one instance.
type Event struct {
	At       time.Time
	Ref      infer.ModelRef
	WorkerID int
	From, To State
	Cause    error // why; nil for the steps of an ordinary start

	Generation int // which load of the version the instance is of, counted from 1
	Restarts   int // instances that the worker had before
}

// life is the state of one instance. One goroutine changes it, others may read it.
type life struct {
	generation int // which load of the version it is of

	mu     sync.Mutex // guards what follows
	state  State
	reason string
}

func (l *life) read() (State, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state, l.reason
}

// to changes the state. An illegal change is a bug: it is refused with an error, and the instance counts as failed.
func (l *life) to(s State, reason string) (from State, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from = l.state
	if !slices.Contains(next(from), s) {
		err = fmt.Errorf("instance cannot go from %s to %s (%s)", from, s, reason)
		s = Failed
	}
	l.state, l.reason = s, reason
	return from, err
}
