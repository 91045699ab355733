package policy

import "time"

// Tuner is a Policy that moves its limits toward a goal while it runs.
type Tuner interface {
	Policy
	// Limits gives those of this moment, and the bounds that they stay within.
	Limits() (now, bounds Limits)
	// Freeze keeps the limits as they are from now on, or lets them move again.
	Freeze(on bool)
	// Frozen says whether they are kept.
	Frozen() bool
	// Step gives the oldest step that was not asked for yet. Of those that nobody asks for, only the latest few are kept.
	Step() (Step, bool)
}

// tuned is the adaptive rule with limits that move toward a goal. It looks at what was measured every few seconds. When the goal is missed it takes away
// what the numbers blame: the time that batches are kept for others, or the size of large batches if smaller ones can still do all the work. A step that
// does not help is undone, and not tried again for a while. When the goal leaves room, it gives back what holds batches down. Whenever the direction
// changes, the next step waits twice as long.
type tuned struct {
	learning
	bounds Limits
	goal   time.Duration
	frozen bool

	window window
	missed int     // windows in a row whose answers missed the goal
	said   bool    // that nothing would help
	pause  Moment  // between two steps
	quiet  Moment  // no step before
	grew   bool    // the direction of the latest step
	trying bool    // the latest step has to show that it helps
	tried  attempt // the latest that had to
	rate   float64 // answers per second, at the latest step
	barred [2]bar  // for each knob

	kept  [stepsKept]Step
	first int
	count int
}

// attempt is a step that has to show that it helps.
type attempt struct {
	knob knob
	from Limits
	p99  time.Duration
	rate float64
}

type knob int

const (
	delayKnob knob = iota
	sizeKnob
)

// bar keeps a knob from being turned down again after that did not help.
type bar struct{ until, length Moment }

const (
	stepsKept    = 8
	windowLength = 4 * time.Second
	windowMost   = time.Minute // after which too few answers are forgotten
	windowLeast  = 100         // answers
	pauseLeast   = 4 * time.Second
	pauseMost    = 2 * time.Minute
	barLeast     = time.Minute
	barMost      = 16 * time.Minute
	spare        = 1.5 // how much more than the load smaller batches have to be able to do
)

var _ Tuner = (*tuned)(nil)

func newTuned(l Limits, p steps, goal time.Duration) *tuned {
	t := &tuned{learning: learning{limits: l, steps: p}, bounds: l, goal: goal, pause: pauseLeast}
	t.trial = trialBatches // who states a goal asks for it from the first request on
	return t
}

// Limits implements Tuner.
func (t *tuned) Limits() (now, bounds Limits) { return t.limits, t.bounds }

// Freeze implements Tuner.
func (t *tuned) Freeze(on bool) {
	t.frozen = on
	t.trying, t.missed, t.window.opened = false, 0, false
}

// Frozen implements Tuner.
func (t *tuned) Frozen() bool { return t.frozen }

// Step implements Tuner.
func (t *tuned) Step() (Step, bool) {
	if t.count == 0 {
		return Step{}, false
	}
	s := t.kept[t.first]
	t.first = (t.first + 1) % stepsKept
	t.count--
	return s, true
}

// Sent implements Policy.
func (t *tuned) Sent(now Moment, s State, size int) {
	t.learning.Sent(now, s, size)
	t.window.sent(now-s.begun(), size, t.limits)
}

// Answered implements Policy.
func (t *tuned) Answered(_ Moment, total time.Duration) { t.window.total.add(total) }

// Done implements Policy.
func (t *tuned) Done(now Moment, size int, took time.Duration) {
	t.learning.Done(now, size, took)
	w := &t.window
	switch {
	case t.frozen:
	case !w.opened:
		w.open(now)
	case now-w.begun < windowLength:
	case w.total.n >= windowLeast:
		t.look(now)
		w.open(now)
	case now-w.begun >= windowMost:
		w.open(now)
	}
}

// look compares a window with the goal, and takes a step if there is one to take.
func (t *tuned) look(now Moment) {
	p99 := t.window.total.percentile(99)
	rate := float64(t.window.total.n) / (now - t.window.begun).Seconds()
	if t.rate > 0 && (rate > 2*t.rate || 2*rate < t.rate) { // another load: what was found out does not count any more
		t.pause, t.trying, t.barred, t.rate = pauseLeast, false, [2]bar{}, rate
	}
	if t.trying && t.undo(now, p99, rate) {
		return
	}
	t.trying = false
	if p99 <= t.goal {
		t.missed, t.said = 0, false
		if now >= t.quiet {
			t.grow(now, p99, rate)
		}
		return
	}
	t.missed++
	if now >= t.quiet && (t.missed > 1 || 5*p99 > 6*t.goal) {
		t.shrink(now, p99, rate)
	}
}

