package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// live is a watcher with the system's notifications and clock. It polls so seldom that a test only passes if it is told of the change.
type live struct {
	*Watcher
	t     *testing.T
	store string
	last  Snapshot
}

func start(t *testing.T, store string, change func(*Options)) *live {
	t.Helper()
	opts := Options{Root: store, Poll: time.Hour, Settle: 50 * time.Millisecond, FolderSettle: 100 * time.Millisecond, Logger: quiet()}
	if change != nil {
		change(&opts)
	}
	w, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		run.Wait()
	})
	l := &live{Watcher: w, t: t, store: store}
	l.until("the first snapshot", func(Snapshot) bool { return true })
	return l
}

// until waits for a snapshot.
func (l *live) until(what string, good func(Snapshot) bool) {
	l.t.Helper()
	limit := time.After(20 * time.Second)
	for {
		select {
		case l.last = <-l.Snapshots():
			if good(l.last) {
				return
			}
		case <-limit:
			l.t.Fatalf("no snapshot with %s; the last one was %+v", what, l.last)
		}
	}
}

// settled waits until exactly these entries are there, settled, with so many bytes each.
func (l *live) settled(want map[string]int) {
	l.t.Helper()
	l.until(fmt.Sprint(want), func(s Snapshot) bool {
		for _, e := range s.Entries {
			if size, known := want[e.Path]; !known || e.State != Settled || e.Bytes != int64(size) {
				return false
			}
		}
		return s.Err == nil && len(s.Entries) == len(want)
	})
}

func TestRealFiles(t *testing.T) {
	store := filepath.Join(t.TempDir(), "store")
	v1, v2 := zipOf(t, 1, 100), zipOf(t, 2, 200)
	write(t, store+"/m.mar", v1)
	l := start(t, store, nil)
	l.settled(map[string]int{"m.mar": len(v1)})
	write(t, store+"/.m.mar.new", v2)
	rename(t, store+"/.m.mar.new", store+"/m.mar")
	l.settled(map[string]int{"m.mar": len(v2)})
	write(t, store+"/n.tgz", tarOf(t, 1, 300))
	l.settled(map[string]int{"m.mar": len(v2), "n.tgz": len(tarOf(t, 1, 300))})
	remove(t, store+"/m.mar")
	l.settled(map[string]int{"n.tgz": len(tarOf(t, 1, 300))})
}

// TestRealNewFolders makes folders within folders faster than they can be watched: what is missed is found by listing.
func TestRealNewFolders(t *testing.T) {
	store := t.TempDir()
	l := start(t, store, nil)
	want := map[string]int{}
	for i := range 20 {
		name := fmt.Sprintf("m%d", i)
		write(t, filepath.Join(store, name, "a/b/c/d/x.py"), noise(1, 10))
		write(t, filepath.Join(store, name, "MAR-INF/MANIFEST.json"), noise(1, 10))
		want[name] = 20
	}
	l.settled(want)
	write(t, store+"/m7/a/b/c/d/y.py", noise(1, 5)) // deep in it, and told
	want["m7"] = 25
	l.settled(want)
}

func TestRealFoldersThatMove(t *testing.T) {
	store := t.TempDir()
	write(t, store+"/a/sub/x.py", noise(1, 10))
	write(t, store+"/b/sub/x.py", noise(1, 20))
	l := start(t, store, nil)
	l.settled(map[string]int{"a": 10, "b": 20})
	// Both change places, so that each watch has another name.
	rename(t, store+"/a", store+"/.c")
	rename(t, store+"/b", store+"/a")
	rename(t, store+"/.c", store+"/b")
	l.settled(map[string]int{"a": 20, "b": 10})
	write(t, store+"/a/sub/y.py", noise(1, 1))
	l.settled(map[string]int{"a": 21, "b": 10})
	write(t, store+"/b/sub/y.py", noise(1, 2))
	l.settled(map[string]int{"a": 21, "b": 12})
	rename(t, store+"/b", store+"/c")
	l.settled(map[string]int{"a": 21, "c": 12})
	write(t, store+"/c/sub/z.py", noise(1, 3))
	l.settled(map[string]int{"a": 21, "c": 15})
}

func TestRealStoreGoesAndComesBack(t *testing.T) {
	dir := t.TempDir()
	store := filepath.Join(dir, "deep/down/store")
	text := zipOf(t, 1, 100)
	l := start(t, store, nil) // it is not there yet
	if l.last.Err == nil {
		t.Fatalf("without a store: %+v", l.last)
	}
	for range 3 {
		write(t, store+"/m.mar", text)
		l.settled(map[string]int{"m.mar": len(text)})
		remove(t, dir+"/deep")
		l.until("an error", func(s Snapshot) bool { return errors.Is(s.Err, os.ErrNotExist) && s.Entries == nil })
	}
	write(t, dir+"/other/m.mar", text)
	write(t, dir+"/other/n.mar", text)
	if err := os.MkdirAll(filepath.Dir(store), 0o755); err != nil {
		t.Fatal(err)
	}
	rename(t, dir+"/other", store)
	l.settled(map[string]int{"m.mar": len(text), "n.mar": len(text)})
	remove(t, store+"/n.mar") // it is watched again
	l.settled(map[string]int{"m.mar": len(text)})
}

