package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestBareInterpreters lets the installed server run workers with every Python of this machine, in environments where nothing is installed: neither
// the wheel nor pip.
func TestBareInterpreters(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "../../tools/pythons.sh").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		version, interpreter, _ := strings.Cut(strings.TrimSpace(line), " ")
		t.Run(version, func(t *testing.T) {
			box := NewBox(t)
			folder := filepath.Join(box.Dir, "bare")
			if said, err := exec.CommandContext(t.Context(), interpreter, "-m", "venv", "--without-pip", folder).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, said)
			}
			settings := filepath.Join(box.Dir, "settings.yaml")
			if err := os.WriteFile(settings, []byte("one: [1, two]\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			box.Pack(t, "bare", "testdata/bare.py", settings)
			python := filepath.Join(folder, "bin", "python")
			s := box.Start(t, Options{Args: []string{"--models", "bare=bare.mar"}, Config: map[string]string{"python": python}})
			answer := s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+"/predictions/bare", []byte(`{"a": 1}`), "Content-Type", "application/json")
			want := map[string]any{
				"version": version, "ts": "0.12.0", "others": []any{}, "settings": map[string]any{"one": []any{1.0, "two"}}, "row": map[string]any{"a": 1.0},
			}
			compareJSON(t, answer.Body, want)
			box.runBare(t, python, want)
		})
	}
}

// runBare asks the same by `flambeau run`.
func (b *Box) runBare(t *testing.T, python string, want map[string]any) {
	t.Helper()
	input := filepath.Join(b.Dir, "in.json")
	if err := os.WriteFile(input, []byte(`{"a": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), askLimit)
	defer cancel()
	cmd := b.Command(ctx, "flambeau", "run", filepath.Join(b.Store, "bare.mar"), "--input", input, "--content-type", "application/json", "--python", python)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	body, err := cmd.Output()
	if err != nil {
		t.Fatalf("flambeau run: %v\n%s", err, stderr.String())
	}
	compareJSON(t, body, want)
}

func compareJSON(t *testing.T, body []byte, want map[string]any) {
	t.Helper()
	var got map[string]any
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
