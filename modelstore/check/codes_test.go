package check

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/python"
	"github.com/flambeau-serve/flambeau/plugins/python/inspect"
)

// planted is an archive with one fault, and what it is looked at with.
type planted struct {
	severity Severity
	model    model
	opts     Options                                      // Inspector nil: the Python of the tests if reads is true, else someFacts
	reads    bool                                         // a real Python reads the archive's code
	base     bool                                         // without a Python: the handler's initialize is BaseHandler's
	add      func(t *testing.T, dir string)               // adds to the files what is no text
	store    func(t *testing.T, dir string) (name string) // the archive is opened by a store in dir, which this fills, in place of the model
	set      func(t *testing.T, o *Options, dir string)   // sets what is known by then only
	change   func(a *archive.Archive)
}

// build builds a shared object, or a program, by the C compiler.
func build(t *testing.T, dir, out, source string, args ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a compiler")
	}
	args = append([]string{"-x", "c", "-", "-x", "none", "-o", out}, args...)
	cmd := exec.CommandContext(t.Context(), "gcc", args...) //nolint:gosec // the test's own words
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
}

// object gives what adds a shared object that needs another one.
func object(out string, args ...string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		build(t, dir, out, "int a;", append([]string{"-shared", "-fPIC", "-nostdlib", "-Wl,--no-as-needed"}, args...)...)
	}
}

// needed builds a library outside of the archive, to be linked to.
func needed(t *testing.T, name, source string, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	build(t, dir, name, source, append([]string{"-shared", "-fPIC", "-nostdlib", "-Wl,-soname," + name}, args...)...)
	return filepath.Join(dir, name)
}

