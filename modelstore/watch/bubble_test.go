package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestFirstSnapshotComesAtOnce(t *testing.T) {
	bubble(t, func(b *bench) { b.put("m.mar", zipOf(t, 1, 100)) }, func(b *bench) {
		if len(b.snaps()) != 1 || b.entry("m.mar").State != Changing || !strings.HasPrefix(b.entry("m.mar").Reason, "it is new") {
			t.Fatalf("got %+v", b.snaps())
		}
		began := time.Now()
		b.wait(time.Second)
		e := b.entry("m.mar")
		if e.State != Settled || e.Reason != "" || e.Since.Sub(began) != defaultSettle {
			t.Errorf("after a second: %+v, began %v", e, began)
		}
		b.wait(time.Hour)
		if len(b.snaps()) != 2 {
			t.Errorf("%d snapshots of a store in which nothing happens", len(b.snaps()))
		}
	})
}

func TestEmptyStore(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		if len(b.snaps()) != 1 || b.last().Entries == nil || len(b.last().Entries) != 0 || b.last().Err != nil {
			t.Errorf("got %+v", b.snaps())
		}
	})
}

func TestTemporaryFilesOfOthers(t *testing.T) {
	v1, v2 := zipOf(t, 1, 1000), zipOf(t, 2, 2000)
	bubble(t, func(b *bench) { b.put("m.mar", v1) }, func(b *bench) {
		b.wait(time.Second)
		seen := len(b.snaps())
		// Editors and copies that come and go beside it.
		for _, name := range []string{".m.mar.swp", "m.mar~", "#m.mar#", "4913", ".m.mar.Xa81bQ", "m.mar.part", ".goutputstream-X"} {
			b.put(name, []byte("x"))
			b.wait(time.Second)
			remove(t, filepath.Join(b.store, name))
			b.hint()
			b.wait(time.Second)
		}
		if len(b.snaps()) != seen {
			t.Errorf("%d snapshots because of temporary files", len(b.snaps())-seen)
		}
		// rsync: a hidden file that grows, gets the old time, then the name.
		b.pieces(b.open(".m.mar.kS9fAq", os.O_CREATE), v2, 20, func(int) time.Duration { return 100 * time.Millisecond })
		if len(b.snaps()) != seen {
			t.Errorf("%d snapshots before the file had its name", len(b.snaps())-seen)
		}
		old := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
		if err := os.Chtimes(b.store+"/.m.mar.kS9fAq", old, old); err != nil {
			t.Fatal(err)
		}
		rename(t, b.store+"/.m.mar.kS9fAq", b.store+"/m.mar")
		b.hint()
		b.wait(time.Second)
		b.wantForms("m.mar", v1, v2)
	})
}

func TestFolderCopiedFileByFile(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		for i := range 200 {
			b.put(fmt.Sprintf("m/sub%d/file%d.bin", i%7, i), noise(1, 100))
			b.wait(100 * time.Millisecond)
		}
		b.put("m/MAR-INF/MANIFEST.json", []byte(`{}`))
		b.wait(5 * time.Second)
		if got := b.forms("m"); !slices.Equal(got, []int64{200*100 + 2}) {
			t.Errorf("settled with %v bytes", got)
		}
		if e := b.entry("m"); e.Kind != Folder || e.Versioned {
			t.Errorf("entry %+v", e)
		}
		for _, dir := range []string{"", "m", "m/sub0", "m/sub6", "m/MAR-INF"} {
			if !b.notes.watched[filepath.Join(b.store, dir)] {
				t.Errorf("%q is not watched", dir)
			}
		}
	})
}

// TestUnpackedArchiveWithAFolderNamedLikeAVersion is copied so that it looks like a folder of versions for a while.
func TestUnpackedArchiveWithAFolderNamedLikeAVersion(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		b.put("m/1/weights.bin", noise(1, 100))
		for i := range 10 {
			b.wait(1500 * time.Millisecond)
			b.put(fmt.Sprintf("m/file%d.py", i), noise(1, 10))
		}
		b.wait(1500 * time.Millisecond)
		b.put("m/model-config.yaml", []byte("x: 1"))
		b.wait(5 * time.Second)
		if got := b.forms("m/1"); len(got) != 0 {
			t.Errorf("m/1 was told to be settled")
		}
		if len(b.forms("m")) != 1 || len(b.last().Entries) != 1 {
			t.Errorf("at last: %+v", b.last())
		}
	})
}

