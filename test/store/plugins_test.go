package store

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// builtPlugin gives the program of testdata/plugin, built to answer with a number, for a kind of CPU.
func builtPlugin(t *testing.T, number int, arch string) []byte {
	t.Helper()
	return built(t, "./testdata/plugin", arch, fmt.Sprintf("main.answer=%d", number))
}

// built gives the program of a package, built for a kind of CPU with values of variables.
func built(t *testing.T, path, arch string, values ...string) []byte {
	t.Helper()
	program := filepath.Join(t.TempDir(), "plugin")
	link := strings.Join(append([]string{"-s -w"}, values...), " -X ")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", link, "-o", program, path)
	cmd.Env = append(os.Environ(), "GOARCH="+arch, "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// putPlugin puts a program into a folder of the store, by rename.
func putPlugin(t *testing.T, box *e2e.Box, path string, content []byte) {
	t.Helper()
	hidden := filepath.Join(box.Store, filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.MkdirAll(filepath.Dir(hidden), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hidden, content, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(hidden, filepath.Join(box.Store, path)); err != nil {
		t.Fatal(err)
	}
}

func askPlugin(t *testing.T, s *e2e.Server, status int, text string) string {
	t.Helper()
	return string(s.MustAsk(t, status, http.MethodPost, s.Inference+predict, []byte(text), "Content-Type", octets).Body)
}

// TestPluginIsSwapped replaces a plugin's program under load, by rename and by writing over the file that runs.
func TestPluginIsSwapped(t *testing.T) {
	box := e2e.NewBox(t)
	name := filepath.Join(model, model)
	putPlugin(t, box, name, builtPlugin(t, 1, runtime.GOARCH))
	box.Put(t, filepath.Join(model, "model-config.yaml"), []byte("minWorkers: 2\nmaxWorkers: 2\npluginArgs: [--level, 3]\n"))
	s := start(t, box, "blacklist_env_vars", ".*SECRET.*")
	requireAnswer(t, s, predict, 1)
	if got := askPlugin(t, s, http.StatusOK, "args"); got != "--level|3|" {
		t.Errorf("arguments %q", got)
	}
	if got := askPlugin(t, s, http.StatusOK, "where"); got != filepath.Join(box.Store, model) {
		t.Errorf("it runs in %s", got)
	}
	for _, want := range []string{"FLAMBEAU_THREADS=", "PATH="} {
		if got := askPlugin(t, s, http.StatusOK, "environment"); !strings.Contains(got, want) {
			t.Errorf("the environment lacks %s: %s", want, got)
		}
	}
	load := s.StartLoad(t, e2e.LoadOptions{Path: predict, Clients: 2})
	putPlugin(t, box, name, builtPlugin(t, 2, runtime.GOARCH))
	requireAnswer(t, s, predict, 2)
	// cp writes over the file. It is not the file that runs, which nobody may write to.
	if err := os.WriteFile(filepath.Join(box.Store, name), builtPlugin(t, 3, runtime.GOARCH), 0o700); err != nil {
		t.Fatal(err)
	}
	requireAnswer(t, s, predict, 3)
	e2e.RequireNoFailure(t, load.Stop())
}

// TestPluginThatCannotServe puts programs in the place of one that serves which cannot: that one goes on, and the reason is told.
func TestPluginThatCannotServe(t *testing.T) {
	box := e2e.NewBox(t)
	name := filepath.Join(model, model)
	good := builtPlugin(t, 1, runtime.GOARCH)
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	box.Put(t, filepath.Join(model, "2024", "data.txt"), []byte("x")) // no version, whatever is beside it
	putPlugin(t, box, name, good)
	s := start(t, box)
	requireAnswer(t, s, predict, 1)
	for _, c := range []struct {
		name    string
		content []byte
		says    []string
	}{
		{"another architecture", builtPlugin(t, 2, other), []string{"another kind of CPU", other}},
		{"cut off", good[:len(good)/2], []string{"cut off"}},
		{"zeros", make([]byte, len(good)), []string{name + " is no program that this machine can run", "zeros", "copy it again"}},
		{"a text", []byte("<html>not found</html>\n"), []string{name + " is no program that this machine can run", "a text that begins with"}},
		{"for another system", []byte("MZ\x90\x00\x03"), []string{name + " is no program that this machine can run", "Windows", "GOOS=linux"}},
		{"another version, by its handshake", []byte("#!/bin/sh\necho '1|2|unix|/nonexistent|grpc|'\nsleep 100\n"), []string{"version 2 of the protocol", "version 1"}},
		{"a print", []byte("#!/bin/sh\necho hello\n"), []string{`wrote "hello" to standard output before its handshake`}},
		{"an end", []byte("#!/bin/sh\necho no license >&2\nexit 3\n"), []string{"exit status 3"}},
		{"no interpreter", []byte("#!/nonexistent/interpreter\n"), []string{"could not be started"}},
	} {
		before := newest(t, s)
		putPlugin(t, box, name, c.content)
		reason := requirePluginFailure(t, s, before)
		for _, want := range c.says {
			if !strings.Contains(reason, want) {
				t.Errorf("%s: the reason is %q, want %q", c.name, reason, want)
			}
		}
		if got := askPlugin(t, s, http.StatusOK, "x"); got != "1" {
			t.Errorf("%s: %q answers", c.name, got)
		}
	}
	putPlugin(t, box, name, builtPlugin(t, 5, runtime.GOARCH))
	requireAnswer(t, s, predict, 5)
}

// TestPluginIsChecked: what the mark in a program says is known without running it, and a strict server does not try.
func TestPluginIsChecked(t *testing.T) {
	box := e2e.NewBox(t)
	name := filepath.Join(model, model)
	good := builtPlugin(t, 1, runtime.GOARCH)
	putPlugin(t, box, name, good)
	s := start(t, box, "model_check", "strict")
	requireAnswer(t, s, predict, 1)
	before := newest(t, s)
	putPlugin(t, box, name, bytes.Replace(good, []byte("protocol=1;"), []byte("protocol=2;"), 1))
	if reason := requirePluginFailure(t, s, before); !strings.Contains(reason, "version 2 of the protocol") {
		t.Errorf("the reason is %q", reason)
	}
	if got := askPlugin(t, s, http.StatusOK, "x"); got != "1" {
		t.Errorf("%q answers", got)
	}
}

// requirePluginFailure waits for the event that says why a plugin does not serve, whatever its folder's digest is, and gives its reason.
func requirePluginFailure(t *testing.T, s *e2e.Server, after uint64) string {
	t.Helper()
	reason := ""
	if !e2e.Eventually(patience, func() bool {
		for _, event := range s.Events(t, "") {
			if event.ID > after && (event.Kind == "swap_failed" || event.Kind == "refused") {
				reason = event.Reason
				return true
			}
		}
		return false
	}) {
		t.Fatalf("no event after %d says why it does not serve:%s, store: %+v", after, e2e.Lines(s.Events(t, "")), s.InStore(t, model))
	}
	return reason
}

// TestPluginThatDies lets a plugin panic and be killed within a request: that request fails with the cause, and the next ones are answered.
func TestPluginThatDies(t *testing.T) {
	box := e2e.NewBox(t)
	putPlugin(t, box, filepath.Join(model, model), builtPlugin(t, 1, runtime.GOARCH))
	s := start(t, box)
	requireAnswer(t, s, predict, 1)
	pid := s.PID()
	for range 3 {
		if got := askPlugin(t, s, http.StatusServiceUnavailable, "panic"); !strings.Contains(got, "Prediction failed") {
			t.Errorf("a panic is answered with %s", got)
		}
		requireAnswer(t, s, predict, 1) // at once: the process lives
	}
	if got := askPlugin(t, s, http.StatusInternalServerError, "segv"); !strings.Contains(got, "Worker died.") {
		t.Errorf("a death is answered with %s", got)
	}
	requireAnswer(t, s, predict, 1)
	if s.PID() != pid {
		t.Error("the server was started again")
	}
	const cause = "signal: segmentation violation"
	log, err := filepath.Glob(filepath.Join(box.Dir, "logs", "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, file := range log {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, text...)
	}
	for _, want := range []string{"the plugin's own panic", "main.go"} {
		if !bytes.Contains(all, []byte(want)) {
			t.Errorf("the logs say nothing of %q", want)
		}
	}
	if !bytes.Contains(all, []byte("SIGSEGV")) && !bytes.Contains(all, []byte(cause)) && !bytes.Contains(all, []byte("segmentation")) {
		t.Error("the logs do not name the signal")
	}
}

// TestPluginLayouts serves plugins from an archive file, from folders of versions, and by the name that the configuration file gives.
func TestPluginLayouts(t *testing.T) {
	box := e2e.NewBox(t)
	one, two := builtPlugin(t, 1, runtime.GOARCH), builtPlugin(t, 2, runtime.GOARCH)
	box.Put(t, "packed.tgz", packedPlugin(t, "packed", one))
	putPlugin(t, box, "v/1/v", one)
	putPlugin(t, box, "v/2/v", two)
	putPlugin(t, box, "named/bin/program", two)
	box.Put(t, "named/model-config.yaml", []byte("plugin: bin/program\nminWorkers: 1\nmaxWorkers: 1\n"))
	s := start(t, box)
	for path, number := range map[string]int{"packed": 1, "v/1": 1, "v/2": 2, "named": 2} {
		requireAnswer(t, s, "/predictions/"+path, number)
	}
	if out := box.Flambeau(t, "check", filepath.Join(box.Store, "named"), filepath.Join(box.Store, "packed.tgz")); strings.Contains(out, "error") {
		t.Errorf("the check says %s", out)
	}
}

func packedPlugin(t *testing.T, name string, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Name: name + "/" + name, Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
