package rollout

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

// changing is a pool over several generations, and what a test knows about it from the outside. Each worker has one instance at most.
type changing struct {
	ledger

	current, newest int
	generation      map[int]int // of each worker that was hoped for
	pins            map[int]int
	dismissed       map[int]bool
	next            int // worker
}

// do does a step. What cannot happen now does not.
func (c *changing) do(s step) error {
	known := slices.Sorted(func(yield func(int) bool) {
		for w := range c.generation {
			if !yield(w) {
				return
			}
		}
	})
	switch what := s.what; {
	case what == 0: // a worker of the current generation or of the next one
		generation := c.current + s.pick%2
		c.newest = max(c.newest, generation)
		c.generation[c.next] = generation
		c.pool.hope(c.next, generation)
		c.next++
	case what == 1 && len(known) > 0: // an instance of it
		w := known[s.pick%len(known)]
		if !slices.ContainsFunc(c.members, func(m *member) bool { return m.worker == w }) {
			c.members = append(c.members, c.pool.add(backendtest.NewInstance(strconv.Itoa(w)), w, 1+s.pick%2, c.generation[w], terms{}))
		}
	case what <= 3:
		c.ask(anyWorker)
		c.collect()
	case what == 4 && len(known) > 0:
		c.ask(known[s.pick%len(known)])
		c.collect()
	case what <= 6:
		if holders := c.holders(); len(holders) > 0 {
			c.release(holders[s.pick%len(holders)])
		}
	case what == 7:
		return c.promote()
	case what == 8 && len(known) > 0:
		if w := known[s.pick%len(known)]; c.pins[w] == 0 || s.pick%3 == 0 {
			pinned := c.pool.Pin(w)
			if want := c.generation[w] == c.current && !c.dismissed[w]; pinned != want {
				return fmt.Errorf("worker %d: pinned %t, want %t", w, pinned, want)
			}
			if pinned {
				c.pins[w]++
			}
		} else {
			c.pins[w]--
			c.pool.Unpin(w)
		}
	case what == 9 && len(known) > 0: // it is told to end
		w := known[s.pick%len(known)]
		c.dismissed[w] = true
		c.pool.dismiss(w)
		for _, m := range c.members {
			if m.worker == w {
				c.pool.retire(m)
			}
		}
	}
	return nil
}

// promote swaps to the newest generation and dismisses the workers of the others, as a swap does.
func (c *changing) promote() error {
	if c.newest == c.current {
		return nil
	}
	if !c.pool.promote(c.newest, 0, time.Minute) {
		return fmt.Errorf("generation %d was not promoted", c.newest)
	}
	c.current = c.newest
	for w, generation := range c.generation {
		if generation < c.current {
			c.dismissed[w] = true
			c.pool.dismiss(w)
		}
	}
	c.collect()
	return nil
}

// given says who may be given a slot of m: "any", "own" (those who ask for its worker), or "none".
func (c *changing) given(m *member) string {
	switch {
	case c.generation[m.worker] > c.current:
		return "none"
	case c.generation[m.worker] == c.current && !c.dismissed[m.worker]:
		return "any"
	case c.pins[m.worker] > 0:
		return "own"
	}
	return "none"
}

func (c *changing) check() error {
	c.collect()
	for _, m := range c.members {
		who, retired := c.given(m), m.leaving
		if who == "none" && !retired && c.generation[m.worker] <= c.current {
			return fmt.Errorf("worker %d is not needed any more and does not leave", m.worker)
		}
		released := false
		select {
		case <-m.released:
			released = true
		default:
		}
		if released != (m.leaving && c.held[m] == 0) {
			return fmt.Errorf("worker %d: leaving %t, %d held, released %t", m.worker, m.leaving, c.held[m], released)
		}
		if c.held[m] >= m.slots || retired {
			continue
		}
		for _, a := range c.waiting {
			if who == "any" && (a.worker == anyWorker || a.worker == m.worker) || who == "own" && a.worker == m.worker {
				return fmt.Errorf("somebody waits for worker %d while worker %d has a free slot", a.worker, m.worker)
			}
		}
	}
	hopeful := false
	for w, generation := range c.generation {
		hopeful = hopeful || generation == c.current && !c.dismissed[w]
	}
	for _, a := range c.waiting {
		if a.worker == anyWorker && !hopeful {
			return errors.New("somebody waits for a worker, and there will be none")
		}
	}
	return nil
}

// TestSlotsOverSwaps tries random sequences of what happens to a pool over several generations: nobody waits beside a free slot or without hope, and an
// old instance is let go exactly when it has nothing to do and no sequence needs it.
func TestSlotsOverSwaps(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
			return step{rapid.IntRange(0, 9).Draw(rt, "what"), rapid.IntRange(0, 1000).Draw(rt, "pick")}
		}), 1, 60).Draw(rt, "steps")
		var problem error
		synctest.Test(t, func(*testing.T) {
			c := &changing{
				ledger: *newLedger(), current: firstGeneration, newest: firstGeneration, generation: map[int]int{}, pins: map[int]int{},
				dismissed: map[int]bool{},
			}
			defer func() {
				for _, a := range c.waiting {
					a.cancel()
				}
				synctest.Wait()
			}()
			for i, s := range steps {
				err := c.do(s)
				if err == nil {
					err = c.check()
				}
				if err != nil {
					problem = fmt.Errorf("step %d of %v: %w", i, steps, err)
					return
				}
			}
		})
		if problem != nil {
			rt.Fatal(problem)
		}
	})
}
