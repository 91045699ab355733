package check

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/python/inspect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// command gives the command of a worker: the Python of the tests.
type command struct{ env []string }

func (c command) Spec(string, string) (backend.ProcessSpec, error) {
	python, err := exec.LookPath("python3")
	return backend.ProcessSpec{Path: python, Env: c.env}, err
}

func inspector(t *testing.T, env ...string) *inspect.Inspector {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a Python")
	}
	script, err := filepath.Abs("../../python_compat/src/flambeau/inspection/__main__.py")
	if err != nil {
		t.Fatal(err)
	}
	i, err := inspect.New(inspect.Options{Command: command{append(env, "PATH="+os.Getenv("PATH"), "HOME="+t.TempDir())}, Script: func() (string, error) { return script, nil }})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// facts is an Inspector that answers without a Python, for what does not depend on one.
type facts map[string]any

func (f facts) Inspect(context.Context, string, []byte) ([]byte, error) { return json.Marshal(f) }

func someFacts(distributions map[string]string) facts {
	return facts{
		"python": map[string]any{
			"executable": "/usr/bin/python3", "version": "3.11.7", "implementation": "cpython", "machine": "x86_64", "platform": "linux", "libc": "glibc", "libc_version": "2.36",
			"extension_suffixes": []string{".cpython-311-x86_64-linux-gnu.so", ".abi3.so", ".so"},
			"markers":            map[string]string{"python_version": "3.11", "sys_platform": "linux"},
		},
		"distributions": distributions, "torch_format": 10, "base": map[string]bool{"initialize": true, "torchscript": true, "pickled": true},
	}
}

const (
	goodHandler = "def handle(data, context):\n    return data\n"
	noHandler   = "base_handler"
)

// model is a planted archive.
type model struct {
	files    map[string]string
	handler  string // "": handler.py
	manifest string // further members of the manifest's model, with a comma in front
	top      string // further members of the manifest, with a comma in front
}

// archive lays the model out in a folder, and reads its manifest as archive.Store does.
func (m *model) archive(t *testing.T) *archive.Archive {
	t.Helper()
	dir := t.TempDir()
	handler := m.handler
	if handler == "" {
		handler = "handler.py"
	}
	text := fmt.Sprintf("{\n  \"runtime\": \"python\"%s,\n  \"model\": {\n    \"modelName\": \"planted\",\n    \"handler\": %q,\n    \"modelVersion\": \"1.0\"%s\n  }\n}\n", m.top, handler, m.manifest)
	files := map[string]string{manifestPath: text, "handler.py": goodHandler}
	maps.Copy(files, m.files)
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return opened(t, dir)
}

func opened(t *testing.T, dir string) *archive.Archive {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, manifestPath))
	if err != nil {
		t.Fatal(err)
	}
	var parsed struct {
		Runtime string
		Model   archive.ManifestModel
	}
	if err := json.Unmarshal(text, &parsed); err != nil {
		t.Fatal(err)
	}
	a := &archive.Archive{URL: "planted.mar", Dir: dir, HasManifest: true, Manifest: archive.Manifest{Runtime: parsed.Runtime, Model: parsed.Model}}
	if config, err := os.ReadFile(filepath.Join(dir, parsed.Model.ConfigFile)); err == nil {
		if a.Settings, _, _, err = archive.ReadConfig(config); err != nil {
			t.Logf("the configuration: %v", err)
		}
	}
	return a
}

func check(t *testing.T, opts Options, a *archive.Archive) Report {
	t.Helper()
	checker, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	report, err := checker.Check(t.Context(), a)
	if err != nil {
		t.Fatalf("%v\n%s", err, report.Text())
	}
	return report
}

// want is a finding that has to be there: "error import_missing handler.py:3", and texts of it.
type want struct {
	head  string
	texts []string
}

