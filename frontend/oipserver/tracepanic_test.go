package oipserver

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/infer"
)

// TestPanicsOfTheTraceWriter cost the trace, and those after it are written.
func TestPanicsOfTheTraceWriter(t *testing.T) {
	var log bytes.Buffer
	path := filepath.Join(t.TempDir(), "trace.json")
	w := newTraceWriter(path, 0, slog.New(slog.NewTextHandler(&log, nil)))
	for _, name := range []string{"a", "b"} {
		w.put(nil) // which has nothing to be written
		w.put(&trace{ref: infer.ModelRef{Name: name}})
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	models, _ := traced(t, path)
	if diff := cmp.Diff([]string{"a", "b"}, models); diff != "" {
		t.Error(diff)
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != 2 || !strings.Contains(log.String(), "panic while a trace was written") {
		t.Errorf("%d errors: %s", n, log.String())
	}
}
