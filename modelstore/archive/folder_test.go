package archive

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// TestShared: the same content is unpacked once, whatever it is called, and goes with its last user.
func TestShared(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	mar := makeZip(t, goodEntries())
	p.write(t, "store/m.mar", mar)
	p.write(t, "store/other.mar", mar)
	p.write(t, "store/r/2/x.mar", mar)
	p.write(t, "store/m.tgz", makeTar(t, []entry{{name: "m/handler.py", text: "x"}}))
	s := p.open(t, nil)
	var opened []*Archive
	for _, name := range []string{"m.mar", "other.mar", "r/2", "m.mar"} {
		a, err := s.OpenEntry(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		opened = append(opened, a)
	}
	first := opened[0]
	other := mustOpen(t, s, "m.tgz")
	for _, a := range opened[1:] {
		if a.Dir != first.Dir || a.Digest != first.Digest {
			t.Errorf("%s is in %s, and %s in %s", first.URL, first.Dir, a.URL, a.Dir)
		}
	}
	if other.Dir == first.Dir {
		t.Error("two contents share a folder")
	}
	for i, a := range opened {
		if _, err := os.Stat(filepath.Join(first.Dir, "handler.py")); err != nil {
			t.Fatalf("with %d users left: %v", len(opened)-i, err)
		}
		for range 2 { // a second Close takes nobody else's place away
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := os.Lstat(first.Dir); !os.IsNotExist(err) {
		t.Errorf("after the last Close: %v", err)
	}
	again := mustOpen(t, s, "m.mar")
	if _, err := os.Stat(filepath.Join(again.Dir, "handler.py")); err != nil || again.Dir != first.Dir {
		t.Errorf("opened again in %s, before in %s: %v", again.Dir, first.Dir, err)
	}
}

// TestOtherServersFolder: two servers never share one, for neither knows when the other is done with it.
func TestOtherServersFolder(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write(t, "store/m.mar", makeZip(t, goodEntries()))
	var opened []*Archive
	for range 2 {
		s, err := New(Options{Store: p.store, Temp: p.temp, Logger: discard()})
		if err != nil {
			t.Fatal(err)
		}
		opened = append(opened, mustOpen(t, s, "m.mar"))
	}
	if opened[0].Dir == opened[1].Dir {
		t.Errorf("both are in %s", opened[0].Dir)
	}
	for _, a := range opened {
		if err := a.store.Close(); err != nil {
			t.Error(err)
		}
	}
	if left := tree(t, p.temp); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestSharedAtOnce opens and closes one archive from many sides; each must find it whole.
func TestSharedAtOnce(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write(t, "store/m.mar", makeZip(t, goodEntries()))
	s := p.open(t, nil)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 25 {
				a, err := s.OpenEntry(t.Context(), "m.mar")
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := os.ReadFile(filepath.Join(a.Dir, "sub/run.sh")); err != nil {
					t.Error(err)
				}
				if err := a.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if left := tree(t, filepath.Join(p.temp, "models")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestFirstOneGivesUp: who waits for somebody else's unpacking does it by himself if that one goes away, and who gives up waiting is let go.
func TestFirstOneGivesUp(t *testing.T) {
	t.Parallel()
	s := newPlace(t).open(t, nil)
	begun, first := make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := s.share(ctx, "name", func(string) (string, error) {
			close(begun)
			<-ctx.Done()
			return "", ctx.Err()
		})
		first <- err
	}()
	<-begun
	impatient, stop := context.WithCancel(t.Context())
	stop()
	if _, err := s.share(impatient, "name", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("the impatient one: %v", err)
	}
	second := make(chan error, 1)
	go func() {
		_, err := s.share(t.Context(), "name", func(part string) (string, error) { return "", os.WriteFile(filepath.Join(part, "x"), nil, 0o600) })
		second <- err
	}()
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the first one: %v", err)
	}
	if err := <-second; err != nil {
		t.Errorf("the second one: %v", err)
	}
	if _, err := os.Stat(filepath.Join(s.owner.models, "name", "x")); err != nil {
		t.Error(err)
	}
}

// TestChanged: what was written to while it was read is not taken, whatever its times say.
func TestChanged(t *testing.T) {
	t.Parallel()
	mar, other := makeZip(t, goodEntries()), makeZip(t, []entry{{name: "a", text: "x"}})
	old := time.Now().Add(-time.Hour)
	tests := map[string]func(path string) error{
		"appended":  func(path string) error { return os.WriteFile(path, append(mar, 0), 0o600) },
		"shortened": func(path string) error { return os.Truncate(path, 10) },
		"replaced": func(path string) error {
			if err := os.WriteFile(path+".new", mar, 0o600); err != nil {
				return err
			}
			return os.Rename(path+".new", path)
		},
		"removed":    os.Remove,
		"other time": func(path string) error { return os.Chtimes(path, old.Add(time.Second), old.Add(time.Second)) },
	}
	for name, change := range tests {
		path := filepath.Join(t.TempDir(), "x.mar")
		if err := errors.Join(os.WriteFile(path, mar, 0o600), os.Chtimes(path, old, old)); err != nil {
			t.Fatal(err)
		}
		r, err := openPacked(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.unchanged(t.Context()); err != nil {
			t.Errorf("%s, before: %v", name, err)
		}
		if err := change(path); err != nil {
			t.Fatal(err)
		}
		if err := r.unchanged(t.Context()); !errors.Is(err, ErrChanged) {
			t.Errorf("%s: %v", name, err)
		}
		r.close()
	}
	// A file that was written a moment ago may be written to again within the same step of its clock.
	path := filepath.Join(t.TempDir(), "x.mar")
	now := time.Now().Truncate(time.Second)
	if err := errors.Join(os.WriteFile(path, mar, 0o600), os.Chtimes(path, now, now)); err != nil {
		t.Fatal(err)
	}
	r, err := openPacked(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	same := append(append([]byte(nil), other...), make([]byte, len(mar)-len(other))...)
	if err := errors.Join(os.WriteFile(path, same, 0o600), os.Chtimes(path, now, now)); err != nil {
		t.Fatal(err)
	}
	if err := r.unchanged(t.Context()); !errors.Is(err, ErrChanged) {
		t.Errorf("the same size and time: %v", err)
	}
}

// TestRewrittenAllTheTime: a file that is rewritten in place all the time gives one of its contents or an error, never a mixture.
func TestRewrittenAllTheTime(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	var contents [][]byte
	for _, letter := range []string{"a", "b"} {
		var entries []entry
		for i := range 20 {
			entries = append(entries, entry{name: fmt.Sprint("f", i), text: strings.Repeat(letter, 10_000)})
		}
		contents = append(contents, makeZip(t, entries))
	}
	path := p.write(t, "store/x.mar", contents[0])
	s := p.open(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			if err := os.WriteFile(path, contents[i%2], 0o600); err != nil {
				t.Error(err)
			}
		}
	})
	taken, changed := 0, 0
	for range 200 {
		a, err := s.OpenEntry(t.Context(), "x.mar")
		if err != nil {
			if errors.Is(err, ErrChanged) {
				changed++
			}
			continue
		}
		taken++
		first, err := os.ReadFile(filepath.Join(a.Dir, "f0"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			if text, err := os.ReadFile(filepath.Join(a.Dir, fmt.Sprint("f", i))); err != nil || string(text) != string(first) {
				t.Errorf("f%d is of another version (%v)", i, err)
			}
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
	cancel()
	writer.Wait()
	t.Logf("taken %d times, changed %d times", taken, changed)
	if changed == 0 {
		t.Error("no change was noticed")
	}
}

// TestFullDisk: what does not fit is told with its numbers, and nothing of it stays.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	const left = 1000
	text := strings.Repeat("0123456789", 500)
	p := newPlace(t)
	p.write(t, "store/x.mar", makeZip(t, []entry{{name: "a", text: text}}))
	p.write(t, "store/x.tgz", makeTar(t, []entry{{name: "m/a", text: text}}))
	p.write(t, "store/x.onnx", onnxModel(5000))
	s := p.open(t, nil)
	s.free = func(string) (int64, error) { return left, nil }
	for _, name := range []string{"x.mar", "x.tgz", "x.onnx"} {
		_, err := s.OpenEntry(t.Context(), name)
		if !errors.Is(err, syscall.ENOSPC) || !fault.Is(err, fault.Internal) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		hint := err.(interface{ Unwrap() []error }).Unwrap()[0].(*fault.Error).Hint //nolint:errorlint,forcetypeassert,errcheck // what a client sees
		for _, says := range []string{"1000 bytes are left", " bytes more", "TEMP"} {
			if !strings.Contains(hint, says) {
				t.Errorf("%s: the hint %q does not say %q", name, hint, says)
			}
		}
		if left := tree(t, filepath.Join(p.temp, "models")); len(left) > 0 {
			t.Errorf("%s: left: %v", name, left)
		}
	}
}

// TestReallyFullDisk unpacks onto a file system that does not tell in time how full it is.
func TestReallyFullDisk(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a file system for it")
	}
	p := newPlace(t)
	if err := syscall.Mount("tmpfs", p.temp, "tmpfs", 0, "size=256k,mode=0755"); err != nil {
		t.Skipf("a file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(p.temp, 0); err != nil {
			t.Error(err)
		}
	})
	text := make([]byte, 400<<10)
	for i := range text {
		text[i] = byte(i * i >> 3)
	}
	p.write(t, "store/x.mar", makeZip(t, []entry{{name: "a", text: "x"}, {name: "b", text: string(text)}}))
	p.write(t, "store/small.mar", makeZip(t, []entry{{name: "a", text: "x"}}))
	s := p.open(t, nil)
	_, told := s.OpenEntry(t.Context(), "x.mar")
	s.free = func(dir string) (int64, error) { // it tells the truth only when it is full
		left, err := freeBytes(dir)
		if left > 0 {
			left = 1 << 40
		}
		return left, err
	}
	_, met := s.OpenEntry(t.Context(), "x.mar")
	for _, err := range []error{told, met} {
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "bytes are left") {
			t.Errorf("got %v", err)
		}
		if left := tree(t, filepath.Join(p.temp, "models")); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
	a, err := s.OpenEntry(t.Context(), "small.mar")
	if err != nil {
		t.Fatalf("afterwards: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}
