package batch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// running starts a queue, and gives what ends it.
func running(t *testing.T, w *workers, policy Policy) (q *Queue, end func()) {
	t.Helper()
	q, err := New(w, policy)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { q.Run(ctx) })
	return q, func() {
		q.Close(nil)
		all.Wait()
		cancel()
	}
}

// lasting answers after d.
func lasting(d time.Duration) func(context.Context, []infer.Item) ([]infer.Result, error) {
	return func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
		time.Sleep(d)
		return echo(ctx, items)
	}
}

func from(client, id string) infer.Item {
	it := item(id)
	it.Client = client
	return it
}

// numbers gives an error's numbers by name.
func numbers(err error) map[string]float64 {
	all, _, _ := fault.Details(err)
	m := map[string]float64{}
	for _, n := range all {
		m[n.Name] = n.Value
	}
	return m
}

// TestRetryAfterIsWhenASlotFrees fills the queues of one and of several workers, and measures when a newcomer is taken.
func TestRetryAfterIsWhenASlotFrees(t *testing.T) {
	for _, tc := range []struct{ workers, batch, ran int }{{1, 1, 1}, {1, 4, 1}, {3, 1, 1}, {2, 4, 0}, {1, 1, 0}} {
		synctest.Test(t, func(t *testing.T) {
			const took = 200 * time.Millisecond
			w := newWorkers(tc.workers, lasting(took))
			q, end := running(t, w, Policy{MaxItems: 6, MaxBatch: tc.batch})
			var all sync.WaitGroup
			for i := range tc.ran { // so that it knows how long they take
				_, _, _ = q.Submit(t.Context(), item("first"+strconv.Itoa(i)))
			}
			for i := range tc.workers*tc.batch + 6 {
				all.Go(func() { _, _, _ = q.Submit(t.Context(), item(strconv.Itoa(i))) })
				synctest.Wait()
			}
			time.Sleep(70 * time.Millisecond)
			refusedAt := time.Now()
			_, _, err := q.Submit(t.Context(), item("late"))
			_, setting, after := fault.Details(err)
			if !fault.Is(err, fault.Overloaded) || time.Since(refusedAt) != 0 || setting == "" {
				t.Fatalf("%v after %v", err, time.Since(refusedAt))
			}
			for { // as a client that tries again all the time
				if _, _, again := q.Submit(t.Context(), item("again")); again == nil || !fault.Is(again, fault.Overloaded) {
					break
				}
				if n, limit := q.Waiting(); n < limit {
					break
				}
				time.Sleep(time.Millisecond)
			}
			freed := time.Since(refusedAt)
			if n, _ := q.Waiting(); n < 6 {
				freed = min(freed, took)
			}
			if freed = min(freed, took-70*time.Millisecond); after < freed/2 || after > freed*3/2 {
				t.Errorf("%+v: Retry-After %v, and a slot was free after %v; %v", tc, after, freed, numbers(err))
			}
			got := numbers(err)
			if got["waiting"] != 6 || got["limit"] != 6 || got["oldest_wait_ms"] != 70 || got["batch_size"] != float64(tc.batch) || got["batches_running"] != float64(tc.workers) {
				t.Errorf("%+v: %v", tc, got)
			}
			if tc.ran > 0 && got["mean_service_ms"] != 200 {
				t.Errorf("%+v: %v", tc, got)
			}
			all.Wait()
			end()
		})
	}
}

func TestNobodyKnowsWhenNothingRuns(t *testing.T) {
	q, err := New(newWorkers(0, echo), Policy{MaxItems: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.enter(&pending{item: item("a"), arrived: time.Now(), answered: make(chan outcome, 1)}); err != nil {
		t.Fatal(err)
	}
	_, _, err = q.Submit(t.Context(), item("b"))
	if _, _, after := fault.Details(err); !fault.Is(err, fault.Overloaded) || after != 0 {
		t.Errorf("%v, again after %v", err, after)
	}
	if _, known := q.Soonest(); known {
		t.Error("nothing runs")
	}
}

// TestClientsTakeTurns lets one client send much before others send little.
func TestClientsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(1, lasting(time.Millisecond))
		q, end := running(t, w, Policy{MaxItems: 100, MaxBatch: 1, Share: 1})
		var all sync.WaitGroup
		send := func(client, id string) {
			all.Go(func() {
				if _, _, err := q.Submit(t.Context(), from(client, id)); err != nil {
					t.Errorf("%s: %v", id, err)
				}
			})
			synctest.Wait()
		}
		send("a", "a0") // it runs
		for i := range 5 {
			send("a", "a"+strconv.Itoa(i+1))
		}
		send("b", "b1")
		send("c", "c1")
		send("b", "b2")
		all.Wait()
		var order []string
		for _, b := range w.seen() {
			order = append(order, b...)
		}
		if diff := cmp.Diff([]string{"a0", "a1", "b1", "c1", "a2", "b2", "a3", "a4", "a5"}, order); diff != "" {
			t.Error(diff)
		}
		end()
	})
}

