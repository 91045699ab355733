package dispatch

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// fill sends so many requests, one after the other, which are answered later.
func (s *scene) fill(t *testing.T, n int) (wait func()) {
	t.Helper()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if _, err := s.Submit(t.Context(), model, item(strconv.Itoa(i))); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		})
		synctest.Wait()
	}
	return all.Wait
}

// sayTheSame compares what Refuse and Submit say of the same request.
func (s *scene) sayTheSame(t *testing.T, what string, kind fault.Kind) {
	t.Helper()
	it := item("late")
	s.mu.Lock()
	before := len(s.seen)
	s.mu.Unlock()
	early := s.Refuse(t.Context(), model, infer.Item{ID: it.ID, Header: it.Header}, it.Size())
	_, whole := s.Submit(t.Context(), model, it)
	if !fault.Is(early, kind) || early.Error() != whole.Error() {
		t.Errorf("%s: %v, and when it is whole %v", what, early, whole)
	}
	if diff := cmp.Diff(numbersOf(whole), numbersOf(early)); diff != "" {
		t.Errorf("%s: the numbers differ: %s", what, diff)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if seen := s.seen[before:]; len(seen) != 2 || !fault.Is(seen[0].Err, kind) || seen[0].ID != it.ID || seen[0].Ref != seen[1].Ref || seen[0].Taken != seen[1].Taken {
		t.Errorf("%s: observed %+v", what, seen)
	}
}

// TestRefuseSaysWhatSubmitWouldSay for all the reasons that need no payload.
func TestRefuseSaysWhatSubmitWouldSay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, slow(time.Second), archive.Archive{}, 0)
		s.sayTheSame(t, "no worker", fault.NoWorker)
		if err := s.models.Scale(t.Context(), model, 1, 1, true); err != nil {
			t.Fatal(err)
		}
		wait := s.fill(t, 3) // one runs
		if err := s.Refuse(t.Context(), model, item("fits"), 4); err != nil {
			t.Errorf("there is a place: %v", err)
		}
		wait()
		wait = s.fill(t, 4)
		s.sayTheSame(t, "a full queue", fault.Overloaded)
		if last := s.Refusals(model); last.Count != 2 || last.Reason != fault.Overloaded.String() {
			t.Errorf("it has refused %+v", last)
		}
		if err := s.Refuse(t.Context(), infer.ModelRef{Name: "x"}, item("a"), 1); err != nil {
			t.Errorf("a model that is not there is not refused: %v", err)
		}
		wait()
		if err := s.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.sayTheSame(t, "the server drains", fault.Draining)
		s.end(t)
	})
}

// TestRefuseCountsWhoIsInside where a version has a limit for that, and holds no place itself.
func TestRefuseCountsWhoIsInside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, slow(time.Second), archive.Archive{Settings: archive.Settings{MaxConcurrency: 2}}, 1)
		for range 5 {
			if err := s.Refuse(t.Context(), model, item("asks"), 4); err != nil {
				t.Fatal(err)
			}
		}
		wait := s.fill(t, 2)
		s.sayTheSame(t, "as many as may", fault.ConcurrencyLimit)
		wait()
		s.end(t)
	})
}

// TestRefuseKnowsBytesAndClients: by the size that is announced, and by the header that tells clients apart.
func TestRefuseKnowsBytesAndClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, slow(time.Second), archive.Archive{Settings: archive.Settings{Fairness: &infer.Fairness{Key: "header:x-tenant", MaxShare: 0.4}}}, 1)
		s.opts.QueueBytes = 100
		var all sync.WaitGroup
		for _, tenant := range []string{"a", "a", "b"} { // the first one runs
			all.Go(func() {
				it := item("1")
				it.Header = []infer.Field{{Name: "X-Tenant", Value: tenant}}
				if _, err := s.Submit(t.Context(), model, it); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		for _, tc := range []struct {
			tenant  string
			size    int64
			refused bool
			why     fault.Kind
		}{{tenant: "c", size: 98}, {"c", 99, true, fault.Overloaded}, {tenant: "c"}, {"a", 1, true, fault.ClientShare}} {
			err := s.Refuse(t.Context(), model, infer.Item{Header: []infer.Field{{Name: "x-tenant", Value: tc.tenant}}}, tc.size)
			if tc.refused != (err != nil) || tc.refused && !fault.Is(err, tc.why) {
				t.Errorf("%d bytes of %s: %v", tc.size, tc.tenant, err)
			}
		}
		all.Wait()
		s.end(t)
	})
}

// TestRefuseLeavesChanceAlone: where chance chooses the version, it would choose twice.
func TestRefuseLeavesChanceAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, slow(time.Second), archive.Archive{}, 1)
		wait := s.fill(t, 4)
		for _, tc := range []struct {
			traffic rollout.Traffic
			cookie  string
			refused bool
		}{
			{rollout.Traffic{Weights: map[string]float64{"1.0": 50}}, "", false},
			{rollout.Traffic{Weights: map[string]float64{"1.0": 50}, Sticky: "cookie:uid"}, "uid=7", true},
		} {
			if err := s.models.SetTraffic(t.Context(), "m", tc.traffic); err != nil {
				t.Fatal(err)
			}
			err := s.Refuse(t.Context(), model, infer.Item{Header: []infer.Field{{Name: "Cookie", Value: tc.cookie}}}, 1)
			if tc.refused != fault.Is(err, fault.Overloaded) {
				t.Errorf("%+v: %v", tc.traffic, err)
			}
		}
		wait()
		s.end(t)
	})
}

// TestRefuseAndSequences: to which sequence a request belongs may be in its payload, so that only what holds for all of them is said.
func TestRefuseAndSequences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, slow(time.Second), archive.Archive{Settings: stateful()}, 1)
		ctx, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() { _, _ = s.Submit(ctx, model, member(strconv.Itoa(i))) })
		}
		synctest.Wait()
		if err := s.Refuse(t.Context(), model, infer.Item{}, 1); err != nil {
			t.Error(err)
		}
		leave()
		all.Wait()
		s.end(t)
	})
}
