package watch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// Repository is what the configuration of a model says about its folder in the layout of Triton's model repository.
type Repository struct {
	// Select gives those of versions that are to be served.
	Select func(versions []string) []string
	// Bare says that the folders of the versions need to hold nothing: the model is an ensemble.
	Bare bool
}

// repositoryFile is the configuration of a model in that layout.
const repositoryFile = "config.pbtxt"

// repository looks at a folder in the layout of Triton's model repository: config.pbtxt, and what it names, beside a folder for each version. All of that
// belongs to each version.
func (s *scanner) repository(ctx context.Context, name, dir string, items []os.DirEntry, versions []string) {
	about := s.configured(filepath.Join(dir, repositoryFile), name)
	mine := slices.DeleteFunc(slices.Clone(items), func(item os.DirEntry) bool { return slices.Contains(versions, item.Name()) })
	t := &tree{scanner: s, hash: sha256.New(), seen: map[identity]bool{}}
	t.ancestors(dir)
	t.walk(ctx, dir, "", mine)
	common := hex.EncodeToString(t.hash.Sum(nil)[:fingerprintBytes])
	before := len(s.all)
	for _, version := range versions {
		s.version(ctx, found{path: name + "/" + version, name: name, version: version, versioned: true, beside: common, triton: true}, filepath.Join(dir, version))
	}
	selected := versions
	if about.Select != nil {
		selected = about.Select(versions)
	}
	for i := range s.all[before:] {
		f := &s.all[before+i]
		f.fingerprint = digest(f.fingerprint + common)
		f.superseded = !slices.Contains(selected, f.version)
		if t.newest.After(f.newest) {
			f.newest = t.newest
		}
		if f.problem == emptyFolder && about.Bare {
			f.problem = ""
		}
	}
}

// configured reads the configuration. One that cannot be used is for the one who opens the model to tell of.
func (s *scanner) configured(path, name string) Repository {
	var text []byte
	var err error
	reading(path, func(r io.Reader) { text, err = io.ReadAll(io.LimitReader(r, maxConfigBytes)) })
	if err != nil || s.about == nil {
		return Repository{}
	}
	return s.about(text, name)
}
