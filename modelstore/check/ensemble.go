package check

import (
	"cmp"
	"context"
)

// ensembleFindings compares how many rows an ensemble takes with what its models do: the server refuses it when one takes fewer.
func (s *subject) ensembleFindings(ctx context.Context, o *Options) {
	d := s.archive.Ensemble
	if d == nil || d.MaxBatch == 0 || o.Rows == nil {
		return
	}
	file, key := "config.pbtxt", "max_batch_size"
	if s.archive.Triton == nil {
		file, key = cmp.Or(s.archive.Manifest.Model.ConfigFile, "model-config.yaml"), "maxBatchSize"
	}
	text, _ := s.readText(file, mostText) // config.pbtxt may lie beside the folder: then without its line
	for i := range d.Steps {
		step := &d.Steps[i]
		if rows, known := o.Rows(ctx, s.archive, step.Model, step.Version); known && rows < d.MaxBatch {
			s.found.add(Error, ConfigContradiction, file, keyLine(text, key), "lower "+key+", or raise the model's: max_batch_size in its config.pbtxt, or batchSize in its model-config.yaml",
				"the ensemble takes up to %d rows in a request, and step %d, the model %s, only %d", d.MaxBatch, i+1, step.Model, rows)
		}
	}
}
