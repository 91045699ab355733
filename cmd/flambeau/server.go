package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/httpapi"
	"github.com/flambeau-serve/flambeau/frontend/httpapi/token"
	"github.com/flambeau-serve/flambeau/frontend/oipserver"
	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/logfiles"
	"github.com/flambeau-serve/flambeau/internal/telemetry"
)

// server is a whole running server.
type server struct {
	cfg        *config.Config
	torchserve bool // it was started by that command
	core       *core
	models     httpapi.Models    // as clients change them
	protocol   *oipserver.Server // nil: only TorchServe's part of it is served
	keys       *token.Keys       // nil when tokens are off
	measures   *measures
	listeners  []listener
	progress   progress
	snapshots  *snapshots // nil without
	drain      *drain
	stopped    chan error // what the listeners ended with, one each
	ended      int        // how many of them were received
}

// progress is told how the start goes.
type progress interface {
	Listening(listeners []listener)
	Registered(name, url string, err error)
	Started(ctx context.Context) // all listeners answer, all start-up models are registered
	Changed()                    // an instance changed its state
	Ended()                      // ctx of Started has ended: return when nothing is written any more
}

// runServer serves until ctx ends, a signal asks to stop, or a listener fails. A second signal ends it in order, but without waiting for what runs, and
// a third one at once.
// torchserve says whose command started it.
func runServer(ctx context.Context, cfg *config.Config, torchserve bool, logs *logfiles.Logs, show func(*server) progress) (err error) {
	log := logs.Server()
	for _, w := range cfg.Warnings() {
		log.Warn(w) //nolint:sloglint // the configuration's own words
	}
	ctx, stop := signal.NotifyContext(ctx, stopSignals()...)
	defer stop()
	s := &server{cfg: cfg, torchserve: torchserve, drain: newDrain()}
	s.progress = show(s)
	why := "it could not start"
	defer func() {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.ShutdownTimeout)
		defer cancel()
		unhurried, end := secondSignal(limit)
		defer end()
		stop()
		s.progress.Ended()
		log.Info("stopping", "reason", why, "parent", parentText(), "drain", cfg.ShutdownTimeout)
		s.accept(unhurried, log)
		if failure := s.shutdown(unhurried, limit, log); failure != nil {
			log.Error("not everything was stopped in order", "reason", failure.Error())
			err = errors.Join(err, failure)
		}
		log.Info("stopped")
	}()
	bug := fault.Contain("the server was started", func() { err = s.start(ctx, logs) })
	if err = errors.Join(err, bug); err != nil {
		log.Error("the server cannot start", reasonAttrs(err)...)
		return err
	}
	why, err = s.awaitStop(ctx, log)
	return err
}

// awaitStop returns when the server is to stop, and says what has asked for it.
func (s *server) awaitStop(ctx context.Context, log *slog.Logger) (why string, err error) {
	select {
	case <-ctx.Done():
		return context.Cause(ctx).Error(), nil
	case err := <-s.stopped:
		s.ended++
		if err == nil {
			err = errors.New("a listener has ended, and nobody has asked it to")
		}
		log.Error("the server cannot go on", reasonAttrs(err)...)
		return err.Error(), err
	}
}

// reasonAttrs are what the log has of an error: also where it comes from, if that is a bug.
func reasonAttrs(err error) []any {
	attrs := []any{"reason", err.Error()}
	if detail := fault.DetailOf(err); detail != "" {
		attrs = append(attrs, telemetry.KeyDetail, detail)
	}
	return attrs
}

// parentText names the process that has started this one: nobody tells who has sent a signal, but it is the first to be asked. Process 1 has not started
// it where its parent has ended.
func parentText() string {
	parent := os.Getppid()
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", parent))
	if err != nil {
		return strconv.Itoa(parent)
	}
	return fmt.Sprintf("%d (%s)", parent, strings.TrimSpace(string(name)))
}

