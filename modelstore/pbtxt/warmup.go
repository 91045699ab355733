package pbtxt

import (
	"maps"
	"path/filepath"
	"slices"

	tritonv1 "github.com/flambeau-serve/flambeau/proto/triton/v1"
)

// What the warm-up requests of one model may be at most.
const (
	maxWarmUps      = 16
	maxWarmUpCount  = 100
	maxWarmUpValues = 1 << 26 // elements of one request
)

// warmUp reads the requests that are run before the model serves.
func (c *Config) warmUp(p *parsed) error {
	all := p.config.GetModelWarmup()
	if len(all) > maxWarmUps {
		return p.refuse("remove some", p.line(0, "model_warmup"), "there are %d warm-up requests, and at most %d are used", len(all), maxWarmUps)
	}
	for i, w := range all {
		line := p.line(i, "model_warmup")
		made := WarmUp{Name: w.GetName(), Count: min(max(int(w.GetCount()), 1), maxWarmUpCount)}
		rows := int64(w.GetBatchSize())
		if c.MaxBatch > 0 && (rows < 1 || rows > int64(c.MaxBatch)) {
			if rows != 0 {
				return p.refuse("", line, "the warm-up request %q has %d rows, and max_batch_size is %d", w.GetName(), rows, c.MaxBatch)
			}
			rows = 1
		}
		if err := c.warmUpInputs(p, line, w, rows, &made); err != nil {
			return err
		}
		if len(made.Inputs) == 0 {
			return p.refuse("", line, "the warm-up request %q has no inputs", w.GetName())
		}
		c.WarmUp = append(c.WarmUp, made)
	}
	return nil
}

// warmUpInputs reads the tensors of a request.
func (c *Config) warmUpInputs(p *parsed, line int, w *tritonv1.Warmup, rows int64, made *WarmUp) error {
	elements := int64(0)
	for _, name := range slices.Sorted(maps.Keys(w.GetInputs())) {
		in, err := c.warmUpInput(p, line, name, w.GetInputs()[name], rows)
		if err != nil {
			return err
		}
		n := int64(1)
		for _, d := range in.Shape {
			n = min(n, maxWarmUpValues+1) * min(d, maxWarmUpValues+1) // it cannot become too large for its type
		}
		if elements += n; n > maxWarmUpValues || elements > maxWarmUpValues {
			return p.refuse("make it smaller", line, "the warm-up request %q has more than %d elements", w.GetName(), maxWarmUpValues)
		}
		made.Inputs = append(made.Inputs, in)
	}
	return nil
}

func (c *Config) warmUpInput(p *parsed, line int, name string, in *tritonv1.Warmup_Input, rows int64) (WarmUpInput, error) {
	w := WarmUpInput{Name: name, DataType: protocolType(in.GetDataType()), Random: in.GetRandomData(), File: in.GetInputDataFile()}
	if in.GetDataType() == tritonv1.DataType_TYPE_INVALID {
		return w, p.refuse("", line, "the warm-up input %q has no data_type", name)
	}
	if in.GetInputDataType() == nil {
		return w, p.refuse("", line, "the warm-up input %q has neither zero_data, random_data nor input_data_file", name)
	}
	if w.File != "" && !filepath.IsLocal(w.File) {
		return w, p.refuse("", line, "the warm-up file %q is not in the model's folder warmup", w.File)
	}
	if c.MaxBatch > 0 {
		w.Shape = append(w.Shape, rows)
	}
	for _, d := range in.GetDims() {
		if d < 1 {
			return w, p.refuse("", line, "the warm-up input %q has a dimension of %d: each has to have a size", name, d)
		}
		w.Shape = append(w.Shape, d)
	}
	return w, nil
}
