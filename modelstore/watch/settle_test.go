package watch

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"
)

// TestAtMostTwoSettledFormsOfOneSecond tries many patterns of 50 changes in one second, with a scan at every millisecond.
func TestAtMostTwoSettledFormsOfOneSecond(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // only to spread the changes
		b := newBook(defaultSettle, defaultFolderSettle)
		changes := map[int]bool{0: true, 1000: true}
		for spread := 1 + r.IntN(20); len(changes) < 50; {
			changes[r.IntN(spread)*1000/spread+r.IntN(1+50/spread)] = true
		}
		began := time.Now()
		content, settled, last := 0, 0, ""
		for ms := range 5000 {
			if changes[ms] {
				content++
			}
			now := began.Add(time.Duration(ms) * time.Millisecond)
			b.take(now, []found{{path: "m", kind: Folder, fingerprint: strconv.Itoa(content)}})
			b.ready(now)
			if e := b.entries()[0]; e.State == Settled && e.Fingerprint != last {
				settled, last = settled+1, e.Fingerprint
			}
		}
		if settled > 2 || last != strconv.Itoa(content) {
			t.Errorf("seed %d: settled %d times, at last with content %s of %d", seed, settled, last, content)
		}
	}
}

func TestOldFilesAreQuietAlready(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		age  time.Duration
		want bool
	}{{2 * time.Minute, true}, {30 * time.Second, false}, {0, false}, {-time.Hour, false}} {
		b := newBook(defaultSettle, defaultFolderSettle)
		b.take(now, []found{{path: "m", kind: Folder, patient: true, fingerprint: "1", newest: now.Add(-c.age)}})
		b.ready(now)
		if got := b.entries()[0].State == Settled; got != c.want {
			t.Errorf("last changed %v ago: settled at first sight = %v", c.age, got)
		}
	}
}

func TestGoneEntriesAreForgotten(t *testing.T) {
	b := newBook(defaultSettle, defaultFolderSettle)
	now := time.Now()
	for i := range 1000 {
		b.take(now, []found{{path: strconv.Itoa(i), kind: Folder, fingerprint: "1"}})
		now = now.Add(time.Second)
	}
	if len(b.records) != 1 || len(b.gone) > 5 {
		t.Errorf("%d records, %d gone", len(b.records), len(b.gone))
	}
}

func TestSinceTellsHowLongAStateLasts(t *testing.T) {
	b := newBook(defaultSettle, defaultFolderSettle)
	began := time.Now()
	at := func(s int) time.Time { return began.Add(time.Duration(s) * time.Second) }
	for s, c := range []struct {
		print, problem string
		state          State
		since          int
	}{
		{"1", "", Changing, 0},
		{"1", "", Settled, 1},
		{"1", "", Settled, 1},
		{"2", "", Changing, 3},
		{"2", "", Settled, 4},
		{"p", "broken", Incomplete, 5},
		{"p", "broken", Incomplete, 5},
		{"q", "broken, too", Incomplete, 7},
		{"2", "", Changing, 8},
		{"2", "", Settled, 9},
	} {
		b.take(at(s), []found{{path: "m", kind: Folder, fingerprint: c.print, problem: c.problem}})
		b.ready(at(s))
		if e := b.entries()[0]; e.State != c.state || !e.Since.Equal(at(c.since)) || e.Reason != c.problem && c.state == Incomplete {
			t.Errorf("second %d: %s since %v (%s), want %s since %d", s, e.State, e.Since.Sub(began), e.Reason, c.state, c.since)
		}
	}
}
