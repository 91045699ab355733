// Package host runs backend processes: it starts them through go-plugin, hands batches over, and tells of their death.
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/flambeau-serve/flambeau/internal/cgroup"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
)

// Options say how backend processes are run. All are required but Logger.
type Options struct {
	// SocketDir is the folder for the sockets. It is made if it is missing, must be private (mode 0700), belongs to one
	// launcher at a time, and is emptied of what an earlier launcher left. Its path must be short: see MaxSocketDir.
	SocketDir string
	// MaxMessageBytes is the largest message to and from a backend, hence of a whole batch and of all its answers.
	MaxMessageBytes int
	// Limits bound Launch (Start), Load (Load) and Stop (Stop), in addition to the contexts of the calls.
	Limits backend.Limits
	// Heartbeat says how processes are found that live and do nothing. Zero values mean the defaults.
	Heartbeat Heartbeat
	// Logger gets go-plugin's events at debug level; nil drops them.
	Logger *slog.Logger
	// Panicked is told of each panic that was contained: it has cost an instance, or less. It must not block. Nil logs it.
	Panicked func(error)
}

// What go-plugin puts below SocketDir, at its longest.
const longestSocket = "/plugin-dir4294967295/plugin4294967295"

// MaxSocketDir is the longest path of Options.SocketDir in bytes: a socket's path has at most 107.
const MaxSocketDir = 107 - len(longestSocket)

// Sizes in bytes. A window smaller than a payload only costs round trips, a larger one memory.
const (
	streamWindow = 64 << 20
	ioBuffer     = 256 << 10
)

// settleLimit is how long a process whose connection is broken may take to be found dead; then it is killed, since nothing
// can be asked of it any more.
const settleLimit = time.Second

const textClosing = "no worker is started while the server shuts down"

// Launcher starts backend processes. It implements backend.Launcher. Close ends it.
type Launcher struct {
	opts    Options
	lock    *os.File // of SocketDir
	starter *starter
	kills   *killWatch

	mu        sync.Mutex // guards the fields below
	closed    bool
	instances map[*instance]struct{}
	users     sync.WaitGroup // launches that go on, and instances that are not done
}

var _ backend.Launcher = (*Launcher)(nil)

// New checks the options and takes the folder for the sockets.
func New(opts Options) (*Launcher, error) {
	if opts.MaxMessageBytes <= 0 || opts.Limits.Start <= 0 || opts.Limits.Load <= 0 || opts.Limits.Stop <= 0 {
		return nil, errors.New("host: MaxMessageBytes and all of Limits are required")
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	opts.Heartbeat.Interval = cmp.Or(opts.Heartbeat.Interval, DefaultInterval)
	opts.Heartbeat.Patience = cmp.Or(opts.Heartbeat.Patience, DefaultPatience)
	dir, err := filepath.Abs(opts.SocketDir)
	if opts.SocketDir == "" || err != nil {
		return nil, fmt.Errorf("host: SocketDir %q is required: %w", opts.SocketDir, err)
	}
	if len(dir) > MaxSocketDir {
		return nil, fmt.Errorf("the folder for sockets %s has a path of %d bytes, but the path of a socket below it has room for %d: name a shorter one",
			dir, len(dir), MaxSocketDir)
	}
	opts.SocketDir = dir
	lock, err := takeSocketDir(dir)
	if err != nil {
		return nil, err
	}
	return &Launcher{
		opts: opts, lock: lock, starter: newStarter(), kills: newKillWatch(cgroup.System{}), instances: make(map[*instance]struct{}),
	}, nil
}

// takeSocketDir makes sure that the folder is this launcher's alone, and empties it. The file keeps it so until it is closed.
func takeSocketDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the folder for sockets: %w", err)
	}
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_DIRECTORY, 0) // nobody else's link is followed
	if err != nil {
		return nil, fmt.Errorf("the folder for sockets: %w", err)
	}
	var stat unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &stat)
	switch mode := stat.Mode & 0o777; {
	case err != nil:
	case int(stat.Uid) != os.Geteuid(): // who owns it can put another socket in the place of a worker's
		err = fmt.Errorf("it belongs to another user (number %d): name a folder of your own", stat.Uid)
	case mode&0o077 != 0:
		err = fmt.Errorf("others than its owner have rights to it (mode %04o): set mode 0700", mode)
	default:
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
			err = errors.New("another server uses it: name another folder, or stop that server")
		}
	}
	if err != nil {
		closeFile(f)
		return nil, fmt.Errorf("the folder for sockets %s: %w", dir, err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "plugin-dir*"))
	for _, path := range left {
		err = errors.Join(err, os.RemoveAll(path))
	}
	if err != nil {
		closeFile(f)
		return nil, fmt.Errorf("empty the folder for sockets: %w", err)
	}
	return f, nil
}

