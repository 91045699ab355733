package rollout

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/pipeline"
	"github.com/flambeau-serve/flambeau/internal/redact"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// Opener opens archives; modelstore/archive implements it.
type Opener interface {
	Open(ctx context.Context, url string) (*archive.Archive, error)
}

// ProcessRequest is what the command of a worker depends on.
type ProcessRequest struct {
	Ref      infer.ModelRef
	WorkerID int
	Runtime  string // python, python3, archive.RuntimeONNX or archive.RuntimePlugin
	Workers  int    // that the version is to have, or may have when their number follows the load
	InPlace  bool   // Dir is a folder of the store, which may change
	Dir      string // the unpacked archive
	Program  string // of a plugin, and its arguments
	Args     []string
	Ensemble *pipeline.Definition // of an ensemble
	Config   string               // a file that the backend reads in place of the model's configuration file; "" for none
	Handler  string
	Provided Provided // by Options.Dependencies
	// Parallel is nil for a worker that is one process on one device, and Devices, those that it may see, are nil for all.
	Parallel *Parallel
	Devices  []int
}

// Options are what a Manager needs. Launcher, Archives, Process, Limits, the two timeouts, QueueSize and Logger are required.
type Options struct {
	Launcher backend.Launcher
	Archives Opener
	Process  func(ProcessRequest) (backend.ProcessSpec, error) // makes the command of a worker
	Limits   backend.Limits                                    // Load is not looked at: each version has its own
	Presets  map[infer.ModelRef]Preset
	// Dependencies is asked before a version with requirements, or that wants a virtual environment, is registered. Nil: nobody is.
	Dependencies Dependencies

	DefaultWorkers      int // workers of a version for which nobody says it
	StartupWorkers      int // the same for start-up models when DefaultWorkers is 0
	DefaultHandler      string
	Envelope            string
	ResponseTimeout     time.Duration
	StartupTimeout      time.Duration
	QueueSize           int
	GPUs                int // devices that may be used
	LimitMaxImagePixels bool
	MaxResponseBytes    int64
	FirstWorkerID       int           // identifiers of workers are counted from here and never used again
	FirstParallelID     int           // the same for those of parallel models
	Drain               time.Duration // how long running batches may take when their worker is removed

	Logger *slog.Logger
	// Retire is called when a version was removed, before its workers are told to end: it lets what waits be answered. It returns when that is
	// so, or when ctx ends. May be nil.
	Retire func(ctx context.Context, v *Version)
	Events func(Event) // called for each change of an instance; may be nil
	// Changed is called for each change of a version as a whole; it must not block. May be nil.
	Changed func(Change)
	// Swapped is called when another generation serves, whose settings may differ; may be nil.
	Swapped func(v *Version)
	// Replaced is called when a generation that was replaced or unregistered has ended, before its archive is closed: whoever wants to keep that does it now. May be nil.
	Replaced func(ctx context.Context, old Replaced)
	Swap     string // how a version is replaced whose archive does not say: SwapDual or SwapInPlace; "" is SwapDual
	Batching string // how batches are made where the archive does not say: archive.BatchingAdaptive, or BatchingTorchServe; "" is BatchingAdaptive
	WarmUp   string // WarmUpAuto, WarmUpSamples or WarmUpOff; "" is WarmUpSamples
	// Available says how many bytes of memory are left for new workers, and whether that is known; nil switches the guard of dual swaps off.
	Available func() (bytes int64, known bool)
	// Autoscale lets the number of workers follow the load between a version's minimum and maximum, by what Demand says. Nil, or without Demand: a version
	// has its minimum of workers (TorchServe's way). One whose archive wants none without requests (keepAlive) needs Autoscale, too.
	Autoscale *Autoscale
	Demand    func(v *Version) Demand // what waits for a version; it must not block. May be nil
	Resident  func(pid int) int64     // resident bytes of a process, 0 when not known; nil asks the system
	// Output is called for each line of a worker; may be nil.
	Output func(ref infer.ModelRef, workerID int, line backend.OutputLine)
	// Loaded is called when a worker became ready; may be nil.
	Loaded func(ref infer.ModelRef, workerID int, took time.Duration)
	// Panicked is told of each panic that was contained: it has cost a worker, or less. It must not block. Nil logs it.
	Panicked func(error)
}

