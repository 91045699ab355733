package store

import (
	"encoding/json"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// lineOfText is what is read in a picture.
type lineOfText struct {
	Text  string        `json:"text"`
	Score float64       `json:"score"`
	Box   [4][2]float32 `json:"box"`
}

// pictures gives the folder with pictures and with what the Python package rapidocr-onnxruntime reads in them, and the folder of the package's models.
func pictures(t *testing.T, box *e2e.Box) (dir, models string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(filepath.Dir(box.Bin), "lib/python3*/site-packages/rapidocr_onnxruntime/models"))
	if err != nil || len(found) != 1 {
		e2e.Lacks(t, "there is no rapidocr-onnxruntime in the environment")
	}
	dir = t.TempDir()
	out, err := exec.CommandContext(t.Context(), box.Python, "testdata/ocr.py", dir).CombinedOutput()
	if err != nil {
		e2e.Lacks(t, "the package rapidocr-onnxruntime does not run: "+err.Error()+"\n"+string(out))
	}
	t.Logf("%s", out)
	return dir, found[0]
}

// TestReadingPictures runs examples/ocr: a picture goes through three ONNX models, with Go plugins between them. The answers are those of the Python package.
func TestReadingPictures(t *testing.T) {
	box := e2e.NewBox(t)
	dir, models := pictures(t, box)
	if out, err := exec.CommandContext(t.Context(), box.Python, "../../examples/ocr/pack.py", box.Store, models).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s := start(t, box, "max_request_size", "20000000", "max_response_size", "200000000")
	ready(t, s, "ocr")
	files, err := filepath.Glob(filepath.Join(dir, "*.png"))
	if err != nil || len(files) < 10 {
		t.Fatalf("%q, %v", files, err)
	}
	worst, lines := 0.0, 0
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".png")
		content, want := content(t, file), wantedLines(t, file)
		got := linesRead(t, s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+"/predictions/ocr", content, "Content-Type", octets).Body)
		worst = max(worst, compareLines(t, name, got, want))
		lines += len(got)
	}
	if lines < 40 {
		t.Errorf("%d lines only", lines)
	}
	t.Logf("%d pictures, %d lines, scores differ by %.6f at most", len(files), lines, worst)

	var all sync.WaitGroup
	for _, name := range []string{"letter", "mixed", "letter", "blank", "tilted", "upside"} {
		content, want := content(t, filepath.Join(dir, name+".png")), wantedLines(t, filepath.Join(dir, name+".png"))
		all.Go(func() {
			a, err := s.Ask(t.Context(), http.MethodPost, s.Inference+"/predictions/ocr", content, "Content-Type", octets)
			if err != nil || a.Status != http.StatusOK {
				t.Errorf("%s, beside others: %d %s %v", name, a.Status, a.Body, err)
				return
			}
			compareLines(t, name+", beside others", linesRead(t, a.Body), want)
		})
	}
	all.Wait()
	a, err := s.Ask(t.Context(), http.MethodPost, s.Inference+"/predictions/ocr", []byte("no picture"), "Content-Type", octets)
	if err != nil || a.Status != http.StatusBadRequest || !strings.Contains(string(a.Body), "in ensemble 'ocr', step 1 (model 'ocr-page'): a JPEG, PNG, GIF, BMP or WebP image is wanted") {
		t.Errorf("what is no picture: %d %s %v", a.Status, a.Body, err)
	}
}

func content(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func wantedLines(t *testing.T, picture string) (lines []lineOfText) {
	t.Helper()
	if err := json.Unmarshal(content(t, strings.TrimSuffix(picture, ".png")+".json"), &lines); err != nil {
		t.Fatal(err)
	}
	return lines
}

// linesRead reads an answer of the pipeline.
func linesRead(t *testing.T, answer []byte) []lineOfText {
	t.Helper()
	outputs := outputsOf(t, answer)
	var texts []string
	var scores []float64
	var boxes []float32
	for name, into := range map[string]any{"TEXT": &texts, "SCORE": &scores, "BOX": &boxes} {
		if err := json.Unmarshal(outputs[name].Data, into); err != nil {
			t.Errorf("%s: %v in %s", name, err, answer)
		}
	}
	if len(scores) != len(texts) || len(boxes) != 8*len(texts) {
		t.Errorf("%s", answer)
		return nil
	}
	lines := make([]lineOfText, len(texts))
	for i := range lines {
		lines[i].Text, lines[i].Score = texts[i], scores[i]
		for k := range 8 {
			lines[i].Box[k/2][k%2] = boxes[8*i+k]
		}
	}
	return lines
}

// compareLines wants the same texts in the same places, and gives by how much scores differ at most.
func compareLines(t *testing.T, name string, got, want []lineOfText) (worst float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: got %v, want %v", name, got, want)
		return 0
	}
	for i := range want {
		difference := math.Abs(got[i].Score - want[i].Score)
		worst = max(worst, difference)
		if got[i].Text != want[i].Text || difference > 1e-3 || got[i].Box != want[i].Box {
			t.Errorf("%s, line %d:\n got %v\nwant %v", name, i, got[i], want[i])
		}
	}
	return worst
}
