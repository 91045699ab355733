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
	maxWarmUpValues = 1 << 26  // elements of one request
	MaxWarmUpBytes  = 64 << 20 // tensors of one request, and of all of them: they are kept while the model is there
)

// ElementSize is how many bytes an element of a type of the Open Inference Protocol takes, 0 for BYTES, whose elements have their own.
func ElementSize(datatype string) int {
	switch datatype {
	case "BOOL", "UINT8", "INT8":
		return 1
	case "UINT16", "INT16", "FP16", "BF16":
		return 2
	case "UINT32", "INT32", "FP32":
		return 4
	case "UINT64", "INT64", "FP64":
		return 8
	}
	return 0
}

// bytesOf is how many bytes so many elements of an input take, or most of them: a text is its length and the element's number, or nothing. How long those of
// a file are is not known here.
func bytesOf(in *WarmUpInput, elements int64) int64 {
	const length, digits = 4, 8
	size := int64(ElementSize(in.DataType))
	switch {
	case size > 0:
	case in.File != "":
		size = length
	case in.Random:
		size = length + digits
	default:
		size = length
	}
	return elements * size
}

// warmUp reads the requests that are run before the model serves.
func (c *Config) warmUp(p *parsed) error {
	all := p.config.GetModelWarmup()
	if len(all) > maxWarmUps {
		return p.refuse("remove some", p.line(0, "model_warmup"), "there are %d warm-up requests, and at most %d are used", len(all), maxWarmUps)
	}
	sum := int64(0)
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
		bytes, err := c.warmUpInputs(p, line, w, rows, &made)
		if err != nil {
			return err
		}
		if sum += bytes; sum > MaxWarmUpBytes {
			return p.refuse("remove some, or make them smaller", line, "the warm-up requests up to %q take %d bytes together, and at most %d are allowed",
				w.GetName(), sum, MaxWarmUpBytes)
		}
		if len(made.Inputs) == 0 {
			return p.refuse("", line, "the warm-up request %q has no inputs", w.GetName())
		}
		c.WarmUp = append(c.WarmUp, made)
	}
	return nil
}

// warmUpInputs reads the tensors of a request, and gives their size in bytes.
func (c *Config) warmUpInputs(p *parsed, line int, w *tritonv1.Warmup, rows int64, made *WarmUp) (bytes int64, err error) {
	elements := int64(0)
	for _, name := range slices.Sorted(maps.Keys(w.GetInputs())) {
		in, err := c.warmUpInput(p, line, name, w.GetInputs()[name], rows)
		if err != nil {
			return 0, err
		}
		n := int64(1)
		for _, d := range in.Shape {
			n = min(n, maxWarmUpValues+1) * min(d, maxWarmUpValues+1) // it cannot become too large for its type
		}
		if elements += n; n > maxWarmUpValues || elements > maxWarmUpValues {
			return 0, p.refuse("make it smaller", line, "the warm-up request %q has more than %d elements", w.GetName(), maxWarmUpValues)
		}
		bytes += bytesOf(&in, n)
		made.Inputs = append(made.Inputs, in)
	}
	if bytes > MaxWarmUpBytes {
		return 0, p.refuse("make it smaller", line, "the warm-up request %q takes %d bytes, and at most %d are allowed", w.GetName(), bytes, MaxWarmUpBytes)
	}
	return bytes, nil
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
