package policy

import (
	"strings"
	"testing"
	"time"
)

// lastMinute counts the changes of a run's last minute.
func lastMinute(r *result, until Moment) int {
	n := 0
	for _, s := range r.steps {
		if s.At > until-time.Minute && s.From != s.To {
			n++
		}
	}
	return n
}

func tune(t *testing.T, goal time.Duration, w world) (*result, Tuner) {
	t.Helper()
	p, ok := newPolicy(t, Options{Limits: Limits{64, 100 * ms}, Goal: goal}).(Tuner)
	if !ok {
		t.Fatal("a policy with a goal is no Tuner")
	}
	return w.run(p), p
}

func TestGoalIsMetAtTheBestThroughputWithoutOscillation(t *testing.T) {
	for _, tc := range []struct {
		name    string
		workers int
		noise   float64
		goal    time.Duration
	}{
		{"one worker", 1, 0, 200 * ms},
		{"one worker, noise", 1, .3, 220 * ms},
		{"two workers, noise", 2, .3, 130 * ms},
		{"four workers", 4, 0, 80 * ms},
		{"four workers, noise", 4, .3, 80 * ms},
	} {
		t.Run(tc.name, func(t *testing.T) {
			world := func() world {
				w := handler(loop(64), tc.workers, tc.noise)
				w.from, w.until = 40*time.Second, 60*time.Second
				return w
			}
			best, of := grid(t, world, 64, faster)
			got, p := tune(t, tc.goal, world())
			if got.rate < .95*best.rate {
				t.Errorf("%.1f/s, the best is %.1f/s with %v", got.rate, best.rate, of)
			}
			if p99 := got.percentile(99); p99 > tc.goal {
				t.Errorf("p99 is %v in the last 20 s, the goal is %v", p99, tc.goal)
			}
			if n := lastMinute(got, 60*time.Second); n >= 6 {
				t.Errorf("%d changes in a minute: %v", n, got.steps)
			}
			if now, bounds := p.Limits(); now.Size > bounds.Size || now.Delay > bounds.Delay {
				t.Errorf("limits %v are above their bounds %v", now, bounds)
			}
		})
	}
}

func TestLoneClientAfterALoadWaitsForNobody(t *testing.T) {
	l := loop(64)
	l.phases = []phase{{0, 64}, {60 * time.Second, 1}}
	w := handler(l, 1, .3)
	w.from, w.until = 65*time.Second, 75*time.Second
	r, _ := tune(t, 220*ms, w)
	if len(r.held) < 100 {
		t.Fatalf("only %d batches", len(r.held))
	}
	for _, held := range r.held {
		if held >= 2*ms {
			t.Fatalf("5 s after the load had dropped, a request waited %v for others", held)
		}
	}
}

func square(n int) time.Duration { return 20*ms + time.Duration(n*n)*ms/10 }

func TestBatchesThatRunTooLongBecomeSmaller(t *testing.T) {
	w := handler(loop(64), 1, .1)
	w.took, w.from, w.until = square, 40*time.Second, 60*time.Second
	r, p := tune(t, 300*ms, w)
	if p99 := r.percentile(99); p99 > 300*ms {
		t.Errorf("p99 is %v", p99)
	}
	now, _ := p.Limits()
	if len(r.steps) == 0 || r.steps[0].Reason != SmallerBatch || now.Size >= 64 || now.Size < 20 {
		t.Fatalf("limits %v after %v", now, r.steps)
	}
	text := r.steps[0].String()
	for _, part := range []string{"batch size 64 -> ", "p99 was 4", "the goal is 300ms", "a batch of 64 takes 4", " answers in "} {
		if !strings.Contains(text, part) {
			t.Errorf("the step says %q, without %q", text, part)
		}
	}
}

func TestLimitsGrowAgainWhenTheGoalLeavesRoom(t *testing.T) {
	w := handler(loop(64), 1, .1)
	slow := true
	w.took = func(n int) time.Duration {
		if slow {
			return square(n)
		}
		return 20*ms + time.Duration(n)*ms
	}
	w.check = func(now Moment, _ State, _ Decision) { slow = now < 30*time.Second }
	w.from, w.until = 170*time.Second, 180*time.Second
	r, p := tune(t, 300*ms, w)
	if now, _ := p.Limits(); now.Size != 64 {
		t.Errorf("the size is %d again after %v", now.Size, r.steps)
	}
	if last := r.steps[len(r.steps)-1]; last.Reason != LargerBatch || !strings.Contains(last.String(), "batches are full") {
		t.Errorf("the last step: %v", last)
	}
}

