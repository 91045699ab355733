package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

// readyVariable tells a server that was started in the background where to say that it is up.
const readyVariable = "FLAMBEAU_READY_FD"

// readyFD is the descriptor of the pipe in the new process: the first one after stdin, stdout and stderr.
const readyFD = 3

// readySignal is what goes through it.
const readySignal = "up\n"

// readiness is the pipe to whoever started this process; nil when nobody waits.
type readiness struct{ pipe *os.File }

// readyPipe gives the pipe, if this process was started in the background, and hides it from everything that is started from here.
func (p *program) readyPipe() (*readiness, bool) {
	for i, entry := range p.environ {
		value, ok := strings.CutPrefix(entry, readyVariable+"=")
		if !ok {
			continue
		}
		p.environ = append(p.environ[:i:i], p.environ[i+1:]...)
		fd, err := strconv.Atoi(value)
		if err != nil || fd != readyFD {
			return nil, false
		}
		syscall.CloseOnExec(fd)
		return &readiness{pipe: os.NewFile(uintptr(fd), "ready")}, true
	}
	return nil, false
}

// tell says that the server is up.
func (r *readiness) tell() {
	if r == nil {
		return
	}
	// Nobody may be there any more, which changes nothing for the server.
	_, _ = io.WriteString(r.pipe, readySignal)
	_ = r.pipe.Close()
}

// startInBackground runs this command again in a session of its own, and returns when that server is up, or why it is not.
func (p *program) startInBackground(ctx context.Context, args []string) int {
	status, err := p.spawn(ctx, args)
	if err != nil {
		return p.fail("torchserve", err)
	}
	return status
}

func (p *program) spawn(ctx context.Context, args []string) (int, error) {
	// Both files follow the streams that this process has, as TorchServe's server does.
	exe, err := os.Executable()
	if err != nil {
		return exitFailed, fmt.Errorf("the place of this program is not known: %w", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return exitFailed, err
	}
	defer func() { _ = null.Close() }() // the child has its own
	wait, tell, err := os.Pipe()
	if err != nil {
		return exitFailed, err
	}
	defer func() { _ = wait.Close() }() // it was only read from
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(interrupts)
	//nolint:gosec // the same program with the same arguments
	child, err := os.StartProcess(exe, append([]string{exe, "torchserve"}, args...), &os.ProcAttr{
		Env: append(p.environ, fmt.Sprintf("%s=%d", readyVariable, readyFD)), Files: []*os.File{null, os.Stdout, os.Stderr, tell},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	_ = tell.Close() // the child's copy is what counts
	if err != nil {
		return exitFailed, fmt.Errorf("the server cannot be started: %w", err)
	}
	up := make(chan bool, 1)
	go func() { // ends with the pipe: when the server is up, or gone
		text, _ := io.ReadAll(wait) // an error is the end, too
		up <- string(text) == readySignal
	}()
	select {
	case isUp := <-up:
		if isUp {
			return exitOK, child.Release()
		}
	case <-interrupts:
		_ = child.Signal(syscall.SIGTERM) // gone already: the wait below tells
	case <-ctx.Done():
		_ = child.Signal(syscall.SIGTERM)
	}
	return endOf(child)
}

// endOf waits for a server that did not come up.
func endOf(child *os.Process) (int, error) {
	state, err := child.Wait()
	if err != nil {
		return exitFailed, fmt.Errorf("the server did not come up: %w", err)
	}
	if code := state.ExitCode(); code > 0 {
		return code, nil // it has said why
	}
	return exitFailed, fmt.Errorf("the server did not come up: %s", state)
}
