package watch

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// list scans a store without watching anything.
func list(t testing.TB, root string, versioned ...string) []found {
	t.Helper()
	s := &scanner{watch: func(string, ...string) {}, versioned: func(name string) bool { return slices.Contains(versioned, name) }, plugin: func(string) bool { return false }}
	all, err := s.scan(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestVersions(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, line := range []string{"many/1/model.onnx", "many/2/m.mar", "many/notes.txt = x", "one/model.onnx", "mixed/1/model.onnx", "mixed/code/", "m.mar", "2/1/model.onnx"} {
		build(t, root, line)
	}
	for name, want := range map[string][]string{"many": {"many/1", "many/2"}, "2": {"2/1"}, "one": nil, "mixed": nil, "m.mar": nil, "none": nil} {
		if got := Versions(root, name); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// settle takes a store that nothing writes to, and gives its entries when each was looked into.
func settle(t testing.TB, all []found) []Entry {
	t.Helper()
	b := newBook(time.Millisecond, time.Millisecond)
	now := time.Now()
	b.take(now, all)
	now = now.Add(time.Hour)
	for _, l := range b.ready(now) {
		b.looked(now, l, inspect(t.Context(), l))
	}
	return b.entries()
}

// build makes what a line of a layout says: "NAME" is a file, by its suffix a complete archive of its kind, "NAME/" an empty folder,
// "NAME -> TARGET" a link, "NAME = TEXT" a file with that text, "NAME cut" half an archive, "NAME pipe" a pipe.
func build(t testing.TB, root, line string) {
	t.Helper()
	name, target, isLink := strings.Cut(line, " -> ")
	name, text, hasText := strings.Cut(name, " = ")
	name, cut := strings.CutSuffix(name, " cut")
	name, pipe := strings.CutSuffix(name, " pipe")
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	switch content := contentOf(t, name); {
	case strings.HasSuffix(name, "/"):
		err = os.MkdirAll(path, 0o755)
	case isLink:
		err = os.Symlink(target, path)
	case hasText:
		err = os.WriteFile(path, []byte(text), 0o644)
	case pipe:
		err = syscall.Mkfifo(path, 0o644)
	case cut:
		err = os.WriteFile(path, content[:len(content)/2], 0o644)
	default:
		err = os.WriteFile(path, content, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func contentOf(t testing.TB, name string) []byte {
	t.Helper()
	switch kind, _, _ := fileKind(name); kind {
	case Mar:
		return zipOf(t, 1, 100)
	case Tarball:
		return tarOf(t, 1, 100)
	case ONNX:
		return onnxOf(100)
	case Folder, Plugin:
	}
	return []byte("text\n")
}

// shown is an entry as the golden files have it.
func shown(e Entry) string {
	text := fmt.Sprintf("%s: %s %s", e.Path, e.Kind, e.State)
	if e.Name != "" {
		text += " name=" + e.Name
	}
	if e.Versioned {
		text += " version=" + e.Version
	}
	if e.Reason != "" {
		text += " (" + e.Reason + ")"
	}
	return text
}

var update = flag.Bool("update", false, "write the golden files of the layouts anew")

// TestLayouts reads testdata/layouts: what is in a store, and which entries it has.
func TestLayouts(t *testing.T) {
	files, err := filepath.Glob("testdata/layouts/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no layouts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			const mark = "---\n"
			input, want, found := strings.Cut(string(text), mark)
			if !found {
				t.Fatalf("%s has no line ---", file)
			}
			root := filepath.Join(t.TempDir(), "store")
			for line := range strings.Lines(input) {
				if line = strings.TrimRight(line, "\n"); line != "" && !strings.HasPrefix(line, "# ") {
					build(t, root, line)
				}
			}
			var got strings.Builder
			for _, e := range settle(t, list(t, root)) {
				got.WriteString(shown(e) + "\n")
			}
			if *update {
				write(t, file, []byte(input+mark+got.String()))
				return
			}
			if diff := cmp.Diff(want, got.String()); diff != "" {
				t.Errorf("entries (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFingerprints(t *testing.T) {
	// One change each, and whether it may have changed the content.
	for _, c := range []struct {
		name    string
		change  func(s scribe)
		changes bool
	}{
		{"nothing", func(scribe) {}, false},
		{"a longer file", func(s scribe) { s.write("m.mar", zipOf(s.t, 1, 200)) }, true},
		{"the same again, elsewhere", func(s scribe) {
			s.write(".new", zipOf(s.t, 1, 100))
			s.rename(".new", "m.mar")
		}, true},
		{"same size and time, other bytes", func(s scribe) {
			info, err := os.Stat(s.store + "/m.mar")
			if err != nil {
				s.t.Fatal(err)
			}
			s.write("m.mar", zipOf(s.t, 2, 100))
			if err := os.Chtimes(s.store+"/m.mar", info.ModTime(), info.ModTime()); err != nil {
				s.t.Fatal(err)
			}
		}, true},
		{"a file within a folder", func(s scribe) { s.write("f/sub/deep/x.py", []byte("other")) }, true},
		{"a new file within a folder", func(s scribe) { s.write("f/sub/new.py", nil) }, true},
		{"a renamed folder within a folder", func(s scribe) { s.rename("f/sub", "f/sup") }, true},
		{"a new empty folder within a folder", func(s scribe) {
			if err := os.Mkdir(s.store+"/f/empty", 0o755); err != nil {
				s.t.Fatal(err)
			}
		}, true},
		{"a file that a link leads to", func(s scribe) { s.write("../elsewhere/w.bin", []byte("other text")) }, true},
		{"a file in a linked folder", func(s scribe) { s.write("../elsewhere/more/w.bin", []byte("other text")) }, true},
		{"Python's cache", func(s scribe) { s.write("f/__pycache__/x.pyc", []byte("cache")) }, false},
		{"Python's cache, deeper", func(s scribe) { s.write("f/sub/__pycache__/x.pyc", []byte("cache")) }, false},
		{"an editor's file", func(s scribe) { s.write("f/.x.py.swp", []byte("swap")) }, false},
		{"hidden", func(s scribe) { s.write("f/.git/HEAD", []byte("ref")) }, false},
		{"vim's trial", func(s scribe) { s.write("f/4913", nil) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := filepath.Join(t.TempDir(), "store")
			for _, line := range []string{
				"m.mar", "f/MAR-INF/MANIFEST.json", "f/sub/deep/x.py", "../elsewhere/w.bin", "../elsewhere/more/w.bin", "f/w.bin -> ../../elsewhere/w.bin",
				"f/more -> ../../elsewhere/more",
			} {
				build(t, store, line)
			}
			before := list(t, store)
			// The clock of file times is coarse: a change within the same tick would look like none.
			waitForTick(t)
			c.change(scribe{t, store})
			after := list(t, store)
			changed := false
			for i := range before {
				changed = changed || before[i].fingerprint != after[i].fingerprint
			}
			if changed != c.changes {
				t.Errorf("changed = %v, want %v", changed, c.changes)
			}
		})
	}
}

// scribe changes the files of a store.
type scribe struct {
	t     *testing.T
	store string
}

func (s scribe) write(name string, text []byte) { write(s.t, s.store+"/"+name, text) }
func (s scribe) rename(from, to string)         { rename(s.t, s.store+"/"+from, s.store+"/"+to) }

// waitForTick returns when files written from now on have another time than those before.
func waitForTick(t testing.TB) {
	t.Helper()
	probe := filepath.Join(t.TempDir(), "probe")
	at := func() time.Time {
		write(t, probe, nil)
		info, err := os.Stat(probe)
		if err != nil {
			t.Fatal(err)
		}
		return info.ModTime()
	}
	for first := at(); !at().After(first); {
		runtime.Gosched()
	}
}

func TestLoopsOfLinksEnd(t *testing.T) {
	store := filepath.Join(t.TempDir(), "store")
	for _, line := range []string{
		"f/handler.py", "f/sub/up -> ..", "f/itself -> .", "f/root -> /", "f/store -> ../../store", "f/a/b -> ../b", "f/b/a -> ../a", "f/c -> a",
		"g/x -> y", "g/y -> x", "loop -> loop",
	} {
		build(t, store, line)
	}
	got := settle(t, list(t, store))
	if len(got) != 3 || got[0].State != Settled || got[0].Bytes != 5 {
		t.Errorf("f: %+v", got)
	}
	if want := "it cannot be read: too many levels of symbolic links"; got[2].Reason != want || !strings.HasSuffix(got[1].Reason, want) {
		t.Errorf("reasons: %+v", got[1:])
	}
}

func TestBoundsOfOneFolder(t *testing.T) {
	store := filepath.Join(t.TempDir(), "store")
	deep := filepath.Join(store, "deep", strings.Repeat("d/", maxDepth+2))
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	build(t, store, "small/x.py")
	got := settle(t, list(t, store))
	if got[0].State != Incomplete || !strings.Contains(got[0].Reason, "more than 64 deep") || got[1].State != Settled {
		t.Errorf("got %+v", got)
	}
	// The bounds of items, without making a million files.
	for _, c := range []struct {
		items, looked int
		want          string
	}{{maxItems, 0, "more than 200000 files"}, {0, maxLooked + 1, "more than 1000000 files"}} {
		s := &scanner{watch: func(string, ...string) {}, looked: c.looked}
		tr := &tree{scanner: s, items: c.items, hash: discardHash{}, seen: map[identity]bool{}}
		items, err := os.ReadDir(store)
		if err != nil {
			t.Fatal(err)
		}
		tr.walk(t.Context(), store, "", items)
		if !strings.Contains(tr.problem, c.want) {
			t.Errorf("problem %q, want %q", tr.problem, c.want)
		}
	}
}

type discardHash struct{}

func (discardHash) Write(p []byte) (int, error) { return len(p), nil }
func (discardHash) Sum(b []byte) []byte         { return b }
func (discardHash) Reset()                      {}
func (discardHash) Size() int                   { return 0 }
func (discardHash) BlockSize() int              { return 1 }

// asNobody runs f on a thread whose rights on files are those of nobody, also when the test runs as root.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	const nobody = 65534
	if os.Geteuid() != 0 {
		f()
		return
	}
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err = syscall.Setfsuid(nobody); err == nil {
			f()
		}
	}()
	<-done
	if err != nil {
		t.Skip(err)
	}
}

// openStore is a store that nobody can reach.
func openStore(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "store")
}

func TestUnreadable(t *testing.T) {
	store := openStore(t)
	for _, line := range []string{
		"a.mar", "b.tgz", "folder/x.py", "inner/MAR-INF/MANIFEST.json", "inner/secret/x.py", "onnx/model.onnx", "versions/1/x.py", "versions/2/model.onnx",
		"whole/x.py",
	} {
		build(t, store, line)
	}
	names := []string{"a.mar", "b.tgz", "folder", "inner/secret", "onnx/model.onnx", "versions/2"}
	for _, name := range names {
		if err := os.Chmod(filepath.Join(store, name), 0); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, name := range names {
			_ = os.Chmod(filepath.Join(store, name), 0o755)
		}
	})
	var got []string
	asNobody(t, func() {
		for _, e := range settle(t, list(t, store)) {
			got = append(got, shown(e))
		}
	})
	const why = "it cannot be read: permission denied; give the server's user (id 0) the right to read it)"
	want := []string{
		"a.mar: mar incomplete (" + why,
		"b.tgz: tarball incomplete (" + why,
		"folder: folder incomplete (" + why,
		"inner: folder incomplete (secret: " + why,
		"onnx: onnx incomplete name=onnx (" + why,
		"versions/1: folder settled name=versions version=1",
		"versions/2: folder incomplete name=versions version=2 (" + why,
		"whole: folder settled",
	}
	for i := range want {
		want[i] = strings.Replace(want[i], "id 0", fmt.Sprintf("id %d", os.Geteuid()), 1)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

func TestVersionsOfAFolderThatCannotBeRead(t *testing.T) {
	store := openStore(t)
	build(t, store, "m/1/x.py")
	build(t, store, "m/2/x.py")
	b := newBook(time.Second, time.Second)
	now := time.Now()
	step := func(all []found) []Entry {
		b.take(now, all)
		now = now.Add(time.Minute)
		b.ready(now)
		return b.entries()
	}
	if got := step(list(t, store)); got[0].State != Settled || got[1].State != Settled {
		t.Fatalf("at first: %+v", got)
	}
	before := b.entries()
	if err := os.Chmod(store+"/m", 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(store+"/m", 0o755) })
	var hidden []Entry
	asNobody(t, func() { hidden = step(list(t, store)) })
	if len(hidden) != 2 || hidden[0].Path != "m/1" || hidden[0].State != Incomplete || !strings.Contains(hidden[1].Reason, "permission denied") {
		t.Errorf("while it cannot be read: %+v", hidden)
	}
	if err := os.Chmod(store+"/m", 0o755); err != nil {
		t.Fatal(err)
	}
	got := step(list(t, store))
	if got[0].State != Settled || got[0].Fingerprint != before[0].Fingerprint {
		t.Errorf("afterwards: %+v\nbefore: %+v", got, before)
	}
}

func TestVersionInTheMaking(t *testing.T) {
	store := filepath.Join(t.TempDir(), "store")
	for _, line := range []string{"m/1/x.py", "m/2-new/x.py"} {
		build(t, store, line)
	}
	if got := list(t, store); len(got) != 1 || got[0].path != "m" {
		t.Errorf("at first sight: %+v", got)
	}
	if got := list(t, store, "m"); len(got) != 1 || got[0].path != "m/1" {
		t.Errorf("when it held versions before: %+v", got)
	}
	build(t, store, "m/MAR-INF/MANIFEST.json")
	if got := list(t, store, "m"); len(got) != 1 || got[0].path != "m" {
		t.Errorf("with a manifest: %+v", got)
	}
}

func TestTrail(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"a/b/file", "link -> a/b", "abs -> " + dir + "/link", "up -> a/../link/file", "gone -> a/none/x", "circle -> circle"} {
		build(t, dir, line)
	}
	for _, c := range []struct {
		path, target string
		spots        []spot
	}{
		{"a/b", "a/b", nil},
		{"a/b/file", "a/b/file", []spot{{"a/b", "file"}}},
		{"link/file", "a/b/file", []spot{{"", "link"}, {"a/b", "file"}}},
		{"abs", "a/b", []spot{{"", "abs"}, {"", "link"}}},
		{"up", "a/b/file", []spot{{"", "up"}, {"", "link"}, {"a/b", "file"}}},
		{"gone", "", []spot{{"", "gone"}, {"a", "none"}}},
		{"none/at/all", "", []spot{{"", "none"}}},
	} {
		target, spots, err := trail(filepath.Join(dir, c.path))
		if (err != nil) != (c.target == "") {
			t.Errorf("%s: %v", c.path, err)
		}
		for i := range c.spots {
			c.spots[i].dir = filepath.Join(dir, c.spots[i].dir)
		}
		if c.target != "" {
			c.target = filepath.Join(dir, c.target)
		}
		if diff := cmp.Diff(c.spots, spots, cmp.AllowUnexported(spot{})); target != c.target || diff != "" {
			t.Errorf("%s leads to %s, want %s; spots (-want +got):\n%s", c.path, target, c.target, diff)
		}
	}
	if _, spots, err := trail(dir + "/circle"); err == nil || len(spots) > maxHops+1 {
		t.Errorf("circle: %v, %d spots", err, len(spots))
	}
}
