package archive

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// crash stands for the end of a killed server: the kernel closes its files, and nobody cleans up.
func crash(t *testing.T, s *Store) {
	t.Helper()
	if err := s.owner.file.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestSweep(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write(t, "store/m.mar", makeZip(t, goodEntries()))
	newStore := func() *Store {
		s, err := New(Options{Store: p.store, Temp: p.temp, Logger: discard()})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	living := newStore()
	keeps := mustOpen(t, living, "m.mar")
	foreign := strings.Repeat("a", dirNameLen)
	p.write(t, "tmp/models/"+foreign+"/x", nil) // looks like ours; nobody claims it
	dead := newStore()
	leaves := mustOpen(t, dead, "m.mar")
	unfinished, err := dead.newRoot()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(unfinished+partSuffix+"/sub", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := dead.owner.record("../store"); err != nil { // a torn or forged line
		t.Fatal(err)
	}
	crash(t, dead)

	next := newStore()
	for path, want := range map[string]bool{keeps.Dir: true, leaves.Dir: false, unfinished + partSuffix: false, dead.owner.path: false, p.store: true} {
		_, err := os.Lstat(path)
		if got := err == nil; got != want {
			t.Errorf("%s exists: %v, want %v", path, got, want)
		}
	}
	for _, s := range []*Store{next, living} {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]string{"models", "models/" + foreign, "models/" + foreign + "/x"}, tree(t, p.temp)); diff != "" {
		t.Error(diff)
	}
	locks, err := filepath.Glob(p.temp + "/models/.flambeau*")
	if err != nil || len(locks) > 0 {
		t.Errorf("lock files left: %v, %v", locks, err)
	}
}

func TestCloseReadOnlyFolder(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write(t, "store/m.mar", makeZip(t, goodEntries()))
	a := mustOpen(t, p.open(t, nil), "m.mar")
	if err := os.Chmod(filepath.Join(a.Dir, "sub"), 0o500); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

func TestIsDirName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		hexID(): true, strings.Repeat("a", 31): false, strings.Repeat("g", 32): false, "../" + strings.Repeat("a", 29): false, "": false,
		strings.Repeat("a", 16) + "/" + strings.Repeat("a", 15): false,
	} {
		if got := isDirName(name); got != want {
			t.Errorf("isDirName(%q) = %v", name, got)
		}
	}
}