func TestGoalOutOfReachCostsNothingAndIsSaid(t *testing.T) {
	w := handler(loop(64), 1, .3)
	w.from, w.until = 20*time.Second, 140*time.Second
	plain := w.run(newPolicy(t, Options{Limits: Limits{64, 100 * ms}}))
	w.load = loop(64)
	r, _ := tune(t, 100*ms, w)
	if r.rate < .95*plain.rate {
		t.Errorf("%.1f/s instead of %.1f/s: %v", r.rate, plain.rate, r.steps)
	}
	if n := lastMinute(r, 140*time.Second); n >= 6 {
		t.Errorf("%d changes in the last minute: %v", n, r.steps)
	}
	said := false
	for _, s := range r.steps {
		said = said || s.Reason == OutOfReach && strings.Contains(s.String(), "add workers")
	}
	if !said {
		t.Errorf("nobody is told that the goal is out of reach: %v", r.steps)
	}
}

// A step that makes it worse is taken back: here short delays split batches, which then take turns.
func TestStepThatDoesNotHelpIsUndoneAndBarred(t *testing.T) {
	w := handler(loop(64), 1, .3)
	w.until = 40 * time.Second
	r, p := tune(t, 80*ms, w)
	if len(r.steps) < 2 || r.steps[0].Reason != ShorterDelay || r.steps[1].Reason != Undone || r.steps[1].To != r.steps[0].From {
		t.Fatalf("steps: %v", r.steps)
	}
	if !strings.Contains(r.steps[1].String(), "taken back") || !strings.Contains(r.steps[0].String(), "batches waited up to") {
		t.Errorf("steps: %v", r.steps)
	}
	for _, s := range r.steps[2:] {
		if s.Reason == ShorterDelay {
			t.Errorf("tried again too soon: %v", s)
		}
	}
	if now, bounds := p.Limits(); now != bounds {
		t.Errorf("limits %v, want %v", now, bounds)
	}
}

func TestFrozenLimitsStay(t *testing.T) {
	w := handler(loop(64), 1, .1)
	w.took, w.until = square, 60*time.Second
	p, _ := newPolicy(t, Options{Limits: Limits{64, 100 * ms}, Goal: 300 * ms}).(Tuner)
	p.Freeze(true)
	if !p.Frozen() {
		t.Error("frozen, and does not say so")
	}
	if r := w.run(p); len(r.steps) > 0 {
		t.Errorf("frozen, and yet %v", r.steps)
	}
	p.Freeze(false)
	w.load = loop(64)
	if r := w.run(p); len(r.steps) == 0 {
		t.Error("nothing was changed when it was let go")
	}
}

func TestLatestStepsAreKept(t *testing.T) {
	p := newTuned(Limits{64, 100 * ms}, steps{}, 100*ms)
	for i := range 3 * stepsKept {
		p.step(Moment(i), OutOfReach, p.limits, 0, 1)
	}
	for i := range stepsKept {
		if s, ok := p.Step(); !ok || s.At != Moment(2*stepsKept+i) {
			t.Fatalf("step %d: %v, %v", i, s.At, ok)
		}
	}
	if _, ok := p.Step(); ok {
		t.Error("a step too many")
	}
}

func TestStepsSayWhatChanged(t *testing.T) {
	s := Step{From: Limits{8, 10 * ms}, To: Limits{8, 12*ms + 345678}, Reason: LongerDelay, Goal: 100 * ms, P99: 51234567, Answers: 7, Over: 4 * time.Second, Size: 3}
	want := "delay 10ms -> 12.3ms: p99 was 51.2ms over 7 answers in 4s, the goal is 100ms; batches leave with 3 of 8 on average"
	if got := s.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	s = Step{From: Limits{8, 10 * ms}, To: Limits{9, 0}, Reason: Undone, Before: time.Second}
	if got := s.String(); !strings.HasPrefix(got, "batch size 8 -> 9, delay 10ms -> 0s: ") {
		t.Error(got)
	}
}

func TestPercentilesAreExactToAFewPercent(t *testing.T) {
	var s spread
	if got := s.percentile(99); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
	for i := 1; i <= 10000; i++ {
		s.add(time.Duration(i) * 100 * time.Microsecond)
	}
	for _, p := range []int{1, 50, 90, 99, 100} {
		want := time.Duration(p) * 10 * ms
		if got := s.percentile(p); got < want*97/100 || got > want*103/100 {
			t.Errorf("%d%%: %v, want %v", p, got, want)
		}
	}
	s = spread{}
	s.add(-ms)
	s.add(24 * time.Hour)
	if got := s.percentile(100); got != 24*time.Hour {
		t.Errorf("far out: %v", got)
	}
}