func TestRealRootIsALinkThatIsSwapped(t *testing.T) {
	dir := t.TempDir()
	store := filepath.Join(dir, "current")
	v1, v2 := zipOf(t, 1, 100), zipOf(t, 2, 200)
	write(t, dir+"/releases/1/store/m.mar", v1)
	write(t, dir+"/releases/2/store/m.mar", v2)
	for link, target := range map[string]string{"current": "now/store", "now": "releases/1"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	l := start(t, store, nil)
	l.settled(map[string]int{"m.mar": len(v1)})
	relink(t, "releases/2", dir+"/now") // a link on the way
	l.settled(map[string]int{"m.mar": len(v2)})
	relink(t, "releases/1/store", store) // the link itself
	l.settled(map[string]int{"m.mar": len(v1)})
	write(t, dir+"/releases/1/store/n.mar", v1) // where it leads now is watched
	l.settled(map[string]int{"m.mar": len(v1), "n.mar": len(v1)})
}

func TestRealKubernetes(t *testing.T) {
	store := t.TempDir()
	v1, v2 := zipOf(t, 1, 100), zipOf(t, 2, 200)
	write(t, store+"/..2026_1/m.mar", v1)
	write(t, store+"/..2026_1/f/x.py", noise(1, 10))
	for link, target := range map[string]string{"..data": "..2026_1", "m.mar": "..data/m.mar", "f": "..data/f"} {
		if err := os.Symlink(target, filepath.Join(store, link)); err != nil {
			t.Fatal(err)
		}
	}
	l := start(t, store, nil)
	l.settled(map[string]int{"m.mar": len(v1), "f": 10})
	write(t, store+"/..2026_2/m.mar", v2)
	write(t, store+"/..2026_2/f/x.py", noise(1, 20))
	relink(t, "..2026_2", store+"/..data")
	remove(t, store+"/..2026_1")
	l.settled(map[string]int{"m.mar": len(v2), "f": 20})
}

func TestRealLinkToAFileElsewhere(t *testing.T) {
	dir := t.TempDir()
	store := filepath.Join(dir, "store")
	v1, v2 := zipOf(t, 1, 100), zipOf(t, 2, 200)
	write(t, dir+"/data/m.mar", v1)
	if err := os.Mkdir(store, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir+"/data/m.mar", store+"/m.mar"); err != nil {
		t.Fatal(err)
	}
	l := start(t, store, nil)
	l.settled(map[string]int{"m.mar": len(v1)})
	write(t, dir+"/data/m.mar", v2)
	l.settled(map[string]int{"m.mar": len(v2)})
}

// TestRealPollFindsWhatNobodyTells is a network folder: no notifications.
func TestRealPollFindsWhatNobodyTells(t *testing.T) {
	store := t.TempDir()
	w, err := New(Options{Root: store, Poll: 50 * time.Millisecond, Settle: 20 * time.Millisecond, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	w.notify = func(notified) (notifier, error) { return nil, errors.New("none here") }
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer run.Wait()
	defer cancel()
	l := &live{Watcher: w, t: t, store: store}
	text := zipOf(t, 1, 100)
	write(t, store+"/m.mar", text)
	l.settled(map[string]int{"m.mar": len(text)})
}

// TestRealOverflow makes more changes than the system keeps before anybody listens.
func TestRealOverflow(t *testing.T) {
	limit, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Skip(err)
	}
	var most int
	if _, err := fmt.Sscan(string(limit), &most); err != nil || most > 200_000 {
		t.Skipf("max_queued_events is %q", limit)
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := watcher.Add(dir); err != nil {
		t.Fatal(err)
	}
	const batch = 4096 // what fsnotify itself reads at once
	names := [2]string{filepath.Join(dir, ".a"), filepath.Join(dir, ".b")}
	for _, name := range names { // hidden ones, which would not be told of
		write(t, name, nil)
	}
	for i := range most + 2*batch {
		if err := os.Chmod(names[i%2], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log := &lockedLog{}
	f := listen(watcher, notified{slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})), fault.Contain})
	select {
	case <-f.hints():
	case <-time.After(20 * time.Second):
		t.Error("no hint")
	}
	if err := f.close(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "overflow") {
		t.Errorf("log: %s", log.String())
	}
}

// lockedLog is a buffer for more than one goroutine.
type lockedLog struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func TestRealWatchesAreGivenBack(t *testing.T) {
	dir := t.TempDir()
	n, err := newFolders(notified{quiet(), fault.Contain})
	if err != nil {
		t.Fatal(err)
	}
	f, ok := n.(*folders)
	if !ok {
		t.Fatalf("a %T", n)
	}
	defer func() {
		if err := f.close(); err != nil {
			t.Error(err)
		}
	}()
	for i := range 5 {
		sub := filepath.Join(dir, strconv.Itoa(i))
		if err := os.Mkdir(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, d := range []string{dir, sub} {
			if err := f.watch(d); err != nil {
				t.Fatal(err)
			}
		}
		f.sweep()
		if list := f.watcher.WatchList(); len(list) != 2 || len(f.only) != 2 || len(f.known) != 2 || len(f.named) != 2 {
			t.Errorf("watched: %v", list)
		}
	}
	for i := range maxWatches {
		f.known[folderID{path: strconv.Itoa(i)}] = nil
	}
	if err := f.watch(dir + "/0"); !errors.Is(err, errTooManyFolders) || transient(err) {
		t.Errorf("one more: %v", err)
	}
	clear(f.known)
}

func TestNamesThatMatter(t *testing.T) {
	f := &folders{only: map[string]map[string]bool{"/s": nil, "/s/.hidden": nil, "/up": {"link": true}}}
	for path, want := range map[string]bool{
		"/s/m.mar": true, "/s/4913": true, "/s/..data": true, "/s/..data_tmp": true, "/s/new": true, "/s": true, "/s/.hidden": true, "/s/.hidden/x": true,
		"/up/link": true, "/up/other": false, "/s/.m.mar.Xa81bQ": false, "/s/.m.swp": false, "/s/m.mar~": false, "/s/__pycache__": false, "/s/x.pyc": false,
		"/s/m.mar.part": false,
	} {
		if got := f.matters(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}
