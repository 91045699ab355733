package store

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// link makes a symbolic link, in the place of one that is there.
func link(t *testing.T, to, path string) {
	t.Helper()
	if err := os.Symlink(to, path+"_tmp"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+"_tmp", path); err != nil {
		t.Fatal(err)
	}
}

// TestMountedConfigMap changes a store that Kubernetes mounts: all the names are links through one that is replaced.
func TestMountedConfigMap(t *testing.T) {
	box := e2e.NewBox(t)
	mount := func(number int) string {
		t.Helper()
		dir := "..2026_" + string(rune('a'+number))
		content := e2e.Numbered(model, number, "").Bytes(t)
		box.Put(t, filepath.Join(dir, file), content)
		link(t, dir, filepath.Join(box.Store, "..data"))
		return e2e.Digest(content)
	}
	mount(0)
	link(t, filepath.Join("..data", file), filepath.Join(box.Store, file))
	s := start(t, box)
	requireAnswer(t, s, predict, 0)
	load := s.StartLoad(t, e2e.LoadOptions{Clients: 2, Path: predict})
	for number := 1; number <= 3; number++ {
		digest := mount(number)
		if err := os.RemoveAll(filepath.Join(box.Store, "..2026_"+string(rune('a'+number-1)))); err != nil {
			t.Fatal(err)
		}
		s.RequireServing(t, model, digest)
		requireAnswer(t, s, predict, number)
	}
	if all := s.Models(t); len(all) != 1 {
		t.Errorf("models %+v, want one", all)
	}
	requireFlawless(t, load)
}

// TestStoreThatComesAndGoes takes the whole store away, and all its files at once, as an unmounted disk does, while requests flow.
func TestStoreThatComesAndGoes(t *testing.T) {
	box := e2e.NewBox(t)
	put(t, box, model, 0)
	put(t, box, "second", 50)
	s := start(t, box, "model_store_removal_delay", "1", "model_store_poll", "1")
	requireAnswer(t, s, predict, 0)
	requireAnswer(t, s, "/predictions/second", 50)
	load := s.StartLoad(t, e2e.LoadOptions{Clients: 2, Path: predict})
	away := box.Store + ".away"
	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	rename(box.Store, away)
	e2e.Pause(t.Context(), 4*time.Second)
	requireAnswer(t, s, "/predictions/second", 50)
	rename(away, box.Store)
	s.RequireServing(t, model, put(t, box, model, 1))

	rename(box.Store, away)
	if err := os.Mkdir(box.Store, 0o700); err != nil {
		t.Fatal(err)
	}
	e2e.Pause(t.Context(), 4*time.Second)
	requireAnswer(t, s, predict, 1)
	requireAnswer(t, s, "/predictions/second", 50)
	if err := os.Remove(box.Store); err != nil {
		t.Fatal(err)
	}
	rename(away, box.Store)
	s.RequireServing(t, model, put(t, box, model, 2))
	requireAnswer(t, s, predict, 2)
	if kinds := e2e.Kinds(s.Events(t, "")); kinds["unregistered"] > 0 {
		t.Errorf("events by kind %v: something was unregistered: %s", kinds, e2e.Lines(s.Events(t, "")))
	}
	requireFlawless(t, load)
}

