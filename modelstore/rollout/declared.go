package rollout

import (
	"maps"
	"slices"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/pipeline"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// declare compares what a worker says about the model with what its config.pbtxt declares, which is what clients are told.
func (g *generation) declare(info backend.Info) (backend.Info, error) {
	c := g.archive.Triton
	if c == nil || g.archive.Ensemble != nil {
		return info, nil
	}
	d := backend.Description{}
	if info.Description != nil {
		d = *info.Description
	}
	inputs, outputs := g.archive.DeclaredPorts()
	var err error
	if d.Inputs, err = declared("input", inputs, d.Inputs); err != nil {
		return info, err
	}
	if d.Outputs, err = declared("output", outputs, d.Outputs); err != nil {
		return info, err
	}
	if !c.Auto {
		d.MaxBatch = c.MaxBatch
	}
	if len(g.archive.Labels) > 0 {
		d.Labels = maps.Clone(d.Labels)
		if d.Labels == nil {
			d.Labels = map[string][]string{}
		}
		maps.Copy(d.Labels, g.archive.Labels)
	}
	info.Description = &d
	return info, nil
}

// declared gives the model's own ports as they are declared, those that are not as they are.
func declared(word string, said []pipeline.Port, have []backend.Port) ([]backend.Port, error) {
	all := slices.Clone(have)
	for _, p := range said {
		port := backend.Port{Name: p.Name, DataType: p.DataType, Shape: p.Shape}
		at := slices.IndexFunc(all, func(h backend.Port) bool { return h.Name == p.Name })
		switch {
		case at < 0 && len(have) > 0:
			return nil, mismatch("config.pbtxt has the %s %q, and the model has none of that name", word, p.Name)
		case at < 0:
			all = append(all, port)
			continue
		case all[at].DataType != "" && all[at].DataType != p.DataType:
			return nil, mismatch("config.pbtxt has the type %s for the %s %q, and the model %s", p.DataType, word, p.Name, all[at].DataType)
		case !alike(p.Shape, all[at].Shape):
			return nil, mismatch("config.pbtxt has the shape %v for the %s %q, and the model %v; with a max_batch_size above 0 the dims leave the first dimension out",
				p.Shape, word, p.Name, all[at].Shape)
		}
		all[at] = port
	}
	return all, nil
}

// alike says whether a tensor may have both shapes. A model that says nothing of a shape says [-1].
func alike(a, b []int64) bool {
	if len(b) == 1 && b[0] < 0 {
		return true
	}
	return slices.EqualFunc(a, b, func(x, y int64) bool { return x < 0 || y < 0 || x == y })
}

func mismatch(format string, args ...any) error {
	f := fault.Newf(fault.LoadFailed, format, args...)
	f.Hint = "correct config.pbtxt, or leave its input and output out: they are then those of the model"
	return f
}
