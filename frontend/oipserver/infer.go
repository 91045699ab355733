package oipserver

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// featureBinary is what a backend announces that takes and gives bodies with raw tensors.
const featureBinary = "oip_binary"

// featureOptional is what a backend announces of whose inputs some may be left out, or that takes others than it describes: it compares them by itself.
const featureOptional = "oip_optional"

// Call is one inference.
type Call struct {
	ID      string        // of the request in the logs
	Peer    string        // the client's address, "" when it is not known
	Header  []infer.Field // that the client sent
	Request *oip.Request
	Came    time.Time // when the first of it was read; zero: not known
	Front   string    // what reading it is called in a trace
	// Body is what Request was read from, and HeaderLength the value of that header; a backend that takes it as it is gets it. Nil: it is made.
	Body         []byte
	HeaderLength string
	// Emit takes the pieces of an answer that has several, in order, from one goroutine at a time. It must not block. Nil: they are dropped.
	Emit func(*oip.Response, error)
}

// Answer is an answer of a backend.
type Answer struct {
	// Response is nil when the backend's body can go out as it is.
	Response *oip.Response
	Body     infer.Result
}

// Takes says whether a version's backend takes a protocol body as it comes, and whether there is such a version.
func (s *Server) Takes(ref infer.ModelRef) (bool, error) {
	d, err := s.opts.Models.Describe(ref)
	return d.Features[featureBinary], err //nolint:wrapcheck // the model store's words are the client's
}

// RawRequest makes a request for a version of a body that is the raw data of the model's only input.
func (s *Server) RawRequest(ref infer.ModelRef, body []byte) (*oip.Request, error) {
	d, err := s.opts.Models.Describe(ref)
	switch {
	case err != nil:
		return nil, err //nolint:wrapcheck // the model store's words are the client's
	case d.Ports == nil || len(d.Ports.Inputs) != 1:
		return nil, fault.Newf(fault.BadRequest, "a raw binary request needs a model with exactly one input that it tells of, and '%s' is none; send JSON", ref.Name)
	}
	p := &d.Ports.Inputs[0]
	return oip.RawRequest(body, p.Name, p.DataType, p.Shape, d.Ports.MaxBatch > 0) //nolint:wrapcheck // its faults are the client's
}

// Infer runs an inference. With whole the answer may be the backend's own body.
func (s *Server) Infer(ctx context.Context, ref infer.ModelRef, call *Call, whole bool) (Answer, error) {
	d, err := s.opts.Models.Describe(ref)
	if err != nil {
		return Answer{}, err //nolint:wrapcheck // the model store's words are the client's
	}
	if err := check(&d, call.Request); err != nil {
		return Answer{}, err
	}
	if call.Request.UsesShared() {
		call.Body = nil // what it was read from has not all of it
	}
	give, err := s.readShared(call.Request, s.opts.MaxSharedBytes)
	if err != nil {
		return Answer{}, err
	}
	defer give()
	item, err := s.item(&d, call)
	if err != nil {
		return Answer{}, err
	}
	ctx, cancel := limit(ctx, call.Request)
	defer cancel()
	defer s.Trace(ref, call)()
	res, emitted, err := s.submit(ctx, ref, item, &d, call)
	switch {
	case err != nil:
		return Answer{}, err
	case emitted && len(res.Body) == 0:
		return Answer{}, nil
	case res.Status >= firstFailure:
		return Answer{}, &fault.Error{Kind: fault.HandlerFailed, Message: strings.TrimSpace(string(res.Body)), Code: res.Status}
	case whole && !emitted && d.Features[featureBinary] && len(call.Request.Outputs) == 0 && len(call.Body) > 0:
		return Answer{Body: res}, nil
	}
	r, err := s.respond(&d, call.Request, &res, call.Emit != nil)
	return Answer{Response: r}, err
}

// firstFailure is the lowest status that is no success.
const firstFailure = 400

