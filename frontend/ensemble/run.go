package ensemble

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/textproto"
	"slices"
	"strings"

	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/pipeline"
)

// run answers one request.
func (p *plan) run(ctx context.Context, models Models, item *infer.Item) (infer.Result, error) {
	if p.Whole {
		return p.runWhole(ctx, models, item)
	}
	request, err := p.request(item)
	if err != nil {
		return infer.Result{}, err
	}
	given := make(map[string]oip.Tensor, len(request.Inputs))
	for i := range request.Inputs {
		given[request.Inputs[i].Name] = request.Inputs[i]
	}
	header := passedOn(item.Header)
	values, err := flow(ctx, p, given, func(ctx context.Context, i int, inputs map[string]oip.Tensor) (map[string]oip.Tensor, error) {
		return p.infer(ctx, models, i, Call{ID: fmt.Sprintf("%s.%d", item.ID, i+1), Header: header, Request: p.ask(i, request, inputs)})
	})
	if err != nil {
		return infer.Result{}, err
	}
	return p.answer(request, values)
}

// flow runs the steps of a plan: each as soon as the values are there that it takes, and beside the others. The first failure ends it. It gives the values
// of the ensemble's outputs.
func flow[V any](ctx context.Context, p *plan, given map[string]V, step func(ctx context.Context, i int, inputs map[string]V) (map[string]V, error)) (map[string]V, error) {
	type finished struct {
		at      int
		outputs map[string]V
		err     error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f := newFlowing(p, given)
	ended := make(chan finished, len(p.Steps)) // nobody waits to tell, should a bug end this early
	running := 0
	start := func(ready []int) {
		for _, i := range ready {
			inputs := f.take(i)
			running++
			go func() {
				outputs, err := attempts(ctx, &p.Steps[i], func(ctx context.Context) (outputs map[string]V, err error) {
					defer recoverTo(&err)
					return step(ctx, i, inputs)
				})
				ended <- finished{i, outputs, err}
			}()
		}
	}
	start(f.given())
	var failure error
	for running > 0 {
		done := <-ended
		running--
		switch {
		case failure != nil: // what ends now is of no use
		case done.err != nil:
			failure = p.failed(ctx, done.at, done.err)
			cancel()
		default:
			start(f.put(done.outputs))
		}
	}
	return f.values, failure
}

// recoverTo makes an error of a panic, so that one bug costs one request. What it was is for the log.
func recoverTo(err *error) {
	if what := recover(); what != nil {
		*err = fault.Panicked(what, "an ensemble was run")
	}
}

// flowing are the values of one request.
type flowing[V any] struct {
	plan   *plan
	values map[string]V
	lacks  []int          // by step: how many values are not there yet
	uses   map[string]int // how often a value is still taken; an output of the ensemble once more
}

func newFlowing[V any](p *plan, given map[string]V) *flowing[V] {
	f := &flowing[V]{plan: p, values: given, lacks: make([]int, len(p.Steps)), uses: map[string]int{}}
	for value, takers := range p.takers {
		f.uses[value] += len(takers)
		for _, i := range takers {
			f.lacks[i]++
		}
	}
	for _, o := range p.Outputs {
		f.uses[o.Name]++
	}
	return f
}

// given says which steps can begin.
func (f *flowing[V]) given() []int { return f.arrived(slices.Sorted(maps.Keys(f.values))) }

// put notes what a step has given, and says which steps can begin now.
func (f *flowing[V]) put(outputs map[string]V) []int {
	maps.Copy(f.values, outputs)
	return f.arrived(slices.Sorted(maps.Keys(outputs)))
}

func (f *flowing[V]) arrived(values []string) []int {
	var ready []int
	for _, value := range values {
		for _, i := range f.plan.takers[value] {
			if f.lacks[i]--; f.lacks[i] == 0 {
				ready = append(ready, i)
			}
		}
	}
	return ready
}

// take gives the inputs of a step by the names of its model. A value that nobody takes any more is forgotten, so that its memory can go.
func (f *flowing[V]) take(i int) map[string]V {
	inputs := make(map[string]V, len(f.plan.Steps[i].Inputs))
	taken := map[string]bool{}
	for name, value := range f.plan.Steps[i].Inputs {
		inputs[name] = f.values[value]
		taken[value] = true
	}
	for value := range taken {
		if f.uses[value]--; f.uses[value] == 0 {
			delete(f.values, value)
		}
	}
	return inputs
}

// attempts runs a step, again after an error if the step says so, and within its own time.
func attempts[V any](ctx context.Context, s *pipeline.Step, run func(ctx context.Context) (V, error)) (V, error) {
	for left := s.Retries; ; left-- {
		outputs, err := within(ctx, s, run)
		if err == nil || left <= 0 || ctx.Err() != nil || fault.Refused(err) || fault.Is(err, fault.BadRequest) {
			return outputs, err
		}
	}
}

func within[V any](ctx context.Context, s *pipeline.Step, run func(ctx context.Context) (V, error)) (V, error) {
	if s.Timeout <= 0 {
		return run(ctx)
	}
	late := fault.Newf(fault.ResponseTimeout, "it was not answered within its timeout of %s", s.Timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, s.Timeout, late)
	defer cancel()
	outputs, err := run(ctx)
	if err != nil && errors.Is(context.Cause(ctx), late) {
		err = late
	}
	return outputs, err
}

// failed words the failure of a step for whoever has asked the ensemble.
func (p *plan) failed(ctx context.Context, i int, err error) error {
	if ctx.Err() != nil { // the request itself has ended
		return context.Cause(ctx)
	}
	s := &p.Steps[i]
	f := &fault.Error{Kind: fault.KindOf(err), Cause: err}
	hint, code := "", 0
	if inner, ok := errors.AsType[*fault.Error](err); ok {
		hint, code, f.Detail = inner.Hint, inner.Code, inner.Detail
	}
	f.Message, f.Hint, f.Code = fmt.Sprintf("in ensemble '%s', step %d (model '%s'): %s", p.name, i+1, refOf(s), fault.Message(err)), hint, code
	if p.Whole {
		f.Message = "Error executing " + s.Title()
		f.Kind, f.Hint, f.Code = fault.Internal, fault.Message(err), 0
		return f
	}
	switch f.Kind { //nolint:exhaustive // the others say the same of the ensemble
	case fault.ModelNotFound, fault.VersionNotFound, fault.NoWorker, fault.NoReadyWorker, fault.Overloaded, fault.ConcurrencyLimit, fault.ClientShare, fault.ServerBytes,
		fault.Draining:
		// Of these kinds the ensemble itself would be the one that is not there or busy.
		f.Kind = fault.HandlerFailed
		f.Code = fault.HTTPStatus(fault.New(fault.NoWorker, "", nil))
		if fault.Is(err, fault.ModelNotFound, fault.VersionNotFound) {
			f.Hint = "the ensemble needs this model: register it again"
		}
	}
	return f
}

// ask makes the request for a step. The tensors are handed over as they are.
func (p *plan) ask(i int, request *oip.Request, inputs map[string]oip.Tensor) *oip.Request {
	r := &oip.Request{ID: request.ID}
	for name, value := range request.Params {
		switch name {
		case "binary_data_output", oip.ParamEmptyFinal:
		default:
			if r.Params == nil {
				r.Params = oip.Parameters{}
			}
			r.Params[name] = value
		}
	}
	for _, name := range slices.Sorted(maps.Keys(inputs)) {
		t := oip.Tensor{Tensor: inputs[name].Tensor, JSON: inputs[name].JSON}
		t.Name = name
		r.Inputs = append(r.Inputs, t)
	}
	if p.wanted[i] {
		for _, name := range slices.Sorted(maps.Keys(p.Steps[i].Outputs)) {
			r.Outputs = append(r.Outputs, oip.Requested{Name: name})
		}
	}
	return r
}

// infer runs a step, and gives its outputs by the ensemble's names.
func (p *plan) infer(ctx context.Context, models Models, i int, call Call) (map[string]oip.Tensor, error) {
	s := &p.Steps[i]
	response, err := models.Infer(ctx, refOf(s), call)
	if err != nil {
		return nil, err //nolint:wrapcheck // failed says which step it is
	}
	outputs := make(map[string]oip.Tensor, len(s.Outputs))
	for name, value := range s.Outputs {
		at := -1
		if response != nil {
			at = slices.IndexFunc(response.Outputs, func(t oip.Tensor) bool { return t.Name == name })
		}
		if at < 0 {
			return nil, fault.Newf(fault.HandlerFailed, "its answer has no output '%s'%s", name, has(response))
		}
		t := oip.Tensor{Tensor: response.Outputs[at].Tensor, JSON: response.Outputs[at].JSON}
		t.Name = value
		if err := t.Resolve(); err != nil {
			return nil, fault.Newf(fault.HandlerFailed, "its output '%s' cannot be read: %s", name, fault.Message(err))
		}
		outputs[value] = t
	}
	return outputs, nil
}

func has(r *oip.Response) string {
	if r == nil || len(r.Outputs) == 0 {
		return ", and no other one"
	}
	all := make([]string, len(r.Outputs))
	for i := range r.Outputs {
		all[i] = "'" + r.Outputs[i].Name + "'"
	}
	return "; it has " + strings.Join(all, ", ")
}

// passedOn are the header fields of a client that the models of the steps see, too: not those about the body.
func passedOn(header []infer.Field) []infer.Field {
	fields := make([]infer.Field, 0, len(header))
	for _, f := range header {
		switch textproto.CanonicalMIMEHeaderKey(f.Name) {
		case "Content-Length", "Content-Encoding", "Content-Type", "Transfer-Encoding", oip.HeaderLength, "Accept-Encoding", "Accept":
		default:
			fields = append(fields, f)
		}
	}
	return fields
}
