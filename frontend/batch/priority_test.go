package batch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	rule "github.com/flambeau-serve/flambeau/frontend/batch/policy"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// scripted gives one after the other, and then no more of them.
func scripted(script []bool) func() bool {
	return func() bool {
		if len(script) == 0 {
			return false
		}
		next := script[0]
		script = script[1:]
		return next
	}
}

func TestClassOfAPriority(t *testing.T) {
	for _, c := range []struct {
		p              Priorities
		priority, want int
	}{
		{Priorities{}, 0, 1},
		{Priorities{}, 7, 1},
		{Priorities{Levels: 3, Default: 2}, 0, 2},
		{Priorities{Levels: 3, Default: 2}, 1, 1},
		{Priorities{Levels: 3, Default: 2}, 3, 3},
		{Priorities{Levels: 3, Default: 2}, 4, 3},
		{Priorities{Levels: 3, Default: 2}, -1, 2},
		{Priorities{Levels: 3}, 0, 3},
		{Priorities{Levels: 3, Default: 9}, 0, 3},
		{Priorities{Levels: 1 << 40, Default: 1 << 30}, 0, mostLevels},
	} {
		if got := c.p.class(c.priority) + 1; got != c.want {
			t.Errorf("%+v: priority %d is of class %d, want %d", c.p, c.priority, got, c.want)
		}
	}
}

// TestTurnsStarveNobody takes from classes in which something waits or not, at random: the first class goes first unless another has its turn, and none is
// passed over for longer than is promised.
func TestTurnsStarveNobody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "classes")
		order := newTurns(n)
		has := make([]bool, n)
		passed := make([]int, n)
		for range rapid.IntRange(1, 300).Draw(t, "takes") {
			for c := range has {
				if !has[c] {
					has[c] = rapid.Bool().Draw(t, "arrives")
				}
			}
			waits := func(c int) bool { return has[c] }
			c := order.next(waits)
			if first := slices.Index(has, true); c != first && (first < 0 || c < 0 || passed[c] < turn) {
				t.Fatalf("class %d goes before %d after it was passed over for %v", c, first, passed)
			}
			if c < 0 {
				continue
			}
			has[c] = rapid.Bool().Draw(t, "more")
			order.took(c, waits)
			for other := range passed {
				passed[other]++
				if other == c || !has[other] {
					passed[other] = 0
				}
				if passed[other] >= turn+n-1 {
					t.Fatalf("class %d of %d was passed over for %d requests", other, n, passed[other])
				}
			}
		}
	})
}

// TestPriorities lets requests of all classes wait for a busy worker.
func TestPriorities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(1, takes(time.Second))
		q, stop := start(t, w, Policy{MaxItems: 100, MaxBatch: 1, Priorities: Priorities{Levels: 3, Default: 2}})
		var all sync.WaitGroup
		for i, priority := range []int{1, 3, 0, 9, 2, 1, 1} {
			it := item(fmt.Sprintf("%d of %d", i, priority))
			it.Priority = priority
			all.Go(func() { _, _, _ = q.Submit(t.Context(), it) })
			synctest.Wait()
		}
		all.Wait()
		stop()
		got := strings.Join(slices.Concat(w.seen()...), ", ")
		if want := "0 of 1, 5 of 1, 6 of 1, 2 of 0, 4 of 2, 1 of 3, 3 of 9"; got != want {
			t.Errorf("run %s, want %s", got, want)
		}
	})
}

// TestLowPriorityIsNotStarved has more clients of the first class than the worker can answer, without an end, and one request of the last class.
func TestLowPriorityIsNotStarved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(1, takes(time.Second))
		q, stop := start(t, w, Policy{MaxItems: 100, MaxBatch: 2, Priorities: Priorities{Levels: 2, Default: 1}})
		ctx, enough := context.WithCancel(t.Context())
		var flood sync.WaitGroup
		for range 10 {
			flood.Go(func() {
				for ctx.Err() == nil {
					_, _, _ = q.Submit(ctx, item("high"))
				}
			})
		}
		time.Sleep(10 * time.Second)
		low := item("low")
		low.Priority = 2
		begun := time.Now()
		if _, _, err := q.Submit(t.Context(), low); err != nil {
			t.Error(err)
		}
		// It is passed over for 8 requests, which are 4 batches beside the one that runs; then it is in the next one.
		if took := time.Since(begun); took > 6*time.Second {
			t.Errorf("answered after %v", took)
		}
		enough()
		flood.Wait()
		stop()
	})
}

