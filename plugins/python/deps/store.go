package deps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	layout     = "v1" // folder for entries of this form
	lockSuffix = ".lock"
	partSuffix = ".part"
	lockPause  = 200 * time.Millisecond // between two tries to get a lock
	unusedFor  = 30 * 24 * time.Hour    // after this an entry that nobody holds is removed
)

// store is the folder with the entries. An entry KEY is a folder, complete from the moment that it has its name; KEY.part is one that is being made.
// KEY.lock is locked exclusively by who makes or removes an entry, and shared by who uses it; its time is that of the last use.
type store struct{ dir string }

// openStore gives the first folder that can be used.
func openStore(folders []string) (store, error) {
	var errs []error
	for _, folder := range folders {
		s := store{filepath.Join(folder, layout)}
		err := s.claim()
		if err == nil {
			return s, nil
		}
		errs = append(errs, err)
	}
	return store{}, fmt.Errorf("there is no folder for installed packages: %w; name one by dependency_cache in config.properties", errors.Join(errs...))
}

// claim makes the folder, or makes sure that it is this user's: what is in it is run.
func (s store) claim() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(s.dir)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s belongs to another user, or others may write to it (mode %04o)", s.dir, info.Mode().Perm())
	}
	return nil
}

func (s store) path(key string) string { return filepath.Join(s.dir, key) }

func (s store) has(key string) bool {
	_, err := os.Stat(s.path(key))
	return err == nil
}

// take gives an entry. If it is not there, build makes its contents in the folder that it is given, which has the entry's name only afterwards.
func (s store) take(ctx context.Context, key string, log *slog.Logger, build func(part string) error) (*held, error) {
	tick := time.NewTicker(lockPause)
	defer tick.Stop()
	for waited := false; ; {
		kept, err := s.lock(key, syscall.LOCK_SH)
		if err != nil {
			return nil, err
		}
		if kept != nil && s.has(key) {
			return kept, nil
		}
		kept.release()
		if kept, err = s.lock(key, syscall.LOCK_EX); err != nil {
			return nil, err
		}
		if kept != nil {
			err := s.fill(key, log, build)
			if err != nil {
				_ = os.Remove(s.path(key + lockSuffix)) // a lock on nothing; prune would remove it one day
			}
			kept.release()
			if err != nil {
				return nil, err
			}
			continue
		}
		if !waited {
			waited = true
			log.InfoContext(ctx, "the model's packages are being installed already; waiting", "path", s.path(key))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for %s: %w", s.path(key+lockSuffix), context.Cause(ctx))
		}
	}
}

// fill makes an entry; its lock is held exclusively.
func (s store) fill(key string, log *slog.Logger, build func(part string) error) error {
	if s.has(key) {
		return nil
	}
	part := s.path(key + partSuffix)
	if err := os.RemoveAll(part); err != nil { // a killed server's
		return err
	}
	if err := os.Mkdir(part, 0o700); err != nil {
		return err
	}
	if err := build(part); err != nil {
		return errors.Join(err, os.RemoveAll(part))
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(part, "tmp")), os.Rename(part, s.path(key))); err != nil {
		return errors.Join(err, os.RemoveAll(part))
	}
	s.prune(log)
	return nil
}

// prune removes what nobody has used for a long time, and what killed servers have left half made. An error only means that it stays.
func (s store) prune(log *slog.Logger) {
	locks, err := filepath.Glob(filepath.Join(s.dir, "*"+lockSuffix))
	if err != nil { // only for a bad pattern: a folder with "[" in its name
		return
	}
	for _, path := range locks {
		key := strings.TrimSuffix(filepath.Base(path), lockSuffix)
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		old := time.Since(info.ModTime()) > unusedFor
		if _, err := os.Stat(s.path(key + partSuffix)); !old && err != nil {
			continue
		}
		kept, err := s.lock(key, syscall.LOCK_EX)
		if err != nil || kept == nil { // somebody uses it
			continue
		}
		err = os.RemoveAll(s.path(key + partSuffix))
		if old {
			err = errors.Join(err, os.RemoveAll(s.path(key)), os.Remove(path))
		}
		kept.release()
		if err != nil {
			log.Warn("unused packages could not be removed", "path", s.path(key), "error", err.Error())
		} else {
			log.Info("unused packages were removed", "path", s.path(key))
		}
	}
}

// lock locks an entry, which need not be there. It gives nil if somebody else has it.
func (s store) lock(key string, how int) (*held, error) {
	path := s.path(key + lockSuffix)
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		err = syscall.Flock(int(file.Fd()), how|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, file.Close()
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
		}
		mine, err := file.Stat()
		if err != nil {
			return nil, errors.Join(err, file.Close())
		}
		// Whoever removes an entry removes its lock file, too: then this is a lock on nothing.
		there, err := os.Stat(path)
		if err == nil && os.SameFile(mine, there) {
			return &held{file: file}, nil
		}
		if closing := file.Close(); closing != nil || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(err, closing)
		}
	}
}

// held is a lock.
type held struct {
	mu   sync.Mutex // guards file
	file *os.File   // nil once released
}

// release gives the lock up, and notes that the entry was used until now. A nil one holds nothing.
func (h *held) release() {
	if h == nil {
		return
	}
	h.mu.Lock()
	file := h.file
	h.file = nil
	h.mu.Unlock()
	if file == nil {
		return
	}
	now := time.Now()
	_ = os.Chtimes(file.Name(), now, now) // it may be gone
	_ = file.Close()                      // nothing was written
}
