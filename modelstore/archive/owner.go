package archive

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/google/uuid"
)

const (
	lockPrefix = ".flambeau-"
	lockSuffix = ".lock"
	partSuffix = ".part"
	dirNameLen = 32
)

// owner says whose the folders below Temp/models are. Each server keeps one lock file there, and writes the name of each folder into it before
// it makes the folder. As long as the server lives it holds the file's lock; a file that can be locked belongs to a dead one, and what it names
// may be removed.
type owner struct {
	models string // Temp/models
	id     string // of this server, in the lock file's name
	path   string // of the lock file

	mu   sync.Mutex // guards file
	file *os.File   // nil once released
}

// claim makes the folder and this server's lock file in it.
func claim(models string, logger *slog.Logger) (*owner, error) {
	if err := os.MkdirAll(models, 0o755); err != nil { //nolint:gosec // TorchServe's own folder, which others may list; what is in it is private
		return nil, fmt.Errorf("the folder for unpacked models cannot be made: %w (set TEMP to a folder that can be written)", err)
	}
	if err := takeFolder(models, logger); err != nil {
		return nil, fmt.Errorf("the folder for unpacked models cannot be used: %w (set TEMP to a folder of your own)", err)
	}
	id := hexID()
	// It gets its final name only after it is locked: an unlocked file of that name is a dead server's.
	fresh := filepath.Join(models, lockPrefix+id+partSuffix)
	file, err := os.OpenFile(fresh, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the folder for unpacked models cannot be written: %w (set TEMP to a folder of your own)", err)
	}
	o := &owner{models: models, id: id, path: filepath.Join(models, lockPrefix+id+lockSuffix), file: file}
	if err := errors.Join(syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB), os.Rename(fresh, o.path)); err != nil {
		return nil, errors.Join(fmt.Errorf("the folder for unpacked models cannot be locked: %w", err), file.Close(), os.Remove(fresh))
	}
	return o, nil
}

// takeFolder makes sure that nobody else can put files into the folder or take them away: what is in it is run. It may be a link of this user's.
func takeFolder(dir string, logger *slog.Logger) error {
	link, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if uid := uidOf(link); link.Mode()&os.ModeSymlink != 0 && uid != os.Geteuid() && uid != 0 {
		return fmt.Errorf("%s is a link of another user's (number %d)", dir, uid)
	}
	folder, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	if err := ownFolder(folder); err != nil {
		return err
	}
	info, err := os.Lstat(folder)
	if err != nil {
		return err
	}
	const others = 0o022
	if info.Mode().Perm()&others == 0 {
		return nil
	}
	logger.Warn("others could write to the folder for unpacked models; this right is taken away", slog.String("folder", folder),
		slog.String("mode", fmt.Sprintf("%04o", info.Mode().Perm())))
	return os.Chmod(folder, info.Mode().Perm()&^others)
}

// ownFolder makes sure that there is a folder of this user's, not a link to one.
func ownFolder(dir string) error {
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a folder", dir)
	case uidOf(info) != os.Geteuid():
		return fmt.Errorf("%s belongs to another user (number %d, and this server is run by number %d)", dir, uidOf(info), os.Geteuid())
	}
	return nil
}

// uidOf gives the number of a file's owner, -1 if it has none.
func uidOf(info os.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return -1
}

// hexID is a fresh name for a folder, as TorchServe's are: 32 hex digits.
func hexID() string { return strings.ReplaceAll(uuid.NewString(), "-", "") }

// record notes a folder's name before it is made.
func (o *owner) record(name string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file == nil {
		return errClosed
	}
	// A short line at the end of a local file: this is the one write under a lock, and it keeps the lines whole.
	_, err := o.file.WriteString(name + "\n")
	return err
}

// release gives the lock file up, and removes Temp/models if nothing is left in it.
func (o *owner) release() error {
	o.mu.Lock()
	file := o.file
	o.file = nil
	o.mu.Unlock()
	if file == nil {
		return nil
	}
	err := errors.Join(os.Remove(o.path), file.Close())
	if rm := os.Remove(o.models); rm != nil && !errors.Is(rm, syscall.ENOTEMPTY) && !errors.Is(rm, syscall.EEXIST) && !os.IsNotExist(rm) {
		return errors.Join(err, rm)
	}
	return err
}

// sweep removes what servers left behind that were killed. What cannot be removed stays, with a warning: it is no reason not to start.
func (o *owner) sweep(logger *slog.Logger) {
	locks, err := filepath.Glob(filepath.Join(o.models, lockPrefix+"*"+lockSuffix))
	if err != nil { // only for a bad pattern: a temp folder with "[" in its name
		locks = nil
	}
	for _, path := range locks {
		if path == o.path {
			continue
		}
		removed, err := sweepOne(o.models, path)
		switch {
		case err != nil:
			logger.Warn("leftovers of a killed server could not be removed", slog.String("lock_file", path), slog.Any("error", err))
		case removed > 0:
			logger.Info("removed leftovers of a killed server", slog.String("folder", o.models), slog.Int("models", removed))
		}
	}
}

// sweepOne removes the folders of the lock file at path if its server is dead.
func sweepOne(models, path string) (removed int, err error) {
	file, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if err != nil {
		if os.IsNotExist(err) {
			return 0, nil
		}
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	var stat syscall.Stat_t
	if err := syscall.Fstat(int(file.Fd()), &stat); err != nil || int(stat.Uid) != os.Geteuid() {
		return 0, err // another user's: it could name what it likes
	}
	if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return 0, nil // its server lives
	}
	names, err := readNames(file)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, name := range names {
		for _, dir := range []string{name, name + partSuffix} {
			full := filepath.Join(models, dir)
			if _, err := os.Lstat(full); err != nil {
				continue
			}
			if err := os.RemoveAll(full); err != nil {
				errs = append(errs, err)
				continue
			}
			removed++
		}
	}
	if len(errs) == 0 {
		errs = append(errs, os.Remove(path))
	}
	return removed, errors.Join(errs...)
}

// readNames gives the folders of a lock file. A line that is no folder's name of ours is left out: it is never a reason to remove something.
func readNames(file *os.File) ([]string, error) {
	var names []string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if name := lines.Text(); isDirName(name) {
			names = append(names, name)
		}
	}
	return names, lines.Err()
}

func isDirName(name string) bool {
	if len(name) != dirNameLen {
		return false
	}
	return strings.Trim(name, "0123456789abcdef") == ""
}
