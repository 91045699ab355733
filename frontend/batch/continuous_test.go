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

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/infer"
)

// countdown answers each request as often as its body says, one answer for each step of a second. It checks that only the first step brings the
// body.
func countdown(t *testing.T) (handle func(context.Context, []infer.Item) ([]infer.Result, error), steps func() [][]string) {
	t.Helper()
	left := map[string]int{}
	var mu sync.Mutex
	var seen [][]string
	handle = func(_ context.Context, items []infer.Item) ([]infer.Result, error) {
		time.Sleep(time.Second)
		mu.Lock()
		defer mu.Unlock()
		results := make([]infer.Result, len(items))
		var ids []string
		for i, item := range items {
			ids = append(ids, item.ID)
			if n, known := left[item.ID]; known != (len(item.Parts) == 0) {
				t.Errorf("request %s with %d answers left came with %d parts", item.ID, n, len(item.Parts))
			}
			if len(item.Parts) > 0 {
				left[item.ID], _ = strconv.Atoi(string(item.Parts[0].Data))
			}
			left[item.ID]--
			more := left[item.ID] > 0
			results[i] = infer.Result{
				Body: []byte(strconv.Itoa(left[item.ID]) + ";"), Header: []infer.Field{{Name: "ts_stream_next", Value: strconv.FormatBool(more)}},
			}
		}
		seen = append(seen, ids)
		return results, nil
	}
	return handle, func() [][]string {
		mu.Lock()
		defer mu.Unlock()
		return seen
	}
}

// inSteps is newWorkers with workers that answer in steps.
func inSteps(n int, handle func(context.Context, []infer.Item) ([]infer.Result, error)) *workers {
	w := newWorkers(n, handle)
	w.steps = true
	return w
}

// streamed submits a request and gives all its answers, joined.
func streamed(ctx context.Context, q *Queue, id, body string) (string, error) {
	var text strings.Builder
	var mu sync.Mutex
	r, _, err := q.Submit(ctx, infer.Item{ID: id, Parts: []infer.Part{{Data: []byte(body)}}, Emit: func(r infer.Result) {
		mu.Lock()
		defer mu.Unlock()
		text.Write(r.Body)
	}})
	mu.Lock()
	defer mu.Unlock()
	return text.String() + string(r.Body), err
}

func TestContinuousBatchFillsFreePlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handle, steps := countdown(t)
		q, stop := start(t, inSteps(1, handle), Policy{MaxItems: 10, MaxBatch: 2})
		var all sync.WaitGroup
		for _, c := range []struct{ id, n, want string }{{"a", "4", "3;2;1;0;"}, {"b", "1", "0;"}, {"c", "2", "1;0;"}, {"d", "1", "0;"}} {
			all.Go(func() {
				if got, err := streamed(t.Context(), q, c.id, c.n); err != nil || got != c.want {
					t.Errorf("request %s: %q, %v", c.id, got, err)
				}
			})
			synctest.Wait()
		}
		all.Wait()
		stop()
		// "a" left at once and alone; the others take the second place one after the other.
		if diff := cmp.Diff([][]string{{"a"}, {"a", "b"}, {"a", "c"}, {"a", "c"}, {"d"}}, steps()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestContinuousBatchGoesOnWithoutThoseThatLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handle, steps := countdown(t)
		q, stop := start(t, inSteps(1, handle), Policy{MaxItems: 10, MaxBatch: 2, MaxDelay: time.Minute})
		ctx, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := streamed(ctx, q, "leaves", "100"); !errors.Is(err, context.Canceled) {
				t.Errorf("who left: %v", err)
			}
		})
		synctest.Wait()
		all.Go(func() {
			if got, err := streamed(t.Context(), q, "stays", "4"); err != nil || got != "3;2;1;0;" {
				t.Errorf("who stayed: %q, %v", got, err)
			}
		})
		time.Sleep(1500 * time.Millisecond)
		leave()
		all.Wait()
		stop()
		if diff := cmp.Diff([][]string{{"leaves", "stays"}, {"leaves", "stays"}, {"stays"}, {"stays"}}, steps()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestContinuousBatchThatFailsFailsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom := errors.New("boom")
		n := 0
		handle := func(_ context.Context, items []infer.Item) ([]infer.Result, error) {
			if n++; n > 1 {
				return nil, boom
			}
			results := make([]infer.Result, len(items))
			for i := range results {
				results[i].Header = []infer.Field{{Name: "ts_stream_next", Value: "true"}}
			}
			return results, nil
		}
		q, stop := start(t, inSteps(1, handle), Policy{MaxItems: 10, MaxBatch: 2, MaxDelay: time.Second})
		var all sync.WaitGroup
		for _, id := range []string{"a", "b"} {
			all.Go(func() {
				if _, err := streamed(t.Context(), q, id, "1"); !errors.Is(err, boom) {
					t.Errorf("request %s: %v", id, err)
				}
			})
		}
		all.Wait()
		stop()
	})
}
