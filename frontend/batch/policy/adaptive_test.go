package policy

import (
	"slices"
	"testing"
	"time"
)

// handler is the model that most tests run: 20 ms and 2 ms for each request.
func handler(l load, workers int, noise float64) world {
	return world{load: l, workers: workers, fixed: 20 * ms, each: 2 * ms, noise: noise, from: 2 * time.Second, until: 7 * time.Second, seed: 1}
}

func TestLoneClientSoonWaitsForNobody(t *testing.T) {
	for _, size := range []int{2, 8, 64} {
		w := handler(loop(1), 1, .3)
		w.fixed, w.each, w.from = 20*ms, 0, 0
		r := w.run(newPolicy(t, Options{Limits: Limits{size, 100 * ms}}))
		if len(r.held) < 300 {
			t.Fatalf("size %d: only %d batches", size, len(r.held))
		}
		if r.held[0] != 100*ms || r.held[1] != 100*ms {
			t.Errorf("size %d: the first two requests waited %v, want TorchServe's 100ms", size, r.held[:2])
		}
		if worst := slices.Max(r.held[10:]); worst > ms {
			t.Errorf("size %d: after ten requests one waited %v, more than 5%% of the handler's 20ms", size, worst)
		}
	}
}

func TestThroughputIsThatOfTheBestGridPoint(t *testing.T) {
	if testing.Short() {
		t.Skip("plays many worlds")
	}
	slowReturn := loop(64)
	slowReturn.each = 150 * time.Microsecond
	for _, tc := range []struct {
		name    string
		load    func() load
		workers int
		size    int
		least   float64
	}{
		{"64 clients", func() load { return loop(64) }, 1, 64, .97},
		{"64 clients, size 48", func() load { return loop(64) }, 1, 48, .95},
		{"64 clients, size 8", func() load { return loop(64) }, 1, 8, .97},
		{"64 clients, two workers", func() load { return loop(64) }, 2, 64, .97},
		{"64 clients, four workers", func() load { return loop(64) }, 4, 64, .97},
		{"8 clients, two workers", func() load { return loop(8) }, 2, 8, .97},
		{"100 clients", func() load { return loop(100) }, 1, 64, .95},
		{"3 clients, two workers", func() load { return loop(3) }, 2, 8, .97},
		{"64 slow clients", func() load { l := slowReturn; l.lane = new(Moment); return l }, 1, 64, .95},
		{"64 thinking clients", func() load { l := loop(64); l.think = 50 * ms; return l }, 1, 64, .95},
		{"64 thinking clients, two workers", func() load { l := loop(64); l.think = 50 * ms; return l }, 2, 64, .95},
		{"64 clients that think a little, four workers", func() load { l := loop(64); l.think = 20 * ms; return l }, 4, 64, .95},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, noise := range []float64{0, .3} {
				world := func() world { return handler(tc.load(), tc.workers, noise) }
				best, of := grid(t, world, tc.size, faster)
				for _, goal := range []time.Duration{0, time.Second} {
					got := world().run(newPolicy(t, Options{Limits: Limits{tc.size, 100 * ms}, Goal: goal}))
					if got.rate < tc.least*best.rate {
						t.Errorf("noise %v, goal %v: %.1f/s, the best is %.1f/s with %v", noise, goal, got.rate, best.rate, of)
					}
				}
			}
		})
	}
}

func TestLatencyOfIndependentArrivalsIsNearThatOfTheBestGridPoint(t *testing.T) {
	if testing.Short() {
		t.Skip("plays many worlds")
	}
	for _, workers := range []int{1, 2, 4} {
		for _, rate := range []float64{20, 100, 200, 300} {
			world := func() world {
				w := handler(open(rate), workers, .2)
				w.until = 15 * time.Second
				return w
			}
			best, of := grid(t, world, 64, sooner)
			got := world().run(newPolicy(t, Options{Limits: Limits{64, 100 * ms}}))
			if float64(got.mean()) > 1.15*float64(best.mean()) {
				t.Errorf("%v/s, %d workers: %v on average, the best is %v with %v", rate, workers, got.mean(), best.mean(), of)
			}
		}
	}
}

// Full batches teach nothing while TorchServe's rule makes them: here a lone client comes first, so that what was learned decides when the load comes.
func TestThroughputOfWhatWasLearned(t *testing.T) {
	for _, workers := range []int{1, 2, 4} {
		for _, each := range []time.Duration{80 * time.Microsecond, 250 * time.Microsecond} {
			of64 := func(phases ...phase) world {
				l := loop(64)
				l.each, l.phases = each, phases
				w := handler(l, workers, .1)
				w.from, w.until = 4*time.Second, 12*time.Second
				return w
			}
			best, of := grid(t, func() world { return of64(phase{0, 64}) }, 64, faster)
			p := newLearning(Limits{64, 100 * ms}, steps{})
			got := of64(phase{0, 1}, phase{2 * time.Second, 64}).run(p)
			if p.trial < trialBatches {
				t.Fatal("nothing that was learned counts yet")
			}
			if got.rate < .95*best.rate {
				t.Errorf("%d workers, returns %v each: %.1f/s, the best is %.1f/s with %v", workers, each, got.rate, best.rate, of)
			}
		}
	}
}

