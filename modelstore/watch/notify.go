package watch

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/fsnotify/fsnotify"
)

// notifier hints that something may have changed. All but hints is for one goroutine.
type notifier interface {
	// watch makes changes of a folder's names raise hints, or of those named only. A folder has to be watched again for each scan, before it is
	// listed.
	watch(dir string, only ...string) error
	// sweep ends the watches that were not asked for since the last sweep.
	sweep()
	// hints has a value when something may have changed since the last one was taken.
	hints() <-chan struct{}
	close() error
}

// maxWatches is how many folders are watched; the others are only read from time to time. Linux allowed 8192 for each user for a long time.
const maxWatches = 8192

var errTooManyFolders = errors.New("too many folders to watch")

// folders is the notifier of the operating system.
type folders struct {
	notified

	watcher *fsnotify.Watcher
	hint    chan struct{} // of one
	drained chan struct{} // closed when drain has ended

	// Only the owner uses these. The kernel watches a folder, whatever it is called; fsnotify knows it by the name that it had, and gets lost when a
	// name is given to another folder. So each folder has one name here, and gives it up before another one gets it.
	round int
	known map[folderID]*watched
	named map[string]folderID

	mu   sync.Mutex                 // guards only
	only map[string]map[string]bool // for each watched folder the names that matter, nil for all
}

// folderID tells folders apart by their inode, or where there is none by their name.
type folderID struct {
	identity
	path string
}

// watched is a folder that is watched.
type watched struct {
	path  string
	round int // when it was last asked for
}

// notified is who is told by a notifier of what goes wrong in it.
type notified struct {
	logger  *slog.Logger
	contain func(doing string, f func()) error // calls f, and tells of a panic in it
}

func newFolders(owner notified) (notifier, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	return listen(w, owner), nil
}

func listen(w *fsnotify.Watcher, owner notified) *folders {
	f := &folders{
		watcher: w, notified: owner, hint: make(chan struct{}, 1), drained: make(chan struct{}),
		known: map[folderID]*watched{}, named: map[string]folderID{}, only: map[string]map[string]bool{},
	}
	go f.drain()
	return f
}

func (f *folders) watch(dir string, only ...string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	id := folderID{}
	if id.identity, _, _ = details(info); id.identity == (identity{}) {
		id.path = dir
	}
	w := f.known[id]
	switch {
	case w != nil && w.path != dir && w.round == f.round: // one folder under two names: it is mounted twice
		return nil
	case w != nil && w.path != dir:
		f.forget(id)
		w = nil
	}
	if other, taken := f.named[dir]; taken && other != id {
		f.forget(other)
	}
	if w == nil && len(f.known) >= maxWatches {
		return errTooManyFolders
	}
	f.note(dir, only, w != nil && w.round == f.round)
	// Also when it is known: fsnotify ends the watch of a folder that was moved, also when it was moved back.
	f.known[id], f.named[dir] = &watched{path: dir, round: f.round}, id
	if err := f.watcher.Add(dir); err != nil {
		f.forget(id)
		return err
	}
	return nil
}

// note adds names that matter in a folder; those of earlier rounds no longer do.
func (f *folders) note(dir string, only []string, add bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	names, known := f.only[dir]
	switch {
	case len(only) == 0, add && known && names == nil:
		f.only[dir] = nil
		return
	case !add || !known:
		names = map[string]bool{}
	}
	for _, name := range only {
		names[name] = true
	}
	f.only[dir] = names
}

// forget ends the watch of a folder.
func (f *folders) forget(id folderID) {
	path := f.known[id].path
	delete(f.known, id)
	delete(f.named, path)
	f.mu.Lock()
	delete(f.only, path)
	f.mu.Unlock()
	if err := f.watcher.Remove(path); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) && !errors.Is(err, syscall.EINVAL) {
		f.logger.Debug("watch of a folder could not be ended", slog.String("folder", path), slog.Any("error", err))
	}
}

func (f *folders) sweep() {
	for id, w := range f.known {
		if w.round != f.round {
			f.forget(id)
		}
	}
	f.round++
}

func (f *folders) hints() <-chan struct{} { return f.hint }

func (f *folders) close() error {
	err := f.watcher.Close()
	<-f.drained
	return err
}

// drain takes all that fsnotify says, always and at once: it stops, with its lock held, while nobody listens.
func (f *folders) drain() {
	defer close(f.drained)
	for {
		select {
		case event, open := <-f.watcher.Events:
			if !open {
				return
			}
			matters := true // one that is not understood may
			_ = f.contain("a change in the model store was noticed", func() { matters = f.matters(event.Name) })
			if matters {
				f.raise()
			}
		case err, open := <-f.watcher.Errors:
			if !open {
				return
			}
			// Whatever it is, something may have been lost; when the queue was too short, surely.
			f.logger.Debug("notifications of the file system were lost", slog.Any("error", err))
			f.raise()
		}
	}
}

func (f *folders) raise() {
	select {
	case f.hint <- struct{}{}:
	default: // it will be looked at anyway
	}
}

func (f *folders) matters(path string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, itself := f.only[path]; itself {
		return true
	}
	dir, name := filepath.Split(path)
	if names := f.only[filepath.Clean(dir)]; names != nil {
		return names[name]
	}
	return telling(name)
}

// whyNot explains to an operator why changes are not told of.
func whyNot(err error) (problem, hint string) {
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return "all inotify watches of this user are in use", "raise fs.inotify.max_user_watches: sysctl fs.inotify.max_user_watches=524288"
	case errors.Is(err, syscall.EMFILE):
		return "all inotify instances of this user, or all file descriptors of this process, are in use",
			"raise fs.inotify.max_user_instances (sysctl fs.inotify.max_user_instances=1024), or the limit of open files"
	case errors.Is(err, errTooManyFolders):
		return fmt.Sprintf("the store has more than %d folders", maxWatches), "pack models with many folders into archives"
	default:
		return err.Error(), ""
	}
}

// noNotifier is the notifier of a system that does not tell.
type noNotifier struct{ never chan struct{} }

func (noNotifier) watch(string, ...string) error { return nil }
func (noNotifier) sweep()                        {}
func (n noNotifier) hints() <-chan struct{}      { return n.never }
func (noNotifier) close() error                  { return nil }

// transient says whether watching one folder failed for a reason of the folder's, and not of the system's.
func transient(err error) bool {
	return slices.ContainsFunc([]error{syscall.ENOENT, syscall.EACCES, syscall.ENOTDIR, syscall.EPERM, syscall.ELOOP}, func(known error) bool {
		return errors.Is(err, known)
	})
}
