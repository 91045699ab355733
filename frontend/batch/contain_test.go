package batch

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	rule "github.com/flambeau-serve/flambeau/frontend/batch/policy"
	"github.com/flambeau-serve/flambeau/frontend/poison"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// faulty is a policy that panics where it is told to, for some calls or for ever.
type faulty struct {
	rule.Policy

	where string
	left  *atomic.Int64 // calls that panic
	gone  *atomic.Int64 // requests that are with a worker, as far as the policy knows; nil: nobody counts
}

func (f *faulty) at(where string) {
	if f.where == where && f.left.Add(-1) >= 0 {
		panic("a bug of the policy")
	}
}

func (f *faulty) Decide(now rule.Moment, s rule.State) rule.Decision {
	f.at("decide")
	return f.Policy.Decide(now, s)
}

func (f *faulty) Sent(now rule.Moment, s rule.State, size int) {
	f.at("sent")
	if f.gone != nil {
		f.gone.Add(int64(size))
	}
	f.Policy.Sent(now, s, size)
}

func (f *faulty) Left(now rule.Moment) {
	f.at("left")
	f.Policy.Left(now)
}

func (f *faulty) Done(now rule.Moment, size int, took time.Duration) {
	f.at("done")
	if f.gone != nil {
		f.gone.Add(-int64(size))
	}
	f.Policy.Done(now, size, took)
}

// faultyPool is a pool that panics where it is told to.
type faultyPool struct {
	*workers

	where string
	left  *atomic.Int64
}

func (f *faultyPool) at(where string) {
	if f.where == where && f.left.Add(-1) >= 0 {
		panic("a bug of the pool")
	}
}

func (f *faultyPool) Acquire(ctx context.Context) (backend.Slot, error) {
	f.at("acquire")
	s, err := f.workers.Acquire(ctx)
	return &faultySlot{s, f}, err
}

func (f *faultyPool) AcquireFrom(ctx context.Context, _ int) (backend.Slot, error) {
	return f.Acquire(ctx)
}

func (f *faultyPool) AcquireAlone(ctx context.Context, most int) ([]backend.Slot, error) {
	f.at("alone")
	return f.workers.AcquireAlone(ctx, most)
}

func (f *faultyPool) Workers() []int {
	f.at("workers")
	return f.workers.Workers()
}

type faultySlot struct {
	backend.Slot

	pool *faultyPool
}

func (s *faultySlot) Worker() (id, pid int) {
	s.pool.at("worker")
	return s.Slot.Worker()
}

func (s *faultySlot) Release() {
	s.Slot.Release()
	s.pool.at("release")
}

// outcomesSeen counts how requests ended.
type outcomesSeen struct{ answered, internal, broken, other int }

// sendAll sends requests, some one after another and then all at once, and counts how they end.
func sendAll(t *testing.T, q submitter, n int, suspect bool) (got outcomesSeen) {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			it := payload(strconv.Itoa(i), strconv.Itoa(i))
			it.Sequence = it.ID
			if suspect {
				it = payload(it.ID, "bad "+it.ID)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			_, _, err := q.Submit(ctx, it)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				got.answered++
			case fault.Is(err, fault.Internal) && strings.Contains(err.Error(), "has failed"):
				got.broken++
			case fault.Is(err, fault.Internal):
				got.internal++
			default:
				t.Error(err)
				got.other++
			}
		})
		if i < n/2 {
			synctest.Wait()
		}
	}
	all.Wait()
	return got
}

// mostSent is how many requests the tests of panics send.
const mostSent = 8

// beginQueue runs a queue whose policy is spoilt, until it is closed by end.
func beginQueue(
	t *testing.T, pool backend.Pool, g *Guard, tell func(error), spoil func(rule.Policy) rule.Policy,
) (q submitter, end func(error), done chan struct{}) {
	t.Helper()
	u, err := New(pool, Policy{MaxItems: 100, MaxBatch: 3, Guard: g, Panicked: tell})
	if err != nil {
		t.Fatal(err)
	}
	u.batcher.policy = spoil(u.batcher.policy)
	done = make(chan struct{})
	go func() { defer close(done); u.Run(t.Context()) }()
	return u, u.Close, done
}