// Launch implements backend.Launcher. It fails with fault.StartFailed, and leaves nothing behind then.
func (l *Launcher) Launch(ctx context.Context, spec backend.ProcessSpec) (backend.Instance, error) {
	if !l.begin() {
		return nil, fault.New(fault.StartFailed, textClosing, nil)
	}
	limit := l.opts.Limits.Start
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it gave no handshake within %v, the start limit", limit))
	defer cancel()
	p := newProcess(spec, l.starter, l.kills, l.contain)
	client := plugin.NewClient(l.clientConfig(p))
	// go-plugin's calls know no context: the end of the process ends them.
	unwatch := context.AfterFunc(ctx, func() { p.kill(context.Cause(ctx)) })
	conn, err := connect(ctx, client)
	awaitDeadline(ctx, err)
	if !unwatch() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		err = l.abandon(ctx, p, client, err)
		l.users.Done()
		return nil, err
	}
	i := newInstance(uuid.NewString(), l, p, client, conn)
	l.mu.Lock()
	l.instances[i] = struct{}{}
	late := l.closed
	l.mu.Unlock()
	i.workers.Go(i.watch)
	go i.attend()
	if late { // Close does not know of it
		return nil, fault.New(fault.StartFailed, textClosing, i.Stop(ctx))
	}
	return i, nil
}

// contain calls f, and tells of a panic in it, which it gives.
func (l *Launcher) contain(doing string, f func()) error {
	return fault.ContainAndTell(doing, f, l.opts.Panicked, l.opts.Logger)
}

// begin counts a launch, unless the launcher is closed.
func (l *Launcher) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.users.Add(1)
	}
	return !l.closed
}

// forget is called by an instance at its end.
func (l *Launcher) forget(i *instance) {
	l.mu.Lock()
	delete(l.instances, i)
	l.mu.Unlock()
	l.users.Done()
}

// Close stops every instance as its Stop does, lets launches that go on end, and returns when no process is left. No
// instance can be launched after it.
func (l *Launcher) Close(ctx context.Context) error {
	l.mu.Lock()
	again := l.closed
	l.closed = true
	var errs []error
	var stops sync.WaitGroup
	results := make(chan error, len(l.instances))
	for i := range l.instances {
		stops.Go(func() { results <- i.Stop(ctx) })
	}
	l.mu.Unlock()
	stops.Wait()
	close(results)
	for err := range results {
		errs = append(errs, err)
	}
	l.users.Wait()
	if !again {
		l.starter.close()
		closeFile(l.lock)
	}
	return errors.Join(errs...)
}

func (l *Launcher) clientConfig(p *process) *plugin.ClientConfig {
	size := l.opts.MaxMessageBytes
	return &plugin.ClientConfig{
		HandshakeConfig: plugin.HandshakeConfig{
			ProtocolVersion:  backendv1.ProtocolVersion,
			MagicCookieKey:   backendv1.CookieKey,
			MagicCookieValue: backendv1.CookieValue,
		},
		Plugins:          plugin.PluginSet{backendv1.PluginName: connection{}},
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		RunnerFunc:       p.runner(size),
		StartTimeout:     2 * l.opts.Limits.Start, // ours is Launch's context, which ends earlier
		SkipHostEnv:      true,
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: l.opts.SocketDir},
		Logger:           pluginLogger{logger: l.opts.Logger},
		GRPCDialOptions: []grpc.DialOption{
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(size), grpc.MaxCallSendMsgSize(size)),
			grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(streamWindow),
			grpc.WithReadBufferSize(ioBuffer), grpc.WithWriteBufferSize(ioBuffer),
			grpc.WithNoProxy(), grpc.WithAuthority("localhost"),
		},
	}
}

