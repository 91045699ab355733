package watch

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// problemOf looks into a text as the archive of a kind.
func problemOf(ctx context.Context, kind Kind, text []byte, deep bool) error {
	r := bytes.NewReader(text)
	switch kind {
	case Mar:
		return zipProblem(ctx, r, r.Size(), deep)
	case Tarball:
		return tarballProblem(ctx, r, r.Size())
	case ONNX:
		return onnxProblem(ctx, r, r.Size())
	case Folder, Plugin:
	}
	return nil
}

// TestNoPartOfAnArchiveIsComplete cuts archives off at every byte.
func TestNoPartOfAnArchiveIsComplete(t *testing.T) {
	for kind, text := range map[Kind][]byte{Mar: zipOf(t, 1, 1000), Tarball: tarOf(t, 1, 1000), ONNX: onnxOf(1000)} {
		if err := problemOf(t.Context(), kind, text, true); err != nil {
			t.Errorf("a whole %s: %v", kind, err)
		}
		graph := len(text) - 4 // the opset follows: its parts are fields of their own, whole without what comes after
		for n := range text {
			if kind == ONNX && (n == graph || n == graph+2) {
				continue
			}
			err := problemOf(t.Context(), kind, text[:n], false)
			if _, known := errors.AsType[partial](err); !known {
				t.Errorf("%s cut off after %d of %d bytes: %v", kind, n, len(text), err)
			}
		}
	}
}

// TestEveryDamageIsFound changes archives in every byte that a checksum covers.
func TestEveryDamageIsFound(t *testing.T) {
	text := tarOf(t, 1, 300)
	const gzipHead = 10 // time, flags and system of origin, which no checksum covers
	for i := gzipHead; i < len(text); i++ {
		bad := bytes.Clone(text)
		bad[i] ^= 0x55
		if err := problemOf(t.Context(), Tarball, bad, false); err == nil {
			t.Errorf("a tarball with byte %d of %d changed is complete", i, len(text))
		}
	}
	text = zipOf(t, 1, 300)
	r, err := zip.NewReader(bytes.NewReader(text), int64(len(text)))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.File {
		start, err := f.DataOffset()
		if err != nil {
			t.Fatal(err)
		}
		for i := range f.CompressedSize64 {
			bad := bytes.Clone(text)
			bad[start+int64(i)] ^= 0x55
			if err := problemOf(t.Context(), Mar, bad, true); err == nil {
				t.Errorf("a zip file with byte %d of %s changed is complete", i, f.Name)
			}
		}
	}
}

