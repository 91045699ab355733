package batch

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	rule "github.com/flambeau-serve/flambeau/frontend/batch/policy"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

const ms = time.Millisecond

// costly is a handler that takes a time for each batch and for each request.
func costly(fixed, each time.Duration) func(context.Context, []infer.Item) ([]infer.Result, error) {
	return func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
		time.Sleep(fixed + time.Duration(len(items))*each)
		return echo(ctx, items)
	}
}

// submitter is a queue of either kind.
type submitter interface {
	Submit(ctx context.Context, item infer.Item) (infer.Result, Times, error)
}

// clients are n that each send a request a moment after the answer to the one before, until the time is over; it gives how long each request was kept for
// others while there was a worker, in the order of their answers.
func clients(t *testing.T, q submitter, n int, long time.Duration) (held []time.Duration) {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	end := time.Now().Add(long)
	for c := range n {
		all.Go(func() {
			for i := 0; time.Now().Before(end); i++ {
				one := item(strconv.Itoa(c) + "." + strconv.Itoa(i))
				one.Sequence = "of " + strconv.Itoa(c)
				r, times, err := q.Submit(t.Context(), one)
				if err != nil || string(r.Body) != one.ID {
					t.Errorf("client %d: %q, %v", c, r.Body, err)
					return
				}
				mu.Lock()
				held = append(held, times.Gathered)
				mu.Unlock()
				time.Sleep(300*time.Microsecond + time.Duration(c)*50*time.Microsecond)
			}
		})
	}
	all.Wait()
	return held
}

func TestLoneClientSoonWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, stop := start(t, newWorkers(1, takes(20*ms)), Policy{MaxItems: 100, MaxBatch: 8, MaxDelay: 100 * ms})
		held := clients(t, q, 1, 3*time.Second)
		stop()
		for i, h := range held {
			if i < 2 && h != 100*ms || i >= 10 && h > ms {
				t.Errorf("request %d was kept %v", i, h)
			}
		}
		if len(held) < 100 {
			t.Errorf("%d requests in 3 s", len(held))
		}
	})
}

func TestTorchServesRuleDoesNotLearn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, stop := start(t, newWorkers(1, takes(20*ms)), Policy{MaxItems: 100, MaxBatch: 8, MaxDelay: 100 * ms, Batching: Batching{Rule: rule.TorchServe}})
		for i, h := range clients(t, q, 1, 3*time.Second) {
			if h != 100*ms {
				t.Errorf("request %d was kept %v, want 100ms", i, h)
			}
		}
		stop()
	})
}

// The bound is the best that any size and delay can do: all 64 in each batch, and no time lost; shared evenly by several workers.
func TestManyClientsGetNearlyTheBestThroughput(t *testing.T) {
	for _, tc := range []struct {
		workers, size int
		goal          time.Duration
		best          float64
	}{
		{1, 64, 0, 64 / .148}, {1, 8, 0, 8 / .036}, {2, 64, 0, 2 * 32 / .084}, {4, 64, 0, 4 * 16 / .052}, {1, 64, 200 * ms, 64 / .148},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorkers(tc.workers, costly(20*ms, 2*ms))
			q, stop := start(t, w, Policy{MaxItems: 100, MaxBatch: tc.size, MaxDelay: 100 * ms, Batching: Batching{Goal: tc.goal}})
			clients(t, q, 64, 2*time.Second)
			n := len(clients(t, q, 64, 10*time.Second))
			stop()
			// A batch's clients take up to 3.5 ms to come back, which is theirs and not the policy's.
			if rate := float64(n) / 10; rate < .95*tc.best {
				t.Errorf("%d workers, size %d, goal %v: %.1f/s, the best is %.1f/s", tc.workers, tc.size, tc.goal, rate, tc.best)
			}
		})
	}
}

// byRows is a handler whose time depends on the rows of the requests, which the policy is not told: most has one of three clients, the others have one.
func byRows(fixed, each time.Duration, most int) func(context.Context, []infer.Item) ([]infer.Result, error) {
	return func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
		rows := 0
		for i := range items {
			n, _, _ := strings.Cut(items[i].ID, ".")
			if c, err := strconv.Atoi(n); err == nil && c%3 == 0 {
				rows += most
			} else {
				rows++
			}
		}
		time.Sleep(fixed + time.Duration(rows)*each)
		return echo(ctx, items)
	}
}

