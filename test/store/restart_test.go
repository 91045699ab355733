package store

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// TestKilledServerServesWhatIsInTheStore kills the server with everything that it started, at random moments while models are swapped. Each time the
// next server serves what the store has, knows all that its predecessors told, and leaves nothing of theirs behind.
func TestKilledServerServesWhatIsInTheStore(t *testing.T) {
	rounds := long(t, "FLAMBEAU_KILLS", 4)
	box := e2e.NewBox(t)
	number := 0
	put(t, box, model, number)
	var known []e2e.Event
	for round := range rounds {
		s := start(t, box)
		requireAnswer(t, s, predict, number)
		events := s.Events(t, "")
		requireContinued(t, known, events)
		until := time.Now().Add(300*time.Millisecond + rand.N(time.Second)) //nolint:gosec // no secret
		var digest string
		for time.Now().Before(until) {
			number++
			digest = put(t, box, model, number)
			e2e.Eventually(time.Until(until), func() bool { return s.Serving(t, model, digest) })
		}
		known = s.Events(t, "")
		s.Kill(t)
		if !e2e.Eventually(5*time.Second, func() bool { return len(box.Processes(t)) == 0 }) {
			t.Errorf("round %d: processes %v outlive the server", round, box.Processes(t))
		}
		requireJSON(t, box)
	}
	s := start(t, box)
	requireAnswer(t, s, predict, number)
	requireContinued(t, known, s.Events(t, ""))
	if entries := s.Resources(t).TempFiles; entries > 20 {
		t.Errorf("%d temporary files; those of %d killed servers seem to be there", entries, rounds)
	}
}

// requireContinued checks that what was told before is told still, and that nothing was told twice. The last event before a SIGKILL may be lost.
func requireContinued(t *testing.T, before, now []e2e.Event) {
	t.Helper()
	for i, e := range now {
		if i > 0 && e.ID <= now[i-1].ID {
			t.Errorf("event %d comes after event %d", e.ID, now[i-1].ID)
		}
	}
	for i, e := range before {
		if at := slices.IndexFunc(now, func(n e2e.Event) bool { return n.ID == e.ID }); at < 0 || now[at] != e {
			t.Errorf("of %d events that were told before the kill, number %d is not told after it: %s, now %s", len(before), i+1, e2e.Lines(before[i:i+1]),
				e2e.Lines(now))
			return
		}
	}
}

