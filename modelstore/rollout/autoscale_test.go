package rollout

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/quick"
	"time"
)

// plant is a model of a version under load: clients that each send a request as soon as the last one was answered, and workers that take it one by one.
type plant struct {
	service time.Duration // for a request
	start   time.Duration // of a worker
	batch   int

	now     time.Time
	workers int
	ready   []time.Time // when each worker is, or was, ready
	queue   []time.Time // when those that wait came
	busy    []time.Time // until when each worker works
	using   []int       // requests of each worker's batch
	spent   time.Duration
	peak    int
	begun   bool

	rate  float64 // requests in a second that come by chance, whatever is answered; 0 for none
	dice  *rand.Rand
	after time.Time // when the next one of these comes
}

// beat is the plant's clock.
const beat = 5 * time.Millisecond

// run goes on for a time, with so many clients.
func (p *plant) run(d time.Duration, clients *int) {
	for end := p.now.Add(d); p.now.Before(end); p.now = p.now.Add(beat) {
		inFlight := len(p.queue)
		for i := range p.busy {
			if !p.now.Before(p.busy[i]) {
				p.using[i] = 0
			}
			inFlight += p.using[i]
		}
		for ; inFlight < *clients; inFlight++ {
			p.queue = append(p.queue, p.now)
		}
		for ; p.rate > 0 && !p.now.Before(p.after); p.after = p.after.Add(time.Duration(p.dice.ExpFloat64() / p.rate * float64(time.Second))) {
			p.queue = append(p.queue, p.now)
		}
		active := 0
		for i := range p.workers {
			if p.using[i] == 0 && len(p.queue) > 0 && !p.now.Before(p.ready[i]) {
				n := min(p.batch, len(p.queue))
				p.queue, p.using[i], p.busy[i], p.begun = p.queue[n:], n, p.now.Add(p.service), true
			}
			if p.using[i] > 0 {
				active++
			}
		}
		p.spent += time.Duration(active) * beat
		p.peak = max(p.peak, active)
	}
}

func (p *plant) set(n int) {
	for len(p.ready) < n {
		p.ready, p.busy, p.using = append(p.ready, p.now.Add(p.start)), append(p.busy, time.Time{}), append(p.using, 0)
	}
	p.ready, p.busy, p.using, p.workers = p.ready[:n], p.busy[:n], p.using[:n], n
}

func (p *plant) sample(most int, since time.Duration) *sample {
	x := &sample{at: p.now, min: 1, max: most, workers: p.workers, batch: p.batch, busy: float64(p.spent) / float64(since), peak: p.peak, begun: p.begun}
	for _, at := range p.ready {
		if !p.now.Before(at) {
			x.ready++
		}
	}
	x.demand.Waiting = len(p.queue)
	if len(p.queue) > 0 {
		x.demand.Oldest = p.now.Sub(p.queue[0])
	}
	p.spent, p.peak, p.begun = 0, 0, false
	return x
}

// follow lets a scaler look after a plant, and gives the numbers of workers as they changed.
func follow(t *testing.T, s *scaler, p *plant, most int, d time.Duration, clients *int) (steps []int) {
	t.Helper()
	for end := p.now.Add(d); p.now.Before(end); {
		p.run(tendEvery, clients)
		n, why := s.decide(p.sample(most, tendEvery))
		if n == p.workers {
			continue
		}
		if why == "" || n < 1 || n > most {
			t.Fatalf("%d workers, because %q", n, why)
		}
		p.set(n)
		steps = append(steps, n)
	}
	return steps
}

// TestWorkersFollowTheLoad with 1, 64 and 1 client.
func TestWorkersFollowTheLoad(t *testing.T) {
	p := &plant{service: 20 * time.Millisecond, start: 3 * time.Second, batch: 1, now: time.Unix(1, 0)}
	p.set(1)
	s, clients := newScaler(Autoscale{}), 1
	if steps := follow(t, s, p, 8, 5*time.Minute, &clients); len(steps) != 0 {
		t.Errorf("with one client: %v", steps)
	}
	clients = 64
	if steps := fmt.Sprint(follow(t, s, p, 8, 20*time.Second, &clients)); steps != "[2 4 8]" {
		t.Errorf("with 64 clients: %v", steps)
	}
	if steps := follow(t, s, p, 8, 5*time.Minute, &clients); len(steps) != 0 {
		t.Errorf("and then: %v", steps)
	}
	clients = 1
	if steps := fmt.Sprint(follow(t, s, p, 8, 10*time.Minute, &clients)); steps != "[4 2 1]" {
		t.Errorf("with one client again: %v", steps)
	}
}