// beginSequences is beginQueue for sequences, which are all of one worker.
func beginSequences(
	t *testing.T, pool backend.Pool, g *Guard, tell func(error), spoil func(rule.Policy) rule.Policy,
) (q submitter, end func(error), done chan struct{}) {
	t.Helper()
	s, err := NewSequences(pool, SequencePolicy{MaxSequences: mostSent, MaxItems: 9, MaxBatch: 3, Idle: time.Hour, Guard: g, Panicked: tell})
	if err != nil {
		t.Fatal(err)
	}
	s.batches[0] = &batcher{}
	if err := s.batches[0].set(&s.policy.Batching, 3, 0); err != nil {
		t.Fatal(err)
	}
	s.batches[0].policy = spoil(s.batches[0].policy)
	done = make(chan struct{})
	go func() { defer close(done); s.Run(t.Context()) }()
	return s, s.Close, done
}

// TestPanicsOfTheLoops: whatever panics in what makes the batches, the process goes on, each request is answered, every slot comes back, and somebody is
// told; a few panics cost a few batches, and panics without end the queue.
func TestPanicsOfTheLoops(t *testing.T) {
	const forEver = 1 << 40
	for name, tt := range map[string]struct {
		where     string
		times     int64
		suspects  bool
		sequences bool
		told      int  // at least
		all       bool // requests are answered
		broken    bool // the queue gives up
	}{
		"decide, once":         {where: "decide", times: 1, told: 1, all: true},
		"decide, twice":        {where: "decide", times: 2, told: 2, all: true},
		"decide, for ever":     {where: "decide", times: forEver, told: 3, broken: true},
		"sent, once":           {where: "sent", times: 1, told: 1},
		"sent, for ever":       {where: "sent", times: forEver, told: 3, broken: true},
		"worker, thrice":       {where: "worker", times: 3, told: 3},
		"their worker, once":   {where: "worker", times: 1, sequences: true, told: 1},
		"done, once":           {where: "done", times: 1, told: 1},
		"acquire, once":        {where: "acquire", times: 1, told: 1, all: true},
		"acquire, for ever":    {where: "acquire", times: forEver, told: 3, broken: true},
		"release, once":        {where: "release", times: 1, told: 1},
		"alone, once":          {where: "alone", times: 1, suspects: true, told: 1, all: true},
		"alone, for ever":      {where: "alone", times: forEver, suspects: true, told: 3, broken: true},
		"suspect sent, once":   {where: "sent", times: 1, suspects: true, told: 1},
		"suspect, for ever":    {where: "sent", times: forEver, suspects: true, told: 3, broken: true},
		"sequences, once":      {where: "decide", times: 1, sequences: true, told: 1, all: true},
		"sequences, for ever":  {where: "decide", times: forEver, sequences: true, told: 3, broken: true},
		"their sent, once":     {where: "sent", times: 1, sequences: true, told: 1},
		"their done, once":     {where: "done", times: 1, sequences: true, told: 1},
		"their worker":         {where: "acquire", times: 1, sequences: true, told: 1, all: true},
		"no worker of theirs":  {where: "acquire", times: forEver, sequences: true, told: 3, broken: true},
		"their release, once":  {where: "release", times: 1, sequences: true, told: 1},
		"nothing, with guard":  {where: "", all: true},
		"nothing of sequences": {where: "", sequences: true, all: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var left, told, gone atomic.Int64
				left.Store(tt.times)
				tell := func(err error) {
					told.Add(1)
					if !strings.Contains(fault.DetailOf(err), "a bug of the p") || !strings.Contains(fault.DetailOf(err), "contain_test.go") {
						t.Errorf("it is not told what has happened where: %s", fault.DetailOf(err))
					}
				}
				pool := &faultyPool{newWorkers(2, takes(time.Second)), tt.where, &left}
				const n = mostSent
				g := guard(true)
				if tt.suspects {
					var bad []string
					for i := range n {
						bad = append(bad, "bad "+strconv.Itoa(i))
					}
					g = suspected(bad...)
				}
				begin := beginQueue
				if tt.sequences {
					begin = beginSequences
				}
				q, end, done := begin(t, pool, g, tell, func(p rule.Policy) rule.Policy { return &faulty{p, tt.where, &left, &gone} })
				got := sendAll(t, q, n, tt.suspects)
				if got.answered+got.internal+got.broken != n || tt.all && got.answered != n || tt.broken != (got.broken > 0) {
					t.Errorf("%+v", got)
				}
				if !tt.broken && got.answered == 0 {
					t.Error("nothing was answered after the panic")
				}
				if got := int(told.Load()); got < tt.told || tt.times == 0 && got > 0 {
					t.Errorf("%d panics were told of, want %d at least", got, tt.told)
				}
				if tt.broken {
					<-done // its owner is to make another one
					if _, _, err := q.Submit(t.Context(), payload("late", "x")); !fault.Is(err, fault.Internal) || !strings.Contains(err.Error(), "has failed") {
						t.Errorf("what comes after that: %v", err)
					}
				}
				end(nil)
				<-done
				if pool.Free() != 2 {
					t.Errorf("%d slots of 2", pool.Free())
				}
				if n := gone.Load(); tt.where == "worker" && n != 0 {
					t.Errorf("the policy takes %d requests to be with a worker", n)
				}
			})
		})
	}
}

