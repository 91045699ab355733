package deps

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// outputDelay is how long output is waited for when the script has ended and something that it started still holds the pipe.
const outputDelay = 2 * time.Second

// run runs the script in the model's folder, in a process group of its own, which ends with ctx or with this server.
func (i *Installer) run(ctx context.Context, r Request, stdout, stderr io.Writer, args ...string) error {
	script, err := i.opts.Script()
	if err != nil {
		return err //nolint:wrapcheck // it says what is missing
	}
	lifelineR, lifelineW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = lifelineW.Close() }()                                             // a pipe has nothing to lose
	cmd := exec.CommandContext(ctx, r.Interpreter, append([]string{script}, args...)...) //nolint:gosec // the server's own interpreter and script
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = r.Dir, i.opts.Env, stdout, stderr
	cmd.ExtraFiles = []*os.File{lifelineR}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // it is not reaped yet: the group is its own
	cmd.WaitDelay = outputDelay
	err = cmd.Start()
	_ = lifelineR.Close()
	if err != nil {
		return err
	}
	err = cmd.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil // the script itself has ended well
	}
	return err
}

func exitStatus(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return -1
}

const (
	keptLines   = 30 // of what the script says, for the log
	shownLines  = 3  // for the client
	longestLine = 300
	reportEvery = 10 * time.Second
)

// lastLines keeps the end of what the script says, and tells the log about it. It is an io.Writer.
type lastLines struct {
	log *slog.Logger

	mu    sync.Mutex // guards what follows
	open  []byte     // a line without its end
	lines []string
}

// Write takes output and never fails.
func (l *lastLines) Write(p []byte) (int, error) {
	var whole []string
	l.mu.Lock()
	l.open = append(l.open, p...)
	for {
		at := bytes.IndexAny(l.open, "\r\n")
		if at < 0 {
			break
		}
		if line := clean(l.open[:at]); line != "" {
			whole = append(whole, line)
		}
		l.open = l.open[at+1:]
	}
	if len(l.open) > 1<<16 { // no line of pip's
		l.open = l.open[:0]
	}
	l.lines = append(l.lines, whole...)
	l.lines = l.lines[max(len(l.lines)-keptLines, 0):]
	l.mu.Unlock()
	for _, line := range whole {
		l.log.Debug("pip says", "message", line)
	}
	return len(p), nil
}

func clean(line []byte) string {
	text := strings.TrimRight(strings.ToValidUTF8(string(line), "?"), " \t")
	if len(text) > longestLine {
		text = strings.ToValidUTF8(text[:longestLine], "") + "…"
	}
	return text
}

// text gives the last n lines, without those that pip always writes.
func (l *lastLines) text(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var kept []string
	for _, line := range append(l.lines, clean(l.open)) {
		if line != "" && !strings.HasPrefix(line, "[notice]") && !strings.HasPrefix(line, "Looking in ") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept[max(len(kept)-n, 0):], "\n")
}

// report tells the log from time to time how far the script is, until the function that it gives is called.
func (l *lastLines) report(begun time.Time) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(reportEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				l.log.Info("still installing the model's packages", "after", since(begun).Round(time.Second), "message", l.text(1))
			case <-quit:
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}
