package ledger

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func ids(records []Record) []uint64 {
	all := []uint64{}
	for _, r := range records {
		all = append(all, r.ID)
	}
	return all
}

func TestAcrossRestarts(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "b")
	l := open(t, Options{Dir: dir})
	first := l.Add(Record{
		Model: "m", Version: "1.0", Kind: "registered", Generation: 1, Digest: "sha256:ab", Source: "m.mar", Who: "start", Why: "load_models", Took: 1500 * time.Millisecond,
		Steps: []Step{{"open", 20 * time.Millisecond}, {"load", time.Second}},
	})
	l.Add(Record{Model: "m", Version: "1.0", Kind: "worker_failed", Reason: "it said\n\"no\""})
	l.Add(Record{Model: "m", Version: "1.0", Kind: "scaled", Who: "autoscale", Reason: "1 → 2 workers"}) // it comes and goes
	third := l.Add(Record{Model: "n", Version: "2", Kind: "unregistered", Who: "api (10.0.0.7)"})
	if err := l.Change(func(s *State) { s.Defaults["m"] = "1.0" }); err != nil {
		t.Fatal(err)
	}
	before := l.Events(Filter{})
	shut(t, l)

	l = open(t, Options{Dir: dir})
	if diff := cmp.Diff(before, l.Events(Filter{})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]Record{first, third}, l.History("", 0)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]Record{first}, l.History("m", 0)); diff != "" {
		t.Error(diff)
	}
	if got := l.Add(Record{Kind: "swapped"}).ID; got != third.ID+1 {
		t.Errorf("after an orderly end the next ID is %d, want %d", got, third.ID+1)
	}
	if got := l.State().Defaults["m"]; got != "1.0" {
		t.Errorf("the default is %q", got)
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v, %v", info.Mode(), err)
	}
}

