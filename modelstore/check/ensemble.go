package check

import (
	"bytes"
	"cmp"
	"context"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/flambeau-serve/flambeau/modelstore/archive"
)

// ensembleFindings looks for what keeps an ensemble from being loaded, as far as its models lie beside it: the server refuses it for the same.
func (s *subject) ensembleFindings(ctx context.Context, o *Options) {
	if s.archive.Ensemble == nil {
		return
	}
	file, key := "config.pbtxt", "max_batch_size"
	if s.archive.Triton == nil {
		file, key = cmp.Or(s.archive.Manifest.Model.ConfigFile, "model-config.yaml"), "maxBatchSize"
	}
	text, ok := s.readText(file, mostText)
	if !ok && s.archive.Triton != nil && s.archive.InPlace { // it lies beside the folders of the versions
		text, _ = readHead(filepath.Join(filepath.Dir(s.dir), file), mostText) // without it the line is not told
	}
	s.ensembleCircle(ctx, o, file, text)
	s.ensembleRows(ctx, o, file, key, text)
}

// ensembleRows compares how many rows the ensemble takes with what its models do.
func (s *subject) ensembleRows(ctx context.Context, o *Options, file, key string, text []byte) {
	d := s.archive.Ensemble
	if d.MaxBatch == 0 || o.Rows == nil {
		return
	}
	for i := range d.Steps {
		step := &d.Steps[i]
		if rows, known := o.Rows(ctx, s.archive, step.Model, step.Version); known && rows < d.MaxBatch {
			s.found.add(Error, ConfigContradiction, file, keyLine(text, key), "lower "+key+", or raise the model's: max_batch_size in its config.pbtxt, or batchSize in its model-config.yaml",
				"the ensemble takes up to %d rows in a request, and step %d, the model %s, only %d", d.MaxBatch, i+1, step.Model, rows)
		}
	}
}

// ensembleCircle looks for steps that lead back to the ensemble: it waits for itself then.
func (s *subject) ensembleCircle(ctx context.Context, o *Options, file string, text []byte) {
	name := modelOf(s.archive)
	path := o.wayBack(ctx, s.archive, s.archive, []string{name}, map[string]bool{name: true})
	if path == nil {
		return
	}
	s.found.add(Error, EnsembleCircle, file, stepLine(text, path[1]), "take one of these models out of the steps of the one before it",
		"the ensemble would be made of itself: %s", strings.Join(path, " → "))
}

// wayBack finds a way from the steps of an ensemble to the one that path begins with, nil when there is none. from is that one, and path leads to the other.
func (o *Options) wayBack(ctx context.Context, from, ensemble *archive.Archive, path []string, seen map[string]bool) []string {
	for i := range ensemble.Ensemble.Steps {
		step := &ensemble.Ensemble.Steps[i]
		longer := append(slices.Clone(path), step.Model)
		if step.Model == path[0] {
			return longer
		}
		if o.Ensemble == nil || seen[step.Model] || ctx.Err() != nil {
			continue
		}
		seen[step.Model] = true
		next := o.Ensemble(ctx, from, step.Model, step.Version)
		if next == nil {
			continue
		}
		if found := o.wayBack(ctx, from, next, longer, seen); found != nil {
			return found
		}
	}
	return nil
}

// stepLine is the line of a configuration on which a step names its model, 0 when it is not found.
func stepLine(text []byte, model string) int {
	at := regexp.MustCompile(`\bmodel(_name)?["']?\s*:\s*["']?` + regexp.QuoteMeta(model) + `(["'\s,}]|$)`).FindIndex(text)
	if at == nil {
		return 0
	}
	return 1 + bytes.Count(text[:at[0]], []byte("\n"))
}
