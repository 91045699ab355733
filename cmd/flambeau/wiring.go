package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/dispatch"
	"github.com/flambeau-serve/flambeau/frontend/ensemble"
	"github.com/flambeau-serve/flambeau/frontend/poison"
	"github.com/flambeau-serve/flambeau/frontend/recent"
	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/logfiles"
	"github.com/flambeau-serve/flambeau/internal/pipeline"
	"github.com/flambeau-serve/flambeau/internal/telemetry"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/deploy"
	"github.com/flambeau-serve/flambeau/modelstore/ledger"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/crashes"
	"github.com/flambeau-serve/flambeau/plugins/host"
	"github.com/flambeau-serve/flambeau/plugins/native"
	"github.com/flambeau-serve/flambeau/plugins/python"
	"github.com/flambeau-serve/flambeau/plugins/python/deps"
)

// core is everything behind the listeners.
type core struct {
	logs       *logfiles.Logs
	archives   *archive.Store
	sockets    string // folder, removed at the end
	launcher   *host.Launcher
	steps      *stepModels // of ensembles
	ensembles  *ensemble.Launcher
	installer  *deps.Installer
	models     *rollout.Manager
	dispatcher *dispatch.Dispatcher
	ledger     *ledger.Ledger
	poison     *poison.Book
	crashes    *crashes.Book
	threads    sharing
	history    *recent.Book               // nil without
	follow     func(rollout.Change)       // set before the first model; may be nil
	told       func(rollout.Change)       // the observer's
	observed   func(dispatch.Observation) // set before the first request; may be nil
	traffic    *trafficKeeper
	follower   *follower
	deployer   *deploy.Deployer // the follower's; nil without
	bugs       reporter
}

// observer is told what happens in the core; the metrics are one.
type observer interface {
	Answered(o dispatch.Observation)
	WorkerReady(ref infer.ModelRef, workerID int, took time.Duration)
	InstanceChanged(e rollout.Event)
	// WorkerLine says whether a line of a worker is a metric and not for its log.
	WorkerLine(line backend.OutputLine) bool
	// Changed is told of each change of a version or a model. It does not block.
	Changed(c rollout.Change)
	// Retired is told that a version is gone.
	Retired(ref infer.ModelRef)
	// Panicked is told of each bug that was contained.
	Panicked(part telemetry.Part)
}

// panicked gives what tells of panics that were contained: of a version's own, of what looks after workers, and of others.
func panicked(watch observer, log *slog.Logger) (ofVersion func(infer.ModelRef, error), ofWorkers, other func(error)) {
	tell := func(err error, part telemetry.Part, more ...any) {
		watch.Panicked(part)
		log.Error("the server has a bug, which was contained: report it", append(more, telemetry.KeyError, err.Error(), telemetry.KeyDetail, fault.DetailOf(err))...)
	}
	return func(ref infer.ModelRef, err error) {
			tell(err, telemetry.PartQueue, "model", ref.Name, "version", ref.Version)
		},
		func(err error) { tell(err, telemetry.PartWorker) }, func(err error) { tell(err, telemetry.PartOther) }
}