// TestVersionFolders has folders of versions: a later one becomes the default when it serves, the earlier one can be asked by its name, and the
// later one's removal brings the earlier one back.
func TestVersionFolders(t *testing.T) {
	box := e2e.NewBox(t)
	folder := func(version string, number int) {
		t.Helper()
		hidden := filepath.Join(box.Store, ".next")
		e2e.Numbered(model, number, "").WriteFolder(t, hidden)
		if err := os.MkdirAll(filepath.Join(box.Store, model), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(hidden, filepath.Join(box.Store, model, version)); err != nil {
			t.Fatal(err)
		}
	}
	folder("1", 1)
	s := start(t, box, "model_store_removal_delay", "1", "model_store_folder_settle", "500")
	requireAnswer(t, s, predict, 1)
	load := s.StartLoad(t, e2e.LoadOptions{Clients: 2, Path: predict})
	folder("2", 2)
	requireAnswer(t, s, predict, 2)
	requireAnswer(t, s, predict+"/1", 1)
	requireAnswer(t, s, predict+"/2", 2)
	box.Put(t, filepath.Join(model, "10", "any.mar"), e2e.Numbered(model, 10, "").Bytes(t)) // numbers, not words: 10 is after 2
	requireAnswer(t, s, predict, 10)
	samples := load.Stop()
	e2e.RequireNoFailure(t, samples)
	e2e.RequireFresh(t, samples, nil)

	load = s.StartLoad(t, e2e.LoadOptions{Clients: 2, Path: predict})
	if err := os.RemoveAll(filepath.Join(box.Store, model, "10")); err != nil {
		t.Fatal(err)
	}
	requireAnswer(t, s, predict, 2)
	e2e.RequireNoFailure(t, load.Stop())
	if !e2e.Eventually(patience, func() bool { _, there := s.Model(t, model, "10"); return !there }) {
		t.Error("the removed version is still there")
	}
}

// TestRemovalUnregisters removes the archive: the model goes after the delay, and not when the archive is back in time.
func TestRemovalUnregisters(t *testing.T) {
	box := e2e.NewBox(t)
	put(t, box, "stays", 50) // a store that becomes empty looks like an unmounted one
	put(t, box, model, 0)
	s := start(t, box, "model_store_removal_delay", "2")
	requireAnswer(t, s, predict, 0)
	remove := func() {
		t.Helper()
		if err := os.Remove(filepath.Join(box.Store, file)); err != nil {
			t.Fatal(err)
		}
	}
	load := s.StartLoad(t, e2e.LoadOptions{Clients: 2, Path: predict})
	remove()
	e2e.Pause(t.Context(), time.Second)
	s.RequireServing(t, model, put(t, box, model, 1))
	requireFlawless(t, load)

	load = s.StartLoad(t, e2e.LoadOptions{Clients: 2, Path: predict})
	remove()
	began := time.Now()
	gone := func() bool { _, there := s.Model(t, model, ""); return !there }
	if !e2e.Eventually(patience, gone) || time.Since(began) < 2*time.Second {
		t.Errorf("the model is there %v: %v; want it to go after the delay of 2 s", time.Since(began), !gone())
	}
	for _, sample := range e2e.Failures(load.Stop()) {
		if sample.Status != http.StatusNotFound {
			t.Errorf("a request beside the removal failed: %+v", sample)
			break
		}
	}
	event := requireEvent(t, s, "", "unregistered")
	if event.Who != "store" || !strings.Contains(event.Why, file) {
		t.Errorf("the event is %s; want who and which file", e2e.Lines([]e2e.Event{event}))
	}
	put(t, box, model, 2)
	requireAnswer(t, s, predict, 2)
	requireAnswer(t, s, "/predictions/stays", 50)
}

// TestMigratorKeepsRemovedModels is about the torchserve command, where a removed file changes nothing, and a changed one is taken.
func TestMigratorKeepsRemovedModels(t *testing.T) {
	box := e2e.NewBox(t)
	put(t, box, "stays", 50)
	put(t, box, model, 0)
	s := migrated(t, box, "model_store_removal_delay", "1")
	requireAnswer(t, s, predict, 0)
	load := s.StartLoad(t, e2e.LoadOptions{Clients: 2, Path: predict})
	s.RequireServing(t, model, put(t, box, model, 1))
	requireAnswer(t, s, predict, 1)
	if err := os.Remove(filepath.Join(box.Store, file)); err != nil {
		t.Fatal(err)
	}
	e2e.Pause(t.Context(), 4*time.Second)
	requireAnswer(t, s, predict, 1)
	requireFlawless(t, load)
	put(t, box, "late", 7) // `all` means the whole store, later files too
	requireAnswer(t, s, "/predictions/late", 7)
}

// TestMigratorWatchesWhatItLoaded names one model at the start: that one is followed, and a new file is not taken. With the switch off nothing is.
func TestMigratorWatchesWhatItLoaded(t *testing.T) {
	for _, on := range []string{"true", "false"} {
		t.Run("watch_model_store="+on, func(t *testing.T) {
			box := e2e.NewBox(t)
			put(t, box, model, 0)
			s := box.Start(t, e2e.Options{
				Args: []string{"--models", "m=" + file}, Config: pairs([]string{"watch_model_store", on, "model_store_poll", "1"}),
			})
			requireAnswer(t, s, predict, 0)
			put(t, box, "late", 7)
			put(t, box, model, 1)
			if on == "true" {
				requireAnswer(t, s, predict, 1)
			}
			e2e.Pause(t.Context(), 3*time.Second)
			if got := answer(t, s, predict); (got == "1") != (on == "true") {
				t.Errorf("answer %s", got)
			}
			s.MustAsk(t, http.StatusNotFound, http.MethodPost, s.Inference+"/predictions/late", []byte("x"), "Content-Type", octets)
		})
	}
}

// TestTwoFilesOfOneModel has two files that say the same name and version: one of them serves, the other one is told about, and the two do not
// take turns.
func TestTwoFilesOfOneModel(t *testing.T) {
	box := e2e.NewBox(t)
	for i, name := range []string{"a.mar", "b.mar"} {
		box.Put(t, name, e2e.Numbered(model, i+1, "").Bytes(t))
	}
	s := start(t, box, "model_store_poll", "1", "model_store_removal_delay", "1")
	requireAnswer(t, s, predict, 1)
	e2e.Pause(t.Context(), 4*time.Second)
	if m, _ := s.Model(t, model, ""); m.Generation != 1 || answer(t, s, predict) != "1" || m.Source != "a.mar" {
		t.Errorf("the two files take turns: %+v", m)
	}
	if e := s.InStore(t, "b.mar"); !strings.Contains(e.Why, "a.mar") {
		t.Errorf("the list of the store does not say that b.mar waits behind a.mar: %+v", e)
	}
	if err := os.Remove(filepath.Join(box.Store, "a.mar")); err != nil {
		t.Fatal(err)
	}
	requireAnswer(t, s, predict, 2)
}

// TestVersionInTheManifestChanges has the same file say another version: that one serves, becomes the default, and the earlier one goes.
func TestVersionInTheManifestChanges(t *testing.T) {
	box := e2e.NewBox(t)
	put(t, box, model, 1)
	s := start(t, box, "model_store_removal_delay", "1")
	requireAnswer(t, s, predict, 1)
	load := s.StartLoad(t, e2e.LoadOptions{Clients: 2, Path: predict})
	next := e2e.Numbered(model, 2, "")
	next.Version = "2.0"
	box.Put(t, file, next.Bytes(t))
	requireAnswer(t, s, predict, 2)
	requireAnswer(t, s, predict+"/2.0", 2)
	if !e2e.Eventually(patience, func() bool { _, there := s.Model(t, model, "1.0"); return !there }) {
		t.Errorf("version 1.0, which no file has any more, still runs: %+v", s.Models(t))
	}
	requireFlawless(t, load)
}

// TestSwapInPlace has a model that ends its old workers first: requests wait meanwhile, and none fails.
func TestSwapInPlace(t *testing.T) {
	box := e2e.NewBox(t)
	place := func(number int, begin string) string {
		t.Helper()
		a := e2e.Numbered(model, number, begin)
		a.Config = "swap: in_place\n"
		content := a.Bytes(t)
		box.Put(t, file, content)
		return e2e.Digest(content)
	}
	place(0, "")
	s := start(t, box)
	requireAnswer(t, s, predict, 0)
	load := s.StartLoad(t, e2e.LoadOptions{Clients: 4, Path: predict})
	for number := 1; number <= 3; number++ {
		digest := place(number, "time.sleep(0.5)")
		most := 0
		if !e2e.Eventually(patience, func() bool {
			most = max(most, len(box.Workers(t)))
			return s.Serving(t, model, digest)
		}) {
			t.Fatalf("%d never served: %s", number, e2e.Lines(s.Events(t, "")))
		}
		if most > 1 {
			t.Errorf("%d workers while one replaced the other in place", most)
		}
	}
	bad := place(1000, `raise ValueError("planted")`)
	if event := requireEvent(t, s, bad, "swap_failed"); !strings.Contains(event.Reason, "planted") {
		t.Errorf("the reason is %q", event.Reason)
	}
	requireAnswer(t, s, predict, 3) // the earlier archive is started again
	s.RequireServing(t, model, place(4, ""))
	requireAnswer(t, s, predict, 4)
	samples := load.Stop()
	e2e.RequireNoFailure(t, samples)
	e2e.RequireFresh(t, samples, nil)
	if m, _ := s.Model(t, model, ""); m.Swap != "in_place" {
		t.Errorf("the model list says swap %q", m.Swap)
	}
}
