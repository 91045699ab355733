package onnx

import (
	"context"
	"errors"
	"math"
	"slices"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
	"github.com/flambeau-serve/flambeau/plugins/onnx/tokenize"
)

// job is one run of the model, for one request.
type job struct {
	inputs  []session.Input // in the order of the model's
	wanted  []string        // outputs, all if empty
	rows    int64           // of each input, if the inputs have rows that may be joined with those of others
	single  bool            // it came without a dimension for the batch, and its answer goes without one
	loops   bool            // the model takes one row at a time, and the request has several
	reply   reply
	tokens  []tokenize.Encoded // of texts
	outputs []session.Value
	err     error
}

// names of the outputs that the job gives, in their order.
func (h *Handler) namesOf(j *job) []string {
	if len(j.wanted) > 0 {
		return j.wanted
	}
	return h.names
}

// groups puts the jobs together that may run at once.
func (h *Handler) groups(jobs []*job) [][]*job {
	var groups [][]*job
	for _, j := range jobs {
		if j.err != nil {
			continue
		}
		at := -1
		if h.joins.Load() && j.rows > 0 {
			at = slices.IndexFunc(groups, func(g []*job) bool { return fits(g[0], j) })
		}
		if at < 0 {
			groups = append(groups, []*job{j})
		} else {
			groups[at] = append(groups[at], j)
		}
	}
	return groups
}

// fits says whether two jobs differ in their numbers of rows at most.
func fits(a, b *job) bool {
	if a.rows == 0 || !slices.Equal(a.wanted, b.wanted) || len(a.inputs) != len(b.inputs) {
		return false
	}
	for i := range a.inputs {
		x, y := &a.inputs[i], &b.inputs[i]
		if x.Name != y.Name || !slices.Equal(x.Value.Tensor.Shape[1:], y.Value.Tensor.Shape[1:]) {
			return false
		}
	}
	return true
}

// run runs jobs at once, or one after another when their answers cannot be told apart or one of them breaks the run.
func (h *Handler) run(ctx context.Context, group []*job) {
	if len(group) > 1 && h.runTogether(ctx, group) {
		return
	}
	for _, j := range group {
		h.runOne(ctx, j)
	}
}

func (h *Handler) runOne(ctx context.Context, j *job) {
	if j.loops {
		h.loop(ctx, j)
		return
	}
	j.outputs, j.err = h.session.Run(ctx, j.inputs, j.wanted)
	if j.err != nil && ctx.Err() == nil {
		j.err = bad("%w", j.err) // the model did not take what the client sent
	}
}

// loop gives the model one row after another, and joins what it gives.
func (h *Handler) loop(ctx context.Context, j *job) {
	var all [][]session.Value
	for row := range j.rows {
		inputs := slices.Clone(j.inputs)
		for i := range inputs {
			parts, err := inputs[i].Value.Tensor.Split(ones(j.rows))
			if err != nil {
				j.err = err
				return
			}
			inputs[i].Value = session.Of(&parts[row])
		}
		one := job{inputs: inputs, wanted: j.wanted}
		if h.runOne(ctx, &one); one.err != nil {
			j.err = one.err
			return
		}
		all = append(all, one.outputs)
	}
	for i := range all[0] {
		parts := make([]tensor.Tensor, len(all))
		for row := range all {
			t := all[row][i].Tensor
			if t == nil {
				j.err = bad("the model takes one row at a time, and its output %q cannot be joined for %d rows", h.namesOf(j)[i], j.rows)
				return
			}
			parts[row] = *t
		}
		joined, err := tensor.Concat(parts)
		if err != nil {
			j.err = bad("the model takes one row at a time: %w", err)
			return
		}
		j.outputs = append(j.outputs, session.Of(&joined))
	}
}

func ones(n int64) []int64 {
	all := make([]int64, n)
	for i := range all {
		all[i] = 1
	}
	return all
}

// runTogether joins the rows of jobs. The first time it runs each alone, too: a model whose answer for a row depends on the other rows, or that gives
// something else than a row for each, is not joined any more.
func (h *Handler) runTogether(ctx context.Context, group []*job) bool {
	all, err := h.joined(ctx, group)
	switch {
	case ctx.Err() != nil:
		return false
	case errors.Is(err, errRows):
		h.apart("it does not give a row for each row")
		return false
	case err != nil: // one of them is to blame: alone it gets the error
		return false
	}
	if !h.proven {
		for k, j := range group {
			if h.runOne(ctx, j); j.err != nil {
				return false
			}
			if !slices.EqualFunc(j.outputs, all[k], alike) {
				h.apart("a row's answer depends on the other rows of the batch")
				return false
			}
		}
		h.proven = true
		return true
	}
	for k, j := range group {
		j.outputs = all[k]
	}
	return true
}