// connect gives the connection to a process that has done its handshake and says that it is well.
func connect(ctx context.Context, client *plugin.Client) (*grpc.ClientConn, error) {
	protocol, err := client.Client()
	if err != nil {
		return nil, err
	}
	raw, err := protocol.Dispense(backendv1.PluginName)
	if err != nil {
		return nil, err
	}
	conn, ok := raw.(*grpc.ClientConn)
	if !ok {
		return nil, fmt.Errorf("go-plugin gave a %T for a connection", raw)
	}
	health, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: plugin.GRPCServiceName})
	if err != nil {
		return nil, fmt.Errorf("it does not answer on its socket: %w", err)
	}
	if s := health.GetStatus(); s != grpc_health_v1.HealthCheckResponse_SERVING {
		return nil, fmt.Errorf("it says that its state is %v", s)
	}
	return conn, nil
}

// abandon ends a process whose start failed, and everything about it. It returns after the process is reaped.
func (l *Launcher) abandon(ctx context.Context, p *process, client *plugin.Client, err error) error {
	ran, failure := p.started()
	if ran && ctx.Err() == nil && p.handshake.firstLine() == "" {
		// It has closed its standard output: most likely it is ending, and how it ends is what there is to tell.
		p.settle(ctx, err)
	}
	p.kill(nil)
	if ran {
		<-p.done
	}
	client.Kill() // waits for go-plugin's own goroutines; nothing is left to be killed
	if p.socketDir != "" {
		err = errors.Join(err, os.RemoveAll(p.socketDir))
	}
	return startError(ctx, p, ran, failure, err)
}

// startError tells why a process did not start, for somebody who cannot see it.
func startError(ctx context.Context, p *process, ran bool, failure, err error) error {
	f := fault.New(fault.StartFailed, "", err)
	if !ran {
		f.Message = "the worker process " + p.spec.Path + " could not be started"
		f.Hint = "Check that the program exists and may be run, and that its folder is there."
		if failure != nil {
			f.Cause = failure
		}
		return f
	}
	f.Detail = lastWords(p.exit.String(), p.last.get())
	what := "the worker process " + p.spec.Path
	switch line := p.handshake.firstLine(); {
	case errors.Is(ctx.Err(), context.Canceled):
		f.Message, f.Cause = "the start of "+what+" was given up", context.Cause(ctx)
	case ctx.Err() != nil:
		f.Message, f.Cause = what+" was not ready in time", context.Cause(ctx)
		f.Hint = "See its last lines in the log; a slow machine may need a longer start limit."
	case line != "" && !isHandshake(line):
		f.Message, f.Cause = fmt.Sprintf("%s wrote %q to standard output before its handshake: nothing may be printed until that is done", what, line), nil
		f.Hint = "Look for prints in code that runs at the very start: sitecustomize for instance, or in Go what comes before handlersdk.Serve."
	case line != "" && versionOf(line) != strconv.Itoa(backendv1.ProtocolVersion):
		f.Message = fmt.Sprintf("%s speaks version %s of the protocol between server and worker, and this server speaks version %d", what, versionOf(line), backendv1.ProtocolVersion)
		f.Hint = "Build it again with the SDK of this server's version, or run the server that it was built for; `flambeau check` tells the version without running it."
	case line != "":
		f.Message = what + " did its handshake, but cannot be used"
		f.Hint = "The worker and the server may be of different versions."
	default:
		f.Message = fmt.Sprintf("%s ended before its handshake (%v)", what, p.exit)
		f.Hint = "See its last lines in the log."
	}
	return f
}

// versionOf is the version of the protocol in a handshake's line.
func versionOf(line string) string {
	_, rest, _ := strings.Cut(line, "|")
	version, _, _ := strings.Cut(rest, "|")
	return version
}

// connection is the client side of the plugin: the gRPC connection itself.
type connection struct{ plugin.NetRPCUnsupportedPlugin }

var _ plugin.GRPCPlugin = connection{}

// GRPCServer implements plugin.GRPCPlugin; this side serves nothing.
func (connection) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error { return nil }

// GRPCClient implements plugin.GRPCPlugin.
func (connection) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return c, nil
}

// sizeEnv is the environment entry that tells the process the message limit.
func sizeEnv(size int) string { return backendv1.EnvMaxMessageBytes + "=" + strconv.Itoa(size) }
