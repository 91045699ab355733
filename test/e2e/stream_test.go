package e2e

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStreamArrivesPieceByPiece reads the first piece while the handler still works on the last one.
func TestStreamArrivesPieceByPiece(t *testing.T) {
	box := NewBox(t)
	box.Pack(t, "stepper", "testdata/stepper.py")
	s := box.Start(t, Options{Args: []string{"--models", "stepper=stepper.mar"}})
	for _, tc := range []struct {
		name  string
		whole bool
	}{{"go", true}, {"fail", false}} {
		t.Run(tc.name, func(t *testing.T) {
			file := filepath.Join(box.Dir, tc.name)
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.Inference+"/predictions/stepper", strings.NewReader(file))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Content-Type", octets)
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close() //nolint:errcheck // read below
			if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "text/event-stream" || response.ContentLength != -1 {
				t.Errorf("head of the stream: %d %v", response.StatusCode, response.Header)
			}
			first := make([]byte, len("first;"))
			if _, err := io.ReadFull(response.Body, first); err != nil || string(first) != "first;" {
				t.Fatalf("first piece %q, %v", first, err)
			}
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			rest, err := io.ReadAll(response.Body)
			if tc.whole && (err != nil || string(rest) != "last;") {
				t.Errorf("the rest is %q, %v", rest, err)
			}
			if !tc.whole && err == nil {
				t.Errorf("a stream that failed ended as if it was whole, with %q", rest)
			}
		})
	}
}
