package policy

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestNewRefusesWhatMakesNoSense(t *testing.T) {
	for _, tc := range []struct {
		name    string
		options Options
		says    string
	}{
		{"an unknown rule", Options{Rule: "greedy"}, `batching rule "greedy": it must be "adaptive" or "torchserve"`},
		{"a preferred size of nothing", Options{Preferred: []int{4, 0}}, "preferred batch size 0"},
		{"a negative goal", Options{Goal: -1}, "latency goal -1ns"},
		{"a goal for fixed limits", Options{Rule: TorchServe, Goal: time.Second}, "needs the rule"},
	} {
		if _, err := New(tc.options); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.says)
		}
	}
}

func TestOptionsThatChooseTheSameAreEqual(t *testing.T) {
	a := Options{Limits: Limits{8, time.Second}, Preferred: []int{8, 4, 4, 16}}
	for _, tc := range []struct {
		other Options
		want  bool
	}{
		{Options{Limits: Limits{8, time.Second}, Rule: Adaptive, Preferred: []int{4, 8}}, true},
		{Options{Limits: Limits{8, time.Second}, Preferred: []int{8}}, false},
		{Options{Limits: Limits{9, time.Second}, Preferred: []int{4, 8}}, false},
		{Options{Limits: Limits{8, time.Minute}, Preferred: []int{4, 8}}, false},
		{Options{Limits: Limits{8, time.Second}, Preferred: []int{4, 8}, Padded: true}, false},
		{Options{Limits: Limits{8, time.Second}, Preferred: []int{4, 8}, Rule: TorchServe}, false},
		{Options{Limits: Limits{8, time.Second}, Preferred: []int{4, 8}, Goal: 1}, false},
	} {
		if got := a.Equal(tc.other); got != tc.want || tc.other.Equal(a) != got {
			t.Errorf("%+v: %v", tc.other, got)
		}
	}
	if !(Options{}).Equal(Options{Limits: Limits{1, 0}, Padded: true}) {
		t.Error("nothing at all is not one at a time without delay")
	}
}

func TestPreferredSizes(t *testing.T) {
	second := time.Second
	for _, tc := range []struct {
		name   string
		padded bool
		limits Limits
		now    Moment
		state  State
		want   Decision
	}{
		{"none is reached", false, Limits{32, second}, 0, State{Waiting: 3}, Decision{32, second}},
		{"one is reached", false, Limits{32, second}, 0, State{Waiting: 4}, Decision{4, 0}},
		{"one is passed", false, Limits{32, second}, 0, State{Waiting: 7}, Decision{4, 0}},
		{"one is reached on the way", false, Limits{32, second}, 0, State{Gathered: 3, Waiting: 1}, Decision{4, 0}},
		{"more than the largest", false, Limits{32, second}, 0, State{Waiting: 100}, Decision{16, 0}},
		{"above the batch size", false, Limits{12, second}, 0, State{Waiting: 100}, Decision{8, 0}},
		{"too late to wait", false, Limits{32, second}, second, State{Waiting: 7}, Decision{7, 0}},
		{"too late, one more than preferred", true, Limits{32, second}, second, State{Waiting: 9}, Decision{8, 0}},
		{"too late, half way to the next", true, Limits{32, second}, second, State{Waiting: 12}, Decision{12, 0}},
		{"too late, and it has them already", true, Limits{32, second}, second, State{Gathered: 9}, Decision{9, 0}},
		{"too late, below the first", true, Limits{32, second}, second, State{Waiting: 1}, Decision{1, 0}},
	} {
		for _, rule := range []Rule{TorchServe, Adaptive} {
			p := newPolicy(t, Options{Rule: rule, Limits: tc.limits, Preferred: []int{16, 4, 8}, Padded: tc.padded})
			if got := p.Decide(tc.now, tc.state); got != tc.want {
				t.Errorf("%s, %s: %+v, want %+v", tc.name, rule, got, tc.want)
			}
		}
	}
}

// A model whose batches are padded to 8, 16, 32 or 64: what was learned must find batches that are worth their padding.
func TestPaddedModelIsServedAsFastAsByTheBestGridPoint(t *testing.T) {
	preferred := []int{8, 16, 32, 64}
	for _, clients := range []int{5, 12, 33, 64} {
		world := func() world {
			w := handler(loop(clients), 1, .1)
			p := steps{sizes: preferred}
			w.took = func(n int) time.Duration { return 20*ms + 2*ms*time.Duration(p.ceil(n)) }
			return w
		}
		best, of := grid(t, world, 64, faster)
		got := world().run(newPolicy(t, Options{Limits: Limits{64, 100 * ms}, Preferred: preferred, Padded: true}))
		if got.rate < .95*best.rate {
			t.Errorf("%d clients: %.1f/s in batches of %.1f, the best is %.1f/s with %v", clients, got.rate, got.meanSize(), best.rate, of)
		}
	}
}

