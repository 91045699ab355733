package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// broken is an archive that cannot replace the one that serves.
type broken struct {
	name    string
	content func(t *testing.T, number int) []byte
	says    []string // in the reason
	waits   bool     // it is not complete, so that it is waited for: the reason is in the list of the store, and nothing is tried
}

// brokenArchives are the ways in which a new archive may be no good.
func brokenArchives() []broken {
	numbered := func(begin, config string) func(t *testing.T, number int) []byte {
		return func(t *testing.T, number int) []byte {
			t.Helper()
			a := e2e.Numbered(model, number, begin)
			a.Config = config
			return a.Bytes(t)
		}
	}
	whole := numbered("", "")
	return []broken{
		{name: "truncated", waits: true, says: []string{"bytes"}, content: func(t *testing.T, number int) []byte {
			t.Helper()
			content := whole(t, number)
			return content[:len(content)*2/3]
		}},
		{name: "flipped", says: []string{"handler.py"}, content: func(t *testing.T, number int) []byte {
			t.Helper()
			return e2e.Flipped(t, whole(t, number))
		}},
		{name: "escapes", says: []string{"../evil.txt"}, content: func(t *testing.T, number int) []byte {
			t.Helper()
			a := e2e.Numbered(model, number, "")
			a.Files = map[string]string{"../evil.txt": "out"}
			return a.Bytes(t)
		}},
		{name: "raises", says: []string{"ValueError: planted"}, content: numbered(`raise ValueError("planted")`, "")},
		{name: "exits", says: []string{"exit status 3"}, content: numbered(`__import__("os")._exit(3)`, "")},
		{name: "hangs", says: []string{"startup timeout of 1s"}, content: numbered(`time.sleep(1000)`, "startupTimeout: 1\n")},
	}
}

// place puts the archive into the store, waits until the server has told why it does not serve, and gives what it told.
func (b broken) place(t *testing.T, box *e2e.Box, s *e2e.Server, content []byte) string {
	t.Helper()
	before := newest(t, s)
	box.Put(t, file, content)
	if !b.waits {
		return requireFailure(t, s, e2e.Digest(content), before)
	}
	var entry e2e.StoreEntry
	if !e2e.Eventually(patience, func() bool {
		entry = s.InStore(t, file)
		return entry.State == "incomplete" && strings.Contains(entry.Reason, strconv.Itoa(len(content)))
	}) {
		t.Fatalf("the truncated archive of %d bytes is not told to be incomplete: %+v", len(content), entry)
	}
	return entry.Reason
}

// TestBrokenArchiveLeavesTheOldOne puts each kind of broken archive in the place of a good one under load: the good one goes on, the reason is
// told everywhere, and the next good one is taken.
func TestBrokenArchiveLeavesTheOldOne(t *testing.T) {
	box := e2e.NewBox(t)
	put(t, box, model, 0)
	s := start(t, box)
	requireAnswer(t, s, predict, 0)
	load := s.StartLoad(t, e2e.LoadOptions{Clients: 4, Path: predict})
	good := 0
	for i, b := range brokenArchives() {
		t.Run(b.name, func(t *testing.T) {
			content := b.content(t, 1000+i)
			reason := b.place(t, box, s, content)
			requireSays(t, "the reason", reason, b.says)
			if !b.waits {
				var m e2e.Model
				if !e2e.Eventually(patience, func() bool { // it is told before everything is put away
					m, _ = s.Model(t, model, "")
					return m.LastFailure != nil && m.State == "serving"
				}) {
					t.Fatalf("the model list does not say that it serves and why the new archive does not: %+v", m)
				}
				requireSays(t, "the model list", m.LastFailure.Reason, b.says)
				requireSays(t, "flambeau ps", box.Flambeau(t, "ps", "--url", s.Management), b.says)
				requireSays(t, "flambeau show", box.Flambeau(t, "show", model, "--url", s.Management), b.says)
				requireSays(t, "flambeau events", box.Flambeau(t, "events", "--url", s.Management), b.says)
				requireSays(t, "flambeau history", box.Flambeau(t, "history", model, "--url", s.Management), b.says)
			}
			if got := answer(t, s, predict); got != strconv.Itoa(good) {
				t.Errorf("answer %s, want %d, which was there before", got, good)
			}
			good++
			s.RequireServing(t, model, put(t, box, model, good))
			requireAnswer(t, s, predict, good)
			if m, _ := s.Model(t, model, ""); m.LastFailure != nil {
				t.Errorf("a failure is still told after a good one came: %+v", m.LastFailure)
			}
		})
	}
	samples := load.Stop()
	e2e.RequireNoFailure(t, samples)
	e2e.RequireFresh(t, samples, nil)
	for _, sample := range samples {
		if sample.Number >= 1000 {
			t.Fatalf("a broken archive answered: %+v", sample)
		}
	}
}

