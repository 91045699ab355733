package httpapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"

	"github.com/flambeau-serve/flambeau/frontend/httpapi/wire"
)

// Server is one listener of the API.
type Server struct {
	listener *wire.Listener
	server   *http.Server
	addr     string
}

// Listen opens a listener for a port's API. addr is "host:port", or "unix:" and a path; a socket file that nobody listens on is
// replaced. With a TLS configuration the connections are HTTPS. ctx bounds the opening only. From here on connections are
// accepted, and answered once Serve is called.
func (a *API) Listen(ctx context.Context, addr string, which Port, config *tls.Config) (*Server, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		network, addr = "unix", path
		removeDeadSocket(ctx, path)
	}
	var lc net.ListenConfig
	inner, err := lc.Listen(ctx, network, addr)
	if err != nil {
		return nil, fmt.Errorf("the %s API cannot listen on %s: %w", which, addr, err)
	}
	shown := inner.Addr().String()
	if config != nil {
		config = config.Clone()
		config.NextProtos = []string{"http/1.1"} // the heads are read as HTTP/1
		inner = tls.NewListener(inner, config)
	}
	listener := wire.NewListener(inner, wire.Limits{Head: a.opts.HeadTimeout, Pause: a.opts.BodyPause})
	return &Server{
		listener: listener,
		addr:     shown,
		server: &http.Server{
			Handler:           a.engines[which],
			ReadHeaderTimeout: a.opts.IdleTimeout, // covers the wait for a connection's first request; heads have their own limit
			IdleTimeout:       a.opts.IdleTimeout,
			ErrorLog:          slog.NewLogLogger(a.log.Handler(), slog.LevelDebug), // aborted handshakes and the like
			ConnContext: func(ctx context.Context, c net.Conn) context.Context {
				return context.WithValue(ctx, connKey{}, c)
			},
		},
	}, nil
}

// removeDeadSocket makes room for a new socket where an old server left its file. A file that is no socket stays, and so does a
// socket that somebody listens on.
func removeDeadSocket(ctx context.Context, path string) {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != os.ModeSocket {
		return
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close() // somebody answers: Listen will say that the address is in use
		return
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		_ = os.Remove(path) // if it cannot be removed, Listen says so
	}
}

// Addr is the address that the server listens on, with the port that the system chose if it was to choose.
func (s *Server) Addr() string { return s.addr }

// Serve answers requests until Shutdown. It returns nil after one, else why it ended.
func (s *Server) Serve() error {
	if err := s.server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("the listener on %s failed: %w", s.addr, err)
	}
	return nil
}

// Shutdown closes the listener, waits for the requests that are being answered, and closes all connections when ctx ends. After
// it nothing of the server is left.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("requests on %s were cut off: %w", s.addr, err), s.server.Close())
	}
	s.listener.Wait()
	return err
}
