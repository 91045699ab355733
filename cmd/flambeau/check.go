package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/argparse"
	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/check"
	"github.com/flambeau-serve/flambeau/modelstore/pbtxt"
	"github.com/flambeau-serve/flambeau/modelstore/watch"
	"github.com/flambeau-serve/flambeau/plugins/python"
	"github.com/flambeau-serve/flambeau/plugins/python/inspect"
	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
)

// exitFound is `flambeau check`'s status for archives that will not work. Its own command line's mistakes are exitFailed.
const exitFound = 2

// checkCommand describes `flambeau check`.
func checkCommand() *argparse.Command {
	return &argparse.Command{
		Prog: "flambeau check",
		About: "Read archives without running their code, and say what will fail on this machine: imports, shared objects, wheels, weights, the manifest, " +
			"the configuration file, sizes. ARCHIVE is an archive, a folder, also one with a folder for each version, or a URL.\nExit status: 0 good, 1 could not be checked, 2 errors were found.",
		Options: []argparse.Option{
			{Names: []string{"--python"}, Kind: argparse.Value, Metavar: "PYTHON", Help: "The Python that the models will run on. Not given: that of the server's configuration."},
			{Names: []string{"--installs"}, Help: "The server installs requirements files (install_py_dep_per_model). Not given: as its configuration says."},
			{Names: []string{"--handler"}, Kind: argparse.Value, Metavar: "HANDLER", Help: "The handler, in place of the manifest's."},
			{Names: []string{"--ts-config"}, Kind: argparse.Value, Metavar: "FILE", Help: "Configuration file of a server. Not given: TS_CONFIG_FILE, else config.properties if it is here."},
			{Names: []string{"--strict"}, Help: "Warnings count as errors."},
			{Names: []string{"--json"}, Help: "Print a report as JSON (docs/check.md)."},
		},
		Positional: "ARCHIVE", Least: 1, Most: math.MaxInt,
	}
}

// checkedArchive is one archive's place in the JSON report.
type checkedArchive struct {
	check.Report

	failed error // why it could not be checked, nil when it was
}

// MarshalJSON adds why it could not be checked.
func (c checkedArchive) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(c.Report)
	if err != nil || c.failed == nil {
		return text, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	if fields["error"], err = json.Marshal(c.failed.Error()); err != nil {
		return nil, err
	}
	fields["good"] = json.RawMessage("false")
	return json.Marshal(fields)
}

