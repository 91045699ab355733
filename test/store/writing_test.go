package store

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// attempts are the events that say that a load of the model was begun, or refused.
func attempts(t *testing.T, s *e2e.Server) []e2e.Event {
	t.Helper()
	var all []e2e.Event
	for _, e := range s.Events(t, "model="+model) {
		switch e.Kind {
		case "registered", "updating", "refused", "swap_failed":
			all = append(all, e)
		}
	}
	return all
}

// serveZero starts a server on a store with one model, which answers 0, and a load on it.
func serveZero(t *testing.T, config ...string) (*e2e.Box, *e2e.Server, *e2e.Load) {
	t.Helper()
	box := e2e.NewBox(t)
	put(t, box, model, 0)
	s := start(t, box, config...)
	requireAnswer(t, s, predict, 0)
	return box, s, s.StartLoad(t, e2e.LoadOptions{Clients: 2, Path: predict, Every: 5 * time.Millisecond})
}

func requireFlawless(t *testing.T, load *e2e.Load) {
	t.Helper()
	samples := load.Stop()
	e2e.RequireNoFailure(t, samples)
	e2e.RequireFresh(t, samples, nil)
}

// TestSlowWriter writes an archive over the one that serves as slowly as a network does, with a stop in the middle: nothing is tried before
// it is whole, and it is loaded once then.
func TestSlowWriter(t *testing.T) {
	size := long(t, "FLAMBEAU_SLOW_MEGABYTES", 8) << 20
	const rate, pieces = 10 << 20, 10 // bytes and pieces of each second
	for name, stop := range map[string]time.Duration{"steady": 0, "stopping": 5 * time.Second} {
		t.Run(name, func(t *testing.T) {
			box, s, load := serveZero(t)
			before, temporary := len(attempts(t, s)), s.Resources(t).TempBytes
			archive := e2e.Numbered(model, 1, "")
			archive.Padding = size
			content := archive.Bytes(t)
			count := len(content) * pieces / rate
			early := 0
			e2e.Writer{Pieces: count, Pause: time.Second / pieces, Before: func(piece, sent int) {
				if piece == count/2 {
					e2e.Pause(t.Context(), stop)
					if entry := s.InStore(t, file); stop > 0 && entry.State == "settled" {
						t.Errorf("half of the archive is said to be %+v", entry)
					}
				}
				if piece%pieces == 0 || piece == count/2 {
					if now := len(attempts(t, s)) - before; now > early {
						early = now
						t.Errorf("%d attempts with %d of %d bytes: %s", now, sent, len(content), e2e.Lines(attempts(t, s)[before:]))
					}
					if held := s.Resources(t).TempBytes - temporary; held > 1<<20 {
						t.Errorf("%d temporary bytes before the archive was whole", held)
					}
				}
			}}.Write(t, filepath.Join(box.Store, file), content)
			whole := time.Now()
			s.RequireServing(t, model, e2e.Digest(content))
			requireAnswer(t, s, predict, 1)
			took := time.Since(whole)
			e2e.Pause(t.Context(), 2*time.Second) // a second load would begin by then
			all := attempts(t, s)[before:]
			t.Logf("%d MB: %d attempts before it was whole, %d after; served after %.1f s", size>>20, early, len(all)-early, took.Seconds())
			if len(all) != 1 || all[0].Kind != "updating" || all[0].Digest != e2e.Digest(content) {
				t.Errorf("attempts: %s; want one", e2e.Lines(all))
			}
			requireFlawless(t, load)
		})
	}
}

// TestManyChangesAreOneLoad changes the archive 50 times in a second.
func TestManyChangesAreOneLoad(t *testing.T) {
	const changes = 50
	box, s, load := serveZero(t)
	before := len(attempts(t, s))
	var last string
	for number := 1; number <= changes; number++ {
		last = put(t, box, model, number)
		e2e.Pause(t.Context(), time.Second/changes)
	}
	s.RequireServing(t, model, last)
	requireAnswer(t, s, predict, changes)
	e2e.Pause(t.Context(), time.Second)
	all := attempts(t, s)[before:]
	t.Logf("%d changes in a second: %d loads", changes, len(all))
	if len(all) > 2 {
		t.Errorf("attempts: %s; want two at most", e2e.Lines(all))
	}
	requireFlawless(t, load)
}

// TestCopyInPieces copies 20 MB over the archive that serves in 40 pieces, then once more with a stop of 5 s in the middle.
func TestCopyInPieces(t *testing.T) {
	box, s, load := serveZero(t)
	for number := 1; number <= 2; number++ {
		archive := e2e.Numbered(model, number, "")
		archive.Padding = 20 << 20
		content := archive.Bytes(t)
		e2e.Writer{Pieces: 40, Pause: 50 * time.Millisecond, Before: func(piece, _ int) {
			if got := answer(t, s, predict); got != strconv.Itoa(number-1) {
				t.Errorf("answer %s while %d is copied", got, number)
			}
			if piece == 20 && number == 2 {
				e2e.Pause(t.Context(), 5*time.Second)
			}
		}}.Write(t, filepath.Join(box.Store, file), content)
		whole := time.Now()
		requireAnswer(t, s, predict, number)
		if took := time.Since(whole); took > 10*time.Second {
			t.Errorf("it took %v until the copy was served", took)
		}
		s.RequireServing(t, model, e2e.Digest(content))
	}
	if kinds := e2e.Kinds(s.Events(t, "model="+model)); kinds["unregistered"]+kinds["swap_failed"]+kinds["refused"] > 0 {
		t.Errorf("events by kind: %v; want none of a failure", kinds)
	}
	requireFlawless(t, load)
}

// TestCopiedFolder copies a folder of 200 files into the store by `cp -r`, then new content over it.
func TestCopiedFolder(t *testing.T) {
	box := e2e.NewBox(t)
	s := start(t, box, "model_store_folder_settle", "500")
	copies := filepath.Join(box.Dir, "copies")
	for number := 1; number <= 2; number++ {
		archive := e2e.Numbered(model, number, `open(context.system_properties["model_dir"] + "/part-199.txt").close()`)
		archive.Files = map[string]string{}
		for i := range 200 {
			archive.Files[fmt.Sprintf("part-%03d.txt", i)] = strings.Repeat("x", 1000)
		}
		from := filepath.Join(copies, strconv.Itoa(number), model)
		archive.WriteFolder(t, from)
		if out, err := exec.CommandContext(t.Context(), "cp", "-r", from, box.Store).CombinedOutput(); err != nil {
			t.Fatalf("cp: %v: %s", err, out)
		}
		requireAnswer(t, s, predict, number)
	}
	all := attempts(t, s)
	if len(all) != 2 || all[0].Kind != "registered" || all[1].Kind != "updating" {
		t.Errorf("attempts: %s; want one for each copy", e2e.Lines(all))
	}
}

// TestFilesOfEditorsAndCopiers puts what is no model beside one: hidden, temporary and partial files, and files of other kinds.
func TestFilesOfEditorsAndCopiers(t *testing.T) {
	box, s, load := serveZero(t)
	content := e2e.Numbered("other", 1, "").Bytes(t)
	for _, name := range []string{".m.mar.Ab12Cd", ".m.mar.swp", "m.mar~", "m.mar.part", "m.mar.tmp", "m.mar.filepart", "#m.mar#", "notes.txt", ".hidden.mar"} {
		if err := os.WriteFile(filepath.Join(box.Store, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(box.Store, ".partial", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	digest := put(t, box, model, 1) // later than all of them
	s.RequireServing(t, model, digest)
	e2e.Pause(t.Context(), 3*time.Second)
	if all := s.Models(t); len(all) != 1 {
		t.Errorf("models: %+v; want one", all)
	}
	for _, e := range s.Events(t, "") {
		if e.Source != file && e.Source != "" {
			t.Errorf("an event about what is no model: %s", e2e.Lines([]e2e.Event{e}))
		}
	}
	requireFlawless(t, load)
}

// TestTouchedFileIsNotLoadedAgain changes the time of the archive, and writes the same content once more.
func TestTouchedFileIsNotLoadedAgain(t *testing.T) {
	box, s, load := serveZero(t)
	before := len(attempts(t, s))
	now := time.Now().Add(time.Minute)
	if err := os.Chtimes(filepath.Join(box.Store, file), now, now); err != nil {
		t.Fatal(err)
	}
	e2e.Pause(t.Context(), time.Second)
	put(t, box, model, 0)
	e2e.Pause(t.Context(), 2*time.Second)
	if all := attempts(t, s)[before:]; len(all) > 0 {
		t.Errorf("attempts: %s; want none", e2e.Lines(all))
	}
	if m, _ := s.Model(t, model, ""); m.Generation != 1 {
		t.Errorf("the model was loaded again: %+v", m)
	}
	requireFlawless(t, load)
}
