package policy

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

// load makes requests: next gives when client sends its next one after an answer at now, or at the beginning (first); a negative one means never.
type load interface {
	clients() int
	next(now Moment, client int, first bool, r *rand.Rand) Moment
}

// closed are clients that each send the next request when they have the answer to the one before: after a return time that grows with those that return
// at the same moment, as on a real machine, and after some thinking. How many there are may change.
type closed struct {
	phases []phase
	back   time.Duration // the shortest return
	each   time.Duration // between two that return together
	think  time.Duration // mean, exponential; 0 for none
	lane   *Moment       // when the clients' machine is free again
}

type phase struct {
	from    Moment
	clients int
}

func loop(n int) closed {
	return closed{phases: []phase{{0, n}}, back: 300 * time.Microsecond, each: 80 * time.Microsecond, lane: new(Moment)}
}

func (c closed) clients() int {
	most := 0
	for _, p := range c.phases {
		most = max(most, p.clients)
	}
	return most
}

func (c closed) next(now Moment, client int, first bool, r *rand.Rand) Moment {
	at := now
	if !first {
		*c.lane = max(*c.lane, now) + time.Duration(float64(c.each)*(0.5+r.Float64()))
		at = *c.lane + time.Duration(float64(c.back)*(0.7+0.6*r.Float64()))
	}
	if c.think > 0 {
		at += time.Duration(r.ExpFloat64() * float64(c.think))
	}
	for i, p := range c.phases {
		until := Moment(math.MaxInt64)
		if i+1 < len(c.phases) {
			until = c.phases[i+1].from
		}
		if client < p.clients && until > at {
			return max(at, p.from)
		}
	}
	return -1
}

// poisson are independent arrivals at a rate per second.
type poisson struct {
	rate float64
	last *Moment
}

func open(rate float64) poisson { return poisson{rate, new(Moment)} }

func (p poisson) clients() int { return 1000 }

func (p poisson) next(_ Moment, _ int, _ bool, r *rand.Rand) Moment {
	*p.last += time.Duration(r.ExpFloat64() / p.rate * float64(time.Second))
	return *p.last
}

// bursts are groups of requests that come together, size of them or up to size.
type bursts struct {
	size   int
	random bool
	every  time.Duration
	state  *burstState
}

type burstState struct {
	at   Moment
	left int
}

func (b bursts) clients() int { return 1000 }

func (b bursts) next(_ Moment, _ int, _ bool, r *rand.Rand) Moment {
	if b.state.left == 0 {
		b.state.left = b.size
		if b.random {
			b.state.left = 1 + r.IntN(b.size)
		}
		b.state.at = (b.state.at/b.every + 1) * b.every
	}
	b.state.left--
	b.state.at += time.Duration(float64(50*time.Microsecond) * 2 * r.Float64())
	return b.state.at
}

// world is what a simulated queue and its workers are like.
type world struct {
	load    load
	workers int // 0 counts as 1
	fixed   time.Duration
	each    time.Duration
	noise   float64 // share by which a batch's time differs at most
	took    func(n int) time.Duration
	until   Moment
	from    Moment // what is answered before is not counted
	seed    uint64
	check   func(now Moment, s State, d Decision)
}

// outcome is what came of a run.
type result struct {
	answered int
	rate     float64 // answers per second
	totals   []time.Duration
	held     []time.Duration // for each batch, how long it waited with a free slot
	sizes    []int
	at       []Moment // when each batch left
	steps    []Step
}

func (r *result) mean() time.Duration {
	var sum time.Duration
	for _, d := range r.totals {
		sum += d
	}
	return sum / time.Duration(max(len(r.totals), 1))
}

func (r *result) percentile(p float64) time.Duration {
	if len(r.totals) == 0 {
		return 0
	}
	s := slices.Clone(r.totals)
	slices.Sort(s)
	return s[min(int(p/100*float64(len(s))), len(s)-1)]
}

func (r *result) meanSize() float64 {
	sum := 0
	for _, n := range r.sizes {
		sum += n
	}
	return float64(sum) / float64(max(len(r.sizes), 1))
}

// event is something that happens: a request arrives, a batch is done, or a wait is over.
type event struct {
	at      Moment
	order   int
	client  int   // -1 for others
	batch   []job // that is done
	took    time.Duration
	waiting int // number of the wait that is over
}

type job struct {
	client  int
	arrived Moment
}

// run plays a world with a policy, as the queue does it: one batch is gathered at a time, by the one who holds a free slot.
func (w world) run(p Policy) *result {
	s := &simulation{world: w, policy: p, rand: seeded(w.seed), free: max(w.workers, 1), result: &result{}}
	for c := range w.load.clients() {
		s.arrive(0, c, true)
	}
	for len(s.events) > 0 {
		e := s.events[len(s.events)-1]
		s.events = s.events[:len(s.events)-1]
		if e.at > w.until {
			break
		}
		s.happen(e)
	}
	s.result.rate = float64(s.result.answered) / (w.until - w.from).Seconds()
	return s.result
}

