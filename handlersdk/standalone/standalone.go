// Package standalone serves one model over plain HTTP in the plugin's own process, without the server: for a debugger.
package standalone

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/flambeau-serve/flambeau/handlersdk/pluginserver"
	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
)

// Flag is the argument that asks for it.
const Flag = "--standalone"

// Usage says how.
const Usage = Flag + " [--dir DIR] [--port 9999] [--name NAME]"

// Options say what is served. Backend and Output are required.
type Options struct {
	Backend pluginserver.Backend
	Dir     string // the model's folder; "": the working folder
	Name    string // "": the folder's
	Port    int    // 0: any
	Output  io.Writer
}

// maxBody is the largest request, as the server's default is for answers.
const maxBody = 64 << 20

// Parse reads the arguments; those that it does not know are the plugin's own. asked is false without Flag.
func Parse(args []string) (opts Options, asked bool, err error) {
	const port = 9999
	opts.Port = port
	values := map[string]*string{"--dir": &opts.Dir, "--name": &opts.Name, "--port": new(string)}
	for i := 0; i < len(args); i++ {
		if args[i] == Flag {
			asked = true
			continue
		}
		name, value, joined := strings.Cut(args[i], "=")
		into := values[name]
		if into == nil {
			continue
		}
		if !joined {
			if i++; i == len(args) {
				return opts, asked, fmt.Errorf("%s needs a value: %s", name, Usage)
			}
			value = args[i]
		}
		*into = value
	}
	if text := *values["--port"]; text != "" {
		if opts.Port, err = strconv.Atoi(text); err != nil || opts.Port < 0 {
			return opts, asked, fmt.Errorf("--port %q is no port's number: %s", text, Usage)
		}
	}
	return opts, asked, nil
}

// Serve loads the model and serves it on the loopback interface until ctx ends or a signal says so. The working folder becomes the model's, as the
// server has it.
func Serve(ctx context.Context, opts Options) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	dir, err := filepath.Abs(cmp.Or(opts.Dir, "."))
	if err == nil {
		err = os.Chdir(dir)
	}
	if err != nil {
		return fmt.Errorf("the model's folder: %w", err)
	}
	name := cmp.Or(opts.Name, filepath.Base(dir))
	resp, err := opts.Backend.Load(ctx, &backendv1.LoadRequest{ModelName: name, ModelVersion: "1.0", ModelDir: dir, BatchSize: 1})
	if err == nil && resp.GetFailure() != nil {
		err = fmt.Errorf("the model does not load: %s\n%s", resp.GetFailure().GetMessage(), resp.GetFailure().GetDetail())
	}
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(opts.Port)))
	if err != nil {
		return errors.Join(err, opts.Backend.Unload(context.WithoutCancel(ctx)))
	}
	s := &server{backend: opts.Backend, out: opts.Output}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /predictions/{model}", s.predict)
	mux.HandleFunc("POST /predictions", s.predict)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, statusNotFound, "ResourceNotFoundException", fmt.Sprintf("without the server there is POST /predictions/%s, and not %s %s", name, r.Method, r.URL.Path))
	})
	web := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	said(opts.Output, "%s answers without the server: curl -T FILE -X POST http://%s/predictions/%s", name, listener.Addr(), name)
	said(opts.Output, "there is no queue, no batch and no limit of time; Ctrl-C ends it")
	ended := make(chan error, 1)
	go func() { ended <- web.Serve(listener) }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		err = web.Shutdown(closing)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) { // a handler that stands at a breakpoint
			err = web.Close()
		}
		if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
	}
	if errors.Is(err, http.ErrServerClosed) { // the ordinary end
		err = nil
	}
	return errors.Join(err, opts.Backend.Unload(context.WithoutCancel(ctx)))
}

// said writes a line for the author. Where the terminal is gone there is nobody to tell.
func said(to io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(to, format+"\n", args...) }

type server struct {
	backend  pluginserver.Backend // lets one call in at a time, if its handler needs that
	out      io.Writer
	requests atomic.Uint64
}

// predict answers one request.
func (s *server) predict(w http.ResponseWriter, r *http.Request) {
	id := s.requests.Add(1)
	item, err := itemOf(r, strconv.FormatUint(id, 10))
	if err != nil {
		s.fail(w, 400, "BadRequestException", err.Error()) //nolint:mnd // the status of a request that cannot be read
		return
	}
	a := &answer{server: s, w: w}
	err = s.backend.Run(r.Context(), frame.EncodeBatch(id, []frame.Item{item}).Join(), a.give)
	if err != nil && !a.begun {
		s.fail(w, statusInternal, "InternalServerException", err.Error())
	}
}

const (
	statusNotFound = 404
	statusInternal = 500
)

// itemOf makes an item of a request as the server does: a form's fields are the parts, any other body is the part "body".
func itemOf(r *http.Request, id string) (frame.Item, error) {
	item := frame.Item{ID: id}
	for name, values := range r.Header {
		for _, v := range values {
			item.Header = append(item.Header, frame.Field{Name: name, Value: v})
		}
	}
	r.Body = http.MaxBytesReader(nil, r.Body, maxBody)
	if form, err := r.MultipartReader(); err == nil {
		for {
			part, err := form.NextPart()
			if errors.Is(err, io.EOF) {
				return item, nil
			}
			if err != nil {
				return item, err
			}
			data, err := io.ReadAll(part)
			if err != nil {
				return item, err
			}
			item.Parts = append(item.Parts, frame.Part{Name: part.FormName(), ContentType: part.Header.Get("Content-Type"), Data: data})
		}
	}
	data, err := io.ReadAll(r.Body)
	kind := r.Header.Get("Content-Type")
	if kind == "application/x-www-form-urlencoded" { // curl's own, which nobody has chosen
		kind = ""
	}
	item.Parts = []frame.Part{{Name: "body", ContentType: kind, Data: data}}
	return item, err
}

// answer writes what a Run gives.
type answer struct {
	server *server
	w      http.ResponseWriter
	begun  bool
}

func (a *answer) give(last bool, f frame.Buffers) error {
	_, results, err := frame.DecodeResults(f.Join())
	if err != nil {
		return err
	}
	if len(results) != 1 {
		return fmt.Errorf("%d answers to one request", len(results))
	}
	r := &results[0]
	if r.Failure != nil {
		said(a.server.out, "failed: %s\n%s", r.Failure.Message, r.Failure.Detail)
		if !a.begun {
			const handlerFailed = 503 // TorchServe's
			a.server.fail(a.w, cmp.Or(int(r.Status), handlerFailed), "InternalServerException", r.Failure.Message)
		}
		return nil
	}
	if !last && len(r.Body) == 0 && len(r.Header) == 0 {
		return nil
	}
	if !a.begun {
		a.begun = true
		for _, h := range r.Header {
			a.w.Header().Add(h.Name, h.Value)
		}
		if r.Status != 0 {
			a.w.WriteHeader(int(r.Status))
		}
	}
	if _, err := a.w.Write(r.Body); err != nil {
		return err
	}
	if last {
		return nil
	}
	return http.NewResponseController(a.w).Flush()
}

// fail answers as TorchServe does.
func (s *server) fail(w http.ResponseWriter, status int, kind, message string) {
	text, err := json.MarshalIndent(map[string]any{"code": status, "type": kind, "message": message}, "", "  ")
	if err != nil {
		text = []byte(message)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if _, err := w.Write(append(text, '\n')); err != nil { //nolint:gosec // JSON, and its content type says so
		said(s.out, "the answer could not be written: %v", err)
	}
}