func (h *Handler) apart(why string) {
	h.joins.Store(false)
	h.opts.Logger.Warn("requests are not joined any more: each runs alone", "model", h.model.Name, "why", why)
}

var errRows = errors.New("the output does not have a row for each of the inputs'")

func (h *Handler) joined(ctx context.Context, group []*job) ([][]session.Value, error) {
	inputs := slices.Clone(group[0].inputs)
	rows := make([]int64, len(group))
	for i := range inputs {
		parts := make([]tensor.Tensor, len(group))
		for k, j := range group {
			parts[k], rows[k] = *j.inputs[i].Value.Tensor, j.rows
		}
		t, err := tensor.Concat(parts)
		if err != nil {
			return nil, err
		}
		inputs[i].Value = session.Of(&t)
	}
	outputs, err := h.session.Run(ctx, inputs, group[0].wanted)
	if err != nil {
		return nil, err
	}
	all := make([][]session.Value, len(group))
	for i := range outputs {
		parts, ok := cut(&outputs[i], rows)
		if !ok {
			return nil, errRows
		}
		for k := range group {
			all[k] = append(all[k], parts[k])
		}
	}
	return all, nil
}

// cut gives each job its rows of an output. It fails when the output does not have one row for each.
func cut(v *session.Value, rows []int64) ([]session.Value, bool) {
	parts := make([]session.Value, len(rows))
	switch {
	case v.Tensor != nil:
		tensors, err := v.Tensor.Split(rows)
		if err != nil {
			return nil, false
		}
		for i := range tensors {
			parts[i].Tensor = &tensors[i]
		}
	case v.List != nil:
		rest := v.List
		for i, n := range rows {
			if int64(len(rest)) < n {
				return nil, false
			}
			parts[i].List, rest = rest[:n:n], rest[n:]
		}
		if len(rest) > 0 {
			return nil, false
		}
	default:
		return nil, false
	}
	return parts, true
}

// What two runs of the same rows may differ by: kernels for other sizes round otherwise, and models that quantize while they run do so by the whole batch.
const (
	absoluteSlack = 1e-3
	relativeSlack = 5e-2 // of the largest number
)

// alike says whether two values are the same but for rounding.
func alike(a, b session.Value) bool {
	switch {
	case a.Tensor != nil && b.Tensor != nil:
		return alikeTensors(a.Tensor, b.Tensor)
	case a.List != nil && b.List != nil:
		return slices.EqualFunc(a.List, b.List, alike)
	case a.Keys != nil && b.Keys != nil:
		return alikeTensors(a.Keys, b.Keys) && alikeTensors(a.Values, b.Values)
	}
	return a.IsNone() && b.IsNone()
}

func alikeTensors(a, b *tensor.Tensor) bool {
	if a.DType != b.DType || !slices.Equal(a.Shape, b.Shape) {
		return false
	}
	switch a.DType { //nolint:exhaustive // the others are exact
	case tensor.FP16, tensor.BF16, tensor.FP32, tensor.FP64:
	default:
		return slices.Equal(a.Data, b.Data)
	}
	x, errX := a.Floats()
	y, errY := b.Floats()
	if errX != nil || errY != nil || len(x) != len(y) {
		return false
	}
	largest := 0.0
	for _, f := range x {
		if g := math.Abs(float64(f)); g > largest && !math.IsInf(g, 0) {
			largest = g
		}
	}
	slack := absoluteSlack + relativeSlack*largest
	for i := range x {
		p, q := float64(x[i]), float64(y[i])
		if p != q && !(math.IsNaN(p) && math.IsNaN(q)) && !(math.Abs(p-q) <= slack) {
			return false
		}
	}
	return true
}

// Handle runs a batch. Requests whose rows fit together go through the model at once; each has its own error.
func (h *Handler) Handle(ctx context.Context, items []handlersdk.Item) ([]handlersdk.Result, error) {
	jobs := make([]*job, len(items))
	for i := range items {
		jobs[i] = h.read(&items[i])
	}
	if h.task != nil {
		h.task.gather(jobs)
	}
	h.inTurn(ctx, jobs)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	results := make([]handlersdk.Result, len(jobs))
	for i, j := range jobs {
		if j.err == nil {
			results[i], j.err = h.answer(j)
		}
		if j.err != nil {
			results[i] = handlersdk.Result{Err: j.err}
		}
	}
	return results, nil
}

// inTurn runs jobs when the batch before has run. What is read before and written afterwards goes on beside the next one.
func (h *Handler) inTurn(ctx context.Context, jobs []*job) {
	h.turn.Lock()
	defer h.turn.Unlock()
	for _, group := range h.groups(jobs) {
		if ctx.Err() != nil {
			return
		}
		h.run(ctx, group)
	}
}

// Overlaps implements handlersdk.Overlapping.
func (h *Handler) Overlaps() bool { return true }