// check is `flambeau check`.
func (p *program) check(ctx context.Context, args []string) int {
	command := checkCommand()
	parsed, status := p.parse(command, args)
	if parsed == nil {
		if status == exitUsage {
			return exitFailed // 2 is for archives
		}
		return status
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	cfg, err := config.Load(config.Source{File: parsed.Get("--ts-config"), Environ: p.environ})
	if err != nil {
		return p.fail(command.Prog, err)
	}
	checker, err := p.checkerFor(cfg, parsed) //nolint:contextcheck // looking for Python has a limit of its own
	if err != nil {
		return p.fail(command.Prog, err)
	}
	var all []checkedArchive
	for _, url := range versionsOf(parsed.Rest) {
		one := p.checkOne(ctx, cfg, checker, parsed, url)
		all = append(all, one)
		if !parsed.Has("--json") {
			p.printChecked(command.Prog, &one)
		}
		if ctx.Err() != nil {
			break
		}
	}
	if parsed.Has("--json") {
		text, err := json.MarshalIndent(map[string]any{"archives": all}, "", "  ")
		if err != nil {
			return p.fail(command.Prog, err)
		}
		printf(p.stdout, "%s\n", text)
	}
	return checkStatus(all, parsed.Has("--strict"))
}

// versionsOf puts the versions of a model in the place of the folder that holds them. In Triton's layout what lies beside the versions belongs to the model.
func versionsOf(urls []string) (all []string) {
	for _, url := range urls {
		var versions []string
		if path, err := filepath.Abs(url); err == nil && !exists(filepath.Join(path, pbtxt.File)) {
			versions = watch.Versions(filepath.Dir(path), filepath.Base(path))
		}
		if len(versions) == 0 {
			all = append(all, url)
		}
		for _, place := range versions {
			all = append(all, filepath.Join(url, filepath.Base(place)))
		}
	}
	return all
}

// checkStatus is the exit status: what was found counts for more than what could not be looked at.
func checkStatus(all []checkedArchive, strict bool) int {
	status := exitOK
	for i := range all {
		one := &all[i]
		switch {
		case one.Errors() > 0 || strict && one.Warnings() > 0:
			return exitFound
		case one.failed != nil:
			status = exitFailed
		}
	}
	return status
}

func (p *program) printChecked(prog string, one *checkedArchive) {
	if one.failed == nil || len(one.Findings) > 0 {
		printf(p.stdout, "%s", one.Text())
	}
	if one.failed != nil {
		p.fail(prog, fmt.Errorf("%s could not be checked: %w", one.Path, one.failed))
	}
}

// checkerFor makes the checker of a server with this configuration, but for what the command line says.
func (p *program) checkerFor(cfg *config.Config, args *argparse.Args) (*check.Checker, error) {
	if err := usePython(cfg, args); err != nil {
		return nil, err
	}
	command, err := newPythonCommand(cfg)
	if err != nil {
		return nil, err
	}
	interpreter := ""
	if args.Has("--python") {
		interpreter = cfg.Python // whatever the model's runtime
	}
	return newChecker(cfg, command, interpreter, cfg.InstallDependencies || args.Has("--installs"))
}

// newChecker makes the checker of a server. interpreter takes the place of the workers' Python, if it is not "".
func newChecker(cfg *config.Config, command *python.Command, interpreter string, installs bool) (*check.Checker, error) {
	inspector, err := inspect.New(inspect.Options{Command: command, Interpreter: interpreter, Script: command.InspectScript})
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what is missing
	}
	gpus := countGPUs(cfg)
	return check.New(check.Options{ //nolint:wrapcheck // it says what is missing
		Inspector: inspector, Env: cfg.Env.All, Installs: installs, Handler: cfg.DefaultHandler, Envelope: cfg.Envelope,
		Workers: cmp.Or(cfg.DefaultWorkers, gpus, runtime.NumCPU()), GPUs: &gpus, TempDir: cfg.Env.TempDir,
		Protocol: backendv1.ProtocolVersion, ONNXRuntime: onnxRuntime(newNative(cfg, command).ONNX), Rows: rowsBeside(cfg), Ensemble: ensembleBeside(cfg),
	})
}

// checkOne opens one archive, below a folder of its own that is removed, and checks it.
func (p *program) checkOne(ctx context.Context, cfg *config.Config, checker *check.Checker, args *argparse.Args, url string) (one checkedArchive) {
	one.Path = url
	temp, err := os.MkdirTemp(cfg.Env.TempDir, "flambeau-check-")
	if err != nil {
		one.failed = fmt.Errorf("no folder for the model: %w; set TEMP to one that can be written", err)
		return one
	}
	defer func() { one.failed = errors.Join(one.failed, os.RemoveAll(temp)) }()
	opened, err := openArchive(ctx, cfg, url, temp, slog.New(slog.DiscardHandler))
	if err != nil {
		if why, hint := unusable(err); why != "" {
			one.Findings = []check.Finding{{Severity: check.Error, Code: check.ArchiveUnusable, Message: why, Hint: hint}}
			return one
		}
		one.failed = err
		return one
	}
	defer func() { one.failed = errors.Join(one.failed, opened.close()) }()
	if handler := cmp.Or(args.Get("--handler"), opened.handler); handler != "" {
		opened.archive.Manifest.Model.Handler = handler
	}
	one.Report, one.failed = checker.Check(ctx, opened.archive)
	one.Path = url
	return one
}

// unusable says why an archive cannot be opened and what can be done about it, if that is its own fault and not the machine's, else "".
func unusable(err error) (why, hint string) {
	var refused *fault.Error
	var system syscall.Errno
	if !errors.As(err, &refused) || errors.As(err, &system) || errors.Is(err, archive.ErrChanged) {
		return "", ""
	}
	hint = cmp.Or(refused.Hint, "correct that, or make or copy the archive again")
	switch {
	case refused.Kind == fault.InvalidModel:
		return cmp.Or(refused.Detail, refused.Message), hint
	case refused.Kind == fault.Internal && refused.Cause != nil:
		return refused.Cause.Error(), hint
	}
	return "", ""
}
