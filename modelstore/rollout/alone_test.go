package rollout

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

// acquireSome gets slots of an instance for oneself, at most so many, or with 0 one slot beside others.
func acquireSome(ctx context.Context, p *pool, most int) ([]backend.Slot, error) {
	if most > 0 {
		return p.AcquireAlone(ctx, most)
	}
	s, err := p.Acquire(ctx)
	return []backend.Slot{s}, err
}

// aloneIn gets one slot of an instance for oneself.
func aloneIn(p *pool) func(context.Context) (backend.Slot, error) {
	return func(ctx context.Context) (backend.Slot, error) {
		s, err := p.AcquireAlone(ctx, 1)
		if err != nil {
			return nil, err
		}
		return s[0], nil
	}
}

// TestAloneIsAlone lets many take slots of instances that come and go, some of them alone, and some lose patience: who is alone shares with nobody, no
// instance has more than its slots, everybody gets his turn, and nothing is kept for anybody in the end.
func TestAloneIsAlone(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dice := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test
				p := newPool(time.Minute)
				p.hope(1, firstGeneration)
				limits := map[backend.Instance]int{}
				var mu sync.Mutex // guards limits and running
				running := map[backend.Instance]int{}
				add := func() *member {
					slots := 1 + dice.IntN(4)
					i := backendtest.NewInstance("i")
					mu.Lock()
					limits[i] = slots
					mu.Unlock()
					return p.add(i, 1, slots, firstGeneration, terms{})
				}
				members := []*member{add(), add()}
				var served, left atomic.Int64
				var all sync.WaitGroup
				client := func(most int, patience, work time.Duration) {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					alone := most > 0
					slots, err := acquireSome(ctx, p, most)
					if err != nil {
						if left.Add(1); patience == time.Hour {
							t.Error("somebody did not get his turn within an hour")
						}
						return
					}
					own, _ := slots[0].(*slot)
					if len(slots) > max(most, 1) || len(slots) > own.member.slots {
						t.Errorf("%d slots of %d, %d were asked for", len(slots), own.member.slots, most)
					}
					mu.Lock()
					n := running[own.member.inst]
					if alone {
						running[own.member.inst] += 100
					} else {
						running[own.member.inst]++
					}
					limit := limits[own.member.inst]
					mu.Unlock()
					if alone && n > 0 || !alone && n >= limit {
						t.Errorf("alone %t: beside %d others, of %d slots", alone, n, limit)
					}
					for i, s := range slots {
						<-time.After(work)
						if i == len(slots)-1 {
							mu.Lock()
							if running[own.member.inst]--; alone {
								running[own.member.inst] -= 99
							}
							mu.Unlock()
						}
						s.Release()
					}
					served.Add(1)
				}
				for range 300 {
					most, patience, work := 0, time.Hour, time.Duration(1+dice.IntN(50))*time.Millisecond
					if dice.IntN(4) == 0 {
						most = 1 + dice.IntN(3)
					}
					if dice.IntN(5) == 0 {
						patience = time.Duration(1+dice.IntN(40)) * time.Millisecond
					}
					all.Go(func() { client(most, patience, work) })
					if dice.IntN(20) == 0 {
						at := dice.IntN(len(members))
						p.leave(members[at])
						members[at] = add()
					}
					<-time.After(time.Duration(dice.IntN(10)) * time.Millisecond)
				}
				all.Wait() // a bubble in which somebody waits for ever is a failure
				if served.Load()+left.Load() != 300 {
					t.Errorf("%d served, %d left", served.Load(), left.Load())
				}
				free := 0
				for _, m := range members {
					free += m.slots
					if m.used != 0 || m.reserved != nil || m.hold != nil {
						t.Errorf("%d of %d slots are used in the end, reserved %t, held %t", m.used, m.slots, m.reserved != nil, m.hold != nil)
					}
				}
				if use := p.usage(); p.Free() != free || use.slots != 0 {
					t.Errorf("%d of %d slots are free, %d in use", p.Free(), free, use.slots)
				}
			})
		})
	}
}

// queuer waits for slots of a pool, and notes who got his when.
type queuer struct {
	pool  *pool
	begun time.Time
	all   sync.WaitGroup

	mu   sync.Mutex
	when map[string]time.Duration
}

func newQueuer(slots ...int) *queuer {
	q := &queuer{pool: newPool(time.Minute), begun: time.Now(), when: map[string]time.Duration{}}
	for i, n := range slots {
		q.pool.hope(i, firstGeneration)
		q.add(i, n)
	}
	return q
}

func (q *queuer) add(worker, slots int) *member {
	return q.pool.add(backendtest.NewInstance("i"), worker, slots, firstGeneration, terms{})
}

// send takes slots, alone unless most is 0, and works on each for so long.
func (q *queuer) send(t *testing.T, name string, most int, work ...time.Duration) {
	t.Helper()
	q.all.Go(func() {
		slots, err := acquireSome(t.Context(), q.pool, most)
		if err != nil {
			t.Error(err)
			return
		}
		q.mu.Lock()
		q.when[name] = time.Since(q.begun)
		q.mu.Unlock()
		for i, s := range slots {
			q.all.Go(func() {
				time.Sleep(work[min(i, len(work)-1)])
				s.Release()
			})
		}
	})
	synctest.Wait()
}