// TestAGreedyClientMakesRoom has one client fill the queue while it is alone.
func TestAGreedyClientMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(1, lasting(time.Second))
		q, end := running(t, w, Policy{MaxItems: 4, MaxBatch: 1, Share: 0.5})
		errs := map[string]error{}
		var mu sync.Mutex // guards errs
		errOf := func(id string) error {
			mu.Lock()
			defer mu.Unlock()
			return errs[id]
		}
		var all sync.WaitGroup
		send := func(client, id string) {
			all.Go(func() {
				_, _, err := q.Submit(t.Context(), from(client, id))
				mu.Lock()
				defer mu.Unlock()
				errs[id] = err
			})
			synctest.Wait()
		}
		for i := range 5 { // one runs, and the queue is its own
			send("a", "a"+strconv.Itoa(i))
		}
		send("a", "a5")
		if !fault.Is(errOf("a5"), fault.Overloaded) {
			t.Errorf("alone, over the limit: %v", errOf("a5"))
		}
		send("b", "b0")
		if err := errOf("a4"); !fault.Is(err, fault.ClientShare) || fault.HTTPStatus(err) != 429 || numbers(err)["client_limit"] != 2 {
			t.Errorf("the newest of the greedy one: %v %v", err, numbers(err))
		}
		send("a", "a6")
		if err := errOf("a6"); !fault.Is(err, fault.ClientShare) || numbers(err)["client_waiting"] != 3 {
			t.Errorf("more of the greedy one: %v %v", err, numbers(err))
		}
		send("b", "b1")
		if !fault.Is(errOf("a3"), fault.ClientShare) {
			t.Errorf("the next newest: %v", errOf("a3"))
		}
		send("c", "c0") // a and b have their share each
		if !fault.Is(errOf("c0"), fault.Overloaded) {
			t.Errorf("all places are taken by those who may have them: %v", errOf("c0"))
		}
		all.Wait()
		for _, id := range []string{"a0", "a1", "a2", "b0", "b1"} {
			if err, answered := errs[id]; err != nil || !answered {
				t.Errorf("%s: %v", id, err)
			}
		}
		if len(errs) != 10 || q.bytes != 0 || len(q.waiting.held) != 0 {
			t.Errorf("%d answers, %d bytes, %v", len(errs), q.bytes, q.waiting.held)
		}
		end()
	})
}

// TestFairness lets random clients send, leave and be sent back: each is answered once, a client's requests are taken in their order, and between two requests
// of a client that waits no other client is taken twice.
func TestFairness(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		classes := classes{budget: NewBudget(1 << 30)}
		classes.arrange(rapid.IntRange(1, 3).Draw(t, "classes"), func(p *pending) int { return p.class })
		waiting := map[string][]*pending{}   // by class and client, in their order
		since := map[string]map[string]int{} // by the same: what was taken in that class of each client since its last turn
		var serial uint64
		key := func(p *pending) string { return fmt.Sprintf("%d %s", p.class, p.item.Client) }
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch what := rapid.IntRange(0, 9).Draw(t, "what"); {
			case what < 5 || classes.len() == 0:
				serial++
				p := &pending{item: from(rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "client"), "x"), serial: serial, class: rapid.IntRange(0, len(classes.lanes)-1).Draw(t, "class")}
				if len(waiting[key(p)]) == 0 {
					since[key(p)] = map[string]int{}
				}
				waiting[key(p)] = append(waiting[key(p)], p)
				classes.add(p, false)
			case what == 5: // one leaves
				keys := slices.Sorted(maps.Keys(waiting))
				k := rapid.SampledFrom(keys).Draw(t, "who leaves")
				at := rapid.IntRange(0, len(waiting[k])-1).Draw(t, "which")
				classes.remove(waiting[k][at])
				if waiting[k] = slices.Delete(waiting[k], at, at+1); len(waiting[k]) == 0 {
					delete(waiting, k)
				}
			default:
				p := classes.next()
				k := key(p)
				if len(waiting[k]) == 0 || waiting[k][0] != p {
					t.Fatalf("%d of client %q is taken before its turn", p.serial, p.item.Client)
				}
				classes.take(p)
				if waiting[k] = waiting[k][1:]; len(waiting[k]) == 0 {
					delete(waiting, k)
				}
				since[k] = map[string]int{}
				for other := range waiting {
					if other == k || other[0] != k[0] {
						continue
					}
					if since[other][k]++; since[other][k] > 1 {
						t.Fatalf("%q was taken twice while %q waited", k, other)
					}
				}
			}
			n := 0
			for _, all := range waiting {
				n += len(all)
			}
			if used, _ := classes.budget.Used(); classes.len() != n || used != int64(n) {
				t.Fatalf("%d wait with %d bytes, want %d", classes.len(), used, n)
			}
		}
		if n := len(classes.clear()); len(classes.held) != 0 || classes.len() != 0 {
			t.Fatalf("%d were left, and now %v", n, classes.held)
		}
	})
}

