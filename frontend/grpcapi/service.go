package grpcapi

import (
	"context"
	"encoding/json"
	"slices"

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
	var overrides []string
	for name := range req.GetParameters() {
		overrides = append(overrides, name)
	}
	slices.Sort(overrides)
	ctx, cancel := s.detached(ctx)
	defer cancel()
	return &pb.RepositoryModelLoadResponse{}, s.protocol.Load(ctx, req.GetModelName(), overrides) //nolint:wrapcheck // the same
}

// RepositoryModelUnload implements the service.
func (s *service) RepositoryModelUnload(ctx context.Context, req *pb.RepositoryModelUnloadRequest) (*pb.RepositoryModelUnloadResponse, error) {
	ctx, cancel := s.detached(ctx)
	defer cancel()
	return &pb.RepositoryModelUnloadResponse{}, s.protocol.Unload(ctx, req.GetModelName()) //nolint:wrapcheck // the same
}

// detached is a context for work that must not be left half done: it outlives the client, but not the limit.
func (s *service) detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(withActor(ctx), s.server.opts.AdminTimeout)
}

// SystemSharedMemoryStatus implements the service: there are no regions.
func (s *service) SystemSharedMemoryStatus(_ context.Context, req *pb.SystemSharedMemoryStatusRequest) (*pb.SystemSharedMemoryStatusResponse, error) {
	return &pb.SystemSharedMemoryStatusResponse{}, noRegion(req.GetName())
}

// CudaSharedMemoryStatus implements the service: there are no regions.
func (s *service) CudaSharedMemoryStatus(_ context.Context, req *pb.CudaSharedMemoryStatusRequest) (*pb.CudaSharedMemoryStatusResponse, error) {
	return &pb.CudaSharedMemoryStatusResponse{}, noRegion(req.GetName())
}

func noRegion(name string) error {
	if name == "" {
		return nil
	}
	return fault.Newf(fault.ModelNotFound, "Unable to find shared memory region '%s'", name)
}

// noSharedMemory is the answer to those that want to use it.
func noSharedMemory() error {
	return fault.New(fault.RouteNotFound, "shared memory is not offered by this server: send and receive the tensors in raw_input_contents and raw_output_contents", nil)
}

// SystemSharedMemoryRegister implements the service.
func (s *service) SystemSharedMemoryRegister(context.Context, *pb.SystemSharedMemoryRegisterRequest) (*pb.SystemSharedMemoryRegisterResponse, error) {
	return nil, noSharedMemory()
}

// CudaSharedMemoryRegister implements the service.
func (s *service) CudaSharedMemoryRegister(context.Context, *pb.CudaSharedMemoryRegisterRequest) (*pb.CudaSharedMemoryRegisterResponse, error) {
	return nil, noSharedMemory()
}

// SystemSharedMemoryUnregister implements the service.
func (s *service) SystemSharedMemoryUnregister(context.Context, *pb.SystemSharedMemoryUnregisterRequest) (*pb.SystemSharedMemoryUnregisterResponse, error) {
	return &pb.SystemSharedMemoryUnregisterResponse{}, nil
}

// CudaSharedMemoryUnregister implements the service.
func (s *service) CudaSharedMemoryUnregister(context.Context, *pb.CudaSharedMemoryUnregisterRequest) (*pb.CudaSharedMemoryUnregisterResponse, error) {
	return &pb.CudaSharedMemoryUnregisterResponse{}, nil
}

// TraceSetting implements the service.
func (s *service) TraceSetting(_ context.Context, req *pb.TraceSettingRequest) (*pb.TraceSettingResponse, error) {
	if name := req.GetModelName(); name != "" {
		if _, err := s.protocol.ModelReady(infer.ModelRef{Name: name}); err != nil {
			return nil, err //nolint:wrapcheck // the interceptor makes a status of it
		}
	}
	changes := map[string]json.RawMessage{}
	for name, v := range req.GetSettings() {
		var value any
		switch all := v.GetValue(); {
		case name == "trace_level" && len(all) > 0:
			value = all
		case len(all) == 1:
			value = all[0]
		case len(all) > 1:
			value = all
		}
		text, err := json.Marshal(value)
		if err != nil {
			return nil, fault.New(fault.BadRequest, "the setting '"+name+"' cannot be read", err)
		}
		changes[name] = text
	}
	if err := oipserver.TraceSettings.Check(changes); err != nil {
		return nil, err //nolint:wrapcheck // the same
	}
	return traceSettings()
}

// traceSettings are what is traced, as gRPC has it.
func traceSettings() (*pb.TraceSettingResponse, error) {
	var now map[string]any
	if err := json.Unmarshal([]byte(oipserver.TraceSettings), &now); err != nil {
		return nil, fault.New(fault.Internal, "the settings cannot be read", err)
	}
	resp := &pb.TraceSettingResponse{Settings: map[string]*pb.TraceSettingResponse_SettingValue{}}
	for name, v := range now {
		value := &pb.TraceSettingResponse_SettingValue{}
		switch v := v.(type) {
		case string:
			value.Value = []string{v}
		case []any:
			for _, one := range v {
				if text, ok := one.(string); ok {
					value.Value = append(value.Value, text)
				}
			}
		}
		resp.Settings[name] = value
	}
	return resp, nil
}

// LogSettings implements the service.
func (s *service) LogSettings(_ context.Context, req *pb.LogSettingsRequest) (*pb.LogSettingsResponse, error) {
	changes := map[string]json.RawMessage{}
	for name, v := range req.GetSettings() {
		var value any
		switch v := v.GetParameterChoice().(type) {
		case *pb.LogSettingsRequest_SettingValue_BoolParam:
			value = v.BoolParam
		case *pb.LogSettingsRequest_SettingValue_Uint32Param:
			value = v.Uint32Param
		case *pb.LogSettingsRequest_SettingValue_StringParam:
			value = v.StringParam
		}
		text, err := json.Marshal(value)
		if err != nil {
			return nil, fault.New(fault.BadRequest, "the setting '"+name+"' cannot be read", err)
		}
		changes[name] = text
	}
	if err := oipserver.LogSettings.Check(changes); err != nil {
		return nil, err //nolint:wrapcheck // the interceptor makes a status of it
	}
	var now map[string]any
	if err := json.Unmarshal([]byte(oipserver.LogSettings), &now); err != nil {
		return nil, fault.New(fault.Internal, "the settings cannot be read", err)
	}
	resp := &pb.LogSettingsResponse{Settings: map[string]*pb.LogSettingsResponse_SettingValue{}}
	for name, v := range now {
		value := &pb.LogSettingsResponse_SettingValue{}
		switch v := v.(type) {
		case bool:
			value.ParameterChoice = &pb.LogSettingsResponse_SettingValue_BoolParam{BoolParam: v}
		case float64:
			value.ParameterChoice = &pb.LogSettingsResponse_SettingValue_Uint32Param{Uint32Param: uint32(v)}
		case string:
			value.ParameterChoice = &pb.LogSettingsResponse_SettingValue_StringParam{StringParam: v}
		}
		resp.Settings[name] = value
	}
	return resp, nil
}