// Manager holds the registered models. Its methods are safe for concurrent use.
type Manager struct {
	opts Options
	// life ends when Close is called: it is what the workers' goroutines live by.
	life context.Context //nolint:containedctx // a life-long "done", not a call's context
	end  context.CancelCauseFunc
	// sealed ends when Seal is called, hurried when Close has no more time for batches that run.
	sealed, hurried context.Context //nolint:containedctx // the same
	seal, hurry     context.CancelCauseFunc

	lastWorker   atomic.Int64
	nextParallel atomic.Int64
	lastGPU      atomic.Int64

	mu      sync.Mutex // guards what follows
	models  map[string]*model
	traffic map[string]*routes // by model; also of models that are not there yet
	startup map[string]bool    // names loaded at start-up
	closed  bool

	keeper *keeper
	deaths deaths

	retiring sync.WaitGroup // versions that are being removed
}

// model is a name with its versions.
type model struct {
	versions map[string]*Version
	standard string // the default version
}

// New makes a Manager without models.
func New(opts Options) (*Manager, error) {
	switch {
	case opts.Launcher == nil, opts.Archives == nil, opts.Process == nil, opts.Logger == nil:
		return nil, errors.New("rollout: Launcher, Archives, Process and Logger are required")
	case opts.Limits.Start <= 0, opts.Limits.Stop <= 0, opts.ResponseTimeout <= 0, opts.StartupTimeout <= 0:
		return nil, errors.New("rollout: the time limits must be above zero")
	case opts.QueueSize < 1:
		return nil, errors.New("rollout: the queue size must be at least 1")
	}
	m := &Manager{opts: opts, models: map[string]*model{}, startup: map[string]bool{}, keeper: newKeeper()}
	m.life, m.end = context.WithCancelCause(context.Background())
	m.sealed, m.seal = context.WithCancelCause(context.Background())
	m.hurried, m.hurry = context.WithCancelCause(context.Background())
	m.lastWorker.Store(int64(opts.FirstWorkerID) - 1)
	m.nextParallel.Store(int64(opts.FirstParallelID))
	return m, nil
}

func (m *Manager) event(e Event) {
	if m.opts.Events != nil {
		m.opts.Events(e)
	}
}

// resident gives the resident bytes of a process, 0 when not known.
func (m *Manager) resident(pid int) int64 {
	if m.opts.Resident != nil {
		return m.opts.Resident(pid)
	}
	return resident(pid)
}

func (m *Manager) changed(c Change) {
	if m.opts.Changed != nil {
		_ = m.contain("a change of a model was told", func() { m.opts.Changed(c) })
	}
}

func (m *Manager) output(ref infer.ModelRef, workerID int, line backend.OutputLine) {
	if m.opts.Output != nil {
		m.opts.Output(ref, workerID, line)
	}
}

func (m *Manager) loaded(ref infer.ModelRef, workerID int, took time.Duration) {
	if m.opts.Loaded != nil {
		_ = m.contain("it was told that a worker is ready", func() { m.opts.Loaded(ref, workerID, took) })
	}
}

// Resolve gives the version that ref names, by itself or by a label; an empty Version means the default one. The errors are TorchServe's words.
func (m *Manager) Resolve(ref infer.ModelRef) (*Version, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, _, err := m.find(ref)
	return v, err
}

// resolve does the work of Resolve; m.mu is held.
func (m *Manager) resolve(ref infer.ModelRef) (*Version, *model, error) {
	mod := m.models[ref.Name]
	if mod == nil {
		return nil, nil, fault.Newf(fault.ModelNotFound, "Model not found: %s", ref.Name)
	}
	name := ref.Version
	if name == "" {
		name = mod.standard
	}
	v := mod.versions[name]
	if v == nil {
		return nil, nil, fault.Newf(fault.VersionNotFound, "Model version: %s does not exist for model: %s", ref.Version, ref.Name)
	}
	return v, mod, nil
}

// ResolveExact is Resolve for a version that must be given, even an empty one.
func (m *Manager) ResolveExact(ref infer.ModelRef) (*Version, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, mod, err := m.resolve(ref)
	if err == nil && ref.Version == "" && mod.versions[""] == nil {
		return nil, fault.Newf(fault.VersionNotFound, "Model version:  does not exist for model: %s", ref.Name)
	}
	return v, err
}

// List gives the models, sorted by the code units of their names.
func (m *Manager) List() []Listed {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]Listed, 0, len(m.models))
	for name, mod := range m.models {
		list = append(list, Listed{Name: name, URL: redact.URL(mod.versions[mod.standard].current.Load().url)})
	}
	slices.SortFunc(list, func(a, b Listed) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Describe tells how a version runs now.
func (m *Manager) Describe(ref infer.ModelRef) (Description, error) {
	m.mu.Lock()
	v, mod, err := m.find(ref)
	if err != nil {
		m.mu.Unlock()
		return Description{}, err
	}
	isDefault := v.ref.Version == mod.standard
	labels, weight := m.named(v.ref)
	m.mu.Unlock()
	d := v.describe(isDefault)
	d.Labels, d.Weight = labels, weight
	return d, nil
}

// DescribeAll tells how all the versions of a model run now, sorted by version.
func (m *Manager) DescribeAll(name string) ([]Description, error) {
	m.mu.Lock()
	_, mod, err := m.resolve(infer.ModelRef{Name: name})
	var versions []*Version
	var standard string
	if err == nil {
		standard = mod.standard
		for _, v := range mod.versions {
			versions = append(versions, v)
		}
	}
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	slices.SortFunc(versions, func(a, b *Version) int { return strings.Compare(a.ref.Version, b.ref.Version) })
	all := make([]Description, 0, len(versions))
	for _, v := range versions {
		d := v.describe(v.ref.Version == standard)
		m.mu.Lock()
		d.Labels, d.Weight = m.named(v.ref)
		m.mu.Unlock()
		all = append(all, d)
	}
	return all, nil
}

// SetDefault makes a version the default one.
func (m *Manager) SetDefault(ctx context.Context, ref infer.ModelRef) error {
	v, before, err := m.setDefault(ref)
	if err != nil {
		return err
	}
	if before != ref.Version {
		v.changed(ctx, v.current.Load(), Change{Kind: ChangeDefault, Reason: "before it was " + before})
	}
	return nil
}

func (m *Manager) setDefault(ref infer.ModelRef) (v *Version, before string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	mod := m.models[ref.Name]
	if mod == nil {
		return nil, "", fault.Newf(fault.ModelNotFound, "Model not found: %s", ref.Name)
	}
	if v = mod.versions[ref.Version]; v == nil {
		return nil, "", fault.Newf(fault.VersionNotFound, "Model version %s does not exist for model %s", ref.Version, ref.Name)
	}
	before, mod.standard = mod.standard, ref.Version
	return v, before, nil
}

// StartupModels gives the names of the models that were loaded at start-up and are still there, sorted.
func (m *Manager) StartupModels() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := make([]string, 0, len(m.startup))
	for name := range m.startup {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Seal refuses registrations from now on, and makes Healthy say no: the server is about to end.
// Registrations and changes of scale that wait for their workers end.
func (m *Manager) Seal() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.seal(errSealed())
}

func errSealed() error { return fault.New(fault.Draining, "the server is shutting down", nil) }

// within gives ctx, ended also when life ends. The function must be called when it is not needed any more.
func within(ctx, life context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// Healthy is TorchServe's rule for /ping: the default version of each model has its minimum of workers that are, or may get, ready.
func (m *Manager) Healthy() bool {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return false
	}
	standards := make([]*Version, 0, len(m.models))
	for _, mod := range m.models {
		standards = append(standards, mod.versions[mod.standard])
	}
	m.mu.Unlock()
	for _, v := range standards {
		if !v.healthy() {
			return false
		}
	}
	return true
}

// Hurry makes Close, and each Unregister that waits, wait for running batches no longer.
func (m *Manager) Hurry() { m.hurry(errRetired) }

// Close ends all the workers, lets their running batches end until ctx does, and removes what was unpacked. Nothing can be registered after it.
func (m *Manager) Close(ctx context.Context) error {
	m.mu.Lock()
	m.closed = true
	var all []*Version
	for _, mod := range m.models {
		for _, v := range mod.versions {
			all = append(all, v)
		}
	}
	m.models = map[string]*model{}
	m.mu.Unlock()
	m.seal(errSealed())
	m.keeper.end()
	stop := context.AfterFunc(ctx, func() { m.hurry(errRetired) }) // also for the versions that are being removed
	defer stop()
	failed := make(chan error, len(all))
	for _, v := range all {
		go func() {
			var err, left error
			bug := m.contain("a version was ended", func() {
				close(v.retired)
				err = v.stop(ctx)
			})
			again := m.contain("the files of a model were removed", func() { left = v.current.Load().release(false) })
			failed <- errors.Join(err, bug, left, again)
		}()
	}
	var errs []error
	for range all {
		errs = append(errs, <-failed)
	}
	m.retiring.Wait()
	m.end(errRetired)
	m.hurry(errRetired)
	return errors.Join(errs...)
}