// TestPriorityClassesChange gives the queue other classes while requests wait.
func TestPriorityClassesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(1, takes(time.Second))
		policy := Policy{MaxItems: 100, MaxBatch: 1, Priorities: Priorities{Levels: 2, Default: 1}}
		q, stop := start(t, w, policy)
		var all sync.WaitGroup
		for _, priority := range []int{1, 2, 1, 3, 2, 1} {
			it := item(strconv.Itoa(priority))
			it.Priority = priority
			all.Go(func() { _, _, _ = q.Submit(t.Context(), it) })
			synctest.Wait()
		}
		time.Sleep(500 * time.Millisecond)
		policy.Levels = 3
		if err := q.SetPolicy(policy); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Second) // 1, 1 and 1 are run, or run
		policy.Levels = 0
		if err := q.SetPolicy(policy); err != nil {
			t.Error(err)
		}
		all.Wait()
		stop()
		if got := strings.Join(slices.Concat(w.seen()...), ""); got != "111232" {
			t.Errorf("run in the order %s", got)
		}
	})
}

// TestExpiredRequestsTakeNoPlace: a request whose time is over, and whose client has not come to take it out of the queue yet, is not in the next batch, and
// costs no other one its place or its class its turn.
func TestExpiredRequestsTakeNoPlace(t *testing.T) {
	q, err := New(newWorkers(1, echo), Policy{MaxItems: 100, MaxBatch: 2, MaxDelay: time.Hour, Priorities: Priorities{Levels: 2, Default: 1}})
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	close(over)
	for i := range 2 * turn {
		p := &pending{item: item("late"), arrived: time.Now(), answered: make(chan outcome, 1)}
		if i%4 != 0 {
			p.done = over
		}
		if i%4 == 3 {
			p.item.Priority = 2
			p.done = nil
		}
		if err := q.enter(p); err != nil {
			t.Fatal(err)
		}
	}
	batch, wait := q.take(nil, time.Now())
	if len(batch) != 2 || wait > 0 || batch[0].left() || batch[1].left() || batch[0].class != 0 || batch[1].class != 0 {
		t.Errorf("a batch of %d, which waits %v", len(batch), wait)
	}
	q.Fail(errors.New("the end"))
	if n, _ := q.Waiting(); n != 0 || q.bytes != 0 {
		t.Errorf("%d requests and %d bytes are still counted", n, q.bytes)
	}
}

// asked is what a test knows about a request.
type asked struct {
	class        int
	arrived, ran time.Duration
	at, patience time.Duration
	priority     int
	alone        bool
}

// TestEveryPolicyKeepsItsPromises lets random clients come and leave under random policies, and takes slots away from batches that are about to leave.
func TestEveryPolicyKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ms := func(least, most int, what string) time.Duration {
			return time.Duration(rapid.IntRange(least, most).Draw(rt, what)) * time.Millisecond
		}
		policy := Policy{
			MaxItems: 100, MaxBatch: rapid.IntRange(1, 5).Draw(rt, "batch"), MaxDelay: ms(0, 40, "delay"),
			Priorities: Priorities{Levels: rapid.IntRange(0, 4).Draw(rt, "levels"), Default: rapid.IntRange(0, 4).Draw(rt, "default")},
		}
		policy.Batching.Rule = rapid.SampledFrom([]rule.Rule{rule.Adaptive, rule.TorchServe}).Draw(rt, "rule")
		policy.Batching.Preferred = rapid.SliceOfN(rapid.IntRange(1, 6), 0, 2).Draw(rt, "preferred")
		policy.Batching.Padded = rapid.Bool().Draw(rt, "padded")
		handler := ms(1, 25, "handler")
		unsent := rapid.SliceOfN(rapid.Bool(), 0, 30).Draw(rt, "unsent")
		all := rapid.SliceOfN(rapid.Custom(func(*rapid.T) *asked {
			a := &asked{at: ms(0, 150, "at"), patience: ms(1, 400, "patience"), priority: rapid.IntRange(0, 5).Draw(rt, "priority")}
			a.alone = rapid.IntRange(0, 9).Draw(rt, "alone") == 0
			a.class = policy.class(a.priority)
			return a
		}), 1, 40).Draw(rt, "clients")
		synctest.Test(t, func(t *testing.T) { keep(t, policy, handler, unsent, all) })
	})
}

