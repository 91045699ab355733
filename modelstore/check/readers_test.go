package check

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPickle(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, pickle string
		globals      []string
		unknown      bool
		bad          bool
	}{
		{"empty", emptyPickle, nil, false, false},
		{"GLOBAL", namespacePickle, []string{"argparse.Namespace"}, false, false},
		{"STACK_GLOBAL", systemPickle, []string{"posix.system"}, false, false},
		{"INST of protocol 0", "(S'ls'\nios\nsystem\n.", []string{"os.system"}, false, false},
		{"names from memory", "\x80\x04\x8c\x02os\x94\x8c\x06system\x940" + "h\x00h\x01\x93.", []string{"os.system"}, false, false},
		{"names by PUT and GET", "Vos\np5\n0Vsystem\np6\n0g5\ng6\n\x93.", []string{"os.system"}, false, false},
		{"a name that is made", "\x80\x04\x8c\x02os\x940" + "N\x8c\x06system\x94\x93.", nil, true, false},
		{"an extension's number", "\x80\x02\x82\x01.", nil, true, false},
		{"cut off", systemPickle[:20], nil, false, true},
		{"no opcode", "\x80\x02\xff.", nil, false, true},
		{"a length beyond all", "\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", nil, false, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := readPickle(bufio.NewReader(strings.NewReader(tt.pickle)))
			if (err != nil) != tt.bad {
				t.Errorf("error %v", err)
			}
			if diff := cmp.Diff(tt.globals, got.globals); !tt.bad && diff != "" || got.unknown != tt.unknown {
				t.Errorf("unknown %t, %s", got.unknown, diff)
			}
		})
	}
}

