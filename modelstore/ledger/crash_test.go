package ledger

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/reexec"
)

// TestKilled kills a writer at random moments. Whatever it had said to be done in the state is there, and so is what it had told of the log, and
// identifiers grow.
// It runs alone: between its fork and its exec a new process holds the locks that other tests give up.
func TestKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	dir := t.TempDir()
	var lastID uint64
	lastState, rounds := 0, 25
	for round := range rounds {
		id, state := killWriter(t, dir, time.Duration(rand.IntN(60_000))*time.Microsecond) //nolint:gosec // any moment will do
		lastID, lastState = max(lastID, id), max(lastState, state)
		var log lines
		l, err := Open(Options{Dir: dir, Logger: log.logger(), MaxEvents: 200})
		if err != nil {
			t.Fatal(err)
		}
		if l.Dir() == "" || strings.Contains(log.String(), "level=ERROR") {
			t.Fatalf("round %d: %s", round, &log)
		}
		got := l.State().Scaled["m/1.0"].Min
		if got < lastState || got > lastState+1 {
			t.Fatalf("round %d: the state is number %d, and number %d was done", round, got, lastState)
		}
		if kept := l.State().Kept; got > 0 && kept[len(kept)-1].Digest != strconv.Itoa(got) {
			t.Fatalf("round %d: half a state: %v", round, kept[len(kept)-1])
		}
		lastState = got
		if next := l.Add(Record{Kind: "registered"}); next.ID <= lastID {
			t.Fatalf("round %d: identifier %d comes after %d", round, next.ID, lastID)
		}
		events := l.Events(Filter{})
		if !slices.ContainsFunc(events, func(r Record) bool { return r.ID == id }) {
			t.Fatalf("round %d: record %d was told and is lost: %v", round, id, ids(events))
		}
		for _, r := range events {
			if r.Kind == "swapped" && !strings.HasSuffix(r.Reason, "é too") {
				t.Fatalf("round %d: half a record: %+v", round, r)
			}
		}
		lastID = events[len(events)-1].ID
		shut(t, l)
	}
	if lastState < rounds {
		t.Errorf("only %d changes in %d rounds: nothing was tested", lastState, rounds)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 7 {
		t.Errorf("what is left: %v, %v", entries, err)
	}
}

// killWriter runs a writer for a while, kills it, and gives what it had seen done last.
func killWriter(t *testing.T, dir string, after time.Duration) (id uint64, state int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], dir) //nolint:gosec // this test
	cmd.Env = append(os.Environ(), reexec.Env(writerMode), "GORACE=atexit_sleep_ms=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewScanner(out)
	var timer *time.Timer
	for reader.Scan() {
		if timer == nil { // from its first change on
			timer = time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
		}
		if _, err := fmt.Sscanf(reader.Text(), "id %d", &id); err == nil {
			continue
		}
		if _, err := fmt.Sscanf(reader.Text(), "state %d", &state); err != nil {
			t.Fatalf("%q", reader.Text())
		}
	}
	if err := cmd.Wait(); timer == nil {
		t.Fatalf("the writer: %v\n%s", err, &stderr)
	}
	return id, state
}

