package rollout

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// Version is one registered version of a model: its settings, its workers and the pool of their slots. It lives from its registration
// to its removal.
type Version struct {
	ref      infer.ModelRef
	url      string
	settings settings
	archive  *archive.Archive
	pool     *pool
	launcher backend.Launcher
	limits   backend.Limits
	drain    time.Duration
	log      *slog.Logger
	manager  *Manager
	provided Provided      // set before it is among the models
	retired  chan struct{} // closed when it was removed from the models

	mu       sync.Mutex // guards what follows
	min, max int
	workers  []*worker // the newest last
	closing  bool
	atStart  bool
	groups   []int // of a parallel version with GPUs: how many workers have each group of devices; nil before the first
}

// Ref names the version; its Version is never empty.
func (v *Version) Ref() infer.ModelRef { return v.ref }

// Pool hands out its workers' slots.
func (v *Version) Pool() backend.Pool { return v.pool }

// HasWorkers says whether it has a worker that is, or may get, ready. Without one a request would wait for ever.
func (v *Version) HasWorkers() bool { return v.pool.hasWorkers() }

// Retired is closed when the version was removed.
func (v *Version) Retired() <-chan struct{} { return v.retired }

// QueueSize is how many requests may wait.
func (v *Version) QueueSize() int { return v.settings.queueSize }

// BatchSize is the largest batch, as it was configured: TorchServe accepts and shows values below 1, which count as 1.
func (v *Version) BatchSize() int { return v.settings.batchSize }

// MaxBatchDelay is how long a request may wait for others to fill its batch.
func (v *Version) MaxBatchDelay() time.Duration { return v.settings.maxBatchDelay }

// ClientTimeout is how long a client waits for an answer, 0 for no limit.
func (v *Version) ClientTimeout() time.Duration { return v.settings.clientTimeout }

// IdleOnly says that a request is refused unless a worker is idle (useJobTicket).
func (v *Version) IdleOnly() bool { return v.settings.useJobTicket }

// Continuous says that batches stay with their worker while one of their requests has more answers to come (continuousBatching).
func (v *Version) Continuous() bool { return v.settings.continuousBatching }

// SequenceSettings are the settings of a version whose requests belong to sequences (sequenceBatching).
type SequenceSettings struct {
	MaxSequences, MaxItems int
	Idle, Total            time.Duration
}

// Sequences gives the settings of sequences, and whether the version has any. TorchServe reads them only beside an idle time.
func (v *Version) Sequences() (SequenceSettings, bool) {
	s := &v.settings
	return SequenceSettings{
		MaxSequences: max(s.maxNumSequence, 1), MaxItems: max(s.maxSequenceJobQueue, 1), Idle: s.sequenceMaxIdle, Total: s.sequenceTimeout,
	}, s.sequenceBatching && s.sequenceMaxIdle > 0
}

func (v *Version) responseTimeout() time.Duration { return v.settings.responseTimeout }

// minTogether is how many batches a worker that runs several at the same time takes at least.
const minTogether = 1024

// slots is how many batches an instance may have at the same time: for a concurrent one (asyncCommunication) as many as may wait, where TorchServe
// has no bound at all.
func (v *Version) slots(info backend.Info) int {
	if !info.Concurrent {
		return 1
	}
	return max(minTogether, v.settings.queueSize)
}

func (v *Version) event(e Event) { v.manager.event(e) }

func (v *Version) loaded(workerID int, took time.Duration) { v.manager.loaded(v.ref, workerID, took) }

// process says how to start the process of a worker.
func (v *Version) process(workerID int, devices []int) (backend.ProcessSpec, error) {
	spec, err := v.manager.opts.Process(ProcessRequest{
		Ref: v.ref, WorkerID: workerID, Runtime: v.settings.runtime, Dir: v.archive.Dir, Handler: v.settings.handler, Provided: v.provided,
		Parallel: v.settings.parallel(), Devices: devices,
	})
	if err != nil {
		return spec, fault.New(fault.StartFailed, "the worker's command cannot be made", err)
	}
	spec.Output = func(line backend.OutputLine) { v.manager.output(v.ref, workerID, line) }
	return spec, nil
}

func (v *Version) loadSpec(gpu int) backend.LoadSpec {
	o := &v.manager.opts
	return backend.LoadSpec{
		Model: v.ref, Dir: v.archive.Dir, Handler: v.settings.handler, Envelope: o.Envelope, GPU: gpu, BatchSize: v.settings.batchSize,
		LimitMaxImagePixels: o.LimitMaxImagePixels, MaxResponseBytes: o.MaxResponseBytes,
	}
}

