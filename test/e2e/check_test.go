package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// meantToFail are the archives of the corpus in which `flambeau check` has to find an error, by file: the corpus shows that they do not load.
// Not among them are those that fail by what they do once they run (raises-in-initialize), or by their registration (absent-handler).
func meantToFail() map[string]string {
	return map[string]string{
		"entry-two-handlers-1.0.mar": "handler_ambiguous", "missing-import-1.0.mar": "import_missing", "no-handle-1.0.mar": "handler_incomplete",
		"no-initialize-1.0.mar": "handler_incomplete", "syntax-error-1.0.mar": "syntax_error", "without-a-model-1.0.mar": "weights_format",
	}
}

// justified are warnings about archives that work: one names a function that it does not have, and one has no manifest.
func justified() map[string]string {
	return map[string]string{"entry-unknown-function-1.0.mar": "handler_function_ignored", "archive-without-manifest-1.0.mar": "manifest_missing"}
}

// packCorpus makes all the archives of the corpus.
const packCorpus = `
import sys
from pathlib import Path
corpus, work, archiver = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
sys.path.insert(0, str(corpus))
sys.dont_write_bytecode = True
from kit import archives, cases
all_cases = [cases.Case(folder) for folder in sorted((corpus / "cases").iterdir()) if folder.is_dir()]
(work / "store").mkdir()
archives.make_files(all_cases, work / "made")
for case in all_cases:
    for archive in case.archives:
        archives.build(case, archive, work / "made", archiver, work / "store")
`

// checked is what `flambeau check --json` says of one archive.
type checked struct {
	Path     string
	Good     bool
	Error    string
	Seconds  float64
	Findings []struct {
		Severity, Code, File, Message string
		Line                          int
	}
}

func (b *Box) check(t *testing.T, archives ...string) []checked {
	t.Helper()
	cmd := b.server(t.Context(), append([]string{"flambeau", "check", "--json"}, archives...))
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 2) {
		t.Fatalf("flambeau check: %v\n%s", err, out)
	}
	var report struct{ Archives []checked }
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if len(report.Archives) != len(archives) {
		t.Fatalf("%d archives were checked, want %d", len(report.Archives), len(archives))
	}
	return report.Archives
}