// submit sends an item and passes its pieces on. emitted says whether there were any.
func (s *Server) submit(ctx context.Context, ref infer.ModelRef, item infer.Item, d *rollout.Description, call *Call) (res infer.Result, emitted bool, err error) {
	if call.Emit == nil {
		res, err = s.opts.Predictor.Submit(ctx, ref, item)
		return res, false, err //nolint:wrapcheck // the dispatcher's faults are the client's
	}
	var mu sync.Mutex
	closed := false
	item.Emit = func(piece infer.Result) {
		mu.Lock()
		defer mu.Unlock()
		if closed {
			return
		}
		emitted = true
		if piece.Err != nil {
			call.Emit(nil, piece.Err)
			return
		}
		call.Emit(s.piece(d, call.Request, &piece))
	}
	res, err = s.opts.Predictor.Submit(ctx, ref, item)
	mu.Lock()
	closed = true
	mu.Unlock()
	return res, emitted, err //nolint:wrapcheck // the same
}

// piece makes a response of one of several. It runs in the goroutine of a worker, which a bug must not end.
func (s *Server) piece(d *rollout.Description, req *oip.Request, piece *infer.Result) (r *oip.Response, err error) {
	defer func() {
		if what := recover(); what != nil {
			r, err = nil, fault.Panicked(what, "a piece of an answer was made")
		}
	}()
	return s.respond(d, req, piece, true)
}

// check compares a request with what the model says of itself. Shapes are the backend's matter.
func check(d *rollout.Description, r *oip.Request) error {
	if d.Ports == nil || len(d.Ports.Inputs) == 0 {
		return nil
	}
	for i := range r.Inputs {
		in := &r.Inputs[i]
		at := slices.IndexFunc(d.Ports.Inputs, func(p backend.Port) bool { return p.Name == in.Name })
		switch {
		case at < 0 && d.Features[featureOptional]:
		case at < 0:
			return fault.Newf(fault.BadRequest, "unexpected inference input '%s' for model '%s'; it has %s", in.Name, d.Ref.Name, names(d.Ports.Inputs))
		case d.Ports.Inputs[at].DataType != string(in.DType) && d.Ports.Inputs[at].DataType != "":
			return fault.Newf(fault.BadRequest, "inference input '%s' data-type is '%s', but model '%s' expects '%s'", in.Name, in.DType, d.Ref.Name,
				d.Ports.Inputs[at].DataType)
		}
	}
	if len(r.Inputs) != len(d.Ports.Inputs) && !d.Features[featureOptional] {
		return fault.Newf(fault.BadRequest, "expected %d inputs but got %d inputs for model '%s'; it has %s", len(d.Ports.Inputs), len(r.Inputs), d.Ref.Name,
			names(d.Ports.Inputs))
	}
	for _, o := range r.Outputs {
		if len(d.Ports.Outputs) > 0 && !slices.ContainsFunc(d.Ports.Outputs, func(p backend.Port) bool { return p.Name == o.Name }) {
			return fault.Newf(fault.BadRequest, "unexpected inference output '%s' for model '%s'; it has %s", o.Name, d.Ref.Name, names(d.Ports.Outputs))
		}
	}
	return nil
}

func names(ports []backend.Port) string {
	all := make([]string, len(ports))
	for i, p := range ports {
		all[i] = "'" + p.Name + "'"
	}
	return strings.Join(all, ", ")
}

// item makes the request of a call for the version's backend.
func (s *Server) item(d *rollout.Description, call *Call) (infer.Item, error) {
	r := call.Request
	item := infer.Item{ID: call.ID, Peer: call.Peer, Rows: 1, Priority: priority(r.Params)}
	if d.Ports != nil && d.Ports.MaxBatch > 0 {
		item.Rows = r.Rows()
	}
	body, header, kind := call.Body, call.HeaderLength, "application/octet-stream"
	switch {
	case !d.Features[featureBinary] && body != nil && header == "":
		kind = "application/json" // as it was sent
	case !d.Features[featureBinary]:
		var err error
		if body, err = r.EncodeJSON(d.Ref.Name); err != nil {
			return item, err //nolint:wrapcheck // its faults are the client's
		}
		header, kind = "", "application/json"
	case body == nil || r.WantsClasses():
		made, n, err := r.EncodeBinary()
		if err != nil {
			return item, err //nolint:wrapcheck // the same
		}
		body, header = made, strconv.Itoa(n)
	case header == "":
		kind = "application/json"
	}
	item.Header = s.header(call, header, len(body), kind)
	item.Parts = []infer.Part{{Name: "body", ContentType: kind, Data: body}}
	return item, nil
}

