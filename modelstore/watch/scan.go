package watch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of what one scan looks at. An entry beyond them is incomplete, with the reason.
const (
	maxItems  = 200_000   // files and folders of one entry; archives have the same bound
	maxLooked = 1_000_000 // of the whole store
	maxDepth  = 64        // folders within folders
)

// found is one entry as a scan has seen it.
type found struct {
	path          string
	kind          Kind
	name, version string
	versioned     bool
	fingerprint   string
	bytes         int64
	patient       bool      // it settles as folders do
	newest        time.Time // the last change that the file system knows of
	beside        string    // of a version: a fingerprint of what lies beside the versions' folders
	file          string    // the file to look into, "" for none
	stat          fs.FileInfo
	problem       string // why it cannot be read, "" if it can
	unknown       bool   // a folder of which it cannot be said whether it holds versions
	triton        bool   // config.pbtxt lies beside it
	superseded    bool   // a version that the model's config.pbtxt does not want served
}

// scanner reads the store once.
type scanner struct {
	watch func(dir string, only ...string) // called for each folder before it is listed
	// versioned says whether a folder held versions before: another folder beside them, which may be a new one in the making, does not end that.
	versioned func(name string) bool
	// plugin says whether a folder was a plugin before: a damaged copy over its program does not end that, nor make versions of folders in it.
	plugin func(name string) bool
	about  func(text []byte, model string) Repository // of a configuration; nil: it says nothing
	looked int
	all    []found
}

// scan lists the entries of the store. An error means that the store cannot be read.
func (s *scanner) scan(ctx context.Context, root string) ([]found, error) {
	dir, err := s.follow(root)
	if err != nil {
		return nil, fmt.Errorf("the model store cannot be read: %w", err)
	}
	s.watch(dir)
	items, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("the model store cannot be read: %w", err)
	}
	s.looked += len(items)
	for _, item := range items {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s.item(ctx, dir, item)
	}
	slices.SortFunc(s.all, func(a, b found) int { return strings.Compare(a.path, b.path) })
	return s.all, ctx.Err()
}

// Versions gives the places of a folder of the store that are versions of one model, such as resnet/2, as the folder is at this moment: none when it is a
// model itself, or cannot be read. Nothing but its names is looked at.
func Versions(store, name string) []string {
	dir := filepath.Join(store, name)
	items, err := (&scanner{watch: func(string, ...string) {}}).list(dir)
	if err != nil {
		return nil
	}
	has, versions, others := content(dir, name, items)
	if !has.repository(versions) && (has.model() || others) {
		return nil
	}
	for i, version := range versions {
		versions[i] = name + "/" + version
	}
	return versions
}

// follow gives what a path leads to, and watches the places that decide it. They are watched first and looked at then, so that no change falls
// between the two.
func (s *scanner) follow(path string) (string, error) {
	const tries = 4 // each further one is a change in the meantime, of which the watcher tells
	var seen []spot
	for try := 1; ; try++ {
		target, spots, err := trail(path)
		if try == tries || try > 1 && slices.Equal(seen, spots) {
			return target, err
		}
		seen = spots
		for _, at := range spots {
			s.watch(at.dir, at.name)
		}
	}
}

// item looks at one name of the store.
func (s *scanner) item(ctx context.Context, store string, item os.DirEntry) {
	name := item.Name()
	kind, model, known := fileKind(name)
	if !known && item.Type().IsRegular() || ignored(name, item.IsDir()) {
		return
	}
	path, err := filepath.Join(store, name), error(nil)
	if item.Type()&fs.ModeSymlink != 0 {
		if path, err = s.follow(path); errors.Is(err, fs.ErrNotExist) {
			if link, gone := os.Readlink(filepath.Join(store, name)); gone == nil {
				err = partial(fmt.Sprintf("the link leads nowhere: %s is not there", link))
			}
		}
	}
	var info fs.FileInfo
	if err == nil {
		info, err = os.Lstat(path)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist): // removed since it was listed
	case err != nil && (known || item.IsDir() || !strings.Contains(name, ".")):
		if !known {
			kind = Folder
		}
		s.add(found{path: name, kind: kind, name: model, problem: unreadable(err), unknown: !known})
	case err != nil: // a link to something that does not look like a model
	case info.IsDir():
		if !ignored(name, true) {
			s.folder(ctx, name, path)
		}
	case known && !info.Mode().IsRegular():
		s.add(found{path: name, kind: kind, name: model, problem: "it is neither a file nor a folder"})
	case known:
		s.add(file(found{path: name, kind: kind, name: model}, path, info))
	}
}