// TestCheckCorpus: the check finds what the corpus shows to fail, and nothing else, in the Python that the corpus runs on.
func TestCheckCorpus(t *testing.T) {
	box := NewBox(t)
	work := filepath.Join(box.Dir, "c")
	if err := os.Mkdir(work, 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := box.Command(t.Context(), box.Python, "-c", packCorpus, absolute(t, "../corpus"), work, filepath.Join(box.Bin, "torch-model-archiver")).CombinedOutput()
	if err != nil {
		t.Fatalf("packing the corpus: %v\n%s", err, out)
	}
	archives, err := filepath.Glob(filepath.Join(work, "store", "*"))
	if err != nil || len(archives) < 100 {
		t.Fatalf("%d archives, %v", len(archives), err)
	}
	slowest, failing := 0.0, 0
	for _, c := range box.check(t, archives...) {
		name := filepath.Base(c.Path)
		wanted, fails := meantToFail()[name]
		expected := []string{}
		switch warned := justified()[name]; {
		case fails:
			expected, failing = append(expected, "error "+wanted), failing+1
		case warned != "":
			expected = append(expected, "warning "+warned)
		}
		found := []string{}
		for _, f := range c.Findings {
			found = append(found, f.Severity+" "+f.Code)
		}
		if !slices.Equal(found, expected) || c.Error != "" || c.Good == fails {
			t.Errorf("%s: %q, want %q: %+v", name, found, expected, c)
		}
		slowest = max(slowest, c.Seconds)
	}
	if failing != len(meantToFail()) {
		t.Errorf("%d archives that are meant to fail, want %d", failing, len(meantToFail()))
	}
	const limit = 3.0
	if slowest > limit {
		t.Errorf("an archive took %.2f s", slowest)
	}
	t.Logf("%d archives, the slowest took %.2f s", len(archives), slowest)
}

// TestCheckExample: the example is good, with what its pack.sh puts into the archive, and as a file.
func TestCheckExample(t *testing.T) {
	box := NewBox(t)
	example := absolute(t, "../../examples/magika")
	folder := filepath.Join(box.Dir, "magika")
	if err := os.MkdirAll(filepath.Join(folder, "MAR-INF"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"handler.py", "model-config.yaml"} {
		text, err := os.ReadFile(filepath.Join(example, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const manifest = `{"runtime": "python", "archiverVersion": "1", "createdOn": "now",
		"model": {"modelName": "magika", "modelVersion": "1.0", "handler": "handler.py", "configFile": "model-config.yaml"}}`
	if err := os.WriteFile(filepath.Join(folder, "MAR-INF", "MANIFEST.json"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range box.check(t, folder, filepath.Join(example, "handler.py")) {
		if !c.Good || len(c.Findings) > 0 {
			t.Errorf("%+v", c)
		}
	}
}

// TestCheckFinds: an import that is not there and a built-in handler's model that is none, with their places; nothing of the code runs.
func TestCheckFinds(t *testing.T) {
	box := NewBox(t)
	folder := filepath.Join(box.Dir, "planted")
	if err := os.MkdirAll(filepath.Join(folder, "MAR-INF"), 0o700); err != nil {
		t.Fatal(err)
	}
	const trap = "open('ran', 'w')\n"
	for name, text := range map[string]string{
		"MAR-INF/MANIFEST.json": `{"runtime": "python", "model": {"modelName": "planted", "modelVersion": "1.0", "handler": "handler.py"}}`,
		"handler.py":            trap + "import torch.nobody\nimport nobody_has_this\nfrom torchvision.models import resnet18, nothing\ndef handle(data, context): pass\n",
		"sitecustomize.py":      trap,
		"torch.pth":             "import os; " + trap,
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var found []string
	for _, f := range box.check(t, folder)[0].Findings {
		found = append(found, strings.Join([]string{f.Severity, f.Code, f.File}, " "))
	}
	if want := []string{"error import_missing handler.py", "error import_missing handler.py"}; len(found) < 2 || !slices.Equal(found[:2], want) {
		t.Errorf("%q, want %q and perhaps one more", found, want)
	}
	for _, dir := range []string{box.Dir, folder} {
		if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
			t.Errorf("code of the archive was run in %s", dir)
		}
	}
}

// TestCheckKnowsTheONNXRuntime: a bare ONNX model is compared with the library that its worker would load, here that of the Python environment.
func TestCheckKnowsTheONNXRuntime(t *testing.T) {
	box := NewBox(t)
	if infos, err := filepath.Glob(filepath.Join(box.Home, "onnxruntime-*.dist-info")); err != nil || len(infos) != 1 {
		t.Fatalf("the environment of the tests has to have one ONNX Runtime: %q, %v", infos, err)
	}
	field := func(number byte, content string) string {
		return string([]byte{number<<3 | 2, byte(len(content))}) + content
	}
	model := func(opset byte) string { // IR version 8, a graph with one node, and the opset
		return "\x08\x08" + field(7, field(1, field(4, "Relu"))) + field(8, "\x10"+string([]byte{opset}))
	}
	for opset, want := range map[byte]string{17: "", 99: "the model has opset 99, and the server's ONNX Runtime 1."} {
		path := filepath.Join(box.Dir, fmt.Sprintf("m%d.onnx", opset))
		if err := os.WriteFile(path, []byte(model(opset)), 0o600); err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, f := range box.check(t, path)[0].Findings {
			if f.Code == "onnx_version" {
				found = append(found, f.Message)
			}
		}
		if said := strings.Join(found, "; "); (want == "") != (said == "") || !strings.HasPrefix(said, want) {
			t.Errorf("opset %d: %q, want %q", opset, said, want)
		}
	}
}
