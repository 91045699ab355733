package ensemble

import (
	"bytes"
	"encoding/json"
	"net/textproto"
	"slices"
	"strconv"

	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/pipeline"
)

// request reads the request of a client: a body of the Open Inference Protocol or, for an ensemble with one input of BYTES, that input's only element.
func (p *plan) request(item *infer.Item) (*oip.Request, error) {
	body, length := bodyOf(item)
	var request *oip.Request
	var err error
	switch {
	case length != "" || looksLikeProtocol(body):
		request, err = oip.DecodeRequest(body, length)
	case len(p.Inputs) == 1 && p.Inputs[0].DataType == string(tensor.Bytes):
		request, err = element(&p.Inputs[0].Name, p.Inputs[0].Shape, body)
	default:
		f := fault.Newf(fault.BadRequest, "the ensemble '%s' takes requests of the Open Inference Protocol: {\"inputs\": [{\"name\", \"shape\", \"datatype\", \"data\"}, …]}", p.name)
		f.Hint = "Its inputs are " + p.inputNames() + "."
		return nil, f
	}
	if err != nil {
		return nil, err //nolint:wrapcheck // its faults are the client's
	}
	return request, p.checkInputs(request)
}

// bodyOf gives a request's body, and the length of its JSON if the body says so.
func bodyOf(item *infer.Item) (body []byte, length string) {
	at := slices.IndexFunc(item.Parts, func(part infer.Part) bool { return part.Name == "body" || part.Name == "data" })
	switch {
	case at >= 0:
		body = item.Parts[at].Data
	case len(item.Parts) == 1:
		body = item.Parts[0].Data
	}
	for _, f := range item.Header {
		if textproto.CanonicalMIMEHeaderKey(f.Name) == oip.HeaderLength {
			length = f.Value
		}
	}
	return body, length
}

// looksLikeProtocol says whether a body is JSON with inputs.
func looksLikeProtocol(body []byte) bool {
	text := bytes.TrimLeft(body, " \t\r\n")
	if len(text) == 0 || text[0] != '{' {
		return false
	}
	var request struct {
		Inputs []json.RawMessage `json:"inputs"`
	}
	return json.Unmarshal(text, &request) == nil && len(request.Inputs) > 0
}

// element makes a request of a body that is the only element of the only input.
func element(name *string, shape []int64, body []byte) (*oip.Request, error) {
	if slices.ContainsFunc(shape, func(d int64) bool { return d > 1 }) {
		return nil, fault.Newf(fault.BadRequest, "the input '%s' has the shape %v, and a body that is no request of the Open Inference Protocol is one element", *name, shape)
	}
	ones := slices.Repeat([]int64{1}, max(len(shape), 1))
	t := tensor.Tensor{Name: *name, DType: tensor.Bytes, Shape: ones, Data: tensor.AppendElement(make([]byte, 0, len(body)+4), body)} //nolint:mnd // the length
	return &oip.Request{Inputs: []oip.Tensor{{Tensor: t}}}, nil
}

func (p *plan) inputNames() string { return names(described(p.Inputs)) }

// checkInputs compares a request with what the ensemble takes, and reads tensors that came as JSON, once for all steps.
func (p *plan) checkInputs(r *oip.Request) error {
	rows := int64(0)
	for i := range r.Inputs {
		in := &r.Inputs[i]
		at := slices.IndexFunc(p.Inputs, func(port pipeline.Port) bool { return port.Name == in.Name })
		if at < 0 {
			return fault.Newf(fault.BadRequest, "unexpected inference input '%s' for model '%s'; it has %s", in.Name, p.name, p.inputNames())
		}
		port := &p.Inputs[at]
		if port.DataType != "" && port.DataType != string(in.DType) {
			return fault.Newf(fault.BadRequest, "inference input '%s' data-type is '%s', but model '%s' expects '%s'", in.Name, in.DType, p.name, port.DataType)
		}
		if !fits(port.Shape, in.Shape) {
			return fault.Newf(fault.BadRequest, "unexpected shape for input '%s' for model '%s'. Expected %v, got %v", in.Name, p.name, port.Shape, in.Shape)
		}
		if err := in.Resolve(); err != nil {
			return err //nolint:wrapcheck // its faults are the client's
		}
		if p.most > 0 && len(in.Shape) > 0 {
			switch n := in.Shape[0]; {
			case n > int64(p.most):
				return fault.Newf(fault.BadRequest, "inference request batch-size must be <= %d for '%s'", p.most, p.name)
			case i > 0 && n != rows:
				return fault.Newf(fault.BadRequest, "input '%s' batch size does not match other inputs for '%s'", in.Name, p.name)
			default:
				rows = n
			}
		}
	}
	if len(r.Inputs) != len(p.Inputs) {
		return fault.Newf(fault.BadRequest, "expected %d inputs but got %d inputs for model '%s'; it has %s", len(p.Inputs), len(r.Inputs), p.name, p.inputNames())
	}
	return nil
}

// answer makes the answer of the values of the ensemble's outputs.
func (p *plan) answer(request *oip.Request, values map[string]oip.Tensor) (infer.Result, error) {
	r := &oip.Response{Model: p.name, Version: p.version, ID: request.ID}
	for _, o := range p.Outputs {
		t := values[o.Name]
		if !fits(o.Shape, t.Shape) || o.DataType != "" && o.DataType != string(t.DType) {
			return infer.Result{}, fault.Newf(fault.HandlerFailed, "in ensemble '%s', the output '%s' is %s %v, and is to be %s %v", p.name, o.Name, t.DType, t.Shape, o.DataType, o.Shape)
		}
		r.Outputs = append(r.Outputs, t)
	}
	if err := r.Select(request.Outputs, p.labels, func(*oip.Tensor) bool { return p.MaxBatch > 0 }); err != nil {
		return infer.Result{}, err //nolint:wrapcheck // its faults are the client's
	}
	body, length, err := r.Encode(request.IsBinary)
	if err != nil {
		return infer.Result{}, err //nolint:wrapcheck // the same
	}
	kind := "application/json"
	var header []infer.Field
	if length >= 0 {
		kind = "application/octet-stream"
		header = append(header, infer.Field{Name: oip.HeaderLength, Value: strconv.Itoa(length)})
	}
	return infer.Result{Header: append(header, infer.Field{Name: "content-type", Value: kind}), Body: body}, nil
}