// Batches that are always full in the end, because the next burst fills what the one before has left, are kept too long all the same.
func TestFullBatchesMayBeTooLate(t *testing.T) {
	world := func() world { return handler(bursts{size: 12, every: 100 * ms, state: &burstState{}}, 1, .1) }
	best, of := grid(t, world, 8, sooner)
	if got := world().run(newPolicy(t, Options{Limits: Limits{8, 100 * ms}})); float64(got.mean()) > 1.1*float64(best.mean()) {
		t.Errorf("%v on average, the best is %v with %v", got.mean(), best.mean(), of)
	}
}

func TestBurstsFillBatches(t *testing.T) {
	for _, every := range []time.Duration{50 * ms, 100 * ms, 350 * ms} {
		r := handler(bursts{size: 8, every: every, state: &burstState{}}, 1, .3).run(newPolicy(t, Options{Limits: Limits{8, 100 * ms}}))
		if r.meanSize() < 7.9 {
			t.Errorf("bursts of 8 each %v: batches of %.2f", every, r.meanSize())
		}
		r = handler(bursts{size: 8, random: true, every: every, state: &burstState{}}, 1, .1).run(newPolicy(t, Options{Limits: Limits{8, 100 * ms}}))
		if r.meanSize() < 3.8 { // 4.5 when each is one batch
			t.Errorf("bursts of 1 to 8 each %v: batches of %.2f", every, r.meanSize())
		}
	}
}

// A load that changes between one client and 64 is followed within a few batches, both ways.
func TestChangeOfLoadIsFollowedWithinAFewBatches(t *testing.T) {
	for _, size := range []int{8, 64} {
		l := loop(64)
		l.phases = []phase{{0, 1}, {3 * time.Second, 64}, {6 * time.Second, 1}}
		w := handler(l, 1, .1)
		w.from, w.until = 0, 9*time.Second
		r := w.run(newPolicy(t, Options{Limits: Limits{size, 100 * ms}}))
		up, down := 0, 0
		for i, at := range r.at {
			switch {
			case at < 3*time.Second:
			case at < 6*time.Second:
				if up++; up > 4 && r.sizes[i] < size*9/10 {
					t.Errorf("size %d: batch %d after the step up has %d", size, up, r.sizes[i])
				}
			case r.sizes[i] == 1:
				if down++; down > 5 && r.held[i] > 0 || r.held[i] > 10*ms {
					t.Errorf("size %d: the lone client's request %d after the step down waited %v", size, down, r.held[i])
				}
			}
		}
		if up < 10 || down < 50 {
			t.Fatalf("size %d: %d and %d batches", size, up, down)
		}
	}
}

func TestNoiseDoesNotMakeBatchesOscillate(t *testing.T) {
	for _, workers := range []int{1, 2, 4} {
		r := handler(loop(64), workers, .3).run(newPolicy(t, Options{Limits: Limits{64, 100 * ms}}))
		want := 64 / workers
		other := 0
		for _, n := range r.sizes {
			if n < want*9/10 || n > want {
				other++
			}
		}
		if 50*other > len(r.sizes) {
			t.Errorf("%d workers: %d of %d batches are not of about %d", workers, other, len(r.sizes), want)
		}
	}
}

// The patterns of TorchServe's recorded cases: nothing has been learned when they come.
func TestBeginsAsTorchServesRule(t *testing.T) {
	for _, tc := range []struct {
		name    string
		arrives []Moment
		limits  Limits
		leaves  []Moment
		sizes   []int
	}{
		{"alone, then two", []Moment{0, 1000 * ms, 1100 * ms}, Limits{4, 800 * ms}, []Moment{800 * ms, 1800 * ms}, []int{1, 2}},
		{"two fill it", []Moment{0, 100 * ms}, Limits{2, 1500 * ms}, []Moment{100 * ms}, []int{2}},
		{"one more than full", []Moment{0, 0, 0, 0, 0}, Limits{4, 100 * ms}, []Moment{0, 100 * ms}, []int{4, 1}},
	} {
		for _, rule := range []Rule{TorchServe, Adaptive} {
			w := world{load: script(tc.arrives), fixed: ms, until: 5 * time.Second}
			r := w.run(newPolicy(t, Options{Rule: rule, Limits: tc.limits}))
			if !slices.Equal(r.at, tc.leaves) || !slices.Equal(r.sizes, tc.sizes) {
				t.Errorf("%s, %s: batches of %v left at %v, want %v at %v", tc.name, rule, r.sizes, r.at, tc.sizes, tc.leaves)
			}
		}
	}
}

// A failed batch teaches nothing about time, but is over.
func TestFailedBatchesAreNotMeasured(t *testing.T) {
	p := newLearning(Limits{8, 100 * ms}, steps{})
	p.Arrived(0)
	p.Sent(0, State{Waiting: 1}, 1)
	p.Done(5*time.Second, 1, 0)
	if p.costs.known() || p.crowd.running != 0 {
		t.Errorf("after a failed batch: costs %v, %d requests run", p.costs.fixed, p.crowd.running)
	}
}

func TestRunningBatchWaitsForNobody(t *testing.T) {
	for _, rule := range []Rule{TorchServe, Adaptive} {
		p := newPolicy(t, Options{Rule: rule, Limits: Limits{8, time.Second}})
		if d := p.Decide(0, State{Gathered: 3, Waiting: 2, Running: true}); d != (Decision{Size: 8}) {
			t.Errorf("%s: %+v, want up to 8 at once", rule, d)
		}
	}
}
