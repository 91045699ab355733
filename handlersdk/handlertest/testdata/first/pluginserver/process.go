package pluginserver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	backendv1 "github.com/flambeau-serve/flambeau/handlersdk/handlertest/testdata/first/backendv1"
)

// ErrByHand is wrapped by the error of a process that the server did not start.
var ErrByHand = errors.New("this program is a backend of the Flambeau model server and is started by it, not by hand")

// CheckCookie tells a process that was started by the server from one that was started by hand.
func CheckCookie() error {
	if os.Getenv(backendv1.CookieKey) != backendv1.CookieValue {
		return fmt.Errorf("%w: name it as a model's backend in the server's configuration instead (%s is not set to this version's value)",
			ErrByHand, backendv1.CookieKey)
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
