package pluginserver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
)

// ErrByHand is wrapped by the error of a process that the server did not start.
var ErrByHand = errors.New("this program is a backend of the Flambeau model server and is started by it, not by hand")

// CheckCookie tells a process that was started by the server from one that was started by hand.
func CheckCookie() error {
	if os.Getenv(backendv1.CookieKey) != backendv1.CookieValue {
		return fmt.Errorf("%w: put its folder into the model store instead (%s is not set to this version's value; %s)",
			ErrByHand, backendv1.CookieKey, backendv1.ProtocolMarker)
	}
	return nil
}

// MaxMessageBytes reads the message limit that the server has set in the environment.
func MaxMessageBytes() (int, error) {
	text := os.Getenv(backendv1.EnvMaxMessageBytes)
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("%s is %q instead of a number of bytes: the server sets it", backendv1.EnvMaxMessageBytes, text)
	}
	return n, nil
}

// TakeHandshake keeps fd 1 for the handshake line and points fd 1 at the log: whatever prints from now on, in this process
// or in one that the handler starts, is a log line. Call it once, in a process with the descriptors that the server gives.
func TakeHandshake() (*os.File, error) {
	syscall.ForkLock.RLock() // no fork between the duplicate and its close-on-exec
	fd, err := syscall.Dup(backendv1.HandshakeFD)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("duplicate the handshake's descriptor: %w", err)
	}
	if err := syscall.Dup3(backendv1.StdoutFD, backendv1.HandshakeFD, 0); err != nil {
		return nil, fmt.Errorf("point standard output at the log (fd %d): %w", backendv1.StdoutFD, err)
	}
	// The log has its copy as fd 1; a program that the handler starts is not to hold the lifeline or a second copy.
	syscall.CloseOnExec(backendv1.StdoutFD)
	syscall.CloseOnExec(backendv1.LifelineFD)
	syscall.CloseOnExec(backendv1.FramesFD) // whatever it is: it is not for others
	return os.NewFile(uintptr(fd), "handshake"), nil
}

// takeSocket takes a descriptor over that has to be a socket: no program that the handler starts is to have it.
func takeSocket(fd int) (*os.File, error) {
	var about syscall.Stat_t
	if err := syscall.Fstat(fd, &about); err != nil {
		return nil, fmt.Errorf("descriptor %d is not open: %w", fd, err)
	}
	if about.Mode&syscall.S_IFMT != syscall.S_IFSOCK {
		return nil, fmt.Errorf("descriptor %d is no socket", fd)
	}
	syscall.CloseOnExec(fd)
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("descriptor %d: %w", fd, err)
	}
	return os.NewFile(uintptr(fd), "frames"), nil
}

// WatchLifeline kills the process group of this process when the lifeline ends, that is when the server is gone: it does
// not help then to end politely, and a handler may be in a loop that nothing else gets out of. It refuses what is no pipe:
// the process was not started by a server then, and its group is not its own to kill.
func WatchLifeline(lifeline *os.File) error {
	info, err := lifeline.Stat()
	if err != nil {
		return fmt.Errorf("the lifeline to the server is not open: %w", err)
	}
	if info.Mode()&os.ModeNamedPipe == 0 {
		return fmt.Errorf("the lifeline to the server is no pipe but %v", info.Mode())
	}
	signal.Ignore(syscall.Signal(backendv1.OrphanSignal)) // the lifeline ends the children, too
	go func() {
		// Nothing is ever written to it; an error means as much as its end.
		io.Copy(io.Discard, lifeline) //nolint:errcheck,gosec // see above
		// 0 is the own group, this process included: nothing runs after it.
		syscall.Kill(0, syscall.SIGKILL) //nolint:errcheck,gosec // cannot fail for the own group
	}()
	return nil
}
