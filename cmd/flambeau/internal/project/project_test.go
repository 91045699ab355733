package project

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestWriteRefuses(t *testing.T) {
	t.Parallel()
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for says, try := range map[string]func() error{
		"cannot be a model's name": func() error { _, err := Write(filepath.Join(full, "new"), Options{Name: "a/b"}); return err },
		"is not empty":             func() error { _, err := Write(full, Options{Name: "a"}); return err },
		"is no checkout":           func() error { _, err := Write(filepath.Join(full, "new"), Options{Name: "a", SDK: full}); return err },
	} {
		if err := try(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want one that says %q", err, says)
		}
		if _, err := os.Stat(filepath.Join(full, "new")); err == nil {
			t.Error("something was written")
		}
	}
}

// What is written builds and passes its own tests, which start it as the server does.
func TestProjectBuilds(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "shout-1.0")
	written, err := Write(dir, Options{Name: "shout-1.0", Version: "0.1.0", SDK: "../../../.."})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(written)
	if want := []string{".gitignore", "Makefile", "README.md", "go.mod", "main.go", "main_test.go", "model-config.yaml"}; !slices.Equal(written, want) {
		t.Errorf("wrote %v", written)
	}
	// The checkout's modules are enough: nothing is downloaded.
	sums, err := os.ReadFile("../../../../go.sum")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"vet", "./..."}, {"test", "./..."}, {"build", "-o", "shout-1.0", "."}} {
		cmd := exec.CommandContext(t.Context(), "go", args...) //nolint:gosec // words of this test
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// The example is short enough to be read at once.
func TestExampleIsShort(t *testing.T) {
	t.Parallel()
	text, err := files.ReadFile("handler/main.go.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	code := 0
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
			code++
		}
	}
	const most = 35
	if code > most {
		t.Errorf("main.go has %d lines of code", code)
	}
}
