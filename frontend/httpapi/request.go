package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"github.com/flambeau-serve/flambeau/frontend/httpapi/wire"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/redact"
	"github.com/flambeau-serve/flambeau/internal/telemetry"
)

// request is one request on its way through the API. It is made and used by one goroutine.
type request struct {
	w     http.ResponseWriter
	http  *http.Request
	conn  *wire.Conn // nil when the request did not come through one
	head  *wire.Head
	port  Port
	id    string
	start time.Time

	path     string   // decoded
	segments []string // of the path, the first is what comes before the first slash
	body     []byte
	held     int64 // bytes taken from the budget
	bodyDone bool  // nothing of the body is left on the connection
	status   int   // of the answer, 0 before it
	protocol bool  // it is of the Open Inference Protocol, whose errors have a member of their own
}

// connKey is the context key under which a request's connection is found.
type connKey struct{}

// handler is the one handler of a port's listener.
func (a *API) handler(port Port) gin.HandlerFunc {
	return func(c *gin.Context) {
		q := &request{w: c.Writer, http: c.Request, port: port, start: time.Now(), id: uuid.NewString()}
		q.conn, q.head = headOf(c.Request)
		q.bodyDone = q.head.Length == 0
		defer a.finish(q)
		defer a.recoverFrom(q)
		ans, err := a.serve(q)
		if err != nil {
			a.fail(q, err)
			return
		}
		switch {
		case ans.broken:
			panic(http.ErrAbortHandler) // half an answer must not look like a whole one
		case !ans.sent:
			a.send(q, ans)
		}
	}
}

// serve does the steps that all the routes have in common, in TorchServe's order as far as a client can see it.
func (a *API) serve(q *request) (answer, error) {
	switch h := q.head; {
	case h.Malformed != "":
		return answer{}, &fault.Error{Kind: fault.BadRequest, Message: invalidMessage, Hint: "what was not understood: " + h.Malformed}
	case h.Length > a.opts.MaxRequestSize:
		return answer{}, a.tooLarge(wholeRequest)
	case h.UnknownExpect:
		return answer{status: statusExpectation, bare: true}, nil
	}
	var err error
	if q.path, err = pathOf(q.head.Target); err != nil {
		return answer{}, err
	}
	if q.segments = segmentsOf(q.path); len(q.segments) == 1 {
		return answer{}, javaError(fault.RouteNotFound, firstServerError, "ArrayIndexOutOfBoundsException", "Index 1 out of bounds for length 1")
	}
	if a.describes(q) {
		return jsonAnswer(a.docs[q.port]), nil
	}
	if len(q.segments) == 0 {
		return answer{}, methodNotAllowed()
	}
	if ans, mine, err := a.probe(q); mine {
		return ans, err
	}
	q.protocol = a.opts.Protocol != nil && q.port != Management && q.port != MetricsPort && q.segments[1] == "v2"
	if q.segments[0] != "" {
		return answer{}, notFound()
	}
	if ans, done, err := a.authorize(q); done || err != nil {
		return ans, err
	}
	if err := a.refuse(q); err != nil {
		return answer{}, err
	}
	if err := a.readBody(q); err != nil {
		return answer{}, err
	}
	return a.route(q)
}

// describes says whether the API's own description is asked for. No key protects it.
func (a *API) describes(q *request) bool {
	return q.path == "/" && q.head.Method == http.MethodOptions || len(q.segments) == 2 && q.segments[1] == "api-description"
}

// finish tells who wants to know about the answer, and gives back what the request held.
func (a *API) finish(q *request) {
	a.inflight.give(q.held)
	if a.opts.Metrics != nil {
		a.opts.Metrics.CountResponse(q.status)
	}
	if a.opts.AccessLog != nil {
		a.opts.AccessLog(AccessEntry{
			At: q.start, Took: time.Since(q.start), Port: q.port, Peer: q.http.RemoteAddr, Method: q.head.Method, Target: q.head.Target,
			Version: q.head.Version, Status: q.status, RequestID: q.id,
		})
	}
}

