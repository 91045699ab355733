package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/argparse"
	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/watch"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// runCommand describes `flambeau run`.
func runCommand() *argparse.Command {
	value := func(help, metavar string, names ...string) argparse.Option {
		return argparse.Option{Names: names, Kind: argparse.Value, Metavar: metavar, Help: help}
	}
	return &argparse.Command{
		Prog: "flambeau run",
		About: "Run one request through a model, with no server: in the model's Python, with the worker's own code. MODEL is an archive, a folder, a URL, or " +
			"the handler's .py file.\nThe answer goes to stdout. What the handler prints goes to stderr, followed by the rows that it saw and the time of each " +
			"step.\nExit status: 0 answered, 1 the handler failed, 2 nothing was run.",
		Options: []argparse.Option{
			value("File with the request's body; - is stdin.", "FILE", "--input"),
			value("Content type of the body. Not given: none, as with `curl -T`.", "TYPE", "--content-type"),
			{
				Names: []string{"--form"}, Kind: argparse.Each, Metavar: "NAME=VALUE",
				Help: "A field of a form, as of `curl -F`: NAME=VALUE, or NAME=@FILE, with ;type=TYPE behind it if need be. May be given several times.",
			},
			{
				Names: []string{"--header"}, Kind: argparse.Each, Metavar: "NAME:VALUE",
				Help: "A header of the request. May be given several times.",
			},
			value("The handler, in place of the manifest's.", "HANDLER", "--handler"),
			value("Make a batch of N such requests.", "N", "--batch"),
			value("Make the request N times, and compare the times.", "N", "--repeat"),
			value("The Python to use. Not given: that of the server's configuration.", "PYTHON", "--python"),
			value("The GPU that the handler is told to use. Not given: none.", "N", "--gpu"),
			value("Configuration file of a server. Not given: TS_CONFIG_FILE, else config.properties if it is here.", "FILE", "--ts-config"),
			{Names: []string{"-i", "--include"}, Help: "Print the answer's status and headers, too."},
			{Names: []string{"--json"}, Help: "Print a report of it all as JSON, in place of the answer."},
			{Names: []string{"--debugger"}, Help: "Leave the terminal to the handler, so that breakpoint() works."},
		},
		Positional: "MODEL", Least: 1, Most: 1,
	}
}

// runJob is what the process is told; flambeau.runner.job in python_compat says what each field means.
type runJob struct {
	Load     runLoad     `json:"load"`
	Headers  [][2]string `json:"headers"`
	Parts    []runPart   `json:"parts"`
	Batch    int         `json:"batch"`
	Repeat   int         `json:"repeat"`
	Debugger bool        `json:"debugger"`
	JSON     bool        `json:"json"`
	Head     bool        `json:"head"`
	Unpack   float64     `json:"unpack"`
	Started  float64     `json:"started"`
}

// runLoad has the names of the protocol's LoadRequest.
type runLoad struct {
	ModelName           string `json:"model_name"`
	ModelVersion        string `json:"model_version"`
	ModelDir            string `json:"model_dir"`
	Handler             string `json:"handler"`
	Envelope            string `json:"envelope"`
	GPU                 *int   `json:"gpu"`
	BatchSize           int    `json:"batch_size"`
	LimitMaxImagePixels bool   `json:"limit_max_image_pixels"`
	MaxResponseBytes    int64  `json:"max_response_bytes"`
}

// runPart has its value either as text or in a file.
type runPart struct {
	Name        string  `json:"name"`
	ContentType string  `json:"content_type"`
	Text        *string `json:"text,omitempty"`
	File        string  `json:"file,omitempty"`
}

// runModel is `flambeau run`.
func (p *program) runModel(ctx context.Context, args []string) int {
	command := runCommand()
	parsed, status := p.parse(command, args)
	if parsed == nil {
		return status
	}
	job, err := newRunJob(parsed)
	if err != nil {
		p.fail(command.Prog, err)
		return exitUsage
	}
	if status, err = p.runUnpacked(ctx, parsed, job); err != nil {
		p.fail(command.Prog, err)
	}
	return status
}

// newRunJob reads the request from the command line.
func newRunJob(args *argparse.Args) (*runJob, error) {
	job := &runJob{Debugger: args.Has("--debugger"), JSON: args.Has("--json"), Head: args.Has("--include")}
	var err error
	if job.Batch, err = runNumber(args, "--batch", 1, 1); err != nil {
		return nil, err
	}
	if job.Repeat, err = runNumber(args, "--repeat", 1, 1); err != nil {
		return nil, err
	}
	if args.Has("--gpu") {
		gpu, err := runNumber(args, "--gpu", 0, 0)
		if err != nil {
			return nil, err
		}
		job.Load.GPU = &gpu
	}
	if job.Headers, err = runHeaders(args.All("--header")); err != nil {
		return nil, err
	}
	return job, job.setBody(args)
}