// TestPluginStaysOneWhenItsProgramIsDamaged: the folders of numbers that it has beside its program are no versions then.
func TestPluginStaysOneWhenItsProgramIsDamaged(t *testing.T) {
	good := append([]byte("\x7fELF"), noise(1, 96)...)
	bubble(t, func(b *bench) {
		for _, name := range []string{"m/m", "v/2/v", "new/new"} {
			b.put(name, good)
			if err := os.Chmod(filepath.Join(b.store, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		b.put("new/new", []byte("damaged"))
		b.put("m/2024/data.bin", noise(2, 10))
		b.put("new/1/x.mar", zipOf(t, 1, 10))
	}, func(b *bench) {
		b.wait(5 * time.Second)
		for _, damaged := range [][]byte{nil, []byte("not a program"), make([]byte, 200)} {
			b.put("m/m", damaged)
			b.put("v/2/v", damaged)
			b.wait(5 * time.Second)
			if m, v := b.entry("m"), b.entry("v/2"); m.Kind != Plugin || m.State != Settled || v.Kind != Plugin || v.State != Settled {
				t.Errorf("damaged: %+v, %+v", m, v)
			}
		}
		if forms := b.forms("m"); len(forms) != 4 {
			t.Errorf("m was told with %v bytes", forms)
		}
		if n := b.entry("new/1"); n.Kind != Mar || len(b.last().Entries) != 3 { // it never was a plugin
			t.Errorf("entries %+v", b.last().Entries)
		}
		if err := os.Chmod(filepath.Join(b.store, "m/m"), 0o644); err != nil {
			t.Fatal(err)
		}
		b.put("m/2024/model.onnx", onnxOf(10))
		b.wait(5 * time.Second)
		if e := b.entry("m/2024"); e.Kind != ONNX { // it is none any more
			t.Errorf("entries %+v", b.last().Entries)
		}
	})
}

func TestNewVersionLeavesTheOthersAlone(t *testing.T) {
	v := zipOf(t, 1, 100)
	bubble(t, func(b *bench) { b.put("m/1/x.mar", v) }, func(b *bench) {
		b.wait(5 * time.Second)
		b.put("m/2/x.mar", v[:50])
		b.wait(5 * time.Second)
		if e := b.entry("m/2"); e.State != Incomplete || !strings.Contains(e.Reason, "50 bytes are there") {
			t.Errorf("half a version: %+v", e)
		}
		b.put("m/2/x.mar", v)
		b.put("m/README", []byte("two versions"))
		b.wait(5 * time.Second)
		b.wantForms("m/1", v)
		b.wantForms("m/2", v)
		for _, snap := range b.snaps()[2:] {
			if e := snap.Entries[0]; e.Path != "m/1" || e.State != Settled {
				t.Errorf("m/1 was %+v", e)
			}
		}
	})
}

func TestStoreGoesAndComesBack(t *testing.T) {
	text := zipOf(t, 1, 100)
	bubble(t, func(b *bench) { b.put("m.mar", text) }, func(b *bench) {
		b.wait(time.Second)
		before := b.entry("m.mar")
		rename(t, b.store, b.store+".away")
		b.hint()
		b.wait(time.Second)
		if b.last().Err == nil || b.last().Entries != nil || !errors.Is(b.last().Err, os.ErrNotExist) {
			t.Errorf("without a store: %+v", b.last())
		}
		seen := len(b.snaps())
		b.wait(time.Minute)
		if len(b.snaps()) != seen {
			t.Errorf("the same was told %d times more", len(b.snaps())-seen)
		}
		rename(t, b.store+".away", b.store)
		b.wait(6 * time.Second) // nobody tells: it is a mount
		if e := b.entry("m.mar"); b.last().Err != nil || e != before {
			t.Errorf("with it again: %+v\nbefore: %+v", b.last(), before)
		}
		if log := b.log.String(); strings.Count(log, "cannot be read; the models that run stay") != 1 || strings.Count(log, "can be read again") != 1 {
			t.Errorf("log:\n%s", log)
		}
	})
}

func TestStoreThatIsAFile(t *testing.T) {
	bubble(t, func(b *bench) {
		remove(t, b.store)
		write(t, b.store, nil)
	}, func(b *bench) {
		if !errors.Is(b.last().Err, syscall.ENOTDIR) {
			t.Errorf("got %+v", b.last())
		}
	})
}

func TestLinksOfKubernetes(t *testing.T) {
	v1, v2 := zipOf(t, 1, 100), zipOf(t, 2, 200)
	bubble(t, func(b *bench) {
		b.put("..2026_1/m.mar", v1)
		b.put("..2026_1/f/x.py", []byte("1"))
		for link, target := range map[string]string{"..data": "..2026_1", "m.mar": "..data/m.mar", "f": "..data/f"} {
			if err := os.Symlink(target, filepath.Join(b.store, link)); err != nil {
				t.Fatal(err)
			}
		}
	}, func(b *bench) {
		b.wait(5 * time.Second)
		b.put("..2026_2/m.mar", v2)
		b.put("..2026_2/f/x.py", []byte("22"))
		relink(t, "..2026_2", b.store+"/..data")
		remove(t, b.store+"/..2026_1")
		b.hint()
		b.wait(5 * time.Second)
		b.wantForms("m.mar", v1, v2)
		if got := b.forms("f"); !slices.Equal(got, []int64{1, 2}) || len(b.last().Entries) != 2 {
			t.Errorf("f settled with %v; %+v", got, b.last())
		}
	})
}

func TestRootIsALinkThatIsSwapped(t *testing.T) {
	v1, v2 := zipOf(t, 1, 100), zipOf(t, 2, 200)
	bubble(t, func(b *bench) {
		remove(t, b.store)
		write(t, b.store+".1/m.mar", v1)
		write(t, b.store+".1/old.mar", v1)
		write(t, b.store+".2/m.mar", v2)
		if err := os.Symlink("store.1", b.store); err != nil {
			t.Fatal(err)
		}
	}, func(b *bench) {
		b.wait(time.Second)
		relink(t, "store.2", b.store)
		b.hint()
		b.wait(2 * time.Second)
		b.wantForms("m.mar", v1, v2)
		if len(b.last().Entries) != 1 || b.last().Err != nil {
			t.Errorf("at last: %+v", b.last())
		}
		if !b.notes.watched[filepath.Dir(b.store)] || !b.notes.watched[b.store+".2"] {
			t.Errorf("watched: %v", b.notes.watched)
		}
	})
}

func TestInotifyLimit(t *testing.T) {
	text := zipOf(t, 1, 100)
	bubble(t, func(b *bench) { b.notes.refuse = fmt.Errorf("add: %w", syscall.ENOSPC) }, func(b *bench) {
		write(t, b.store+"/m.mar", text)
		write(t, b.store+"/n/x.py", text)
		b.wait(2 * time.Minute)
		b.wantForms("m.mar", text)
		if log := b.log.String(); strings.Count(log, "level=WARN") != 1 || !strings.Contains(log, "fs.inotify.max_user_watches") {
			t.Errorf("log:\n%s", log)
		}
	})
}

func TestNoNotifierAtFirst(t *testing.T) {
	text := zipOf(t, 1, 100)
	bubble(t, func(b *bench) {
		tries := 0
		b.notify = func(notified) (notifier, error) {
			if tries++; tries < 3 {
				return nil, syscall.EMFILE
			}
			return b.notes, nil
		}
	}, func(b *bench) {
		write(t, b.store+"/m.mar", text)
		b.wait(45 * time.Second)
		b.wantForms("m.mar", text)
		b.wait(time.Minute)
		if log := b.log.String(); strings.Count(log, "level=WARN") != 1 || !strings.Contains(log, "max_user_instances") {
			t.Errorf("log:\n%s", log)
		}
		b.put("m.mar", append(text, 0)) // told now
		b.wait(time.Second)
		if e := b.entry("m.mar"); e.Bytes != int64(len(text)+1) {
			t.Errorf("not noticed: %+v", e)
		}
	})
}

func TestRescan(t *testing.T) {
	text := zipOf(t, 1, 100)
	var looks atomic.Int32
	bubble(t, func(b *bench) {
		b.opts.Poll = time.Hour
		b.put("half.mar", text[:50])
		inside := b.inspect
		b.inspect = func(ctx context.Context, l look) verdict {
			if l.path == "half.mar" {
				looks.Add(1)
			}
			return inside(ctx, l)
		}
	}, func(b *bench) {
		b.wait(time.Second)
		write(t, b.store+"/m.mar", text)
		b.wait(time.Minute)
		if b.entry("m.mar").State != "" {
			t.Fatal("noticed without a hint")
		}
		b.Rescan()
		b.wait(time.Second)
		b.wantForms("m.mar", text)
		if looks.Load() != 2 {
			t.Errorf("looked %d times into what was incomplete", looks.Load())
		}
		b.wait(time.Minute)
		asked := time.Now()
		if b.last().Began.After(asked) {
			t.Fatal("it was read")
		}
		b.Rescan()
		b.wait(time.Second)
		if b.last().Began.Before(asked) {
			t.Error("no snapshot follows when nothing has changed")
		}
	})
}

func TestWhatCannotBeReadIsTriedAgain(t *testing.T) {
	text := zipOf(t, 1, 100)
	bubble(t, func(b *bench) {
		var tries atomic.Int32
		inside := b.inspect
		b.inspect = func(ctx context.Context, l look) verdict {
			if tries.Add(1) <= 2 {
				return judgeError(&os.PathError{Op: "read", Path: l.file, Err: syscall.EIO})
			}
			return inside(ctx, l)
		}
		b.put("m.mar", text)
	}, func(b *bench) {
		b.wait(time.Second)
		if e := b.entry("m.mar"); e.State != Incomplete || e.Reason != "it cannot be read: input/output error" {
			t.Errorf("at first: %+v", e)
		}
		b.wait(40 * time.Second)
		if e := b.entry("m.mar"); e.State != Incomplete {
			t.Errorf("after one poll: %+v", e)
		}
		b.wait(30 * time.Second)
		b.wantForms("m.mar", text)
	})
}

func TestLongLooksDoNotDelayTheOthers(t *testing.T) {
	bubble(t, func(b *bench) {
		for i := range 6 {
			b.put(fmt.Sprintf("t%d.tgz", i), tarOf(t, 1, 100))
		}
		inside := b.inspect
		var mu sync.Mutex
		running := 0
		b.inspect = func(ctx context.Context, l look) verdict {
			if l.kind != Tarball {
				return inside(ctx, l)
			}
			mu.Lock()
			running++
			if running > maxLongLooks {
				t.Errorf("%d long looks at once", running)
			}
			mu.Unlock()
			select {
			case <-time.After(time.Minute):
			case <-ctx.Done():
			}
			mu.Lock()
			running--
			mu.Unlock()
			return inside(ctx, l)
		}
	}, func(b *bench) {
		b.wait(time.Second)
		if e := b.entry("t0.tgz"); e.State != Changing || !strings.Contains(e.Reason, "being read to its end") {
			t.Errorf("t0: %+v", e)
		}
		text := zipOf(t, 1, 100)
		b.put("m.mar", text)
		b.wait(time.Second)
		b.wantForms("m.mar", text)
		// One that is being read and is written over is no longer waited for.
		remove(t, b.store+"/t0.tgz")
		b.put("t1.tgz", tarOf(t, 2, 200))
		b.wait(30 * time.Second)
		if b.entry("t0.tgz").State != "" || b.entry("t1.tgz").State != Changing {
			t.Errorf("t0 %+v, t1 %+v", b.entry("t0.tgz"), b.entry("t1.tgz"))
		}
		b.wait(5 * time.Minute)
		for i := range 5 {
			if e := b.entry(fmt.Sprintf("t%d.tgz", i+1)); e.State != Settled {
				t.Errorf("%+v", e)
			}
		}
	})
}

func TestOnlyTheNewestSnapshotIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := t.TempDir()
		w, err := New(Options{Root: store, Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		notes := &fakeNotes{hint: make(chan struct{}, 1), watched: map[string]bool{}}
		w.notify = func(notified) (notifier, error) { return notes, nil }
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() {
			if err := w.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		for i := range 5 {
			write(t, filepath.Join(store, fmt.Sprintf("%d.mar", i)), zipOf(t, 1, 100))
			notes.hint <- struct{}{}
			time.Sleep(5 * time.Second)
		}
		snap := <-w.Snapshots()
		if len(snap.Entries) != 5 || snap.Entries[4].State != Settled {
			t.Errorf("got %+v", snap)
		}
		snap.Entries[0].State = "scribbled" // it is the taker's
		select {
		case more := <-w.Snapshots():
			t.Errorf("one more: %+v", more)
		case <-time.After(time.Hour):
		}
		cancel()
		run.Wait()
		if err := w.Run(t.Context()); err == nil {
			t.Error("Run ran twice")
		}
	})
}

func TestFloodOfHintsDoesNotStopTheRest(t *testing.T) {
	text := zipOf(t, 1, 100)
	bubble(t, nil, func(b *bench) {
		b.put("m.mar", text)
		for range 1000 { // another file is written to all the time
			b.put("busy.mar", noise(1, len(b.snaps())+1))
			b.wait(time.Millisecond)
		}
		b.wantForms("m.mar", text)
	})
}
