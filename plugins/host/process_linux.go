package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin/runner"
	"golang.org/x/sys/unix"

	"github.com/flambeau-serve/flambeau/plugins/backend"
	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
)

// process is one backend process and its process group, from before its start to after its reaping. It is the runner that
// go-plugin starts; nobody but watch waits for it or reaps it.
type process struct {
	spec    backend.ProcessSpec
	starter *starter

	// Set by runner, before the start.
	env       []string
	socketDir string

	handshake *handshakeReader
	lifeline  *os.File // its end means to the process that this server is gone
	frames    *os.File // the socket for batches, which whoever uses it takes over
	logs      []*os.File
	readers   sync.WaitGroup // of logs
	last      lastLines      // of stderr
	lastOut   lastLines      // of stdout
	kills     *killWatch
	contain   func(doing string, f func()) error
	began     time.Time // set by start

	done chan struct{} // closed by watch, after everything else; never if the process was not started
	exit exitState     // set before done is closed
	body autopsy       // the same

	mu      sync.Mutex // guards the fields below
	cmd     *exec.Cmd  // nil before the start
	doomed  bool       // to be killed, now or as soon as it is started
	cause   error      // why, nil if there is nothing to add
	gone    bool       // not to be signalled any more: its number may be another's
	failure error      // why it could not be started
	member  membership // of a control group
	peak    int64      // the most resident bytes that were seen
	address int64      // limit of its address space, 0 for none
}

var _ runner.Runner = (*process)(nil)

func newProcess(spec backend.ProcessSpec, s *starter, kills *killWatch, contain func(doing string, f func()) error) *process {
	if spec.Output == nil {
		spec.Output = func(backend.OutputLine) {}
	}
	out := spec.Output
	spec.Output = func(line backend.OutputLine) { // a stream that is not read on would hold the process up
		_ = contain("a worker's output was passed on", func() { out(line) })
	}
	return &process{spec: spec, starter: s, kills: kills, contain: contain, done: make(chan struct{})}
}

// runner is go-plugin's way in: it hands over what it adds to the environment, and its folder for the socket.
func (p *process) runner(maxMessageBytes int) func(hclog.Logger, *exec.Cmd, string) (runner.Runner, error) {
	return func(_ hclog.Logger, cmd *exec.Cmd, socketDir string) (runner.Runner, error) {
		p.socketDir = socketDir
		// The last of two entries of a name counts: the handshake's are not for the spec to set.
		p.env = append(append(slices.Clone(p.spec.Env), cmd.Env...), sizeEnv(maxMessageBytes))
		return p, nil
	}
}

// Start implements runner.Runner.
func (p *process) Start(context.Context) error {
	err := p.start()
	if err != nil {
		p.mu.Lock()
		p.failure = err
		p.mu.Unlock()
	}
	return err
}

func (p *process) start() error {
	var pipes pipeSet
	defer pipes.closeChildEnds()
	handshakeR, handshakeW := pipes.fromChild()
	stdoutR, stdoutW := pipes.fromChild()
	stderrR, stderrW := pipes.fromChild()
	lifelineW, lifelineR := pipes.toChild()
	frames, framesChild := pipes.pair()
	if pipes.err != nil {
		pipes.closeOwnEnds()
		return fmt.Errorf("pipes for a worker process: %w", pipes.err)
	}
	cmd := &exec.Cmd{
		Path: p.spec.Path, Args: append([]string{p.spec.Path}, p.spec.Args...), Env: p.env, Dir: p.spec.Dir,
		Stdout: handshakeW, Stderr: stderrW, // stdin is /dev/null
		ExtraFiles: []*os.File{lifelineR, stdoutW, framesChild}, // fd 3, 4 and 5
		// A group of its own, so that its children can be ended with it. The signal is a net below the lifeline: SIGKILL
		// would be faster than the lifeline, and leave the children alone.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: backendv1.OrphanSignal},
	}
	if !strings.Contains(cmd.Path, "/") {
		path, err := exec.LookPath(cmd.Path)
		if err != nil {
			pipes.closeOwnEnds()
			return err
		}
		cmd.Path = path
	}
	if err := p.starter.start(cmd); err != nil {
		pipes.closeOwnEnds()
		return err
	}
	p.handshake = &handshakeReader{file: handshakeR}
	p.lifeline, p.frames = lifelineW, frames
	p.logs = []*os.File{stdoutR, stderrR}
	p.readers.Go(func() { readLog(stdoutR, &lineParser{stream: backend.Stdout, out: p.spec.Output, keep: &p.lastOut}) })
	p.readers.Go(func() { readLog(stderrR, &lineParser{stream: backend.Stderr, out: p.spec.Output, keep: &p.last}) })
	p.began = time.Now()
	p.mu.Lock()
	p.cmd = cmd
	if p.doomed {
		p.signalGroup()
	}
	p.mu.Unlock()
	p.observe()
	go p.watch()
	return nil
}