// TestTruncated cuts each file at every byte: what was whole is there, the rest is told, and the server starts.
func TestTruncated(t *testing.T) {
	t.Parallel()
	full := t.TempDir()
	l := open(t, Options{Dir: full})
	for i := range 5 {
		l.Add(Record{Model: "m", Version: "1.0", Kind: "swapped", Reason: fmt.Sprint("number ", i, " é")})
	}
	if err := l.Change(func(s *State) { s.Ignored["m.mar"] = Ignored{Digest: "sha256:12", Why: "unregistered by hand"} }); err != nil {
		t.Fatal(err)
	}
	events, state := l.Events(Filter{}), l.State()
	shut(t, l)
	text := read(t, full, "events.jsonl")
	for cut := range text {
		records, _, err := readRecords(bytes.NewReader(text[:cut]))
		if err != nil {
			t.Fatal(err)
		}
		whole := bytes.Count(text[:cut], []byte("\n"))
		if len(records) != whole && (len(records) != whole+1 || text[cut] != '\n') {
			t.Fatalf("cut at %d: %d records of %d lines", cut, len(records), whole)
		}
		if diff := cmp.Diff(events[:len(records)], append([]Record{}, records...)); diff != "" {
			t.Fatalf("cut at %d: %s", cut, diff)
		}
	}
	text = read(t, full, stateName)
	for cut := range len(text) - 1 { // all but its last line's end
		if got, err := decodeState(text[:cut]); err == nil {
			t.Fatalf("cut at %d: %+v", cut, got)
		}
	}
	dir := t.TempDir()
	for _, cut := range []int{0, 1, len(text) / 2, len(text) - 2} {
		for name, text := range map[string][]byte{stateName: text[:cut], "events.jsonl": read(t, full, "events.jsonl")[:cut], "history.jsonl": read(t, full, "history.jsonl")} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var log lines
		l := open(t, Options{Dir: dir, Logger: log.logger()})
		if len(l.State().Ignored) > 0 || !strings.Contains(log.String(), "cannot be read") {
			t.Errorf("cut at %d: %v, %s", cut, l.State().Ignored, &log)
		}
		if diff := cmp.Diff(text[:cut], read(t, dir, brokenName), cmp.Transformer("string", func(b []byte) string { return string(b) })); diff != "" {
			t.Errorf("cut at %d: what could not be read is not kept: %s", cut, diff)
		}
		if len(l.History("m", 0)) != 5 {
			t.Errorf("cut at %d: %d records in the history", cut, len(l.History("m", 0)))
		}
		added := l.Add(Record{Model: "m", Kind: "drained"})
		if err := l.Change(func(s *State) { *s = state }); err != nil {
			t.Fatal(err)
		}
		shut(t, l)
		l = open(t, Options{Dir: dir})
		if got := l.Events(Filter{Limit: 1}); len(got) != 1 || got[0].ID != added.ID {
			t.Errorf("cut at %d: after a torn line nothing can be written: %v", cut, got)
		}
		if diff := cmp.Diff(state, l.State()); diff != "" {
			t.Errorf("cut at %d: %s", cut, diff)
		}
		shut(t, l)
	}
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestFullDisk writes to a device that is always full, and to one that takes half of what it gets: the server is told once, nothing is lost that is kept, and
// nothing is there twice when there is space again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var log lines
		l, err := Open(Options{Dir: dir, Logger: log.logger()})
		if err != nil {
			t.Fatal(err)
		}
		var full atomic.Bool
		full.Store(true)
		l.eventLog.open = func(path string) (file, error) {
			f, err := openAppend(path)
			if err != nil || !full.Load() {
				return f, err
			}
			return halfFile{f}, nil
		}
		l.historyLog.open = func(path string) (file, error) {
			if full.Load() {
				return openAppend("/dev/full")
			}
			return openAppend(path)
		}
		for i := range 20 {
			l.Add(Record{Model: "m", Kind: "swapped", Generation: i + 1})
			time.Sleep(10 * time.Second)
			synctest.Wait()
		}
		if n := strings.Count(log.String(), "cannot be written"); n != 1 || !strings.Contains(log.String(), "no space left") {
			t.Errorf("it was told %d times: %s", n, &log)
		}
		full.Store(false)
		time.Sleep(mostPause)
		synctest.Wait()
		if !strings.Contains(log.String(), "written again") || !strings.Contains(log.String(), "lost_events=0") {
			t.Errorf("the recovery is not told: %s", &log)
		}
		l.Add(Record{Model: "m", Kind: "swapped", Generation: 21})
		shut(t, l)
		for _, name := range []string{"events", "history"} {
			records, _, _, err := readFile(filepath.Join(dir, name+".jsonl"), maxFileBytes)
			if err != nil {
				t.Fatal(err)
			}
			var got []int
			for _, r := range records {
				got = append(got, r.Generation)
			}
			if diff := cmp.Diff([]int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21}, got); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	})
}

// halfFile is a disk with space for a part only of what is written.
type halfFile struct{ file }

func (f halfFile) Write(p []byte) (int, error) {
	if len(p) == 1 {
		return f.file.Write(p)
	}
	n, err := f.file.Write(p[:len(p)/2])
	return n, errors.Join(err, syscall.ENOSPC)
}