// requireJSON reads the files of state that a killed server left: each is whole, but for the last line of a log.
func requireJSON(t *testing.T, box *e2e.Box) {
	t.Helper()
	err := filepath.WalkDir(box.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".json" {
			return err
		}
		text, err := os.ReadFile(path) //nolint:gosec // a folder of this test
		if err == nil && !json.Valid(text) {
			t.Errorf("%s was left torn: %q", path, text)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestRollbackHoldsOverRestarts goes back to the earlier archive by the command: it serves without a failed request, the store's file is left alone,
// a restart changes nothing, and the next archive that comes is taken. The history tells it all.
func TestRollbackHoldsOverRestarts(t *testing.T) {
	box := e2e.NewBox(t)
	put(t, box, model, 1)
	s := start(t, box)
	requireAnswer(t, s, predict, 1)
	load := s.StartLoad(t, e2e.LoadOptions{Clients: 2, Path: predict})
	second := put(t, box, model, 2)
	s.RequireServing(t, model, second)
	box.Flambeau(t, "rollback", model, "--yes", "--url", s.Management)
	requireAnswer(t, s, predict, 1)
	e2e.Pause(t.Context(), 2*time.Second) // the store's file must not come back
	requireAnswer(t, s, predict, 1)
	e2e.RequireNoFailure(t, load.Stop())
	before := s.History(t, model)
	s.Stop(t)

	s = start(t, box)
	requireAnswer(t, s, predict, 1)
	e2e.Pause(t.Context(), 2*time.Second)
	if got := answer(t, s, predict); got != "1" {
		t.Errorf("answer %s after a restart, want that of the archive that was rolled back to", got)
	}
	after := s.History(t, model)
	if len(after) < len(before) || !slices.Equal(after[:len(before)], before) {
		t.Errorf("the history before the restart %s\nand after it %s", e2e.Lines(before), e2e.Lines(after))
	}
	if kinds := e2e.Kinds(after); kinds["registered"] == 0 || kinds["swapped"] == 0 || kinds["rolled_back"] == 0 {
		t.Errorf("the history's kinds are %v", kinds)
	}
	for _, e := range after {
		if e.Who == "" || e.At.IsZero() || e.Digest == "" && e.Kind != "unregistered" {
			t.Errorf("the history does not say who, when or what: %s", e2e.Lines([]e2e.Event{e}))
		}
	}
	if told := box.Flambeau(t, "history", model, "--url", s.Management); !strings.Contains(told, "rolled_back") && !strings.Contains(told, "rolled back") {
		t.Errorf("flambeau history:\n%s", told)
	}
	s.RequireServing(t, model, put(t, box, model, 3))
	requireAnswer(t, s, predict, 3)
}

// TestUnregisteredByHandStaysAway unregisters a watched model over the API: neither a restart nor a look at the store brings it back, a changed file does.
func TestUnregisteredByHandStaysAway(t *testing.T) {
	box := e2e.NewBox(t)
	put(t, box, model, 1)
	put(t, box, "second", 50)
	s := start(t, box, "model_store_poll", "1")
	requireAnswer(t, s, predict, 1)
	s.MustAsk(t, http.StatusOK, http.MethodDelete, s.Management+"/models/"+model, nil)
	away := func() {
		t.Helper()
		e2e.Pause(t.Context(), 3*time.Second)
		if m, there := s.Model(t, model, ""); there {
			t.Errorf("it is back: %+v", m)
		}
		if e := s.InStore(t, file); e.Why == "" {
			t.Errorf("the list of the store does not say why %s does not serve: %+v", file, e)
		}
	}
	away()
	s.Stop(t)
	s = start(t, box, "model_store_poll", "1")
	requireAnswer(t, s, "/predictions/second", 50)
	away()
	s.RequireServing(t, model, put(t, box, model, 2))
	requireAnswer(t, s, predict, 2)
}

// TestRegisterBesideTheWatcher posts a model that the store's watcher has loaded already: the first time that is taken as it is, and its parameters
// count; the second time it is TorchServe's conflict.
func TestRegisterBesideTheWatcher(t *testing.T) {
	box := e2e.NewBox(t)
	put(t, box, model, 1)
	s := start(t, box)
	requireAnswer(t, s, predict, 1)
	url := s.Management + "/models?url=" + file + "&batch_size=3&max_batch_delay=7&initial_workers=1&synchronous=true"
	s.MustAsk(t, http.StatusOK, http.MethodPost, url, nil)
	var described []struct {
		BatchSize     int `json:"batchSize"`
		MaxBatchDelay int `json:"maxBatchDelay"`
	}
	text := s.MustAsk(t, http.StatusOK, http.MethodGet, s.Management+"/models/"+model, nil).Body
	if err := json.Unmarshal(text, &described); err != nil || len(described) != 1 || described[0].BatchSize != 3 || described[0].MaxBatchDelay != 7 {
		t.Errorf("the parameters do not count: %v %s", err, text)
	}
	s.MustAsk(t, http.StatusConflict, http.MethodPost, url, nil)
	s.RequireServing(t, model, put(t, box, model, 2))
	requireAnswer(t, s, predict, 2)
}

// TestDefaultSetByHandHolds sets the default version by hand: later versions do not take it, also after a restart.
func TestDefaultSetByHandHolds(t *testing.T) {
	box := e2e.NewBox(t)
	version := func(number int) {
		t.Helper()
		a := e2e.Numbered(model, number, "")
		a.Version = strconv.Itoa(number)
		box.Put(t, fmt.Sprintf("m-%d.mar", number), a.Bytes(t))
	}
	version(1)
	version(2)
	s := start(t, box)
	requireAnswer(t, s, predict, 2)
	requireAnswer(t, s, predict+"/1", 1)
	s.MustAsk(t, http.StatusOK, http.MethodPut, s.Management+"/models/"+model+"/1/set-default", nil)
	version(3)
	requireAnswer(t, s, predict+"/3", 3)
	requireAnswer(t, s, predict, 1)
	s.Stop(t)
	s = start(t, box)
	for number := 1; number <= 3; number++ {
		requireAnswer(t, s, fmt.Sprintf("%s/%d", predict, number), number)
	}
	if got := answer(t, s, predict); got != "1" {
		t.Errorf("the default answers %s after a restart, want 1, which was set by hand", got)
	}
}
