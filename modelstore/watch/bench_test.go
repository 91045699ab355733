package watch

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeNotes is a notifier that hints when the test says so.
type fakeNotes struct {
	hint   chan struct{}
	refuse error // what watch gives

	mu      sync.Mutex // guards watched
	watched map[string]bool
}

func (f *fakeNotes) watch(dir string, _ ...string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watched[dir] = true
	return f.refuse
}
func (f *fakeNotes) sweep()                 {}
func (f *fakeNotes) hints() <-chan struct{} { return f.hint }
func (f *fakeNotes) close() error           { return nil }

// bench is a watcher over real files with a notifier and a clock of the test's.
type bench struct {
	*Watcher
	t     *testing.T
	store string
	notes *fakeNotes
	log   *lockedLog

	mu  sync.Mutex // guards got
	got []Snapshot // all that were sent
}

// bubble runs a test with a clock that only moves when all are waiting. The snapshots are taken at once.
func bubble(t *testing.T, prepare func(*bench), f func(*bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, store: filepath.Join(t.TempDir(), "store"), log: &lockedLog{}}
		if err := os.Mkdir(b.store, 0o755); err != nil {
			t.Fatal(err)
		}
		w, err := New(Options{Root: b.store, Logger: slog.New(slog.NewTextHandler(b.log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		b.Watcher, b.notes = w, &fakeNotes{hint: make(chan struct{}, 1), watched: map[string]bool{}}
		w.notify = func(notified) (notifier, error) { return b.notes, nil }
		if prepare != nil {
			prepare(b)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			if err := w.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			for {
				select {
				case snap := <-w.Snapshots():
					b.mu.Lock()
					b.got = append(b.got, snap)
					b.mu.Unlock()
				case <-ctx.Done():
					return
				}
			}
		})
		synctest.Wait()
		f(b)
		cancel()
		all.Wait()
	})
}

// hint says that something has changed.
func (b *bench) hint() {
	select {
	case b.notes.hint <- struct{}{}:
	default:
	}
}

// put writes a file of the store, and hints.
func (b *bench) put(name string, text []byte) {
	b.t.Helper()
	write(b.t, filepath.Join(b.store, name), text)
	b.hint()
}

// wait lets time pass, and everybody come to rest.
func (b *bench) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// snaps gives all the snapshots so far.
func (b *bench) snaps() []Snapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.got)
}

// last is the newest snapshot.
func (b *bench) last() Snapshot {
	b.t.Helper()
	all := b.snaps()
	if len(all) == 0 {
		b.t.Fatal("no snapshot was sent")
	}
	return all[len(all)-1]
}

// entry is what the newest snapshot says of a path.
func (b *bench) entry(path string) Entry {
	b.t.Helper()
	for _, e := range b.last().Entries {
		if e.Path == path {
			return e
		}
	}
	return Entry{}
}

// forms lists the sizes with which a path was told to be settled, each time that its content was another one.
func (b *bench) forms(path string) (sizes []int64) {
	mark := ""
	for _, snap := range b.snaps() {
		for _, e := range snap.Entries {
			if e.Path == path && e.State == Settled && e.Fingerprint != mark {
				mark = e.Fingerprint
				sizes = append(sizes, e.Bytes)
			}
		}
	}
	return sizes
}

// wantForms compares forms with what was written.
func (b *bench) wantForms(path string, texts ...[]byte) {
	b.t.Helper()
	var want []int64
	for _, text := range texts {
		want = append(want, int64(len(text)))
	}
	if got := b.forms(path); !slices.Equal(got, want) {
		b.t.Errorf("%s settled with the sizes %v, want %v; now %+v", path, got, want, b.entry(path))
	}
}

// pieces writes a file in so many parts, with a pause after each, and hints each time.
func (b *bench) pieces(file *os.File, text []byte, n int, pause func(i int) time.Duration) {
	b.t.Helper()
	for i := range n {
		from, to := len(text)*i/n, len(text)*(i+1)/n
		waitForTick(b.t)
		if _, err := file.WriteAt(text[from:to], int64(from)); err != nil {
			b.t.Fatal(err)
		}
		b.hint()
		b.wait(pause(i))
	}
	if err := file.Close(); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) open(name string, flags int) *os.File {
	b.t.Helper()
	file, err := os.OpenFile(filepath.Join(b.store, name), os.O_WRONLY|flags, 0o644)
	if err != nil {
		b.t.Fatal(err)
	}
	return file
}
