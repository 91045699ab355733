package e2e

import (
	"encoding/json"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
)

const octets = "application/octet-stream"

// fileType is the example handler's answer.
type fileType struct {
	Label string  `json:"label"`
	Score float64 `json:"score"`
}

func startMagika(t *testing.T) *Server {
	t.Helper()
	box := NewBox(t)
	box.Run(t, absolute(t, "../../examples/magika/pack.sh"), box.Store)
	return box.Start(t, Options{Command: []string{"flambeau", "serve"}, Args: []string{"--models", "magika=magika.mar"}})
}

func (s *Server) askMagika(t *testing.T, content []byte) fileType {
	t.Helper()
	answer, err := s.Ask(t.Context(), http.MethodPost, s.Inference+"/predictions/magika", content, "Content-Type", octets)
	if err != nil {
		t.Error(err)
		return fileType{}
	}
	var got fileType
	if err := json.Unmarshal(answer.Body, &got); err != nil || answer.Status != http.StatusOK {
		t.Errorf("status %d, body %q: %v", answer.Status, answer.Body, err)
	}
	return got
}

// TestMagika serves the example and asks for several files at once, so that they meet in batches: each gets its own answer.
func TestMagika(t *testing.T) {
	server := startMagika(t)
	// What the package `magika` itself says of the samples; batches differ from it in the fifth digit.
	right := map[string]fileType{"tide.py": {"python", 0.999600}, "tide.go.txt": {"go", 0.999979}, "tide.json": {"json", 0.897123}}
	var clients sync.WaitGroup
	for name, want := range right {
		content, err := os.ReadFile(filepath.Join("../../examples/magika/samples", name))
		if err != nil {
			t.Fatal(err)
		}
		for range 8 {
			clients.Go(func() {
				got := server.askMagika(t, content)
				if got.Label != want.Label || math.Abs(got.Score-want.Score) > 1e-4 {
					t.Errorf("%s: %+v, want %+v", name, got, want)
				}
			})
		}
	}
	clients.Wait()
}

// TestReadmeAnswer asks what the README asks, and compares with the answer that it shows.
func TestReadmeAnswer(t *testing.T) {
	server := startMagika(t)
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`curl --data-binary @README\.md -H 'Content-Type: application/octet-stream' \S+/predictions/magika`).Match(readme) {
		t.Fatal("the README does not show the request that this test sends")
	}
	shown := regexp.MustCompile("(?s)```json\n(\\{.*?\\})\n```").FindSubmatch(readme)
	if shown == nil {
		t.Fatal("the README shows no answer")
	}
	var want fileType
	if err := json.Unmarshal(shown[1], &want); err != nil {
		t.Fatalf("the README's answer: %v", err)
	}
	got := server.askMagika(t, readme)
	if got.Label != want.Label || math.Abs(got.Score-want.Score) > 0.02 { // a change of the README changes its score a little
		t.Errorf("the README shows %+v, the server says %+v", want, got)
	}
}
