package e2e

import (
	"archive/zip"
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tinyWheels makes a folder with two versions of a package whose module has its version.
func tinyWheels(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, version := range []string{"1.0", "2.0"} {
		info := "tiny-" + version + ".dist-info/"
		var text bytes.Buffer
		z := zip.NewWriter(&text)
		for _, file := range [][2]string{
			{"tiny.py", "V = '" + version + "'\n"},
			{info + "METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: " + version + "\n"},
			{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
			{info + "RECORD", "tiny.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n"},
		} {
			w, err := z.Create(file[0])
			if err == nil {
				_, err = w.Write([]byte(file[1]))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(z.Close(), os.WriteFile(filepath.Join(dir, "tiny-"+version+"-py3-none-any.whl"), text.Bytes(), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// packWith makes an archive of a handler's text, and of files for options of the archiver: pairs of option and text.
func (b *Box) packWith(t *testing.T, name, handler, entry string, options ...string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	args := []string{"--model-name", name, "--version", "1.0", "--handler", write("handler.py", handler) + entry, "--export-path", b.Store, "--force"}
	for i := 0; i+1 < len(options); i += 2 {
		file := map[string]string{"--requirements-file": "requirements.txt", "--config-file": "model-config.yaml", "--extra-files": "notes.txt"}[options[i]]
		args = append(args, options[i], write(file, options[i+1]))
	}
	b.Run(t, "torch-model-archiver", args...)
}

const tinyHandler = "import sys\n\nimport tiny\n\n\ndef handle(data, context):\n    return [tiny.V + ' ' + sys.prefix] * len(data or [])\n"

// TestDependenciesOfModels has two models with two versions of one package at the same time, with and without virtual environments, twice: the
// second server finds what the first one has installed.
func TestDependenciesOfModels(t *testing.T) {
	box := NewBox(t)
	wheels := tinyWheels(t)
	for _, version := range []string{"1.0", "2.0"} {
		box.packWith(t, "plain"+version, tinyHandler, "", "--requirements-file", "tiny=="+version+"\n")
		box.packWith(t, "venv"+version, tinyHandler, "", "--requirements-file", "tiny=="+version+"\n", "--config-file", "useVenv: true\n")
	}
	box.packWith(t, "wanting", tinyHandler, "", "--requirements-file", "tiny==3.0\n")
	cache := filepath.Join(box.Dir, "cache")
	options := Options{
		Args:   []string{"--models", "all"},
		Config: map[string]string{"install_py_dep_per_model": "true", "dependency_cache": cache},
		Env:    []string{"PIP_NO_INDEX=1", "PIP_CONFIG_FILE=/dev/null", "PIP_FIND_LINKS=" + wheels},
	}
	for start := range 2 {
		s := box.Start(t, options)
		for _, version := range []string{"1.0", "2.0"} {
			for _, kind := range []string{"plain", "venv"} {
				got := string(s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+"/predictions/"+kind+version, []byte("x")).Body)
				if v, prefix, _ := strings.Cut(got, " "); v != version || strings.HasPrefix(prefix, cache) != (kind == "venv") {
					t.Errorf("start %d: %s%s answers %q", start, kind, version, got)
				}
			}
		}
		s.MustAsk(t, http.StatusNotFound, http.MethodGet, s.Management+"/models/wanting", nil)
		answer := s.MustAsk(t, http.StatusBadRequest, http.MethodPost, s.Management+"/models?url=wanting.mar", nil)
		if !strings.Contains(string(answer.Body), `"message": "Custom pip package installation failed for model wanting"`) ||
			!strings.Contains(string(answer.Body), `"type": "ModelException"`) ||
			!strings.Contains(answer.Header.Get("X-Flambeau-Hint"), "No matching distribution found for tiny==3.0") {
			t.Errorf("start %d: %s %v", start, answer.Body, answer.Header)
		}
		s.MustAsk(t, http.StatusNotFound, http.MethodGet, s.Management+"/models/wanting", nil)
		s.Stop(t)
		want := map[int][2]int{0: {4, 0}, 1: {0, 4}}[start]
		log := s.Output()
		done, found := strings.Count(log, "the model's packages are installed"), strings.Count(log, "the model's packages were installed before")
		if done != want[0] || found != want[1] {
			t.Errorf("start %d: %d models' packages were installed, %d found, want %v\n%s", start, done, found, want, log)
		}
	}
}

// TestDependenciesAreOffByDefault has the log name the switch, and so does the answer.
func TestDependenciesAreOffByDefault(t *testing.T) {
	box := NewBox(t)
	box.packWith(t, "plain", tinyHandler, "", "--requirements-file", "tiny==1.0\n")
	s := box.Start(t, Options{})
	const switchName = "install_py_dep_per_model"
	answer := s.MustAsk(t, http.StatusInternalServerError, http.MethodPost, s.Management+"/models?url=plain.mar&initial_workers=1", nil)
	if hint := answer.Header.Get("X-Flambeau-Hint"); !strings.Contains(hint, "No module named 'tiny' (handler.py:3)") || !strings.Contains(hint, "it is in the model's requirements: start the server with "+switchName+"=true") {
		t.Errorf("the hint is %q", hint)
	}
	if n := strings.Count(s.Output(), "the model's requirements are not installed, since "+switchName); n != 1 {
		t.Errorf("%d lines name the switch:\n%s", n, s.Output())
	}
}