// sparse adds a file that takes no room on the disk.
func sparse(t *testing.T, path string, bytes int64) {
	t.Helper()
	file, err := os.Create(path)
	if err == nil {
		err = file.Truncate(bytes)
	}
	if err == nil {
		err = file.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// absent is the command of workers on a machine without Python.
type absent struct{}

func (absent) Spec(string, string) (backend.ProcessSpec, error) {
	return backend.ProcessSpec{}, &python.MissingError{Cause: errors.New("no Python is on the server's PATH")}
}

func handlerWith(text string) model {
	return model{files: map[string]string{"handler.py": text}}
}

func withConfig(text string) model {
	return model{files: map[string]string{"c.yaml": text}, manifest: `, "configFile": "c.yaml"`}
}

func requiring(text string) model {
	return model{files: map[string]string{"requirements.txt": text}, manifest: `, "requirementsFile": "requirements.txt"`}
}

// serialized is a model of BaseHandler's.
func serialized(name, content string) model {
	return model{files: map[string]string{name: content}, handler: noHandler, manifest: fmt.Sprintf(`, "serializedFile": %q`, name)}
}

// plantedArchives has an archive for each code.
func plantedArchives(t *testing.T) map[Code]planted {
	t.Helper()
	noGPU := 0
	torchScript := func(format string) string {
		return zipped(t, map[string]string{"m/code/__torch__.py": "", "m/constants.pkl": emptyPickle, "m/data.pkl": emptyPickle, "m/version": format})
	}
	wheel := func(python string) string {
		return zipped(t, map[string]string{"tiny/__init__.py": "", "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nRequires-Python: " + python + "\n\n"})
	}
	with := func(name, content string) model { return model{files: map[string]string{name: content}} }
	refused := serialized("w.pt", zipped(t, map[string]string{"w/data.pkl": namespacePickle}))
	refused.files["net.py"], refused.manifest = "class N: pass", refused.manifest+`, "modelFile": "net.py"`
	twoClasses := serialized("w.pt", zipped(t, map[string]string{"w/data.pkl": emptyPickle}))
	twoClasses.handler, twoClasses.manifest = "handler.py", twoClasses.manifest+`, "modelFile": "net.py"`
	twoClasses.files["net.py"] = "class N: pass\nclass M: pass\n"
	twoClasses.files["handler.py"] = "from ts.torch_handler.base_handler import BaseHandler\nclass H(BaseHandler): pass\n"
	twoClasses.files["torch/__init__.py"] = "" // the Python of the tests may have none
	labels := serialized("m.pt", torchScript("3"))
	labels.files["index_to_name.json"] = `{"0": 1}`
	class := func(body string) string { return "class A:\n    def initialize(self, c): pass\n" + body }
	const handle = "    def handle(self, d, c): pass\n"
	return map[Code]planted{
		ArchiveUnusable: {severity: Error, store: func(t *testing.T, dir string) string {
			t.Helper()
			writeFile(t, filepath.Join(dir, "planted.mar"), "no zip file")
			return "planted.mar"
		}},
		ManifestMissing: {severity: Warning, store: func(t *testing.T, dir string) string {
			t.Helper()
			writeFile(t, filepath.Join(dir, "planted", "code.py"), goodHandler)
			return "planted"
		}},
		ManifestFileMissing:    {severity: Error, model: model{manifest: `, "serializedFile": "a.pt"`}},
		ManifestValue:          {severity: Warning, model: model{manifest: `, "modelVersion": "1/2"`}},
		HandlerUnnamed:         {severity: Error, change: func(a *archive.Archive) { a.Manifest.Model.Handler = "" }},
		HandlerMissing:         {severity: Error, reads: true, model: model{handler: "absent.py"}},
		HandlerNoEntry:         {severity: Error, reads: true, model: handlerWith("x = 1\n")},
		HandlerAmbiguous:       {severity: Error, reads: true, model: handlerWith(class(handle) + "class B(A): pass\n")},
		HandlerIncomplete:      {severity: Error, reads: true, model: handlerWith("class A:\n" + handle)},
		HandlerFunctionIgnored: {severity: Warning, reads: true, model: model{handler: "handler:infer", files: handlerWith(class(handle)).files}},
		LabelsInvalid:          {severity: Error, model: labels, base: true},
		SyntaxError:            {severity: Error, reads: true, model: handlerWith("print 'hello'\n" + goodHandler)},
		FileUnreadable:         {severity: Error, reads: true, model: handlerWith("x = " + strings.Repeat("-", 50_000) + "1\n" + goodHandler)},
		ImportMissing:          {severity: Error, reads: true, model: handlerWith("import nobody_has\n" + goodHandler)},
		ImportName:             {severity: Error, reads: true, model: handlerWith("from string import nothing\n" + goodHandler)},
		ImportRelative:         {severity: Error, reads: true, model: model{files: map[string]string{"handler.py": "from .tools import x\n" + goodHandler, "tools.py": "x = 1\n"}}},
		ModelFileClasses:       {severity: Error, reads: true, model: twoClasses},
		CheckIncomplete:        {severity: Warning, reads: true, model: model{files: map[string]string{"handler.py": "import large\n" + goodHandler, "large.py": strings.Repeat("# x\n", 1<<20)}}},
		LibraryMissing: {severity: Error, add: func(t *testing.T, dir string) {
			t.Helper()
			object("a.so", needed(t, "libnobody.so.9", "int b;"))(t, dir)
		}},
		LibraryArchitecture: {severity: Error, add: func(t *testing.T, dir string) {
			t.Helper()
			object("a.so")(t, dir)
			patch(t, filepath.Join(dir, "a.so"), 18, 40, 0)
		}},
		LibraryPython: {severity: Warning, add: object("old.cpython-38-x86_64-linux-gnu.so")},
		LibraryCorrupt: {severity: Error, add: func(t *testing.T, dir string) {
			t.Helper()
			object("a.so")(t, dir)
			cutHalf(t, filepath.Join(dir, "a.so"))
		}},
		WheelUnfit:              {severity: Warning, model: with("a-1.0-cp38-cp38-manylinux1_x86_64.whl", wheel(""))},
		WheelPython:             {severity: Warning, model: with("c-1.0-py3-none-any.whl", wheel("<3.9"))},
		WheelName:               {severity: Warning, model: with("e.whl", "")},
		RequirementMalformed:    {severity: Warning, model: requiring("x===\n")},
		RequirementNotInstalled: {severity: Warning, model: requiring("nobody-has\n")},
		RequirementConflict:     {severity: Warning, model: requiring("torch==1.8\n")},
		WeightsFormat:           {severity: Error, base: true, model: serialized("m.pth", "x")},
		WeightsVersion:          {severity: Error, base: true, model: serialized("m.pt", torchScript("11"))},
		WeightsCorrupt:          {severity: Error, base: true, model: serialized("m.pt", torchScript("3")[:200])},
		PickleUnsafe:            {severity: Warning, model: with("extra.pkl", systemPickle)},
		PickleGlobals:           {severity: Warning, base: true, model: refused},
		OnnxVersion:             {severity: Error, model: with("m.onnx", onnx(8, 24, "", nil))},
		OnnxDomain:              {severity: Warning, model: with("m.onnx", onnx(8, 17, "my.domain", nil))},
		OnnxExternalData:        {severity: Error, model: with("m.onnx", onnx(8, 17, "", map[string]string{"location": "w.bin"}))},
		GitLFSPointer:           {severity: Error, model: with("w.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n")},
		ConfigUnreadable:        {severity: Error, model: withConfig("a: [1\nb: }")},
		ConfigUnknownKey:        {severity: Warning, model: withConfig("maxBatchDelays: 10\n")},
		ConfigValue:             {severity: Warning, model: withConfig("responseTimeout: soon\n")},
		ConfigContradiction:     {severity: Warning, model: withConfig("minWorkers: 3\nmaxWorkers: 2\n")},
		ConfigDevices:           {severity: Warning, model: withConfig("deviceType: gpu\n"), opts: Options{GPUs: &noGPU}},
		ConfigRefused: {severity: Error, store: func(t *testing.T, dir string) string {
			t.Helper()
			writeFile(t, filepath.Join(dir, "planted", "model-config.yaml"), "onnx: {topk: 5}\n")
			writeFile(t, filepath.Join(dir, "planted", "model.onnx"), onnx(8, 17, "", nil))
			return "planted"
		}},
		EnsembleCircle: {severity: Error, store: func(t *testing.T, dir string) string {
			t.Helper()
			writeFile(t, filepath.Join(dir, "planted", "model-config.yaml"), "ensemble:\n  steps:\n    - {model: planted, inputs: {x: A}, outputs: {y: B}}\n")
			return "planted"
		}},
		MemoryShort: {severity: Warning, opts: Options{MemoryBytes: 100 << 20, Workers: 2}, add: func(t *testing.T, dir string) {
			t.Helper()
			sparse(t, filepath.Join(dir, "w.h5"), smallModel+1<<20)
		}},
		LibraryNotSearched: {severity: Warning, add: func(t *testing.T, dir string) {
			t.Helper()
			build(t, dir, "libown.so", "int own;", "-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libown.so")
			object("a.so", "libown.so")(t, dir)
		}},
		LibraryVersion: {severity: Error, add: func(t *testing.T, dir string) {
			t.Helper()
			symbols := filepath.Join(t.TempDir(), "glibc.map")
			writeFile(t, symbols, "GLIBC_2.99 { global: future; };\n")
			future := needed(t, "libc.so.6", "int future;", "-Wl,--version-script="+symbols)
			build(t, dir, "a.so", "extern int future; int *a = &future;", "-shared", "-fPIC", "-nostdlib", "-Wl,--no-as-needed", future)
		}},
		PythonCrashed: {severity: Error, set: func(t *testing.T, o *Options, dir string) {
			t.Helper()
			// A real process that ends by a signal, where the Python of the worker would be.
			script := filepath.Join(dir, "python")
			writeFile(t, script, "#!/bin/sh\nkill -SEGV $$\n")
			if err := os.Chmod(script, 0o700); err != nil {
				t.Fatal(err)
			}
			o.Inspector = inspecting(t, inspect.Options{Command: command{}, Interpreter: script})
		}},
		PythonMissing: {severity: Error, set: func(t *testing.T, o *Options, _ string) {
			t.Helper()
			o.Inspector = inspecting(t, inspect.Options{Command: absent{}})
		}},
		DiskShort: {severity: Warning, set: func(_ *testing.T, o *Options, dir string) { o.TempDir = dir }, add: func(t *testing.T, dir string) {
			t.Helper()
			var fs syscall.Statfs_t
			if err := syscall.Statfs(dir, &fs); err != nil {
				t.Fatal(err)
			}
			sparse(t, filepath.Join(dir, "videos.tar"), int64(fs.Bavail)*fs.Bsize+1<<30)
		}},
		PluginProtocol: {severity: Error, opts: Options{Protocol: 1}, store: func(t *testing.T, dir string) string {
			t.Helper()
			if err := os.Mkdir(filepath.Join(dir, "planted"), 0o700); err != nil {
				t.Fatal(err)
			}
			build(t, dir, "planted/planted", "const char *mark = \""+protocolMark+"2;\"; int main(void) { return mark[0] == 0; }")
			return "planted"
		}},
	}
}

func inspecting(t *testing.T, opts inspect.Options) *inspect.Inspector {
	t.Helper()
	script, err := filepath.Abs("../../python_compat/src/flambeau/inspection/__main__.py")
	if err != nil {
		t.Fatal(err)
	}
	opts.Script = func() (string, error) { return script, nil }
	i, err := inspect.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// patch changes bytes of a file.
func patch(t *testing.T, path string, at int64, bytes ...byte) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		_, err = file.WriteAt(bytes, at)
	}
	if err == nil {
		err = file.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func cutHalf(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err == nil {
		err = os.Truncate(path, info.Size()/2)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// open gives the archive with the fault, and the options that it is looked at with.
func (p *planted) open(t *testing.T) (*archive.Archive, Options) {
	t.Helper()
	opts := p.opts
	given := someFacts(map[string]string{"torch": "2.15.0", "onnxruntime": "1.20.1"})
	if !p.base {
		given["base"] = map[string]bool{}
	}
	opts.Inspector = given
	if p.reads {
		opts.Inspector = inspector(t)
	}
	if p.set != nil {
		p.set(t, &opts, t.TempDir())
	}
	if p.store != nil {
		return p.stored(t), opts
	}
	a := p.model.archive(t)
	if p.add != nil {
		p.add(t, a.Dir)
	}
	if p.change != nil {
		p.change(a)
	}
	return a, opts
}

func (p *planted) stored(t *testing.T) *archive.Archive {
	t.Helper()
	dir := t.TempDir()
	name := p.store(t, dir)
	a, err := storeAt(t, dir).Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestEachCodeHasItsFault: for each code there is an archive with one planted fault, and the check of it finds that code, with its severity, and no other one.
func TestEachCodeHasItsFault(t *testing.T) {
	t.Parallel()
	all := plantedArchives(t)
	known := map[Code]bool{}
	for _, m := range Codes() {
		known[m.Code] = true
		p, ok := all[m.Code]
		if !ok {
			t.Errorf("no archive has the fault that is called %s", m.Code)
			continue
		}
		t.Run(string(m.Code), func(t *testing.T) {
			t.Parallel()
			a, opts := p.open(t)
			r := check(t, opts, a)
			found := map[string]bool{}
			for _, f := range r.Findings {
				found[string(f.Severity)+" "+string(f.Code)] = true
			}
			if got, want := slices.Collect(maps.Keys(found)), []string{string(p.severity) + " " + string(m.Code)}; !slices.Equal(got, want) {
				t.Errorf("found %q, want %q\n%s", got, want, r.Text())
			}
			for _, f := range r.Findings {
				if f.Message == "" {
					t.Error("it does not say what is wrong")
				}
			}
		})
	}
	for code := range all {
		if !known[code] {
			t.Errorf("%s is no code", code)
		}
	}
}

// TestPlantedArchivesAreGoodWithoutTheFault: what the archives have in common is no fault.
func TestPlantedArchivesAreGoodWithoutTheFault(t *testing.T) {
	t.Parallel()
	for _, p := range []planted{{}, {reads: true}, {model: withConfig("minWorkers: 1\nmaxWorkers: 2\n")}, {model: requiring("torch>=2\n")}} {
		a, opts := p.open(t)
		if r := check(t, opts, a); len(r.Findings) > 0 {
			t.Errorf("%s", r.Text())
		}
	}
}