// keep runs the clients and checks what came of them. There is one worker, so that there is one order.
func keep(t *testing.T, policy Policy, handler time.Duration, unsent []bool, all []*asked) {
	t.Helper()
	begun := time.Now()
	var mu sync.Mutex
	type ran struct {
		ids        []int
		start, end time.Duration
	}
	var batches []ran
	w := newWorkers(1, func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
		r := ran{start: time.Since(begun)}
		for i := range items {
			id, _ := strconv.Atoi(items[i].ID)
			r.ids = append(r.ids, id)
		}
		time.Sleep(handler)
		r.end = time.Since(begun)
		mu.Lock()
		defer mu.Unlock()
		batches = append(batches, r)
		return echo(ctx, items)
	})
	w.unsent = scripted(unsent)
	q, stop := start(t, w, policy)
	var clients sync.WaitGroup
	answers := make([]error, len(all))
	for i, a := range all {
		clients.Go(func() {
			time.Sleep(a.at + time.Duration(i)) // no two at the same time
			ctx, cancel := context.WithTimeout(t.Context(), a.patience)
			defer cancel()
			a.arrived = time.Since(begun)
			one := item(strconv.Itoa(i))
			one.Priority, one.Alone = a.priority, a.alone
			r, _, err := q.Submit(ctx, one)
			answers[i] = err
			if err == nil && string(r.Body) != one.ID || err != nil && !errors.Is(err, context.DeadlineExceeded) && !fault.Is(err, fault.Overloaded) {
				t.Errorf("request %d: %q, %v", i, r.Body, err)
			}
		})
	}
	clients.Wait()
	stop()
	free := time.Duration(0) // when the worker was free
	for _, b := range batches {
		if len(b.ids) > policy.MaxBatch {
			t.Errorf("a batch of %d, %d are allowed", len(b.ids), policy.MaxBatch)
		}
		oldest := b.start
		for _, id := range b.ids {
			a := all[id]
			if a.ran != 0 {
				t.Errorf("request %d was run twice", id)
			}
			if a.alone && len(b.ids) > 1 {
				t.Errorf("request %d was to be alone", id)
			}
			a.ran, oldest = b.start+1, min(oldest, a.arrived)
		}
		late := max(free, oldest+policy.MaxDelay)
		if policy.Batching.Rule == rule.Adaptive {
			late = max(free, oldest) + policy.MaxDelay // where it pays, a batch is kept for others although its oldest request has waited for the worker
		}
		if b.start > late {
			t.Errorf("a batch left at %v; the worker was free at %v, and its oldest request came at %v (delay %v)", b.start, free, oldest, policy.MaxDelay)
		}
		free = b.end
	}
	for i, a := range all {
		if answers[i] == nil && a.ran == 0 {
			t.Errorf("request %d was answered and not run", i)
		}
	}
	inOrder(t, all)
}

// inOrder looks whether those of a class were run in the order in which they came.
func inOrder(t *testing.T, all []*asked) {
	t.Helper()
	run := slices.DeleteFunc(slices.Clone(all), func(a *asked) bool { return a.ran == 0 })
	slices.SortFunc(run, func(a, b *asked) int { return cmp.Compare(a.arrived, b.arrived) })
	last := map[int]time.Duration{}
	for _, a := range run {
		if a.ran < last[a.class] {
			t.Errorf("one of class %d that came at %v was run before one that came earlier", a.class, a.arrived)
		}
		last[a.class] = a.ran
	}
}
