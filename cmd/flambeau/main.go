// Command flambeau is the model server and its command line: it serves, in the foreground or as the torchserve command does, and it asks a server
// that runs.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/argparse"
	"github.com/flambeau-serve/flambeau/internal/config"
)

// version is stamped by the build.
var version = "dev" //nolint:gochecknoglobals // the linker writes it

// torchServeVersion is the version that the torchserve command claims, and whose behaviour it has.
const torchServeVersion = "0.12.0"

// Exit statuses.
const (
	exitOK          = 0
	exitFailed      = 1 // it was tried and did not work
	exitUsage       = 2 // the command line is wrong
	exitUnreachable = 3 // no server answered
)

func main() {
	p := &program{environ: os.Environ(), stdout: os.Stdout, stderr: os.Stderr}
	if info, err := os.Stdin.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		p.stdin = os.Stdin
	}
	os.Exit(p.run(context.Background(), os.Args))
}

// program is one run of the command line.
type program struct {
	environ        []string
	stdin          io.Reader // whom questions may be asked; nil for nobody
	stdout, stderr io.Writer
	now            func() time.Time // nil: the time
}

// command is one of flambeau's subcommands.
type command struct {
	name, about string
	run         func(ctx context.Context, args []string) int
	hidden      bool
	group       string // the heading of the help that begins with this command; "" for that of the one before
}

func (p *program) commands() []command {
	return []command{
		{name: "serve", about: "serve models in the foreground", run: p.serve, group: "serve models"},
		{name: "run", about: "run one request through a model, with no server", run: p.runModel},
		{name: "torchserve", about: "TorchServe's command line", run: p.torchserve},
		{name: "check", about: "say what will fail with an archive, without running its code", run: p.check},
		{name: "new", about: "write the project of a handler in Go, which builds", run: p.newProject},
		{name: "ps", about: "list the models of a server and what their workers do", run: p.ps, group: "look at a server"},
		{name: "show", about: "show everything about one model", run: p.show},
		{name: "events", about: "tell what happened", run: p.events},
		{name: "history", about: "tell what changed what serves of a model, who did it, and why", run: p.history},
		{name: "slow", about: "list the slowest requests of a model, and where their time went", run: p.slow},
		{name: "trace", about: "tell where the time of one request went", run: p.trace},
		{name: "poison", about: "list the requests that end workers, and let them be tried again", run: p.poison},
		{name: "store", about: "list the model store and what was decided about each archive", run: p.store},
		{name: "traffic", about: "labels, weights and A/B tests of a model's versions", run: p.traffic, group: "change what a server does"},
		{name: "tune", about: "show what was found for a model's latency goal, and keep it", run: p.tune},
		{name: "rollback", about: "make an earlier archive of a model serve again", run: p.rollback},
		{name: "reload", about: "look at a model's files again", run: p.reload},
		{name: "config", about: "show the settings and where each came from", run: p.config, group: "the rest"},
		{name: "version", about: "show the version", run: p.printVersion},
		{name: "docs", run: p.docs, hidden: true},
	}
}

// run does what the command line says and gives the exit status. Called by the name of torchserve it is that command.
func (p *program) run(ctx context.Context, args []string) int {
	if filepath.Base(args[0]) == "torchserve" {
		return p.torchserve(ctx, args[1:])
	}
	if len(args) < 2 {
		p.help(p.stderr)
		return exitUsage
	}
	switch args[1] {
	case "help", "-h", "--help":
		return p.helpFor(ctx, args[2:])
	case "-v", "--version":
		return p.printVersion(ctx, nil)
	}
	for _, c := range p.commands() {
		if c.name == args[1] {
			return c.run(ctx, args[2:])
		}
	}
	printf(p.stderr, "flambeau: there is no command %q; \"flambeau help\" lists them\n", args[1])
	return exitUsage
}

func (p *program) helpFor(ctx context.Context, args []string) int {
	for _, c := range p.commands() {
		if len(args) > 0 && c.name == args[0] {
			return c.run(ctx, []string{"--help"})
		}
	}
	p.help(p.stdout)
	return exitOK
}

func (p *program) help(w io.Writer) {
	printf(w, "Flambeau %s, a model server that takes the place of TorchServe %s.\n\nusage: flambeau COMMAND [options]\n\n", version, torchServeVersion)
	for i, c := range p.commands() {
		if c.group != "" {
			printf(w, "%s%s:\n", strings.Repeat("\n", min(i, 1)), c.group)
		}
		if !c.hidden {
			printf(w, "  %-12s%s\n", c.name, c.about)
		}
	}
	printf(w, "%s", "\n\"flambeau COMMAND --help\" says more. Exit status: 0 done, 1 failed, 2 wrong command line, 3 no server answered.\n")
}

// parse reads a subcommand's arguments. When it gives nil, the exit status is the answer.
func (p *program) parse(c *argparse.Command, args []string) (*argparse.Args, int) {
	parsed, err := c.Parse(args)
	if err == nil {
		return parsed, exitOK
	}
	if errors.Is(err, argparse.ErrHelp) {
		printf(p.stdout, "%s", c.Help())
		return nil, exitOK
	}
	printf(p.stderr, "%s%s: error: %s\n", c.Usage(), c.Prog, err)
	return nil, exitUsage
}

func (p *program) printVersion(_ context.Context, args []string) int {
	if parsed, status := p.parse(&argparse.Command{Prog: "flambeau version", About: "Show the version."}, args); parsed == nil {
		return status
	}
	printf(p.stdout, "flambeau %s (TorchServe %s)\n", version, torchServeVersion)
	return exitOK
}

// docs prints the pages that are made from the code.
func (p *program) docs(_ context.Context, args []string) int {
	parsed, status := p.parse(&argparse.Command{
		Prog: "flambeau docs", About: "Print a page of the documentation that is made from the code: configuration.",
		Positional: "PAGE", Least: 1, Most: 1,
	}, args)
	if parsed == nil {
		return status
	}
	if parsed.Rest[0] != "configuration" {
		printf(p.stderr, "flambeau docs: there is no page %q\n", parsed.Rest[0])
		return exitUsage
	}
	printf(p.stdout, "%s", config.Markdown())
	return exitOK
}

// printf writes to a terminal or a pipe. Where that is gone there is nobody to tell.
func printf(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

// fail tells why a command does not work, one line for each reason.
func (p *program) fail(prog string, err error) int {
	for line := range strings.Lines(err.Error()) {
		printf(p.stderr, "%s: error: %s\n", prog, strings.TrimRight(line, "\n"))
	}
	return exitFailed
}

// getenv looks a variable up.
func (p *program) getenv(name string) string {
	for _, entry := range p.environ {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// outliveTerminal keeps a write to a terminal or a pipe that is gone from ending the server. The signal is caught and not ignored: an ignored one
// would be inherited by workers.
func outliveTerminal() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }
