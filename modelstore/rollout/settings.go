package rollout

import (
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/pipeline"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
)

// settings are what a version runs with, once every source was asked.
type settings struct {
	runtime, handler                                                        string
	batchSize                                                               int
	maxBatchDelay, responseTimeout, startupTimeout, maxRetry, clientTimeout time.Duration
	queueSize                                                               int
	deviceType                                                              string
	deviceIDs                                                               []int
	parallelType                                                            string
	parallelLevel                                                           int               // devices, or processes, of each worker; 0 for one
	torchRun                                                                *archive.TorchRun // nil: no torchrun
	useJobTicket, useVenv, continuousBatching, sequenceBatching             bool
	sequenceMaxIdle, sequenceTimeout                                        time.Duration
	maxNumSequence, maxSequenceJobQueue                                     int
	swap                                                                    string
	toZero                                                                  bool // no workers without requests
	keepAlive                                                               time.Duration
	recycle                                                                 recycle
	priorityLevels, defaultPriority                                         int
	noRetry                                                                 bool
	batching                                                                BatchingSettings
	maxConcurrency                                                          int
	fairness                                                                *infer.Fairness // nil: as the server says
}

// TorchServe's word for a model that uses GPUs.
const deviceGPU = "gpu"

// TorchServe's defaults.
const (
	defaultVersion    = "1.0"
	defaultBatchSize  = 1
	defaultBatchDelay = 100 * time.Millisecond
	defaultMaxRetry   = 300 * time.Second
)

// identify gives the version that an archive is registered as: its name comes from the registration, else from the manifest, and for a
// start-up model at last from the file's name.
func identify(s Spec, a *archive.Archive) (infer.ModelRef, error) {
	ref := infer.ModelRef{Name: s.Name, Version: first(s.Version, a.Manifest.Model.ModelVersion)}
	if ref.Name == "" {
		ref.Name = a.Manifest.Model.ModelName
	}
	if ref.Name == "" && s.AtStartup {
		ref.Name = a.FileBase
	}
	if ref.Name == "" {
		return ref, fault.New(fault.InvalidModel, "Model name is not defined.", nil)
	}
	if ref.Version == "" {
		ref.Version = defaultVersion
	}
	return ref, nil
}

// resolve asks every source in TorchServe's order, which is another one for each group of settings.
func (o *Options) resolve(s Spec, preset Preset, a *archive.Archive) (settings, error) {
	y := &a.Settings
	if s.Exact {
		y, preset = s.over(y), Preset{Runtime: preset.Runtime}
	}
	r := settings{
		handler:             first(s.Handler, a.Manifest.Model.Handler, o.DefaultHandler),
		runtime:             first(preset.Runtime, s.Runtime, a.Manifest.Runtime),
		batchSize:           firstOf(defaultBatchSize, s.BatchSize, y.BatchSize, positive(preset.BatchSize)),
		maxBatchDelay:       firstOf(defaultBatchDelay, s.MaxBatchDelay, y.MaxBatchDelay, positive(preset.MaxBatchDelay)),
		responseTimeout:     firstOf(o.ResponseTimeout, y.ResponseTimeout, positive(preset.ResponseTimeout), s.ResponseTimeout),
		startupTimeout:      firstOf(o.StartupTimeout, y.StartupTimeout, positive(preset.StartupTimeout), s.StartupTimeout),
		maxRetry:            firstOf(defaultMaxRetry, y.MaxRetryTimeout),
		clientTimeout:       firstOf(0, y.ClientTimeout),
		queueSize:           firstOf(o.QueueSize, y.JobQueueSize),
		useJobTicket:        y.UseJobTicket,
		useVenv:             y.UseVenv,
		continuousBatching:  y.ContinuousBatching,
		sequenceBatching:    y.SequenceBatching,
		sequenceMaxIdle:     y.SequenceMaxIdle,
		sequenceTimeout:     y.SequenceTimeout,
		maxNumSequence:      y.MaxNumSequence,
		maxSequenceJobQueue: y.MaxSequenceJobQueueSize,
		swap:                first(y.Swap, o.Swap, SwapDual),
		priorityLevels:      y.PriorityLevels,
		defaultPriority:     y.DefaultPriorityLevel,
		noRetry:             y.NoRetry,
		batching:            o.batching(y),
		maxConcurrency:      y.MaxConcurrency,
		fairness:            y.Fairness,
	}
	if y.SequenceMaxIdle == 0 { // TorchServe reads the settings of sequences only beside an idle time
		r.sequenceTimeout, r.maxNumSequence, r.maxSequenceJobQueue = 0, 0, 0
	}
	r.toZero, r.keepAlive = y.ToZero && !o.needsWorkers(&r), y.KeepAlive
	r.recycle = recycle{requests: y.Recycle.Requests, memory: y.Recycle.MemoryMiB << 20}
	r.setParallel(y)
	r.deviceType, r.deviceIDs = o.device(y)
	switch r.runtime {
	case "python", "python3", archive.RuntimeONNX, archive.RuntimePlugin, pipeline.Runtime:
		return r, nil
	case "": // the manifest names one that does not exist
		return r, fault.New(fault.InvalidModel, "Runtime is not defined or invalid.", nil)
	case "LSP":
		return r, fault.New(fault.InvalidModel, "Runtime LSP (C++ handlers) is not supported. Use a Python handler.", nil)
	default:
		return r, fault.Newf(fault.BadRequest, "Invalid RuntimeType value: %s", r.runtime)
	}
}

