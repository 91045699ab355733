package rollout

import (
	"math/rand/v2"
	"sync"
	"time"
)

// deaths counts the workers of all versions that have died lately, so that many that die together, as when memory runs out, are not started again
// together. The zero value has none.
type deaths struct {
	mu     sync.Mutex // guards what follows
	latest []time.Time
}

const (
	oneEvent   = time.Second            // deaths within it are one event
	fewDeaths  = 2                      // as many in that time are no event: their workers start as TorchServe's do
	eachSpread = 200 * time.Millisecond // for each death, starts are spread over so much more time
	mostSpread = 10 * time.Second
)

// spread notes a death, and gives how much later than after its pause the worker is to be started again: nothing, unless many die together.
func (d *deaths) spread(now time.Time, pause time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.latest) > 0 && now.Sub(d.latest[0]) > oneEvent {
		d.latest = d.latest[1:]
	}
	d.latest = append(d.latest, now)
	n := len(d.latest)
	if n <= fewDeaths {
		return 0
	}
	most := min(time.Duration(n)*eachSpread, mostSpread) + pause/4
	return rand.N(most) //nolint:gosec // no secret depends on it
}
