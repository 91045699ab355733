package rollout

import (
	"fmt"
	"math"
	"time"
)

// Demand is what waits for a version.
type Demand struct {
	Waiting int           // requests that no worker has yet
	Oldest  time.Duration // for how long the one has that has waited longest; 0 when none waits
}

// Autoscale says how the number of workers follows the load between a version's minimum and maximum. Zero values mean the defaults.
type Autoscale struct {
	// Wait is how long a request may wait for a worker before there are to be more.
	Wait time.Duration
	// Calm is for how long fewer workers must have been enough before some are ended.
	Calm time.Duration
}

// The defaults of Autoscale.
const (
	defaultWait = 100 * time.Millisecond
	defaultCalm = 30 * time.Second
)

const (
	tendEvery    = 250 * time.Millisecond // between two looks at a version
	hotSamples   = 2                      // looks in a row that must find a request that has waited too long
	settleAfter  = time.Second            // after workers were added, before more are
	fullEnough   = 0.7                    // share of its time that a worker may be busy when fewer workers are to be enough
	mostPatience = 16                     // by how much Calm grows at most when workers were missed that had been ended
)

// sample is how a version does at a moment.
type sample struct {
	at             time.Time
	min, max       int
	workers, ready int // that it has, without those that gave up; and that are ready
	again, away    int // that start again after a failure; and that failed and are not started yet
	batch          int // requests that a worker takes at once
	demand         Demand
	busy           float64 // slots in use since the last sample, on average
	peak           int     // and the most at one time
	begun          bool    // a batch was begun since then
	keepAlive      time.Duration
}

// scaler decides how many workers a version is to have. It grows fast, while requests wait, and shrinks slowly.
type scaler struct {
	Autoscale

	hot        int       // samples in a row in which a request has waited too long
	nextUp     time.Time // no workers are added before
	calmSince  time.Time // since when fewer workers would have been enough; zero: they would not
	need       int       // how many would have been, since then
	lastDown   time.Time // when workers were ended last
	reluctance int       // what Calm is multiplied by: it doubles when workers are missed soon after they were ended
	quietSince time.Time // since when there was no request at all
}

func newScaler(a Autoscale) *scaler {
	if a.Wait <= 0 {
		a.Wait = defaultWait
	}
	if a.Calm <= 0 {
		a.Calm = defaultCalm
	}
	return &scaler{Autoscale: a, reluctance: 1}
}

// decide gives how many workers there are to be, and why when that is another number.
func (s *scaler) decide(x *sample) (workers int, why string) {
	n := x.workers
	if x.begun || x.demand.Waiting > 0 || x.busy > 0 || s.quietSince.IsZero() {
		s.quietSince = x.at
	}
	if n == 0 || x.ready+x.again+x.away < n { // nobody knows yet what those that start for the first time will do
		s.hot, s.calmSince = 0, time.Time{}
		return n, ""
	}
	if x.demand.Oldest >= s.Wait {
		s.hot++
	} else {
		s.hot = 0
	}
	// One that starts again may be enough soon; where none is ready, more of the same would not come up either.
	if s.hot >= hotSamples && n < x.max && x.again == 0 && x.ready > 0 && !x.at.Before(s.nextUp) {
		return s.up(x)
	}
	if n == 1 && x.min == 0 && x.keepAlive > 0 && x.at.Sub(s.quietSince) >= x.keepAlive {
		return 0, fmt.Sprintf("no request for %s (keepAlive)", x.keepAlive)
	}
	return s.down(x)
}

// up adds as many workers as are ready, but no more than requests wait.
func (s *scaler) up(x *sample) (workers int, why string) {
	batches := (x.demand.Waiting + x.batch - 1) / x.batch
	step := max(1, min(x.ready, batches))
	s.hot, s.calmSince, s.nextUp = 0, time.Time{}, x.at.Add(settleAfter)
	switch {
	case s.lastDown.IsZero():
	case x.at.Sub(s.lastDown) < 2*s.patience():
		s.reluctance = min(2*s.reluctance, mostPatience)
	default:
		s.reluctance = 1
	}
	return min(x.max, x.workers+step), fmt.Sprintf("the oldest of %d waiting requests has waited %s, more than %s; %.1f of %d workers were busy",
		x.demand.Waiting, x.demand.Oldest.Round(time.Millisecond), s.Wait, x.busy, x.workers)
}

// patience is for how long fewer workers must have been enough now.
func (s *scaler) patience() time.Duration { return s.Calm * time.Duration(s.reluctance) }

// down ends half of the workers at most, once fewer have been enough for long: as many as were busy at the same time, or so many that each has some
// time to spare.
func (s *scaler) down(x *sample) (workers int, why string) {
	n := x.workers
	need := max(1, x.min, min(x.peak, int(math.Ceil(x.busy/fullEnough))))
	if x.demand.Oldest >= s.Wait/2 || need >= n {
		s.calmSince = time.Time{}
		return n, ""
	}
	if s.calmSince.IsZero() {
		s.calmSince, s.need = x.at, need
	}
	s.need = max(s.need, need)
	calm := x.at.Sub(s.calmSince)
	if calm < s.patience() {
		return n, ""
	}
	to := max(s.need, (n+1)/2)
	s.calmSince, s.lastDown = time.Time{}, x.at
	return to, fmt.Sprintf("%d of %d workers were enough for %s", s.need, n, calm.Round(time.Second))
}