// batching gives how batches are made. A goal needs the adaptive rule: with a model's own torchserve it is left out, and it goes before the server's.
func (o *Options) batching(y *archive.Settings) BatchingSettings {
	b := BatchingSettings{
		Rule: first(y.Batching, o.Batching, archive.BatchingAdaptive), Preferred: y.PreferredBatchSizes, Padded: y.PaddedBatchSizes, Goal: y.LatencyGoal,
	}
	switch {
	case y.Batching == archive.BatchingTorchServe:
		b.Goal = 0
	case b.Goal > 0:
		b.Rule = archive.BatchingAdaptive
	}
	return b
}

// needsWorkers says whether a version cannot be without workers until a request comes: sequences are bound to a worker when they begin, and job tickets
// refuse what finds none idle.
func (o *Options) needsWorkers(r *settings) bool {
	return o.Autoscale == nil || r.sequenceBatching || r.useJobTicket
}

// device gives the kind of device and the devices that the model chose; a list with a device that is not there is ignored as a whole.
func (o *Options) device(y *archive.Settings) (kind string, ids []int) {
	if o.GPUs == 0 || y.DeviceType == "cpu" {
		return "cpu", nil
	}
	for _, id := range y.DeviceIDs {
		if id < 0 || id >= o.GPUs {
			return deviceGPU, nil
		}
	}
	return deviceGPU, y.DeviceIDs
}

// over gives the archive's settings without those that the registration has a say about.
func (s *Spec) over(y *archive.Settings) *archive.Settings {
	left := *y
	if s.ResponseTimeout != nil {
		left.ResponseTimeout = nil
	}
	if s.StartupTimeout != nil {
		left.StartupTimeout = nil
	}
	return &left
}

// workers gives the numbers of workers that a version begins with.
func (o *Options) workers(s Spec, preset Preset, y *archive.Settings) (minWorkers, maxWorkers int) {
	if s.Exact && s.InitialWorkers != nil {
		return *s.InitialWorkers, max(*s.InitialWorkers, s.MaxWorkers)
	}
	if minWorkers, maxWorkers, ok := y.Workers(); ok {
		if y.ToZero && o.needsWorkers(&settings{sequenceBatching: y.SequenceBatching, useJobTicket: y.UseJobTicket}) {
			minWorkers = 1
		}
		return minWorkers, maxWorkers
	}
	n := o.DefaultWorkers
	switch {
	case s.InitialWorkers != nil:
		n = *s.InitialWorkers
	case s.AtStartup && preset.MinWorkers > 0 && preset.MaxWorkers >= preset.MinWorkers:
		return preset.MinWorkers, preset.MaxWorkers
	case s.AtStartup && n <= 0:
		n = o.StartupWorkers
	}
	n = max(n, 0)
	return n, n
}

// mostWorkers is how many processes one version may start: a larger number is a slip of the pen, and would take the machine with it, as it does with
// TorchServe.
const mostWorkers = 1024

// startable refuses numbers of workers that no machine has room for.
func startable(workers int) error {
	if workers <= mostWorkers {
		return nil
	}
	f := fault.Newf(fault.BadRequest, "%d workers are too many: each is a process, and %d are the most of one model version.", workers, mostWorkers)
	f.Hint = "one worker for each CPU or GPU is a good start"
	return f
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// firstOf gives the first value that is there, else the default.
func firstOf[T any](otherwise T, values ...*T) T {
	for _, v := range values {
		if v != nil {
			return *v
		}
	}
	return otherwise
}

// positive gives nil for what is not above zero.
func positive[T int | time.Duration](v T) *T {
	if v <= 0 {
		return nil
	}
	return &v
}
