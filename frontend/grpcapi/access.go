package grpcapi

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/flambeau-serve/flambeau/internal/fault"
	pb "github.com/flambeau-serve/flambeau/proto/openinference/v2"
)

// AccessEntry is what the access log keeps of a call, and of each request of a stream.
type AccessEntry struct {
	At        time.Time // when it came
	Took      time.Duration
	Peer      string // address and port of the client
	Method    string // "package.Service/Method"
	Code      int    // gRPC's
	RequestID string // "" for calls that are no inferences
}

// Line is the entry as TorchServe writes it: the client, the method, gRPC's code, milliseconds. Nothing that a client sends can end the line.
func (e AccessEntry) Line() string {
	quoted := strconv.Quote(e.Method)
	return "/" + e.Peer + ` "gRPC ` + quoted[1:len(quoted)-1] + ` HTTP/2.0" ` + strconv.Itoa(e.Code) + " " + strconv.FormatInt(e.Took.Milliseconds(), 10)
}

// Metrics counts.
type Metrics interface {
	// CountResponse counts an answer by the HTTP status that it would have.
	CountResponse(status int)
	// CountUnread counts a call that was refused before its model was asked, by the reason.
	CountUnread(reason string)
}

// Budget bounds the bytes of all the requests in memory, whatever front they came by.
type Budget interface {
	TakeBytes(n int64) bool // all or none
	GiveBytes(n int64)
}

// record is what is noted of a call while it runs. Only one goroutine at a time has it.
type record struct {
	method string
	peer   string
	id     string
	err    error // that the call ended with, before it became a status
}

type recordKey struct{}

// streamMethod is the method whose calls have many requests.
var streamMethod = strings.TrimPrefix(pb.GRPCInferenceService_ModelStreamInfer_FullMethodName, "/") //nolint:gochecknoglobals // a constant

func recordOf(ctx context.Context) *record {
	r, ok := ctx.Value(recordKey{}).(*record)
	if !ok {
		return &record{} // nobody is told
	}
	return r
}

// observer tells of every call, those that gRPC refuses by itself among them.
type observer struct{ server *Server }

// TagRPC implements stats.Handler.
func (o *observer) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, recordKey{}, &record{method: strings.TrimPrefix(info.FullMethodName, "/")})
}

// HandleRPC implements stats.Handler.
func (o *observer) HandleRPC(ctx context.Context, s stats.RPCStats) {
	r := recordOf(ctx)
	switch s := s.(type) {
	case *stats.InHeader:
		if s.RemoteAddr != nil {
			r.peer = s.RemoteAddr.String()
		}
	case *stats.End:
		err := r.err
		if err == nil {
			err = s.Error
		}
		if err == nil && s.Error == nil && r.method == streamMethod { // each of its requests was told
			return
		}
		o.server.answered(r, s.BeginTime, s.EndTime.Sub(s.BeginTime), err)
	}
}

// TagConn implements stats.Handler.
func (o *observer) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (o *observer) HandleConn(context.Context, stats.ConnStats) {}

// answered writes the access log and counts.
func (s *Server) answered(r *record, at time.Time, took time.Duration, err error) {
	if s.opts.Metrics != nil {
		s.opts.Metrics.CountResponse(httpStatusOf(err))
	}
	if s.opts.AccessLog != nil {
		s.opts.AccessLog(AccessEntry{At: at, Took: took, Peer: r.peer, Method: r.method, Code: codeOf(err), RequestID: r.id})
	}
}

func codeOf(err error) int {
	if _, known := errors.AsType[*fault.Error](err); known {
		return int(fault.GRPCCode(err))
	}
	return int(status.Code(err)) // that of gRPC itself, and none for no error
}

// okStatus is what successes count as.
const okStatus = 200

// httpStatusOf is what a call counts as: REST's status for the same.
func httpStatusOf(err error) int {
	if err == nil {
		return okStatus
	}
	if _, known := errors.AsType[*fault.Error](err); known {
		return fault.HTTPStatus(err)
	}
	if status.Code(err) == 0 {
		return okStatus
	}
	return fault.HTTPStatus(fault.New(fault.KindOfCode(status.Code(err)), "", nil))
}

// take reserves a request's bytes. What was taken must be given back.
func (s *Server) take(n int64) (give func(), err error) {
	if s.opts.Budget == nil {
		return func() {}, nil
	}
	if !s.opts.Budget.TakeBytes(n) {
		refused := fault.TooManyBytes(n, 0)
		if s.opts.Metrics != nil {
			s.opts.Metrics.CountUnread(refused.Kind.String())
		}
		return nil, refused
	}
	return func() { s.opts.Budget.GiveBytes(n) }, nil
}
