// Package grpcapi serves the Open Inference Protocol over gRPC.
package grpcapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	_ "google.golang.org/grpc/encoding/gzip" // clients may compress
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/flambeau-serve/flambeau/frontend/httpapi/token"
	"github.com/flambeau-serve/flambeau/frontend/oipserver"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/telemetry"
	openinferencev2 "github.com/flambeau-serve/flambeau/proto/openinference/v2"
)

// Options are what a Server needs.
type Options struct {
	Protocol       *oipserver.Server // required
	Keys           *token.Keys       // nil: whoever reaches the server may use it
	Logger         *slog.Logger      // nil: nothing is logged
	MaxRequestSize int64             // bytes of a message; 0 means TorchServe's 6553500
	TLS            *tls.Config       // nil: plain text
	MaxAge         time.Duration     // of a connection; 0 for no limit
	MaxAgeGrace    time.Duration     // for its calls after that; 0 for no limit
	AdminTimeout   time.Duration     // of loading and unloading, which go on when the client leaves; 0 means 1 h
	AccessLog      func(AccessEntry) // called after each call, and each request of a stream; nil: nobody is told
	Metrics        Metrics           // nil: nothing is counted
	Budget         Budget            // nil: requests may take any memory
}

const (
	defaultMaxRequestSize = 6553500
	defaultAdminTimeout   = time.Hour
)

// Server is one listener.
type Server struct {
	opts     Options
	grpc     *grpc.Server
	listener net.Listener
	closing  chan struct{} // closed when Shutdown begins
	once     sync.Once
}

// Listen opens a listener. ctx bounds the opening only. From here on connections are accepted, and answered once Serve is called.
func Listen(ctx context.Context, addr string, opts Options) (*Server, error) {
	if opts.Protocol == nil {
		return nil, errors.New("grpcapi needs a Protocol")
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.MaxRequestSize <= 0 {
		opts.MaxRequestSize = defaultMaxRequestSize
	}
	if opts.AdminTimeout <= 0 {
		opts.AdminTimeout = defaultAdminTimeout
	}
	var lc net.ListenConfig
	inner, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("the gRPC API cannot listen on %s: %w", addr, err)
	}
	s := &Server{opts: opts, listener: inner, closing: make(chan struct{})}
	most := int(min(opts.MaxRequestSize, math.MaxInt32))
	settings := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(most),
		grpc.RPCDecompressor(deflate{most}), //nolint:staticcheck // what it says to use instead is a global register, and needs an init function
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.ChainUnaryInterceptor(s.unary),
		grpc.ChainStreamInterceptor(s.stream),
		grpc.WaitForHandlers(true),
		grpc.StatsHandler(&observer{server: s}),
	}
	if opts.MaxAge > 0 || opts.MaxAgeGrace > 0 {
		settings = append(settings, grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: opts.MaxAge, MaxConnectionAgeGrace: opts.MaxAgeGrace}))
	}
	if opts.TLS != nil {
		settings = append(settings, grpc.Creds(credentials.NewTLS(opts.TLS)))
	}
	s.grpc = grpc.NewServer(settings...)
	openinferencev2.RegisterGRPCInferenceServiceServer(s.grpc, &service{server: s, protocol: opts.Protocol})
	healthv1.RegisterHealthServer(s.grpc, &health{server: s})
	reflection.Register(s.grpc)
	return s, nil
}

// Addr is the address that the server listens on, with the port that the system chose if it was to choose.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Serve answers calls until Shutdown. It returns nil after one, else why it ended.
func (s *Server) Serve() error {
	if err := s.grpc.Serve(s.listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("the gRPC listener on %s failed: %w", s.Addr(), err)
	}
	return nil
}

// Shutdown closes the listener, ends the streams that wait for their clients, waits for the calls that are being answered, and cuts them off when ctx
// ends. After it nothing of the server is left.
func (s *Server) Shutdown(ctx context.Context) error {
	s.once.Do(func() { close(s.closing) })
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.grpc.GracefulStop()
	}()
	select {
	case <-done:
		_ = s.listener.Close() // a server that never served has not closed it
		return nil
	case <-ctx.Done():
		s.grpc.Stop()
		<-done
		return fmt.Errorf("calls on %s were cut off: %w", s.Addr(), ctx.Err())
	}
}

