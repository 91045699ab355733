package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/argparse"
	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/pidfile"
	"github.com/flambeau-serve/flambeau/frontend/httpapi/token"
	"github.com/flambeau-serve/flambeau/internal/config"
)

// torchserveCommand is TorchServe's command line.
func torchserveCommand() *argparse.Command {
	options := []argparse.Option{
		{Names: []string{"-v", "--version"}, Help: "Show the version of TorchServe whose place this takes."},
		{Names: []string{"--start"}, Help: "Start the server; what happens without any of these three."},
		{Names: []string{"--stop"}, Help: "Stop the server that was started in this way."},
	}
	options = append(options, settingOptions()...)
	return &argparse.Command{
		Prog: "torchserve", About: "TorchServe's command line, for Flambeau.", Exclusive: []string{"--version", "--start", "--stop"},
		Options: append(options,
			argparse.Option{Names: []string{"--log-config"}, Kind: argparse.Value, Metavar: "FILE", Help: "Accepted; log4j settings have no effect here."},
			argparse.Option{Names: []string{"--cpp-log-config"}, Kind: argparse.Value, Metavar: "FILE", Help: "Accepted; there are no C++ workers here."},
			argparse.Option{Names: []string{"--foreground"}, Help: "With --start: stay in the foreground. With --stop: print nothing but failures."},
			argparse.Option{Names: []string{"--no-config-snapshots", "--ncs"}, Help: "Neither restore the settings and models of the last run, nor keep those of this one."},
			argparse.Option{Names: []string{"--plugins-path", "--ppath"}, Kind: argparse.Value, Metavar: "DIR", Help: "Accepted; Java plugins cannot run here."},
		),
	}
}

// torchserve is the torchserve command: it prints TorchServe's lines to stdout and gives its exit statuses, but for those that were not true.
func (p *program) torchserve(ctx context.Context, args []string) int {
	parsed, status := p.parse(torchserveCommand(), args)
	if parsed == nil {
		return status
	}
	if parsed.Has("--version") {
		p.say("TorchServe Version is " + torchServeVersion)
		return exitOK
	}
	path := filepath.Join(config.PIDDir(p.environ), pidfile.Name)
	awaitLastThread(ctx, path)
	removed, err := pidfile.RemoveOrphan(path)
	if removed {
		p.say("Removing orphan pid file.")
	}
	if err != nil {
		return p.fail("torchserve", err)
	}
	state, pid, err := pidfile.Look(path)
	if err != nil {
		return p.fail("torchserve", err)
	}
	if parsed.Has("--stop") {
		return p.stop(ctx, path, state == pidfile.Running, pid, parsed.Has("--foreground"))
	}
	if state == pidfile.Running {
		p.say("TorchServe is already running, please use torchserve --stop to stop TorchServe.")
		return exitFailed
	}
	return p.start(ctx, parsed, args, path)
}