// runNumber reads an option's number, which is least or more.
func runNumber(args *argparse.Args, name string, unset, least int) (int, error) {
	if !args.Has(name) {
		return unset, nil
	}
	n, err := strconv.Atoi(args.Get(name))
	if err != nil || n < least {
		return 0, fmt.Errorf("%s %s: a number from %d on is needed", name, args.Get(name), least)
	}
	return n, nil
}

// runHeaders reads headers as curl has them. The first one is the server's: TorchServe tells handlers that no explanation is asked for.
func runHeaders(given []string) ([][2]string, error) {
	headers := [][2]string{{"explain", "False"}}
	for _, text := range given {
		name, value, ok := strings.Cut(text, ":")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return nil, fmt.Errorf("--header %s: it has to be NAME:VALUE, for example --header 'X-User: me'", text)
		}
		headers = append(headers, [2]string{name, strings.TrimSpace(value)})
	}
	return headers, nil
}

// setBody reads where the request's row comes from.
func (j *runJob) setBody(args *argparse.Args) error {
	contentType, form := args.Get("--content-type"), args.All("--form")
	switch {
	case args.Has("--form") && (args.Has("--input") || args.Has("--content-type")):
		return errors.New("--form is a request of its own: it cannot be combined with --input or --content-type")
	case args.Has("--form"):
		contentType = "multipart/form-data"
		for _, field := range form {
			part, err := formPart(field)
			if err != nil {
				return err
			}
			j.Parts = append(j.Parts, part)
		}
	case args.Has("--input"):
		file, err := inputFile(args.Get("--input"))
		if err != nil {
			return fmt.Errorf("--input %s: %w", args.Get("--input"), err)
		}
		kind, _, _ := strings.Cut(contentType, ";")
		j.Parts = []runPart{{Name: "body", ContentType: strings.TrimSpace(kind), File: file}}
	default:
		return errors.New("there is no request: give its body by --input FILE (- for stdin), or a form by --form NAME=@FILE")
	}
	if contentType != "" {
		j.Headers = append(j.Headers, [2]string{"content-type", contentType})
	}
	if j.Debugger && readsStdin(j.Parts) {
		return errors.New("--debugger needs stdin for itself: put the input into a file")
	}
	return nil
}

func readsStdin(parts []runPart) bool {
	return slices.ContainsFunc(parts, func(part runPart) bool { return part.File == "-" })
}

// inputFile gives a file's absolute path: the handler runs in the model's folder. "-" stays.
func inputFile(name string) (string, error) {
	if name == "-" {
		return name, nil
	}
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return "", errors.Unwrap(err)
	case info.IsDir():
		return "", errors.New("it is a folder")
	}
	return filepath.Abs(name)
}

// formPart reads a field of a form. As on the server only files have a content type, and plain values reach the handler as bytes.
func formPart(field string) (runPart, error) {
	name, value, ok := strings.Cut(field, "=")
	if !ok || name == "" {
		return runPart{}, fmt.Errorf("--form %s: it has to be NAME=VALUE or NAME=@FILE", field)
	}
	file, isFile := strings.CutPrefix(value, "@")
	if !isFile {
		return runPart{Name: name, Text: &value}, nil
	}
	part := runPart{Name: name}
	file, part.ContentType, _ = strings.Cut(file, ";type=")
	part.ContentType = cmp.Or(part.ContentType, curlType(file))
	var err error
	if part.File, err = inputFile(file); err != nil {
		return runPart{}, fmt.Errorf("--form %s: the file %s: %w", field, file, err)
	}
	return part, nil
}

// curlType is the content type that `curl -F` gives a file.
func curlType(file string) string {
	switch strings.ToLower(filepath.Ext(file)) {
	case ".gif":
		return "image/gif"
	case ".jpg", ".jpeg":
		return "image/jpeg"
	case ".png":
		return "image/png"
	case ".svg":
		return "image/svg+xml"
	case ".txt":
		return "text/plain"
	case ".htm", ".html":
		return "text/html"
	case ".pdf":
		return "application/pdf"
	case ".xml":
		return "application/xml"
	}
	return "application/octet-stream"
}

// runUnpacked opens the model, runs the job on it and gives the exit status. Nothing is left on disk.
func (p *program) runUnpacked(ctx context.Context, args *argparse.Args, job *runJob) (status int, err error) {
	cfg, err := config.Load(config.Source{File: args.Get("--ts-config"), Environ: p.environ})
	if err != nil {
		return exitUsage, err //nolint:wrapcheck // it names file, line and key
	}
	temp, err := os.MkdirTemp(cfg.Env.TempDir, "flambeau-run-")
	if err != nil {
		return exitUsage, fmt.Errorf("no folder for the model: %w; set TEMP to one that can be written", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	// From here on a Ctrl-C is the handler's business, or the debugger's; this process has to clean up behind it.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	began := time.Now()
	watched, stop := cancelOn(ctx, signals) // a download may take its time
	opened, err := p.openModel(watched, cfg, args, temp)
	stop()
	if err != nil {
		return exitUsage, err
	}
	job.Unpack = time.Since(began).Seconds()
	model := opened.archive
	defer func() { err = errors.Join(err, opened.close()) }()
	if r := model.Manifest.Runtime; r == archive.RuntimeONNX || r == archive.RuntimePlugin {
		return exitUsage, fmt.Errorf("%s needs no Python (its runtime is %s), and this command runs the handlers that do: put the model into a folder and "+
			"serve that, by flambeau serve --model-store FOLDER", args.Rest[0], r)
	}
	job.Load.ModelName = cmp.Or(model.Manifest.Model.ModelName, model.FileBase)
	job.Load.ModelVersion = cmp.Or(model.Manifest.Model.ModelVersion, "1.0")
	job.Load.ModelDir, job.Load.Envelope, job.Load.BatchSize = model.Dir, cfg.Envelope, job.Batch
	job.Load.Handler = cmp.Or(args.Get("--handler"), opened.handler, model.Manifest.Model.Handler, cfg.DefaultHandler)
	job.Load.LimitMaxImagePixels, job.Load.MaxResponseBytes = cfg.LimitMaxImagePixels, cfg.MaxResponseBytes
	if job.Load.Handler == "" {
		return exitUsage, fmt.Errorf("%s names no handler: give one by --handler", args.Rest[0])
	}
	if y := &model.Settings; y.ParallelType != "" && y.ParallelLevel > 0 {
		printf(p.stderr, "flambeau run: warning: a server runs this model in several processes (parallelType: %s); here it is one\n", y.ParallelType)
	}
	spec, err := runProcess(cfg, args, model) //nolint:contextcheck // looking for Python has a limit of its own
	if err != nil {
		return exitUsage, err
	}
	spec, release, err := p.runDependencies(ctx, cfg, infer.ModelRef{Name: job.Load.ModelName, Version: job.Load.ModelVersion}, model, spec, signals)
	if err != nil {
		return exitUsage, err
	}
	defer release()
	return p.runHandler(spec, job, signals)
}

// cancelOn gives a context that the next signal cancels. The function that it gives ends the watch; signals then are somebody else's again.
func cancelOn(ctx context.Context, signals <-chan os.Signal) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() { // ends with the watch
		defer close(ended)
		select {
		case s := <-signals:
			cancel(fmt.Errorf("signal: %s", s))
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-ended
	}
}

// openedModel is a model and the store that it was opened with.
type openedModel struct {
	archive *archive.Archive
	handler string // for a .py file: its name
	store   *archive.Store
}

func (m *openedModel) close() error { return m.store.Close() } //nolint:wrapcheck // its own words

// openModel opens what the command line names, below temp. The limits are the server's.
func (p *program) openModel(ctx context.Context, cfg *config.Config, args *argparse.Args, temp string) (*openedModel, error) {
	m, err := openArchive(ctx, cfg, args.Rest[0], temp, p.warnings())
	if err == nil && m.archive.Problem != "" {
		return nil, errors.Join(fmt.Errorf("the model %s: %s", args.Rest[0], m.archive.Problem), m.close())
	}
	return m, err
}

// openArchive opens an archive, a folder, a URL or the folder of a .py file, below temp.
func openArchive(ctx context.Context, cfg *config.Config, name, temp string, log *slog.Logger) (*openedModel, error) {
	at := spot{store: temp, url: name}
	if !strings.Contains(name, "://") {
		var err error
		if at, err = locate(name); err != nil {
			return nil, err
		}
	}
	fetcher, err := newOwnFetcher(cfg, log)
	if err != nil {
		return nil, err
	}
	m := &openedModel{handler: at.handler}
	m.store, err = archive.New(archive.Options{
		Store: at.store, Temp: temp, Fetcher: fetcher, Limits: archive.Limits{UnpackedBytes: cfg.MaxUnpackedBytes}, Logger: log,
	})
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the folder
	}
	open := m.store.Open
	if at.version {
		open = m.store.OpenEntry
	}
	if m.archive, err = open(ctx, at.url); err != nil {
		return nil, errors.Join(fmt.Errorf("the model %s cannot be opened: %w", name, err), m.close())
	}
	if at.version { // as of all others that are named by a path
		m.archive.URL = filepath.Join(at.store, at.url)
	}
	return m, nil
}

// spot says where a model is.
type spot struct {
	store   string
	url     string
	version bool   // url is the place of a version's folder in the store
	handler string // a .py file that was named in place of its folder
}

// locate finds a model on this machine.
func locate(name string) (spot, error) {
	path, err := filepath.Abs(name)
	if err != nil {
		return spot{}, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return spot{}, fmt.Errorf("the model %s: %w", name, errors.Unwrap(err))
	}
	at := spot{url: path}
	if !info.IsDir() && filepath.Ext(path) == ".py" {
		at.url, at.handler = filepath.Split(path)
	}
	at.url = filepath.Clean(at.url)
	at.store = filepath.Dir(at.url)
	// In a folder that holds versions, as the store has them.
	model := filepath.Base(at.store)
	place := model + "/" + filepath.Base(at.url)
	if store := filepath.Dir(at.store); slices.Contains(watch.Versions(store, model), place) {
		at.store, at.url, at.version = store, place, true
	}
	return at, nil
}

// warnings writes what is wrong with a model, without the time.
func (p *program) warnings() *slog.Logger { return p.notes(slog.LevelWarn) }

func (p *program) notes(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// runProcess is the worker's own command, with a word that says what it is to be.
func runProcess(cfg *config.Config, args *argparse.Args, model *archive.Archive) (backend.ProcessSpec, error) {
	if err := usePython(cfg, args); err != nil {
		return backend.ProcessSpec{}, err
	}
	command, err := newPythonCommand(cfg)
	if err != nil {
		return backend.ProcessSpec{}, err
	}
	spec, err := command.Spec(cmp.Or(model.Manifest.Runtime, archive.RuntimePython), model.Dir)
	if err != nil {
		return spec, err //nolint:wrapcheck // it says which runtime it is
	}
	if args.Has("--python") {
		spec.Path = cfg.Python
	}
	spec.Args = append(spec.Args, "run")
	return spec, nil
}

// runHandler starts the process, tells it the job, and waits for its end. It has the terminal meanwhile.
func (p *program) runHandler(spec backend.ProcessSpec, job *runJob, signals <-chan os.Signal) (int, error) {
	// The kernel ends the process when this thread ends: a command that is killed leaves no handler behind.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	text, tell, err := os.Pipe()
	if err != nil {
		return exitUsage, err
	}
	cmd := exec.Command(spec.Path, spec.Args...) //nolint:gosec,noctx // the user's Python; its signals are the terminal's, see below
	cmd.Dir, cmd.Env, cmd.ExtraFiles = spec.Dir, spec.Env, []*os.File{text}
	cmd.Stdout, cmd.Stderr = p.stdout, p.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if job.Debugger || readsStdin(job.Parts) {
		cmd.Stdin = os.Stdin
	}
	job.Started = float64(time.Now().UnixMicro()) / 1e6
	err = cmd.Start()
	_ = text.Close() // the process has its own
	if err != nil {
		_ = tell.Close() // nobody reads it
		return exitUsage, fmt.Errorf("the Python of the model, %s, does not start: %w", spec.Path, err)
	}
	ended := make(chan struct{})
	passedOn := make(chan struct{})
	go func() { // ends with the process
		defer close(passedOn)
		for {
			select {
			case s := <-signals:
				if s != syscall.SIGINT { // that one the terminal sends to both
					_ = cmd.Process.Signal(s) // gone already: Wait tells
				}
			case <-ended:
				return
			}
		}
	}()
	told := json.NewEncoder(tell).Encode(job)
	told = errors.Join(told, tell.Close())
	err = cmd.Wait()
	close(ended)
	<-passedOn
	return runStatus(cmd.ProcessState, err, told)
}

// runStatus gives the exit status of a process that has ended.
func runStatus(state *os.ProcessState, ended, told error) (int, error) {
	var exit *exec.ExitError
	switch {
	case ended == nil:
		return exitOK, nil
	case !errors.As(ended, &exit):
		return exitFailed, fmt.Errorf("the handler's process: %w", ended)
	case state.ExitCode() >= 0:
		return state.ExitCode(), nil // it has said why
	}
	return exitFailed, errors.Join(fmt.Errorf("the handler's process was ended by a signal: %s", state), told)
}
