package host_test

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/reexec"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// held is what a process holds: its children, its open files, its goroutines.
type held struct{ children, files, goroutines int }

func holds(t *testing.T) held {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	procs, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	h := held{files: len(files), goroutines: runtime.NumGoroutine()}
	own := strconv.Itoa(os.Getpid())
	for _, p := range procs {
		stat, err := os.ReadFile("/proc/" + p.Name() + "/stat")
		if err != nil {
			continue // no process, or gone
		}
		// pid (name) state parent …: zombies count, too.
		if _, rest, ok := strings.Cut(string(stat), ") "); ok && strings.Fields(rest)[1] == own {
			h.children++
		}
	}
	return h
}

// Not parallel: it counts what the whole process holds.
func TestNothingIsLeftOfManyLaunches(t *testing.T) {
	if testing.Short() {
		t.Skip("starts many processes")
	}
	l := newLauncher(t)
	cycle := func(n int) {
		switch n % 4 {
		case 0: // a whole life
			inst := ready(t, l, reexec.Spec(reexec.Echo))
			if _, err := inst.Predict(t.Context(), []infer.Item{item("a")}); err != nil {
				t.Fatal(err)
			}
			if err := inst.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
		case 1: // a death
			inst := ready(t, l, reexec.Spec(reexec.Crash))
			if _, err := inst.Predict(t.Context(), []infer.Item{item("a")}); err == nil {
				t.Fatal("it lives")
			}
			<-inst.Done()
		case 2: // no start
			if _, err := l.Launch(t.Context(), reexec.Spec(reexec.StdoutNoise)); err == nil {
				t.Fatal("it started")
			}
		case 3: // no program
			if _, err := l.Launch(t.Context(), backend.ProcessSpec{Path: "/nonexistent"}); err == nil {
				t.Fatal("it started")
			}
		}
	}
	for n := range 8 { // what is made once and kept
		cycle(n)
	}
	before := holds(t)
	for n := range 100 {
		cycle(n)
	}
	var after held
	eventually(t, 10*time.Second, "everything is let go", func() bool {
		after = holds(t)
		return after.children <= before.children && after.files <= before.files && after.goroutines <= before.goroutines
	})
	t.Logf("before %+v, after %+v", before, after)
}

func TestConcurrentLaunches(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	results := make(chan error, 10)
	for range cap(results) {
		go func() {
			inst, err := l.Launch(t.Context(), reexec.Spec(reexec.Echo))
			if err == nil {
				err = inst.Stop(context.WithoutCancel(t.Context()))
			}
			results <- err
		}()
	}
	for range cap(results) {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}
