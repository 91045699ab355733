package grpcapi

import (
	"context"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/frontend/oipserver"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	pb "github.com/flambeau-serve/flambeau/proto/openinference/v2"
)

// requestIDKey is the answer's metadata with the request's identifier, as HTTP's header.
const requestIDKey = "x-request-id"

// ModelInfer implements the service.
func (s *service) ModelInfer(ctx context.Context, req *pb.ModelInferRequest) (*pb.ModelInferResponse, error) {
	give, err := s.server.take(int64(proto.Size(req)))
	if err != nil {
		return nil, err
	}
	defer give()
	call, err := newCall(ctx, req)
	if err != nil {
		return nil, err
	}
	recordOf(ctx).id = call.ID
	_ = grpc.SetHeader(ctx, metadata.Pairs(requestIDKey, call.ID)) // it fails only without a client
	answer, err := s.protocol.Infer(ctx, refOf(req), call, false)
	if err != nil {
		return nil, err //nolint:wrapcheck // the interceptor makes a status of it
	}
	return responseOf(answer.Response, isTyped(req))
}

func refOf(req *pb.ModelInferRequest) infer.ModelRef {
	return infer.ModelRef{Name: req.GetModelName(), Version: req.GetModelVersion()}
}

// isTyped says whether a client sends typed contents.
func isTyped(req *pb.ModelInferRequest) bool {
	return slices.ContainsFunc(req.GetInputs(), func(in *pb.ModelInferRequest_InferInputTensor) bool { return in.GetContents() != nil })
}

// traced is what reading a request is called in a trace.
const traced = "GRPC_WAITREAD"

func newCall(ctx context.Context, req *pb.ModelInferRequest) (*oipserver.Call, error) {
	came := time.Now()
	r, err := requestOf(req)
	if err != nil {
		return nil, err
	}
	return &oipserver.Call{ID: uuid.NewString(), Peer: peerOf(ctx), Header: headerOf(ctx), Request: r, Came: came, Front: traced}, nil
}

// headerOf gives a call's metadata as header fields, but for gRPC's own and for bytes.
func headerOf(ctx context.Context) []infer.Field {
	md, _ := metadata.FromIncomingContext(ctx)
	names := make([]string, 0, len(md))
	for name := range md {
		switch {
		case strings.HasPrefix(name, ":"), strings.HasPrefix(name, "grpc-"), strings.HasSuffix(name, "-bin"), name == "te", name == "content-type":
		default:
			names = append(names, name)
		}
	}
	slices.Sort(names)
	fields := make([]infer.Field, 0, len(names))
	for _, name := range names {
		for _, v := range md[name] {
			fields = append(fields, infer.Field{Name: name, Value: v})
		}
	}
	return fields
}

// peerOf gives a client's address without a port, "" when it has none.
func peerOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		if host, _, err := net.SplitHostPort(p.Addr.String()); err == nil {
			return host
		}
	}
	return ""
}

// withActor notes who asks for a change, and lets it outlive the call.
func withActor(ctx context.Context) context.Context {
	who := "api"
	if host := peerOf(ctx); host != "" {
		who += " (" + host + ")"
	}
	return rollout.WithActor(context.WithoutCancel(ctx), rollout.Actor{Who: who})
}

// final marks the last answer to a streamed request.
func final(r *oip.Response, last bool) *oip.Response {
	if r.Params == nil {
		r.Params = oip.Parameters{}
	}
	r.Params[oip.ParamFinal] = last
	return r
}
