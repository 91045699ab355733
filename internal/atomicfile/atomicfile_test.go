package atomicfile

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a.json")
	for _, text := range []string{"first", "2"} {
		if err := Write(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != text {
			t.Errorf("%q, %v", got, err)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	only(t, dir, "a.json")
}

// TestFailure: the old content stays, and nothing is left beside it.
func TestFailure(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := Write(filepath.Join(dir, "no", "a"), nil, 0o600); err == nil {
		t.Error("a folder that is not there: no error")
	}
	full := filepath.Join(dir, "a")
	if err := os.MkdirAll(filepath.Join(full, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(full, []byte("x"), 0o600); err == nil {
		t.Error("a folder in the file's place: no error")
	}
	only(t, dir, "a")
}

func TestSweep(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	scratch := filepath.Join(dir, "scratch")
	if err := os.Mkdir(scratch, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFrom("n", scratch, filepath.Join(dir, "a"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	only(t, scratch)
	for _, name := range []string{".n-12.tmp", ".n-13.tmp", ".other-1.tmp", "n-1.tmp", ".n-1"} {
		if err := os.WriteFile(filepath.Join(scratch, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(scratch, ".n-12.tmp"), old, old); err != nil {
		t.Fatal(err)
	}
	if err := Sweep("n", scratch, time.Minute); err != nil {
		t.Fatal(err)
	}
	only(t, scratch, ".n-1", ".n-13.tmp", ".other-1.tmp", "n-1.tmp")
	if err := Sweep("n", scratch, 0); err != nil {
		t.Fatal(err)
	}
	only(t, scratch, ".n-1", ".other-1.tmp", "n-1.tmp")
	if err := Sweep("n", filepath.Join(dir, "nope"), 0); err != nil {
		t.Error(err)
	}
}

// only checks what is in a folder.
func only(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("in the folder: %q, want %q", got, want)
	}
}
