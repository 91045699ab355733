package snapshot

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Found is the snapshot to start with.
type Found struct {
	Path    string // "" for none
	Own     bool   // Flambeau has written it, and not TorchServe
	Skipped []Skipped
}

// Skipped is a newer file that cannot be used.
type Skipped struct {
	Path   string
	Reason string
}

var names = regexp.MustCompile(`^\d{17}-(startup|snapshot|shutdown)\.cfg$`) //nolint:gochecknoglobals // a constant

const mostBytes = 64 << 20 // of one file; TorchServe's have some kilobytes

// Find gives the newest snapshot of a folder that is whole and that readable takes. What else lies in the folder does not matter. An error is about the
// folder; one that is not there has no snapshots.
func Find(dir string, readable func(data []byte) error) (Found, error) {
	var found Found
	all, err := list(dir)
	if err != nil {
		return found, err
	}
	for _, name := range slices.Backward(all) {
		path := filepath.Join(dir, name)
		data, err := read(path)
		if err == nil && !complete(data) {
			err = errors.New("its end is missing")
		}
		if err == nil {
			err = readable(data)
		}
		if err == nil {
			found.Path, found.Own = path, isOwn(data)
			return found, nil
		}
		found.Skipped = append(found.Skipped, Skipped{path, err.Error()})
	}
	return found, nil
}

// list gives the names of the snapshots of a folder, the oldest first.
func list(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the folder of snapshots cannot be read: %w", err)
	}
	var all []string
	for _, entry := range entries {
		if names.MatchString(entry.Name()) {
			all = append(all, entry.Name())
		}
	}
	slices.SortFunc(all, strings.Compare)
	return all, nil
}

// read gives the content of a regular file, within bounds.
func read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a file")
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	data, err := io.ReadAll(io.LimitReader(file, mostBytes+1))
	if err == nil && len(data) > mostBytes {
		err = fmt.Errorf("it has more than %d bytes", mostBytes)
	}
	return data, err
}
