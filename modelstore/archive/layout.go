package archive

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// onnxName is what a folder's ONNX model is called, also the folder that a bare NAME.onnx is unpacked to.
const onnxName = "model.onnx"

// kind is how an archive file is read.
type kind string

const (
	zipKind  kind = "zip"
	tarKind  kind = "tar.gz"
	onnxKind kind = "onnx"
)

// kindOf tells the kind by the file's name. TorchServe takes all that is not named .mar for a tar file.
func kindOf(name string) kind {
	switch {
	case strings.HasSuffix(name, ".mar"):
		return zipKind
	case strings.HasSuffix(name, ".onnx"):
		return onnxKind
	default:
		return tarKind
	}
}

// archiveSuffixes are the endings of archive files; .model is one of TorchServe's.
func archiveSuffixes() []string { return []string{".mar", ".tar.gz", ".tgz", ".model", ".onnx"} }

// isArchiveName says whether a file is an archive by its name.
func isArchiveName(name string) bool {
	return slices.ContainsFunc(archiveSuffixes(), func(suffix string) bool { return strings.HasSuffix(name, suffix) && name != suffix })
}

// layout is what a model's place in the store says about it.
type layout struct {
	name    string
	version string // "" unless its folder is named by a version
}

// layoutOf reads a path in the store: "resnet.mar" and "resnet/" are resnet, "resnet/2" and all below it version 2 of resnet.
func layoutOf(place string) layout {
	place = path.Clean(place)
	base := path.Base(place)
	for _, suffix := range archiveSuffixes() {
		if stem, ok := strings.CutSuffix(base, suffix); ok && stem != "" {
			base = stem
			if parent := path.Base(path.Dir(place)); isVersion(parent) && path.Dir(path.Dir(place)) != "." {
				return layout{name: path.Base(path.Dir(path.Dir(place))), version: parent}
			}
			break
		}
	}
	if parent := path.Base(path.Dir(place)); isVersion(base) && base == path.Base(place) && parent != "." && parent != "/" {
		return layout{name: parent, version: base}
	}
	return layout{name: base}
}

// isVersion says whether a folder's name is a version: numbers with dots between them.
func isVersion(name string) bool {
	for part := range strings.SplitSeq(name, ".") {
		if part == "" || strings.Trim(part, "0123456789") != "" {
			return false
		}
	}
	return true
}

// fileBase is the name of last resort of an entry: TorchServe's for a model of the store that does not name itself, the layout's where TorchServe
// knows none.
func (l layout) fileBase(place string) string {
	if l.version != "" || kindOf(place) == onnxKind {
		return l.name
	}
	return fileBase(place)
}

// ignored says whether a file of a folder is no part of a model: hidden files, what editors and copies leave while they work, and what Python writes
// beside the code that it runs.
func ignored(name string) bool {
	if name == "" || name[0] == '.' || name == "__pycache__" || name == "lost+found" {
		return true
	}
	return slices.ContainsFunc([]string{"~", ".pyc", ".swp", ".tmp", ".part", ".partial"}, func(suffix string) bool {
		return strings.HasSuffix(name, suffix)
	})
}

// soleArchive gives the archive file of a version's folder that holds nothing else, "" if that is not so.
func soleArchive(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return ignored(e.Name()) })
	if len(entries) != 1 || !isArchiveName(entries[0].Name()) || entries[0].Name() == onnxName {
		return "", nil
	}
	file := filepath.Join(dir, entries[0].Name())
	if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
		return "", err
	}
	return file, nil
}

// entryPath makes a path in the store one of this system. It never leads out of the store.
func entryPath(place string) (string, error) {
	clean := path.Clean(place)
	switch {
	case place == "" || clean == ".":
		return "", errors.New("it is empty")
	case strings.ContainsRune(place, 0):
		return "", errors.New("it has a NUL in it")
	case !filepath.IsLocal(filepath.FromSlash(clean)) || slices.Contains(strings.Split(place, "/"), ".."):
		return "", fmt.Errorf("%q leads out of the model store", place)
	}
	return filepath.FromSlash(clean), nil
}
