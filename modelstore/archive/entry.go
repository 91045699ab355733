package archive

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/modelstore/pbtxt"
)

// OpenEntry gives the model at a place of the store: an archive file, a folder, or a version's folder, whose only archive file stands for it. Unlike Open it
// never takes a damaged file for an empty model. Its error is ErrChanged (errors.Is) when the file was written to meanwhile.
func (s *Store) OpenEntry(ctx context.Context, place string) (*Archive, error) {
	if s.store == "" {
		return nil, fault.New(fault.ModelNotFound, "Model store has not been configured.", nil)
	}
	rel, err := entryPath(place)
	if err != nil {
		return nil, fault.Newf(fault.ModelNotFound, "%q is no place in the model store: %v", place, err)
	}
	slashed := filepath.ToSlash(rel)
	l := layoutOf(slashed)
	a := &Archive{URL: place, FileBase: l.fileBase(slashed), Source: slashed, store: s, layout: l}
	return s.opened(ctx, a, place, func(ctx context.Context) error { return s.openStrictly(ctx, filepath.Join(s.store, rel), a) })
}

// OpenFile is OpenEntry for an archive file or a folder anywhere. It needs no store.
func (s *Store) OpenFile(ctx context.Context, path string) (*Archive, error) {
	abs, err := filepath.Abs(path)
	if err != nil || path == "" || strings.ContainsRune(path, 0) {
		return nil, fault.Newf(fault.ModelNotFound, "Model not found at: %s", path)
	}
	place := filepath.ToSlash(abs)
	if isArchiveName(abs) { // outside of a store a folder named 2026 is no version
		place = filepath.Base(abs)
	}
	l := layoutOf(place)
	a := &Archive{URL: path, FileBase: l.fileBase(place), store: s, layout: l}
	return s.opened(ctx, a, path, func(ctx context.Context) error { return s.openStrictly(ctx, abs, a) })
}

// openStrictly opens what is at path.
func (s *Store) openStrictly(ctx context.Context, path string, a *Archive) error {
	info, err := os.Stat(path)
	if err != nil {
		return &fault.Error{Kind: fault.ModelNotFound, Message: "Model not found at: " + a.URL, Cause: err}
	}
	file := path
	switch {
	case info.IsDir() && (a.layout.version == "" || isFile(filepath.Join(filepath.Dir(path), pbtxt.File))):
		return s.openFolder(ctx, path, a)
	case info.IsDir():
		if file, err = soleArchive(path); err != nil {
			return err
		}
		if file == "" {
			return s.openFolder(ctx, path, a)
		}
	case !info.Mode().IsRegular():
		return refuse("", "it is neither a file nor a folder")
	case !isArchiveName(path):
		return refuse("archives are named .mar, .tgz, .tar.gz, .model or .onnx", "its name %q is not one of an archive", filepath.Base(path))
	}
	return s.openFile(ctx, file, a, true)
}

// openFolder opens a folder in place.
func (s *Store) openFolder(ctx context.Context, dir string, a *Archive) error {
	if err := s.link(ctx, dir, a, true); err != nil {
		return err
	}
	if a.layout.version != "" {
		a.beside = filepath.Dir(dir)
	}
	if err := a.besideSum(ctx); err != nil {
		return err
	}
	if info, err := os.Stat(filepath.Join(a.Dir, onnxName)); err == nil && info.Mode().IsRegular() {
		return checkONNXFile(filepath.Join(a.Dir, onnxName))
	}
	return nil
}
