package snapshot

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/internal/atomicfile"
)

// Options say where snapshots go.
type Options struct {
	// Dir is their folder: TorchServe's is config in the log folder. It is made, and the folder that it is in, if they are not there; files grow in the
	// latter.
	Dir string
	// Keep is how many files of Flambeau's own are kept; TorchServe's are never removed. 0: 20.
	Keep int
}

const (
	defaultKeep = 20
	scratchName = "snapshot"  // of the files that grow
	scratchAge  = time.Minute // a file that grew for that long was left behind
)

// Writer writes snapshots. It is not safe for concurrent use.
type Writer struct {
	dir  string
	keep int
}

// NewWriter makes a writer.
func NewWriter(opts Options) (*Writer, error) {
	if opts.Dir == "" {
		return nil, errors.New("snapshot: Dir is required")
	}
	if opts.Keep <= 0 {
		opts.Keep = defaultKeep
	}
	return &Writer{dir: opts.Dir, keep: opts.Keep}, nil
}

// Write writes a snapshot, newer than all that there are, and gives its path. It returns when the file will be found by the next start. Older ones of
// Flambeau's own are removed.
func (w *Writer) Write(kind Kind, at time.Time, settings []Setting, models []Model) (string, error) {
	if err := os.MkdirAll(w.dir, 0o755); err != nil { //nolint:gosec // as TorchServe's; the files in it are private
		return "", fmt.Errorf("the folder of snapshots cannot be made: %w", err)
	}
	all, err := list(w.dir)
	if err != nil {
		return "", err
	}
	name := nextName(all, kind, at)
	data, err := encode(name, at, settings, models)
	if err != nil {
		return "", err
	}
	path := filepath.Join(w.dir, name)
	scratch, err := w.write(path, data)
	if err != nil {
		return "", err
	}
	return path, errors.Join(atomicfile.Sweep(scratchName, scratch, scratchAge), w.prune(append(all, name)))
}

// write brings the file in, and gives the folder that it grew in.
func (w *Writer) write(path string, data []byte) (scratch string, err error) {
	scratch, err = filepath.EvalSymlinks(w.dir) // the folder beside it must be on the same file system
	if err == nil {
		scratch = filepath.Dir(scratch)
		err = atomicfile.WriteFrom(scratchName, scratch, path, data, 0o600)
	}
	if err != nil { // a folder that is a volume of its own, say
		scratch = w.dir
		err = atomicfile.WriteFrom(scratchName, scratch, path, data, 0o600)
	}
	return scratch, err
}

// nextName names a snapshot by the moment, or by one after the last snapshot if that is later: clocks go back.
func nextName(all []string, kind Kind, at time.Time) string {
	const seconds, digits = "20060102150405", 17
	moment := strings.Replace(at.Format(seconds+".000"), ".", "", 1)
	if len(all) > 0 {
		if last := all[len(all)-1][:digits]; moment <= last {
			moment = increment(last)
		}
	}
	return moment + "-" + string(kind) + ".cfg"
}

// increment adds one to a number of decimal digits. It need not be a moment any more: names are compared as texts, here and by TorchServe.
func increment(number string) string {
	digits := []byte(number)
	for i := len(digits) - 1; i >= 0; i-- {
		if digits[i] < '9' {
			digits[i]++
			return string(digits)
		}
		digits[i] = '0'
	}
	return number // all nines: there is no later name
}

// prune removes the oldest of Flambeau's own files.
func (w *Writer) prune(all []string) error {
	var errs []error
	own := 0
	for _, name := range slices.Backward(all) {
		path := filepath.Join(w.dir, name)
		if !beginsAsOwn(path) {
			continue
		}
		if own++; own > w.keep {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

func beginsAsOwn(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }() // it was only read
	var begin [len(firstLine) + 1]byte
	_, err = io.ReadFull(file, begin[:])
	return err == nil && isOwn(begin[:])
}