func expect(t *testing.T, r *Report, wants []want) {
	t.Helper()
	if len(r.Findings) != len(wants) {
		t.Errorf("%d findings, want %d", len(r.Findings), len(wants))
	}
	for _, w := range wants {
		if !slices.ContainsFunc(r.Findings, func(f Finding) bool {
			head := strings.TrimSpace(fmt.Sprintf("%s %s %s", f.Severity, f.Code, f.place()))
			return head == w.head && !slices.ContainsFunc(w.texts, func(text string) bool { return !strings.Contains(f.Message+"\n"+f.Hint, text) })
		}) {
			t.Errorf("there is no finding %q with %q", w.head, w.texts)
		}
	}
	if t.Failed() {
		t.Log(r.Text())
	}
}

// traps are files that would run by themselves if the archive's folder were on Python's module search path, or its modules imported.
func traps(ran string) map[string]string {
	trap := fmt.Sprintf("open(%q, 'a').write(__file__)\n", ran)
	return map[string]string{
		"sitecustomize.py": trap, "usercustomize.py": trap, "conftest.py": trap, "setup.py": trap, "__init__.py": trap, "trap.pth": "import os; " + trap,
		"pyvenv.cfg": "home = /nowhere\n", "encodings/__init__.py": trap, "json/__init__.py": trap,
	}
}