func TestFilters(t *testing.T) {
	t.Parallel()
	l := open(t, Options{})
	for i := range 10 {
		l.Add(Record{Model: fmt.Sprint("m", i%2), Version: strconv.Itoa(i % 3), Kind: []string{"swapped", "drained"}[i/5]})
	}
	tests := []struct {
		name   string
		filter Filter
		want   []uint64
	}{
		{"all", Filter{}, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
		{"newest", Filter{Limit: 3}, []uint64{8, 9, 10}},
		{"after", Filter{After: 4, Limit: 3}, []uint64{5, 6, 7}},
		{"after, all", Filter{After: 8}, []uint64{9, 10}},
		{"after the last", Filter{After: 10}, []uint64{}},
		{"model", Filter{Model: "m1", Limit: 2}, []uint64{8, 10}},
		{"model after", Filter{Model: "m1", After: 2, Limit: 2}, []uint64{4, 6}},
		{"version", Filter{Model: "m0", Version: "2"}, []uint64{3, 9}},
		{"kind", Filter{Kind: "drained", Limit: 1}, []uint64{10}},
		{"nobody", Filter{Model: "x"}, []uint64{}},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, ids(l.Events(tt.filter))); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
	if diff := cmp.Diff([]uint64{4, 5}, ids(l.History("", 2))); diff != "" {
		t.Error(diff)
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	r := Record{
		ID: 7, At: time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC), Model: "m", Version: "1.0", Kind: "swapped", Generation: 2, Who: "store", Took: 1234567 * time.Microsecond,
		Steps: []Step{{"load", 1234 * time.Microsecond}},
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"id":7,"at":"2026-01-02T03:04:05.678Z","model":"m","version":"1.0","kind":"swapped","generation":2,"who":"store","took_ms":1234.567,` +
		`"steps":[{"name":"load","took_ms":1.234}]}`
	if string(text) != want {
		t.Errorf("%s\nwant %s", text, want)
	}
	var back Record
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, back); diff != "" {
		t.Error(diff)
	}
}

func TestBoundedRecord(t *testing.T) {
	t.Parallel()
	l := open(t, Options{Dir: t.TempDir()})
	r := l.Add(Record{Kind: "refused", Model: strings.Repeat("é", 5000), Reason: strings.Repeat("x", 1<<20) + "\xff", Steps: make([]Step, 1000)})
	if len(r.Model) > mostName || len(r.Reason) > mostReason || len(r.Steps) > mostSteps || !strings.HasSuffix(r.Model, "é…") {
		t.Errorf("%d, %d, %d, %q", len(r.Model), len(r.Reason), len(r.Steps), r.Model[len(r.Model)-8:])
	}
}

// TestBoundedSize adds many more records than are kept: memory and files stay bounded, the newest are there, and a worker that dies over and over does not
// push the history out.
func TestBoundedSize(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const keep = 100
	l := open(t, Options{Dir: dir, MaxEvents: keep})
	l.Add(Record{Model: "m", Kind: "registered"})
	var last Record
	for i := range 20 * keep {
		last = l.Add(Record{Model: "m", Kind: "worker_failed", Reason: strconv.Itoa(i)})
		if i%37 == 0 {
			l.Events(Filter{Limit: 1}) // waits until it is written
		}
	}
	if n := len(l.Events(Filter{})); n < keep || n > 2*keep {
		t.Errorf("%d events in memory", n)
	}
	shut(t, l)
	l = open(t, Options{Dir: dir, MaxEvents: keep})
	events := l.Events(Filter{})
	if len(events) < keep/2 || len(events) > 2*keep || events[len(events)-1].ID != last.ID {
		t.Errorf("%d events after a restart, the last is %d, want %d", len(events), events[len(events)-1].ID, last.ID)
	}
	if got := l.History("m", 0); len(got) != 1 || got[0].Kind != "registered" {
		t.Errorf("the history is %v", got)
	}
	for _, name := range []string{"events.jsonl", "events.1.jsonl"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() > 200*keep {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

func TestMaxBytes(t *testing.T) {
	t.Parallel()
	s := newStream(t.TempDir(), "events", 1000)
	s.maxBytes = 3000
	for i := range 100 {
		s.add([]Record{{ID: uint64(i + 1), Kind: "swapped", Reason: strings.Repeat("x", 500)}})
		if err := s.flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{s.path, s.old} {
		if info, err := os.Stat(path); err != nil || info.Size() > 4000 {
			t.Errorf("%v, %v", info, err)
		}
	}
	if records, bad, err := s.load(); err != nil || bad > 0 || records[len(records)-1].ID != 100 {
		t.Errorf("%d records, %d bad, %v", len(records), bad, err)
	}
}

// TestSecondServer: the folder is the first one's, and the second one keeps nothing of its own in it.
func TestSecondServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := open(t, Options{Dir: dir})
	if err := first.Change(func(s *State) { s.Defaults["m"] = "first" }); err != nil {
		t.Fatal(err)
	}
	var log lines
	second := open(t, Options{Dir: dir, Logger: log.logger()})
	if second.Dir() != "" || !strings.Contains(log.String(), "state_dir") || !strings.Contains(log.String(), "another server has it") {
		t.Errorf("folder %q, log: %s", second.Dir(), &log)
	}
	if len(second.State().Defaults) > 0 {
		t.Error("it has the state of another server")
	}
	second.Add(Record{Model: "x", Kind: "swapped"})
	if err := second.Change(func(s *State) { s.Defaults["m"] = "second" }); err != nil {
		t.Fatal(err)
	}
	if second.State().Defaults["m"] != "second" || len(second.Events(Filter{})) != 1 {
		t.Error("it does not work in memory")
	}
	shut(t, second)
	shut(t, first)
	third := open(t, Options{Dir: dir})
	if third.Dir() == "" || third.State().Defaults["m"] != "first" || len(third.Events(Filter{})) > 0 {
		t.Errorf("folder %q, %v, %v", third.Dir(), third.State().Defaults, third.Events(Filter{}))
	}
}

// TestUnusableFolder: the server starts, with a warning.
func TestUnusableFolder(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var log lines
	l := open(t, Options{Dir: filepath.Join(path, "x"), Logger: log.logger()})
	if l.Dir() != "" || !strings.Contains(log.String(), "in memory only") {
		t.Errorf("folder %q, log: %s", l.Dir(), &log)
	}
	if _, err := Open(Options{}); err == nil {
		t.Error("without a logger: no error")
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, Options{Dir: dir})
	var all sync.WaitGroup
	const each = 50
	for i := range 8 {
		all.Go(func() {
			for n := range each {
				l.Add(Record{Model: strconv.Itoa(i), Kind: "swapped", Generation: n})
				if err := l.Change(func(s *State) { s.Scaled["m"] = Scale{Min: s.Scaled["m"].Min + 1} }); err != nil {
					t.Error(err)
				}
				l.Events(Filter{Limit: 3})
				l.History("1", 2)
				l.State()
			}
		})
	}
	all.Wait()
	shut(t, l)
	l = open(t, Options{Dir: dir})
	got := ids(l.Events(Filter{}))
	if len(got) != 8*each || !slices.IsSorted(got) || got[0] != 1 || got[len(got)-1] != 8*each {
		t.Errorf("%d events, %v", len(got), got)
	}
	if n := l.State().Scaled["m"].Min; n != 8*each {
		t.Errorf("the state says %d", n)
	}
}

// TestAfterClose: late records and changes do not reach a folder that another server may have.
func TestAfterClose(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, Options{Dir: dir})
	shut(t, l)
	next := open(t, Options{Dir: dir})
	l.Add(Record{Kind: "swapped"})
	if err := l.Change(func(s *State) { s.Defaults["m"] = "late" }); err != nil {
		t.Fatal(err)
	}
	shut(t, l)
	shut(t, next)
	next = open(t, Options{Dir: dir})
	if len(next.Events(Filter{})) > 0 || len(next.State().Defaults) > 0 {
		t.Errorf("%v, %v", next.Events(Filter{}), next.State())
	}
}

// TestStateOfBefore reads a file that was written before the earlier default versions were kept.
func TestStateOfBefore(t *testing.T) {
	s, err := decodeState([]byte(`{"format": 1, "state": {"ignored": {}, "defaults": {"m": "2"}, "traffic": null, "kept": null, "pinned": {}, "scaled": {}}}`))
	if err != nil || s.Defaults["m"] != "2" || s.Earlier == nil {
		t.Fatalf("%+v, %v", s, err)
	}
	s.Earlier["m"] = "1"
	data, err := encodeState(s.clone())
	if err != nil {
		t.Fatal(err)
	}
	if again, err := decodeState(data); err != nil || again.Earlier["m"] != "1" {
		t.Errorf("%+v, %v", again, err)
	}
}
