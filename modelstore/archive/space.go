package archive

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// spaceError says that a disk is full, or would be.
type spaceError struct {
	dir   string
	need  int64 // bytes that are still to be written, 0 when not known
	left  int64
	cause error
}

func (e *spaceError) Error() string {
	if e.need <= 0 {
		return fmt.Sprintf("there is no room left in %s: %d bytes are left, and the model needs more", e.dir, e.left)
	}
	return fmt.Sprintf("there is no room left in %s: the model needs at least %d bytes more, and %d bytes are left", e.dir, e.need, e.left)
}

func (e *spaceError) Unwrap() error { return e.cause }

// roomFor says whether so many bytes can still be written to a folder.
func (s *Store) roomFor(dir string, need int64) error {
	left, err := s.free(dir)
	if err != nil || need <= left { // a file system that does not tell will tell when it is full
		return nil //nolint:nilerr // see above
	}
	return &spaceError{dir: dir, need: need, left: left, cause: syscall.ENOSPC}
}

// asSpace makes a write error that means a full disk one that tells how full it is.
func (s *Store) asSpace(dir string, need int64, err error) error {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	if known := (*spaceError)(nil); errors.As(err, &known) {
		return err
	}
	left, freeErr := s.free(dir)
	if freeErr != nil {
		return err
	}
	return &spaceError{dir: dir, need: need, left: left, cause: err}
}

// freeBytes is how much this user can still write to the file system of a folder.
func freeBytes(dir string) (int64, error) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(dir, &stat); err != nil {
		return 0, err
	}
	blocks := stat.Bavail
	if os.Geteuid() == 0 {
		blocks = stat.Bfree
	}
	return int64(blocks) * stat.Bsize, nil
}
