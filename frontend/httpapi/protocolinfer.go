package httpapi

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/frontend/oipserver"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// infer serves POST …/infer. A request that needs nothing of what the protocol has and TorchServe has not goes to a backend that does not speak the
// protocol itself as TorchServe lets it pass: body and answer as they are.
func (a *API) infer(q *request, ref infer.ModelRef) (answer, error) {
	if err := a.inflate(q); err != nil {
		return answer{}, err
	}
	binary, err := a.opts.Protocol.Takes(ref)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the model store's words are the client's
	}
	header := q.head.Get(oip.HeaderLength)
	call := &oipserver.Call{ID: q.id, Peer: q.peer(), Header: q.head.Fields, Body: q.body, HeaderLength: header, Came: q.start, Front: traced}
	switch _, _, raw, splitErr := oip.Split(q.body, header); {
	case splitErr != nil:
		err = splitErr
	case raw:
		call.Body, call.HeaderLength = nil, ""
		call.Request, err = a.opts.Protocol.RawRequest(ref, q.body)
	default:
		call.Request, err = oip.DecodeRequest(q.body, header)
	}
	if !binary && header == "" && (err != nil || isPlain(call.Request)) {
		defer a.opts.Protocol.Trace(ref, call)()
		return a.asTorchServe(q, ref, err == nil || oip.IsParameter(err)) // what the handler makes of a parameter is its own matter
	}
	if err != nil {
		return answer{}, err //nolint:wrapcheck // its faults are the client's
	}
	res, err := a.opts.Protocol.Infer(q.waiting(), ref, call, true)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the same
	}
	if res.Response == nil {
		ans, err := handlerAnswer(res.Body)
		if err != nil {
			return answer{}, err
		}
		return a.deflate(q, ans)
	}
	body, n, err := res.Response.Encode(call.Request.IsBinary)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the same
	}
	ans := jsonAnswer(body)
	if n >= 0 {
		ans.kind = "application/octet-stream"
		ans.fields = []infer.Field{{Name: oip.HeaderLength, Value: strconv.Itoa(n)}}
	}
	return a.deflate(q, ans)
}

// traced is what reading a request is called in a trace.
const traced = "HTTP_RECV"

// isPlain says whether a request needs nothing that TorchServe has not.
func isPlain(r *oip.Request) bool {
	timeout, _ := r.Params.Int(oip.ParamTimeout)
	return !r.WantsBinary() && !r.WantsClasses() && !r.UsesShared() && r.Params[oip.ParamSequence] == nil && r.Params[oip.ParamPriority] == nil && timeout == 0
}

// asTorchServe passes a request on as TorchServe does. One of the protocol is JSON, whether its client says so or not.
func (a *API) asTorchServe(q *request, ref infer.ModelRef, isProtocol bool) (answer, error) {
	if isProtocol && q.head.Get("Content-Type") == "" {
		q.head.Fields = append(q.head.Fields, infer.Field{Name: "Content-Type", Value: jsonType})
	}
	ans, err := a.predict(q, target{name: ref.Name, named: true, version: ref.Version, versioned: ref.Version != ""}, options{explain: explains(false)})
	if err != nil || ans.sent {
		return ans, err
	}
	return a.deflate(q, ans)
}

// inflate unpacks a body that is compressed, up to the size that an uncompressed one may have.
func (a *API) inflate(q *request) error {
	var r io.Reader
	var err error
	kind := strings.ToLower(strings.TrimSpace(q.head.Get("Content-Encoding")))
	switch kind {
	case "", "identity":
		return nil
	case "gzip":
		r, err = gzip.NewReader(bytes.NewReader(q.body))
	case "deflate":
		r, err = zlib.NewReader(bytes.NewReader(q.body))
	default:
		f := fault.Newf(fault.BadRequest, "the Content-Encoding %.40q is not known; gzip and deflate are", kind)
		f.Code = statusUnsupported
		return f
	}
	if err != nil {
		return damaged(kind, err)
	}
	var b bytes.Buffer
	const step = 1 << 20
	for {
		n, err := io.CopyN(&b, r, step)
		if held := a.hold(q, n); held != nil {
			return held
		}
		switch {
		case int64(b.Len()) > a.opts.MaxRequestSize:
			return a.tooLarge(unpackedBody)
		case errors.Is(err, io.EOF):
			q.body = b.Bytes()
			return nil
		case err != nil:
			return damaged(kind, err)
		}
	}
}

// damaged says why a compressed body cannot be unpacked.
func damaged(kind string, err error) error {
	why := "it is damaged"
	switch {
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, zlib.ErrHeader):
		why = "it is not in the format " + kind + " that its Content-Encoding names"
		if kind == "deflate" {
			why += " (RFC 1950, zlib)"
		}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		why = "it ends too early"
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, zlib.ErrChecksum):
		why = "it is damaged: its checksum is another one"
	}
	return fault.New(fault.BadRequest, "the compressed body cannot be unpacked: "+why, err)
}