// newCore wires the core for a configuration; torchserve says whose command started the server. On failure nothing is left of it.
func newCore(cfg *config.Config, logs *logfiles.Logs, torchserve bool, watch observer) (c *core, err error) {
	c = &core{logs: logs, crashes: &crashes.Book{}, poison: newPoison(cfg), history: newHistory(cfg), told: watch.Changed}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close(context.Background()))
		}
	}()
	log := logs.Server()
	ofVersion, ofWorkers, other := panicked(watch, log)
	c.bugs = other
	c.threads = newSharing(cfg, torchserve, log)
	if c.ledger, err = openLedger(cfg, log, other); err != nil {
		return c, err
	}
	fetcher, err := newFetcher(cfg, log)
	if err != nil {
		return c, err
	}
	if c.archives, err = archive.New(archive.Options{
		Store: cfg.ModelStore, Temp: cfg.Env.TempDir, Fetcher: fetcher, Limits: archive.Limits{UnpackedBytes: cfg.MaxUnpackedBytes}, Logger: log,
	}); err != nil {
		return c, fmt.Errorf("the model store: %w", err)
	}
	limits := backend.Limits{Start: cfg.WorkerStartTimeout, Load: longestLoad, Stop: cfg.WorkerStopTimeout}
	if c.launcher, c.sockets, err = newLauncher(cfg, limits, log, ofWorkers); err != nil {
		return c, err
	}
	command, err := newPythonCommand(cfg)
	if err != nil {
		return c, err
	}
	tellOfPython(cfg, command, log)
	if c.installer, err = newInstaller(cfg, command, log); err != nil {
		return c, err
	}
	c.steps = newStepModels()
	if c.ensembles, err = ensemble.New(ensemble.Options{Next: c.launcher, Models: c.steps, Logger: log}); err != nil {
		return c, fmt.Errorf("the ensembles: %w", err)
	}
	models := c.rolloutOptions(cfg, limits, command, log, watch)
	models.Panicked = ofWorkers
	if c.models, err = rollout.New(models); err != nil {
		return c, fmt.Errorf("the models: %w", err)
	}
	if err := restoreTraffic(c.models, c.ledger.State().Traffic); err != nil {
		log.Error("not all the traffic of the last run is restored", "reason", err.Error())
	}
	c.traffic = newTrafficKeeper(c.models, c.ledger, log, c.bugs)
	if c.dispatcher, err = dispatch.New(dispatch.Options{
		Models: c.models, QueueBytes: cfg.QueueBytes, Observe: c.answered(watch), Sequence: dispatch.SequenceHeaders(cfg.SequenceHeaders),
		Tuned: c.tuned, Panicked: ofVersion, Poison: c.poison, ServerBytes: cfg.QueueServerBytes, Fairness: infer.Fairness{Key: infer.ClientKey(cfg.FairnessKey), MaxShare: cfg.FairnessShare},
	}); err != nil {
		return c, err
	}
	if err := c.steps.bind(cfg, c.models, c.dispatcher); err != nil {
		return c, err
	}
	if c.follower, err = c.newFollower(cfg, torchserve, command, log); err != nil {
		return c, err
	}
	c.deployer = c.follower.deployer
	return c, nil
}

// answered passes on what the dispatcher tells of each request.
func (c *core) answered(watch observer) func(dispatch.Observation) {
	return func(o dispatch.Observation) {
		_ = c.bugs.contain("the metrics of a request were told", func() { watch.Answered(o) })
		_ = c.bugs.contain("a request was noted", func() { note(c.history, &o) })
		if c.observed != nil {
			_ = c.bugs.contain("a request was told", func() { c.observed(o) })
		}
	}
}

// longestLoad only bounds what no version's own startup timeout bounds.
const longestLoad = 24 * time.Hour

