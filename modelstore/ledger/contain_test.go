package ledger

import (
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// badFile is a log file with bugs.
type badFile struct {
	file

	bugs  *atomic.Int32
	wrote chan struct{} // has something for each write that went well
}

func (f badFile) Write(p []byte) (int, error) {
	if f.bugs.Add(-1) >= 0 {
		panic("a bug of the writer")
	}
	n, err := f.file.Write(p)
	f.wrote <- struct{}{}
	return n, err
}

// TestPanicsOfTheWriter: a bug costs one try to write. Nobody who reads waits for it longer than for a disk that is full, and what was written before and after it is all there.
func TestPanicsOfTheWriter(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	synctest.Test(t, func(t *testing.T) {
		var bugs, told atomic.Int32
		wrote := make(chan struct{}, 100)
		l := open(t, Options{Dir: dir, Panicked: func(err error) {
			told.Add(1)
			if !fault.Is(err, fault.Internal) || !strings.Contains(fault.DetailOf(err), "panic while events were written: a bug of the writer") {
				t.Error(fault.DetailOf(err))
			}
		}})
		whole := l.eventLog.open
		l.eventLog.open = func(path string) (file, error) {
			f, err := whole(path)
			return badFile{f, &bugs, wrote}, err
		}
		l.Add(Record{Kind: "registered", Model: "m"})
		<-wrote
		bugs.Store(2)
		begun := time.Now()
		l.Add(Record{Kind: "swapped", Model: "m"})
		if got := l.Events(Filter{}); len(got) != 2 || time.Since(begun) > mostRead {
			t.Errorf("after %v: %+v", time.Since(begun), got)
		}
		if err := l.Change(func(s *State) { s.Defaults["m"] = "1.0" }); err != nil {
			t.Error(err)
		}
		<-wrote
		l.Add(Record{Kind: "unregistered", Model: "m"})
		shut(t, l)
		if told.Load() != 2 {
			t.Errorf("%d panics were told", told.Load())
		}
		l = open(t, Options{Dir: dir})
		if diff := len(l.Events(Filter{})); diff != 3 || l.State().Defaults["m"] != "1.0" {
			t.Errorf("%d events are there: %+v", diff, l.Events(Filter{}))
		}
		shut(t, l)
	})
}

// TestPanicOfAChange: a bug of whoever changes the state is its own, and the next one can.
func TestPanicOfAChange(t *testing.T) {
	t.Parallel()
	l := open(t, Options{Dir: filepath.Join(t.TempDir(), "a")})
	defer shut(t, l)
	err := fault.Contain("a state was changed", func() {
		_ = l.Change(func(s *State) {
			s.Defaults["m"] = "half"
			panic("a bug of the change")
		})
	})
	if err == nil || l.State().Defaults["m"] != "" {
		t.Errorf("%v, %+v", err, l.State())
	}
	if err := l.Change(func(s *State) { s.Defaults["m"] = "1.0" }); err != nil || l.State().Defaults["m"] != "1.0" {
		t.Errorf("%v, %+v", err, l.State())
	}
}

// TestPanicAtTheEnd of a ledger is its Close's error, and its folder can be another's all the same.
func TestPanicAtTheEnd(t *testing.T) {
	t.Parallel()
	var told atomic.Int32
	opts := Options{Dir: filepath.Join(t.TempDir(), "a"), Logger: slog.New(slog.DiscardHandler), Panicked: func(error) { told.Add(1) }}
	l, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	l.eventLog.open = func(string) (file, error) { panic("a bug of the opener") }
	l.Add(Record{Kind: "registered", Model: "m"})
	if err := l.Close(); !fault.Is(err, fault.Internal) || told.Load() < 1 {
		t.Errorf("%v, %d panics were told", err, told.Load())
	}
	if l = open(t, opts); l.Dir() == "" {
		t.Error("the folder is held still")
	}
}