// leastPacked is the size from which on packing an answer is worth it.
const leastPacked = 1 << 10

// deflate packs an answer if its client takes that.
func (a *API) deflate(q *request, ans answer) (answer, error) {
	kind := acceptedEncoding(q.head.Get("Accept-Encoding"))
	if kind == "" || len(ans.body) < leastPacked {
		return ans, nil
	}
	var b bytes.Buffer
	var w io.WriteCloser
	var err error
	if kind == "gzip" {
		w, err = gzip.NewWriterLevel(&b, gzip.BestSpeed)
	} else {
		w, err = zlib.NewWriterLevel(&b, zlib.BestSpeed)
	}
	if err == nil {
		_, err = w.Write(ans.body)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return ans, fault.New(fault.Internal, "the answer cannot be packed", err)
	}
	ans.body = b.Bytes()
	ans.fields = append(ans.fields, infer.Field{Name: "Content-Encoding", Value: kind})
	return ans, nil
}

// acceptedEncoding chooses among what an Accept-Encoding header lists; "" for none.
func acceptedEncoding(header string) string {
	best := ""
	for part := range strings.SplitSeq(header, ",") {
		name, params, _ := strings.Cut(strings.ToLower(part), ";")
		name = strings.TrimSpace(name)
		if q, found := strings.CutPrefix(strings.TrimSpace(params), "q="); found {
			if weight, err := strconv.ParseFloat(q, 64); err != nil || weight == 0 {
				continue
			}
		}
		if name == "gzip" || name == "deflate" && best == "" {
			best = name
		}
	}
	return best
}

// eventType is the media type of server-sent events.
const eventType = "text/event-stream; charset=utf-8"

func event(data []byte) []byte {
	return append(append([]byte("data: "), data...), "\n\n"...)
}

// generate serves …/generate: one object for an answer. The texts of an answer in several pieces are joined.
func (a *API) generate(q *request, ref infer.ModelRef) (answer, error) {
	if q.head.Method != http.MethodPost {
		return answer{}, methodNotAllowed()
	}
	if err := a.inflate(q); err != nil {
		return answer{}, err
	}
	var pieces [][]byte
	var failure error
	last, err := a.opts.Protocol.Generate(q.waiting(), ref, &oipserver.Generation{ID: q.id, Peer: q.peer(), Header: q.head.Fields, Body: q.body, Emit: func(text []byte, err error) {
		if err != nil {
			failure = err
			return
		}
		pieces = append(pieces, text)
	}})
	if err = errors.Join(err, failure); err != nil {
		return answer{}, err
	}
	if last != nil {
		pieces = append(pieces, last)
	}
	switch len(pieces) {
	case 0:
		return jsonAnswer([]byte("{}")), nil
	case 1:
		return a.deflate(q, jsonAnswer(pieces[0]))
	}
	joined, ok := joinTexts(pieces)
	if !ok {
		return answer{}, fault.Newf(fault.BadRequest, "the model answers in %d pieces: ask generate_stream", len(pieces))
	}
	return a.deflate(q, jsonAnswer(joined))
}

// joinTexts makes one object of several whose only output is a text.
func joinTexts(pieces [][]byte) ([]byte, bool) {
	var whole map[string]any
	var text strings.Builder
	for _, p := range pieces {
		var o map[string]any
		if json.Unmarshal(p, &o) != nil {
			return nil, false
		}
		part, ok := o[oip.TextOutput].(string)
		if !ok {
			return nil, false
		}
		text.WriteString(part)
		whole = o
	}
	whole[oip.TextOutput] = text.String()
	joined, err := json.Marshal(whole)
	return joined, err == nil
}

// generateStream serves …/generate_stream: a server-sent event for each piece of the answer. Once there was one, a failure is an event, too.
func (a *API) generateStream(q *request, ref infer.ModelRef) (answer, error) {
	if q.head.Method != http.MethodPost {
		return answer{}, methodNotAllowed()
	}
	if err := a.inflate(q); err != nil {
		return answer{}, err
	}
	out := &stream{api: a, request: q}
	fields := []infer.Field{{Name: "content-type", Value: eventType}}
	var failure error
	last, err := a.opts.Protocol.Generate(q.waiting(), ref, &oipserver.Generation{ID: q.id, Peer: q.peer(), Header: q.head.Fields, Body: q.body, Emit: func(text []byte, err error) {
		if err != nil {
			failure = err
			return
		}
		out.emit(infer.Result{Header: fields, Body: event(text)})
	}})
	begun := out.end()
	if err = errors.Join(err, failure); err != nil && !begun {
		return answer{}, err
	}
	if err != nil {
		text, _ := json.Marshal(map[string]string{"error": problemOf(err).message})
		return out.last(infer.Result{Header: fields, Body: event(text)}, nil)
	}
	var body []byte
	if last != nil {
		body = event(last)
	}
	return out.last(infer.Result{Header: fields, Body: body}, nil)
}