// recoverFrom turns a panic into an answer, so that one bug costs one request.
func (a *API) recoverFrom(q *request) {
	what := recover()
	if what == nil {
		return
	}
	if what == http.ErrAbortHandler { //nolint:errorlint // a panic's value
		panic(what)
	}
	a.log.ErrorContext(q.http.Context(), "request handler panicked", slog.String(telemetry.KeyRequestID, q.id), slog.Any(telemetry.KeyPanic, what),
		slog.String(telemetry.KeyStack, stack()))
	if q.status == 0 {
		a.fail(q, fault.New(fault.Internal, "Internal error.", nil))
		return
	}
	panic(http.ErrAbortHandler) // half an answer must not look like a whole one
}

// fail answers with an error, and logs what the client does not see.
func (a *API) fail(q *request, err error) {
	if fault.Is(err, fault.TooLarge) {
		a.sendTooLarge(q, err)
		return
	}
	early := fault.Refused(err) && a.answersEarly(q)
	if !early {
		a.dropBody(q)
	}
	p := problemOf(err)
	a.logFailure(q.http.Context(), q, p)
	a.sendProblem(q, p)
	if early && http.NewResponseController(q.w).Flush() == nil {
		a.dropBody(q)
	}
}

func (a *API) logFailure(ctx context.Context, q *request, p *problem) {
	if p.status < firstServerError || p.retryable && p.exception == "ServiceUnavailableException" || fault.Refused(p.cause) {
		return // the access log has it, and the metrics: under load there is one for each of very many
	}
	attrs := []slog.Attr{
		slog.String(telemetry.KeyRequestID, q.id), slog.String(telemetry.KeyReason, p.reason), slog.Int(telemetry.KeyStatus, p.status),
		slog.String(telemetry.KeyTarget, redact.Target(q.head.Target)), slog.String(telemetry.KeyMessage, p.message),
	}
	if p.cause != nil {
		attrs = append(attrs, slog.String(telemetry.KeyError, p.cause.Error()))
		if detail := detailOf(p.cause); detail != "" {
			attrs = append(attrs, slog.String(telemetry.KeyDetail, detail))
		}
	}
	level := slog.LevelWarn
	if fault.IsBug(p.cause) {
		level = slog.LevelError
	}
	a.log.LogAttrs(ctx, level, "request failed", attrs...)
}

// headOf finds the head that belongs to a request. One that did not come through a wire.Conn gets what net/http left of it.
func headOf(r *http.Request) (*wire.Conn, *wire.Head) {
	if conn, ok := r.Context().Value(connKey{}).(*wire.Conn); ok {
		number, err := strconv.ParseUint(strings.TrimPrefix(r.URL.Path, "/"), 10, 64)
		if h := conn.Take(number); err == nil && h != nil {
			return conn, h
		}
		return conn, &wire.Head{Malformed: "request number"}
	}
	h := &wire.Head{Method: r.Method, Target: r.RequestURI, Version: r.Proto, Length: r.ContentLength}
	if h.Target == "" {
		h.Target = r.URL.RequestURI()
	}
	h.Fields = append(h.Fields, infer.Field{Name: "Host", Value: r.Host})
	for name, values := range r.Header {
		for _, value := range values {
			h.Fields = append(h.Fields, infer.Field{Name: name, Value: value})
		}
	}
	slices.SortStableFunc(h.Fields, func(x, y infer.Field) int { return strings.Compare(x.Name, y.Name) })
	return nil, h
}

// mimeType is the media type of the body without parameters, exactly as far as TorchServe cuts it.
func (q *request) mimeType() string { return mimeOf(q.head.Get("Content-Type")) }

func mimeOf(contentType string) string {
	kind, _, _ := strings.Cut(contentType, ";")
	return kind
}

// param gives the first query parameter of that name.
func param(params []pair, name string) (string, bool) {
	for _, p := range params {
		if p.name == name {
			return p.value, true
		}
	}
	return "", false
}
