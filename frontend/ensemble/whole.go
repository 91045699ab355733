package ensemble

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// payload is a value of an ensemble of whole requests: the parts of the client's request, or the body of an answer.
type payload struct {
	parts []infer.Part // of the client
	body  []byte
}

// part is the value as a part of a request. TorchServe gives it no content type, so that a handler gets its bytes.
func (v *payload) part(name string) infer.Part {
	if v.parts != nil {
		return infer.Part{Name: name, Data: v.parts[0].Data}
	}
	return infer.Part{Name: name, Data: v.body}
}

// firstFailure is the lowest status that is no success.
const firstFailure = 400

// runWhole answers a request whose steps pass on bodies as they are.
func (p *plan) runWhole(ctx context.Context, models Models, item *infer.Item) (infer.Result, error) {
	given := payload{parts: item.Parts}
	if len(given.parts) == 0 {
		given.parts = []infer.Part{{Name: "body"}}
	}
	header := passedOn(item.Header)
	values, err := flow(ctx, p, map[string]payload{p.Inputs[0].Name: given}, func(ctx context.Context, i int, inputs map[string]payload) (map[string]payload, error) {
		s := &p.Steps[i]
		made := infer.Item{ID: fmt.Sprintf("%s.%d", item.ID, i+1), Header: header, Rows: 1, Priority: item.Priority}
		for _, name := range slices.Sorted(maps.Keys(inputs)) {
			value := inputs[name]
			if name == "" {
				made.Header, made.Parts = item.Header, append(made.Parts, value.parts...)
				continue
			}
			made.Parts = append(made.Parts, value.part(name))
		}
		r, err := models.Submit(ctx, refOf(s), made)
		switch {
		case err != nil:
			return nil, err //nolint:wrapcheck // failed says which step it is
		case r.Status >= firstFailure:
			return nil, &fault.Error{Kind: fault.HandlerFailed, Message: strings.TrimSpace(string(r.Body)), Code: r.Status}
		}
		outputs := map[string]payload{}
		for _, value := range s.Outputs {
			outputs[value] = payload{body: r.Body}
		}
		return outputs, nil
	})
	if err != nil {
		return infer.Result{}, err
	}
	return p.wholeAnswer(values)
}

// wholeAnswer is the body of the only output, or a JSON object of several, which have to be JSON objects themselves, as TorchServe wants them.
func (p *plan) wholeAnswer(values map[string]payload) (infer.Result, error) {
	header := []infer.Field{{Name: "content-type", Value: "application/json"}}
	if len(p.Outputs) == 1 {
		return infer.Result{Header: header, Body: values[p.Outputs[0].Name].body}, nil
	}
	all := make(map[string]json.RawMessage, len(p.Outputs))
	for _, o := range p.Outputs {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(values[o.Name].body, &object); err != nil || object == nil {
			f := fault.Newf(fault.Internal, "the answer of %s is no JSON object, and an ensemble with several last steps has to put them together into one", o.Name)
			f.Cause = err
			return infer.Result{}, f
		}
		all[o.Name] = values[o.Name].body
	}
	body, err := json.Marshal(all)
	if err != nil {
		return infer.Result{}, fault.New(fault.Internal, "the answers cannot be put together", err)
	}
	return infer.Result{Header: header, Body: body}, nil
}