// TestFailingArchiveIsTriedLessAndLess has an archive that raises stay in the store: it is tried again a few times with growing pauses, and
// not for ever.
func TestFailingArchiveIsTriedLessAndLess(t *testing.T) {
	box := e2e.NewBox(t)
	put(t, box, model, 0)
	s := start(t, box)
	requireAnswer(t, s, predict, 0)
	content := e2e.Numbered(model, 1, `raise ValueError("planted")`).Bytes(t)
	box.Put(t, file, content)
	tries := func() []e2e.Event {
		var all []e2e.Event
		for _, e := range s.Events(t, "model="+model) {
			if e.Digest == e2e.Digest(content) && e.Kind == "swap_failed" {
				all = append(all, e)
			}
		}
		return all
	}
	if !e2e.Eventually(patience, func() bool { return len(tries()) >= 3 }) {
		t.Fatalf("it was not tried three times: %s", e2e.Lines(s.Events(t, "")))
	}
	all := tries()
	first, second := all[1].At.Sub(all[0].At), all[2].At.Sub(all[1].At)
	if len(all) > 4 || second <= first {
		t.Errorf("%d tries, with pauses of %v and %v; want growing ones", len(all), first, second)
	}
	if m, _ := s.Model(t, model, ""); m.LastFailure == nil || m.LastFailure.Attempts < 3 {
		t.Errorf("the model list does not count the tries: %+v", m.LastFailure)
	}
	s.RequireServing(t, model, put(t, box, model, 2))
}

// TestStrictCheckStartsNothing refuses an archive that imports what is not there, before a process is started for it.
func TestStrictCheckStartsNothing(t *testing.T) {
	box, s, load := serveZero(t, "model_check", "strict")
	a := e2e.Numbered(model, 1, "")
	a.Handler = "import not_here_zz\n" + a.Handler
	content := a.Bytes(t)
	before := newest(t, s)
	box.Put(t, file, content)
	requireSays(t, "the reason", requireFailure(t, s, e2e.Digest(content), before), []string{"not_here_zz", "handler.py:1"})
	for _, e := range s.Events(t, "model="+model) {
		if e.ID > before && (e.Kind == "updating" || e.Kind == "worker_failed") {
			t.Errorf("a process was started: %s", e2e.Lines([]e2e.Event{e}))
		}
	}
	s.RequireServing(t, model, put(t, box, model, 2))
	requireAnswer(t, s, predict, 2)
	requireFlawless(t, load)
}

// TestReloadTriesAtOnce has an archive fail for a reason that lies elsewhere, so often that the next try is far; once the reason is gone, the command
// makes it serve.
func TestReloadTriesAtOnce(t *testing.T) {
	box, s, load := serveZero(t)
	wanted := filepath.Join(box.Dir, "wanted.txt")
	content := e2e.Numbered(model, 1, fmt.Sprintf("open(%q).close()", wanted)).Bytes(t)
	box.Put(t, file, content)
	if !e2e.Eventually(patience, func() bool {
		m, _ := s.Model(t, model, "")
		return m.LastFailure != nil && m.LastFailure.Attempts >= 4 && m.Updating == nil
	}) {
		t.Fatalf("it was not tried four times: %s", e2e.Lines(s.Events(t, "")))
	}
	if err := os.WriteFile(wanted, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	box.Flambeau(t, "reload", model, "--url", s.Management)
	s.RequireServing(t, model, e2e.Digest(content))
	requireAnswer(t, s, predict, 1)
	if took := time.Since(began); took > 6*time.Second {
		t.Errorf("it took %v until it served, about as long as without the command", took)
	}
	requireFlawless(t, load)
}

func requireSays(t *testing.T, what, text string, parts []string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s does not say %q:\n%s", what, part, text)
		}
	}
}
