package logfiles

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun")) // it has no end
}

// disk keeps each write by itself.
type disk struct {
	mu     sync.Mutex // guards what follows
	writes []string
	closed int
	full   bool
}

func (d *disk) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full {
		return 0, errors.New("no space left on device")
	}
	d.writes = append(d.writes, string(p))
	return len(p), nil
}

func (d *disk) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed++
	return nil
}

func (d *disk) written() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.writes...)
}

const stamp = "2026-03-04T05:06:07,089 - "

// TestLinesAreWrittenTogetherAndSoon: none waits longer than the delay, whatever comes behind it.
func TestLinesAreWrittenTogetherAndSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, a, b := newFlusher(), &disk{}, &disk{}
		first, second := f.add(a), f.add(b)
		go f.run()
		defer f.end()
		<-time.After(time.Hour) // nothing waits
		first.line(at, "one")
		<-time.After(flushDelay / 2)
		first.line(at, "two")
		second.line(at, "three")
		synctest.Wait()
		if n := len(a.written()) + len(b.written()); n > 0 {
			t.Errorf("%d writes before the delay", n)
		}
		<-time.After(flushDelay / 2)
		synctest.Wait()
		if got := a.written(); len(got) != 1 || got[0] != stamp+"one\n"+stamp+"two\n" {
			t.Errorf("%q", got)
		}
		if got := b.written(); len(got) != 1 || got[0] != stamp+"three\n" {
			t.Errorf("%q", got)
		}
		first.line(at, "four")
		<-time.After(flushDelay)
		synctest.Wait()
		if got := a.written(); len(got) != 2 || got[1] != stamp+"four\n" {
			t.Errorf("%q", got)
		}
	})
}

// TestManyLinesWaitForTheDisk: what waits has a bound, and nothing is dropped for it.
func TestManyLinesWaitForTheDisk(t *testing.T) {
	t.Parallel()
	d := &disk{}
	p := newFlusher().add(d) // nobody flushes but who adds
	text := strings.Repeat("x", 1000)
	const lines, writers = 8000, 4
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for n := range lines / writers {
				p.line(at, fmt.Sprint(w, " ", n, " ", text))
			}
		})
	}
	all.Wait()
	if len(p.lines) >= mostBytes {
		t.Errorf("%d bytes wait", len(p.lines))
	}
	if err := p.close(); err != nil {
		t.Fatal(err)
	}
	for _, w := range d.written() {
		if len(w) > mostBytes+writers*2*len(text) || !strings.HasSuffix(w, "\n") {
			t.Errorf("%d bytes in one write, the last %q", len(w), w[len(w)-1])
		}
	}
	next := [writers]int{}
	total := 0
	for line := range strings.Lines(strings.Join(d.written(), "")) {
		var w, n int
		if _, err := fmt.Sscanf(line, stamp+"%d %d ", &w, &n); err != nil || !strings.HasSuffix(line, text+"\n") || n != next[w] {
			t.Fatalf("line %d of writer %d after %d: %v", n, w, next[w], err)
		}
		next[w]++
		total++
	}
	if total != lines {
		t.Errorf("%d lines of %d", total, lines)
	}
}

// TestCloseWritesWhatWaits, and what comes later is not kept.
func TestCloseWritesWhatWaits(t *testing.T) {
	t.Parallel()
	f, d := newFlusher(), &disk{}
	p := f.add(d)
	go f.run()
	p.line(at, "one")
	f.end()
	p.line(at, "two")
	if err := p.close(); err != nil {
		t.Fatal(err)
	}
	p.line(at, "three")
	f.end()
	if got := strings.Join(d.written(), ""); got != stamp+"one\n"+stamp+"two\n"+stamp+"three\n" || d.closed != 1 {
		t.Errorf("%q, closed %d times", got, d.closed)
	}
}

// TestFullDiskStopsNobody: lines are lost while it is full, and no others.
func TestFullDiskStopsNobody(t *testing.T) {
	t.Parallel()
	d := &disk{full: true}
	p := newFlusher().add(d)
	p.line(at, "lost")
	p.flush()
	d.mu.Lock()
	d.full = false
	d.mu.Unlock()
	p.line(at, "kept")
	if err := p.close(); err != nil {
		t.Fatal(err)
	}
	if got := d.written(); len(got) != 1 || got[0] != stamp+"kept\n" {
		t.Errorf("%q", got)
	}
}

// TestLineIsAsFormatted compares with the format as it is written elsewhere.
func TestLineIsAsFormatted(t *testing.T) {
	t.Parallel()
	d := &disk{}
	p := newFlusher().add(d)
	now := time.Now()
	var want bytes.Buffer
	for _, entry := range []string{"", "a b", "a\nb\x7f", "é"} {
		p.line(now, entry)
		fmt.Fprintf(&want, "%s - %s\n", now.Format(timeFormat), oneLine(entry))
	}
	if err := p.close(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(d.written(), ""); got != want.String() {
		t.Errorf("%q, want %q", got, want.String())
	}
}