// unreadable makes a reason of an error of the file system.
func unreadable(err error) string {
	if p, known := errors.AsType[partial](err); known {
		return string(p)
	}
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Sprintf("it cannot be read: permission denied; give the server's user (id %d) the right to read it", os.Geteuid())
	}
	return "it cannot be read: " + because(err)
}

func (s *scanner) add(f found) {
	if f.problem != "" && f.fingerprint == "" {
		f.fingerprint = digest("problem " + f.problem)
	}
	s.all = append(s.all, f)
}

// folder looks at a folder of the store: an unpacked archive, or one with a folder for each version.
func (s *scanner) folder(ctx context.Context, name, dir string) {
	items, err := s.list(dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.add(found{path: name, kind: Folder, problem: unreadable(err), unknown: true})
		}
		return
	}
	has, versions, others := content(dir, name, items)
	has.plugin = has.plugin || has.executable && s.plugin(name)
	if has.repository(versions) {
		s.repository(ctx, name, dir, items, versions)
		return
	}
	if has.model() || len(versions) == 0 || others && !s.versioned(name) {
		f := found{path: name, kind: Folder}
		if kind := has.kind(); kind != Folder {
			f.kind, f.name = kind, name
		}
		s.add(s.tree(ctx, f, dir, items))
		return
	}
	beside := beside(items, versions)
	for _, version := range versions {
		s.version(ctx, found{path: name + "/" + version, name: name, version: version, versioned: true, beside: beside}, filepath.Join(dir, version))
	}
}

// list watches a folder, then reads it.
func (s *scanner) list(dir string) ([]os.DirEntry, error) {
	s.watch(dir)
	items, err := os.ReadDir(dir)
	s.looked += len(items)
	return slices.DeleteFunc(items, func(item os.DirEntry) bool { return ignored(item.Name(), item.IsDir()) }), err
}

// contents says which of the names that tell models from folders of versions a folder has. executable: a file that is called as the model may be executed.
type contents struct{ manifest, config, onnx, plugin, triton, executable bool }

func (c contents) model() bool { return c.manifest || c.config || c.onnx || c.plugin }

// repository says whether the folder is one of Triton's layout.
func (c contents) repository(versions []string) bool {
	return c.triton && !c.manifest && len(versions) > 0
}

// kind is how a folder is opened.
func (c contents) kind() Kind {
	switch {
	case c.manifest:
		return Folder
	case c.plugin:
		return Plugin
	case c.onnx:
		return ONNX
	}
	return Folder
}

// content looks at the names in the folder of a model. versions are the folders in it that have a version's name, and others says whether there are more.
func content(dir, model string, items []os.DirEntry) (has contents, versions []string, others bool) {
	for _, item := range items {
		isDir := item.IsDir()
		if item.Type()&fs.ModeSymlink != 0 {
			info, err := os.Stat(filepath.Join(dir, item.Name()))
			isDir = err == nil && info.IsDir()
		}
		switch name := item.Name(); {
		case name == manifestFolder && isDir:
			has.manifest = true
		case name == configFile && !isDir:
			has.config = true
			has.plugin = has.plugin || namesPlugin(filepath.Join(dir, name))
		case name == repositoryFile && !isDir:
			has.triton = true
		case name == onnxFile && !isDir:
			has.onnx = true
		case name == model && !isDir:
			path := filepath.Join(dir, name)
			has.plugin, has.executable = has.plugin || isProgram(path), isExecutable(path)
		case isDir && isVersion(name):
			versions = append(versions, name)
		case isDir:
			others = true
		}
	}
	return has, versions, others
}

