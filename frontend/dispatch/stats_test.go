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
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

// TestStats has a batch of three requests, one of which has two rows, and a request by itself.
func TestStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		size, delay := 3, 100*time.Millisecond
		a := archive.Archive{Settings: archive.Settings{BatchSize: &size, MaxBatchDelay: &delay}}
		s := newScene(t, slow(30*time.Millisecond), a, 1)
		if got := s.Stats(model); got.Executions != 0 || !got.Last.IsZero() {
			t.Errorf("%+v before the first request", got)
		}
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				one := item("x")
				if i == 0 {
					one.Rows = 2
				}
				if _, err := s.Submit(t.Context(), model, one); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		last := time.Now()
		if _, err := s.Submit(t.Context(), model, item("y")); err != nil {
			t.Error(err)
		}
		ms := func(n int64, d int) Spent { return Spent{n, time.Duration(d) * time.Millisecond} }
		want := Stats{
			Inferences: 5, Executions: 2, Last: last.Add(130 * time.Millisecond), Success: ms(4, 3*30+130), Queue: ms(4, 100), Compute: ms(4, 4*30),
			Batches: []BatchStats{{1, ms(1, 30)}, {4, ms(1, 30)}},
		}
		if diff := cmp.Diff(want, s.Stats(infer.ModelRef{Name: "m", Version: "1.0"})); diff != "" {
			t.Error(diff)
		}
		if got := s.Stats(infer.ModelRef{Name: "x"}); got.Executions != 0 {
			t.Errorf("%+v of no model", got)
		}
		s.end(t)
	})
}

// TestStatsOfFailures has a worker that fails on a request.
func TestStatsOfFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &backendtest.Launcher{LaunchFunc: func(_ context.Context, n int, _ backend.ProcessSpec) (*backendtest.Instance, error) {
			i := backendtest.NewInstance(strconv.Itoa(n))
			i.PredictFunc = func(_ context.Context, items []infer.Item) ([]infer.Result, error) {
				time.Sleep(time.Millisecond)
				results := backendtest.Echo(items)
				if string(items[0].Parts[0].Data) == "bad" {
					results[0] = infer.Result{Err: fault.New(fault.HandlerFailed, "bad", nil)}
				}
				return results, nil
			}
			return i, nil
		}}
		s := newScene(t, l, archive.Archive{}, 1)
		for text, fails := range map[string]bool{"good": false, "bad": true} {
			if _, err := s.Submit(t.Context(), model, item(text)); (err != nil) != fails {
				t.Errorf("%s: %v", text, err)
			}
		}
		got := s.Stats(model)
		if one := (Spent{1, time.Millisecond}); got.Fail != one || got.Success != one || got.Inferences != 1 || got.Executions != 1 || got.Compute != one || !cmp.Equal(got.Batches, []BatchStats{{1, one}}) {
			t.Errorf("%+v", got)
		}
		s.end(t)
	})
}
