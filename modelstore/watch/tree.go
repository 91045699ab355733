package watch

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tree goes through the folder of one entry.
type tree struct {
	*scanner
	hash    hash.Hash
	seen    map[identity]bool // folders that were walked, and those above the entry: links to them lead nowhere new
	items   int
	bytes   int64
	newest  time.Time
	problem string // the first one
}

// ancestors notes the folders above a folder.
func (t *tree) ancestors(dir string) {
	for dir != "/" && dir != "." {
		dir = filepath.Dir(dir)
		if info, err := os.Stat(dir); err == nil {
			t.visit(info)
		}
	}
}

// visit says whether a folder is met for the first time.
func (t *tree) visit(info fs.FileInfo) bool {
	id, _, _ := details(info)
	if id == (identity{}) { // no way to tell: the bounds end a loop
		return true
	}
	if t.seen[id] {
		return false
	}
	t.seen[id] = true
	return true
}

// walk takes in what a folder holds, in the order of the names. items are its visible names.
func (t *tree) walk(ctx context.Context, dir, below string, items []os.DirEntry) {
	if strings.Count(below, "/") >= maxDepth {
		t.fail(fmt.Sprintf("it has folders more than %d deep: %s", maxDepth, below))
		return
	}
	for _, item := range items {
		if t.items++; t.items > maxItems {
			t.fail(fmt.Sprintf("it has more than %d files and folders: pack it into an archive", maxItems))
		} else if t.looked > maxLooked {
			t.fail(fmt.Sprintf("the store has more than %d files and folders, which is more than are looked at: pack models into archives", maxLooked))
		}
		if t.items > maxItems || t.looked > maxLooked || ctx.Err() != nil {
			return
		}
		t.item(ctx, dir, below, item)
	}
}

func (t *tree) item(ctx context.Context, dir, below string, item os.DirEntry) {
	name, path := below+item.Name(), filepath.Join(dir, item.Name())
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		info, err = os.Lstat(path)
		if err != nil { // removed since it was listed; or a link that leads nowhere, which may be meant so
			return
		}
	}
	if err != nil {
		t.fail(name + ": " + unreadable(err))
		return
	}
	if _, changed, _ := details(info); changed.After(t.newest) {
		t.newest = changed
	}
	if !info.IsDir() {
		t.bytes += info.Size()
		t.put(line(nil, name, info))
		return
	}
	if ignored(item.Name(), true) { // a link to a folder
		return
	}
	// Times of folders are left out: a worker that writes its cache changes them.
	t.put(append(strconv.AppendQuote(nil, name+"/"), '\n'))
	if !t.visit(info) {
		return
	}
	if item.Type()&fs.ModeSymlink != 0 {
		if path, err = filepath.EvalSymlinks(path); err != nil {
			t.fail(name + ": " + unreadable(err))
			return
		}
	}
	items, err := t.list(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.fail(name + ": " + unreadable(err))
		return
	}
	t.walk(ctx, path, name+"/", items)
}

// put adds a line to the fingerprint. A hash never fails.
func (t *tree) put(text []byte) { _, _ = t.hash.Write(text) }

// fail notes a problem; the walk goes on, so that the fingerprint tells when it may have gone.
func (t *tree) fail(problem string) {
	if t.problem == "" {
		t.problem = problem
	}
}
