package grpcapi

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"

	"google.golang.org/grpc/peer"

	"github.com/flambeau-serve/flambeau/frontend/oipserver"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	pb "github.com/flambeau-serve/flambeau/proto/openinference/v2"
)

// overridesOf reads the parameters of load: texts, files as they are.
func overridesOf(params map[string]*pb.ModelRepositoryParameter) (oipserver.Overrides, error) {
	text := func(name string) (string, bool) {
		v, ok := params[name].GetParameterChoice().(*pb.ModelRepositoryParameter_StringParam)
		if !ok {
			return "", false
		}
		return v.StringParam, true
	}
	file := func(name string) ([]byte, error) {
		v, ok := params[name].GetParameterChoice().(*pb.ModelRepositoryParameter_BytesParam)
		if !ok {
			return nil, errors.New("it has to be a bytes_param: the file")
		}
		return v.BytesParam, nil
	}
	return oipserver.ParseOverrides(slices.Sorted(maps.Keys(params)), text, file) //nolint:wrapcheck // its faults are the client's
}

// mayShare refuses clients on other machines, which have no shared memory with this one.
func (s *service) mayShare(ctx context.Context) error {
	network, address := "", ""
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		network, address = p.Addr.Network(), p.Addr.String()
	}
	return s.protocol.MayShare(network, address) //nolint:wrapcheck // the interceptor makes a status of it
}

// SystemSharedMemoryStatus implements the service.
func (s *service) SystemSharedMemoryStatus(ctx context.Context, req *pb.SystemSharedMemoryStatusRequest) (*pb.SystemSharedMemoryStatusResponse, error) {
	if err := s.mayShare(ctx); err != nil {
		return nil, err
	}
	all, err := s.protocol.Regions(req.GetName())
	if err != nil {
		return nil, err //nolint:wrapcheck // the interceptor makes a status of it
	}
	m := &pb.SystemSharedMemoryStatusResponse{Regions: map[string]*pb.SystemSharedMemoryStatusResponse_RegionStatus{}}
	for _, r := range all {
		m.Regions[r.Name] = &pb.SystemSharedMemoryStatusResponse_RegionStatus{Name: r.Name, Key: r.Key, Offset: uint64(r.Offset), ByteSize: uint64(r.ByteSize)}
	}
	return m, nil
}

// SystemSharedMemoryRegister implements the service.
func (s *service) SystemSharedMemoryRegister(ctx context.Context, req *pb.SystemSharedMemoryRegisterRequest) (*pb.SystemSharedMemoryRegisterResponse, error) {
	if err := s.mayShare(ctx); err != nil {
		return nil, err
	}
	if req.GetOffset() > math.MaxInt64 || req.GetByteSize() > math.MaxInt64 {
		return nil, bad("offset and byte_size are larger than any region")
	}
	return &pb.SystemSharedMemoryRegisterResponse{}, s.protocol.RegisterRegion(oipserver.Region{ //nolint:wrapcheck // the same
		Name: req.GetName(), Key: req.GetKey(), Offset: int64(req.GetOffset()), ByteSize: int64(req.GetByteSize()),
	})
}

// SystemSharedMemoryUnregister implements the service.
func (s *service) SystemSharedMemoryUnregister(ctx context.Context, req *pb.SystemSharedMemoryUnregisterRequest) (*pb.SystemSharedMemoryUnregisterResponse, error) {
	if err := s.mayShare(ctx); err != nil {
		return nil, err
	}
	return &pb.SystemSharedMemoryUnregisterResponse{}, s.protocol.UnregisterRegion(req.GetName()) //nolint:wrapcheck // the same
}

// CudaSharedMemoryStatus implements the service as a Triton that was built without it: there are no regions.
func (s *service) CudaSharedMemoryStatus(_ context.Context, req *pb.CudaSharedMemoryStatusRequest) (*pb.CudaSharedMemoryStatusResponse, error) {
	if name := req.GetName(); name != "" {
		return nil, bad("Unable to find cuda shared memory region: '%s'", name)
	}
	return &pb.CudaSharedMemoryStatusResponse{}, nil
}

// CudaSharedMemoryRegister implements the service.
func (s *service) CudaSharedMemoryRegister(_ context.Context, req *pb.CudaSharedMemoryRegisterRequest) (*pb.CudaSharedMemoryRegisterResponse, error) {
	return nil, fault.Newf(fault.RouteNotFound, "failed to register CUDA shared memory region '%s': CUDA shared memory is not offered by this server", req.GetName())
}

// CudaSharedMemoryUnregister implements the service.
func (s *service) CudaSharedMemoryUnregister(context.Context, *pb.CudaSharedMemoryUnregisterRequest) (*pb.CudaSharedMemoryUnregisterResponse, error) {
	return &pb.CudaSharedMemoryUnregisterResponse{}, nil
}

// TraceSetting implements the service.
func (s *service) TraceSetting(_ context.Context, req *pb.TraceSettingRequest) (*pb.TraceSettingResponse, error) {
	name := req.GetModelName()
	if name != "" {
		if _, err := s.protocol.ModelReady(infer.ModelRef{Name: name}); err != nil {
			return nil, err //nolint:wrapcheck // the interceptor makes a status of it
		}
	}
	changes := map[string]json.RawMessage{}
	for name, v := range req.GetSettings() {
		var value any // no value is null: the setting as it was
		switch all := v.GetValue(); {
		case name == "trace_level" && len(all) > 0, len(all) > 1:
			value = all
		case len(all) == 1:
			value = all[0]
		}
		text, err := json.Marshal(value)
		if err != nil {
			return nil, bad("the setting '%s' cannot be read", name)
		}
		changes[name] = text
	}
	if err := s.protocol.ChangeTrace(name, changes); err != nil {
		return nil, err //nolint:wrapcheck // the same
	}
	now := s.protocol.TraceSettings(name)
	resp := &pb.TraceSettingResponse{Settings: map[string]*pb.TraceSettingResponse_SettingValue{"trace_level": {Value: now.Level}}}
	for name, value := range map[string]string{
		"trace_rate": now.Rate, "trace_count": now.Count, "log_frequency": now.Frequency, "trace_file": now.File, "trace_mode": now.Mode,
	} {
		resp.Settings[name] = &pb.TraceSettingResponse_SettingValue{Value: []string{value}}
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
			return nil, bad("the setting '%s' cannot be read", name)
		}
		changes[name] = text
	}
	if err := s.protocol.ChangeLog(changes); err != nil {
		return nil, err //nolint:wrapcheck // the interceptor makes a status of it
	}
	now := s.protocol.LogSettings()
	resp := &pb.LogSettingsResponse{Settings: map[string]*pb.LogSettingsResponse_SettingValue{
		"log_verbose_level": {ParameterChoice: &pb.LogSettingsResponse_SettingValue_Uint32Param{Uint32Param: now.Verbose}},
	}}
	for name, value := range map[string]bool{"log_info": now.Info, "log_warning": now.Warning, "log_error": now.Error} {
		resp.Settings[name] = &pb.LogSettingsResponse_SettingValue{ParameterChoice: &pb.LogSettingsResponse_SettingValue_BoolParam{BoolParam: value}}
	}
	for name, value := range map[string]string{"log_file": now.File, "log_format": now.Format} {
		resp.Settings[name] = &pb.LogSettingsResponse_SettingValue{ParameterChoice: &pb.LogSettingsResponse_SettingValue_StringParam{StringParam: value}}
	}
	return resp, nil
}
