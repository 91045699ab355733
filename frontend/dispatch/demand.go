package dispatch

import (
	"time"

	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// Demand tells how many requests wait for a version's workers, and for how long the one does that has waited longest.
func (d *Dispatcher) Demand(v *rollout.Version) (waiting int, oldest time.Duration) {
	d.mu.Lock()
	l := d.lines[v]
	d.mu.Unlock()
	if l == nil {
		return 0, 0
	}
	waiting, _ = l.queue.Waiting()
	return waiting, l.queue.Oldest()
}
