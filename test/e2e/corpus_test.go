package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCorpus sends the corpus of handlers to the server, and compares with what a real TorchServe answered. With another build
// of the server, those that import torch are left out: they say something about Python packages, and take the longest.
func TestCorpus(t *testing.T) {
	box := NewBox(t)
	var args []string
	if os.Getenv("FLAMBEAU_TEST_BINARY") != "" {
		args = []string{"--without", "torch"}
	}
	out, err := box.corpus(t, absolute(t, "../corpus/answers.json"), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("compare.py: %v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// TestCorpusSeesDifferences changes a recorded answer by one character, which has to be noticed.
func TestCorpusSeesDifferences(t *testing.T) {
	box := NewBox(t)
	text, err := os.ReadFile("../corpus/answers.json")
	if err != nil {
		t.Fatal(err)
	}
	const name = "entry-plain-class"
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(all[name], []byte("hello grace"), []byte("hello Grace"), 1)
	if bytes.Equal(changed, all[name]) {
		t.Fatal("there is nothing to change in the recorded answers")
	}
	all[name] = changed
	if text, err = json.Marshal(all); err != nil {
		t.Fatal(err)
	}
	answers := filepath.Join(box.Dir, "answers.json")
	if err := os.WriteFile(answers, text, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := box.corpus(t, answers, "--only", name).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "0 equal, 1 different (0 documented)") {
		t.Fatalf("compare.py: %v\n%s", err, out)
	}
}

// corpus prepares a run of the corpus against recorded answers.
func (b *Box) corpus(t *testing.T, answers string, args ...string) *exec.Cmd {
	t.Helper()
	args = append([]string{
		absolute(t, "../corpus/compare.py"), "--against", answers, "--flambeau", b.Bin, "--work", filepath.Join(b.Dir, "c"),
	}, args...)
	var env []string
	if binary := os.Getenv("FLAMBEAU_TEST_BINARY"); binary != "" {
		args = append(args, "--flambeau-command", binary)
		env = []string{"FLAMBEAU_PYTHON=" + b.Python, "FLAMBEAU_HOME=" + b.Home}
	}
	cmd := b.Command(t.Context(), b.Python, args...)
	cmd.Env = append(cmd.Env, env...)
	return cmd
}