// resize brings the number of workers between minWorkers and maxWorkers: it adds workers up to minWorkers, or removes the newest ones down to
// maxWorkers (TorchServe's rule). It returns the workers that are wanted now, and a function that waits until the removed ones are gone.
func (v *Version) resize(minWorkers, maxWorkers int) (wanted []*worker, removed func(context.Context) error, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closing {
		return nil, nil, fault.Newf(fault.ModelNotFound, "Model not found: %s", v.ref.Name)
	}
	if minWorkers, maxWorkers, err = v.fit(minWorkers, maxWorkers); err != nil {
		return nil, nil, err
	}
	v.min, v.max = minWorkers, maxWorkers
	v.workers = slices.DeleteFunc(v.workers, func(w *worker) bool { // who scales wants another try
		gaveUp := !w.healthy()
		if gaveUp {
			w.end(v.pool)
		}
		return gaveUp
	})
	for len(v.workers) < minWorkers {
		v.workers = append(v.workers, v.newWorker())
	}
	var gone []*worker
	if len(v.workers) > maxWorkers {
		gone = append(gone, v.workers[maxWorkers:]...)
		v.workers = v.workers[:maxWorkers:maxWorkers]
	}
	for _, w := range gone {
		w.end(v.pool)
	}
	return append([]*worker(nil), v.workers...), func(ctx context.Context) error { return awaitGone(ctx, gone) }, nil
}

// newWorker starts a worker; v.mu is held.
func (v *Version) newWorker() *worker {
	life, cancel := context.WithCancel(v.manager.life)
	w := &worker{
		id: v.manager.nextWorkerID(v.settings.parallelLevel), created: time.Now(), cancel: cancel,
		done: make(chan struct{}), settled: make(chan struct{}),
	}
	if w.group, w.devices = v.takeGroup(); w.group == noGroup {
		w.gpu = v.manager.nextGPU(v)
	} else {
		w.gpu = w.devices[0]
	}
	v.pool.hope(w.id) // now, so that a request that comes next waits for it
	go w.run(life, v)
	return w
}

func awaitGone(ctx context.Context, workers []*worker) error {
	for _, w := range workers {
		select {
		case <-w.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// awaitReady waits until all the workers are ready, and gives the first failure.
func awaitReady(ctx context.Context, workers []*worker) error {
	failed := make(chan error, len(workers))
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	for _, w := range workers {
		go func() { failed <- w.await(waiting) }()
	}
	var first error
	for range workers {
		if err := <-failed; err != nil && first == nil {
			first = err
			stop()
		}
	}
	return first
}

// stop ends all the workers and waits for them; running batches may end first.
func (v *Version) stop(ctx context.Context) error {
	v.mu.Lock()
	v.closing = true
	workers := v.workers
	v.workers = nil
	v.mu.Unlock()
	for _, w := range workers {
		w.end(v.pool)
	}
	return awaitGone(ctx, workers)
}

// healthy is TorchServe's rule: at least the minimum of workers is, or may get, ready.
func (v *Version) healthy() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := 0
	for _, w := range v.workers {
		if w.healthy() {
			n++
		}
	}
	return n >= v.min
}

func (v *Version) describe(isDefault bool) Description {
	v.mu.Lock()
	workers := append([]*worker(nil), v.workers...)
	minWorkers, maxWorkers, atStart, closing := v.min, v.max, v.atStart, v.closing
	v.mu.Unlock()
	s := &v.settings
	d := Description{
		Ref: v.ref, URL: v.url, Runtime: s.runtime, MinWorkers: minWorkers, MaxWorkers: maxWorkers, BatchSize: s.batchSize, MaxBatchDelay: s.maxBatchDelay,
		ResponseTimeout: s.responseTimeout, StartupTimeout: s.startupTimeout, MaxRetryTimeout: s.maxRetry, ClientTimeout: s.clientTimeout,
		ParallelType: s.parallelType, ParallelLevel: s.parallelLevel, DeviceType: s.deviceType, DeviceIDs: s.deviceIDs,
		ContinuousBatching: s.continuousBatching, Stateful: s.sequenceBatching, UseJobTicket: s.useJobTicket, UseVenv: s.useVenv,
		SequenceMaxIdle: s.sequenceMaxIdle, SequenceTimeout: s.sequenceTimeout, MaxNumSequence: s.maxNumSequence, MaxSequenceJobQueue: s.maxSequenceJobQueue,
		QueueSize: s.queueSize, Default: isDefault, LoadedAtStartup: atStart, Workers: make([]Worker, 0, len(workers)),
	}
	for _, w := range workers {
		d.Workers = append(d.Workers, w.describe())
	}
	d.State, d.Reason = summary(d.Workers, minWorkers, closing)
	return d
}

// summary computes the version's state from its workers; it is never stored.
func summary(workers []Worker, minWorkers int, closing bool) (state, reason string) {
	ready, failed := 0, 0
	for _, w := range workers {
		switch {
		case w.Ready:
			ready++
		case w.State == "failed" || w.State == "waiting":
			failed++
			reason = w.Reason
		}
	}
	switch {
	case closing:
		return "draining", ""
	case len(workers) == 0:
		return "idle", "it has no workers"
	case ready >= minWorkers:
		return "serving", reason
	case failed == 0:
		return "deploying", ""
	case ready > 0:
		return "degraded", reason
	default:
		return "failed", reason
	}
}

// isCancel says that err comes from a context that ended, not from a worker.
func isCancel(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