// watch waits for the end of the process, ends what is left of its group, reaps it and closes everything.
func (p *process) watch() {
	defer close(p.done)
	awaitExit(p.cmd.Process.Pid)
	p.body.at = time.Now()
	p.mu.Lock()
	p.signalGroup() // its children: while it is not reaped, its number cannot be another group's
	p.gone = true
	killed := p.doomed
	p.mu.Unlock()
	// An exit status other than 0 is no error here.
	_ = p.cmd.Wait()
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok {
		p.exit.code = status.ExitStatus()
		if status.Signaled() {
			p.exit.signal = status.Signal()
			p.exit.killed = killed && status.Signal() == syscall.SIGKILL
			p.exit.core = status.CoreDump()
		}
	}
	_ = p.contain("the end of a worker was examined", p.examine) // it costs what is known about the end
	p.handshake.close()
	closeFile(p.lifeline)
	closeFile(p.frames)
	for _, f := range p.logs {
		// Whoever else holds the other end may hold it for ever.
		_ = f.SetReadDeadline(time.Unix(1, 0))
	}
	p.readers.Wait()
	for _, f := range p.logs {
		closeFile(f)
	}
}

// kill ends the whole process group, now or as soon as it is there. The first cause is kept.
func (p *process) kill(cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return
	}
	if !p.doomed {
		p.doomed, p.cause = true, cause
	}
	if p.cmd != nil {
		p.signalGroup()
	}
}

// settle waits for a process that should be ending, and kills it if it is not.
func (p *process) settle(ctx context.Context, cause error) {
	select {
	case <-p.done:
	case <-ctx.Done():
	case <-time.After(settleLimit):
		p.kill(fmt.Errorf("its connection broke: %w", cause))
	}
}

// signalGroup is called with mu held.
func (p *process) signalGroup() {
	// The only failure is that all of the group is gone.
	_ = unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL)
}

// killCause is why this server killed the process, nil if it did not or there is nothing to say.
func (p *process) killCause() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cause
}

// started tells whether there has been a process, and why not.
func (p *process) started() (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd != nil, p.failure
}

func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Wait implements runner.Runner.
func (p *process) Wait(context.Context) error {
	<-p.done
	if p.exit.code != 0 {
		return errors.New(p.exit.String())
	}
	return nil
}

// Kill implements runner.Runner. Launch and attend end the process before they let go-plugin clean up; go-plugin itself
// would kill one that is just ending by itself, and nobody could tell why it ended.
func (p *process) Kill(context.Context) error { return nil }

// Stdout implements runner.Runner: where the handshake comes from.
func (p *process) Stdout() io.ReadCloser { return p.handshake }

// Stderr implements runner.Runner. The log is not go-plugin's to read.
func (p *process) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Name implements runner.Runner.
func (p *process) Name() string { return p.spec.Path }

// ID implements runner.Runner; go-plugin takes an empty one for a process that was never started.
func (p *process) ID() string {
	if pid := p.pid(); pid != 0 {
		return strconv.Itoa(pid)
	}
	return ""
}

// Diagnose implements runner.Runner; startError does it with more knowledge.
func (p *process) Diagnose(context.Context) string { return "" }

// PluginToHost implements runner.Runner: both see the same files.
func (p *process) PluginToHost(network, addr string) (string, string, error) {
	return network, addr, nil
}

// HostToPlugin implements runner.Runner.
func (p *process) HostToPlugin(network, addr string) (string, string, error) {
	return network, addr, nil
}

// awaitExit waits until the process can be reaped, and does not reap it.
func awaitExit(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// handshakeReader is what go-plugin reads the handshake from; it keeps the beginning of it for messages.
type handshakeReader struct {
	file *os.File

	mu   sync.Mutex // guards head
	head []byte
}

// keptHandshake is how much of the handshake is kept, in bytes.
const keptHandshake = 512

// Read implements io.Reader.
func (r *handshakeReader) Read(b []byte) (int, error) {
	n, err := r.file.Read(b)
	if errors.Is(err, os.ErrClosed) {
		err = io.EOF // the process is gone, and somebody else holds the other end
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.head = append(r.head, b[:min(n, keptHandshake-len(r.head))]...)
	return n, err
}

// Close implements io.Closer. watch closes the pipe.
func (r *handshakeReader) Close() error { return nil }

func (r *handshakeReader) close() { closeFile(r.file) }

// firstLine is what came in place of the handshake, "" if nothing did.
func (r *handshakeReader) firstLine() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	line, _, _ := strings.Cut(string(r.head), "\n")
	return strings.ToValidUTF8(strings.TrimSpace(line), "\uFFFD")
}

// readLog reads lines until the other end is closed, or a read deadline says that the process is gone.
func readLog(f *os.File, p *lineParser) {
	s := &splitter{limit: maxLine, emit: p.line}
	defer s.flush()
	if _, err := io.Copy(s, fileOnly{f}); errors.Is(err, os.ErrDeadlineExceeded) {
		readLeft(f, s)
	}
}

// fileOnly hides that a file has other ways to copy itself.
type fileOnly struct{ io.Reader }

// maxLeft is how much is read of a pipe whose process is gone, in bytes: what a pipe can hold. More can only come from a
// process that has left the group.
const maxLeft = 1 << 20

// readLeft reads what is in the pipe, without waiting for more.
func readLeft(f *os.File, s *splitter) {
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		return
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, maxLine)
	// An error is the end of reading, too.
	_ = conn.Read(func(fd uintptr) bool {
		for total := 0; total < maxLeft; {
			n, err := syscall.Read(int(fd), buf)
			if errors.Is(err, syscall.EINTR) {
				continue
			}
			if n <= 0 {
				break
			}
			_, _ = s.Write(buf[:n])
			total += n
		}
		return true
	})
}