// TestQueuesShareABudget has two queues wait for workers that do not come.
func TestQueuesShareABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := NewBudget(10)
		w1, w2 := newWorkers(1, lasting(time.Second)), newWorkers(1, lasting(time.Second))
		q1, end1 := running(t, w1, Policy{MaxItems: 10, MaxBatch: 1, Budget: budget})
		q2, end2 := running(t, w2, Policy{MaxItems: 10, MaxBatch: 1, Budget: budget})
		large := func(n int) infer.Item {
			return infer.Item{ID: "large", Parts: []infer.Part{{Name: "body", Data: make([]byte, n)}}}
		}
		var all sync.WaitGroup
		for _, q := range []*Queue{q1, q1, q2, q2} { // one of each runs, and one waits
			all.Go(func() {
				if _, _, err := q.Submit(t.Context(), large(5)); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		if used, _ := budget.Used(); used != 10 {
			t.Errorf("%d bytes wait", used)
		}
		_, _, err := q2.Submit(t.Context(), large(1))
		if got := numbers(err); !fault.Is(err, fault.ServerBytes) || got["server_bytes"] != 10 || got["server_bytes_limit"] != 10 || got["waiting"] != 1 {
			t.Errorf("%v %v", err, got)
		}
		all.Wait()
		if used, _ := budget.Used(); used != 0 {
			t.Errorf("%d bytes are still counted", used)
		}
		all.Go(func() { // what is alone has room, whatever its size
			if _, _, err := q1.Submit(t.Context(), large(100)); err != nil {
				t.Error(err)
			}
		})
		all.Wait()
		end1()
		end2()
	})
}

// TestThoseWhoLeaveCostNothing lets 100 clients leave while they wait, and 100 others run out of time.
func TestThoseWhoLeaveCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		w := newWorkers(1, func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
			calls.Add(int64(len(items)))
			return lasting(time.Second)(ctx, items)
		})
		q, end := running(t, w, Policy{MaxItems: 1000, MaxBatch: 8, MaxDelay: 50 * time.Millisecond})
		var all sync.WaitGroup
		all.Go(func() { _, _, _ = q.Submit(t.Context(), item("first")) })
		synctest.Wait()
		time.Sleep(100 * time.Millisecond)
		var left, late atomic.Int64
		begun := time.Now()
		for i := range 200 {
			ctx, leave := context.WithCancel(t.Context())
			if i%2 == 1 {
				ctx, leave = context.WithTimeoutCause(t.Context(), 300*time.Millisecond, fault.New(fault.ClientTimeout, "too late", nil))
			}
			all.Go(func() {
				defer leave()
				_, _, err := q.Submit(ctx, item(strconv.Itoa(i)))
				switch {
				case errors.Is(err, context.Canceled):
					left.Add(1)
				case fault.Is(err, fault.QueueTimeout) && fault.HTTPStatus(err) == 504 && numbers(err)["waited_ms"] == 300 && time.Since(begun) == 300*time.Millisecond:
					late.Add(1)
				default:
					t.Errorf("request %d: %v after %v", i, err, time.Since(begun))
				}
			})
			if i%2 == 0 {
				time.AfterFunc(200*time.Millisecond, leave)
			}
		}
		all.Wait()
		if left.Load() != 100 || late.Load() != 100 || calls.Load() != 1 {
			t.Errorf("%d left, %d were late, and the handler got %d requests; want 100, 100 and the first one", left.Load(), late.Load(), calls.Load())
		}
		end()
	})
}