// TestRowsOfRequestsDoNotMislead: that a batch takes as long as its rows and not as its number of requests costs the default rule little, beside the best
// size and delay, however different the requests are.
func TestRowsOfRequestsDoNotMislead(t *testing.T) {
	for _, most := range []int{1, 8, 32} {
		rate := func(p Policy) (answered float64) {
			synctest.Test(t, func(t *testing.T) {
				p.MaxItems = 100
				q, stop := start(t, newWorkers(1, byRows(20*ms, ms, most)), p)
				clients(t, q, 32, 20*time.Second)
				begun := time.Now()
				n := len(clients(t, q, 32, 20*time.Second))
				answered = float64(n) / time.Since(begun).Seconds()
				stop()
			})
			return answered
		}
		best := 0.
		for _, size := range []int{4, 8, 16, 32} {
			for _, delay := range []time.Duration{0, 5 * ms, 20 * ms, 100 * ms} {
				best = max(best, rate(Policy{MaxBatch: size, MaxDelay: delay, Batching: Batching{Rule: rule.TorchServe}}))
			}
		}
		if got := rate(Policy{MaxBatch: 32, MaxDelay: 100 * ms}); got < .95*best {
			t.Errorf("%d rows: %.1f/s, the best is %.1f/s", most, got, best)
		}
	}
}

func TestLoadThatComesAndGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(1, costly(20*ms, 2*ms))
		q, stop := start(t, w, Policy{MaxItems: 100, MaxBatch: 8, MaxDelay: 100 * ms})
		clients(t, q, 1, time.Second)
		before := len(w.seen())
		clients(t, q, 64, time.Second)
		for i, ids := range w.seen()[before:] {
			if i > 2 && len(ids) < 8 && i < 20 {
				t.Errorf("batch %d under load has %d", i, len(ids))
			}
		}
		for i, h := range clients(t, q, 1, time.Second) {
			if i > 5 && h > 0 || h > 10*ms {
				t.Errorf("request %d after the load was kept %v", i, h)
			}
		}
		stop()
	})
}

// What was learned holds on when a swap or an administrator says the same again, and not when something else is said.
func TestPolicyOfTheSameSettingsKeepsWhatWasLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := Policy{MaxItems: 100, MaxBatch: 8, MaxDelay: 100 * ms}
		q, stop := start(t, newWorkers(1, takes(20*ms)), policy)
		clients(t, q, 1, 3*time.Second)
		policy.MaxItems = 50
		policy.Batching.Rule = rule.Adaptive
		if err := q.SetPolicy(policy); err != nil {
			t.Fatal(err)
		}
		if held := clients(t, q, 1, 100*ms); held[0] > 0 {
			t.Errorf("with the same settings a request was kept %v", held[0])
		}
		policy.MaxDelay = 50 * ms
		if err := q.SetPolicy(policy); err != nil {
			t.Fatal(err)
		}
		if held := clients(t, q, 1, 100*ms); held[0] != 50*ms {
			t.Errorf("with another delay a request was kept %v, want 50ms", held[0])
		}
		policy.Batching = Batching{Rule: "greedy"}
		if err := q.SetPolicy(policy); err == nil {
			t.Error("a rule that does not exist was taken")
		}
		stop()
	})
}

func TestPreferredSizeLeavesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(1, echo)
		q, stop := start(t, w, Policy{MaxItems: 10, MaxBatch: 8, MaxDelay: 100 * ms, Batching: Batching{Preferred: []int{4}}})
		begun := time.Now()
		var all sync.WaitGroup
		for i := range 5 {
			all.Go(func() { _, _, _ = q.Submit(t.Context(), item(strconv.Itoa(i))) })
			synctest.Wait()
		}
		all.Wait()
		stop()
		if got := w.seen(); len(got) != 2 || len(got[0]) != 4 || len(got[1]) != 1 || time.Since(begun) != 100*ms {
			t.Errorf("batches %v in %v", got, time.Since(begun))
		}
	})
}

// TestStepsTowardAGoalAreTold: which clients share the first batches is chance, and a batch that was never seen cannot be judged, so one of three runs
// that comes to smaller batches is enough; each step of each run has its reason.
func TestStepsTowardAGoalAreTold(t *testing.T) {
	for range 3 {
		steps, largest := toward(t, 300*ms)
		if len(steps) > 0 && steps[0].Reason == rule.SmallerBatch && largest <= 50 {
			return
		}
		t.Logf("batches of up to %d after %v", largest, steps)
	}
	t.Error("no run came to smaller batches")
}

