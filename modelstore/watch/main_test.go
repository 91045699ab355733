package watch

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// noise is text that does not compress; another seed gives another one.
func noise(seed uint64, n int) []byte {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	text := make([]byte, n)
	_, _ = r.Read(text) // never fails
	return text
}

// zipOf makes a zip file with a manifest and weights of n bytes.
func zipOf(t testing.TB, seed uint64, n int) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	for _, e := range []struct {
		name string
		text []byte
	}{{"MAR-INF/MANIFEST.json", []byte(`{}`)}, {"weights.bin", noise(seed, n)}} {
		f, err := w.Create(e.name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(e.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// tarOf is zipOf for compressed tar files.
func tarOf(t testing.TB, seed uint64, n int) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	w := tar.NewWriter(z)
	text := noise(seed, n)
	if err := w.WriteHeader(&tar.Header{Name: "m/weights.bin", Mode: 0o644, Size: int64(n), Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// onnxOf makes a message that has an ONNX model's outer form: a version, a graph of n bytes, an opset.
func onnxOf(n int) []byte {
	text := []byte{1 << 3, 8}
	text = append(text, 7<<3|2)
	text = binary.AppendUvarint(text, uint64(n))
	text = append(text, noise(1, n)...)
	return append(text, 8<<3|2, 2, 2<<3, 17)
}

// write writes a file, with the folders above it.
func write(t testing.TB, path string, text []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

func rename(t testing.TB, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// relink makes a link lead elsewhere, at once, as Kubernetes does.
func relink(t testing.TB, target, link string) {
	t.Helper()
	temp := link + "_tmp"
	if err := os.Symlink(target, temp); err != nil {
		t.Fatal(err)
	}
	rename(t, temp, link)
}

func remove(t testing.TB, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}
