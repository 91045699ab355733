package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// Keep is Close, but the unpacked folder goes to the path into, where nothing may be yet, instead of being removed; OpenKept opens it again. The folder
// is there whole or not at all, even if the machine crashes; what is left of a move that was broken off is named into + ".part". After an error the
// archive is still open. A folder that is used in place cannot be kept, for it may change at any time.
func (a *Archive) Keep(into string) error {
	switch {
	case a.InPlace:
		return fmt.Errorf("the model's folder %s is used in place, and may change at any time: there is nothing to keep; serve the model from an archive file "+
			"to have earlier ones at hand", a.URL)
	case a.Kept && filepath.Clean(a.Dir) == filepath.Clean(into):
		return nil
	case a.Kept:
		return fmt.Errorf("the model is kept in %s already", a.Dir)
	case a.store == nil:
		return errors.New("the model has no folder of its own")
	}
	if _, err := os.Lstat(into); err == nil {
		return fmt.Errorf("there is something at %s already", into)
	}
	if err := os.MkdirAll(filepath.Dir(into), 0o700); err != nil {
		return fmt.Errorf("the folder for earlier models: %w", err)
	}
	f, last := a.store.leave(a)
	if f == nil {
		return errors.New("the model's folder is gone already")
	}
	if err := a.store.keep(f.root, into, last); err != nil {
		a.store.back(a)
		return fmt.Errorf("the model could not be kept in %s: %w", into, err)
	}
	if last {
		a.store.gone(f)
	}
	return nil
}

// keep moves a folder to another place, or copies it if it is still used here.
func (s *Store) keep(root, into string, move bool) error {
	if move {
		if err := syncTree(root); err != nil {
			return err
		}
		err := os.Rename(root, into)
		if err == nil {
			return syncFolder(filepath.Dir(into))
		}
		if !errors.Is(err, syscall.EXDEV) {
			return err
		}
	}
	part := into + partSuffix
	if err := removeTree(part); err != nil {
		return err
	}
	err := s.copyTree(root, part)
	if err == nil {
		err = syncTree(part)
	}
	if err == nil {
		err = os.Rename(part, into)
	}
	if err != nil {
		return errors.Join(err, removeTree(part))
	}
	err = syncFolder(filepath.Dir(into))
	if move {
		err = errors.Join(err, removeRoot(root))
	}
	return err
}

// copyTree copies a folder. Links stay links; sockets and the like, which only a handler can have made, are left out.
func (s *Store) copyTree(from, to string) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	source, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	target, err := os.OpenRoot(to)
	if err == nil {
		err = fs.WalkDir(source.FS(), ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil || path == "." {
				return err
			}
			return copyEntry(source, target, path, d)
		})
		err = errors.Join(err, target.Close())
	}
	return s.asSpace(filepath.Dir(to), 0, errors.Join(err, source.Close()))
}

func copyEntry(source, target *os.Root, path string, d fs.DirEntry) error {
	switch {
	case d.IsDir():
		return target.Mkdir(path, 0o700)
	case d.Type()&fs.ModeSymlink != 0:
		leads, err := source.Readlink(path)
		if err != nil {
			return err
		}
		return target.Symlink(leads, path)
	case d.Type().IsRegular():
		return copyFile(source, target, path)
	default:
		return nil
	}
}

func copyFile(source, target *os.Root, path string) error {
	r, err := source.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // it was only read from
	info, err := r.Stat()
	if err != nil {
		return err
	}
	w, err := target.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm()|0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}

// syncTree makes sure that a folder survives a crash of the machine as it is.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() && !d.Type().IsRegular() {
			return err
		}
		return syncFolder(path)
	})
}

// syncFolder writes a folder or a file to the disk.
func syncFolder(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	err = file.Sync()
	if errors.Is(err, syscall.EINVAL) { // file systems that keep nothing
		err = nil
	}
	return errors.Join(err, file.Close())
}

// OpenKept gives a folder that Keep left as a model. url is what it is called, source where it lay in the store, digest what its archive's digest was.
// Close does not remove the folder.
func (s *Store) OpenKept(ctx context.Context, dir, url, source, digest string) (*Archive, error) {
	place := source
	if place == "" {
		place = parseLocation(url, s.fetcher != nil).base
	}
	l := layoutOf(place)
	a := &Archive{URL: url, FileBase: l.fileBase(place), Kept: true, Digest: digest, Source: source, store: s, layout: l}
	return s.opened(ctx, a, url, func(ctx context.Context) (err error) {
		if a.Dir, err = filepath.Abs(dir); err != nil {
			return err
		}
		if err := ownFolder(a.Dir); err != nil {
			return &fault.Error{Kind: fault.ModelNotFound, Message: "The kept archive of " + url + " cannot be used", Cause: err}
		}
		_, a.Bytes, err = treeSum(ctx, a.Dir)
		return err
	})
}
