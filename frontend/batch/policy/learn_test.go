package policy

import (
	"math"
	"testing"
	"time"
)

func near(got, want, share float64) bool { return math.Abs(got-want) <= share*want }

func TestCostsFindTheLine(t *testing.T) {
	r := seeded(1)
	for _, tc := range []struct {
		name        string
		sizes       []int
		noise       float64
		fixed, each time.Duration
	}{
		{"all sizes", []int{1, 2, 3, 5, 8, 13, 21, 34, 55}, 0, 20 * ms, 2 * ms},
		{"noise", []int{1, 2, 3, 5, 8, 13, 21, 34, 55}, .3, 20 * ms, 2 * ms},
		{"two sizes", []int{1, 64}, 0, 20 * ms, 2 * ms},
		{"nothing fixed", []int{4, 32}, 0, 0, 2 * ms},
		{"all fixed", []int{4, 32}, 0, 20 * ms, 0},
		{"one request at a time", []int{1}, 0, 22 * ms, 0}, // that it is not a part of each cannot be seen
	} {
		var c costs
		for range 30 {
			for _, n := range tc.sizes {
				c.observe(n, time.Duration((20+2*float64(n))*(1+tc.noise*(2*r.Float64()-1))*float64(ms)))
				if tc.fixed == 0 {
					c = costsOf(tc.sizes, func(n int) time.Duration { return 2 * ms * time.Duration(n) })
				}
				if tc.each == 0 && tc.fixed == 20*ms {
					c = costsOf(tc.sizes, func(int) time.Duration { return 20 * ms })
				}
			}
		}
		if !near(c.fixed+1e6, float64(tc.fixed)+1e6, tc.noise+.01) || !near(c.each+1e5, float64(tc.each)+1e5, tc.noise/3+.01) {
			t.Errorf("%s: %v and %v each, want %v and %v", tc.name, time.Duration(c.fixed), time.Duration(c.each), tc.fixed, tc.each)
		}
	}
}

func costsOf(sizes []int, took func(int) time.Duration) costs {
	var c costs
	for range 10 {
		for _, n := range sizes {
			c.observe(n, took(n))
		}
	}
	return c
}

// A model's first batches may take much longer: they are forgotten soon.
func TestCostsForgetASlowStart(t *testing.T) {
	var c costs
	c.observe(1, 5*time.Second)
	for range 9 {
		c.observe(1, 20*ms)
	}
	if c.fixed > float64(25*ms) {
		t.Errorf("after nine batches of 20ms: %v", time.Duration(c.fixed))
	}
	c.observe(1, 5*time.Second) // a pause of the machine
	if c.fixed > float64(35*ms) {
		t.Errorf("after one that hung: %v", time.Duration(c.fixed))
	}
}

// With padding a batch of 5 is one of 8.
func TestPaddedBatchesCountByTheirPadding(t *testing.T) {
	p := newLearning(Limits{64, ms}, steps{sizes: []int{8, 64}, padded: true})
	for i := range 20 {
		size, took := 1+4*(i%2), 36*ms
		if i%3 == 0 {
			size, took = 40, 148*ms
		}
		p.Done(0, size, took)
	}
	if !near(p.costs.fixed, float64(20*ms), .01) || !near(p.costs.each, float64(2*ms), .01) {
		t.Errorf("%v and %v each, want 20ms and 2ms", time.Duration(p.costs.fixed), time.Duration(p.costs.each))
	}
}

func TestGapsSayHowLongItPaysToWait(t *testing.T) {
	var g gaps
	if _, _, known := g.best(1e9); known {
		t.Error("nothing was learned, and yet something is known")
	}
	g.nothing(20 * ms)
	if patience, _, known := g.best(float64(15 * ms)); !known || patience != 0 {
		t.Errorf("nobody ever came: patience %v, %v", time.Duration(patience), known)
	}
	for range 30 { // most come after 0.1 ms, some after 5 ms, and one time in four nobody comes
		for range 10 {
			g.arrived(100 * time.Microsecond)
		}
		for range 5 {
			g.arrived(5 * ms)
		}
		for range 5 {
			g.nothing(20 * ms)
		}
	}
	for _, tc := range []struct{ gain, from, to, pace time.Duration }{
		{50 * ms, 5 * ms, 8 * ms, 1700 * time.Microsecond}, // worth waiting for the late ones
		{5 * ms, 90 * time.Microsecond, 200 * time.Microsecond, 90 * time.Microsecond},
		{10 * time.Microsecond, 0, 0, 0}, // not even for the early ones
	} {
		patience, pace, _ := g.best(float64(tc.gain))
		if got := time.Duration(patience); got < tc.from || got > tc.to || !near(pace, float64(tc.pace), .25) {
			t.Errorf("for %v it pays to wait %v, at a pace of %v; want %v to %v, at %v", tc.gain, got, time.Duration(pace), tc.from, tc.to, tc.pace)
		}
	}
	for range 90 { // now nobody comes any more
		g.nothing(20 * ms)
		g.forget()
	}
	if patience, _, _ := g.best(float64(5 * ms)); patience != 0 {
		t.Errorf("90 batches after the last arrival it still waits %v", time.Duration(patience))
	}
	before := g
	g.forget()
	if g != before {
		t.Error("it forgets although there is nothing newer")
	}
}

func TestGapClassesAreInOrder(t *testing.T) {
	last := 0.0
	for i := range gapClasses {
		end := gapEnd(i)
		if end <= last {
			t.Errorf("class %d ends at %v, the one before at %v", i, end, last)
		}
		last = end
		if i == gapClasses-1 {
			break
		}
		if got := gapClass(time.Duration(end) - 1); got != i {
			t.Errorf("just before the end of class %d: class %d", i, got)
		}
		if got := gapClass(time.Duration(end) + 1); got != i+1 && got != i { // a class ends within an eighth of the first one
			t.Errorf("just after the end of class %d: class %d", i, got)
		}
	}
	if gapClass(-ms) != 0 || gapClass(time.Hour) != gapClasses-1 {
		t.Error("times out of range have no class")
	}
}

func TestCrowdIsForgottenAfterAFewRounds(t *testing.T) {
	var c crowd
	for range 10 {
		c.arrived()
	}
	c.sent(10, 0)
	c.ended(10, 1)
	for i := range crowdMemory {
		if c.most != 10 {
			t.Fatalf("after %d rounds with one the crowd is %d, want 10", i, c.most)
		}
		c.arrived()
		c.sent(1, 0)
		c.ended(1, 1)
	}
	if c.most != 1 || !c.steady {
		t.Errorf("after %d rounds with one the crowd is %d, steady %v", crowdMemory, c.most, c.steady)
	}
	c.arrived()
	c.left()
	c.left()
	if c.waiting != 0 {
		t.Errorf("%d wait", c.waiting)
	}
}

// Whenever the direction changes, the next step is longer in coming.
func TestTurningBackTakesLongerEachTime(t *testing.T) {
	p := newTuned(Limits{64, 100 * ms}, steps{}, 100*ms)
	p.limits = Limits{32, 100 * ms}
	pause := p.pause
	for i := range 8 {
		to := Limits{32 + 8*(1-2*(i%2)), 100 * ms}
		p.step(0, LargerBatch, to, 0, 1)
		if want := min(2*pause, pauseMost); p.pause != want {
			t.Fatalf("step %d: the pause is %v, want %v", i, p.pause, want)
		}
		pause = p.pause
	}
}
