package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"

	"github.com/flambeau-serve/flambeau/frontend/grpcapi"
	"github.com/flambeau-serve/flambeau/frontend/httpapi"
	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/logfiles"
)

// listener is one open listener and the key that moves it.
type listener struct {
	name, key string
	address   fmt.Stringer
	server    listening
}

// listening is an open listener of either kind.
type listening interface {
	Addr() string
	Serve() error
	Shutdown(ctx context.Context) error
}

// serve answers until Shutdown. It gives nil after one, else why it ended.
func (l listener) serve() error {
	var err error
	bug := fault.Contain("a listener was served", func() { err = l.server.Serve() })
	if err = errors.Join(err, bug); err != nil {
		return fmt.Errorf("%s (%s): %w", l.name, l.key, err)
	}
	return nil
}

// shutdown closes it.
func (l listener) shutdown(ctx context.Context) error {
	var err error
	bug := fault.Contain("a listener was closed", func() { err = l.server.Shutdown(ctx) })
	return errors.Join(err, bug)
}

// openGRPC opens the gRPC listener, if there is something to serve on it. When nobody has set its address, and somebody else has it, the server does
// without: several servers may run on one machine.
func (s *server) openGRPC(ctx context.Context, api *httpapi.API, logs *logfiles.Logs) error {
	if s.protocol == nil {
		return nil
	}
	log := logs.Server()
	where := net.JoinHostPort(s.cfg.GRPCInference.Host, strconv.Itoa(s.cfg.GRPCInference.Port))
	opts := grpcapi.Options{
		Protocol: s.protocol, Keys: s.keys, Logger: log, MaxRequestSize: s.cfg.MaxRequestBytes,
		MaxAge: s.cfg.GRPCInference.MaxAge, MaxAgeGrace: s.cfg.GRPCInference.MaxAgeWait, Metrics: s.measures.metrics, Budget: api,
		AccessLog: func(e grpcapi.AccessEntry) {
			logs.Access(e.At.Add(e.Took), strings.TrimRight(e.Line()+" "+e.RequestID, " "))
		},
	}
	if s.cfg.GRPCTLS {
		var err error
		if opts.TLS, err = certificateOnce(s.cfg.TLS)(); err != nil {
			return err
		}
	}
	g, err := grpcapi.Listen(ctx, where, opts)
	switch {
	case err == nil:
		s.listeners = append(s.listeners, listener{"gRPC", "grpc_inference_port", grpcAddress{g.Addr(), s.cfg.GRPCTLS}, g})
	case errors.Is(err, syscall.EADDRINUSE) && s.cfg.Value("grpc_inference_port").Origin.Kind == config.FromDefault:
		log.Warn("there is no gRPC API: another program has its address; set grpc_inference_port to have one", "address", where)
	default:
		return cannotListen(s.cfg, "grpc_inference_port", err)
	}
	return nil
}

// cannotListen adds what can be done about an address that cannot be had. Of one that is set by two keys, key is the port's: it is to blame when the port is
// taken or needs more rights, and the host is otherwise.
func cannotListen(cfg *config.Config, key string, err error) error {
	if host, two := strings.CutSuffix(key, "_port"); two && !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EACCES) {
		key = host + "_address"
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w; stop what uses it, or %s", err, cfg.HowToSet(key))
	}
	return fmt.Errorf("%w; %s", err, cfg.HowToSet(key))
}

// grpcAddress is an address of gRPC as people read it.
type grpcAddress struct {
	where  string
	secure bool
}

// String gives it.
func (a grpcAddress) String() string {
	if a.secure {
		return "grpcs://" + a.where
	}
	return "grpc://" + a.where
}

// openListeners opens TorchServe's three listeners, or two when inference and management share an address.
func openListeners(ctx context.Context, cfg *config.Config, api *httpapi.API) (open []listener, err error) {
	wanted := []struct {
		name, key string
		address   config.Address
		port      httpapi.Port
	}{
		{"inference", "inference_address", cfg.Inference, httpapi.Inference},
		{"management", "management_address", cfg.Management, httpapi.Management},
	}
	if cfg.Inference == cfg.Management {
		wanted = wanted[:1]
		wanted[0].name, wanted[0].port = "inference and management", httpapi.Joint
	}
	certificate := certificateOnce(cfg.TLS)
	add := func(name, key string, address config.Address, port httpapi.Port) error {
		var secure *tls.Config
		if address.TLS {
			var err error
			if secure, err = certificate(); err != nil {
				return err
			}
		}
		where := address.Listen()
		if address.Network() == "unix" {
			where = "unix:" + where
		}
		s, err := api.Listen(ctx, where, port, secure)
		if err != nil {
			return cannotListen(cfg, key, err)
		}
		open = append(open, listener{name, key, address, s})
		return nil
	}
	for _, w := range wanted {
		if err := add(w.name, w.key, w.address, w.port); err != nil {
			return nil, errors.Join(err, closeListeners(ctx, open))
		}
	}
	if cfg.MetricsAPI {
		if err := add("metrics", "metrics_address", cfg.Metrics, httpapi.MetricsPort); err != nil {
			return nil, errors.Join(err, closeListeners(ctx, open))
		}
	}
	return open, nil
}

// closeListeners closes them all at once; requests that are being answered may end until ctx does.
func closeListeners(ctx context.Context, open []listener) error {
	failed := make(chan error, len(open))
	for _, l := range open {
		go func() { failed <- l.shutdown(ctx) }()
	}
	var errs []error
	for range open {
		errs = append(errs, <-failed)
	}
	return errors.Join(errs...)
}
