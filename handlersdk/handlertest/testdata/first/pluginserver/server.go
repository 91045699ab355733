// Package pluginserver serves a backend process to the server that started it: handshake, gRPC services and lifeline, the
// same for handlers in Go and for the C library that Python loads (docs/protocol.md).
package pluginserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	backendv1 "github.com/flambeau-serve/flambeau/handlersdk/handlertest/testdata/first/backendv1"
	"github.com/flambeau-serve/flambeau/handlersdk/handlertest/testdata/first/frame"
)

// Backend does the work behind the server. Load is called once, before Run; Unload is called once, at the end, when Load
// was called.
type Backend interface {
	// Load makes the backend ready, or says in the response why it is not. An error means that nothing can be said.
	Load(ctx context.Context, req *backendv1.LoadRequest) (*backendv1.LoadResponse, error)
	// Run runs one batch frame and returns after its last answer was given. ctx ends when nobody waits for the batch any
	// more. An error without a last answer becomes a failed result for every item.
	Run(ctx context.Context, batch []byte, give Give) error
	// Unload closes what the backend holds. No Run is going on when it is called.
	Unload(ctx context.Context) error
}

// Give sends a frame that answers the batch of a Run; last ends the batch. The segments must not change afterwards.
type Give func(last bool, frame frame.Buffers) error

// Options say what to serve. Backend, Handshake and MaxMessageBytes are required.
type Options struct {
	Backend         Backend
	Handshake       io.Writer // takes the handshake line; closed after it if it is an io.Closer
	MaxMessageBytes int       // largest gRPC message, for both directions
	Parallel        int       // how many batches Run gets at the same time; 0 means one
}

// Sizes in bytes. A window smaller than a payload only costs round trips, a larger one memory.
const (
	streamWindow = 64 << 20
	ioBuffer     = 256 << 10
)

// orphanGrace is how long a process stays to be killed by the lifeline when nobody has asked it to end.
const orphanGrace = time.Second

// inbox is how many batches wait in the process while Run is busy.
const inbox = 16

// Server is one backend process's side of the border. Make it with New, and call Serve once.
type Server struct {
	opts  Options
	grpc  *grpc.Server
	ready chan struct{} // closed by Serve once the handshake was written

	mu       sync.Mutex // guards the fields below
	loaded   bool
	streamed bool
	asked    bool      // Unload was called: the server is there and wants the end
	maxBody  int64     // LoadRequest.max_response_bytes
	active   int       // batches that were received and are not done with
	idle     sync.Cond // signalled when active becomes 0; its lock is mu

	stdout, stderr *os.File     // what user code may write to; go-plugin puts its own in their place
	unload         func() error // calls Backend.Unload the first time
}

// New checks the options and the environment: the process must have been started by the server.
func New(opts Options) (*Server, error) {
	if opts.Backend == nil || opts.Handshake == nil || opts.MaxMessageBytes <= 0 {
		return nil, errors.New("pluginserver: Backend, Handshake and MaxMessageBytes are required")
	}
	if opts.Parallel == 0 {
		opts.Parallel = 1
	}
	if err := CheckCookie(); err != nil {
		return nil, err
	}
	s := &Server{opts: opts, ready: make(chan struct{}), stdout: os.Stdout, stderr: os.Stderr}
	s.idle.L = &s.mu
	s.unload = sync.OnceValue(func() error {
		s.mu.Lock()
		loaded := s.loaded
		s.mu.Unlock()
		if !loaded {
			return nil
		}
		return opts.Backend.Unload(context.Background())
	})
	s.grpc = grpc.NewServer(
		grpc.ForceServerCodecV2(frame.Codec{}),
		grpc.MaxRecvMsgSize(opts.MaxMessageBytes), grpc.MaxSendMsgSize(opts.MaxMessageBytes),
		grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(streamWindow),
		grpc.ReadBufferSize(ioBuffer), grpc.WriteBufferSize(ioBuffer),
		grpc.WaitForHandlers(false), // a batch that does not end must not keep Serve from returning
	)
	return s, nil
}

// Ready is closed once the handshake was written.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Serve writes the handshake and serves until the server asks for the end, or goes away, and the backend is unloaded.
// While it runs, os.Stdout and os.Stderr belong to it.
func (s *Server) Serve() error {
	line, lineWriter, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("pipe for the handshake: %w", err)
	}
	os.Stdout = lineWriter // where go-plugin prints the handshake line
	served := make(chan struct{})
	go func() {
		defer close(served)
		plugin.Serve(&plugin.ServeConfig{
			HandshakeConfig: plugin.HandshakeConfig{
				ProtocolVersion:  backendv1.ProtocolVersion,
				MagicCookieKey:   backendv1.CookieKey,
				MagicCookieValue: backendv1.CookieValue,
			},
			Plugins:    plugin.PluginSet{backendv1.PluginName: service{server: s}},
			GRPCServer: func([]grpc.ServerOption) *grpc.Server { return s.grpc },
			Logger:     hclog.New(&hclog.LoggerOptions{Name: "flambeau", Level: hclog.Error, Output: s.stderr}),
		})
		// The line was either written before, or never will be.
		lineWriter.Close() //nolint:errcheck,gosec // nothing is left in it
	}()
	handshakeErr := s.forwardHandshake(line)
	if handshakeErr != nil {
		s.grpc.Stop()
	}
	<-served
	if handshakeErr != nil {
		return handshakeErr
	}
	s.waitIdle()
	err = s.unload()
	s.mu.Lock()
	asked := s.asked
	s.mu.Unlock()
	if !asked {
		// The server is gone, or has broken with this process. If it is gone, the lifeline is about to end the whole
		// group; a process that exits before that leaves its children behind.
		<-time.After(orphanGrace)
	}
	return err
}

// complain writes a line to the log of the process: there is nobody else to tell.
func (s *Server) complain(what string, err error) {
	_, _ = fmt.Fprintf(s.stderr, "flambeau: %s: %v\n", what, err)
}

// begin counts a batch as active, end as done with.
func (s *Server) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active++
}

func (s *Server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active--; s.active == 0 {
		s.idle.Broadcast()
	}
}

func (s *Server) waitIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.active > 0 {
		s.idle.Wait()
	}
}

// forwardHandshake takes the line from go-plugin and hands it on.
func (s *Server) forwardHandshake(line *os.File) error {
	defer line.Close() //nolint:errcheck // only read
	text, err := bufio.NewReader(line).ReadString('\n')
	if err != nil {
		return errors.New("go-plugin could not listen on its socket; standard error tells why")
	}
	if _, err := io.WriteString(s.opts.Handshake, text); err != nil {
		return fmt.Errorf("write the handshake: %w", err)
	}
	if c, ok := s.opts.Handshake.(io.Closer); ok {
		if err := c.Close(); err != nil {
			return fmt.Errorf("close after the handshake: %w", err)
		}
	}
	close(s.ready)
	return nil
}

// service registers the backend's service with go-plugin.
type service struct {
	plugin.NetRPCUnsupportedPlugin
	server *Server
}

var _ plugin.GRPCPlugin = service{}

// GRPCServer implements plugin.GRPCPlugin.
func (s service) GRPCServer(_ *plugin.GRPCBroker, g *grpc.Server) error {
	backendv1.RegisterBackendServer(g, &rpc{Server: s.server})
	return nil
}

// GRPCClient implements plugin.GRPCPlugin; this side has no client.
func (service) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.New("a backend process serves only")
}