func TestReasons(t *testing.T) {
	text := zipOf(t, 1, 1000)
	last := bytes.LastIndex(text, []byte("PK\x01\x02"))
	directory := bytes.Index(text, []byte("PK\x01\x02"))
	second := bytes.LastIndex(text[:directory], []byte("PK\x03\x04"))
	shifted := append([]byte("1234"), text...) // as after a copy that began twice
	overlong := bytes.Clone(text)
	copy(overlong[last+20:], []byte{0xff, 0xff, 0xff, 0x0f}) // the compressed size of the last entry
	nothing := &bytes.Buffer{}
	z := gzip.NewWriter(nothing)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		kind Kind
		text []byte
		want string
	}{
		{"zip entry beyond the end", Mar, overlong, "goes beyond its end"},
		{"zip with zeros for entries", Mar, append(make([]byte, directory), text[directory:]...), "is not where its directory says"},
		{"zip of zeros", Mar, make([]byte, 1000), "beginning is not written yet"},
		{"zip with zeros for an entry", Mar, slices.Concat(text[:second], make([]byte, directory-second), text[directory:]), "is not where its directory says"},
		{"zip with the directory of another", Mar, shifted, ""}, // offsets are counted from the directory: a program may be put before it
		{"tar.gz named mar", Mar, tarOf(t, 1, 10), "name it .tar.gz"},
		{"zip named tar.gz", Tarball, text, "not compressed with gzip"},
		{"gzip of nothing", Tarball, nothing.Bytes(), "there is nothing in it"},
		{"gzip of no tar", Tarball, gzipped(t, []byte(strings.Repeat("x", 2000))), "invalid tar header"},
		{"padded with zeros", Tarball, append(tarOf(t, 1, 10), make([]byte, 1000)...), ""},
		{"onnx with a field 0", ONNX, []byte{0, 1, 2, 3}, "no ONNX model, or damaged at byte 0"},
		{"onnx with groups", ONNX, []byte{1<<3 | 3, 1<<3 | 4}, "no ONNX model"},
		{"onnx without a graph", ONNX, []byte{1 << 3, 8}, "has no graph"},
		{"onnx of fixed fields", ONNX, append([]byte{1<<3 | 1, 1, 2, 3, 4, 5, 6, 7, 8, 2<<3 | 5, 1, 2, 3, 4}, 7<<3|2, 0), ""},
		{"onnx with an endless number", ONNX, bytes.Repeat([]byte{0xff}, 30), "damaged at byte 0"},
	} {
		err := problemOf(t.Context(), c.kind, c.text, false)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func gzipped(t testing.TB, text []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	if _, err := z.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// TestBombsAreLeftToOthers stops early, and takes them for complete: the one who opens them has limits and says which.
func TestBombsAreLeftToOthers(t *testing.T) {
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	zeros := make([]byte, 1<<20)
	for range 20 {
		if _, err := z.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	left := &unpacked{packed: int64(buf.Len()), floor: 8 << 20}
	r, err := gzip.NewReader(&buf)
	if err != nil {
		t.Fatal(err)
	}
	if err := left.discard(r); !errors.Is(err, errEnough) || left.bytes < 8<<20 || left.bytes > 9<<20 {
		t.Errorf("%v after %d bytes", err, left.bytes)
	}
	if v := judgeError(errEnough); v != (verdict{}) {
		t.Errorf("verdict %+v", v)
	}
}

func TestLooksEndWithTheirContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for kind, text := range map[Kind][]byte{Mar: zipOf(t, 1, 1000), Tarball: tarOf(t, 1, 1000), ONNX: onnxOf(1000)} {
		if err := problemOf(ctx, kind, text, true); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// TestInspectNoticesChanges looks into files that are not what the scan saw.
func TestInspectNoticesChanges(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.mar")
	text := zipOf(t, 1, 1000)
	write(t, path, text)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	l := look{found: file(found{path: "m.mar", kind: Mar}, path, info)}
	if v := inspect(t.Context(), l); v != (verdict{}) {
		t.Errorf("as it was: %+v", v)
	}
	waitForTick(t)
	write(t, path, text)
	if v := inspect(t.Context(), l); !v.changed {
		t.Errorf("written again: %+v", v)
	}
	remove(t, path)
	if v := inspect(t.Context(), l); !v.changed {
		t.Errorf("removed: %+v", v)
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if v := inspect(t.Context(), l); !v.changed {
		t.Errorf("a folder now: %+v", v)
	}
}

// FuzzInspect feeds anything to the readers that tell whole archives from parts. They must neither panic nor take long, what is complete to its
// last byte must be so at first sight, too, and what they call complete must be readable by those who open it.
func FuzzInspect(f *testing.F) {
	zipped, tarred, onnx := zipOf(f, 1, 50), tarOf(f, 1, 50), onnxOf(50)
	for _, text := range [][]byte{zipped, tarred, onnx} {
		for i := range uint8(3) {
			f.Add(i, text)
			f.Add(i, text[:len(text)/2])
			f.Add(i, append(bytes.Clone(text), 0))
		}
	}
	f.Add(uint8(0), append(make([]byte, 40), zipped...))
	f.Add(uint8(1), append(bytes.Clone(tarred), tarred...))
	f.Add(uint8(2), []byte{7<<3 | 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, which uint8, text []byte) {
		kind := []Kind{Mar, Tarball, ONNX}[which%3]
		quick, deep := problemOf(t.Context(), kind, text, false), problemOf(t.Context(), kind, text, true)
		if deep == nil && quick != nil {
			t.Fatalf("complete to its last byte, but at first sight: %v", quick)
		}
		for _, err := range []error{quick, deep} {
			if _, known := errors.AsType[partial](err); err != nil && !known && !errors.Is(err, errEnough) {
				t.Fatalf("neither complete nor partial: %v", err)
			}
		}
		if deep != nil || kind != Mar {
			return
		}
		r, err := zip.NewReader(bytes.NewReader(text), int64(len(text)))
		if err != nil && !errors.Is(err, zip.ErrInsecurePath) {
			t.Fatalf("complete, but %v", err)
		}
		for _, f := range r.File {
			if strings.HasSuffix(f.Name, "/") || f.Flags&1 != 0 {
				continue
			}
			e, err := f.Open()
			if errors.Is(err, zip.ErrAlgorithm) {
				continue
			}
			if err != nil {
				t.Fatalf("complete, but %s: %v", f.Name, err)
			}
			if _, err := io.Copy(io.Discard, e); err != nil { //nolint:gosec // fuzzed archives are small
				t.Fatalf("complete, but %s: %v", f.Name, err)
			}
		}
	})
}
