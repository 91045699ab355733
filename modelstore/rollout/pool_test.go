package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

// asking is an acquire that was begun.
type asking struct {
	worker int
	cancel context.CancelFunc
	got    chan *member // holds one; nil for a failed acquire
}

// ledger is what a test knows about a pool from the outside.
type ledger struct {
	pool    *pool
	members []*member
	held    map[*member]int
	waiting []*asking
}

func newLedger() *ledger { return &ledger{pool: newPool(time.Minute), held: map[*member]int{}} }

func (l *ledger) ask(worker int) {
	ctx, cancel := context.WithCancel(context.Background())
	a := &asking{worker: worker, cancel: cancel, got: make(chan *member, 1)}
	go func() {
		m, _ := l.pool.acquire(ctx, &waiter{worker: worker, given: make(chan *member, 1)})
		a.got <- m
	}()
	l.waiting = append(l.waiting, a)
}

// collect takes in what was handed out, once nothing moves any more.
func (l *ledger) collect() (handed []*member) {
	synctest.Wait()
	l.waiting = slices.DeleteFunc(l.waiting, func(a *asking) bool {
		select {
		case m := <-a.got:
			a.cancel()
			if m != nil {
				l.held[m]++
				handed = append(handed, m)
			}
			return true
		default:
			return false
		}
	})
	return handed
}

func (l *ledger) holders() []*member {
	return slices.DeleteFunc(slices.Clone(l.members), func(m *member) bool { return l.held[m] == 0 })
}

// free counts the slots that could be had by someone who asks for a worker's, or for any.
func (l *ledger) free(worker int) int {
	n := 0
	for _, m := range l.members {
		if !m.leaving && (worker == anyWorker || m.worker == worker) {
			n += m.slots - l.held[m]
		}
	}
	return n
}

// check compares the pool with the ledger.
func (l *ledger) check() error {
	for _, m := range l.members {
		if l.held[m] > m.slots || l.held[m] != m.used {
			return fmt.Errorf("%s has %d slots, %d are held and %d counted", m.inst.ID(), m.slots, l.held[m], m.used)
		}
		released := false
		select {
		case <-m.released:
			released = true
		default:
		}
		if released != (m.leaving && l.held[m] == 0) {
			return fmt.Errorf("%s: leaving %t, %d held, released %t", m.inst.ID(), m.leaving, l.held[m], released)
		}
	}
	if got, want := l.pool.Free(), l.free(anyWorker); got != want {
		return fmt.Errorf("%d slots are free, %d are said to be", want, got)
	}
	for _, a := range l.waiting {
		if n := l.free(a.worker); n > 0 {
			return fmt.Errorf("somebody waits for worker %d while %d slots are free", a.worker, n)
		}
	}
	return nil
}

// step is one thing that happens to a pool; pick chooses what it happens to.
type step struct{ what, pick int }

// workers is how many workers the ledger's pools have.
const workers = 3

// do does a step. What cannot happen now does not.
func (l *ledger) do(s step) error {
	switch holders := l.holders(); s.what {
	case 0:
		slots := []int{1, 1, 2, 5}[s.pick%4]
		l.members = append(l.members, l.pool.add(backendtest.NewInstance("instance "+strconv.Itoa(len(l.members))), s.pick/4%workers, slots, firstGeneration, terms{}))
	case 1, 2, 3:
		return l.acquire([]int{anyWorker, anyWorker, anyWorker, 0, 1, 2}[s.pick%6])
	case 4:
		if len(l.waiting) > 0 {
			l.waiting[s.pick%len(l.waiting)].cancel()
		}
	case 5, 6:
		if len(holders) > 0 {
			l.release(holders[s.pick%len(holders)])
		}
	case 7: // at the same moment
		if len(holders) > 0 && len(l.waiting) > 0 {
			go l.waiting[s.pick%len(l.waiting)].cancel()
			l.release(holders[s.pick%len(holders)])
		}
	case 8:
		if len(l.members) > 0 {
			l.pool.leave(l.members[s.pick%len(l.members)])
		}
	case 9:
		return l.lose(s.pick % workers)
	}
	l.collect()
	return nil
}

