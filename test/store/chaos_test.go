package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// killer kills processes of the server at random moments: those that serve, those that are being replaced, and those that load.
type killer struct {
	kills int // read after end
	stop  context.CancelFunc
	ended sync.WaitGroup
}

func kill(t *testing.T, box *e2e.Box, s *e2e.Server, between time.Duration) *killer {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	k := &killer{stop: stop}
	k.ended.Go(func() {
		for ctx.Err() == nil {
			e2e.Pause(ctx, between/2+rand.N(between)) //nolint:gosec // no secret
			pids := slices.DeleteFunc(box.Processes(t), func(pid int) bool { return pid == s.PID() })
			if len(pids) == 0 || ctx.Err() != nil {
				continue
			}
			if syscall.Kill(pids[rand.IntN(len(pids))], syscall.SIGKILL) == nil { //nolint:gosec // no secret
				k.kills++
			}
		}
	})
	t.Cleanup(k.end)
	return k
}

func (k *killer) end() {
	k.stop()
	k.ended.Wait()
}

// TestKillsAndBrokenArchivesWhileSwapping swaps under load, puts a broken archive between two good ones, and kills workers at random. The only
// requests that may fail are those that a killed worker had.
func TestKillsAndBrokenArchivesWhileSwapping(t *testing.T) {
	rounds := long(t, "FLAMBEAU_CHAOS", 6)
	box := e2e.NewBox(t)
	put(t, box, model, 0)
	s := start(t, box)
	requireAnswer(t, s, predict, 0)
	load := s.StartLoad(t, e2e.LoadOptions{Clients: 8, Path: predict})
	seen := watch(t, s, load)
	reaper := kill(t, box, s, 500*time.Millisecond)
	kinds := brokenArchives()
	for number := 1; number <= rounds; number++ {
		b := kinds[number%len(kinds)]
		bad := b.content(t, 100_000+number)
		if reason := b.place(t, box, s, bad); reason == "" {
			t.Errorf("round %d: no reason for an archive that is %s", number, b.name)
		}
		content := e2e.Numbered(model, number, "").Bytes(t)
		seen.wrote(e2e.Digest(content), number)
		box.Put(t, file, content)
		if !e2e.Eventually(patience, func() bool { return seen.serves(number) }) {
			t.Fatalf("number %d never served after one that is %s: %s", number, b.name, e2e.Lines(s.Events(t, "")))
		}
	}
	reaper.end()
	requireAnswer(t, s, predict, rounds)
	samples := load.Stop()
	seen.end()
	failures := e2e.Failures(samples)
	t.Logf("%d swaps, %d broken archives, %d kills; %d requests, %d failed", rounds, rounds, reaper.kills, len(samples), len(failures))
	e2e.RequireFresh(t, samples, seen.seen())
	for _, sample := range samples {
		if sample.Number > rounds {
			t.Fatalf("a broken archive answered: %+v", sample)
		}
	}
	if len(failures) > reaper.kills {
		t.Errorf("%d requests failed after %d kills", len(failures), reaper.kills)
	}
	for i, sample := range failures {
		if !slices.Contains([]int{http.StatusInternalServerError, http.StatusInsufficientStorage}, sample.Status) || !strings.Contains(sample.Failure, "Worker died.") {
			t.Errorf("a request failed in another way than by its worker's death: %+v", sample)
		}
		if i == 5 {
			break
		}
	}
	if bad := e2e.Kinds(s.Events(t, "model="+model))["worker_failed"]; reaper.kills > 0 && bad == 0 {
		t.Errorf("no event tells about a killed worker: %s", e2e.Lines(s.Events(t, "")))
	}
}

// ownMount gives a command that runs another one with a small file system of its own in the place of a folder.
func ownMount(t *testing.T, dir, size string) []string {
	t.Helper()
	return mounted(t, fmt.Sprintf(`mount -t tmpfs -o size=%s,mode=0700 tmpfs "%s"`, size, dir))
}

// TestFullDisk lets the disk that archives are unpacked on, and then the one that the server's own files are on, be full.
func TestFullDisk(t *testing.T) {
	const size = 24 << 20
	large := func(number int) []byte {
		a := e2e.Numbered(model, number, "")
		a.Padding = 2 * size
		return a.Bytes(t)
	}
	t.Run("unpacking", func(t *testing.T) {
		box := e2e.NewBox(t)
		put(t, box, model, 0)
		s := startWrapped(t, box, ownMount(t, box.Tmp, strconv.Itoa(size)))
		requireAnswer(t, s, predict, 0)
		load := s.StartLoad(t, e2e.LoadOptions{Clients: 4, Path: predict})
		content := large(1000)
		before := newest(t, s)
		box.Put(t, file, content)
		requireSays(t, "the reason", requireFailure(t, s, e2e.Digest(content), before), []string{"no room left"})
		s.RequireServing(t, model, put(t, box, model, 1))
		requireAnswer(t, s, predict, 1)
		free := filesystem(t, inside(s, box.Tmp))
		if used := size - free; used > 4<<20 {
			t.Errorf("%d bytes of what could not be unpacked are left", used)
		}
		samples := load.Stop()
		e2e.RequireNoFailure(t, samples)
		e2e.RequireFresh(t, samples, nil)
	})
	t.Run("state", func(t *testing.T) {
		box := e2e.NewBox(t)
		state := filepath.Join(box.Dir, "state")
		if err := os.Mkdir(state, 0o700); err != nil {
			t.Fatal(err)
		}
		put(t, box, model, 0)
		s := startWrapped(t, box, ownMount(t, state, strconv.Itoa(size)), "state_dir", state)
		requireAnswer(t, s, predict, 0)
		load := s.StartLoad(t, e2e.LoadOptions{Clients: 4, Path: predict})
		fill(t, filepath.Join(inside(s, state), "fill"))
		for number := 1; number <= 3; number++ {
			s.RequireServing(t, model, put(t, box, model, number))
			requireAnswer(t, s, predict, number)
		}
		samples := load.Stop()
		e2e.RequireNoFailure(t, samples)
		e2e.RequireFresh(t, samples, nil)
		if err := os.Remove(filepath.Join(inside(s, state), "fill")); err != nil {
			t.Fatal(err)
		}
		s.RequireServing(t, model, put(t, box, model, 4))
	})
}

func startWrapped(t *testing.T, box *e2e.Box, wrap []string, config ...string) *e2e.Server {
	t.Helper()
	return box.Start(t, e2e.Options{Wrap: wrap, Command: []string{"flambeau", "serve", "--model-store", box.Store}, Config: pairs(config)})
}

// inside is a path as the server's process sees it.
func inside(s *e2e.Server, path string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", s.PID()), path)
}

// filesystem gives how many bytes are free.
func filesystem(t *testing.T, path string) int {
	t.Helper()
	var stat syscall.Statfs_t
	if err := syscall.Statfs(path, &stat); err != nil {
		t.Fatal(err)
	}
	return int(stat.Bavail) * int(stat.Bsize)
}

// fill writes a file until nothing fits any more.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it is full
	block := make([]byte, 4096)
	for {
		if _, err := f.Write(block); err != nil {
			return
		}
	}
}
