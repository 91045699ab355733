package watch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/flambeau-serve/flambeau/modelstore/pbtxt"
)

// repository looks at a folder in the layout of Triton's model repository: config.pbtxt, and what it names, beside a folder for each version. All of that
// belongs to each version.
func (s *scanner) repository(ctx context.Context, name, dir string, items []os.DirEntry, versions []string) {
	c := readConfig(filepath.Join(dir, pbtxt.File), name)
	mine := slices.DeleteFunc(slices.Clone(items), func(item os.DirEntry) bool { return slices.Contains(versions, item.Name()) })
	t := &tree{scanner: s, hash: sha256.New(), seen: map[identity]bool{}}
	t.ancestors(dir)
	t.walk(ctx, dir, "", mine)
	common := hex.EncodeToString(t.hash.Sum(nil)[:fingerprintBytes])
	before := len(s.all)
	for _, version := range versions {
		s.version(ctx, found{path: name + "/" + version, name: name, version: version, versioned: true, beside: common}, filepath.Join(dir, version))
	}
	selected := versions
	if c != nil {
		selected = c.Policy.Select(versions)
	}
	for i := range s.all[before:] {
		f := &s.all[before+i]
		f.fingerprint = digest(f.fingerprint + common)
		f.superseded = !slices.Contains(selected, f.version)
		if t.newest.After(f.newest) {
			f.newest = t.newest
		}
		if f.problem == emptyFolder && c != nil && c.Ensemble != nil { // an ensemble has nothing in there
			f.problem = ""
		}
	}
}

// readConfig reads a config.pbtxt; nil when it cannot be used, which is for the one who opens the model to tell.
func readConfig(path, name string) *pbtxt.Config {
	var text []byte
	var err error
	reading(path, func(r io.Reader) { text, err = io.ReadAll(io.LimitReader(r, pbtxt.MaxBytes+1)) })
	if err != nil || text == nil {
		return nil
	}
	c, err := pbtxt.Parse(text, name)
	if err != nil {
		return nil
	}
	return c
}