// TestHandlerCallsAreAnswers offers more than the workers can do, with a deadline: a request is in the handler once if it was answered, or if its time was over
// there; and never if it was refused or its time was over in the queue.
func TestHandlerCallsAreAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		w := newWorkers(2, func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
			calls.Add(int64(len(items)))
			return lasting(100*time.Millisecond)(ctx, items)
		})
		q, end := running(t, w, Policy{MaxItems: 10, MaxBatch: 2})
		var good, cut, bad atomic.Int64
		var all sync.WaitGroup
		for i := range 300 { // 100 a second and more than twice what they can do
			all.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Millisecond)
				ctx, cancel := context.WithTimeoutCause(t.Context(), 310*time.Millisecond, fault.New(fault.ClientTimeout, "too late", nil))
				defer cancel()
				switch _, _, err := q.Submit(ctx, item(strconv.Itoa(i))); {
				case err == nil:
					good.Add(1)
				case fault.Is(err, fault.ClientTimeout):
					cut.Add(1)
				case fault.Is(err, fault.Overloaded, fault.QueueTimeout):
					bad.Add(1)
				default:
					t.Errorf("request %d: %v", i, err)
				}
			})
		}
		all.Wait()
		if good.Load()+cut.Load()+bad.Load() != 300 || calls.Load() != good.Load()+cut.Load() || bad.Load() == 0 || good.Load() == 0 {
			t.Errorf("%d answers, %d cut off, %d refusals, %d requests in the handler", good.Load(), cut.Load(), bad.Load(), calls.Load())
		}
		end()
	})
}

// TestRefusesSaysWhatSubmitWouldSay compares the two in random states of a queue whose worker is busy, and that asking changes nothing.
func TestRefusesSaysWhatSubmitWouldSay(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		policy := Policy{
			MaxItems: rapid.IntRange(1, 5).Draw(rt, "items"), MaxBatch: rapid.IntRange(1, 2).Draw(rt, "batch"), MaxBytes: rapid.Int64Range(0, 12).Draw(rt, "bytes"),
			IdleOnly: rapid.Bool().Draw(rt, "idle only"), Share: rapid.SampledFrom([]float64{0, 0.5}).Draw(rt, "share"), Budget: NewBudget(rapid.Int64Range(1, 12).Draw(rt, "budget")),
		}
		clients := rapid.SliceOfN(rapid.SampledFrom([]string{"", "a", "b"}), 1, 12).Draw(rt, "clients")
		sizes := rapid.SliceOfN(rapid.IntRange(0, 4), len(clients), len(clients)).Draw(rt, "sizes")
		synctest.Test(t, func(t *testing.T) {
			w := newWorkers(1, lasting(time.Second))
			q, end := running(t, w, policy)
			var all sync.WaitGroup
			for i, client := range clients {
				it := infer.Item{ID: strconv.Itoa(i), Client: client, Parts: []infer.Part{{Name: "body", Data: make([]byte, sizes[i])}}}
				early := q.Refuses(client, it.Size())
				if again := q.Refuses(client, it.Size()); (again == nil) != (early == nil) || early != nil && again.Error() != early.Error() {
					t.Errorf("first %v, then %v", early, again)
				}
				answered := make(chan error, 1)
				all.Go(func() {
					_, _, err := q.Submit(t.Context(), it)
					answered <- err
				})
				synctest.Wait()
				var whole error
				select {
				case whole = <-answered:
				default: // it waits, or runs
				}
				if (whole == nil) != (early == nil) || early != nil && early.Error() != whole.Error() {
					t.Errorf("request %d of %q: %v before it was whole, then %v", i, client, early, whole)
				}
			}
			all.Wait()
			q.Close(nil)
			if err := q.Refuses("", 1); !errors.Is(err, ErrClosed) {
				t.Errorf("closed: %v", err)
			}
			end()
		})
	})
}

// TestWhatAFreeWorkerTakesDoesNotWait: a refusal does not count the request that a worker is about to take among those that wait.
func TestWhatAFreeWorkerTakesDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, err := New(newWorkers(1, echo), Policy{MaxItems: 4})
		if err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 5 { // nobody runs the queue yet
			all.Go(func() { _, _, _ = q.Submit(ctx, item("a")) })
		}
		synctest.Wait()
		_, _, err = q.Submit(ctx, item("b"))
		if got := numbers(err); got["waiting"] != 4 || got["limit"] != 4 || !strings.Contains(fault.Message(err), "4 of 4 requests wait") {
			t.Errorf("%v, %v", err, got)
		}
		leave()
		all.Wait()
	})
}
