// Package atomicfile replaces small files as a whole, so that a reader finds the old content or the new one, whatever happens meanwhile.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const tempSuffix = ".tmp"

// Write makes data the content of path. It returns when that will survive the end of the process and of the machine. On failure path is what it was.
func Write(path string, data []byte, perm fs.FileMode) error {
	return WriteFrom(filepath.Base(path), filepath.Dir(path), path, data, perm)
}

// WriteFrom is Write for a file that grows in the folder scratch, under a hidden name made of name. The folder must be on path's file system.
func WriteFrom(name, scratch, path string, data []byte, perm fs.FileMode) (err error) {
	file, err := os.CreateTemp(scratch, tempPrefix(name)+"*"+tempSuffix)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreGone(os.Remove(file.Name())))
		}
	}()
	_, err = file.Write(data)
	if err == nil {
		err = file.Chmod(perm)
	}
	if err == nil {
		err = file.Sync() // without it a machine that loses its power may keep the name and not the content
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes the names in a folder survive the end of the machine. File systems that cannot do it for folders are left as they are.
func SyncDir(dir string) error {
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	_ = folder.Sync() // several network file systems refuse it for folders
	return folder.Close()
}

// Sweep removes what was left in scratch by writers with that name that were killed, if it is older than age.
func Sweep(name, scratch string, age time.Duration) error {
	entries, err := os.ReadDir(scratch)
	if err != nil {
		return ignoreGone(err)
	}
	var errs []error
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), tempPrefix(name)) || !strings.HasSuffix(entry.Name(), tempSuffix) || !entry.Type().IsRegular() {
			continue
		}
		info, err := entry.Info()
		if err != nil || time.Since(info.ModTime()) < age {
			continue // gone meanwhile, or perhaps still being written
		}
		errs = append(errs, ignoreGone(os.Remove(filepath.Join(scratch, entry.Name()))))
	}
	return errors.Join(errs...)
}

func tempPrefix(name string) string { return "." + name + "-" }

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
