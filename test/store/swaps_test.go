package store

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// watcher notes when the server says which archive of the model serves.
type watcher struct {
	mu      sync.Mutex // guards numbers, marks and served
	numbers map[string]int
	marks   []e2e.Mark
	served  int // the highest number that was seen to serve
	stop    context.CancelFunc
	ended   sync.WaitGroup
}

// watch looks at the model list all the time, on the clock of a load.
func watch(t *testing.T, s *e2e.Server, load *e2e.Load) *watcher {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	w := &watcher{numbers: map[string]int{}, stop: stop}
	w.ended.Go(func() {
		for ctx.Err() == nil {
			digest, err := s.ServingDigest(ctx, model)
			at := load.Now() // it was so already when the answer came
			if err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
			w.mu.Lock()
			if n, known := w.numbers[digest]; known && n > w.served {
				w.served = n
				w.marks = append(w.marks, e2e.Mark{At: at, Number: n})
			}
			w.mu.Unlock()
			e2e.Pause(ctx, 20*time.Millisecond)
		}
	})
	t.Cleanup(w.end)
	return w
}

func (w *watcher) end() {
	w.stop()
	w.ended.Wait()
}

// wrote tells which number the archive with a digest answers.
func (w *watcher) wrote(digest string, number int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.numbers[digest] = number
}

// serves says whether the server has said that the number, or a later one, serves.
func (w *watcher) serves(number int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.served >= number
}

func (w *watcher) seen() []e2e.Mark {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]e2e.Mark(nil), w.marks...)
}

// settled waits until the server holds what it held before, as far as counts are concerned, and gives what it holds then.
func settled(t *testing.T, s *e2e.Server, before e2e.Resources) e2e.Resources {
	t.Helper()
	var now e2e.Resources
	e2e.Eventually(30*time.Second, func() bool {
		now = s.Resources(t)
		return now.FDs <= before.FDs+connections && now.Processes <= before.Processes && now.TempFiles <= before.TempFiles
	})
	return now
}

// connections is how many more connections the tests' own clients may happen to keep open.
const connections = 4

// memorySlack is how much more the server may hold after any number of swaps than before: its collector lets the heap double before it
// collects, and gives pages back late. Each archive has 64 KiB, so that a server that keeps what it read would be far over it after 1,000 swaps.
const memorySlack = 48 << 20

// requireSame fails the test when the server holds more than before.
func requireSame(t *testing.T, before, after e2e.Resources) {
	t.Helper()
	t.Logf("before %s", before)
	t.Logf("after  %s", after)
	// A few threads more are the Go runtime's, which never gives them back: it starts one for each that blocks in a system call.
	if after.FDs > before.FDs+connections || after.Processes > before.Processes || after.TempFiles > before.TempFiles || after.Threads > before.Threads+16 ||
		after.Memory > before.Memory+memorySlack && !e2e.RaceBuilt() || after.TempBytes > before.TempBytes+64<<10 {
		t.Error("the server holds more than before the swaps")
	}
}

// TestSwapsUnderLoad replaces the archive again and again while clients send without pause. Nothing may fail, nobody may be answered by a version
// that was replaced before the request was sent, and the server must hold in the end what it held in the beginning.
func TestSwapsUnderLoad(t *testing.T) {
	const warm, clients, least = 3, 8, 200 * time.Millisecond
	swaps := long(t, "FLAMBEAU_SWAPS", 15)
	calm := time.Duration(long(t, "FLAMBEAU_SWAPS_CALM", 2)) * time.Second
	box := e2e.NewBox(t)
	put(t, box, model, 0)
	s := start(t, box, "model_store_settle", "40") // with the default a model is changed once in a second at most
	requireAnswer(t, s, predict, 0)
	load := s.StartLoad(t, e2e.LoadOptions{Clients: clients, Path: predict})
	seen := watch(t, s, load)
	swap := func(number int) {
		t.Helper()
		archive := e2e.Numbered(model, number, "")
		archive.Padding = 64<<10 + number // no two have the same content
		content, began := archive.Bytes(t), time.Now()
		seen.wrote(e2e.Digest(content), number)
		box.Put(t, file, content)
		if !e2e.Eventually(patience, func() bool { return seen.serves(number) }) {
			t.Fatalf("number %d never served; %d requests failed; %s", number, load.Failed(), e2e.Lines(s.Events(t, "")))
		}
		e2e.Pause(t.Context(), time.Until(began.Add(least)))
	}
	for number := 1; number <= warm; number++ {
		swap(number)
	}
	e2e.Pause(t.Context(), calm)
	before := s.Resources(t)
	quiet := load.Now()
	e2e.Pause(t.Context(), calm)
	begin := load.Now()
	for number := warm + 1; number <= warm+swaps; number++ {
		swap(number)
		if number%100 == 0 {
			t.Logf("%5d swaps, %8d requests, %d failed, %s", number-warm, load.Answered(), load.Failed(), s.Resources(t))
		}
	}
	end := load.Now()
	e2e.Pause(t.Context(), calm)
	after := settled(t, s, before)
	last := load.Now()
	samples := load.Stop()
	seen.end()

	marks := seen.seen()
	t.Logf("%d swaps, one in %.0f ms; %d requests, %d failed, %d answers too old", swaps, float64((end-begin).Milliseconds())/float64(swaps),
		len(samples), len(e2e.Failures(samples)), len(e2e.Stale(samples, marks)))
	without := e2e.Latencies(samples, quiet, begin)
	t.Logf("without swaps: %s", without)
	t.Logf("with swaps:    %s", e2e.Latencies(samples, begin, end))
	t.Logf("afterwards:    %s", e2e.Latencies(samples, end, last))
	e2e.RequireNoFailure(t, samples)
	e2e.RequireFresh(t, samples, marks)
	requireSame(t, before, after)
	if kinds := e2e.Kinds(s.Events(t, "model="+model)); kinds["swap_failed"]+kinds["refused"]+kinds["superseded"] > 0 {
		t.Errorf("events by kind: %v; want swaps only", kinds)
	}
}