// TestPanicTakesNoneWithIt: what a panic leaves in the middle of a batch is answered, and what waits is run.
func TestPanicTakesNoneWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var left atomic.Int64
		q, err := New(newWorkers(1, takes(time.Second)), Policy{MaxItems: 100, MaxBatch: 8})
		if err != nil {
			t.Fatal(err)
		}
		q.batcher.policy = &faulty{q.batcher.policy, "left", &left, nil}
		gone := make(chan struct{})
		all := make([]*pending, 5)
		for i := range all {
			all[i] = &pending{item: payload(strconv.Itoa(i), "x"), arrived: time.Now(), answered: make(chan outcome, 1)}
			all[i].item.Alone = i == 0
			if i == 3 {
				all[i].done = gone
			}
			if err := q.enter(all[i]); err != nil {
				t.Fatal(err)
			}
		}
		close(gone)
		left.Store(1)
		done := make(chan struct{})
		go func() { defer close(done); q.Run(t.Context()) }()
		q.Close(nil)
		<-done
		for i, want := range []string{"", "internal", "internal", "nothing", ""} {
			got := "nothing"
			select {
			case o := <-all[i].answered:
				if got = ""; o.err != nil {
					got = fault.KindOf(o.err).String()
				}
			default:
			}
			if got != want {
				t.Errorf("request %d got %q, want %q", i, got, want)
			}
		}
	})
}

// TestSuspectsGoOnAfterAPanic of what is theirs: a place for a group is not lost.
func TestSuspectsGoOnAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var left atomic.Int64
		left.Store(1)
		pool := &faultyPool{newWorkers(4, takes(time.Second)), "alone", &left}
		g := suspected("bad 0", "bad 1", "bad 2", "bad 3")
		q, stop := start(t, pool, Policy{MaxItems: 9, Guard: g})
		for range 3 {
			if got := sendAll(t, q, 4, true); got.answered != 4 {
				t.Errorf("%+v", got)
			}
			for i := range 4 { // they are to be suspects again
				it := payload("before", "bad "+strconv.Itoa(i))
				g.Book.Killed(g.Model, &it, poison.Death{Workers: 1})
			}
			left.Store(1)
		}
		stop()
	})
}
