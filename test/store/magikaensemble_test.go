package store

import (
	"encoding/json"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// TestMagikaEnsemble runs examples/ensemble: a file's content goes through a Go plugin, an ONNX model in Triton's layout and another Go plugin. The answers are
// those of the model's Python handler (examples/magika).
func TestMagikaEnsemble(t *testing.T) {
	box := e2e.NewBox(t)
	found, err := filepath.Glob(filepath.Join(filepath.Dir(box.Bin), "lib/python3*/site-packages/magika/models/standard_v3_3"))
	if err != nil || len(found) != 1 {
		t.Skip("there is no magika 1.0 in the environment")
	}
	pack := exec.CommandContext(t.Context(), "../../examples/ensemble/pack.sh", box.Store, found[0])
	if out, err := pack.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s := start(t, box)
	ready(t, s, "magika")
	for _, right := range []struct {
		file, label string
		score       float64
	}{{"tide.py", "python", 0.999600}, {"tide.go.txt", "go", 0.999979}, {"tide.json", "json", 0.897123}} {
		content, err := os.ReadFile(filepath.Join("../../examples/magika/samples", right.file))
		if err != nil {
			t.Fatal(err)
		}
		answer := s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+"/predictions/magika", content, "Content-Type", octets).Body
		outputs := outputsOf(t, answer)
		var labels []string
		var scores []float64
		if err := json.Unmarshal(outputs["LABEL"].Data, &labels); err != nil || len(labels) != 1 || labels[0] != right.label {
			t.Errorf("%s: %s, %v", right.file, outputs["LABEL"].Data, err)
		}
		if err := json.Unmarshal(outputs["SCORE"].Data, &scores); err != nil || len(scores) != 1 || math.Abs(scores[0]-right.score) > 1e-4 {
			t.Errorf("%s: %s, %v", right.file, outputs["SCORE"].Data, err)
		}
	}
}
