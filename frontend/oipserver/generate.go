package oipserver

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// Generation is a call of generate or generate_stream: a flat JSON object whose members are the model's inputs, and parameters.
type Generation struct {
	ID     string
	Peer   string // the client's address, "" when it is not known
	Header []infer.Field
	Body   []byte
	// Emit takes a piece of the answer, a JSON object, or the failure that ends it. It must not block.
	Emit func(text []byte, err error)
}

// Generate runs one. The last object of the answer is returned; nil when there is none after the pieces.
func (s *Server) Generate(ctx context.Context, ref infer.ModelRef, g *Generation) ([]byte, error) {
	d, err := s.opts.Models.Describe(ref)
	if err != nil {
		return nil, err //nolint:wrapcheck // the model store's words are the client's
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(g.Body, &members); err != nil || members == nil {
		return nil, fault.New(fault.BadRequest, `the body has to be a JSON object such as {"text_input": "…"}`, err)
	}
	call := &Call{ID: g.ID, Peer: g.Peer, Header: g.Header, Emit: func(r *oip.Response, err error) {
		var text []byte
		if err == nil {
			text, err = flat(r)
		}
		g.Emit(text, err)
	}}
	var id string
	if raw, ok := members["id"]; ok && !hasInput(&d, "id") && json.Unmarshal(raw, &id) == nil {
		delete(members, "id")
	}
	if d.Ports != nil && len(d.Ports.Inputs) > 0 {
		if call.Request, err = generation(&d, id, members); err != nil {
			return nil, err
		}
		answer, err := s.Infer(ctx, ref, call, false)
		if err != nil || answer.Response == nil {
			return nil, err
		}
		return flat(answer.Response)
	}
	return s.generatePlain(ctx, ref, &d, call, &oip.Request{ID: id}, g.Body)
}

// generatePlain hands the object itself to a model that does not tell of its inputs.
func (s *Server) generatePlain(ctx context.Context, ref infer.ModelRef, d *rollout.Description, call *Call, r *oip.Request, body []byte) ([]byte, error) {
	call.Request = r
	item := infer.Item{
		ID: call.ID, Header: s.header(call, "", len(body), "application/json"),
		Parts: []infer.Part{{Name: "body", ContentType: "application/json", Data: body}},
	}
	defer s.Trace(ref, call)()
	res, emitted, err := s.submit(ctx, ref, item, d, call)
	switch {
	case err != nil || emitted && len(res.Body) == 0:
		return nil, err
	case res.Status >= firstFailure:
		return nil, &fault.Error{Kind: fault.HandlerFailed, Message: strings.TrimSpace(string(res.Body)), Code: res.Status}
	}
	answer, err := s.respond(d, r, &res, true)
	if err != nil {
		return nil, err
	}
	return flat(answer)
}

func hasInput(d *rollout.Description, name string) bool {
	return d.Ports != nil && slices.ContainsFunc(d.Ports.Inputs, func(p backend.Port) bool { return p.Name == name })
}

// generation makes a request of the members of an object: those that are named like inputs, and the others, which are parameters.
func generation(d *rollout.Description, id string, members map[string]json.RawMessage) (*oip.Request, error) {
	r := &oip.Request{ID: id}
	for i := range d.Ports.Inputs {
		p := &d.Ports.Inputs[i]
		text, ok := members[p.Name]
		if !ok {
			continue // the check says which one is missing
		}
		delete(members, p.Name)
		dtype, err := tensor.ParseDType(p.DataType)
		if err != nil {
			return nil, fault.Newf(fault.BadRequest, "input '%s': %v", p.Name, err)
		}
		t, err := tensor.ParseJSON(p.Name, dtype, nil, text)
		if err != nil {
			return nil, fault.New(fault.BadRequest, err.Error(), nil)
		}
		for len(t.Shape) < len(p.Shape) {
			t.Shape = slices.Insert(slices.Clone(t.Shape), 0, 1)
		}
		r.Inputs = append(r.Inputs, oip.Tensor{Tensor: t})
	}
	var err error
	r.Params, err = oip.DecodeParameters(members)
	return r, err //nolint:wrapcheck // its faults are the client's
}

// flat writes a response as one object: an output of one element is a value, another one a list.
func flat(r *oip.Response) ([]byte, error) {
	text := []byte{'{'}
	member := func(name string, value []byte) error {
		if len(text) > 1 {
			text = append(text, ',')
		}
		key, err := json.Marshal(name)
		text = append(append(append(text, key...), ':'), value...)
		return err
	}
	for _, f := range []infer.Field{{Name: "id", Value: r.ID}, {Name: "model_name", Value: r.Model}, {Name: "model_version", Value: r.Version}} {
		if f.Value == "" {
			continue
		}
		value, err := json.Marshal(f.Value)
		if err != nil {
			return nil, err
		}
		if err := member(f.Name, value); err != nil {
			return nil, err
		}
	}
	for i := range r.Outputs {
		t := &r.Outputs[i]
		if err := t.Resolve(); err != nil {
			return nil, err
		}
		value, err := t.AppendJSON(nil)
		if err != nil {
			return nil, fault.New(fault.HandlerFailed, err.Error(), nil)
		}
		if n, err := tensor.Count(t.Shape); err == nil && n == 1 {
			value = value[1 : len(value)-1] // without the brackets of the list
		}
		if err := member(t.Name, value); err != nil {
			return nil, err
		}
	}
	return append(text, '}'), nil
}