// header is what the backend sees of the client's header: what is about the body is that of the body that it gets.
func (s *Server) header(call *Call, headerLength string, length int, kind string) []infer.Field {
	fields := make([]infer.Field, 0, len(call.Header)+6) //nolint:mnd // those below
	for _, f := range call.Header {
		switch strings.ToLower(f.Name) {
		case "content-length", "content-encoding", "content-type", "transfer-encoding", "inference-header-content-length", "accept-encoding", "accept":
		default:
			fields = append(fields, f)
		}
	}
	fields = append(fields, infer.Field{Name: "content-type", Value: kind}, infer.Field{Name: "content-length", Value: strconv.Itoa(length)})
	if headerLength != "" {
		fields = append(fields, infer.Field{Name: "inference-header-content-length", Value: headerLength})
	}
	p := call.Request.Params
	if id := sequence(p); id != "" {
		fields = append(fields, infer.Field{Name: s.opts.Sequence.ID, Value: id})
		for name, param := range map[string]string{s.opts.Sequence.Start: oip.ParamSequenceStart, s.opts.Sequence.End: oip.ParamSequenceEnd} {
			if yes, _ := p.Bool(param); yes {
				fields = append(fields, infer.Field{Name: name, Value: "true"})
			}
		}
	}
	return fields
}

// sequence gives the sequence that a request belongs to: a text, or a number that is not 0.
func sequence(p oip.Parameters) string {
	switch v := p[oip.ParamSequence].(type) {
	case string:
		return v
	case int64:
		if v != 0 {
			return strconv.FormatInt(v, 10)
		}
	case uint64:
		return strconv.FormatUint(v, 10)
	}
	return ""
}

// limit bounds a request by its own timeout.
func limit(ctx context.Context, r *oip.Request) (context.Context, context.CancelFunc) {
	us, ok := r.Params.Int(oip.ParamTimeout)
	if !ok || us <= 0 || us > int64(time.Hour/time.Microsecond) {
		return ctx, func() {}
	}
	d := time.Duration(us) * time.Microsecond
	late := fault.Newf(fault.ClientTimeout, "the request was not answered within its timeout of %s", d)
	late.Numbers = []fault.Number{fault.Millis("timeout_ms", d)}
	return context.WithTimeoutCause(ctx, d, late)
}

// respond makes a response of what the backend gave. Loose takes anything: what is no response becomes one output of text.
func (s *Server) respond(d *rollout.Description, req *oip.Request, res *infer.Result, loose bool) (*oip.Response, error) {
	header := ""
	for _, f := range res.Header {
		if strings.EqualFold(f.Name, oip.HeaderLength) {
			header = f.Value
		}
	}
	r, err := oip.DecodeResponse(res.Body, header)
	if err != nil && loose && header == "" {
		r, err = oip.TextResponse(res.Body), nil
	}
	if err != nil {
		return nil, err //nolint:wrapcheck // its faults are the client's
	}
	r.ID = req.ID
	if r.Model == "" {
		r.Model = d.Ref.Name
	}
	if r.Version == "" {
		r.Version = d.Ref.Version
	}
	var labels map[string][]string
	if d.Ports != nil {
		labels = d.Ports.Labels
	}
	if err := r.Select(req.Outputs, labels, func(output *oip.Tensor) bool { return hasRows(d, output) }); err != nil {
		return nil, err //nolint:wrapcheck // its faults are the client's
	}
	return r, s.writeShared(req.Outputs, r)
}

// hasRows says whether the first dimension of an output is that of the rows. For a model that says nothing it is, when there is another one.
func hasRows(d *rollout.Description, output *oip.Tensor) bool {
	if d.Ports == nil {
		return len(output.Shape) > 1
	}
	return d.Ports.MaxBatch > 0
}

// priority is the class that a request asks for; 0 for the model's default one.
func priority(p oip.Parameters) int {
	n, ok := p.Int(oip.ParamPriority)
	if !ok || n < 0 {
		return 0
	}
	return int(min(n, math.MaxInt32))
}
