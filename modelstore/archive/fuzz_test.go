package archive

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// -seeds writes the hostile archives of the tests to testdata/fuzz.
var writeSeeds = flag.Bool("seeds", false, "write the seeds of the fuzz targets")

// fuzzLimits are small enough for a fuzzer to reach.
func fuzzLimits() Limits {
	return Limits{UnpackedBytes: 1 << 20, Entries: 64, RatioFloor: 64 << 10, MetadataBytes: 16 << 10}
}

// fuzzPlace is a place with a folder beside the store that nobody may write to.
func fuzzPlace(t *testing.T) (*place, *Store) {
	t.Helper()
	p := newPlace(t)
	p.write(t, "canary/bird", []byte("alive"))
	return p, p.open(t, func(o *Options) { o.Limits = fuzzLimits() })
}

// fuzzUnpack opens data as an archive in all ways, and checks that nothing is written elsewhere, that nothing stays, that the budget is kept, and that
// the same bytes give the same model.
func fuzzUnpack(t *testing.T, name string, data []byte) {
	t.Helper()
	p, s := fuzzPlace(t)
	p.write(t, "store/"+name, data)
	before := all(t, p.dir)
	first, firstErr := opens(t, s, name, (*Store).OpenEntry)
	if after := all(t, p.dir); !slices.Equal(before, after) {
		t.Errorf("it left files: %v, before it %v", after, before)
	}
	second, secondErr := opens(t, s, name, (*Store).OpenEntry)
	if first != second || (firstErr == nil) != (secondErr == nil) {
		t.Errorf("the first time %q, %v, the second time %q, %v", first, firstErr, second, secondErr)
	}
	tolerant, tolerantErr := opens(t, s, name, (*Store).Open)
	if firstErr == nil && (tolerantErr != nil || tolerant != first) {
		t.Errorf("strictly %q, tolerantly %q, %v", first, tolerant, tolerantErr)
	}
	for _, err := range []error{firstErr, tolerantErr} {
		if err != nil && !fault.Is(err, fault.InvalidModel, fault.Internal) {
			t.Errorf("kind %v: %v", fault.KindOf(err), err)
		}
	}
	if after := all(t, p.dir); !slices.Equal(before, after) {
		t.Errorf("it left files: %v, before it %v", after, before)
	}
}

// opener is one of the ways to open a model.
type opener = func(s *Store, ctx context.Context, name string) (*Archive, error)

// opens opens and closes a model, and gives its digest and its files.
func opens(t *testing.T, s *Store, name string, open opener) (string, error) {
	t.Helper()
	a, err := open(s, t.Context(), name)
	if err != nil {
		return "", err
	}
	checkUnpacked(t, a.Dir)
	content := a.Digest + strings.Join(tree(t, a.Dir), "\n") + fmt.Sprint(a.Manifest)
	if _, err := a.Samples(); err != nil && strings.Contains(err.Error(), "panic") {
		t.Error(err)
	}
	return content, a.Close()
}

