package grpcapi

import (
	"context"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/flambeau-serve/flambeau/internal/fault"
	openinferencev2 "github.com/flambeau-serve/flambeau/proto/openinference/v2"
)

// health answers gRPC's own health checks. Its services are "", the server, and the protocol's.
type health struct {
	healthv1.UnimplementedHealthServer

	server *Server
}

// watchEvery is how often a watched status is looked at.
const watchEvery = time.Second

func (h *health) status() *healthv1.HealthCheckResponse {
	r := &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_NOT_SERVING}
	select {
	case <-h.server.closing:
		return r
	default:
	}
	if h.server.opts.Protocol.Ready() {
		r.Status = healthv1.HealthCheckResponse_SERVING
	}
	return r
}

func isKnown(service string) bool {
	return service == "" || service == openinferencev2.GRPCInferenceService_ServiceDesc.ServiceName
}

// Check implements the service.
func (h *health) Check(_ context.Context, req *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	if !isKnown(req.GetService()) {
		return nil, fault.Newf(fault.ModelNotFound, "there is no service %q", req.GetService())
	}
	return h.status(), nil
}

// List implements the service.
func (h *health) List(context.Context, *healthv1.HealthListRequest) (*healthv1.HealthListResponse, error) {
	s := h.status()
	return &healthv1.HealthListResponse{Statuses: map[string]*healthv1.HealthCheckResponse{
		"": s, openinferencev2.GRPCInferenceService_ServiceDesc.ServiceName: s,
	}}, nil
}

// Watch implements the service: it says the status, and each change of it.
func (h *health) Watch(req *healthv1.HealthCheckRequest, stream grpc.ServerStreamingServer[healthv1.HealthCheckResponse]) error {
	said := healthv1.HealthCheckResponse_UNKNOWN
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		now := h.status()
		if !isKnown(req.GetService()) {
			now.Status = healthv1.HealthCheckResponse_SERVICE_UNKNOWN
		}
		if now.GetStatus() != said {
			if err := stream.Send(now); err != nil {
				return err //nolint:wrapcheck // the client is gone
			}
			said = now.GetStatus()
		}
		select {
		case <-ticker.C:
		case <-h.server.closing:
			if said == healthv1.HealthCheckResponse_NOT_SERVING {
				return nil
			}
			return stream.Send(h.status()) //nolint:wrapcheck // the client is gone
		case <-stream.Context().Done():
			return nil
		}
	}
}