// options draws a policy of any kind.
func options(t *rapid.T) Options {
	o := Options{
		Limits: Limits{rapid.IntRange(1, 70).Draw(t, "size"), time.Duration(rapid.IntRange(0, 200_000).Draw(t, "delay")) * time.Microsecond},
		Rule:   rapid.SampledFrom([]Rule{TorchServe, Adaptive}).Draw(t, "rule"),
		Padded: rapid.Bool().Draw(t, "padded"),
	}
	o.Preferred = rapid.SliceOfN(rapid.IntRange(1, 70), 0, 4).Draw(t, "preferred")
	if o.Rule == Adaptive && rapid.Bool().Draw(t, "goal?") {
		o.Goal = time.Duration(rapid.IntRange(1, 400).Draw(t, "goal")) * ms
	}
	return o
}

// Whatever the load and the policy: never above the size, never later than the delay after a slot is free, never later than TorchServe's rule before
// anything was learned, and what Decide says holds until something happens.
func TestDecisionsKeepTheirBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := options(t)
		w := handler(drawLoad(t), rapid.IntRange(1, 4).Draw(t, "workers"), .3)
		w.from, w.until, w.seed = 0, 1500*ms, rapid.Uint64().Draw(t, "seed")
		p, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		w.check = func(now Moment, s State, d Decision) { checkDecision(t, p, o, now, s, d) }
		r := w.run(p)
		for i, n := range r.sizes {
			if n < 1 || n > o.Size || r.held[i] > o.Delay {
				t.Fatalf("a batch of %d left after %v, limits %v", n, r.held[i], o.Limits)
			}
		}
	})
}

func drawLoad(t *rapid.T) load {
	switch rapid.IntRange(0, 2).Draw(t, "load") {
	case 0:
		l := loop(rapid.IntRange(1, 100).Draw(t, "clients"))
		l.think = time.Duration(rapid.IntRange(0, 50).Draw(t, "think")) * ms
		return l
	case 1:
		return open(float64(rapid.IntRange(1, 500).Draw(t, "rate")))
	default:
		return bursts{size: rapid.IntRange(1, 80).Draw(t, "burst"), random: rapid.Bool().Draw(t, "random"), every: 70 * ms, state: &burstState{}}
	}
}

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

func checkDecision(t failer, p Policy, o Options, now Moment, s State, d Decision) {
	t.Helper()
	have := s.have()
	switch {
	case d.Size < max(s.Gathered, 1) || d.Size > max(o.Size, s.Gathered, 1):
		t.Fatalf("%v %+v: %+v: size out of bounds %v", now, s, d, o.Limits)
	case d.Wait < 0 || d.Wait > 0 && now+d.Wait > s.begun()+max(o.Delay, 0):
		t.Fatalf("%v %+v: %+v: later than the delay %v", now, s, d, o.Delay)
	case d.Wait > 0 && have >= d.Size:
		t.Fatalf("%v %+v: %+v: it waits although it is full", now, s, d)
	case d.Wait == 0 && have == 0 && s.Gathered > 0:
		t.Fatalf("%v %+v: %+v: nothing leaves", now, s, d)
	}
	if again := p.Decide(now, s); again != d {
		t.Fatalf("%v %+v: %+v, and asked again %+v", now, s, d, again)
	}
	if d.Wait > 0 { // as time goes by, the moment of leaving stays
		if half := p.Decide(now+d.Wait/2, s); half.Wait > d.Wait-d.Wait/2 {
			t.Fatalf("%v %+v: %+v, but half way %+v", now, s, d, half)
		}
		if end := p.Decide(now+d.Wait, s); end.Wait != 0 {
			t.Fatalf("%v %+v: %+v, but then %+v", now, s, d, end)
		}
	}
	if !s.Running && have > 0 {
		if more := p.Decide(now, State{Gathered: s.Gathered, Waiting: s.Waiting + o.Size, Free: s.Free, Oldest: s.Oldest, Slot: s.Slot}); more.Wait != 0 {
			t.Fatalf("%v %+v: %+v, but with enough for a full batch %+v", now, s, d, more)
		}
	}
}

