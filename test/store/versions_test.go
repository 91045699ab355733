package store

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// changing changes the default version of the model under load, and notes what is in force when.
type changing struct {
	box    *e2e.Box
	server *e2e.Server
	load   *e2e.Load
	phases []e2e.Phase
}

// begin starts a server on the box's store, in which version 1 is, and the load.
func begin(t *testing.T, box *e2e.Box, config ...string) *changing {
	t.Helper()
	c := &changing{box: box, server: start(t, box, config...)}
	requireAnswer(t, c.server, predict, 1)
	c.load = c.server.StartLoad(t, e2e.LoadOptions{Clients: 8, Path: predict})
	c.phases = []e2e.Phase{{Number: 1}}
	return c
}

// to makes a change, and waits until the server says that a version is the default one and serves. A version answers with its number.
func (c *changing) to(t *testing.T, version int, change func()) {
	t.Helper()
	phase := e2e.Phase{Number: version, Asked: c.load.Now()}
	change()
	if !e2e.Eventually(patience, func() bool {
		m, there := c.server.Model(t, model, "")
		return there && m.Version == strconv.Itoa(version) && m.State == "serving" && m.Updating == nil
	}) {
		m, _ := c.server.Model(t, model, "")
		t.Fatalf("version %d is not the default one that serves: %+v; %d requests failed; %s", version, m, c.load.Failed(), e2e.Lines(c.server.Events(t, "")))
	}
	phase.Done = c.load.Now()
	c.phases = append(c.phases, phase)
}

// rollback goes back from a version to the one before, by the command.
func (c *changing) rollback(t *testing.T, version int) {
	t.Helper()
	c.to(t, version-1, func() { c.box.Flambeau(t, "rollback", model, "--yes", "--url", c.server.Management) })
}

// end stops the load, and checks all that the clients saw.
func (c *changing) end(t *testing.T, changes, rollbacks int) {
	t.Helper()
	last := c.phases[len(c.phases)-1].Number
	requireAnswer(t, c.server, predict, last)
	samples := c.load.Stop()
	t.Logf("%d new versions and %d rollbacks in %.1f s; %d requests, %d failed, %d outdated answers; %s", changes, rollbacks, c.phases[len(c.phases)-1].Done.Seconds(),
		len(samples), len(e2e.Failures(samples)), len(e2e.Outdated(samples, c.phases)), e2e.Latencies(samples, 0, time.Hour))
	e2e.RequireNoFailure(t, samples)
	e2e.RequireInPhase(t, samples, c.phases)
	kinds := e2e.Kinds(c.server.Events(t, "model="+model))
	if kinds["rolled_back"] != rollbacks || kinds["registered"] < changes+1 || kinds["swap_failed"]+kinds["refused"] > 0 {
		t.Errorf("events by kind %v; want %d rollbacks, a registration of each of %d versions, and no failure", kinds, rollbacks, changes+1)
	}
}

// every is how many new versions there are for each rollback.
const every = 4

// TestManifestVersionsUnderLoad writes new content into the same file again and again, whose manifest says a new version each time, and rolls one in four of them back.
// The version before is what a rollback brings, and what lies in the store comes back with its next change only.
func TestManifestVersionsUnderLoad(t *testing.T) {
	changes := long(t, "FLAMBEAU_VERSIONS", 12)
	box := e2e.NewBox(t)
	put := func(version int) {
		t.Helper()
		a := e2e.Numbered(model, version, "")
		a.Version = strconv.Itoa(version)
		box.Put(t, file, a.Bytes(t))
	}
	put(1)
	c := begin(t, box, "model_store_settle", "40")
	e2e.Eventually(patience, func() bool { return len(box.Processes(t)) == 2 }) // the start's own have ended
	before, rollbacks := c.server.Resources(t), 0
	for version := 2; version <= changes+1; version++ {
		c.to(t, version, func() { put(version) })
		if version%every == 0 {
			c.rollback(t, version)
			rollbacks++
		}
	}
	c.end(t, changes, rollbacks)
	if !e2e.Eventually(patience, func() bool { return len(c.server.Models(t)) == 1 }) {
		t.Errorf("more than the last version is left: %+v", c.server.Models(t))
	}
	requireSame(t, before, settled(t, c.server, before))
}

// TestVersionFoldersUnderLoad has folders of versions appear one after the other, older ones removed, and one in four of the new ones rolled back: the default version is the
// greatest one that was not rolled back.
func TestVersionFoldersUnderLoad(t *testing.T) {
	const kept = 3
	changes := long(t, "FLAMBEAU_VERSIONS", 12)
	box := e2e.NewBox(t)
	folder := func(version int) string { return filepath.Join(box.Store, model, strconv.Itoa(version)) }
	put := func(version int) {
		t.Helper()
		hidden := filepath.Join(box.Store, ".next")
		e2e.Numbered(model, version, "").WriteFolder(t, hidden)
		if err := os.MkdirAll(filepath.Dir(folder(version)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(hidden, folder(version)); err != nil {
			t.Fatal(err)
		}
	}
	put(1)
	c := begin(t, box, "model_store_folder_settle", "100", "model_store_removal_delay", "1")
	rollbacks := 0
	for version := 2; version <= changes+1; version++ {
		c.to(t, version, func() { put(version) })
		if version%every == 0 {
			c.rollback(t, version)
			rollbacks++
		}
		if old := version - kept; old >= 1 {
			if err := os.RemoveAll(folder(old)); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.end(t, changes, rollbacks)
	if !e2e.Eventually(patience, func() bool { return len(c.server.Models(t)) <= kept }) {
		t.Errorf("more than %d versions are left: %+v", kept, c.server.Models(t))
	}
	if !e2e.Eventually(patience, func() bool { return len(box.Workers(t)) <= kept }) {
		t.Errorf("workers %v are left", box.Workers(t))
	}
}

// TestOutdated: the judge of these tests finds what is wrong.
func TestOutdated(t *testing.T) {
	t.Parallel()
	const s = time.Second
	phases := []e2e.Phase{{Number: 1}, {Number: 2, Asked: 10 * s, Done: 12 * s}, {Number: 1, Asked: 20 * s, Done: 22 * s}, {Number: 3, Asked: 30 * s, Done: 32 * s}}
	for _, tt := range []struct {
		sent, received time.Duration
		right          []int
	}{
		{1 * s, 2 * s, []int{1}},
		{9 * s, 11 * s, []int{1, 2}},
		{11 * s, 13 * s, []int{1, 2}}, // it may have been under way before the change was done
		{13 * s, 14 * s, []int{2}},
		{13 * s, 21 * s, []int{1, 2}},
		{23 * s, 24 * s, []int{1}},
		{33 * s, 34 * s, []int{3}},
	} {
		for number := 1; number <= 3; number++ {
			wrong := len(e2e.Outdated([]e2e.Sample{{Sent: tt.sent, Received: tt.received, Number: number}}, phases)) > 0
			want := true
			for _, right := range tt.right {
				want = want && number != right
			}
			if wrong != want {
				t.Errorf("%d, asked at %v and answered at %v, is outdated: %v", number, tt.sent, tt.received, wrong)
			}
		}
	}
}
