package batch

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/frontend/poison"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// dying answers as echo does, but dies of a batch with a payload "poison".
func dying(deaths *atomic.Int64) func(context.Context, []infer.Item) ([]infer.Result, error) {
	return func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
		time.Sleep(10 * time.Millisecond)
		for i := range items {
			if string(items[i].Parts[0].Data) == "poison" {
				deaths.Add(1)
				return nil, died(backend.CrashSignal, items)
			}
		}
		return echo(ctx, items)
	}
}

// died is what a batch gets whose worker has ended.
func died(reason backend.CrashReason, items []infer.Item) error {
	c := &backend.Crash{Reason: reason, How: "signal: aborted"}
	for i := range items {
		c.Requests = append(c.Requests, backend.CrashRequest{ID: items[i].ID})
	}
	return fault.New(fault.BackendDied, "Worker died.", &backend.CrashError{Crash: c})
}

func payload(id, data string) infer.Item {
	return infer.Item{ID: id, Parts: []infer.Part{{Name: "body", Data: []byte(data)}}}
}

func guard(retry bool) *Guard {
	return &Guard{Book: poison.New(poison.Options{}), Model: infer.ModelRef{Name: "m", Version: "1"}, Retry: retry}
}

// answers counts what came back for a number of requests that were sent at once.
func answers(t *testing.T, q *Queue, items ...infer.Item) map[string]string {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	got := map[string]string{}
	for _, it := range items {
		all.Go(func() {
			r, _, err := q.Submit(t.Context(), it)
			mu.Lock()
			defer mu.Unlock()
			got[it.ID] = string(r.Body)
			if err != nil {
				got[it.ID] = fault.KindOf(err).String()
			}
		})
		synctest.Wait()
	}
	all.Wait()
	return got
}

func TestOneOfABatchEndsTheWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var deaths atomic.Int64
		pool := newWorkers(1, dying(&deaths))
		q, stop := start(t, pool, Policy{MaxItems: 100, MaxBatch: 8, MaxDelay: time.Second, Guard: guard(true)})
		var items []infer.Item
		want := map[string]string{}
		for i := range 8 {
			id := strconv.Itoa(i)
			items, want[id] = append(items, payload(id, "good "+id)), id
		}
		items[3], want["3"] = payload("3", "poison"), "worker_died"
		if diff := cmp.Diff(want, answers(t, q, items...)); diff != "" {
			t.Error(diff)
		}
		if n := deaths.Load(); n != 2 { // with its batch, and alone
			t.Errorf("%d workers died", n)
		}
		if n := pool.alone.Load(); n != 8 {
			t.Errorf("%d requests had a worker for themselves, and 8 were with one that died", n)
		}
		if diff := cmp.Diff(map[string]string{"again": "poisoned", "good": "good"}, answers(t, q, payload("again", "poison"), payload("good", "x"))); diff != "" {
			t.Error(diff)
		}
		if n := deaths.Load(); n != 2 {
			t.Errorf("%d workers died, the last one of a request that is known", n)
		}
		stop()
	})
}

func TestNoSecondRunWhereTheModelForbidsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var deaths atomic.Int64
		pool := newWorkers(1, dying(&deaths))
		q, stop := start(t, pool, Policy{MaxItems: 100, MaxBatch: 2, MaxDelay: time.Second, Guard: guard(false)})
		got := answers(t, q, payload("a", "good"), payload("b", "poison"))
		if diff := cmp.Diff(map[string]string{"a": "worker_died", "b": "worker_died"}, got); diff != "" {
			t.Error(diff)
		}
		stop()
	})
}

func TestWithoutAGuardABatchDiesWithItsWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var deaths atomic.Int64
		q, stop := start(t, newWorkers(1, dying(&deaths)), Policy{MaxItems: 100, MaxBatch: 2, MaxDelay: time.Second})
		if diff := cmp.Diff(map[string]string{"a": "worker_died", "b": "worker_died"}, answers(t, q, payload("a", "good"), payload("b", "poison"))); diff != "" {
			t.Error(diff)
		}
		stop()
	})
}

// TestCopiesInTheQueue: once a payload is known to end workers, those that wait already are refused before they get to one.
func TestCopiesInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var deaths atomic.Int64
		q, stop := start(t, newWorkers(1, dying(&deaths)), Policy{MaxItems: 100, MaxBatch: 1, Guard: guard(true)})
		var items []infer.Item
		for i := range 6 {
			items = append(items, payload(strconv.Itoa(i), "poison"))
		}
		got := answers(t, q, items...)
		died, refused := 0, 0
		for _, what := range got {
			switch what {
			case "worker_died":
				died++
			case "poisoned":
				refused++
			}
		}
		if died+refused != 6 || died > 2 || deaths.Load() > 2 {
			t.Errorf("%d died, %d were refused, %d workers died: %v", died, refused, deaths.Load(), got)
		}
		stop()
	})
}

