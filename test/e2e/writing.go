package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Pause waits, or less when the context ends.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// Put puts a file into the store as rsync does: written under a hidden name beside it, then renamed.
func (b *Box) Put(t *testing.T, name string, content []byte) {
	t.Helper()
	path := filepath.Join(b.Store, name)
	hidden := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".Xq3vZ1")
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hidden, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(hidden, path); err != nil {
		t.Fatal(err)
	}
}

// Writer writes a file in pieces, over what was there, as cp does on a slow disk.
type Writer struct {
	Pieces int
	Pause  time.Duration         // after each piece
	Before func(piece, sent int) // called before each piece but the first, with how many bytes are there; nil for nothing
}

// Write writes the content. The file is closed when it returns.
func (w Writer) Write(t *testing.T, path string, content []byte) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // closed below, unless the test has failed
	size := (len(content) + w.Pieces - 1) / w.Pieces
	began := time.Now()
	for piece, sent := 0, 0; sent < len(content); piece++ {
		if piece > 0 {
			Pause(t.Context(), time.Until(began.Add(time.Duration(piece)*w.Pause))) // writing takes time, too
			if w.Before != nil {
				before := time.Now()
				w.Before(piece, sent)
				began = began.Add(time.Since(before))
			}
		}
		end := min(sent+size, len(content))
		if _, err := file.Write(content[sent:end]); err != nil {
			t.Fatal(err)
		}
		sent = end
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}
