package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
)

// rowsBeside gives what tells how many rows the models take that lie beside an ensemble, in the same store.
func rowsBeside(cfg *config.Config) func(ctx context.Context, ensemble *archive.Archive, model, version string) (int, bool) {
	return func(ctx context.Context, ensemble *archive.Archive, model, version string) (int, bool) {
		if !filepath.IsAbs(ensemble.URL) || filepath.Base(model) != model {
			return 0, false
		}
		store := filepath.Dir(ensemble.URL)
		// The folder comes first: the config.pbtxt of all versions lies there.
		for _, path := range []string{filepath.Join(store, model), filepath.Join(store, model, version), filepath.Join(store, model+".onnx")} {
			if rows, known := rowsOf(ctx, cfg, path); known {
				return rows, true
			}
		}
		return 0, false
	}
}

// rowsOf opens what may be a model. What cannot be opened is its own check's matter.
func rowsOf(ctx context.Context, cfg *config.Config, path string) (rows int, known bool) {
	if _, err := os.Stat(path); err != nil {
		return 0, false
	}
	temp, err := os.MkdirTemp(cfg.Env.TempDir, "flambeau-check-")
	if err != nil {
		return 0, false
	}
	defer func() { _ = os.RemoveAll(temp) }() // it is below a temporary folder, and nothing was asked of it but a number
	opened, err := openArchive(ctx, cfg, path, temp, slog.New(slog.DiscardHandler))
	if err != nil {
		return 0, false
	}
	rows, known = opened.archive.DeclaredRows()
	return rows, opened.close() == nil && known
}
