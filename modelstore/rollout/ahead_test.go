package rollout

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

// TestTakesAhead lists what a model must not be for its worker to be given the next batch ahead.
func TestTakesAhead(t *testing.T) {
	t.Parallel()
	able := backend.Info{Ahead: true}
	for name, tc := range map[string]struct {
		settings settings
		info     backend.Info
		want     bool
	}{
		"single requests":                  {settings{batchSize: 1}, able, true},
		"no size":                          {settings{}, able, true},
		"its backend runs all at once":     {settings{batchSize: 1}, backend.Info{Ahead: true, Concurrent: true}, false},
		"its backend cannot":               {settings{batchSize: 1}, backend.Info{}, false},
		"batches":                          {settings{batchSize: 2}, able, false},
		"steps":                            {settings{batchSize: 1, continuousBatching: true}, able, false},
		"sequences":                        {settings{batchSize: 1, sequenceBatching: true}, able, false},
		"job tickets":                      {settings{batchSize: 1, useJobTicket: true}, able, false},
		"its requests are not tried again": {settings{batchSize: 1, noRetry: true}, able, false},
	} {
		if got := tc.settings.takesAhead(tc.info); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// have asks for a slot, and says whether there is one.
func have(t *testing.T, p *pool) (backend.Slot, bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	s, err := p.Acquire(ctx)
	return s, err == nil
}

// TestNextBatchIsSentAhead: the only instance gets one batch more than it runs, which does not count as one that runs; one of two does not, for the other one
// may be free earlier.
func TestNextBatchIsSentAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(time.Minute)
		p.hope(1, firstGeneration)
		p.hope(2, firstGeneration)
		p.add(backendtest.NewInstance("one"), 1, 1, firstGeneration, terms{ahead: true})
		first, ok := have(t, p)
		second, also := have(t, p)
		if !ok || !also {
			t.Fatal("the only instance did not get two")
		}
		if _, ok := have(t, p); ok {
			t.Error("it got three")
		}
		if use := p.usage(); use.slots != 1 || use.peak != 1 || p.Free() != 0 {
			t.Errorf("%+v, free %d: one runs", use, p.Free())
		}
		first.Release()
		if use := p.usage(); use.slots != 1 || p.Free() != 0 {
			t.Errorf("%+v, free %d: the other one runs", use, p.Free())
		}
		other := p.add(backendtest.NewInstance("two"), 2, 1, firstGeneration, terms{ahead: true})
		third, ok := have(t, p)
		if s, _ := third.(*slot); !ok || s.member != other {
			t.Fatal("the idle instance did not get the next one")
		}
		if _, ok := have(t, p); ok {
			t.Error("one of two was given another one ahead")
		}
		second.Release()
		third.Release()
		if use := p.usage(); use.slots != 0 || p.Free() != 2 {
			t.Errorf("%+v, free %d: nothing runs", use, p.Free())
		}
	})
}

// TestNothingIsSentAheadOfWhoWantsToBeAlone: whoever is to be alone gets his turn, however many others come, and nothing beside him.
func TestNothingIsSentAheadOfWhoWantsToBeAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(time.Minute)
		p.hope(1, firstGeneration)
		m := p.add(backendtest.NewInstance("one"), 1, 1, firstGeneration, terms{ahead: true})
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for ctx.Err() == nil {
					s, err := p.Acquire(ctx)
					if err != nil {
						return
					}
					time.Sleep(time.Second)
					s.Release()
				}
			})
		}
		time.Sleep(10 * time.Second)
		for range 3 {
			s, err := p.AcquireAlone(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			for range 5 {
				p.mu.Lock()
				if m.used != 1 {
					t.Errorf("%d have it beside the one who is alone", m.used-1)
				}
				p.mu.Unlock()
				time.Sleep(time.Second)
			}
			s[0].Release()
			time.Sleep(1500 * time.Millisecond)
			p.mu.Lock()
			if m.used != 2 {
				t.Errorf("afterwards it has %d, want 2", m.used)
			}
			p.mu.Unlock()
		}
		stop()
		all.Wait()
	})
}

// TestTimeOfABatchSentAhead begins when the batch before it ends; one that hangs is late when its own time is over, and takes the other one with it.
func TestTimeOfABatchSentAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 10 * time.Second
		inst := backendtest.NewInstance("one")
		turn := make(chan struct{}, 1)
		inst.PredictFunc = func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
			died := fault.New(fault.BackendDied, "Worker died.", nil)
			select {
			case turn <- struct{}{}:
			case <-inst.Done():
				return nil, died
			}
			took := 6 * time.Second
			if items[0].ID == "hangs" {
				took = time.Hour
			}
			select {
			case <-time.After(took):
			case <-inst.Done():
				return nil, died
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			<-turn // one that hangs keeps it
			return make([]infer.Result, len(items)), nil
		}
		if _, err := inst.Load(t.Context(), backend.LoadSpec{}); err != nil {
			t.Fatal(err)
		}
		p := newPool(limit)
		p.hope(1, firstGeneration)
		m := p.add(inst, 1, 1, firstGeneration, terms{ahead: true})
		go func() { // as its supervisor does
			<-m.overdue
			inst.Die(nil)
		}()
		begun := time.Now()
		run := func(id string) (time.Duration, error) {
			s, err := p.Acquire(t.Context())
			if err != nil {
				return 0, err
			}
			defer s.Release()
			_, err = s.Execute(t.Context(), []infer.Item{{ID: id}})
			return time.Since(begun), err
		}
		var all sync.WaitGroup
		for _, id := range []string{"a", "b"} {
			all.Go(func() {
				if _, err := run(id); err != nil { // the second one is answered after 12 s
					t.Errorf("%s: %v", id, err)
				}
			})
		}
		all.Wait()
		if took := time.Since(begun); took != 12*time.Second {
			t.Errorf("two took %v", took)
		}
		all.Go(func() {
			if at, err := run("hangs"); !fault.Is(err, fault.ResponseTimeout) || at != 12*time.Second+limit {
				t.Errorf("the one that hangs: %v after %v", err, at)
			}
		})
		time.Sleep(time.Second)
		if _, err := run("c"); !fault.Is(err, fault.BackendDied) {
			t.Errorf("the one behind it: %v", err)
		}
		all.Wait()
	})
}