// awaitLastThread waits for a server that was killed in this moment: its process is gone already, and its file still locked.
func awaitLastThread(ctx context.Context, path string) {
	ctx, cancel := context.WithTimeout(ctx, lastThreadLimit)
	defer cancel()
	tick := time.NewTicker(stopPoll)
	defer tick.Stop()
	for {
		state, pid, err := pidfile.Look(path)
		if err != nil || state != pidfile.Running || pid == 0 || !hasEnded(pid) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// say prints a line of TorchServe's.
func (p *program) say(line string) { printf(p.stdout, "%s\n", line) }

// start starts the server, in the foreground or not.
func (p *program) start(ctx context.Context, parsed *argparse.Args, args []string, pidPath string) int {
	cfg, status := p.startSettings(parsed)
	if cfg == nil {
		return status
	}
	ready, inBackground := p.readyPipe()
	if !inBackground && !parsed.Has("--foreground") {
		return p.startInBackground(ctx, args)
	}
	held, err := pidfile.Take(pidPath)
	if _, running := errors.AsType[*pidfile.RunningError](err); running {
		p.say("TorchServe is already running, please use torchserve --stop to stop TorchServe.")
		return exitFailed
	}
	if err != nil {
		return p.fail("torchserve", err)
	}
	terminal := newConsole(p.stdout)
	status = p.runLogged(ctx, "torchserve", cfg, terminal, func(*server) progress {
		return tellStarted{announcement{terminal}, func() {
			terminal.flush() // whoever started this in the background is to see it before the command ends
			ready.tell()
		}}
	})
	terminal.close()
	if err := held.Release(); err != nil {
		return p.fail("torchserve", err)
	}
	return status
}

// startSettings checks what TorchServe's command checks, in its order and words, and reads the settings. Nil: the exit status is the answer.
func (p *program) startSettings(parsed *argparse.Args) (*config.Config, int) {
	if file := parsed.Get("--log-config"); file != "" {
		if !isFile(file) {
			return p.missing("--log-config file not found: " + realPath(file))
		}
		printf(p.stderr, "torchserve: warning: --log-config has no effect: %s is for log4j\n", file)
	}
	if temp := p.getenv("TEMP"); temp != "" && !isDir(temp) {
		return p.missing("Invalid temp directory: " + temp + ", please check TEMP environment variable.")
	}
	src := p.source(parsed)
	if !parsed.Has("--no-config-snapshots") {
		p.lookForSnapshots(&src)
	}
	if file := config.FindFile(src); file != "" && !isFile(file) {
		return p.missing("--ts-config file not found: " + file)
	}
	cfg, err := config.Load(src)
	if err != nil {
		return nil, p.fail("torchserve", fmt.Errorf("Invalid configuration: %w", err)) //nolint:staticcheck // TorchServe's words
	}
	workflows := parsed.Get("--workflow-store")
	cpp := parsed.Get("--cpp-log-config")
	switch {
	case cfg.ModelStore == "":
		return p.missing("Missing mandatory parameter --model-store")
	case !isDir(cfg.ModelStore):
		return p.missing("--model-store directory not found: " + cfg.ModelStore)
	case workflows != "" && !isDir(workflows):
		return p.missing("--workflow-store directory not found: " + workflows)
	case cpp != "" && !isFile(cpp):
		return p.missing("--cpp-log-config file not found: " + realPath(cpp))
	}
	return cfg, exitOK
}

func (p *program) missing(line string) (*config.Config, int) {
	p.say(line)
	return nil, exitFailed
}

// realPath is the path as Python's os.path.realpath has it.
func realPath(path string) string {
	if r, err := filepath.EvalSymlinks(path); err == nil {
		path = r
	}
	return absolute(path)
}

const (
	stopLimit       = 60 * time.Second // for --stop: TorchServe's, of --stop --foreground
	stopPoll        = 20 * time.Millisecond
	lastThreadLimit = 2 * time.Second
)

// stop ends the server and waits until it is gone.
func (p *program) stop(ctx context.Context, path string, running bool, pid int, quiet bool) int {
	if !running || pid == 0 {
		p.say("TorchServe is not currently running.")
		return exitOK
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); errors.Is(err, syscall.ESRCH) {
		// The file is locked by a server that this process identifier does not lead to: one in another container, say.
		printf(p.stderr, "torchserve: error: a server holds %s, but there is no process %d here to be stopped\n", path, pid)
		return exitFailed
	} else if err != nil {
		return p.fail("torchserve", fmt.Errorf("process %d cannot be stopped: %w", pid, err))
	}
	if !waitGone(ctx, path, pid) {
		p.say("Stopping TorchServe took too long.")
		return exitFailed
	}
	if err := os.Remove(token.FileName); err != nil && !errors.Is(err, os.ErrNotExist) {
		return p.fail("torchserve", err)
	}
	if !quiet {
		p.say("TorchServe has stopped.")
	}
	return exitOK
}

// waitGone waits until nobody holds the file any more and the process has ended. It removes what a TorchServe leaves.
func waitGone(ctx context.Context, path string, pid int) bool {
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	tick := time.NewTicker(stopPoll)
	defer tick.Stop()
	for {
		state, now, err := pidfile.Look(path)
		if err == nil && (state != pidfile.Running || now != pid) && hasEnded(pid) {
			_, err = pidfile.RemoveOrphan(path)
			return err == nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
}

// hasEnded says whether the process is gone; one that its parent has not waited for is.
func hasEnded(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, state, found := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ")
	return found && (strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X"))
}