func (c *core) rolloutOptions(cfg *config.Config, limits backend.Limits, command *python.Command, log *slog.Logger, watch observer) rollout.Options {
	gpus := countGPUs(cfg)
	programs := newNative(cfg, command)
	available := rollout.Available
	if !cfg.SwapMemoryGuard {
		available = nil
	}
	return rollout.Options{
		Swap: cfg.Swap, Batching: cfg.Batching, WarmUp: cfg.WarmUp, Available: available, Autoscale: autoscaleOf(cfg), Demand: c.demand,
		Swapped: func(v *rollout.Version) {
			if n := c.poison.Begin(v.Ref()); n > 0 {
				log.Info("requests that ended workers may be tried again", "model", v.Ref().Name, "version", v.Ref().Version, "requests", n)
			}
			if err := c.dispatcher.Refresh(v); err != nil {
				log.Error("the queue does not take over what the changed model wants", "model", v.Ref().Name, "version", v.Ref().Version, "reason", err.Error())
			}
		},
		Launcher: c.ensembles, Archives: c.archives, Limits: limits, Presets: presets(cfg),
		Process: func(r rollout.ProcessRequest) (backend.ProcessSpec, error) {
			switch r.Runtime {
			case archive.RuntimeONNX:
				spec, err := onnxCommand(programs, &r)
				return c.threads.share(&r, spec), err
			case archive.RuntimePlugin:
				spec, err := programs.Plugin(r.Dir, r.Program, r.Args, r.Workers)
				return c.threads.share(&r, spec), err //nolint:wrapcheck // the same
			}
			if r.Runtime == pipeline.Runtime {
				return ensembleCommand(&r)
			}
			spec, err := command.Spec(r.Runtime, r.Dir)
			if r.InPlace {
				spec = python.WithoutBytecode(spec)
			}
			return c.threads.share(&r, spread(extras(r.Provided).Add(spec), &r)), err //nolint:wrapcheck // rollout says which worker it is about
		},
		Dependencies:   dependencies{command, c.installer},
		DefaultWorkers: cfg.DefaultWorkers, StartupWorkers: cmp.Or(gpus, runtime.NumCPU()), DefaultHandler: cfg.DefaultHandler, Envelope: cfg.Envelope,
		ResponseTimeout: cfg.ResponseTimeout, StartupTimeout: cfg.StartupTimeout, QueueSize: cfg.QueueSize, GPUs: gpus,
		LimitMaxImagePixels: cfg.LimitMaxImagePixels, MaxResponseBytes: cfg.MaxResponseBytes, FirstWorkerID: cfg.InitialWorkerPort,
		FirstParallelID: cfg.InitialDistributionPort,
		Drain:           cfg.DrainTimeout, Logger: log,
		Retire: func(ctx context.Context, v *rollout.Version) {
			c.dispatcher.Retire(ctx, v)
			c.forget(v)
			c.crashes.Forget(v.Ref())
			watch.Retired(v.Ref())
		},
		Events: c.instanceChanged(watch), Changed: c.changed, Replaced: c.replaced,
		Output: func(ref infer.ModelRef, workerID int, line backend.OutputLine) {
			c.workerLine(watch, ref, workerID, line)
		},
		Loaded: func(ref infer.ModelRef, workerID int, took time.Duration) {
			watch.WorkerReady(ref, workerID, took)
			c.steps.notify()
		},
	}
}

// workerLine writes a line of a worker to model_log.log, unless the observer takes it for its own.
func (c *core) workerLine(watch observer, ref infer.ModelRef, workerID int, line backend.OutputLine) {
	thread := "W-" + strconv.Itoa(workerID) + "-" + ref.Name + "_" + ref.Version
	if watch.WorkerLine(line) {
		return
	}
	stream, level := "stdout", "INFO"
	if line.Stream == backend.Stderr {
		stream, level = "stderr", "WARN"
	}
	switch line.Level {
	case "DEBUG", "INFO", "ERROR":
		level = line.Level
	case "WARNING":
		level = "WARN"
	case "CRITICAL":
		level = "FATAL"
	}
	c.logs.Model(time.Now(), level, thread, stream, line.RequestIDs, line.Text)
}

// close takes the core down: workers first, then what they used. ctx bounds how long running batches may take.
func (c *core) close(ctx context.Context) error {
	var errs []error
	if c.installer != nil {
		c.installer.Close()
	}
	errs = append(errs, c.follower.end(ctx))
	c.traffic.stop()
	if c.models != nil {
		errs = append(errs, c.models.Close(ctx))
	}
	if c.dispatcher != nil {
		c.dispatcher.Close()
	}
	if c.launcher != nil {
		errs = append(errs, c.launcher.Close(ctx), os.RemoveAll(c.sockets))
	}
	if c.archives != nil {
		errs = append(errs, c.archives.Close())
	}
	if c.ledger != nil {
		errs = append(errs, c.ledger.Close())
	}
	return errors.Join(errs...)
}

