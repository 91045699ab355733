package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/argparse"
	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/internal/logfiles"
)

// settingOptions are the options of `flambeau serve` and of the torchserve command that set a key of config.properties.
func settingOptions() []argparse.Option {
	return []argparse.Option{
		{Names: []string{"--ts-config"}, Kind: argparse.Value, Metavar: "FILE", Help: "Configuration file of the server."},
		{Names: []string{"--model-store"}, Kind: argparse.Value, Metavar: "DIR", Help: "Folder with the model archives."},
		{Names: []string{"--workflow-store"}, Kind: argparse.Value, Metavar: "DIR", Help: "Folder with the workflow archives."},
		{
			Names: []string{"--models"}, Kind: argparse.List, Metavar: "[NAME=]MODEL",
			Help: "Models to load: archives or folders of the model store, or URLs; \"all\" for the whole store.",
		},
		{Names: []string{"--disable-token-auth", "--dt"}, Help: "Serve without the keys of key_file.json."},
		{Names: []string{"--enable-model-api"}, Help: "Allow models to be registered and unregistered over the management API."},
	}
}

// source gives where the settings come from, for the options that were given.
func (p *program) source(args *argparse.Args) config.Source {
	src := config.Source{File: args.Get("--ts-config"), Environ: p.environ, Flags: map[string]string{}}
	for _, o := range config.Options() {
		switch {
		case o.Flag == "" || !args.Has(o.Flag):
		case o.Type == "true or false":
			src.Flags[o.Key] = "true"
		default:
			src.Flags[o.Key] = strings.Join(args.All(o.Flag), ",")
		}
	}
	return src
}

// serve is `flambeau serve`.
func (p *program) serve(ctx context.Context, args []string) int {
	const prog = "flambeau serve"
	parsed, status := p.parse(&argparse.Command{
		Prog:  prog,
		About: "Serve models in the foreground, until Ctrl-C or SIGTERM. All that can be set is in docs/configuration.md.",
		Options: append(settingOptions(),
			argparse.Option{Names: []string{"--verbose"}, Help: "Write the whole log to the terminal, too, and not only to the log files."}),
	}, args)
	if parsed == nil {
		return status
	}
	cfg, err := config.Load(p.source(parsed))
	if err != nil {
		return p.fail(prog, err)
	}
	if err := checkStores(cfg); err != nil {
		return p.fail(prog, err)
	}
	terminal := newConsole(p.stdout)
	defer terminal.close()
	out := &troubles{out: terminal}
	var console io.Writer = out
	if parsed.Has("--verbose") {
		console = terminal
	}
	return p.runLogged(ctx, prog, cfg, console, func(s *server) progress {
		return newScreen(s, terminal, cfg.Env.LogDir, version, out.open)
	})
}

// checkStores refuses model stores that are not there.
func checkStores(cfg *config.Config) error {
	switch {
	case cfg.ModelStore == "":
		return errors.New("there is no model store: give the folder with the model archives by --model-store, or by model_store in " +
			config.DefaultFile)
	case !exists(cfg.ModelStore):
		return fmt.Errorf("the model store %s is not there (%s): make the folder, which may be empty", cfg.ModelStore, cfg.Value("model_store").Origin)
	case !isDir(cfg.ModelStore):
		return fmt.Errorf("the model store %s is not a folder (%s)", cfg.ModelStore, cfg.Value("model_store").Origin)
	}
	return nil
}

// exists is also true of what cannot be looked at.
func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// runLogged opens the log files, runs the server and gives the exit status.
func (p *program) runLogged(ctx context.Context, prog string, cfg *config.Config, console io.Writer, show func(*server) progress) int {
	outliveTerminal()
	logs, err := logfiles.Open(logfiles.Options{Dir: cfg.Env.LogDir, Metrics: cfg.Env.MetricsLogDir, Console: console, Level: logLevel(cfg)})
	if err != nil {
		return p.fail(prog, err)
	}
	limitMemory(p.environ, logs.Server())
	roomForGarbage(p.environ)
	logSettings(cfg, logs.Server())
	err = runServer(ctx, cfg, prog == "torchserve", logs, show)
	if err = errors.Join(err, logs.Close()); err != nil {
		p.fail(prog, err)
		printf(p.stderr, "%s: the log is in %s\n", prog, filepath.Join(absolute(cfg.Env.LogDir), logfiles.ServerFile))
		return exitFailed
	}
	return exitOK
}

// tellStarted calls open once the server has started.
type tellStarted struct {
	progress

	open func()
}

// Started passes the news on.
func (t tellStarted) Started(ctx context.Context) {
	t.progress.Started(ctx)
	t.open()
}
