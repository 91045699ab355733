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
	name := hexID()
	if err := dead.owner.record(name); err != nil {
		t.Fatal(err)
	}
	unfinished := filepath.Join(dead.owner.models, name)
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

// foreignFolder is a folder of another user.
func foreignFolder(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		return "/usr" // root's, which is enough of another user
	}
	const nobody = 65534
	dir := t.TempDir()
	if err := os.Lchown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestTempOfOthers: what is unpacked is run, so nobody else may have prepared the folder for it.
func TestTempOfOthers(t *testing.T) {
	t.Parallel()
	if err := tryOpen(linked(t, foreignFolder(t))); err == nil || !strings.Contains(err.Error(), "belongs to another user") {
		t.Errorf("a link to another user's folder: %v", err)
	}
	if err := tryOpen(linked(t, t.TempDir())); err != nil {
		t.Errorf("a link of this user's: %v", err)
	}
	if err := tryOpen(linked(t, "/dev/null")); err == nil {
		t.Error("a link to a file was taken")
	}
	p := newPlace(t)
	models := filepath.Join(p.temp, "models")
	if err := os.Mkdir(models, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(models, 0o777); err != nil {
		t.Fatal(err)
	}
	s := p.open(t, nil)
	if info, err := os.Stat(models); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("others can still write: %v, %v", info.Mode(), err)
	}
	if !strings.Contains(p.log.String(), "0777") || s == nil {
		t.Errorf("nobody was told: %q", p.log.String())
	}
}

// tryOpen says whether the temp folder can be used.
func tryOpen(p *place) error {
	s, err := New(Options{Store: p.store, Temp: p.temp, Logger: discard()})
	if err == nil {
		err = s.Close()
	}
	return err
}

// linked is a place whose folder for unpacked models is a link.
func linked(t *testing.T, target string) *place {
	t.Helper()
	p := newPlace(t)
	if err := os.Symlink(target, filepath.Join(p.temp, "models")); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestTempMadeByOthers needs root to make files of others.
func TestTempMadeByOthers(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can make files of other users")
	}
	const nobody = 65534
	theirs := linked(t, t.TempDir())
	if err := os.Lchown(filepath.Join(theirs.temp, "models"), nobody, nobody); err != nil {
		t.Fatal(err)
	}
	if err := tryOpen(theirs); err == nil || !strings.Contains(err.Error(), "link of another user") {
		t.Errorf("another user's link: %v", err)
	}
	p := newPlace(t)
	if err := os.Mkdir(filepath.Join(p.temp, "models"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Lchown(filepath.Join(p.temp, "models"), nobody, nobody); err != nil {
		t.Fatal(err)
	}
	if err := tryOpen(p); err == nil || !strings.Contains(err.Error(), "set TEMP to a folder of your own") {
		t.Errorf("another user's folder: %v", err)
	}
	if left := tree(t, p.temp); len(left) != 1 {
		t.Errorf("something was written there: %v", left)
	}
}
