package batch

import (
	"cmp"
	"container/list"
	"slices"
	"time"
)

// mostLevels is how many classes of priority a queue has at most.
const mostLevels = 100

// turn is how many requests of other classes go before one that waits in a class, at most, before the class has its turn.
const turn = 8

// turns say which of some classes is next. It is the first one, so that a class goes before all those after it; but a class of which something waits
// while turn requests of others are taken has its turn, whatever waits before it. Where several have, the one that was passed over most often is next.
// So no class starves: of any turn+n requests that are taken while something of it waits, with n other classes, at least one is of it.
type turns struct {
	passed []int // for each class: requests of others that were taken while something of it waited
}

// newTurns gives the turns of n classes.
func newTurns(n int) turns { return turns{passed: make([]int, n)} }

// next gives the class that is next, -1 if nothing waits; waits says whether something of a class does.
func (t *turns) next(waits func(class int) bool) int {
	first, due := -1, -1
	for c, passed := range t.passed {
		if !waits(c) {
			continue
		}
		if first < 0 {
			first = c
		}
		if passed >= turn && (due < 0 || passed > t.passed[due]) {
			due = c
		}
	}
	if due >= 0 {
		return due
	}
	return first
}

// took notes that a request of a class was taken; waits is as it is after that.
func (t *turns) took(class int, waits func(class int) bool) {
	for c := range t.passed {
		if c == class || !waits(c) {
			t.passed[c] = 0
			continue
		}
		t.passed[c]++
	}
}

// classes are the requests that wait, by class. Those of one class are in the order in which they came or, where clients share the queue, in turns of the
// clients.
type classes struct {
	lanes    []lane
	turns    turns
	n        int            // suspects among them
	apart    lane           // those that may have ended a worker, of all classes: they are not next, but go alone
	suspects int            // in apart
	held     map[string]int // requests that wait, by client; those of nobody in particular are of ""
	budget   *Budget        // that their bytes count for; nil for none
}

func (q *classes) len() int { return q.n }

// ready is how many there are without the suspects.
func (q *classes) ready() int { return q.n - q.suspects }

// suspect gives the suspect that is next, nil for none. Those whose clients have left, and have not come to take them out yet, are not.
func (q *classes) suspect() *pending {
	for p := range q.suspected {
		return p
	}
	return nil
}

// suspected goes through the suspects that somebody waits for, in their order.
func (q *classes) suspected(yield func(*pending) bool) {
	for g := q.apart.guests.Front(); g != nil; g = g.Next() {
		for e := guestIn(g).jobs.Front(); e != nil; e = e.Next() {
			if p := pendingIn(e); !p.left() && !yield(p) {
				return
			}
		}
	}
}

// group gives the suspects that may be tried together now: the one that is next, and others if it may be with some, and they with as many.
func (q *classes) group() []*pending {
	first := q.suspect()
	if first == nil {
		return nil
	}
	group, most := []*pending{first}, first.company()
	for p := range q.suspected {
		if p != first && len(group) < min(most, p.company()) {
			most = min(most, p.company())
			group = append(group, p)
		}
	}
	return group
}

// laneOf gives the lane in which a request waits.
func (q *classes) laneOf(p *pending) *lane {
	if p.apart {
		return &q.apart
	}
	return &q.lanes[p.class]
}

// oldest gives the arrival of the one that has waited longest, zero if nothing waits.
func (q *classes) oldest() (at time.Time) {
	at = q.oldestReady()
	for e := q.apart.guests.Front(); e != nil; e = e.Next() {
		at = earlier(at, first(&guestIn(e).jobs).arrived)
	}
	return at
}

// oldestReady is oldest without the suspects. Within a class and a client that is the first one.
func (q *classes) oldestReady() (at time.Time) {
	for c := range q.lanes {
		for e := q.lanes[c].guests.Front(); e != nil; e = e.Next() {
			if p := first(&guestIn(e).jobs); at.IsZero() || p.arrived.Before(at) {
				at = p.arrived
			}
		}
	}
	return at
}

// waits says whether something of a class waits.
func (q *classes) waits(class int) bool { return q.lanes[class].guests.Len() > 0 }

// next gives the request that is next, nil for none.
func (q *classes) next() *pending {
	if q.ready() == 0 {
		return nil
	}
	return q.lanes[q.turns.next(q.waits)].first()
}

// first gives the first request of a list that is not empty.
func first(l *list.List) *pending { return pendingIn(l.Front()) }

func pendingIn(e *list.Element) *pending {
	p, ok := e.Value.(*pending)
	if !ok {
		panic("batch: something else than a request waits")
	}
	return p
}

// add lets a request wait in its class or among the suspects, behind the others or before them.
func (q *classes) add(p *pending, before bool) {
	if p.apart = p.suspect(); p.apart {
		q.suspects++
	}
	q.laneOf(p).add(p, before)
	q.n++
	q.held[p.item.Client]++
	if !p.counted {
		q.budget.add(p.item.Size())
		p.counted = true
	}
}

// remove takes out a request that left. One that is taken for a batch is a turn: it goes through take.
func (q *classes) remove(p *pending) {
	q.laneOf(p).remove(p)
	if p.apart {
		q.suspects--
	}
	q.n--
	if q.held[p.item.Client]--; q.held[p.item.Client] == 0 {
		delete(q.held, p.item.Client)
	}
	if p.counted {
		q.budget.add(-p.item.Size())
		p.counted = false
	}
}

// take takes out the request that is next.
func (q *classes) take(p *pending) {
	q.lanes[p.class].pass(p)
	q.remove(p)
	q.turns.took(p.class, q.waits)
}

// newest gives the request of a client that came last, nil for none.
func (q *classes) newest(client string) *pending {
	last := q.apart.last(client)
	for c := range q.lanes {
		if p := q.lanes[c].last(client); p != nil && (last == nil || p.serial > last.serial) {
			last = p
		}
	}
	return last
}

// clear takes all the requests out, and gives them in the order of their classes.
func (q *classes) clear() []*pending {
	all := make([]*pending, 0, q.n)
	for q.suspects > 0 {
		p := q.apart.first()
		q.remove(p)
		all = append(all, p)
	}
	for c := range q.lanes {
		for q.waits(c) {
			p := q.lanes[c].first()
			q.lanes[c].pass(p)
			q.remove(p)
			all = append(all, p)
		}
	}
	return all
}

// arrange puts what waits into n classes; classOf gives a request's.
func (q *classes) arrange(n int, classOf func(p *pending) int) {
	all := q.clear()
	q.lanes, q.turns, q.held = make([]lane, n), newTurns(n), map[string]int{}
	slices.SortStableFunc(all, func(a, b *pending) int { return cmp.Compare(a.serial, b.serial) })
	for _, p := range all {
		p.class = classOf(p)
		q.add(p, false)
	}
}

// Priorities are the classes of a queue. The zero value is one class, in which requests are taken in the order in which they came.
type Priorities struct {
	Levels  int // classes, counted from 1, which goes before 2 and so on; below 1 counts as 1, and there are at most 100
	Default int // the class of a request that asks for none; one that is not there counts as the last one
}

func (p Priorities) levels() int { return min(max(p.Levels, 1), mostLevels) }

// class gives the class of what asks for a priority, counted from 0: 0 asks for the default one, and what is beyond the last one counts as the last.
func (p Priorities) class(priority int) int {
	levels := p.levels()
	if priority <= 0 {
		priority = p.Default
	}
	if priority <= 0 || priority > levels {
		priority = levels
	}
	return priority - 1
}
