package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/deploy"
	"github.com/flambeau-serve/flambeau/modelstore/pbtxt"
	"github.com/flambeau-serve/flambeau/modelstore/watch"
)

// rowsBeside gives what tells how many rows the models take that lie beside an ensemble, in the same store.
func rowsBeside(cfg *config.Config) func(ctx context.Context, ensemble *archive.Archive, model, version string) (int, bool) {
	return func(ctx context.Context, ensemble *archive.Archive, model, version string) (int, bool) {
		folders := foldersBeside(ensemble, model, version)
		if folders == nil {
			return 0, false
		}
		for _, path := range append(folders, folders[0]+".onnx") {
			if opened := openBeside(ctx, cfg, path); opened != nil {
				if rows, known := opened.DeclaredRows(); known {
					return rows, true
				}
			}
		}
		return 0, false
	}
}

// ensembleBeside gives what finds the ensembles that lie beside one, in the same store.
func ensembleBeside(cfg *config.Config) func(ctx context.Context, beside *archive.Archive, model, version string) *archive.Archive {
	return func(ctx context.Context, beside *archive.Archive, model, version string) *archive.Archive {
		for _, path := range foldersBeside(beside, model, version) {
			if !exists(filepath.Join(path, pbtxt.File)) && !exists(filepath.Join(path, "model-config.yaml")) {
				continue
			}
			if opened := openBeside(ctx, cfg, path); opened != nil && opened.Ensemble != nil {
				return opened
			}
		}
		return nil
	}
}

// foldersBeside are the folders that a model may lie in beside an ensemble. The model's own comes first: the config.pbtxt of all versions lies there. The
// highest version stands for one that is not given.
func foldersBeside(ensemble *archive.Archive, model, version string) []string {
	if !filepath.IsAbs(ensemble.URL) || filepath.Base(model) != model || !filepath.IsLocal(model) {
		return nil
	}
	store := filepath.Dir(ensemble.URL)
	if above, in := strings.CutSuffix(ensemble.URL, string(filepath.Separator)+filepath.FromSlash(ensemble.Source)); in { // also in the folder of a version
		store = above
	}
	folders := []string{filepath.Join(store, model)}
	switch places := watch.Versions(store, model); {
	case version == "" && len(places) > 0:
		highest := slices.MaxFunc(places, func(a, b string) int { return deploy.CompareVersions(filepath.Base(a), filepath.Base(b)) })
		folders = append(folders, filepath.Join(store, highest))
	case version != "" && filepath.IsLocal(version):
		folders = append(folders, filepath.Join(folders[0], version))
	}
	return folders
}

// openBeside reads what may be a model, and closes it again: only what was read of it is of use. What cannot be opened is its own check's matter.
func openBeside(ctx context.Context, cfg *config.Config, path string) *archive.Archive {
	if !exists(path) {
		return nil
	}
	temp, err := os.MkdirTemp(cfg.Env.TempDir, "flambeau-check-")
	if err != nil {
		return nil
	}
	defer func() { _ = os.RemoveAll(temp) }() // it is below a temporary folder, and nothing was asked of it but words and numbers
	opened, err := openArchive(ctx, cfg, path, temp, slog.New(slog.DiscardHandler))
	if err != nil || opened.close() != nil {
		return nil
	}
	return opened.archive
}
