package store

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// TestWithoutPython serves an ONNX model and a plugin by the plain binaries, where no Python can be found and no package flambeau is beside them. A
// Python model says what it lacks, and serves once that is there, without a restart.
func TestWithoutPython(t *testing.T) {
	box := e2e.NewBox(t)
	binary := plainBinaries(t, box)
	path := filepath.Join(box.Dir, "path")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	without := []string{"/usr/bin/env", "-u", "FLAMBEAU_PYTHON", "-u", "FLAMBEAU_HOME", "PATH=" + path}
	t.Setenv("FLAMBEAU_TEST_BINARY", binary)
	box.Put(t, "adds.onnx", adds(3))
	putPlugin(t, box, filepath.Join(model, model), builtPlugin(t, 5, runtime.GOARCH))
	snake := e2e.Numbered("snake", 7, "")
	snake.Config = "maxRetryTimeoutInSec: 1\n"
	box.Put(t, "snake.mar", snake.Bytes(t))
	s := box.Start(t, e2e.Options{
		Command: []string{"flambeau", "serve", "--model-store", box.Store}, Config: pairs([]string{"model_store_settle", "40"}), Wrap: without,
	})
	requireAnswer(t, s, predict, 5)
	if !e2e.Eventually(patience, func() bool {
		a, err := s.Ask(t.Context(), http.MethodPost, s.Inference+"/predictions/adds", []byte("[4]"), "Content-Type", "application/json")
		if err != nil || a.Status != http.StatusOK {
			return false
		}
		n, err := added(a.Body)
		return err == nil && n == 7
	}) {
		t.Fatalf("the ONNX model does not answer:%s", e2e.Lines(s.Events(t, "")))
	}

	var reason string
	if !e2e.Eventually(patience, func() bool {
		m, _ := s.Model(t, "snake", "1.0")
		reason = m.Reason
		return m.State == "failed"
	}) || !strings.Contains(reason, "no Python is on the server's PATH; install") || strings.Contains(reason, "\n") {
		t.Errorf("the reason of the Python model: %q", reason)
	}
	details := string(s.MustAsk(t, http.StatusOK, http.MethodGet, s.Management+"/models/snake?details=true", nil).Body)
	if !strings.Contains(details, "no Python is on the server's PATH") {
		t.Errorf("its description does not say it: %s", details)
	}
	if said := box.Flambeau(t, "ps", "--url", s.Management); !strings.Contains(said, "no Python") {
		t.Errorf("ps does not say it:\n%s", said)
	}
	a, err := s.Ask(t.Context(), http.MethodGet, s.Inference+"/v2/models/snake/ready", nil)
	if err != nil || a.Status != http.StatusServiceUnavailable {
		t.Errorf("ready: %d %s, %v", a.Status, a.Body, err)
	}
	for path, status := range map[string]int{
		"/livez": http.StatusOK, "/startupz": http.StatusOK, "/readyz": http.StatusServiceUnavailable, "/readyz?model=adds": http.StatusOK,
		"/readyz?model=snake": http.StatusServiceUnavailable,
	} {
		s.MustAsk(t, status, http.MethodGet, s.Inference+path, nil)
	}
	if said := string(s.MustAsk(t, http.StatusServiceUnavailable, http.MethodGet, s.Inference+"/readyz?verbose", nil).Body); !strings.Contains(said, "no Python") {
		t.Errorf("the server does not say why it is not ready: %s", said)
	}
	requireChecked(t, box, without, binary, "snake.mar", 2, "python_missing", "no Python is on the server's PATH")
	requireChecked(t, box, without, binary, "adds.onnx", 0, "")

	// Also when nothing is tried any more.
	if !e2e.Eventually(patience, func() bool { return strings.Contains(s.Output(), "worker gave up") }) {
		t.Error("the worker is tried for ever")
	}
	// A shell script, so that the interpreter finds itself to be that of the environment.
	script := "#!/bin/sh\nexec " + box.Python + ` "$@"` + "\n"
	if err := os.WriteFile(filepath.Join(path, "python3"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	box.Flambeau(t, "reload", "snake", "--url", s.Management)
	requireAnswer(t, s, "/predictions/snake", 7)
	s.MustAsk(t, http.StatusOK, http.MethodGet, s.Inference+"/readyz", nil)
	requireAnswer(t, s, predict, 5)
}

// plainBinaries puts the server, the ONNX backend and ONNX Runtime into a folder, as `make build` leaves them, and gives the server's path.
func plainBinaries(t *testing.T, box *e2e.Box) string {
	t.Helper()
	bin := filepath.Join(box.Dir, "bin")
	if err := os.MkdirAll(filepath.Join(bin, "lib"), 0o700); err != nil {
		t.Fatal(err)
	}
	server, backend := os.Getenv("FLAMBEAU_TEST_BINARY"), filepath.Join(box.Home, "flambeau", "_bin", "flambeau-onnx")
	if server == "" {
		server = filepath.Join(box.Home, "flambeau", "_bin", "flambeau")
	}
	libraries, err := filepath.Glob(filepath.Join(box.Home, "onnxruntime", "capi", "libonnxruntime.so.*"))
	if err != nil || len(libraries) != 1 {
		t.Fatalf("ONNX Runtime in %s: found %q", box.Home, libraries)
	}
	for from, to := range map[string]string{server: "flambeau", backend: "flambeau-onnx", libraries[0]: filepath.Join("lib", filepath.Base(libraries[0]))} {
		content, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(bin, to), content, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(bin, "flambeau")
}

// requireChecked runs `flambeau check` as the server was started, and requires its status and what it says.
func requireChecked(t *testing.T, box *e2e.Box, wrap []string, binary, archive string, status int, texts ...string) {
	t.Helper()
	cmd := box.Command(t.Context(), wrap[0], append(append([]string{}, wrap[1:]...), binary, "check", filepath.Join(box.Store, archive))...)
	out, err := cmd.CombinedOutput()
	exit := (*exec.ExitError)(nil)
	got := 0
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if got != status {
		t.Errorf("check %s: status %d, want %d\n%s", archive, got, status, out)
	}
	for _, text := range texts {
		if !strings.Contains(string(out), text) {
			t.Errorf("check %s does not say %q:\n%s", archive, text, out)
		}
	}
}