// checkUnpacked accepts files and folders within the limits.
func checkUnpacked(t *testing.T, dir string) {
	t.Helper()
	var total int64
	names := tree(t, dir)
	for _, file := range names {
		info, err := os.Lstat(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if !info.IsDir() && !info.Mode().IsRegular() || info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0 {
			t.Errorf("%s has mode %v", file, info.Mode())
		}
		if info.Mode().IsRegular() {
			total += info.Size()
		}
	}
	if limits := fuzzLimits(); total > limits.UnpackedBytes || len(names) > limits.Entries {
		t.Errorf("%d bytes in %d files were unpacked", total, len(names))
	}
}

func FuzzZip(f *testing.F) {
	f.Add(makeZip(f, goodEntries()))
	f.Add(rawZip([]rawEntry{{name: "a", data: "x"}}, rawEnd{wide: true}))
	f.Add([]byte("PK\x05\x06" + strings.Repeat("\x00", 18)))
	f.Fuzz(func(t *testing.T, data []byte) { fuzzUnpack(t, "x.mar", data) })
}

// FuzzZipContent makes a good zip file of what the fuzzer thinks of, which it would not come to by itself.
func FuzzZipContent(f *testing.F) {
	f.Add("MAR-INF/MANIFEST.json", goodManifest, "c.yaml", "minWorkers: 1\n", uint32(0o100644))
	f.Add("a/b", "x", "a", "y", uint32(0o120777))
	f.Fuzz(func(t *testing.T, name1, text1, name2, text2 string, mode uint32) {
		if len(name1)+len(name2) > 1<<12 || len(text1)+len(text2) > 1<<14 {
			return
		}
		fuzzUnpack(t, "x.mar", rawZip([]rawEntry{{name: name1, data: text1}, {name: name2, data: text2, mode: mode}}, rawEnd{}))
	})
}

func FuzzTar(f *testing.F) {
	f.Add(makeTar(f, []entry{{name: "m/"}, {name: "m/MAR-INF/MANIFEST.json", text: goodManifest}, {name: "m/c.yaml", text: "batchSize: 1"}}))
	f.Fuzz(func(t *testing.T, data []byte) { fuzzUnpack(t, "x.tar.gz", data) })
}

// FuzzTarContent compresses what the fuzzer thinks of, so that it need not get checksums right.
func FuzzTarContent(f *testing.F) {
	for _, entries := range [][]entry{{{name: "m/a", text: "x"}}, {{name: "m/l", link: "..", typ: '2'}, {name: "m/l/x", text: "y"}}} {
		f.Add(gunzip(f, makeTar(f, entries)))
	}
	f.Fuzz(func(t *testing.T, data []byte) { fuzzUnpack(t, "x.tgz", gzipped(t, data)) })
}

// FuzzEntry opens any bytes under any name.
func FuzzEntry(f *testing.F) {
	f.Add(".onnx", onnxModel(10))
	f.Add(".mar", makeZip(f, goodEntries()))
	f.Add(".model", makeTar(f, []entry{{name: "m/a", text: "x"}}))
	f.Fuzz(func(t *testing.T, suffix string, data []byte) {
		name := "x" + suffix
		if strings.ContainsAny(name, "/\x00") || len(name) > 100 {
			return
		}
		p, s := fuzzPlace(t)
		p.write(t, "store/"+name, data)
		before := all(t, p.dir)
		_, err := opens(t, s, name, (*Store).OpenEntry)
		if err == nil && (len(data) == 0 || !isArchiveName(name)) {
			t.Errorf("%q with %d bytes was taken", name, len(data))
		}
		if errors.Is(err, ErrChanged) || fault.Is(err, fault.ModelNotFound) {
			t.Errorf("%q: %v", name, err)
		}
		if after := all(t, p.dir); !slices.Equal(before, after) {
			t.Errorf("it left files: %v, before it %v", after, before)
		}
	})
}

// FuzzFolder opens folders with any name, and asks for any place of the store.
func FuzzFolder(f *testing.F) {
	f.Add("resnet", "2", "resnet/2")
	f.Add("a", "x.mar", "../canary")
	f.Fuzz(func(t *testing.T, folder, file, asked string) {
		p, s := fuzzPlace(t)
		dir := filepath.Join(p.store, folder)
		if good := filepath.IsLocal(folder) && !strings.ContainsRune(folder, 0) && os.MkdirAll(dir, 0o700) == nil; good && filepath.Base(file) == file {
			_ = os.WriteFile(filepath.Join(dir, file), onnxModel(3), 0o600) // some names are none
		}
		p.write(t, "canary/MAR-INF/MANIFEST.json", []byte(goodManifest))
		before := all(t, p.dir)
		for _, place := range []string{folder, asked, folder + "/" + file} {
			a, err := s.OpenEntry(t.Context(), place)
			if err != nil {
				continue
			}
			led, err := filepath.EvalSymlinks(a.Dir)
			if rel, relErr := filepath.Rel(p.dir, led); err != nil || relErr != nil || strings.HasPrefix(rel, "canary") || !filepath.IsLocal(rel) {
				t.Errorf("%q is in %s (%v)", place, led, err)
			}
			if a.Source == "" || !filepath.IsLocal(a.Source) {
				t.Errorf("%q has the source %q", place, a.Source)
			}
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		}
		if after := all(t, p.dir); !slices.Equal(before, after) {
			t.Errorf("it left files: %v, before it %v", after, before)
		}
	})
}

// FuzzEntryName checks that a name which is taken leads into the folder, for whoever reads it in whatever way.
func FuzzEntryName(f *testing.F) {
	for _, name := range []string{"a/b", "../a", `..\a`, "C:a", "a//b/./c", "‥/a", "a／b", "\u202ea", "CON", "é", "e\u0301"} {
		f.Add(name, "A")
	}
	f.Fuzz(func(t *testing.T, entry, other string) {
		name, err := entryName(entry)
		if err != nil {
			return
		}
		switch {
		case !filepath.IsLocal(name), strings.ContainsAny(name, "\\\x00\r\n\t\x7f"), !utf8.ValidString(name), hasDots(name), hasDrive(name):
			t.Errorf("%q gives %q", entry, name)
		}
		if again, err := entryName(name); err != nil || again != name {
			t.Errorf("%q gives %q, and that gives %q, %v", entry, name, again, err)
		}
		if strings.EqualFold(name, other) && keyOf(name) != keyOf(other) {
			t.Errorf("%q and %q are the same but for case", name, other)
		}
		w := written{}
		if _, err := w.add(name, false); err != nil && name != "." {
			t.Errorf("%q alone: %v", name, err)
		}
		if _, err := w.add(name, false); err == nil {
			t.Errorf("%q was taken twice", name)
		}
	})
}

func FuzzONNX(f *testing.F) {
	f.Add(onnxModel(10))
	f.Add([]byte{8, 8, 0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, data []byte) {
		if checkONNX(bytes.NewReader(data), int64(len(data))) != nil {
			return
		}
		for _, n := range []int{len(data) - 1, len(data) / 2} {
			if err := checkONNX(bytes.NewReader(data[:n]), int64(n)); err == nil && n == 0 {
				t.Errorf("%d of %d bytes were taken", n, len(data))
			}
		}
	})
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(goodManifest))
	f.Add([]byte(`{"model": {"modelVersion": 1e400, "modelName": nul}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := parseManifest(text)
		if err == nil && m.Runtime != "" && m.Runtime != RuntimePython && m.Runtime != RuntimePython3 && m.Runtime != RuntimeLSP {
			t.Errorf("runtime %q", m.Runtime)
		}
	})
}

func FuzzSettings(f *testing.F) {
	f.Add([]byte("minWorkers: 1\nmaxWorkers: 2\ndeviceIds: [0, 1]\ntorchrun:\n  nnodes: 1\n"))
	f.Add([]byte("a: &a {<<: *a}\n<<: *a\nbatchSize: *b\n"))
	f.Add([]byte("batchSize: !!int 3\nuseVenv: |\n  x\n? x\n: y\n"))
	f.Add([]byte("swap: dual\nwarmup:\n- {file: a, count: 3}\n- b\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 2<<10 {
			return // the parser's time is not what is looked for here
		}
		if _, err := parseYAML(text); err != nil {
			return
		}
		s, err := parseSettings(text, discard())
		if err != nil {
			t.Fatalf("its keys can be listed, but not read: %v", err)
		}
		if s.ResponseTimeout == nil || s.StartupTimeout == nil || *s.ResponseTimeout <= 0 || s.MaxNumSequence < 1 ||
			s.BatchSize != nil && *s.BatchSize < 1 || s.MinWorkers != nil && *s.MinWorkers < 1 || s.MaxBatchDelay != nil && *s.MaxBatchDelay <= 0 {
			t.Errorf("broken promise: %+v", s)
		}
		for _, sample := range s.WarmUp {
			if sample.File == "" || sample.Count < 1 || sample.Count > maxSampleCount {
				t.Errorf("broken promise: %+v", sample)
			}
		}
	})
}

// TestWriteSeeds writes the hostile archives where the fuzz targets find them, when it is asked to.
func TestWriteSeeds(t *testing.T) {
	t.Parallel()
	if !*writeSeeds {
		t.Skip("only with -seeds")
	}
	const most = 8 << 10
	write := func(target, name string, values ...any) {
		text := "go test fuzz v1\n"
		for _, v := range values {
			switch v := v.(type) {
			case []byte:
				text += fmt.Sprintf("[]byte(%q)\n", v)
			default:
				text += fmt.Sprintf("string(%q)\n", v)
			}
		}
		dir := filepath.Join("testdata", "fuzz", target)
		if len(text) > 4*most {
			return
		}
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, strings.Map(plain, name)), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for name, h := range hostile(t) {
		target, content := "FuzzZip", h.data
		if h.file == "x.tgz" {
			target = "FuzzTar"
			write("FuzzTarContent", name, gunzip(t, h.data))
		}
		write(target, name, content)
		write("FuzzEntry", name, strings.TrimPrefix(h.file, "x"), content)
	}
	write("FuzzEntry", "onnx", ".onnx", onnxModel(20))
	write("FuzzONNX", "good", onnxModel(20))
	write("FuzzONNX", "cut", onnxModel(20)[:15])
	write("FuzzONNX", "pointer", []byte("version https://git-lfs.github.com/spec/v1\n"))
	for i, name := range []string{"../../x", "/x", `..\x`, "C:/x", "‥/‥/x", "．．／x", "a\x00b", "\u202ex", "K", "ß", strings.Repeat("x/", 200) + "y"} {
		write("FuzzEntryName", fmt.Sprint("name ", i), name, "k")
		write("FuzzFolder", fmt.Sprint("name ", i), name, "model.onnx", name)
	}
	write("FuzzFolder", "version", "digits", "model.onnx", "digits/model.onnx")
	write("FuzzFolder", "versions", "digits/1", "model.onnx", "digits/1")
	write("FuzzFolder", "sole archive", "digits/1", "a.onnx", "digits/1/a.onnx")
	for i, text := range []string{laughs(), "a: &a [1, *a]\n", "a: !!python/object:os.system {}\n", "%TAG ! tag:x,1:\n---\na: 1\n", "a: 1\na: 2\n", strings.Repeat("[", 300)} {
		write("FuzzSettings", fmt.Sprint("text ", i), []byte(text))
	}
	for i, text := range []string{`{"a": [1, {"b": null}], "model": {"modelName": 1.50}}`, "\ufeff{}", `{"model": []}`, strings.Repeat(`{"a":`, 1000), `{"runtime": "LSP", "runtime": 3}`} {
		write("FuzzManifest", fmt.Sprint("text ", i), []byte(text))
	}
}

func plain(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
		return r
	}
	return '-'
}
