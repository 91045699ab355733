package e2e

import (
	"archive/zip"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestSlimHandlerHasASlimWorker: what a handler does not import is not in its worker.
func TestSlimHandlerHasASlimWorker(t *testing.T) {
	const most = 60 << 20
	box := NewBox(t)
	box.Pack(t, "slim", "testdata/slim.py")
	s := box.Start(t, Options{Args: []string{"--models", "slim=slim.mar"}})
	var got struct {
		PID    int
		Loaded []string
	}
	for range 100 { // not only what a process needs to come up
		answer := s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+"/predictions/slim", []byte("x"), "Content-Type", octets)
		if err := json.Unmarshal(answer.Body, &got); err != nil {
			t.Fatalf("%v: %s", err, answer.Body)
		}
	}
	if len(got.Loaded) > 0 {
		t.Errorf("the worker has loaded %v", got.Loaded)
	}
	private := privateBytes(t, got.PID)
	t.Logf("private memory of the worker: %.1f MiB", float64(private)/(1<<20))
	if private >= most {
		t.Errorf("the worker has %d bytes of private memory, %d are too many", private, most)
	}
}

// privateBytes is the memory that a process shares with no other.
func privateBytes(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line) // Private_Dirty: 1234 kB
		if len(fields) == 3 && strings.HasPrefix(fields[0], "Private_") {
			kilobytes, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			total += kilobytes << 10
		}
	}
	if total == 0 {
		t.Fatalf("no private memory in %q", text)
	}
	return total
}

// TestTorchComesWithBaseHandlerAtTheEarliest: nothing of the worker imports torch, and BaseHandler's module gives it to those who ask.
func TestTorchComesWithBaseHandlerAtTheEarliest(t *testing.T) {
	box := NewBox(t)
	box.Pack(t, "late", "testdata/late.py")
	s := box.Start(t, Options{Args: []string{"--models", "late=late.mar"}})
	answer := s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+"/predictions/late", []byte("x"), "Content-Type", octets)
	var got struct {
		Before, Imported, Initialized, Used bool
		Total                               float64
	}
	if err := json.Unmarshal(answer.Body, &got); err != nil {
		t.Fatalf("%v: %s", err, answer.Body)
	}
	if got.Before || got.Imported || got.Initialized || !got.Used || got.Total != 3 {
		t.Errorf("torch was loaded at the wrong time: %s", answer.Body)
	}
}

// sameNames are the files of a model whose modules have the names of another model's.
func sameNames(value string) map[string]string {
	return map[string]string{
		"h.py": `import json, os, utils
from pkg import tag
class H:
    def initialize(self, ctx): self.d = ctx.system_properties["model_dir"]
    def handle(self, data, ctx):
        r = lambda p: json.load(open(os.path.join(self.d, p)))["v"]
        return [[utils.NAME, tag, r("conf.json"), r("pkg/conf.json"), json.load(open("conf.json"))["v"]]] * len(data)
`,
		"utils.py": fmt.Sprintf("NAME = %q\n", value), "pkg/__init__.py": fmt.Sprintf("tag = %q\n", value+"-pkg"),
		"conf.json": fmt.Sprintf(`{"v": %q}`, value+"-conf"), "pkg/conf.json": fmt.Sprintf(`{"v": %q}`, value+"-pkg-conf"),
	}
}

// zipped makes an archive in the box's store, of the given files and a manifest for the handler h.py.
func (b *Box) zipped(t *testing.T, name string, files map[string]string) {
	t.Helper()
	file, err := os.Create(filepath.Join(b.Store, name+".mar"))
	if err != nil {
		t.Fatal(err)
	}
	w := zip.NewWriter(file)
	files["MAR-INF/MANIFEST.json"] = fmt.Sprintf(`{"runtime":"python","model":{"modelName":%q,"modelVersion":"1.0","handler":"h.py"}}`, name)
	for name, text := range files {
		entry, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := entry.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestModelsWithEqualNames: each of two models has its own modules and files, side by side and after a reload.
func TestModelsWithEqualNames(t *testing.T) {
	box := NewBox(t)
	for _, name := range []string{"a", "b"} {
		box.zipped(t, name, sameNames(name))
	}
	s := box.Start(t, Options{Args: []string{"--models", "a=a.mar", "b=b.mar"}})
	ask := func(name string) {
		t.Helper()
		answer := s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+"/predictions/"+name, []byte("x"), "Content-Type", octets)
		var got []string
		if err := json.Unmarshal(answer.Body, &got); err != nil {
			t.Fatalf("%v: %s", err, answer.Body)
		}
		if want := fmt.Sprintf("[%[1]s %[1]s-pkg %[1]s-conf %[1]s-pkg-conf %[1]s-conf]", name); fmt.Sprint(got) != want {
			t.Errorf("model %s answers %v, want %s", name, got, want)
		}
	}
	for _, name := range []string{"a", "b", "a"} {
		ask(name)
	}
	for _, name := range []string{"a", "b"} {
		s.MustAsk(t, http.StatusOK, http.MethodDelete, s.Management+"/models/"+name, nil)
		s.MustAsk(t, http.StatusOK, http.MethodPost, s.Management+"/models?initial_workers=1&synchronous=true&url="+name+".mar", nil)
	}
	for _, name := range []string{"b", "a"} {
		ask(name)
	}
}

// TestModulesNamedLikeThePlatforms: a model that brings a logging.py or a ts.py of its own does not break the worker, and its log says
// which of them an import cannot find.
func TestModulesNamedLikeThePlatforms(t *testing.T) {
	box := NewBox(t)
	box.zipped(t, "own", map[string]string{
		"h.py": `import logging, ts
from ts.context import Context
class H:
    def initialize(self, ctx): logging.getLogger(__name__).info("a real log line")
    def handle(self, data, ctx): return [type(ctx).__name__ + " " + ts.__version__] * len(data)
`,
		"logging.py": "raise RuntimeError('the model\\'s own logging.py was imported')\n", "ts.py": "raise RuntimeError('the model\\'s own ts.py was imported')\n",
	})
	s := box.Start(t, Options{Args: []string{"--models", "own=own.mar"}})
	answer := s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+"/predictions/own", []byte("x"), "Content-Type", octets)
	if want := "Context 0.12.0"; string(answer.Body) != want {
		t.Errorf("the answer is %q, want %q", answer.Body, want)
	}
	log, err := os.ReadFile(filepath.Join(box.Dir, "logs", "model_log.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"a real log line", "logging.py in the model's folder is hidden", "ts.py in the model's folder is hidden"} {
		if !strings.Contains(string(log), part) {
			t.Errorf("the model's log lacks %q:\n%s", part, log)
		}
	}
}
