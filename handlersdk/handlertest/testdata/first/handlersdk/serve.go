package handlersdk

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	backendv1 "github.com/flambeau-serve/flambeau/handlersdk/handlertest/testdata/first/backendv1"
	"github.com/flambeau-serve/flambeau/handlersdk/handlertest/testdata/first/pluginserver"
)

// Serve serves h to the server that started this process, until the server asks for the end; then it exits the process.
// Call it first thing in main: nothing may be written to standard output before it. What the handler writes to standard
// output and standard error goes to the server's log of the model.
func Serve(h Handler) {
	if err := serve(h); err != nil {
		fmt.Fprintln(os.Stderr, "flambeau:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(h Handler) error {
	if h == nil {
		return errors.New("handlersdk.Serve was called without a handler")
	}
	if err := pluginserver.CheckCookie(); err != nil {
		return err
	}
	limit, err := pluginserver.MaxMessageBytes()
	if err != nil {
		return err
	}
	if err := pluginserver.WatchLifeline(os.NewFile(backendv1.LifelineFD, "lifeline")); err != nil {
		return err
	}
	handshake, err := takeHandshake()
	if err != nil {
		return err
	}
	server, err := pluginserver.New(pluginserver.Options{
		Backend: &adapter{handler: h}, Handshake: handshake, MaxMessageBytes: limit,
	})
	if err != nil {
		return err
	}
	return server.Serve()
}

// takeHandshake keeps fd 1 for the handshake line and points fd 1 at the log: whatever prints from now on, in this process
// or in one that the handler starts, is a log line.
func takeHandshake() (*os.File, error) {
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
	return os.NewFile(uintptr(fd), "handshake"), nil
}
