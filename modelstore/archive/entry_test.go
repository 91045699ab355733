package archive

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// onnxModel is the outermost part of an ONNX file, with a graph of so many bytes that nobody has to understand.
func onnxModel(graph int) []byte {
	b := []byte{onnxVersion<<3 | wireVarint, 8, 2<<3 | wireBytes, 4, 't', 'e', 's', 't'}
	b = append(b, onnxGraph<<3|wireBytes)
	b = binary.AppendUvarint(b, uint64(graph))
	b = append(b, bytes.Repeat([]byte{'g'}, graph)...)
	return append(b, onnxOpset<<3|wireBytes, 2, 2<<3, 17)
}

// storedZip is a zip file without compression, which holds another one as torch.save makes it.
func storedZip(t testing.TB, entries []entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	for _, e := range entries {
		f, err := w.CreateHeader(&zip.FileHeader{Name: e.name, Method: zip.Store})
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

func TestOpenEntry(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	mar := makeZip(t, goodEntries())
	tgz := makeTar(t, []entry{{name: "m/MAR-INF/MANIFEST.json", text: goodManifest}, {name: "m/handler.py", text: "x"}})
	for name, data := range map[string][]byte{
		"my-model.mar": mar, "t.tgz": tgz, "t.tar.gz": tgz, "t.model": tgz, "v/1/any.mar": mar, "v/2.0/x.tgz": tgz, "v/3/digits.onnx": onnxModel(10),
		"v/4/handler.py": []byte("x"), "v/5/a.mar": mar, "v/5/b.mar": mar, "plain/MAR-INF/MANIFEST.json": []byte(goodManifest),
		"digits.onnx": onnxModel(10), "o/model.onnx": onnxModel(10), "o/model-config.yaml": []byte("minWorkers: 2\nmaxWorkers: 2\n"),
		"n/7/model.onnx": onnxModel(10), "n/7/.hidden": nil, "v/6/x.mar": mar, "v/6/.DS_Store": nil, "1/MAR-INF/MANIFEST.json": []byte(goodManifest),
		"both/model.onnx": onnxModel(10), "both/MAR-INF/MANIFEST.json": []byte(goodManifest),
	} {
		p.write(t, "store/"+name, data)
	}
	if err := os.Symlink("my-model.mar", filepath.Join(p.store, "link.mar")); err != nil {
		t.Fatal(err)
	}
	s := p.open(t, nil)
	tests := []struct {
		place, base, name, version, runtime, digest string
		inPlace                                     bool
	}{
		{place: "my-model.mar", base: "my_model", name: "m", version: "1.0", runtime: RuntimePython, digest: fileDigest},
		{place: "link.mar", base: "link", name: "m", version: "1.0", runtime: RuntimePython, digest: fileDigest},
		{place: "t.tgz", base: "t_tgz", name: "m", version: "1.0", runtime: RuntimePython, digest: fileDigest},
		{place: "t.tar.gz", base: "t_tar_gz", name: "m", version: "1.0", runtime: RuntimePython, digest: fileDigest},
		{place: "t.model", base: "t", name: "m", version: "1.0", runtime: RuntimePython, digest: fileDigest},
		{place: "v/1", base: "v", name: "m", version: "1.0", runtime: RuntimePython, digest: fileDigest},
		{place: "v/1/", base: "v", name: "m", version: "1.0", runtime: RuntimePython, digest: fileDigest},
		{place: "v/1/any.mar", base: "v", name: "m", version: "1.0", runtime: RuntimePython, digest: fileDigest},
		{place: "v/2.0", base: "v", name: "m", version: "1.0", runtime: RuntimePython, digest: fileDigest},
		{place: "v/3", base: "v", name: "v", version: "3", runtime: RuntimeONNX, digest: fileDigest},
		{place: "v/4", base: "v", runtime: RuntimePython, digest: treeDigest, inPlace: true},
		{place: "v/5", base: "v", runtime: RuntimePython, digest: treeDigest, inPlace: true},
		{place: "v/6", base: "v", name: "m", version: "1.0", runtime: RuntimePython, digest: fileDigest},
		{place: "plain", base: "plain", name: "m", version: "1.0", runtime: RuntimePython, digest: treeDigest, inPlace: true},
		{place: "1", base: "1", name: "m", version: "1.0", runtime: RuntimePython, digest: treeDigest, inPlace: true},
		{place: "digits.onnx", base: "digits", name: "digits", runtime: RuntimeONNX, digest: fileDigest},
		{place: "o", base: "o", name: "o", runtime: RuntimeONNX, digest: treeDigest, inPlace: true},
		{place: "n/7", base: "n", name: "n", version: "7", runtime: RuntimeONNX, digest: treeDigest, inPlace: true},
		{place: "both", base: "both", name: "m", version: "1.0", runtime: RuntimePython, digest: treeDigest, inPlace: true},
	}
	for _, tt := range tests {
		a, err := s.OpenEntry(t.Context(), tt.place)
		if err != nil {
			t.Errorf("%s: %v", tt.place, err)
			continue
		}
		m := a.Manifest.Model
		if a.FileBase != tt.base || m.ModelName != tt.name || m.ModelVersion != tt.version || a.Manifest.Runtime != tt.runtime || a.InPlace != tt.inPlace {
			t.Errorf("%s: base %q, model %q %q, runtime %q, in place %v", tt.place, a.FileBase, m.ModelName, m.ModelVersion, a.Manifest.Runtime, a.InPlace)
		}
		if !strings.HasPrefix(a.Digest, tt.digest) || a.Source != strings.TrimSuffix(tt.place, "/") || a.Bytes <= 0 || a.URL != tt.place {
			t.Errorf("%s: digest %q, source %q, %d bytes, URL %q", tt.place, a.Digest, a.Source, a.Bytes, a.URL)
		}
		if tt.runtime == RuntimeONNX {
			if info, err := os.Stat(filepath.Join(a.Dir, m.SerializedFile)); err != nil || !info.Mode().IsRegular() {
				t.Errorf("%s: the model's file: %v", tt.place, err)
			}
		}
		if lo, hi, ok := a.Settings.Workers(); tt.place == "o" && (lo != 2 || hi != 2 || !ok) {
			t.Errorf("%s: %d to %d workers (%v)", tt.place, lo, hi, ok)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestOpenEntryRefuses(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write(t, "store/readme.txt", []byte("x"))
	p.write(t, "store/html.mar", []byte("<html>"))
	p.write(t, "store/empty.mar", nil)
	p.write(t, "store/zeros.mar", make([]byte, 1000))
	p.write(t, "store/empty.tgz", nil)
	p.write(t, "store/text.tgz", []byte("hello"))
	p.write(t, "store/text.onnx", []byte("hello"))
	p.write(t, "store/empty.onnx", nil)
	p.write(t, "store/lfs.onnx", []byte("version https://git-lfs.github.com/spec/v1\n"))
	p.write(t, "store/d/model.onnx", onnxModel(100)[:50])
	p.write(t, "outside.mar", makeZip(t, goodEntries()))
	s := p.open(t, nil)
	for place, says := range map[string]string{
		"nope.mar": "not found", "": "empty", ".": "empty", "..": "leads out", "../outside.mar": "leads out", "x/../../outside.mar": "leads out",
		"x/../html.mar": "leads out", p.dir + "/outside.mar": "leads out", "a\x00.mar": "NUL", "readme.txt": "not one of an archive", "html.mar": "6 bytes are there",
		"empty.mar": "empty", "zeros.mar": "1000 bytes are there", "empty.tgz": "empty", "text.tgz": "5 bytes are there", "text.onnx": "5 bytes",
		"empty.onnx": "empty", "lfs.onnx": "43 bytes", "d": "50 bytes are there",
	} {
		_, err := s.OpenEntry(t.Context(), place)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want one that says %q", place, err, says)
		}
		if left := tree(t, filepath.Join(p.temp, "models")); len(left) > 0 {
			t.Errorf("%q: left: %v", place, left)
		}
	}
	p.temp = filepath.Join(p.dir, "tmp2")
	none := p.open(t, func(o *Options) { o.Store = "" })
	if _, err := none.OpenEntry(t.Context(), "html.mar"); fault.Message(err) != "Model store has not been configured." {
		t.Error(err)
	}
	a, err := none.OpenFile(t.Context(), filepath.Join(p.dir, "outside.mar"))
	if err != nil {
		t.Fatal(err)
	}
	if a.Source != "" || a.FileBase != "outside" || a.Manifest.Model.ModelName != "m" || !strings.HasPrefix(a.Digest, fileDigest) {
		t.Errorf("got %+v", a)
	}
	for _, bad := range []string{"", "a\x00b", filepath.Join(p.dir, "nope.mar")} {
		if _, err := none.OpenFile(t.Context(), bad); !fault.Is(err, fault.ModelNotFound) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestCutOff: no beginning of an archive is taken for an archive, and the error tells how much of it is there.
func TestCutOff(t *testing.T) {
	t.Parallel()
	inner := storedZip(t, []entry{{name: "archive/data.pkl", text: "weights"}})
	stored := storedZip(t, []entry{{name: manifestPath, text: goodManifest}, {name: "w.pt", text: string(inner)}, {name: "z.pt", text: string(inner)}})
	for name, whole := range map[string][]byte{
		"x.mar": makeZip(t, goodEntries()), "s.mar": stored, "x.tgz": makeTar(t, []entry{{name: "m/a", text: "x"}, {name: "m/b", text: "y"}}), "x.onnx": onnxModel(300),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			s := p.open(t, nil)
			for n := range whole {
				p.write(t, "store/"+name, whole[:n])
				_, err := s.OpenEntry(t.Context(), name)
				if err == nil {
					t.Errorf("%d of %d bytes were taken", n, len(whole))
					continue
				}
				if n > 0 && !strings.Contains(err.Error(), fmt.Sprint(n, " bytes")) {
					t.Errorf("%d bytes: %v", n, err)
				}
			}
			p.write(t, "store/"+name, whole)
			if a, err := s.OpenEntry(t.Context(), name); err != nil || a.Bytes != int64(len(whole)) {
				t.Errorf("the whole: %v", err)
			}
			if left := tree(t, filepath.Join(p.temp, "models")); len(left) == 0 {
				t.Error("the whole one is not unpacked")
			}
		})
	}
}

// TestTreeDigest: a folder's digest follows what belongs to the model, and nothing else.
func TestTreeDigest(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write(t, "store/m/handler.py", []byte("x"))
	p.write(t, "store/m/sub/w.pt", []byte("y"))
	s := p.open(t, nil)
	digest := func() string {
		a, err := s.OpenEntry(t.Context(), "m")
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		return a.Digest
	}
	first := digest()
	for _, name := range []string{"__pycache__/handler.cpython-311.pyc", "sub/x.pyc", ".git/HEAD", "handler.py~", "handler.py.swp", "w.pt.part"} {
		p.write(t, "store/m/"+name, []byte("z"))
		if digest() != first {
			t.Errorf("%s changed it", name)
		}
	}
	last := first
	for _, name := range []string{"handler.py", "sub/w.pt", "new.txt", "sub/deep/x"} {
		p.write(t, "store/m/"+name, []byte("changed"))
		now := digest()
		if now == last {
			t.Errorf("%s did not change it", name)
		}
		last = now
	}
	if err := os.Symlink("../elsewhere", filepath.Join(p.store, "m", "link")); err != nil {
		t.Fatal(err)
	}
	dangling := digest()
	if dangling == last {
		t.Error("a new link did not change it")
	}
	p.write(t, "store/elsewhere", []byte("a"))
	if digest() == dangling {
		t.Error("what a link leads to did not change it")
	}
}

func TestLayout(t *testing.T) {
	t.Parallel()
	for place, want := range map[string]layout{
		"resnet.mar": {name: "resnet"}, "resnet.tar.gz": {name: "resnet"}, "a.b.tgz": {name: "a.b"}, "digits.onnx": {name: "digits"}, "resnet/": {name: "resnet"},
		"resnet/2": {"resnet", "2"}, "resnet/2.0.1/": {"resnet", "2.0.1"}, "resnet/2/x.mar": {"resnet", "2"}, "2": {name: "2"}, "2.mar": {name: "2"},
		"2/x.mar": {name: "x"}, "resnet/v2": {name: "v2"}, "resnet/2.": {name: "2."}, ".mar": {name: ".mar"}, "": {name: "."}, "/a/b/3": {"b", "3"}, "/3": {name: "3"},
	} {
		if got := layoutOf(place); got != want {
			t.Errorf("layoutOf(%q) = %+v, want %+v", place, got, want)
		}
	}
}