// acquire asks for a slot. If there are some, the least busy member gives one.
func (l *ledger) acquire(worker int) error {
	least := -1
	for _, m := range l.members {
		if !m.leaving && l.held[m] < m.slots && (worker == anyWorker || m.worker == worker) && (least < 0 || l.held[m] < least) {
			least = l.held[m]
		}
	}
	l.ask(worker)
	if handed := l.collect(); least >= 0 && (len(handed) != 1 || l.held[handed[0]] != least+1) {
		return fmt.Errorf("the least busy one has handed out %d slots, and now %d were handed out", least, len(handed))
	}
	return nil
}

func (l *ledger) release(m *member) {
	l.held[m]--
	l.pool.release(m, nil)
}

// lose takes a worker away and gives it back: nobody may wait for it in between.
func (l *ledger) lose(worker int) error {
	for _, m := range l.members {
		if m.worker == worker {
			l.pool.leave(m)
		}
	}
	l.pool.lose(worker)
	if handed := l.collect(); len(handed) > 0 {
		return errors.New("slots were handed out because a worker was lost")
	}
	for _, a := range l.waiting {
		if a.worker == worker {
			return fmt.Errorf("somebody waits for worker %d, which is lost", worker)
		}
	}
	l.pool.hope(worker, firstGeneration)
	return nil
}

// TestSlotsAreNeitherLostNorHandedOutTwice tries random sequences of everything that can happen to a pool.
func TestSlotsAreNeitherLostNorHandedOutTwice(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
			return step{rapid.IntRange(0, 9).Draw(rt, "what"), rapid.IntRange(0, 1000).Draw(rt, "pick")}
		}), 1, 80).Draw(rt, "steps")
		var problem error
		synctest.Test(t, func(*testing.T) { problem = play(steps) })
		if problem != nil {
			rt.Fatal(problem)
		}
	})
}

func play(steps []step) error {
	l := newLedger()
	defer func() {
		for _, a := range l.waiting {
			a.cancel()
		}
	}()
	for w := range workers {
		l.pool.hope(w, firstGeneration)
	}
	for i, s := range steps {
		err := l.do(s)
		if err == nil {
			err = l.check()
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	for _, a := range l.waiting {
		a.cancel()
	}
	if l.collect(); len(l.waiting) > 0 {
		return fmt.Errorf("%d calls wait on after they were given up", len(l.waiting))
	}
	return nil
}

func TestFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		l.pool.hope(0, firstGeneration)
		for range 5 {
			l.ask(anyWorker)
			synctest.Wait()
		}
		all := slices.Clone(l.waiting)
		m := l.pool.add(backendtest.NewInstance("i"), 0, 3, firstGeneration, terms{})
		if handed := l.collect(); len(handed) != 3 || !slices.Equal(l.waiting, all[3:]) {
			t.Errorf("3 slots came, %d were handed out", len(handed))
		}
		l.pool.release(m, nil)
		l.held[m]--
		if handed := l.collect(); len(handed) != 1 || !slices.Equal(l.waiting, all[4:]) {
			t.Errorf("a slot came, %d were handed out", len(handed))
		}
		l.pool.lose(0)
		if l.collect(); len(l.waiting) > 0 {
			t.Error("somebody waits for a pool without workers")
		}
		if _, err := l.pool.Acquire(t.Context()); !fault.Is(err, fault.NoWorker) {
			t.Error(err)
		}
	})
}

// TestDeadInstanceIsNotHadAgain lets a slot's instance die before its batch is sent, while the instance has more slots free and its supervisor has
// not seen the death yet.
func TestDeadInstanceIsNotHadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(time.Minute)
		p.hope(0, firstGeneration)
		first := backendtest.NewInstance("first")
		m := p.add(first, 0, 4, firstGeneration, terms{})
		s, err := p.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		other, err := p.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		first.Die(nil)
		if _, err := s.Execute(t.Context(), items("x")); !errors.Is(err, backend.ErrNotSent) {
			t.Errorf("without another instance: %v", err)
		}
		s.Release()
		if p.Free() != 0 {
			t.Errorf("%d slots of a dead instance are free", p.Free())
		}
		p.add(backendtest.NewInstance("second"), 0, 4, firstGeneration, terms{})
		if results, err := other.Execute(t.Context(), items("x")); err != nil || string(results[0].Body) != "x" {
			t.Errorf("%v, %v", results, err)
		}
		if p.Free() != 3 {
			t.Errorf("%d slots are free", p.Free())
		}
		other.Release()
		<-m.released
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		s2, err := p.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s2.Execute(ended, items("y")); !errors.Is(err, context.Canceled) {
			t.Errorf("a call that was given up: %v", err)
		}
		s2.Release()
	})
}