// check compares when each got his slots, in seconds.
func (q *queuer) check(t *testing.T, want map[string]float64) {
	t.Helper()
	q.all.Wait()
	got := map[string]float64{}
	for name, at := range q.when {
		got[name] = at.Seconds()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, m := range q.pool.ready {
		if m.used != 0 || m.reserved != nil || m.hold != nil {
			t.Errorf("%d of %d slots are used in the end, reserved %t, held %t", m.used, m.slots, m.reserved != nil, m.hold != nil)
		}
	}
}

func TestAloneBounds(t *testing.T) {
	const s = time.Second
	for name, tt := range map[string]struct {
		slots []int // of each instance
		do    func(t *testing.T, q *queuer)
		want  map[string]float64
	}{
		"a short one has it alone, as soon as it has nothing else": {[]int{4}, func(t *testing.T, q *queuer) {
			t.Helper()
			q.send(t, "before", 0, 2*s)
			q.send(t, "alone", 1, s)
			q.send(t, "after", 0, s)
		}, map[string]float64{"before": 0, "alone": 2, "after": 3}},
		"a long one is not alone for ever": {[]int{4}, func(t *testing.T, q *queuer) {
			t.Helper()
			q.send(t, "alone", 1, 60*s)
			q.send(t, "after", 0, s)
		}, map[string]float64{"alone": 0, "after": 3}},
		"who waits for long ones to end goes beside them, and those after him at once": {[]int{4}, func(t *testing.T, q *queuer) {
			t.Helper()
			q.send(t, "before", 0, 60*s)
			q.send(t, "first", 1, s)
			q.send(t, "after", 0, 40*s)
			time.Sleep(10 * s)
			q.send(t, "second", 1, s)
			time.Sleep(30 * s) // the rest is over
			q.send(t, "third", 2, 2*s)
			q.send(t, "last", 0, s)
		}, map[string]float64{"before": 0, "first": 3, "after": 3, "second": 10, "third": 43, "last": 43}},
		"the others have it for as long as they had to wait": {[]int{4}, func(t *testing.T, q *queuer) {
			t.Helper()
			q.send(t, "first", 1, 2*s)
			q.send(t, "a", 0, s)
			q.send(t, "second", 1, 2*s)
			time.Sleep(2500 * time.Millisecond)
			q.send(t, "b", 0, s)
			time.Sleep(900 * time.Millisecond)
			q.send(t, "c", 0, s)
			time.Sleep(800 * time.Millisecond) // the second one has reserved it at 4
			q.send(t, "d", 0, s)
		}, map[string]float64{"first": 0, "a": 2, "b": 2.5, "c": 3.4, "second": 4.4, "d": 6.4}},
		"some together": {[]int{4}, func(t *testing.T, q *queuer) {
			t.Helper()
			q.send(t, "together", 3, s, 2*s, 2500*time.Millisecond)
			q.send(t, "after", 0, s)
		}, map[string]float64{"together": 0, "after": 2.5}},
		"half of the instances stay for everybody": {[]int{4, 4}, func(t *testing.T, q *queuer) {
			t.Helper()
			q.send(t, "first", 1, 2*s)
			q.send(t, "second", 1, 2*s)
			q.send(t, "a", 0, s)
			q.send(t, "b", 0, s)
		}, map[string]float64{"first": 0, "a": 0, "b": 0, "second": 2}},
		"with one slot they take turns": {[]int{1}, func(t *testing.T, q *queuer) {
			t.Helper()
			q.send(t, "first", 3, s)
			q.send(t, "a", 0, s)
			q.send(t, "second", 1, s)
			q.send(t, "b", 0, s)
		}, map[string]float64{"first": 0, "a": 1, "second": 2, "b": 3}},
		"a new instance is alone first": {nil, func(t *testing.T, q *queuer) {
			t.Helper()
			q.pool.hope(1, firstGeneration)
			q.send(t, "a", 0, s)
			q.send(t, "alone", 1, s)
			q.add(1, 4)
		}, map[string]float64{"alone": 0, "a": 1}},
		"what ends is waited for no more": {[]int{4}, func(t *testing.T, q *queuer) {
			t.Helper()
			q.send(t, "before", 0, 9*s)
			q.send(t, "alone", 1, s)
			time.Sleep(2 * s)
			q.pool.leave(q.pool.ready[0])
			time.Sleep(2 * s) // the first one's time would be over
			q.add(0, 4)
		}, map[string]float64{"before": 0, "alone": 4}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newQueuer(tt.slots...)
				tt.do(t, q)
				q.check(t, tt.want)
			})
		})
	}
}

// TestInstanceThatIsHeldEnds: who has several slots of an instance gives the last one back after it was told to end, whether or not others were let in.
func TestInstanceThatIsHeldEnds(t *testing.T) {
	for _, long := range []time.Duration{time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			q := newQueuer(4)
			m := q.pool.ready[0]
			q.send(t, "alone", 2, long, long/2)
			q.pool.leave(m)
			<-m.released
			if took := time.Since(q.begun); took != long {
				t.Errorf("it had nothing to do after %s, not %s", took, long)
			}
			q.all.Wait()
			if use := q.pool.usage(); m.used != 0 || use.slots != 0 {
				t.Errorf("%d used, %d in use", m.used, use.slots)
			}
		})
	}
}
