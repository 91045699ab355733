package archive

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/flambeau-serve/flambeau/modelstore/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// entry is one entry of an archive that a test makes.
type entry struct {
	name, text string
	mode       os.FileMode // 0: an ordinary file, or a folder when the name ends with a slash
	link       string      // tar: what a link leads to
	typ        byte        // tar: 0 for the usual one
}

const goodManifest = `{"createdOn": "01/01/2026", "runtime": "python", "archiverVersion": "0.12.0",
 "model": {"modelName": "m", "modelVersion": "1.0", "handler": "handler.py", "serializedFile": "w.pt", "configFile": "c.yaml"}}`

func goodEntries() []entry {
	return []entry{
		{name: "MAR-INF/MANIFEST.json", text: goodManifest},
		{name: "handler.py", text: "x = 1\n"},
		{name: "sub/"},
		{name: "sub/run.sh", text: "#!/bin/sh\n", mode: 0o755},
		{name: "c.yaml", text: "minWorkers: 1\nmaxWorkers: 2\n"},
	}
}

func makeZip(t testing.TB, entries []entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	for _, e := range entries {
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate}
		if e.mode != 0 {
			h.SetMode(e.mode)
		}
		f, err := w.CreateHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(f, e.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func makeTar(t testing.TB, entries []entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	w := tar.NewWriter(z)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: 0o644, Size: int64(len(e.text)), Typeflag: tar.TypeReg, Linkname: e.link}
		if e.mode != 0 {
			h.Mode = int64(e.mode)
		}
		if e.name[len(e.name)-1] == '/' {
			h.Typeflag = tar.TypeDir
		}
		if e.typ != 0 {
			h.Typeflag = e.typ
		}
		if e.typ == tar.TypeXGlobalHeader {
			h = &tar.Header{Typeflag: e.typ, Name: e.name, PAXRecords: map[string]string{"comment": "x"}}
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, e.text); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// place is a store and a temp folder for one test.
type place struct {
	dir, store, temp string
	log              *bytes.Buffer
}

func newPlace(t testing.TB) *place {
	t.Helper()
	dir := t.TempDir()
	p := &place{dir: dir, store: filepath.Join(dir, "store"), temp: filepath.Join(dir, "tmp"), log: &bytes.Buffer{}}
	for _, d := range []string{p.store, p.temp} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func (p *place) write(t testing.TB, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(p.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// open makes a Store that is closed with the test, after which nothing may be left in the temp folder.
func (p *place) open(t testing.TB, change func(*Options)) *Store {
	t.Helper()
	opts := Options{Store: p.store, Temp: p.temp, Fetcher: newFetcher(t, nil), Logger: slog.New(slog.NewTextHandler(p.log, nil))}
	if change != nil {
		change(&opts)
	}
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if left := tree(t, p.temp); len(left) > 0 {
			t.Errorf("left in the temp folder: %v", left)
		}
	})
	return s
}

// newFetcher makes a fetcher for servers of the test's own.
func newFetcher(t testing.TB, change func(*source.Options)) *source.Fetcher {
	t.Helper()
	opts := source.Options{Local: true, Pause: time.Millisecond, Logger: discard()}
	if change != nil {
		change(&opts)
	}
	f, err := source.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// tree lists all that is below dir, but for lock files.
func tree(t testing.TB, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if rel, _ := filepath.Rel(dir, path); rel != "." && filepath.Ext(path) != lockSuffix {
			all = append(all, rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func mustOpen(t testing.TB, s *Store, url string) *Archive {
	t.Helper()
	a, err := s.Open(context.Background(), url)
	if err != nil {
		t.Fatalf("Open(%q): %v", url, err)
	}
	return a
}