// TestPlantedInCode: faults of the code, found by the target's Python with no line of the archive run.
func TestPlantedInCode(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		model    model
		installs bool
		want     []want
	}{
		{"good", model{}, false, nil},
		{
			"an import that nobody has",
			model{files: map[string]string{"handler.py": "import os\n\nimport cv2_nobody\n" + goodHandler}},
			false,
			[]want{{"error import_missing handler.py:3", []string{"module cv2_nobody is not there", "--extra-files", "--requirements-file"}}},
		},
		{
			"an import with another pip name",
			model{files: map[string]string{"handler.py": "import skimage.nobody\n" + goodHandler, "skimage/__init__.py": ""}},
			false,
			[]want{{"error import_missing handler.py:1", []string{"no module skimage.nobody in skimage", "archive's own module"}}},
		},
		{
			"a pip name",
			model{files: map[string]string{"handler.py": "import osgeo.gdal\n" + goodHandler}},
			false,
			[]want{{"error import_missing handler.py:1", []string{"module osgeo.gdal is not there", "pip package GDAL"}}},
		},
		{
			"an import behind a local module",
			model{files: map[string]string{"handler.py": "import tools\n" + goodHandler, "tools.py": "\n\nimport nobody_has\n"}},
			false,
			[]want{{"error import_missing tools.py:3", []string{"nobody_has"}}},
		},
		{
			"an import in a function",
			model{files: map[string]string{"handler.py": "def handle(data, context):\n    import nobody_has\n"}},
			false,
			[]want{{"warning import_missing handler.py:2", []string{"imported when handle runs"}}},
		},
		{
			"an import that is required, and not installed",
			model{
				files:    map[string]string{"handler.py": "import osgeo\n" + goodHandler, "requirements.txt": "# needed\n\ngdal>=3\n"},
				manifest: `, "requirementsFile": "requirements.txt"`,
			},
			false,
			[]want{{"error import_missing handler.py:1", []string{"requirements.txt:3 asks for it", "install_py_dep_per_model=true"}}},
		},
		{
			"an import that is required, and will be installed",
			model{
				files:    map[string]string{"handler.py": "import osgeo\n" + goodHandler, "requirements.txt": "GDAL==3.6.2\n"},
				manifest: `, "requirementsFile": "requirements.txt"`,
			},
			true, nil,
		},
		{
			"an import that may come with what will be installed",
			model{
				files:    map[string]string{"handler.py": "import nobody_has\n" + goodHandler, "requirements.txt": "some_package_nobody_has\n"},
				manifest: `, "requirementsFile": "requirements.txt"`,
			},
			true,
			[]want{{"warning import_missing handler.py:1", []string{"requirements.txt does not name it"}}},
		},
		{
			"a name that is not there",
			model{files: map[string]string{"handler.py": "from string import Template, nothing\n" + goodHandler}},
			false,
			[]want{{"error import_name handler.py:1", []string{`string has no "nothing"`}}},
		},
		{
			"a name that we do not have",
			model{files: map[string]string{"handler.py": "from ts.context import Kontext\n" + goodHandler}},
			false,
			[]want{{"error import_name handler.py:1", []string{`ts.context has no "Kontext"`, "docs/compatibility.md"}}},
		},
		{
			"a relative import",
			model{files: map[string]string{"handler.py": "from .tools import x\n" + goodHandler, "tools.py": "x = 1\n"}},
			false,
			[]want{{"error import_relative handler.py:1", []string{"from tools import"}}},
		},
		{
			"a syntax error",
			model{files: map[string]string{"handler.py": "x = 1\nprint 'hello'\n" + goodHandler}},
			false,
			[]want{{"error syntax_error handler.py:2", []string{"cannot be compiled"}}},
		},
		{
			"an extension for another Python",
			model{files: map[string]string{"handler.py": "import fast\n" + goodHandler, "fast.cpython-36m-x86_64-linux-gnu.so": "\x7fELF"}},
			false,
			[]want{
				{"error import_missing handler.py:1", []string{"fast.cpython-36m-x86_64-linux-gnu.so"}},
				{"error library_corrupt fast.cpython-36m-x86_64-linux-gnu.so", nil},
			},
		},
		{
			"no handler of that name",
			model{handler: "absent.py"},
			false,
			[]want{{"error handler_missing MAR-INF/MANIFEST.json:5", []string{"absent.py", "handler.py"}}},
		},
		{
			"two classes",
			model{files: map[string]string{"handler.py": "class A:\n    def initialize(self, c): pass\n    def handle(self, d, c): pass\nclass B(A): pass\n"}},
			false,
			[]want{{"error handler_ambiguous handler.py:4", []string{"A and B", "handler:B"}}},
		},
		{
			"no initialize",
			model{files: map[string]string{"handler.py": "class A:\n    def handle(self, d, c): pass\n"}},
			false,
			[]want{{"error handler_incomplete handler.py:1", []string{"has no method initialize"}}},
		},
		{
			"no entry",
			model{files: map[string]string{"handler.py": "x = 1\n"}},
			false,
			[]want{{"error handler_no_entry handler.py", []string{`"handle"`}}},
		},
		{
			"a function that there is not",
			model{handler: "handler:infer", files: map[string]string{"handler.py": "class A:\n    def initialize(self, c): pass\n    def handle(self, d, c): pass\n"}},
			false,
			[]want{{"warning handler_function_ignored handler.py:1", []string{"'infer'"}}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ran := filepath.Join(t.TempDir(), "ran")
			files := traps(ran)
			for name, text := range tt.model.files {
				if strings.HasSuffix(name, ".py") && tt.name != "a syntax error" {
					text += fmt.Sprintf("open(%q, 'a').write(__file__)\n", ran)
				}
				files[name] = text
			}
			tt.model.files = files
			a := tt.model.archive(t)
			// An empty entry of PYTHONPATH means the model's folder.
			i := inspector(t, "PYTHONPATH=:.:"+a.Dir)
			r := check(t, Options{Inspector: i, Installs: tt.installs, Env: []string{"PYTHONPATH=:."}}, a)
			for n := range r.Findings {
				r.Findings[n].Message = strings.ReplaceAll(r.Findings[n].Message, "'handle'", `"handle"`)
			}
			expect(t, &r, tt.want)
			if text, err := os.ReadFile(ran); err == nil {
				t.Errorf("code of the archive was run: %s", text)
			}
			if caches, _ := filepath.Glob(filepath.Join(a.Dir, "*", "__pycache__")); len(caches) > 0 {
				t.Errorf("something was written into the archive: %q", caches)
			}
		})
	}
}

// TestTime: a check takes less than three seconds; the best of a few, for machines that do something else besides.
func TestTime(t *testing.T) { //nolint:paralleltest // it measures
	m := model{files: map[string]string{"handler.py": "from ts.torch_handler.vision_handler import VisionHandler\nclass H(VisionHandler): pass\n"}}
	a, i := m.archive(t), inspector(t)
	const limit = 3 * time.Second
	var took time.Duration
	for range 5 {
		r := check(t, Options{Inspector: i}, a)
		if took = r.Took; took < limit {
			return
		}
	}
	t.Errorf("the check took %s", took)
}
