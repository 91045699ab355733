package check

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestPlantedLibraries makes shared objects with faults by the C compiler.
func TestPlantedLibraries(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shared := func(out, source string, args ...string) {
		t.Helper()
		build(t, dir, out, source, append([]string{"-shared", "-fPIC", "-nostartfiles"}, args...)...)
	}
	write := func(name, text string) {
		t.Helper()
		writeFile(t, filepath.Join(dir, name), text)
	}
	const none = "-Wl,--no-as-needed"
	shared("libfoo.so.9", "int foo;", "-Wl,-soname,libfoo.so.9", "-nostdlib")
	shared("libespeak-ng.so.1", "int ng;", "-Wl,-soname,libespeak-ng.so.1", "-nostdlib")
	shared("libown.so", "int own;", "-Wl,-soname,libown.so", "-nostdlib")
	write("glibc.map", "GLIBC_2.99 { global: future; };\n")
	shared("libc.so.6", "int future;", "-Wl,-soname,libc.so.6", "-nostdlib", "-Wl,--version-script=glibc.map")
	write("model/lib/x", "")
	shared("model/needs.so", "int a;", none, "libfoo.so.9", "libespeak-ng.so.1", "-nostdlib")
	shared("model/lib/deep.so", "int a;", none, "libown.so", "-nostdlib")
	shared("model/beside.so", "int a;", none, "libown.so", "-nostdlib", "-Wl,-rpath,$ORIGIN/own")
	shared("model/future.so", "extern int future; int *a = &future;", none, "libc.so.6", "-nostdlib")
	shared("model/good.so", "#include <string.h>\nsize_t a(const char *s) { return strlen(s); }")
	shared("model/old.cpython-38-x86_64-linux-gnu.so", "int a;", "-nostdlib")
	for from, to := range map[string]string{"libown.so": "model/own/libown.so", "model/good.so": "model/arm.so"} {
		text, err := os.ReadFile(filepath.Join(dir, from))
		if err != nil {
			t.Fatal(err)
		}
		if to == "model/arm.so" {
			binary.LittleEndian.PutUint16(text[18:], 40) // EM_ARM
		}
		write(to, string(text))
	}
	whole, err := os.ReadFile(filepath.Join(dir, "model/good.so"))
	if err != nil {
		t.Fatal(err)
	}
	write("model/cut.so", string(whole[:len(whole)/2]))
	write("model/script.so", "INPUT(-lx)\n")
	write("model/handler.py", goodHandler)
	write("model/"+manifestPath, `{"runtime": "python", "model": {"modelName": "m", "handler": "handler.py"}}`)
	given := someFacts(nil)
	given["base"] = map[string]bool{}
	r := check(t, Options{Inspector: given}, opened(t, filepath.Join(dir, "model")))
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	expect(t, &r, []want{
		{"error library_missing needs.so", []string{"lib"}},
		{"error library_missing needs.so", nil},
		{"warning library_not_searched lib/deep.so", []string{"libown.so", "own/libown.so", "$ORIGIN"}},
		{"error library_version future.so", []string{"GLIBC_2.99 of libc.so.6", "has GLIBC_2."}},
		{"error library_architecture arm.so", []string{"32-bit ARM", machine}},
		{"error library_corrupt cut.so", nil},
		{"warning library_python old.cpython-38-x86_64-linux-gnu.so", []string{"cpython-38", "3.11.7"}},
	})
	text := r.Text()
	for _, want := range []string{"it needs libfoo.so.9, which is not on this machine", "apt-get install libespeak-ng1"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in:\n%s", want, text)
		}
	}
}