// socketDirs is how many servers may share one folder for temporary files.
const socketDirs = 64

// newLauncher finds a folder for sockets that is short enough and not another server's.
func newLauncher(cfg *config.Config, limits backend.Limits, log *slog.Logger, panicked func(error)) (*host.Launcher, string, error) {
	base := cfg.Env.TempDir
	if abs, err := filepath.Abs(base); err == nil {
		base = abs
	}
	if len(base)+len("/.fl-00") > host.MaxSocketDir {
		base = filepath.Join("/tmp", "fl-"+strconv.Itoa(os.Geteuid())) // a unix socket's path is short, whatever TEMP says
		if err := privateFolder(base); err != nil {
			return nil, "", fmt.Errorf("the folder for sockets: %w; remove it, or set TEMP to a folder with a shorter path", err)
		}
	}
	messages := cfg.MaxResponseBytes + cfg.MaxRequestBytes
	var last error
	for i := range socketDirs {
		dir := filepath.Join(base, ".fl-"+strconv.Itoa(i))
		launcher, err := host.New(host.Options{
			SocketDir: dir, MaxMessageBytes: messageBytes(messages), Limits: limits, Logger: log, Heartbeat: heartbeat(cfg),
			Panicked: panicked,
		})
		if err == nil {
			return launcher, dir, nil
		}
		last = err
	}
	return nil, "", fmt.Errorf("no folder for sockets below %s can be used: %w; set TEMP to a folder of its own", base, last)
}

// privateFolder makes a folder that is this user's alone. Anybody can put one of its name into /tmp before.
func privateFolder(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err //nolint:wrapcheck // it names the folder
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err //nolint:wrapcheck // it names the folder
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s is not a folder, belongs to another user, or is open to others (mode %04o)", dir, info.Mode().Perm())
	}
	return nil
}

// maxBatchOfLargest is how many of the largest requests one message to a worker must be able to carry.
const maxBatchOfLargest = 64

// messageBytes is the size of the largest message between server and worker: a whole batch of the largest requests, bounded by what gRPC can send.
func messageBytes(largest int64) int {
	const most = 1<<31 - 1
	return int(min(largest*maxBatchOfLargest, most))
}

// newNative finds what native backends need: their programs beside this one, and the Python environment that may hold ONNX Runtime.
func newNative(cfg *config.Config, command *python.Command) *native.Command {
	opts := native.Options{
		Library: cfg.Env.ONNXRuntime, Prefix: command.Prefix, CPUs: usableCPUs(), Env: cfg.Env.All,
		Hidden: func(name string) bool { return cfg.BlacklistEnv != nil && cfg.BlacklistEnv.Match(name) },
	}
	if exe, err := os.Executable(); err == nil {
		opts.ONNX = filepath.Join(filepath.Dir(exe), "flambeau-onnx")
	}
	return native.New(opts)
}

func presets(cfg *config.Config) map[infer.ModelRef]rollout.Preset {
	all := map[infer.ModelRef]rollout.Preset{}
	for name, versions := range cfg.Presets {
		for version, p := range versions {
			all[infer.ModelRef{Name: name, Version: version}] = rollout.Preset(p)
		}
	}
	return all
}

// countGPUs gives the number of devices that may be used: those that CUDA_VISIBLE_DEVICES names, else those that the driver shows.
func countGPUs(cfg *config.Config) int {
	found := 0
	if cfg.Env.VisibleGPUs != nil {
		found = visibleGPUs(*cfg.Env.VisibleGPUs)
	} else if devices, err := filepath.Glob("/dev/nvidia[0-9]*"); err == nil {
		found = len(devices)
	}
	if cfg.GPULimit >= 0 {
		return min(found, cfg.GPULimit)
	}
	return found
}
