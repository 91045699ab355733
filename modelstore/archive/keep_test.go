package archive

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// files gives the files below dir with their contents.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, name := range tree(t, dir) {
		path := filepath.Join(dir, name)
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = string(text)
	}
	return all
}

func TestKeep(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write(t, "store/m.mar", makeZip(t, goodEntries()))
	p.write(t, "store/digits/3/model.onnx", onnxModel(5))
	p.write(t, "store/digits.onnx", onnxModel(5))
	s := p.open(t, nil)
	a := mustOpen(t, s, "m.mar")
	want := files(t, a.Dir)
	// What a handler may have made in its folder.
	if err := errors.Join(os.Symlink("handler.py", filepath.Join(a.Dir, "link")), syscall.Mkfifo(filepath.Join(a.Dir, "pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	other := mustOpen(t, s, "m.mar")
	copied, moved := filepath.Join(p.dir, "state", "kept", "1"), filepath.Join(p.dir, "state", "kept", "2")
	if err := a.Keep(copied); err != nil { // while it is used
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, files(t, other.Dir)); diff != "" {
		t.Errorf("what is still used changed: %s", diff)
	}
	if err := other.Keep(copied); err == nil || !strings.Contains(err.Error(), "something at") {
		t.Errorf("over another one: %v", err)
	}
	dir := other.Dir
	if err := other.Keep(moved); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
	for _, kept := range []string{copied, moved} {
		if diff := cmp.Diff(want, files(t, kept)); diff != "" {
			t.Errorf("%s: %s", kept, diff)
		}
		if leads, err := os.Readlink(filepath.Join(kept, "link")); err != nil || leads != "handler.py" {
			t.Errorf("%s: the link leads to %q, %v", kept, leads, err)
		}
	}
	if info, err := os.Stat(filepath.Join(moved, "sub/run.sh")); err != nil || info.Mode().Perm()&0o100 == 0 {
		t.Errorf("run.sh cannot be run any more: %v, %v", info.Mode(), err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if err := a.Keep(moved + "x"); err == nil || !strings.Contains(err.Error(), "gone already") {
		t.Errorf("after it was kept: %v", err)
	}
	checkKept(t, s, moved, a.Digest)

	bare, err := s.OpenEntry(t.Context(), "digits.onnx")
	if err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(p.dir, "state", "kept", "3")
	if err := bare.Keep(kept); err != nil {
		t.Fatal(err)
	}
	again, err := s.OpenKept(t.Context(), kept, "digits.onnx", "digits.onnx", bare.Digest)
	if err != nil || again.Manifest.Runtime != RuntimeONNX || again.Manifest.Model.ModelName != "digits" {
		t.Errorf("an ONNX file: %+v, %v", again, err)
	}
	inPlace, err := s.OpenEntry(t.Context(), "digits/3")
	if err != nil {
		t.Fatal(err)
	}
	if err := inPlace.Keep(kept + "x"); err == nil || !strings.Contains(err.Error(), "in place") {
		t.Errorf("a folder of the user's: %v", err)
	}
	if _, err := os.Stat(filepath.Join(inPlace.Dir, onnxName)); err != nil {
		t.Errorf("it cannot be used any more: %v", err)
	}
	if left := tree(t, filepath.Join(p.dir, "state")); strings.Contains(strings.Join(left, " "), partSuffix) {
		t.Errorf("left: %v", left)
	}
}

// checkKept opens a kept folder, which outlives that.
func checkKept(t *testing.T, s *Store, dir, digest string) {
	t.Helper()
	a, err := s.OpenKept(t.Context(), dir, "m.mar", "m.mar", digest)
	if err != nil {
		t.Fatal(err)
	}
	if a.Dir != dir || a.Digest != digest || a.Source != "m.mar" || !a.Kept || a.Manifest.Model.ModelName != "m" || !a.Settings.HasConfig || a.Bytes == 0 {
		t.Errorf("got %+v", a)
	}
	if err := a.Keep(dir); err != nil {
		t.Errorf("where it is: %v", err)
	}
	if err := a.Keep(dir + "x"); err == nil {
		t.Error("it was kept twice")
	}
	if err := a.Forget(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "handler.py")); err != nil {
		t.Errorf("after Forget: %v", err)
	}
}

func TestOpenKeptRefuses(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := p.open(t, nil)
	file := p.write(t, "file", nil)
	link := filepath.Join(p.dir, "link")
	if err := os.Symlink(p.store, link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Join(p.dir, "nope"), file, link, foreignFolder(t)} {
		if _, err := s.OpenKept(t.Context(), dir, "m.mar", "", "sha256:0"); !fault.Is(err, fault.ModelNotFound) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// TestKeepElsewhere keeps on another file system, where nothing can be renamed to, and where there may be no room.
func TestKeepElsewhere(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a file system for it")
	}
	p := newPlace(t)
	other := filepath.Join(p.dir, "other")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", other, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("a file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(other, 0); err != nil {
			t.Error(err)
		}
	})
	p.write(t, "store/m.mar", makeZip(t, goodEntries()))
	p.write(t, "store/large.mar", storedZip(t, []entry{{name: "w", text: strings.Repeat("x", 100_000)}}))
	s := p.open(t, nil)
	large := mustOpen(t, s, "large.mar")
	if err := large.Keep(filepath.Join(other, "large")); err == nil || !strings.Contains(err.Error(), "bytes are left") {
		t.Errorf("without room: %v", err)
	}
	if left := tree(t, other); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := os.Stat(filepath.Join(large.Dir, "w")); err != nil {
		t.Errorf("the model cannot be used any more: %v", err)
	}
	if err := large.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(large.Dir); !os.IsNotExist(err) {
		t.Errorf("Close did not remove it: %v", err)
	}
	a := mustOpen(t, s, "m.mar")
	want := files(t, a.Dir)
	if err := a.Keep(filepath.Join(other, "m")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, files(t, filepath.Join(other, "m"))); diff != "" {
		t.Error(diff)
	}
}
