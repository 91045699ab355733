package grpcapi

import (
	"context"
	"encoding/json"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/flambeau-serve/flambeau/frontend/oipserver"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	pb "github.com/flambeau-serve/flambeau/proto/openinference/v2"
)

// service answers the protocol's calls.
type service struct {
	pb.UnimplementedGRPCInferenceServiceServer

	server   *Server
	protocol *oipserver.Server
}

// into fills a message by the JSON of an answer: the names are the same.
func into[M proto.Message](answer any, m M) (M, error) {
	text, err := json.Marshal(answer)
	if err == nil {
		err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, m)
	}
	if err != nil {
		return m, fault.New(fault.Internal, "the answer has no form in gRPC", err)
	}
	return m, nil
}

// ServerLive implements the service.
func (s *service) ServerLive(context.Context, *pb.ServerLiveRequest) (*pb.ServerLiveResponse, error) {
	return &pb.ServerLiveResponse{Live: true}, nil
}

// ServerReady implements the service.
func (s *service) ServerReady(context.Context, *pb.ServerReadyRequest) (*pb.ServerReadyResponse, error) {
	return &pb.ServerReadyResponse{Ready: s.protocol.Ready()}, nil
}

// ModelReady implements the service. A model that is not there is not ready.
func (s *service) ModelReady(_ context.Context, req *pb.ModelReadyRequest) (*pb.ModelReadyResponse, error) {
	ready, err := s.protocol.ModelReady(infer.ModelRef{Name: req.GetName(), Version: req.GetVersion()})
	if fault.Is(err, fault.ModelNotFound, fault.VersionNotFound) {
		err = nil
	}
	return &pb.ModelReadyResponse{Ready: ready}, err //nolint:wrapcheck // the interceptor makes a status of it
}

// ServerMetadata implements the service.
func (s *service) ServerMetadata(context.Context, *pb.ServerMetadataRequest) (*pb.ServerMetadataResponse, error) {
	return into(s.protocol.Metadata(), &pb.ServerMetadataResponse{})
}

// ModelMetadata implements the service.
func (s *service) ModelMetadata(_ context.Context, req *pb.ModelMetadataRequest) (*pb.ModelMetadataResponse, error) {
	m, err := s.protocol.Model(infer.ModelRef{Name: req.GetName(), Version: req.GetVersion()})
	if err != nil {
		return nil, err //nolint:wrapcheck // the interceptor makes a status of it
	}
	return into(m, &pb.ModelMetadataResponse{})
}

// ModelConfig implements the service.
func (s *service) ModelConfig(_ context.Context, req *pb.ModelConfigRequest) (*pb.ModelConfigResponse, error) {
	c, err := s.protocol.Config(infer.ModelRef{Name: req.GetName(), Version: req.GetVersion()})
	if err != nil {
		return nil, err //nolint:wrapcheck // the interceptor makes a status of it
	}
	m, err := into(c, &pb.ModelConfig{})
	return &pb.ModelConfigResponse{Config: m}, err
}

// ModelStatistics implements the service.
func (s *service) ModelStatistics(_ context.Context, req *pb.ModelStatisticsRequest) (*pb.ModelStatisticsResponse, error) {
	a, err := s.protocol.Stats(infer.ModelRef{Name: req.GetName(), Version: req.GetVersion()})
	if err != nil {
		return nil, err //nolint:wrapcheck // the interceptor makes a status of it
	}
	return into(a, &pb.ModelStatisticsResponse{})
}

// RepositoryIndex implements the service.
func (s *service) RepositoryIndex(_ context.Context, req *pb.RepositoryIndexRequest) (*pb.RepositoryIndexResponse, error) {
	return into(map[string]any{"models": s.protocol.Index(req.GetReady())}, &pb.RepositoryIndexResponse{})
}

// RepositoryModelLoad implements the service.
func (s *service) RepositoryModelLoad(ctx context.Context, req *pb.RepositoryModelLoadRequest) (*pb.RepositoryModelLoadResponse, error) {
	o, err := overridesOf(req.GetParameters())
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.detached(ctx)
	defer cancel()
	return &pb.RepositoryModelLoadResponse{}, s.protocol.Load(ctx, req.GetModelName(), o) //nolint:wrapcheck // the same
}

// RepositoryModelUnload implements the service.
func (s *service) RepositoryModelUnload(ctx context.Context, req *pb.RepositoryModelUnloadRequest) (*pb.RepositoryModelUnloadResponse, error) {
	const name = "unload_dependents"
	given, has := req.GetParameters()[name]
	if _, truth := given.GetParameterChoice().(*pb.ModelRepositoryParameter_BoolParam); has && !truth {
		return nil, bad("the parameter %s has to be true or false, a bool_param", name)
	}
	ctx, cancel := s.detached(ctx)
	defer cancel()
	dependents := given.GetBoolParam()
	return &pb.RepositoryModelUnloadResponse{}, s.protocol.Unload(ctx, req.GetModelName(), dependents) //nolint:wrapcheck // the same
}

// detached is a context for work that must not be left half done: it outlives the client, but not the limit.
func (s *service) detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(withActor(ctx), s.server.opts.AdminTimeout)
}