// TestStateOnFullDisk: a change holds in memory, is told, and is written as soon as it can be.
func TestStateOnFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l, err := Open(Options{Dir: dir, Logger: (&lines{}).logger()})
		if err != nil {
			t.Fatal(err)
		}
		// A folder in its place keeps the file from being replaced, for root too.
		if err := os.MkdirAll(filepath.Join(dir, stateName, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := l.Change(func(s *State) { s.Defaults["m"] = "2" }); err == nil || !strings.Contains(err.Error(), "only until the server ends") {
			t.Errorf("%v", err)
		}
		if l.State().Defaults["m"] != "2" {
			t.Error("the change does not hold")
		}
		synctest.Wait()
		if err := os.RemoveAll(filepath.Join(dir, stateName)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(mostPause)
		synctest.Wait()
		if got, err := decodeState(read(t, dir, stateName)); err != nil || got.Defaults["m"] != "2" {
			t.Errorf("%v, %v", got, err)
		}
		shut(t, l)
	})
}

// TestManyPending: a disk that takes nothing for long costs a bounded amount of memory.
func TestManyPending(t *testing.T) {
	t.Parallel()
	s := &stream{path: "x"}
	for range 5 {
		s.add(make([]Record, maxPending/2))
	}
	if len(s.queue) != maxPending || s.lost != maxPending*3/2 {
		t.Errorf("%d wait, %d are lost", len(s.queue), s.lost)
	}
	l := &Ledger{dir: "x", keep: 10, wake: make(chan struct{}, 1)} // without a writer
	for range 5 * maxPending {
		l.Add(Record{Kind: "swapped"})
	}
	if len(l.pending) > 2*maxPending || l.lost+len(l.pending) != 5*maxPending {
		t.Errorf("%d wait, %d are lost", len(l.pending), l.lost)
	}
}

func FuzzRecords(f *testing.F) {
	f.Add([]byte(`{"id":1,"at":"2026-01-02T03:04:05Z","model":"m","version":"1.0","kind":"swapped","took_ms":1.5,"steps":[{"name":"load","took_ms":1}]}` + "\n"))
	f.Add([]byte("{\"id\":1,\"kind\":\"swapped\"}\n{\"id\":2,\"ki\n{\"id\":3,\"kind\":\"drained\"}"))
	f.Add([]byte("\n\x00\n{}\n[]\nnull\n{\"id\":-1}\n{\"id\":1e300,\"kind\":\"x\"}\n{\"id\":1,\"kind\":\"x\",\"took_ms\":1e308}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		records, bad, err := readRecords(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(data, []byte("\n")) + 1; len(records)+bad > n {
			t.Errorf("%d records and %d bad lines of %d", len(records), bad, n)
		}
		text, _, err := encodeLines(records)
		if err != nil {
			t.Skip() // a time that JSON cannot write
		}
		again, bad, err := readRecords(bytes.NewReader(text))
		if err != nil || bad > 0 {
			t.Fatalf("%d bad lines of our own, %v", bad, err)
		}
		if diff := cmp.Diff(records, again); diff != "" {
			t.Error(diff)
		}
	})
}

func FuzzState(f *testing.F) {
	s := &State{Kept: []Kept{{Model: "m"}}, Scaled: map[string]Scale{"m/1": {1, 2}}}
	s.fill()
	s.Traffic["m"] = []byte(`{"weights": {"1": 90}}`)
	text, err := encodeState(s)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text[:len(text)/2])
	f.Add([]byte(`{"format":1}`))
	f.Add([]byte(`{"format":2,"state":{}}{`))
	f.Fuzz(func(t *testing.T, data []byte) {
		state, err := decodeState(data)
		if err != nil {
			return
		}
		state.Defaults["m"], state.Ignored["m"] = "1", Ignored{} // no map is nil
		text, err := encodeState(state)
		if err != nil {
			t.Skip() // a time that JSON cannot write
		}
		if _, err := decodeState(text); err != nil {
			t.Errorf("%v: %s", err, text)
		}
	})
}