// Any order of events, sensible or not, leaves the bounds as they are.
func FuzzPolicy(f *testing.F) {
	f.Add([]byte{8, 100, 1, 2, 3}, uint8(0))
	f.Add([]byte{0, 0}, uint8(1))
	f.Add([]byte("0012"), uint8(2)) // asked before anything arrived
	f.Add([]byte{64, 255, 0, 0, 0, 1, 9, 2, 9, 3, 9, 4, 9, 5, 9, 0, 200, 4, 200}, uint8(2))
	f.Add(slices.Repeat([]byte{0, 3, 1, 4, 3, 7, 4, 90, 5, 1}, 60), uint8(2))
	f.Add(slices.Repeat([]byte{0, 3, 0, 1, 1, 250, 3, 255, 4, 90, 2, 1}, 60), uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, kind uint8) {
		if len(data) < 2 {
			return
		}
		o := Options{Limits: Limits{int(data[0]), time.Duration(data[1]) * ms}}
		switch kind % 4 {
		case 0:
			o.Rule = TorchServe
		case 1:
			o.Preferred, o.Padded = []int{3, 7, 40}, true
		case 2:
			o.Goal = 50 * ms
		}
		p := newPolicy(t, o)
		now := Moment(0)
		for i := 2; i+1 < len(data); i += 2 {
			what, much := data[i], int(data[i+1])
			now += Moment(much) * Moment(much) * time.Microsecond
			s := State{Gathered: much % 5, Waiting: 1 + much%90, Free: much % 3, Oldest: max(now-Moment(much)*ms, 0), Slot: now / 2}
			switch what % 6 {
			case 0:
				p.Arrived(now)
			case 1:
				checkDecision(t, p, o, now, s, p.Decide(now, s))
			case 2:
				p.Left(now)
			case 3:
				p.Sent(now, s, min(s.have(), max(o.Size, 1)))
			case 4:
				p.Done(now, much, time.Duration(much-3)*ms)
			default:
				p.Answered(now, time.Duration(binary.BigEndian.Uint16(data[i:]))*ms)
			}
		}
	})
}

func TestNothingAllocates(t *testing.T) {
	for _, o := range kinds() {
		p := newPolicy(t, o)
		now := Moment(0)
		if n := testing.AllocsPerRun(10_000, func() { now = cycle(p, now) }); n > 0 {
			t.Errorf("%s, goal %v: %v allocations in a batch", o.Rule, o.Goal, n)
		}
	}
}

// kinds are the policies that there are.
func kinds() []Options {
	l := Limits{64, 100 * ms}
	return []Options{
		{Rule: TorchServe, Limits: l},
		{Rule: Adaptive, Limits: l},
		{Rule: Adaptive, Limits: l, Preferred: []int{8, 16, 32, 64}, Padded: true},
		{Rule: Adaptive, Limits: l, Goal: 30 * ms},
	}
}

// cycle is the life of a batch of 8: all that a policy is told and asked of it.
func cycle(p Policy, now Moment) Moment {
	slot := now
	s := State{Slot: slot, Oldest: slot}
	for range 8 {
		now += 50 * time.Microsecond
		p.Arrived(now)
		s.Waiting++
		p.Decide(now, s)
	}
	p.Sent(now, s, 8)
	now += 36 * ms
	p.Done(now, 8, 36*ms)
	for range 8 {
		p.Answered(now, now-slot)
	}
	return now
}

func BenchmarkDecide(b *testing.B) {
	for _, o := range kinds() {
		b.Run(name(o), func(b *testing.B) {
			p := newPolicy(b, o)
			now := Moment(0)
			for range 20 {
				now = cycle(p, now)
			}
			p.Arrived(now)
			s := State{Waiting: 1, Oldest: now, Slot: now}
			b.ReportAllocs()
			for b.Loop() {
				p.Decide(now, s)
			}
		})
	}
}

// BenchmarkBatch is what a policy costs for each batch of 8: eight arrivals, decisions and answers, and one departure and end.
func BenchmarkBatch(b *testing.B) {
	for _, o := range kinds() {
		b.Run(name(o), func(b *testing.B) {
			p := newPolicy(b, o)
			now := Moment(0)
			b.ReportAllocs()
			for b.Loop() {
				now = cycle(p, now)
			}
		})
	}
}

func name(o Options) string {
	n := string(o.Rule)
	if len(o.Preferred) > 0 {
		n += "/preferred"
	}
	if o.Goal > 0 {
		n += "/goal"
	}
	return n
}