// undo takes back a step that did not help, and says whether it did.
func (t *tuned) undo(now Moment, p99 time.Duration, rate float64) bool {
	was := &t.tried
	if p99 <= t.goal && rate > .95*was.rate || float64(p99) < .95*float64(was.p99) && rate > .9*was.rate {
		return false
	}
	t.trying = false
	b := &t.barred[was.knob]
	b.length = min(max(2*b.length, barLeast), barMost)
	b.until = now + b.length
	t.step(now, Undone, was.from, p99, rate)
	return true
}

// shrink takes away what makes answers late.
func (t *tuned) shrink(now Moment, p99 time.Duration, rate float64) {
	held := t.window.held.percentile(99)
	if 20*held > t.goal && now >= t.barred[delayKnob].until {
		to := Limits{t.limits.Size, min(held, t.limits.Delay) / 2}
		if 40*to.Delay < t.goal {
			to.Delay = 0
		}
		t.try(now, ShorterDelay, delayKnob, to, p99, rate)
		return
	}
	if to := t.smaller(p99, rate); to < t.limits.Size && now >= t.barred[sizeKnob].until {
		t.try(now, SmallerBatch, sizeKnob, Limits{to, t.limits.Delay}, p99, rate)
		return
	}
	if !t.said { // once, until the goal is reached again
		t.said = true
		t.step(now, OutOfReach, t.limits, p99, rate)
	}
}

// smaller gives the largest size below that of the largest batch with which a request may run after another batch and meet the goal, and which can still
// do the work: well, so that no queue grows, or just so where one batch alone misses the goal. It gives the present size when there is none.
func (t *tuned) smaller(p99 time.Duration, rate float64) int {
	slots := float64(max(t.slots, 1))
	longest := t.costs.about(t.window.largest)
	queued := max(p99-longest, 0) // what it waits besides
	need := spare * rate
	if longest > t.goal {
		need = rate
	}
	for size := t.window.largest - 1; size >= 1; size-- {
		takes := t.costs.about(size)
		if takes+min(queued, takes) > t.goal {
			continue
		}
		if slots*float64(size)/takes.Seconds() < need {
			break
		}
		if n := t.learning.steps.floor(size); n > 0 {
			return n
		}
		return size
	}
	return t.limits.Size
}

// grow gives back what holds batches down, a quarter of it at a time, while the goal leaves room for that.
func (t *tuned) grow(now Moment, p99 time.Duration, rate float64) {
	w, l := &t.window, t.limits
	room := t.goal - t.goal/20 - p99
	if l.Size < t.bounds.Size && 4*w.full > w.held.n {
		to := min(t.learning.steps.ceil(l.Size+(l.Size+3)/4), t.bounds.Size)
		if 2*(t.costs.about(to)-t.costs.about(l.Size)) <= room {
			t.step(now, LargerBatch, Limits{to, l.Delay}, p99, rate)
			return
		}
	}
	if l.Delay < t.bounds.Delay && 4*w.late > w.held.n && w.meanSize() < l.Size && t.crowd.most > w.meanSize() {
		to := min(max(l.Delay+l.Delay/4, t.goal/40, time.Millisecond), t.bounds.Delay)
		if to-l.Delay <= room {
			t.step(now, LongerDelay, Limits{l.Size, to}, p99, rate)
		}
	}
}

// try takes a step that has to show that it helps.
func (t *tuned) try(now Moment, reason Reason, k knob, to Limits, p99 time.Duration, rate float64) {
	t.tried = attempt{k, t.limits, p99, rate}
	t.step(now, reason, to, p99, rate)
	t.trying = true
}

// step changes the limits and keeps the reason.
func (t *tuned) step(now Moment, reason Reason, to Limits, p99 time.Duration, rate float64) {
	w := &t.window
	s := Step{
		At: now, Reason: reason, From: t.limits, To: to, Goal: t.goal, P99: p99, Before: t.tried.p99, Answers: w.total.n, Over: now - w.begun,
		Held: w.held.percentile(99), Size: w.meanSize(), Largest: w.largest, Takes: t.costs.about(w.largest), Would: t.costs.about(to.Size),
	}
	t.rate = rate
	grow := to.Size > t.limits.Size || to.Delay > t.limits.Delay
	if reason != OutOfReach && grow != t.grew && t.limits != t.bounds {
		t.pause = min(2*t.pause, pauseMost)
	}
	t.grew = grow
	t.quiet = now + t.pause
	t.limits = to
	if t.count == stepsKept {
		t.first, t.count = (t.first+1)%stepsKept, t.count-1
	}
	t.kept[(t.first+t.count)%stepsKept] = s
	t.count++
}