// seeded makes numbers that are the same in each run.
func seeded(seed uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // to be repeated, not to be secret
}

type simulation struct {
	world
	policy  Policy
	rand    *rand.Rand
	events  []event // the next one last
	order   int
	queue   []job
	free    int
	holding bool // a slot, and gathers
	slot    Moment
	batch   []job
	wait    int // number of the latest wait
	result  *result
}

func (s *simulation) push(e event) {
	s.order++
	e.order = s.order
	at, _ := slices.BinarySearchFunc(s.events, e, func(a, b event) int { return cmp.Or(cmp.Compare(b.at, a.at), cmp.Compare(b.order, a.order)) })
	s.events = slices.Insert(s.events, at, e)
}

func (s *simulation) arrive(now Moment, client int, first bool) {
	if at := s.load.next(now, client, first, s.rand); at >= 0 {
		s.push(event{at: at, client: client})
	}
}

func (s *simulation) happen(e event) {
	switch {
	case e.batch != nil:
		s.free++
		s.policy.Done(e.at, len(e.batch), e.took)
		for _, j := range e.batch {
			s.policy.Answered(e.at, e.at-j.arrived)
			if e.at >= s.from {
				s.result.answered++
				s.result.totals = append(s.result.totals, e.at-j.arrived)
			}
			s.arrive(e.at, j.client, false)
		}
		if t, ok := s.policy.(*tuned); ok {
			if step, ok := t.Step(); ok {
				s.result.steps = append(s.result.steps, step)
			}
		}
	case e.client >= 0:
		s.queue = append(s.queue, job{e.client, e.at})
		s.policy.Arrived(e.at)
	case e.waiting != s.wait:
		return
	}
	s.gather(e.at)
}

func (s *simulation) gather(now Moment) {
	for {
		if !s.holding {
			if len(s.queue) == 0 || s.free == 0 {
				return
			}
			s.free--
			s.holding, s.slot, s.batch = true, now, nil
		}
		state := State{Gathered: len(s.batch), Waiting: len(s.queue), Free: s.free, Busy: max(s.workers, 1) - s.free - 1, Slot: s.slot}
		if len(s.batch) > 0 {
			state.Oldest = s.batch[0].arrived
		} else {
			state.Oldest = s.queue[0].arrived
		}
		d := s.policy.Decide(now, state)
		if s.check != nil {
			s.check(now, state, d)
		}
		n := min(d.Size-len(s.batch), len(s.queue))
		s.batch = append(s.batch, s.queue[:n]...)
		s.queue = s.queue[n:]
		s.wait++
		if d.Wait > 0 && len(s.batch) < d.Size {
			s.push(event{at: now + d.Wait, client: -1, waiting: s.wait})
			return
		}
		s.send(now, state)
	}
}

func (s *simulation) send(now Moment, state State) {
	n := len(s.batch)
	took := s.fixed + time.Duration(n)*s.each
	if s.took != nil {
		took = s.took(n)
	}
	took = time.Duration(float64(took) * (1 + s.noise*(2*s.rand.Float64()-1)))
	s.policy.Sent(now, state, n)
	if now >= s.from {
		s.result.held = append(s.result.held, now-state.begun())
		s.result.sizes = append(s.result.sizes, n)
		s.result.at = append(s.result.at, now)
	}
	s.push(event{at: now + took, client: -1, batch: s.batch, took: took})
	s.holding = false
}

// newPolicy makes a policy or ends the test.
func newPolicy(t testing.TB, o Options) Policy {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// grid gives the best result of TorchServe's rule over sizes up to most and delays, by better.
func grid(t testing.TB, build func() world, most int, better func(a, b *result) bool) (*result, Limits) {
	t.Helper()
	var best *result
	var of Limits
	for _, size := range []int{1, 2, 4, 8, 16, 32, 48, 64} {
		if size > most {
			break
		}
		for _, delay := range []time.Duration{0, ms, 5 * ms, 10 * ms, 100 * ms} {
			l := Limits{size, delay}
			r := build().run(newPolicy(t, Options{Rule: TorchServe, Limits: l}))
			if best == nil || better(r, best) {
				best, of = r, l
			}
		}
	}
	return best, of
}

func faster(a, b *result) bool { return a.rate > b.rate }
func sooner(a, b *result) bool { return a.mean() < b.mean() }

// script is requests at given moments.
type script []Moment

func (s script) clients() int { return len(s) }

func (s script) next(_ Moment, client int, first bool, _ *rand.Rand) Moment {
	if !first {
		return -1
	}
	return s[client]
}
