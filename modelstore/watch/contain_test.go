package watch

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// badNotes is a notifier with bugs: so many, and then none.
type badNotes struct {
	notifier

	watches, sweeps atomic.Int32
}

func (n *badNotes) watch(dir string, only ...string) error {
	if n.watches.Add(-1) >= 0 {
		panic("a bug of watch")
	}
	return n.notifier.watch(dir, only...)
}

func (n *badNotes) sweep() {
	if n.sweeps.Add(-1) >= 0 {
		panic("a bug of sweep")
	}
	n.notifier.sweep()
}

// TestPanicsOfTheReading: a store that could not be read because of a bug is read once more, and what is in it and what changes is told as ever.
func TestPanicsOfTheReading(t *testing.T) {
	v1, v2 := zipOf(t, 1, 100), zipOf(t, 2, 200)
	notes := &badNotes{}
	bubble(t, func(b *bench) {
		b.put("m.mar", v1)
		notes.notifier = b.notes
		notes.watches.Store(3)
		b.notify = func(notified) (notifier, error) { return notes, nil }
	}, func(b *bench) {
		b.wait(20 * time.Second)
		b.wantForms("m.mar", v1)
		notes.sweeps.Store(2)
		b.put("m.mar", v2)
		b.wait(20 * time.Second)
		b.wantForms("m.mar", v1, v2)
		log := b.log.String()
		if n := strings.Count(log, "level=ERROR msg=\"a panic was contained\""); n != 5 || !strings.Contains(log, "panic while the model store was read: a bug of sweep") ||
			!strings.Contains(log, "(*badNotes).sweep") {
			t.Errorf("%d panics are in the log:\n%s", n, log)
		}
	})
}

// TestPanicsWithoutEnd of the reading cost a pause that grows, and nothing else.
func TestPanicsWithoutEnd(t *testing.T) {
	notes := &badNotes{}
	bubble(t, func(b *bench) {
		notes.notifier = b.notes
		notes.watches.Store(1 << 20)
		b.notify = func(notified) (notifier, error) { return notes, nil }
	}, func(b *bench) {
		b.wait(10 * time.Minute)
		if n := strings.Count(b.log.String(), "a panic was contained"); n < 20 || n > 40 {
			t.Errorf("%d panics", n)
		}
		notes.watches.Store(0)
		b.put("m.mar", zipOf(t, 1, 100))
		b.wait(time.Minute)
		if e := b.entry("m.mar"); e.State != Settled {
			t.Errorf("%+v", e)
		}
	})
}

// TestPanicsOfLooks: an archive that cannot be looked into because of a bug is told to be incomplete, and looked into again; others are as ever.
func TestPanicsOfLooks(t *testing.T) {
	bad, good := zipOf(t, 1, 100), zipOf(t, 2, 200)
	var bugs atomic.Int32
	var told atomic.Int32
	bubble(t, func(b *bench) {
		b.opts.Panicked = func(err error) {
			told.Add(1)
			if !fault.Is(err, fault.Internal) || !strings.Contains(fault.DetailOf(err), "panic while an archive was looked into: a bug of the look") {
				t.Error(fault.DetailOf(err))
			}
		}
		bugs.Store(10) // more than run at the same time
		b.inspect = func(ctx context.Context, l look) verdict {
			if l.path != "good.mar" && bugs.Add(-1) >= 0 {
				panic("a bug of the look")
			}
			return inspect(ctx, l)
		}
		for _, name := range []string{"a.mar", "b.mar", "c.mar", "d.mar", "e.mar", "f.mar"} {
			b.put(name, bad)
		}
	}, func(b *bench) {
		b.wait(5 * time.Second)
		if e := b.entry("a.mar"); e.State != Incomplete || !strings.Contains(e.Reason, "the server has a bug") || told.Load() != 6 {
			t.Errorf("%d panics: %+v", told.Load(), e)
		}
		b.put("good.mar", good)
		b.wait(5 * time.Second)
		b.wantForms("good.mar", good)
		b.wait(5 * time.Minute)
		for _, name := range []string{"a.mar", "f.mar"} {
			b.wantForms(name, bad)
		}
	})
}

// TestPanicOfTheNotifier: an event that is not understood is one that may matter, and those after it are heard.
func TestPanicOfTheNotifier(t *testing.T) {
	events := make(chan fsnotify.Event)
	watcher := &fsnotify.Watcher{Events: events, Errors: make(chan error)}
	told := make(chan error, 2)
	f := &folders{
		watcher: watcher, hint: make(chan struct{}, 1), drained: make(chan struct{}), notified: notified{slog.New(slog.DiscardHandler), func(doing string, f func()) error {
			err := fault.Contain(doing, func() {
				f()
				panic("a bug of the look at an event")
			})
			told <- err
			return err
		}},
	}
	go f.drain()
	for range 2 {
		events <- fsnotify.Event{Name: filepath.Join("store", "m.mar")}
		<-f.hints()
		if err := <-told; !fault.Is(err, fault.Internal) {
			t.Error(err)
		}
	}
	close(events)
	<-f.drained
}
