package archive

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// program is the head of an ELF file for a machine, with so many bytes behind it.
func program(machine elf.Machine, more int) []byte {
	head := make([]byte, elfHead+more)
	copy(head, elf.ELFMAG)
	head[elf.EI_CLASS], head[elf.EI_DATA], head[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	binary.LittleEndian.PutUint16(head[18:], uint16(machine))
	binary.LittleEndian.PutUint64(head[40:], uint64(elfHead+more)-10)
	binary.LittleEndian.PutUint16(head[58:], 5)
	binary.LittleEndian.PutUint16(head[60:], 2)
	return head
}

// writeProgram writes a file that may be executed.
func (p *place) writeProgram(t testing.TB, name string, data []byte) {
	t.Helper()
	if err := os.Chmod(p.write(t, name, data), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestPlugins(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	here := program(machineOf(runtime.GOARCH), 100)
	for _, name := range []string{"echo/echo", "v/2/v", "named/bin/other", "both/both", "manifest/bin/p", "plain/plain"} {
		p.writeProgram(t, "store/"+name, here)
	}
	p.writeProgram(t, "store/script/script", []byte("#!/bin/sh\n"))
	for name, text := range map[string]string{
		"named/model-config.yaml": "minWorkers: 2\nmaxWorkers: 3\nplugin: bin/other\npluginArgs: [--level, 3, true, \"a b\"]\n",
		"both/model.onnx":         string(onnxModel(10)), "manifest/MAR-INF/MANIFEST.json": `{"model":{"modelName":"m","configFile":"c.yaml"}}`, "manifest/c.yaml": "plugin: bin/p\n",
		"plain/MAR-INF/MANIFEST.json": goodManifest, "config/model-config.yaml": "minWorkers: 2\nplugins: no\n  plugin: deeper\n", "script/readme": "x",
		"by-runtime/MAR-INF/MANIFEST.json": `{"runtime":"plugin","model":{"modelName":"n"}}`,
	} {
		p.write(t, "store/"+name, []byte(text))
	}
	p.writeProgram(t, "store/by-runtime/by-runtime", here)
	s := p.open(t, nil)
	for _, tt := range []struct {
		place, runtime, name, version, plugin string
		args                                  []string
		own                                   bool // it runs from a copy
	}{
		{place: "echo", runtime: RuntimePlugin, name: "echo", plugin: "echo", own: true},
		{place: "v/2", runtime: RuntimePlugin, name: "v", version: "2", plugin: "v", own: true},
		{place: "named", runtime: RuntimePlugin, name: "named", plugin: "bin/other", args: []string{"--level", "3", "true", "a b"}, own: true},
		{place: "both", runtime: RuntimePlugin, name: "both", plugin: "both", own: true},
		{place: "manifest", runtime: RuntimePlugin, name: "m", plugin: "bin/p", own: true},
		{place: "by-runtime", runtime: RuntimePlugin, name: "n", plugin: "by-runtime", own: true},
		{place: "script", runtime: RuntimePlugin, name: "script", plugin: "script"},
		{place: "plain", runtime: RuntimePython, name: "m", version: "1.0"},
		{place: "config", runtime: RuntimePython},
	} {
		a, err := s.OpenEntry(t.Context(), tt.place)
		if err != nil {
			t.Errorf("%s: %v", tt.place, err)
			continue
		}
		m := a.Manifest.Model
		if a.Manifest.Runtime != tt.runtime || m.ModelName != tt.name || m.ModelVersion != tt.version || a.Plugin != tt.plugin || !slices.Equal(a.Settings.PluginArgs, tt.args) {
			t.Errorf("%s: %+v, plugin %q, arguments %q", tt.place, a.Manifest, a.Plugin, a.Settings.PluginArgs)
		}
		if low, high, ok := a.Settings.Workers(); tt.place == "named" && (low != 2 || high != 3 || !ok) {
			t.Errorf("%s: %d to %d workers", tt.place, low, high)
		}
		if tt.plugin == "" {
			if a.Program != "" {
				t.Errorf("%s: runs %s", tt.place, a.Program)
			}
			continue
		}
		theirs := filepath.Join(a.Dir, tt.plugin)
		if (a.Program != theirs) != tt.own {
			t.Errorf("%s: runs %s", tt.place, a.Program)
		}
		if tt.own { // who overwrites theirs does not change what runs
			p.writeProgram(t, "store/"+tt.place+"/"+tt.plugin, append(bytes.Clone(here), "new"...))
			if running, err := os.ReadFile(a.Program); err != nil || !bytes.Equal(running, here) {
				t.Errorf("%s: %d bytes, %v", tt.place, len(running), err)
			}
			if info, err := os.Stat(a.Program); err != nil || info.Mode()&0o100 == 0 {
				t.Errorf("%s: %v, %v", tt.place, info, err)
			}
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(a.Program); tt.own && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the copy is left: %v", tt.place, err)
		}
	}
}

// A real program is whole only with its last byte but for what debuggers read; hostile heads are no trouble.
func TestProgramEnd(t *testing.T) {
	t.Parallel()
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "p")
	for _, size := range []int{len(self), len(self) / 2, len(self) / 10, 5000, 70} {
		if err := os.WriteFile(path, self[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := checkProgram(path, "p"); (err == nil) != (size == len(self)) {
			t.Errorf("%d of %d bytes: %v", size, len(self), err)
		}
	}
	head := bytes.Repeat([]byte{0xff}, programAt)
	if end := programEnd(head, binary.LittleEndian); end != 1<<64-1 {
		t.Errorf("ends at %d", end)
	}
}

// A plugin in an archive file is one that is unpacked: it runs where it is.
func TestPackedPlugin(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	here := string(program(machineOf(runtime.GOARCH), 100))
	p.write(t, "store/echo.tgz", makeTar(t, []entry{{name: "echo/echo", text: here, mode: 0o755}, {name: "echo/model-config.yaml", text: "batchSize: 4\n"}}))
	p.write(t, "store/m.mar", makeZip(t, []entry{
		{name: "MAR-INF/MANIFEST.json", text: `{"model":{"modelName":"x","configFile":"c.yaml"}}`}, {name: "c.yaml", text: "plugin: p"}, {name: "p", text: here, mode: 0o755},
	}))
	s := p.open(t, nil)
	for place, name := range map[string]string{"echo.tgz": "echo", "m.mar": "x"} {
		a, err := s.OpenEntry(t.Context(), place)
		if err != nil {
			t.Fatal(err)
		}
		if a.Manifest.Runtime != RuntimePlugin || a.Manifest.Model.ModelName != name || a.Program != filepath.Join(a.Dir, a.Plugin) {
			t.Errorf("%s: %+v, runs %s", place, a.Manifest, a.Program)
		}
		if place == "echo.tgz" && (a.Settings.BatchSize == nil || *a.Settings.BatchSize != 4) {
			t.Errorf("settings %+v", a.Settings)
		}
	}
}

func TestPluginsThatCannotRun(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	other, here := elf.EM_AARCH64, machineOf(runtime.GOARCH)
	if here == other {
		other = elf.EM_X86_64
	}
	p.writeProgram(t, "store/arm/arm", program(other, 100))
	p.writeProgram(t, "store/cut/cut", program(here, 100)[:120])
	p.writeProgram(t, "store/short/short", program(here, 0)[:30])
	p.write(t, "store/mode/mode", program(here, 100))
	p.write(t, "store/gone/model-config.yaml", []byte("plugin: nope\n"))
	p.write(t, "store/out/model-config.yaml", []byte("plugin: ../../outside\n"))
	p.write(t, "store/empty/model-config.yaml", []byte("plugin:\n"))
	p.write(t, "store/list/model-config.yaml", []byte("plugin: [a]\n"))
	p.writeProgram(t, "store/exe/win", []byte("MZ\x90"))
	p.write(t, "store/exe/model-config.yaml", []byte("plugin: win\n"))
	s := p.open(t, nil)
	for place, says := range map[string][]string{
		"arm": {"another kind of CPU", "GOARCH=" + runtime.GOARCH}, "cut": {"cut off", "120 bytes"}, "short": {"cut off", "30 bytes"}, "mode": {"may not be executed", "chmod +x mode"},
		"gone": {"nope is not there"}, "out": {"not in the model's folder"}, "empty": {"no program's name"}, "list": {"no program's name"}, "exe": {"win is no program that this machine can run", "Windows"},
	} {
		_, err := s.OpenEntry(t.Context(), place)
		for _, want := range says {
			if err == nil || !strings.Contains(hintAnd(err), want) {
				t.Errorf("%s: %v, want %q", place, err, want)
			}
		}
		if left := tree(t, filepath.Join(p.temp, "models")); len(left) > 0 {
			t.Errorf("%s: left: %v", place, left)
		}
	}
}

// A file in the place of a plugin's program that is none is told to be that, and what it is; it does not make the folder a model of another kind.
func TestFilesThatAreNoProgram(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	build := "GOARCH=" + runtime.GOARCH
	want := map[string]struct {
		content string
		says    []string
	}{
		"text":  {"not a program\n", []string{`it is a text that begins with "not a program\n"`, "#!"}},
		"long":  {"é" + strings.Repeat("日本", programAt), []string{"it is a text that begins with"}},
		"empty": {"", []string{"it is empty", "copy it again"}}, "zeros": {strings.Repeat("\x00", 5000), []string{"its first 4096 bytes are zeros", "copy it again"}},
		"noise": {"\x80\x81\xff\x00\x01", []string{"as no program does", `"\x80\x81`, "copy it again"}}, "control": {"a\x00b", []string{"as no program does"}},
		"macos": {"\xcf\xfa\xed\xfe\x0c\x00\x00\x01", []string{"a program for macOS (Mach-O)", build}}, "fat": {"\xca\xfe\xba\xbe\x00\x00\x00\x02", []string{"macOS", build}},
		"java": {"\xca\xfe\xba\xbe\x00\x00\x00\x41", []string{"a class of Java"}}, "exe": {"MZ\x90\x00", []string{"a program for Windows (PE)", build}},
		"wasm": {"\x00asm\x01\x00\x00\x00", []string{"WebAssembly"}}, "lib": {"!<arch>\n__.PKGDEF", []string{"library", "package main"}},
		"gz": {"\x1f\x8b\x08", []string{"gzip", "unpack"}}, "lfs": {"version https://git-lfs.github.com/spec/v1\n", []string{"git lfs pull"}},
	}
	for name, w := range want {
		p.writeProgram(t, "store/"+name+"/"+name, []byte(w.content))
		p.writeProgram(t, "store/v"+name+"/3/v"+name, []byte(w.content))
		p.writeProgram(t, "store/by-config-"+name+"/bin/p", []byte(w.content))
		p.write(t, "store/by-config-"+name+"/model-config.yaml", []byte("plugin: bin/p\n"))
		p.write(t, "store/packed-"+name+".tgz", makeTar(t, []entry{{name: "packed-" + name + "/packed-" + name, text: w.content, mode: 0o755}}))
	}
	p.writeProgram(t, "store/onnx/onnx", []byte("x"))
	p.write(t, "store/onnx/model.onnx", onnxModel(10))
	p.writeProgram(t, "store/manifest/manifest", []byte("x"))
	p.write(t, "store/manifest/MAR-INF/MANIFEST.json", []byte(`{"runtime":"plugin","model":{"modelName":"n"}}`))
	s := p.open(t, nil)
	refused := func(place, shown string, says ...string) {
		t.Helper()
		a, err := s.OpenEntry(t.Context(), place)
		if err == nil {
			t.Errorf("%s: opened as %+v", place, a.Manifest)
			return
		}
		for _, want := range append(says, shown+" is no program that this machine can run: ") {
			if !strings.Contains(hintAnd(err), want) {
				t.Errorf("%s: %s, want %q", place, hintAnd(err), want)
			}
		}
	}
	for name, w := range want {
		refused(name, name+"/"+name, append(w.says, "chmod -x "+name)...)
		refused("v"+name+"/3", "v"+name+"/3/v"+name, w.says...)
		refused("by-config-"+name, "bin/p", w.says...)
		refused("packed-"+name+".tgz", "packed-"+name+"/packed-"+name, w.says...)
	}
	refused("onnx", "onnx/onnx", "a text")
	refused("manifest", "manifest", "a text")
	if left := tree(t, filepath.Join(p.temp, "models")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// Folders of other models may have a file that is called as they are, and may be executed: where all files may be, as on some file systems, none of them is a program.
func TestFilesThatNeedNotBeProgram(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for _, name := range []string{"python", "deep", "compiled", "extension", "link", "linked", "config", "manifest", "triton", "ensemble"} {
		p.writeProgram(t, "store/"+name+"/"+name, []byte("vocabulary\n"))
	}
	p.write(t, "store/data/data", []byte("vocabulary\n"))
	p.write(t, "store/dir/dir/handler.txt", []byte("x"))
	outside := filepath.Dir(p.write(t, "elsewhere/handler.py", nil))
	for name, text := range map[string]string{
		"python/handler.py": "", "deep/code/own/handler.py": "", "compiled/handler.pyc": "", "extension/handler.cpython-311-x86_64-linux-gnu.so": "",
		"manifest/MAR-INF/MANIFEST.json": goodManifest, "triton/config.pbtxt": "", "triton/model.onnx": string(onnxModel(10)),
		"ensemble/model-config.yaml": "ensemble:\n  steps:\n    - {model: m, inputs: {x: A}, outputs: {y: B}}\n",
		"config/model-config.yaml":   "plugin: p\n",
	} {
		p.write(t, "store/"+name, []byte(text))
	}
	p.writeProgram(t, "store/config/p", []byte("#!/bin/sh\n"))
	for link, target := range map[string]string{"link/handler.py": filepath.Join(outside, "handler.py"), "linked/code": outside} {
		if err := os.Symlink(target, filepath.Join(p.store, link)); err != nil {
			t.Fatal(err)
		}
	}
	s := p.open(t, nil)
	for place, runtime := range map[string]string{
		"python": RuntimePython, "deep": RuntimePython, "compiled": RuntimePython, "extension": RuntimePython, "link": RuntimePython, "linked": RuntimePython,
		"manifest": RuntimePython, "data": RuntimePython, "dir": RuntimePython, "triton": RuntimeONNX, "ensemble": "ensemble", "config": RuntimePlugin,
	} {
		a, err := s.OpenEntry(t.Context(), place)
		if err != nil || a.Manifest.Runtime != runtime {
			t.Errorf("%s: %v, %v", place, a, err)
			continue
		}
		told := slices.Contains([]string{"python", "deep", "compiled", "extension", "link", "linked"}, place)
		if want := place + "/" + place + " is no program that this machine can run: it is a text"; strings.HasPrefix(a.NotProgram, want) != told || !told && a.NotProgram != "" {
			t.Errorf("%s: %q", place, a.NotProgram)
		}
	}
}

// hintAnd is an error with what to do about it.
func hintAnd(err error) string {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f.Error() + " " + f.Hint
	}
	return err.Error()
}
