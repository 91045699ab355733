package check

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/binary"
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
	i, err := inspect.New(inspect.Options{Command: command{append(env, "PATH="+os.Getenv("PATH"), "HOME="+t.TempDir())}, Script: script})
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

// zipped makes a zip file.
func zipped(t *testing.T, files map[string]string) string {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for name, text := range files {
		f, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Pickles: an empty dict, a state dict that holds an argparse.Namespace, and a call of os.system.
const (
	emptyPickle     = "\x80\x02}q\x00."
	namespacePickle = "\x80\x02cargparse\nNamespace\nq\x00)\x81q\x01}q\x02b."
	systemPickle    = "\x80\x04\x95\x1b\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x02id\x94\x85\x94R\x94."
)

// TestPlantedInFiles: faults of files other than code.
func TestPlantedInFiles(t *testing.T) {
	t.Parallel()
	installed := map[string]string{"torch": "2.15.0", "onnxruntime": "1.20.1", "numpy": "2.4.6", "pillow": "13.0.0"}
	torchScript := func(format string) string {
		return zipped(t, map[string]string{"m/code/__torch__.py": "", "m/constants.pkl": emptyPickle, "m/data.pkl": emptyPickle, "m/version": format})
	}
	wheel := func(python string) string {
		return zipped(t, map[string]string{"tiny/__init__.py": "", "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nRequires-Python: " + python + "\n\n"})
	}
	require := func(text string) (map[string]string, string) {
		return map[string]string{"requirements.txt": text}, `, "requirementsFile": "requirements.txt"`
	}
	conflict, withRequirements := require("numpy>=1\ntorch==1.8\nnobody-has\nold; python_version < '3.8'\nx===\n")
	noGPU := 0
	tests := []struct {
		name  string
		model model
		opts  Options
		want  []want
	}{
		{"good", model{files: map[string]string{"m.pt": torchScript("3")}, handler: noHandler, manifest: `, "serializedFile": "m.pt"`}, Options{}, nil},
		{
			"files that the manifest names",
			model{manifest: `, "serializedFile": "a.pt", "modelFile": "b.py", "configFile": "c.yaml"`},
			Options{},
			[]want{
				{"error manifest_file_missing MAR-INF/MANIFEST.json:6", []string{"a.pt", "--serialized-file"}},
				{"error manifest_file_missing MAR-INF/MANIFEST.json:6", []string{"b.py", "--model-file"}},
				{"error manifest_file_missing MAR-INF/MANIFEST.json:6", []string{"c.yaml", "--config-file"}},
			},
		},
		{
			"values of the manifest",
			model{top: `, "runtime": "ruby"`, handler: noHandler, manifest: `, "modelName": "a b", "modelVersion": "1/2"`},
			Options{},
			[]want{
				{"warning manifest_value MAR-INF/MANIFEST.json:4", []string{`"a b"`}},
				{"warning manifest_value MAR-INF/MANIFEST.json:6", []string{`"1/2"`}},
				{"error weights_format MAR-INF/MANIFEST.json", []string{"neither"}},
			},
		},
		{
			"a state dict without its class",
			model{files: map[string]string{"m.pt": zipped(t, map[string]string{"m/data.pkl": emptyPickle, "m/version": "3"})}, handler: noHandler, manifest: `, "serializedFile": "m.pt"`},
			Options{},
			[]want{{"error weights_format m.pt", []string{"a torch.save file", "--model-file"}}},
		},
		{
			"another ending",
			model{files: map[string]string{"m.pth": "x"}, handler: noHandler, manifest: `, "serializedFile": "m.pth"`},
			Options{},
			[]want{{"error weights_format MAR-INF/MANIFEST.json:6", []string{"m.pth"}}},
		},
		{
			"TorchScript of a newer torch",
			model{files: map[string]string{"m.pt": torchScript("11")}, handler: noHandler, manifest: `, "serializedFile": "m.pt"`},
			Options{},
			[]want{{"error weights_version m.pt", []string{"version 11", "torch 2.15.0 reads 10"}}},
		},
		{
			"a truncated file",
			model{files: map[string]string{"m.pt": torchScript("3")[:200]}, handler: noHandler, manifest: `, "serializedFile": "m.pt"`},
			Options{},
			[]want{{"error weights_corrupt m.pt", []string{"a zip file"}}},
		},
		{
			"a pickle that calls",
			model{files: map[string]string{"extra.pkl": systemPickle, "m.pt": torchScript("3")}, handler: noHandler, manifest: `, "serializedFile": "m.pt"`},
			Options{},
			[]want{{"warning pickle_unsafe extra.pkl", []string{"posix.system"}}},
		},
		{
			"a pickle that torch.load refuses",
			model{files: map[string]string{"w.pt": zipped(t, map[string]string{"w/data.pkl": namespacePickle}), "net.py": "class N: pass"}, handler: noHandler, manifest: `, "serializedFile": "w.pt", "modelFile": "net.py"`},
			Options{},
			[]want{{"warning pickle_globals w.pt", []string{"argparse.Namespace", "state_dict"}}},
		},
		{
			"ONNX for a newer runtime",
			model{files: map[string]string{"m.onnx": onnx(12, 24, "", nil)}, handler: noHandler, manifest: `, "serializedFile": "m.onnx"`},
			Options{},
			[]want{{"error onnx_version m.onnx", nil}, {"error onnx_version m.onnx", []string{"onnxruntime 1.20.1 loads"}}},
		},
		{
			"ONNX with other operators and files",
			model{files: map[string]string{"m.onnx": onnx(8, 17, "my.domain", map[string]string{"location": "w.bin", "length": "10"})}, handler: noHandler, manifest: `, "serializedFile": "m.onnx"`},
			Options{},
			[]want{{"error onnx_external_data m.onnx", []string{"w.bin"}}, {"warning onnx_domain m.onnx", []string{`"my.domain"`, "Relu"}}},
		},
		{
			"ONNX that is cut off",
			model{files: map[string]string{"m.onnx": onnx(8, 17, "", nil)[:20]}, handler: noHandler, manifest: `, "serializedFile": "m.onnx"`},
			Options{},
			[]want{{"error weights_corrupt m.onnx", []string{"cut off"}}},
		},
		{
			"safetensors",
			model{files: map[string]string{
				"good.safetensors": tensors(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"x":"y"}}`, 8),
				"cut.safetensors":  tensors(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 7),
				"odd.safetensors":  tensors(`{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}`, 8),
				"m.pt":             torchScript("3"),
			}, handler: noHandler, manifest: `, "serializedFile": "m.pt"`},
			Options{},
			[]want{{"error weights_corrupt cut.safetensors", []string{"cut off"}}, {"error weights_corrupt odd.safetensors", []string{"12 bytes"}}},
		},
		{
			"pointers of Git LFS",
			model{files: map[string]string{"m.pt": "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n"}, handler: noHandler, manifest: `, "serializedFile": "m.pt"`},
			Options{},
			[]want{{"error git_lfs_pointer m.pt:1", []string{"git lfs pull"}}},
		},
		{
			"labels",
			model{files: map[string]string{"m.pt": torchScript("3"), "index_to_name.json": "{\n\"0\": 1}"}, handler: noHandler, manifest: `, "serializedFile": "m.pt"`},
			Options{},
			[]want{{"error labels_invalid index_to_name.json:2", nil}},
		},
		{
			"labels that are no JSON",
			model{files: map[string]string{"m.pt": torchScript("3"), "index_to_name.json": "{\n\"0\": \"a\",}"}, handler: noHandler, manifest: `, "serializedFile": "m.pt"`},
			Options{},
			[]want{{"error labels_invalid index_to_name.json:2", nil}},
		},
		{
			"wheels",
			model{files: map[string]string{
				"tiny-1.0-py3-none-any.whl": wheel(">=3.8"), "a-1.0-cp38-cp38-manylinux1_x86_64.whl": wheel(""), "b-1.0-py3-none-win_amd64.whl": wheel(""),
				"c-1.0-py3-none-any.whl": wheel("<3.9"), "d-1.0-cp311-cp311-manylinux_2_99_x86_64.whl": wheel(""), "e.whl": "", "f-1.0-cp38-abi3-linux_x86_64.whl": wheel(""),
				"m.pt": torchScript("3"), "requirements.txt": "./b-1.0-py3-none-win_amd64.whl\n",
			}, handler: noHandler, manifest: `, "serializedFile": "m.pt", "requirementsFile": "requirements.txt"`},
			Options{Installs: true},
			[]want{
				{"warning wheel_unfit a-1.0-cp38-cp38-manylinux1_x86_64.whl", []string{"cp38"}},
				{"error wheel_unfit b-1.0-py3-none-win_amd64.whl", []string{"win_amd64"}},
				{"warning wheel_python c-1.0-py3-none-any.whl", []string{"<3.9", "3.11.7"}},
				{"warning wheel_unfit d-1.0-cp311-cp311-manylinux_2_99_x86_64.whl", []string{"2.36"}},
				{"warning wheel_name e.whl", nil},
			},
		},
		{
			"requirements",
			model{files: merged(conflict, "m.pt", torchScript("3")), handler: noHandler, manifest: withRequirements + `, "serializedFile": "m.pt"`},
			Options{},
			[]want{
				{"warning requirement_conflict requirements.txt:2", []string{"torch==1.8", "2.15.0"}},
				{"warning requirement_not_installed requirements.txt:3", []string{"nobody-has"}},
				{"warning requirement_malformed requirements.txt:5", []string{"x==="}},
			},
		},
		{
			"the configuration file",
			model{files: map[string]string{"m.pt": torchScript("3"), "c.yaml": strings.Join([]string{
				"minWorkers: 3", "maxWorkers: 2", "batch_size: 4", "maxBatchDelays: 10", "responseTimeout: soon", "sequenceBatching: true", "torchrun:",
				"  nproc-per-node: 2", "deviceIds: [0, 7]", "handler:", "  batchsize: 3", "deviceType: gpu", "",
			}, "\n")}, handler: noHandler, manifest: `, "serializedFile": "m.pt", "configFile": "c.yaml"`},
			Options{GPUs: &noGPU},
			[]want{
				{"warning config_contradiction c.yaml:1", []string{"minWorkers is 3 and maxWorkers 2"}},
				{"warning config_unknown_key c.yaml:3", []string{"batchSize"}},
				{"warning config_unknown_key c.yaml:4", []string{"maxBatchDelay"}},
				{"warning config_value c.yaml:5", []string{"responseTimeout", "soon"}},
				{"warning config_contradiction c.yaml:6", []string{"sequenceMaxIdleMSec"}},
				{"warning config_contradiction c.yaml:7", []string{"parallelType"}},
				{"warning config_devices c.yaml:9", nil},
				{"warning config_devices c.yaml:9", []string{"0 GPUs"}},
				{"warning config_devices c.yaml:12", nil},
			},
		},
		{
			"a configuration file that is no YAML",
			model{files: map[string]string{"m.pt": torchScript("3"), "c.yaml": "a: [1\nb: }"}, handler: noHandler, manifest: `, "serializedFile": "m.pt", "configFile": "c.yaml"`},
			Options{},
			[]want{{"error config_unreadable c.yaml", nil}},
		},
		{
			"memory",
			model{files: map[string]string{"m.pt": torchScript("3"), "w.bin": strings.Repeat("\x01", 65<<20)}, handler: noHandler, manifest: `, "serializedFile": "m.pt"`},
			Options{MemoryBytes: 100 << 20, Workers: 2},
			[]want{{"warning memory_short", []string{"65 MiB in each of 2 workers", "100 MiB", "1 worker would fit"}}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.opts.Inspector = someFacts(installed)
			a := tt.model.archive(t)
			if a.Manifest.Runtime == "ruby" {
				a.Manifest.Runtime = "python" // the one that wins is not what is looked at here
			}
			r := check(t, tt.opts, a)
			expect(t, &r, tt.want)
		})
	}
}

func merged(files map[string]string, name, text string) map[string]string {
	files[name] = text
	return files
}

// tensors makes a safetensors file.
func tensors(header string, data int) string {
	return string(binary.LittleEndian.AppendUint64(nil, uint64(len(header)))) + header + strings.Repeat("\x00", data)
}

// field encodes one field of a protobuf message.
func encode(number int, value any) string {
	switch v := value.(type) {
	case int:
		return string(binary.AppendUvarint(binary.AppendUvarint(nil, uint64(number)<<3), uint64(v)))
	case string:
		return string(binary.AppendUvarint(binary.AppendUvarint(nil, uint64(number)<<3|2), uint64(len(v)))) + v
	}
	return ""
}

// onnx makes a model with one node and one tensor.
func onnx(ir, opset int, domain string, external map[string]string) string {
	n := encode(nodeOp, "Relu")
	if domain != "" {
		n += encode(nodeDomain, domain)
	}
	var entries strings.Builder
	for key, value := range external {
		entries.WriteString(encode(tensorExternal, encode(entryKey, key)+encode(entryValue, value)))
	}
	tensor := encode(1, 4) + encode(2, 1) + entries.String()
	if external != nil {
		tensor += encode(tensorLocation, 1)
	}
	graph := encode(graphNode, n) + encode(graphInitializer, tensor)
	return encode(modelIR, ir) + encode(modelProducer, "test") + encode(modelGraph, graph) + encode(modelOpset, encode(opsetVersion, opset))
}