// TestNoFlapping lets the load be what it is for hours: the number of workers comes to rest, or is tried less and less often.
func TestNoFlapping(t *testing.T) {
	check := func(service, start uint16, clients, most, batch uint8, seed uint64) bool {
		n, limit := int(clients%60)+1, int(most%8)+1
		p := &plant{
			service: time.Duration(service%3000+1) * time.Millisecond, start: time.Duration(start%20000) * time.Millisecond, batch: int(batch%16) + 1,
			now: time.Unix(1, 0), after: time.Unix(1, 0), dice: rand.New(rand.NewPCG(seed, 1)), //nolint:gosec // a test
		}
		if seed%2 == 0 { // not clients that wait for answers, but a load of 5 % to 95 % of what there can be
			n, p.rate = 0, float64(limit*p.batch)/p.service.Seconds()*(.05+.9*p.dice.Float64())
		}
		p.set(1)
		s := newScaler(Autoscale{})
		follow(t, s, p, limit, 5*time.Minute, &n)
		steps := follow(t, s, p, limit, time.Hour, &n)
		turns := 0
		for i := 1; i < len(steps)-1; i++ {
			if (steps[i] > steps[i-1]) != (steps[i+1] > steps[i]) {
				turns++
			}
		}
		if turns > 20 { // an hour of 30 s each would be 120
			t.Logf("service %s, start %s, batch %d, %d clients or %f requests in a second, %d workers at most: %v", p.service, p.start, p.batch, n, p.rate, limit, steps)
		}
		return turns <= 20
	}
	if err := quick.Check(check, &quick.Config{MaxCount: 12}); err != nil {
		t.Error(err)
	}
}

// TestWorkersThatAreMissedStay: requests that come by chance and take long want workers now and then that have nothing to do for half a minute. They are
// ended less and less often: without that these loads made about 65 steps in the hour.
func TestWorkersThatAreMissedStay(t *testing.T) {
	for _, load := range []float64{.1, .2} {
		for _, limit := range []int{4, 8} {
			p := &plant{
				service: time.Second, start: time.Second, batch: 1, rate: load * float64(limit), dice: rand.New(rand.NewPCG(7, 1)), //nolint:gosec // a test
				now: time.Unix(1, 0), after: time.Unix(1, 0),
			}
			p.set(1)
			s, nobody := newScaler(Autoscale{}), 0
			follow(t, s, p, limit, 5*time.Minute, &nobody)
			if steps := follow(t, s, p, limit, time.Hour, &nobody); len(steps) > 30 {
				t.Errorf("%g of %d workers are busy: %d steps, %v", load, limit, len(steps), steps)
			}
		}
	}
}

// TestDecisionsStayWithinBounds whatever is seen.
func TestDecisionsStayWithinBounds(t *testing.T) {
	check := func(seed uint64) bool {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test
		s := newScaler(Autoscale{Wait: time.Duration(r.IntN(500)+1) * time.Millisecond, Calm: time.Duration(r.IntN(20)+1) * time.Second})
		x := sample{at: time.Unix(1, 0), min: r.IntN(3), batch: r.IntN(8) + 1, keepAlive: time.Duration(r.IntN(2)*30) * time.Second}
		x.max = x.min + r.IntN(6)
		x.workers = x.min
		for range 500 {
			x.at = x.at.Add(tendEvery)
			x.ready = x.workers - min(x.workers, r.IntN(8)/7)
			x.away = min(x.ready, r.IntN(6)/5)
			x.again = min(x.ready-x.away, r.IntN(6)/5)
			x.ready -= x.away + x.again
			x.demand.Waiting, x.demand.Oldest = 0, 0
			if r.IntN(3) == 0 {
				x.demand = Demand{Waiting: 1 + r.IntN(100), Oldest: time.Duration(r.IntN(1000)) * time.Millisecond}
			}
			x.peak = r.IntN(x.workers + 1)
			x.busy, x.begun = float64(x.peak)*r.Float64(), x.peak > 0
			n, why := s.decide(&x)
			switch {
			case n < x.min || n > x.max, (n == x.workers) != (why == ""):
				t.Logf("%d workers of %d to %d, because %q", n, x.min, x.max, why)
				return false
			case n > x.workers && (x.demand.Oldest < s.Wait || n > 2*x.workers), n < x.workers && n > 0 && n < x.workers/2:
				t.Logf("from %d to %d with %+v", x.workers, n, x.demand)
				return false
			case n == 0 && x.workers > 0 && (x.keepAlive == 0 || x.demand.Waiting > 0 || x.busy > 0):
				t.Logf("none at %+v", x)
				return false
			}
			x.workers = n
		}
		return true
	}
	if err := quick.Check(check, &quick.Config{MaxCount: 200}); err != nil {
		t.Error(err)
	}
}

func TestWhyWorkersAreAdded(t *testing.T) {
	s := newScaler(Autoscale{Wait: 50 * time.Millisecond})
	x := &sample{at: time.Unix(1, 0), min: 1, max: 9, workers: 3, ready: 3, batch: 8, demand: Demand{Waiting: 12, Oldest: 340 * time.Millisecond}, busy: 3, peak: 3}
	if n, _ := s.decide(x); n != 3 {
		t.Errorf("one look was enough for %d", n)
	}
	n, why := s.decide(x)
	if want := "the oldest of 12 waiting requests has waited 340ms, more than 50ms; 3.0 of 3 workers were busy"; n != 5 || why != want {
		t.Errorf("%d, %q", n, why)
	}
	x.workers = 5 // two of which are not ready
	for range 8 {
		if n, _ := s.decide(x); n != 5 {
			t.Errorf("%d workers while some start", n)
		}
	}
	s, x.workers, x.max = newScaler(Autoscale{}), 3, 3
	for range 8 {
		if n, why := s.decide(x); n != 3 || strings.Contains(why, "oldest") {
			t.Errorf("%d workers of 3 at most", n)
		}
	}
}