// TestKilledFromOutside: a request whose worker somebody has killed is tried again, once.
func TestKilledFromOutside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kills := 1
		pool := newWorkers(1, func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
			if kills--; kills >= 0 {
				return nil, died(backend.CrashKilled, items)
			}
			return echo(ctx, items)
		})
		q, stop := start(t, pool, Policy{MaxItems: 9, Guard: guard(true)})
		if got := answers(t, q, payload("a", "x")); got["a"] != "a" {
			t.Errorf("%v", got)
		}
		kills = 2
		if got := answers(t, q, payload("b", "y")); got["b"] != "worker_died" {
			t.Errorf("%v", got)
		}
		stop()
	})
}

// TestNotAgainAfterAPart: a request of whose answer something was passed on is not run a second time.
func TestNotAgainAfterAPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		pool := newWorkers(1, func(_ context.Context, items []infer.Item) ([]infer.Result, error) {
			runs++
			items[0].Emit(infer.Result{Body: []byte("part")})
			return nil, died(backend.CrashKilled, items)
		})
		q, stop := start(t, pool, Policy{MaxItems: 9, Guard: guard(true)})
		it := payload("a", "x")
		parts := 0
		it.Emit = func(infer.Result) { parts++ }
		if _, _, err := q.Submit(t.Context(), it); !fault.Is(err, fault.BackendDied) || runs != 1 || parts != 1 {
			t.Errorf("%v after %d runs, %d parts", err, runs, parts)
		}
		stop()
	})
}

// TestHistory: a request knows what it waited for, what its worker did meanwhile, and who was in its batch.
func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		q, stop := start(t, newWorkers(1, takes(300*ms)), Policy{MaxItems: 9, MaxBatch: 2, MaxDelay: 50 * ms})
		times := map[string]Times{}
		var mu sync.Mutex
		var all sync.WaitGroup
		send := func(id string) {
			all.Go(func() {
				_, tt, err := q.Submit(t.Context(), item(id))
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				times[id] = tt
			})
		}
		send("first")
		time.Sleep(100 * ms)
		send("b") // the worker is free 250 ms later, and a wait for others is over then
		time.Sleep(20 * ms)
		send("c")
		all.Wait()
		a, b, c := times["first"], times["b"], times["c"]
		if a.Queued != 50*ms || a.Gathered != 50*ms || a.Ran != 300*ms || a.Behind != nil || a.Run.Number != 1 || !slices.Equal(a.Run.Requests, []string{"first"}) {
			t.Errorf("the first: %+v %+v", a, a.Run)
		}
		if b.Queued != 250*ms || b.Gathered != 0 || b.Behind != a.Run || b.Run != c.Run || b.Run.Number != 2 || b.Run.Rows != 2 || !slices.Equal(b.Run.Requests, []string{"b", "c"}) {
			t.Errorf("the second: %+v %+v", b, b.Run)
		}
		if c.Queued != 230*ms || c.Behind != a.Run {
			t.Errorf("the third: %+v", c)
		}
		stop()
	})
}

func TestRunsOfManyWorkers(t *testing.T) {
	var r runs
	for n := range 3 * mostWorkers {
		e, _ := r.note(numbered(n), []infer.Item{{ID: strconv.Itoa(n)}}, time.Now())
		if e.Number != uint64(n+1) || r.before(n) != e {
			t.Fatalf("%+v", e)
		}
		if len(r.last) > mostWorkers {
			t.Fatalf("%d workers are remembered", len(r.last))
		}
	}
}

// numbered is a slot of a worker.
type numbered int

func (n numbered) Worker() (id, pid int) { return int(n), 1 }
func (numbered) Execute(context.Context, []infer.Item) ([]infer.Result, error) {
	return nil, errors.New("it runs nothing")
}
func (numbered) Continuous() bool { return false }

func (numbered) InTurn() bool   { return true }
func (numbered) Retiring() bool { return false }
func (numbered) Release()       {}

// TestTimesOfABatchSentAhead: what a worker is given while it runs another batch has waited for that one, and not run meanwhile.
func TestTimesOfABatchSentAhead(t *testing.T) {
	for inTurn, want := range map[bool]Times{
		true:  {Queued: 250 * time.Millisecond, Ran: 300 * time.Millisecond},
		false: {Queued: 0, Ran: 550 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			turn := make(chan struct{}, 1)
			w := newWorkers(2, func(context.Context, []infer.Item) ([]infer.Result, error) {
				turn <- struct{}{}
				time.Sleep(300 * time.Millisecond)
				<-turn
				return make([]infer.Result, 1), nil
			})
			w.inTurn = inTurn
			q, stop := start(t, w, Policy{MaxItems: 10})
			defer stop()
			first := make(chan Times, 1)
			go func() {
				_, times, err := q.Submit(t.Context(), infer.Item{ID: "first"})
				if err != nil {
					t.Error(err)
				}
				first <- times
			}()
			time.Sleep(50 * time.Millisecond)
			_, got, err := q.Submit(t.Context(), infer.Item{ID: "second"})
			a := <-first
			if err != nil || got.Queued != want.Queued || got.Ran != want.Ran || got.Run.Ran != want.Ran || inTurn != (got.Behind == a.Run) {
				t.Errorf("in turn %v: queued %v, ran %v, behind %v, %v", inTurn, got.Queued, got.Ran, got.Behind, err)
			}
			if a.Queued != 0 || a.Ran != 300*time.Millisecond || a.Behind != nil {
				t.Errorf("the first one: %+v", a)
			}
		})
	}
}