// beside is a fingerprint of the files of a folder of versions. While they change, an unpacked archive with a folder named like a version may be
// on its way.
func beside(items []os.DirEntry, versions []string) string {
	var lines []byte
	for _, item := range items {
		if slices.Contains(versions, item.Name()) {
			continue
		}
		if info, err := item.Info(); err == nil {
			lines = line(lines, item.Name(), info)
		}
	}
	return digest(string(lines))
}

// version looks at the folder of one version. One that holds nothing but an archive file stands for that.
func (s *scanner) version(ctx context.Context, f found, dir string) {
	f.kind = Folder
	dir, err := filepath.EvalSymlinks(dir)
	var items []os.DirEntry
	if err == nil {
		items, err = s.list(dir)
	}
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			f.problem = unreadable(err)
			s.add(f)
		}
		return
	}
	if sole, ok := s.soleArchive(f, dir, items); ok && !f.triton {
		s.add(sole)
		return
	}
	has, _, _ := content(dir, f.name, items)
	has.plugin = has.plugin || has.executable && s.plugin(f.path)
	f.kind = has.kind()
	s.add(s.tree(ctx, f, dir, items))
}

// soleArchive fills in what is known of a version whose folder holds nothing but an archive file.
func (s *scanner) soleArchive(f found, dir string, items []os.DirEntry) (found, bool) {
	if len(items) != 1 || items[0].Name() == onnxFile {
		return f, false
	}
	kind, _, archive := fileKind(items[0].Name())
	if !archive {
		return f, false
	}
	path, err := s.follow(filepath.Join(dir, items[0].Name()))
	if err != nil {
		return f, false
	}
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() {
		return f, false
	}
	f = file(f, path, info)
	f.kind, f.patient = kind, true // a first file may be followed by others
	return f, true
}

// file fills in what is known of an entry that is one file.
func file(f found, path string, info fs.FileInfo) found {
	_, f.newest, _ = details(info)
	f.file, f.stat, f.bytes = path, info, info.Size()
	f.fingerprint = digest(string(line(nil, info.Name(), info)))
	return f
}

// tree fills in what is known of an entry that is a folder.
func (s *scanner) tree(ctx context.Context, f found, dir string, items []os.DirEntry) found {
	t := &tree{scanner: s, hash: sha256.New(), seen: map[identity]bool{}}
	t.ancestors(dir)
	if info, err := os.Stat(dir); err == nil {
		t.visit(info)
		_, t.newest, _ = details(info)
	}
	t.walk(ctx, dir, "", items)
	f.fingerprint, f.bytes, f.newest, f.patient = hex.EncodeToString(t.hash.Sum(nil)[:fingerprintBytes]), t.bytes, t.newest, true
	f.problem = t.problem
	if f.problem == "" && len(items) == 0 {
		f.problem = emptyFolder
	}
	if f.kind == ONNX && f.problem == "" {
		f.file = filepath.Join(dir, onnxFile)
		info, err := os.Stat(f.file)
		if err != nil {
			f.problem = onnxFile + ": " + unreadable(err)
		}
		f.stat = info
	}
	return f
}

const (
	fingerprintBytes = 16
	emptyFolder      = "the folder is empty"
)

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:fingerprintBytes])
}

// line describes a file so that the description differs when the content may.
func line(to []byte, name string, info fs.FileInfo) []byte {
	id, changed, _ := details(info)
	to = strconv.AppendQuote(to, name)
	for _, number := range []int64{int64(info.Mode().Type()), info.Size(), info.ModTime().UnixNano(), changed.UnixNano(), int64(id.inode)} {
		to = strconv.AppendInt(append(to, ' '), number, 10)
	}
	return append(to, '\n')
}