// toward runs 64 clients for a while, and gives the steps and the largest batch of those after the first hundred.
func toward(t *testing.T, goal time.Duration) (steps []rule.Step, largest int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(1, func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
			time.Sleep(20*ms + time.Duration(len(items)*len(items))*ms/10)
			return echo(ctx, items)
		})
		q, stop := start(t, w, Policy{MaxItems: 100, MaxBatch: 64, MaxDelay: 100 * ms, Batching: Batching{
			Goal: goal, Moved: func(s rule.Step) { steps = append(steps, s) },
		}})
		clients(t, q, 64, 20*time.Second)
		stop()
		for _, step := range steps {
			if step.String() == "" {
				t.Errorf("a step without words: %+v", step)
			}
		}
		for _, ids := range w.seen()[min(100, len(w.seen())):] {
			largest = max(largest, len(ids))
		}
	})
	return steps, largest
}

func TestSequencesLearnWhomToWaitFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(1, costly(20*ms, 2*ms))
		s, err := NewSequences(w, SequencePolicy{MaxSequences: 20, MaxItems: 5, MaxBatch: 16, MaxDelay: 100 * ms, Idle: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.Run(context.WithoutCancel(t.Context()))
		}()
		for i, h := range clients(t, s, 1, 3*time.Second) {
			if i < 2 && h != 100*ms || i >= 10 && h > ms {
				t.Errorf("request %d of a lone sequence was kept %v", i, h)
			}
		}
		clients(t, s, 12, time.Second)
		before := len(w.seen())
		clients(t, s, 12, 2*time.Second)
		full := 0
		for _, ids := range w.seen()[before:] {
			if len(ids) == 12 {
				full++
			}
		}
		if n := len(w.seen()) - before; n > 46 || full < n*9/10 {
			t.Errorf("%d batches, of which %d have all the 12 sequences", n, full)
		}
		s.Close(nil)
		<-done
	})
}

// counted is a policy that counts what it is told.
type counted struct {
	rule.Policy
	arrived, left, sent, done, answered int
}

func (c *counted) Arrived(now rule.Moment) {
	c.arrived++
	c.Policy.Arrived(now)
}

func (c *counted) Left(now rule.Moment) {
	c.left++
	c.Policy.Left(now)
}

func (c *counted) Sent(now rule.Moment, s rule.State, size int) {
	c.sent += size
	c.Policy.Sent(now, s, size)
}

func (c *counted) Done(now rule.Moment, size int, took time.Duration) {
	c.done += size
	c.Policy.Done(now, size, took)
}

func (c *counted) Answered(now rule.Moment, total time.Duration) {
	c.answered++
	c.Policy.Answered(now, total)
}

// Whatever happens to requests, the policy is told of each once: that it came, that it left or was sent, that it is done and that it was answered.
func TestPolicyIsToldOfEachRequestOnce(t *testing.T) {
	for _, tc := range []struct {
		name string
		pool func() *workers
	}{
		{"batches", func() *workers { return newWorkers(1, takes(3*time.Second)) }},
		{"steps", func() *workers {
			handle, _ := countdown(t)
			return inSteps(2, handle)
		}},
		{"failures", func() *workers {
			return newWorkers(1, func(context.Context, []infer.Item) ([]infer.Result, error) {
				time.Sleep(time.Second)
				return nil, errors.New("no luck")
			})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q, stop := start(t, tc.pool(), Policy{MaxItems: 100, MaxBatch: 4, MaxDelay: 700 * ms})
				c := &counted{Policy: q.batcher.policy}
				q.batcher.policy = c
				answered := 0
				var mu sync.Mutex
				var all sync.WaitGroup
				for i := range 30 {
					all.Go(func() {
						time.Sleep(time.Duration(i) * 150 * ms)
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i%7*3)*900*ms)
						defer cancel()
						one := infer.Item{ID: strconv.Itoa(i), Parts: []infer.Part{{Name: "body", Data: []byte("3")}}, Emit: func(infer.Result) {}}
						if _, _, err := q.Submit(ctx, one); err == nil {
							mu.Lock()
							answered++
							mu.Unlock()
						}
					})
				}
				all.Wait()
				stop()
				if c.arrived != 30 || c.sent != c.done || c.arrived != c.left+c.sent || c.answered < answered || c.answered > c.done {
					t.Errorf("%d came, %d left, %d were sent, %d are done, %d were answered; the clients have %d answers", c.arrived, c.left, c.sent, c.done, c.answered, answered)
				}
				if c.left == 0 || c.sent == 0 || (tc.name == "failures") != (c.answered == 0) {
					t.Errorf("%d left, %d were sent, %d answered", c.left, c.sent, c.answered)
				}
			})
		})
	}
}