// stopSignals are the signals that ask the server to stop. That of a terminal which closes is one, unless nohup has switched it off.
func stopSignals() []os.Signal {
	signals := []os.Signal{syscall.SIGTERM, syscall.SIGINT}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// start wires everything and opens the listeners; what it has made when it fails is shutdown's to take down.
func (s *server) start(ctx context.Context, logs *logfiles.Logs) error {
	cfg, log := s.cfg, logs.Server()
	var err error
	if s.measures, err = newMeasures(context.WithoutCancel(ctx), cfg, s.torchserve, logs, s.progress.Changed); err != nil {
		return err
	}
	if s.core, err = newCore(cfg, logs, s.torchserve, s.measures); err != nil { //nolint:contextcheck // taking down what was made has a time of its own
		return err
	}
	s.measures.core = s.core
	if s.snapshots, err = newSnapshots(cfg, s.core.models, log, s.core.bugs); err != nil {
		return err
	}
	s.core.follow = s.snapshots.changed
	if cfg.TokenAuth {
		if s.keys, err = token.New(token.Options{Expiration: cfg.TokenTTL}); err != nil {
			return fmt.Errorf("the key file: %w; start the server in a folder that can be written, or use --disable-token-auth", err)
		}
	}
	s.models = drainedModels{s.snapshots.recorded(s.core.managed()), s.drain}
	if s.protocol, err = s.newProtocol(logs); err != nil {
		return err
	}
	api, err := httpapi.New(s.apiOptions(logs)) //nolint:contextcheck // its handlers have their requests' contexts
	if err != nil {
		return fmt.Errorf("the HTTP API: %w", err)
	}
	if s.protocol != nil {
		s.protocol.Bound(api)
	}
	if s.listeners, err = openListeners(ctx, cfg, api); err != nil {
		return err
	}
	if err := s.openGRPC(ctx, api, logs); err != nil {
		return err
	}
	s.progress.Listening(s.listeners)
	s.loadStartupModels(ctx, log)
	s.stopped = make(chan error, len(s.listeners))
	for _, l := range s.listeners {
		go func() { s.stopped <- l.serve() }()
	}
	log.Info("server started", "pid", os.Getpid())
	s.snapshots.begin()
	s.progress.Started(ctx)
	return nil
}

func (s *server) apiOptions(logs *logfiles.Logs) httpapi.Options {
	cfg := s.cfg
	return httpapi.Options{
		Predictor: countedPredictor{s.core.dispatcher, &s.drain.open}, Models: s.models, Protocol: s.protocol, Metrics: s.measures.metrics,
		Admin: s.core.admin(s.core.deployer, s.drain), Keys: s.keys, Logger: logs.Server(),
		AccessLog: func(e httpapi.AccessEntry) { logs.Access(e.At.Add(e.Took), e.Line()+" "+e.RequestID) },
		ModelAPI:  cfg.ModelAPI, OpenInference: cfg.OpenInference, MaxRequestSize: cfg.MaxRequestBytes, MaxInflightBytes: cfg.InflightBytes,
		CORS: httpapi.CORS{Origin: cfg.CORS.Origin, Methods: cfg.CORS.Methods, Headers: cfg.CORS.Headers}, Readiness: readinessOf(cfg.ReadinessModels),
	}
}

// readinessOf reads the key readiness_models.
func readinessOf(setting string) httpapi.Readiness {
	var r httpapi.Readiness
	for name := range strings.SplitSeq(setting, ",") {
		switch name = strings.TrimSpace(name); {
		case name == "any" && setting == name:
			r.Any = true
		case name != "" && setting != "all":
			r.Names = append(r.Names, name)
		}
	}
	return r
}

// shutdown refuses new requests, answers the others, and ends everything within limit; it waits for no answer once unhurried has ended.
func (s *server) shutdown(unhurried, limit context.Context, log *slog.Logger) error {
	var errs []error
	if s.core != nil && s.core.installer != nil {
		s.core.installer.Close() // a registration that installs something may take much longer than there is time
	}
	answer, cancelAnswer := context.WithTimeout(unhurried, s.answerTime(limit))
	defer cancelAnswer()
	var counting sync.WaitGroup
	defer counting.Wait()
	counted, counts := context.WithCancel(limit)
	defer counts()
	counting.Go(func() { s.countdown(counted, log) })
	if s.core != nil && s.core.dispatcher != nil {
		s.core.models.Seal()
		errs = append(errs, s.answerAll(answer))
		hurry := context.AfterFunc(answer, s.core.models.Hurry) // nobody waits for what their workers run
		defer hurry()
	}
	errs = append(errs, closeListeners(answer, s.listeners))
	if s.stopped != nil {
		for range len(s.listeners) - s.ended {
			select {
			case err := <-s.stopped:
				errs = append(errs, err)
			case <-limit.Done():
			}
		}
	}
	s.snapshots.end()
	if s.protocol != nil {
		errs = append(errs, s.protocol.Close())
	}
	if s.core != nil {
		errs = append(errs, s.core.close(limit))
	}
	if s.measures != nil {
		s.measures.stop()
	}
	if s.keys != nil {
		errs = append(errs, s.keys.Remove())
	}
	return errors.Join(errs...)
}

// answerTime is what of the time that limit leaves may go by until the last answer: the rest is for the workers to end.
func (s *server) answerTime(limit context.Context) time.Duration {
	left := s.cfg.ShutdownTimeout
	if until, ok := limit.Deadline(); ok {
		left = time.Until(until)
	}
	return max(left-2*s.cfg.WorkerStopTimeout, left/2)
}

// logLevel is the least level of the server's log.
func logLevel(cfg *config.Config) slog.Level {
	if cfg.Debug {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}