// rightsOf says which key opens a method, for a request that has come already; "" for none.
func rightsOf(method string, req any) token.Kind {
	switch r := req.(type) {
	case *openinferencev2.LogSettingsRequest:
		if len(r.GetSettings()) > 0 {
			return token.Management
		}
	case *openinferencev2.TraceSettingRequest:
		if len(r.GetSettings()) > 0 {
			return token.Management
		}
	}
	switch method {
	case healthv1.Health_Check_FullMethodName, healthv1.Health_Watch_FullMethodName, healthv1.Health_List_FullMethodName: // probes have no keys
		return ""
	case openinferencev2.GRPCInferenceService_RepositoryModelLoad_FullMethodName, openinferencev2.GRPCInferenceService_RepositoryModelUnload_FullMethodName,
		openinferencev2.GRPCInferenceService_SystemSharedMemoryStatus_FullMethodName,
		openinferencev2.GRPCInferenceService_SystemSharedMemoryRegister_FullMethodName,
		openinferencev2.GRPCInferenceService_SystemSharedMemoryUnregister_FullMethodName:
		return token.Management
	}
	return token.Inference
}

// authorize checks a call's key, with TorchServe's words.
func (s *Server) authorize(ctx context.Context, method string, req any) error {
	kind := rightsOf(method, req)
	if s.opts.Keys == nil || kind == "" {
		return nil
	}
	for _, given := range metadata.ValueFromIncomingContext(ctx, "authorization") {
		if s.opts.Keys.Allows(kind, given) {
			return nil
		}
	}
	return fault.New(fault.InvalidKey, "Token Authorization failed. Token either incorrect, expired, or not provided correctly", nil)
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (resp any, err error) {
	defer s.recoverFrom(ctx, info.FullMethod, &err)
	if err := s.authorize(ctx, info.FullMethod, req); err != nil {
		return nil, s.told(ctx, info.FullMethod, err)
	}
	resp, err = handle(ctx, req)
	return resp, s.told(ctx, info.FullMethod, err)
}

func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
	ctx := stream.Context()
	defer s.recoverFrom(ctx, info.FullMethod, &err)
	if err := s.authorize(ctx, info.FullMethod, nil); err != nil {
		return s.told(ctx, info.FullMethod, err)
	}
	return s.told(ctx, info.FullMethod, handle(srv, stream))
}

// told makes a status of an error, and logs what the client does not see.
func (s *Server) told(ctx context.Context, method string, err error) error {
	if err == nil {
		return nil
	}
	recordOf(ctx).err = err
	if _, already := status.FromError(err); already {
		return err //nolint:wrapcheck // it is a status
	}
	s.log(ctx, method, err)
	return statusOf(err, recordOf(ctx).id)
}

// firstServerError is the HTTP status from which on a failure is the server's.
const firstServerError = 500

func (s *Server) log(ctx context.Context, method string, err error) {
	if fault.HTTPStatus(err) < firstServerError || fault.Refused(err) || fault.Is(err, fault.ClientTimeout) {
		return
	}
	detail := ""
	if f, ok := errors.AsType[*fault.Error](err); ok {
		detail = f.Detail
	}
	level := slog.LevelWarn
	if fault.IsBug(err) {
		level = slog.LevelError
	}
	s.opts.Logger.LogAttrs(ctx, level, "call failed", slog.String(telemetry.KeyTarget, method), slog.String(telemetry.KeyReason, fault.KindOf(err).String()),
		slog.String(telemetry.KeyError, err.Error()), slog.String(telemetry.KeyDetail, detail))
}

func (s *Server) recoverFrom(ctx context.Context, method string, err *error) {
	if what := recover(); what != nil {
		s.opts.Logger.ErrorContext(ctx, "call handler panicked", slog.String(telemetry.KeyTarget, method), slog.Any(telemetry.KeyPanic, what),
			slog.String(telemetry.KeyStack, string(debug.Stack())))
		recordOf(ctx).err = fault.New(fault.Internal, "Internal error.", nil)
		*err = statusOf(recordOf(ctx).err, recordOf(ctx).id)
	}
}

// messageOf is what the client reads: a bug's words are for the log.
func messageOf(err error) string {
	f, ok := errors.AsType[*fault.Error](err)
	if !ok {
		return "Internal error."
	}
	if f.Hint != "" {
		return f.Message + " (" + f.Hint + ")"
	}
	return f.Message
}
