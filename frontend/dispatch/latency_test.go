package dispatch

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

func TestWindow(t *testing.T) {
	w := newWindow()
	now := w.born
	after := func(ms int) {
		now = now.Add(time.Millisecond)
		w.observe(now, now.Add(-time.Duration(ms)*time.Millisecond))
	}
	is := func(p50, p99 int64, n int) {
		t.Helper()
		if a, b, c := w.latency(now); a.Milliseconds() != p50 || b.Milliseconds() != p99 || c != n {
			t.Errorf("got %v %v of %d, want %d ms %d ms of %d", a, b, c, p50, p99, n)
		}
	}
	is(0, 0, 0)
	after(7)
	is(7, 7, 1)
	for ms := 200; ms > 100; ms-- {
		after(ms)
	}
	is(150, 199, 101) // 7, 101 … 200
	for range windowSize - 50 {
		after(1)
	}
	is(1, 140, windowSize) // the oldest ones are gone: 101 … 150 are left
	now = now.Add(windowAge - time.Millisecond)
	after(3)
	is(1, 3, 2) // the one of exactly that age, and the new one
	now = now.Add(windowAge + time.Second)
	is(0, 0, 0)
}

func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, slow(30*time.Millisecond), archive.Archive{}, 1)
		if _, _, n := s.Latency(model); n != 0 {
			t.Errorf("%d before the first request", n)
		}
		for i := range 3 {
			if _, err := s.Submit(t.Context(), model, item(strconv.Itoa(i))); err != nil {
				t.Error(err)
			}
		}
		if p50, p99, n := s.Latency(infer.ModelRef{Name: "m", Version: "1.0"}); p50 != 30*time.Millisecond || p99 != p50 || n != 3 {
			t.Errorf("%v %v %d", p50, p99, n)
		}
		if _, _, n := s.Latency(infer.ModelRef{Name: "x"}); n != 0 {
			t.Errorf("%d of no model", n)
		}
		s.end(t)
	})
}

// TestRequestsFollowTheTraffic: by a label, by the header in any case, by a cookie that comes in two lines; and what is observed says where they went.
func TestRequestsFollowTheTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, &backendtest.Launcher{}, archive.Archive{}, 1)
		if err := s.models.SetTraffic(t.Context(), "m", rollout.Traffic{Labels: map[string]string{"stable": "1.0"}, Sticky: "cookie:uid"}); err != nil {
			t.Fatal(err)
		}
		asked := item("a")
		asked.Header = []infer.Field{{Name: "Cookie", Value: "a=b"}, {Name: "X-FLAMBEAU-version", Value: "stable"}, {Name: "cookie", Value: "uid=7"}}
		for _, ref := range []infer.ModelRef{model, {Name: "m", Version: "stable"}} {
			if _, err := s.Submit(t.Context(), ref, asked); err != nil {
				t.Error(err)
			}
		}
		want := infer.ModelRef{Name: "m", Version: "1.0"}
		if len(s.seen) != 2 || s.seen[0].Ref != model || s.seen[0].Taken != want || s.seen[1].Ref.Version != "stable" || s.seen[1].Taken != want {
			t.Errorf("observed %+v", s.seen)
		}
		asked.Header[1].Value = "nope"
		if _, err := s.Submit(t.Context(), model, asked); err == nil || err.Error() != "Model version: nope does not exist for model: m" {
			t.Errorf("%v", err)
		}
		s.end(t)
	})
}

func TestHeaderOf(t *testing.T) {
	fields := []infer.Field{{Name: "COOKIE", Value: "a=1"}, {Name: "X-A", Value: "x"}, {Name: "x-a", Value: "y"}, {Name: "cookie", Value: "b=2"}}
	for name, want := range map[string]string{"cookie": "a=1; b=2", "x-A": "x", "none": ""} {
		if got := headerOf(fields, name); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// BenchmarkObserve must stay far below a microsecond: every answer pays it.
func BenchmarkObserve(b *testing.B) {
	w := newWindow()
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		w.observe(now, now)
	}
}

// BenchmarkObserveTogether has as many goroutines as there are processors.
func BenchmarkObserveTogether(b *testing.B) {
	w := newWindow()
	now := time.Now()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			w.observe(now, now)
		}
	})
}

func BenchmarkLatency(b *testing.B) {
	w := newWindow()
	now := time.Now()
	for i := range windowSize {
		w.observe(now, now.Add(-time.Duration(i*7919%1009)*time.Millisecond))
	}
	for b.Loop() {
		w.latency(now)
	}
}
