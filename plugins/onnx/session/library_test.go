package session

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLibraryThatIsNotThere(t *testing.T) {
	for _, candidates := range [][]string{nil, {"/nowhere/libonnxruntime.so"}} {
		_, err := Init(candidates)
		if !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "pip install onnxruntime=="+Tested) {
			t.Errorf("%v", err)
		}
	}
}

// TestCandidates: the named place only, or all the places, the newest version of a folder first.
func TestCandidates(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	capi := filepath.Join(root, "lib/python3.12/site-packages/onnxruntime/capi")
	for _, dir := range []string{capi, filepath.Join(root, "bin")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"libonnxruntime.so.1.9.0", "libonnxruntime.so.1.26.0", "libonnxruntime_providers_shared.so"} {
		if err := os.WriteFile(filepath.Join(capi, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	newest := []string{filepath.Join(capi, "libonnxruntime.so.1.26.0"), filepath.Join(capi, "libonnxruntime.so.1.9.0")}
	if got := Candidates(capi, "/x/y", ""); !cmp.Equal(got, newest) {
		t.Errorf("a folder: %q", got)
	}
	if got := Candidates("/some/file.so", "/x/y", root); !cmp.Equal(got, []string{"/some/file.so"}) {
		t.Errorf("a file: %q", got)
	}
	if got := Candidates("", "/x/y", root); len(got) < 2 || !cmp.Equal(got[:2], newest) {
		t.Errorf("an environment: %q", got)
	}
	if got := Candidates("", filepath.Join(root, "bin/flambeau-onnx"), ""); len(got) < 2 || !cmp.Equal(got[:2], newest) {
		t.Errorf("beside an environment's program: %q", got)
	}
}

// TestLibraryThatIsTooOld: the error says so in one line, with what to do.
func TestLibraryThatIsTooOld(t *testing.T) {
	dir := t.TempDir()
	source, library := filepath.Join(dir, "old.c"), filepath.Join(dir, "libonnxruntime.so.1.9.0")
	const code = `
static const void *get(unsigned version) { return 0; }
static const char *version(void) { return "1.9.0"; }
static struct { const void *(*get)(unsigned); const char *(*version)(void); } base = {get, version};
void *OrtGetApiBase(void) { return &base; }
`
	if err := os.WriteFile(source, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil { //nolint:gosec // words of this test
		t.Fatalf("cc, without which this package is not built: %v\n%s", err, out)
	}
	_, err := Init([]string{library})
	if !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "it is older than 1.24") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
}