func TestGlobals(t *testing.T) {
	t.Parallel()
	for _, global := range []string{"os.system", "builtins.eval", "__builtin__.getattr", "subprocess.Popen", "torch.hub.load", "runpy._run_code", "webbrowser.open"} {
		if !isUnsafe(global) {
			t.Errorf("%s is not unsafe", global)
		}
	}
	for _, global := range []string{"collections.OrderedDict", "torch.FloatStorage", "numpy.core.multiarray.scalar", "pathlib.PosixPath", "builtins.set", "shapes.Square", "functools.partial"} {
		if isUnsafe(global) {
			t.Errorf("%s is unsafe", global)
		}
	}
	for _, global := range []string{"torch._utils._rebuild_tensor_v2", "torch.FloatStorage", "torch.cuda.HalfTensor", "torch.float32", "torch.qint8", "collections.OrderedDict", "torch.Size"} {
		if !allowedByTorch(global) {
			t.Errorf("%s is not allowed", global)
		}
	}
	for _, global := range []string{"argparse.Namespace", "torch.nn.modules.linear.Linear", "__main__.Net", "torch.load", "torch.hub.load", "collections.defaultdict"} {
		if allowedByTorch(global) {
			t.Errorf("%s is allowed", global)
		}
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	order := []string{"1.0.dev1", "1.0a1", "1.0a2.dev1", "1.0a2", "1.0b1", "1.0rc1", "1.0", "1.0.post1.dev1", "1.0.post1", "1.0.1", "1.10", "2!0.1"}
	for i, a := range order {
		for j, b := range order {
			v, ok := parseVersion(a)
			w, ok2 := parseVersion(b)
			if !ok || !ok2 {
				t.Fatalf("%s or %s is no version", a, b)
			}
			if got := v.compare(w); (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("%s and %s: %d", a, b, got)
			}
		}
	}
	tests := []struct {
		have, clauses string
		want          bool
	}{
		{"2.15.0+cu130", "==2.15.0", true},
		{"2.15.0+cu130", "==2.15.0+cpu", false},
		{"2.15.0", "==2.*", true},
		{"2.15.0", "!=2.15.*", false},
		{"2.15.0", "~=2.1", true},
		{"3.0", "~=2.1", false},
		{"2.1.5", "~=2.1.0", true},
		{"2.2", "~=2.1.0", false},
		{"1.2", ">=1.2,<2", true},
		{"2", ">=1.2, <2", false},
		{"1.0", "==1.0.0", true},
		{"1.0", "===1.0.0", false},
		{"no version", ">=1", true},
		{"1", "", true},
	}
	for _, tt := range tests {
		clauses, err := parseSpecifiers(tt.clauses)
		if err != nil {
			t.Fatal(err)
		}
		if got := satisfies(tt.have, clauses); got != tt.want {
			t.Errorf("%s %s: %t", tt.have, tt.clauses, got)
		}
	}
}

func TestRequirements(t *testing.T) {
	t.Parallel()
	text := strings.Join([]string{
		"# a comment", "", "torch >= 1.8, <3 # why", "Scikit_Learn[alldeps]==1.2.*", "-r more.txt", "--index-url https://x/simple", "./wheels/tiny-1.0-py3-none-any.whl",
		"git+https://h/x.git#egg=My_Pkg", "name @ https://h/n.tar.gz", "numpy; python_version < '3.9' and (sys_platform == \"linux\" or os_name in 'nt posix')",
		`pkg==1.0 \`, "  --hash=sha256:aa", "torch=1.8", "torch 1.8", "=broken", "x>=", "--no-such-option", "y; platform = 'a'", "z;", "-e .",
	}, "\n")
	r := parseRequirements("sub/requirements.txt", text)
	var names []string
	for i := range r.all {
		names = append(names, fmt.Sprintf("%d:%s", r.all[i].line, r.all[i].name))
	}
	if diff := cmp.Diff([]string{"3:torch", "4:scikit-learn", "7:tiny", "8:my-pkg", "9:name", "10:numpy", "11:pkg", "20:"}, names); diff != "" {
		t.Error(diff)
	}
	var bad []int
	for _, p := range r.problems {
		bad = append(bad, p.line)
	}
	if diff := cmp.Diff([]int{13, 14, 15, 16, 17, 18, 19}, bad); diff != "" {
		t.Error(diff, r.problems)
	}
	if diff := cmp.Diff([]string{"sub/more.txt"}, r.includes); diff != "" {
		t.Error(diff)
	}
}

func TestMarkers(t *testing.T) {
	t.Parallel()
	vars := map[string]string{"python_version": "3.11", "sys_platform": "linux", "platform_machine": "x86_64"}
	tests := map[string]bool{
		`python_version < "3.9"`: false, `python_version >= '3.9'`: true, `python_version in "3.10 3.11"`: true, `sys_platform == "linux"`: true,
		`sys_platform != "linux" or platform_machine == "x86_64"`: true, `sys_platform not in "win32"`: true, `(python_version > "3")and(extra == "x")`: false,
		`"linux" in sys_platform`: true, `python_version == "3.1"`: false,
	}
	for text, want := range tests {
		if got, err := evaluateMarker(text, vars); err != nil || got != want {
			t.Errorf("%s: %t, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "nothing == 'x'", "python_version", "python_version ==", "python_version == '3", "(python_version == '3'", "python_version == '3' x", strings.Repeat("(", 1000)} {
		if _, err := evaluateMarker(text, vars); err == nil {
			t.Errorf("%q is taken for a marker", text)
		}
	}
}

func TestWheelNames(t *testing.T) {
	t.Parallel()
	p := &pythonFacts{Version: "3.11.7", Implementation: "cpython", Machine: "x86_64", Platform: "linux", Libc: "glibc", LibcVersion: "2.36"}
	tests := map[string]bool{ // by tags: whether it fits
		"py3-none-any": true, "py2.py3-none-any": true, "py2-none-any": false, "cp311-cp311-linux_x86_64": true, "cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64": true,
		"cp310-cp310-linux_x86_64": false, "cp38-abi3-manylinux1_x86_64": true, "cp312-abi3-manylinux1_x86_64": false, "cp311-none-any": true, "py3-none-manylinux_2_37_x86_64": false,
		"py3-none-manylinux2014_aarch64": false, "py3-none-musllinux_1_1_x86_64": false, "py3-none-macosx_10_9_x86_64": false, "pp39-pypy39_pp73-linux_x86_64": false,
		"cp311-cp311t-linux_x86_64": false, "py38-none-any": true, "py312-none-any": false,
	}
	for tags, want := range tests {
		w, err := parseWheelName("some/a_b-1.0-" + tags + ".whl")
		if err != nil {
			t.Fatal(err)
		}
		if got := w.unfit(p); (got == "") != want {
			t.Errorf("%s: %q", tags, got)
		}
	}
	for _, name := range []string{"x.whl", "a-1.0-py3-none.whl", "a-one-py3-none-any.whl", "-1.0-py3-none-any.whl", "a-1.0-b1-py3-none-any.whl", "a-1.0-py3-none-any.zip", "a-1.0-py3--any.whl"} {
		if _, err := parseWheelName(name); err == nil {
			t.Errorf("%s is taken for a wheel", name)
		}
	}
}

// cache makes an /etc/ld.so.cache.
func cache(old bool, entries ...string) []byte {
	var b []byte
	if old {
		b = append(b, oldCacheMagic...)
		b = binary.LittleEndian.AppendUint32(b, 1)
		b = append(b, make([]byte, oldEntry+4)...) // one entry, and up to a boundary
	}
	head := len(b)
	b = append(b, newCacheMagic...)
	b = append(b, make([]byte, newHeader-len(newCacheMagic))...)
	binary.LittleEndian.PutUint32(b[head+20:], uint32(len(entries)/2))
	b = append(b[:head+28], append([]byte{2}, b[head+29:]...)...)
	at := newHeader + len(entries)/2*newEntry
	var names []byte
	for pair := range slices.Chunk(entries, 2) {
		entry := make([]byte, newEntry)
		for i, text := range pair {
			binary.LittleEndian.PutUint32(entry[4+4*i:], uint32(at+len(names)))
			names = append(append(names, text...), 0)
		}
		b = append(b, entry...)
	}
	return append(b, names...)
}

func TestCache(t *testing.T) {
	t.Parallel()
	for _, old := range []bool{false, true} {
		got, err := parseCache(cache(old, "libx.so.1", "/lib/libx.so.1", "liby.so", "/usr/lib/liby.so", "libx.so.1", "/lib32/libx.so.1"))
		want := map[string][]string{"libx.so.1": {"/lib/libx.so.1", "/lib32/libx.so.1"}, "liby.so": {"/usr/lib/liby.so"}}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Error(err, diff)
		}
	}
	if whole, err := os.ReadFile("/etc/ld.so.cache"); err == nil {
		got, err := parseCache(whole)
		if err != nil || len(got["libc.so.6"]) == 0 {
			t.Errorf("this machine's own cache: %v, libc.so.6 is %q", err, got["libc.so.6"])
		}
	}
	for _, text := range []string{"", "x", oldCacheMagic, oldCacheMagic + "\xff\xff\xff\xff", newCacheMagic, string(cache(false, "a", "b")[:60])} {
		if _, err := parseCache([]byte(text)); err == nil {
			t.Errorf("%q is taken for a cache", text)
		}
	}
}

func TestLoader(t *testing.T) {
	t.Parallel()
	l := newLoader(thisMachine("amd64"), nil, nil)
	l.machine = ownMachine(t)
	for _, name := range []string{"libc.so.6", "libm.so.6"} {
		if l.find(name, "/", nil) == "" {
			t.Errorf("%s is not found", name)
		}
	}
	if got := l.find("libnobody.so.9", "/", []string{"$ORIGIN/x"}); got != "" {
		t.Errorf("libnobody.so.9 is %s", got)
	}
	dir := t.TempDir()
	libc, err := os.ReadFile(l.find("libc.so.6", "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "libmine.so"), libc, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range [][]string{{"$ORIGIN"}, {"/nope", "${ORIGIN}/."}, {dir}} {
		if got := l.find("libmine.so", dir, path); got == "" {
			t.Errorf("not found by %q", path)
		}
	}
	for _, l := range []*loader{newLoader(l.machine, []string{"LD_LIBRARY_PATH=/nope:" + dir}, nil), newLoader(l.machine, nil, []string{dir})} {
		if l.find("libmine.so", "/", nil) == "" {
			t.Error("not found by LD_LIBRARY_PATH or in a package's folder")
		}
	}
	if versions := l.versions(l.find("libc.so.6", "/", nil)); !slices.Contains(versions, "GLIBC_2.17") {
		t.Errorf("libc.so.6 has the versions %q", versions)
	}
}

// ownMachine is this test binary's.
func ownMachine(t *testing.T) elf.Machine {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	head, err := readHead(exe, elfIdent)
	if err != nil || !isELF(head) {
		t.Skip("no ELF system")
	}
	return elf.Machine(binary.LittleEndian.Uint16(head[18:]))
}

func TestNearestKey(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"batch_size": "batchSize", "batchsize": "batchSize", "minWorker": "minWorkers", "max-batch-delay": "maxBatchDelay", "response_timeout": "responseTimeout",
		"deviceIDs": "deviceIds", "paralellType": "parallelType", "batchSize": "", "handler": "", "pt2": "", "micro_batching": "", "model": "", "workers": "", "swap": "", "max_length": "",
		"deepspeed": "", "parallelism": "", "timeout": "", "batch": "", "devices": "", "warm": "", "wrap": "",
	}
	for key, want := range tests {
		if got := nearestKey(key); got != want {
			t.Errorf("%s is near %q, want %q", key, got, want)
		}
	}
}

func TestReports(t *testing.T) {
	t.Parallel()
	good := Report{Path: "a.mar", Model: "a", Version: "1.0", Python: &Python{Version: "3.11.7"}}
	if got := good.Text(); got != "a.mar (a 1.0): good, for Python 3.11.7\n" {
		t.Errorf("%q", got)
	}
	var f findings
	f.add(Warning, ConfigValue, "b.yaml", 2, "", "warned")
	f.add(Error, ImportMissing, "h.py", 3, "install it", "module %s is not there\x1b[31m", "x\n")
	f.add(Error, ImportMissing, "h.py", 3, "install it", "module %s is not there\x1b[31m", "x\n")
	r := Report{Path: "a.mar", Findings: f.sorted()}
	want := "a.mar: 1 error and 1 warning\n  h.py:3: error: module x? is not there?[31m [import_missing]\n      install it\n  b.yaml:2: warning: warned [config_value]\n"
	if diff := cmp.Diff(want, r.Text()); diff != "" {
		t.Error(diff)
	}
	if got := r.Reason(); got != "h.py:3: module x? is not there?[31m (install it)" {
		t.Errorf("%q", got)
	}
}

func FuzzPickle(f *testing.F) {
	for _, seed := range []string{emptyPickle, namespacePickle, systemPickle, "(S'ls'\nios\nsystem\n.", "Vos\np5\n0g5\n\x93.", oldTorchHead} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := readPickle(bufio.NewReader(bytes.NewReader(data)))
		if err == nil && !bytes.ContainsRune(data, '.') {
			t.Error("a pickle without an end was read")
		}
		unsafeGlobals(p.globals)
	})
}

func FuzzWeights(f *testing.F) {
	for _, seed := range []string{emptyPickle, oldTorchHead + "M\xe9\x03." + emptyPickle, "PK\x03\x04", strings.Repeat("\x00", tarAt) + tarMagic} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = readWeights(bytes.NewReader(data), int64(len(data))) // it must not crash
	})
}

func FuzzONNX(f *testing.F) {
	f.Add([]byte(onnx(8, 17, "", nil)))
	f.Add([]byte(onnx(8, 17, "my.domain", map[string]string{"location": "w.bin", "offset": "5", "length": "10"})))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := readONNX(bytes.NewReader(data), int64(len(data)))
		if err == nil && (m.irVersion == 0 || !m.hasGraph) {
			t.Error("a model without a graph was read")
		}
	})
}

func FuzzSafetensors(f *testing.F) {
	f.Add([]byte(tensors(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8)))
	f.Add([]byte(tensors(`{"a":{"dtype":"F32","shape":[9223372036854775807,9],"data_offsets":[-1,8]}}`, 8)))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_ = readSafetensors(bytes.NewReader(data), int64(len(data))) // it must not crash
	})
}

func FuzzELF(f *testing.F) {
	exe, err := os.Executable()
	if err != nil {
		f.Fatal(err)
	}
	head, err := readHead(exe, 4096)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(head)
	f.Add([]byte(elf.ELFMAG))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = readObject(bytes.NewReader(data))      // it must not crash
		_, _ = definedVersions(bytes.NewReader(data)) // it must not crash
		libraryHint(string(data))
		highest([]string{string(data)})
	})
}

func FuzzCache(f *testing.F) {
	f.Add(cache(false, "libx.so.1", "/lib/libx.so.1"))
	f.Add(cache(true, "libx.so.1", "/lib/libx.so.1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		found, err := parseCache(data)
		if err != nil && found != nil {
			t.Error("entries beside an error")
		}
	})
}

func FuzzWheelName(f *testing.F) {
	f.Add("a_b-1.0-1-py2.py3-none-any.whl")
	f.Add("torch-2.1.0+cpu-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl")
	p := &pythonFacts{Version: "3.11.7", Implementation: "cpython", Machine: "x86_64", Platform: "linux", Libc: "glibc", LibcVersion: "2.36"}
	f.Fuzz(func(t *testing.T, name string) {
		w, err := parseWheelName(name)
		if err == nil && (w.name == "" || len(w.platforms) == 0) {
			t.Errorf("%q: %+v", name, w)
		}
		w.unfit(p)
	})
}

func FuzzRequirements(f *testing.F) {
	f.Add("torch>=1; python_version < '3' and (extra == 'x') # c\n-r x.txt\n./a-1.0-py3-none-any.whl\nname @ https://h/x\n")
	f.Fuzz(func(t *testing.T, text string) {
		r := parseRequirements("requirements.txt", text)
		for i := range r.all {
			if r.all[i].line < 1 || r.all[i].line > 1+strings.Count(text, "\n") {
				t.Errorf("a requirement of line %d", r.all[i].line)
			}
			satisfies("1.0", r.all[i].specifiers)
		}
	})
}
