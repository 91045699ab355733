package rollout

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/redact"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// generation is one load of a version: an archive with its settings, and the workers that run it. A version has one that serves, and one more while an
// update runs.
type generation struct {
	number   int // counted from firstGeneration
	version  *Version
	url      string // as it was given, which may hold a password or a signature
	settings settings
	archive  *archive.Archive
	provided Provided
	samples  []archive.Sample // warm-up requests of the archive
	before   []Step           // what was done before the workers were started
	begun    time.Time
	outcome  chan struct{} // closed once it was told how its start went; nil for the first one

	// The version's mu guards what follows.
	since    time.Time // when it began to serve; zero before
	min, max int
	first    int          // how many workers it begins with, where that is more than min
	workers  []*worker    // the newest last
	leaving  []*worker    // that were let go, and may not have ended yet
	ended    bool         // no worker may be added
	replaced bool         // another one serves, and nobody waits for the end of this one
	info     backend.Info // what the worker that got ready last has told about itself
}

// source is where the archive is for people.
func (g *generation) source() string { return cmp.Or(g.archive.Source, redact.URL(g.url)) }

// minTogether is how many batches a worker that runs several at the same time takes at least.
const minTogether = 1024

// slots is how many batches an instance may have at the same time: for a concurrent one (asyncCommunication) as many as may wait, where TorchServe
// has no bound at all.
func (g *generation) slots(info backend.Info) int {
	if !info.Concurrent {
		return 1
	}
	return max(minTogether, g.settings.queueSize)
}

// terms are what its instances' batches are like.
func (g *generation) terms(info backend.Info) terms {
	return terms{maxBatch: max(g.settings.batchSize, 1), continuous: g.settings.continuousBatching, ahead: g.settings.takesAhead(info)}
}

// told notes what a worker says about itself.
func (g *generation) told(info backend.Info) {
	g.version.mu.Lock()
	defer g.version.mu.Unlock()
	g.info = info
}

// process says how to start the process of a worker.
func (g *generation) process(workerID int, devices []int) (backend.ProcessSpec, error) {
	v := g.version
	spec, err := v.manager.opts.Process(ProcessRequest{
		Ref: v.ref, WorkerID: workerID, Runtime: g.settings.runtime, Workers: max(g.most(), 1), InPlace: g.archive.InPlace, Dir: g.archive.Dir, Handler: g.settings.handler, Provided: g.provided,
		Program: g.archive.Program, Args: g.archive.Settings.PluginArgs, Ensemble: g.archive.Ensemble, Config: g.archive.BackendConfig,
		Parallel: g.settings.parallel(), Devices: devices,
	})
	if err != nil {
		return spec, fault.New(fault.StartFailed, "the worker cannot be started", err)
	}
	spec.Output = func(line backend.OutputLine) { v.manager.output(v.ref, workerID, line) }
	return spec, nil
}

// most is how many workers it is to have, or may have when their number follows the load.
func (g *generation) most() int {
	g.version.mu.Lock()
	defer g.version.mu.Unlock()
	if g.version.manager.scales(g) {
		return g.max
	}
	return g.min
}

func (g *generation) loadSpec(gpu int) backend.LoadSpec {
	o := &g.version.manager.opts
	return backend.LoadSpec{
		Model: g.version.ref, Dir: g.archive.Dir, Handler: g.settings.handler, Envelope: o.Envelope, GPU: gpu, BatchSize: g.settings.batchSize,
		LimitMaxImagePixels: o.LimitMaxImagePixels, MaxResponseBytes: o.MaxResponseBytes,
	}
}

// resize brings the number of workers between minWorkers and maxWorkers: it adds workers up to minWorkers, or removes the newest ones down to
// maxWorkers (TorchServe's rule). It returns the workers that are wanted now, and a function that waits until the removed ones are gone. The version's
// mu is held.
func (g *generation) resize(minWorkers, maxWorkers int) (wanted []*worker, removed func(context.Context) error, err error) {
	if g.ended {
		return nil, nil, fault.Newf(fault.ModelNotFound, "Model not found: %s", g.version.ref.Name)
	}
	if minWorkers, maxWorkers, err = g.fit(minWorkers, maxWorkers); err != nil {
		return nil, nil, err
	}
	g.min, g.max = minWorkers, maxWorkers
	g.endHopeless() // who scales wants another try
	begin := max(minWorkers, min(g.first, maxWorkers))
	g.first = 0
	for len(g.workers) < begin {
		g.workers = append(g.workers, g.newWorker())
	}
	var gone []*worker
	if len(g.workers) > maxWorkers {
		gone = append(gone, g.workers[maxWorkers:]...)
		g.workers = g.workers[:maxWorkers:maxWorkers]
	}
	for _, w := range gone {
		w.end(g.version.pool)
	}
	return slices.Clone(g.workers), func(ctx context.Context) error { return awaitGone(ctx, gone) }, nil
}

// endHopeless ends the workers that gave up; the version's mu is held.
func (g *generation) endHopeless() {
	g.workers = slices.DeleteFunc(g.workers, func(w *worker) bool {
		gaveUp := !w.healthy()
		if gaveUp {
			w.end(g.version.pool)
		}
		return gaveUp
	})
}

// newWorker starts a worker; the version's mu is held.
func (g *generation) newWorker() *worker {
	v := g.version
	life, cancel := context.WithCancel(v.manager.life)
	w := &worker{
		id: v.manager.nextWorkerID(g.settings.parallelLevel), created: time.Now(), cancel: cancel,
		done: make(chan struct{}), settled: make(chan struct{}), recalled: make(chan struct{}),
	}
	if w.group, w.devices = g.takeGroup(); w.group == noGroup {
		w.gpu = v.manager.nextGPU(g)
	} else {
		w.gpu = w.devices[0]
	}
	v.pool.hope(w.id, g.number) // now, so that a request that comes next waits for it
	go w.run(life, g)
	return w
}

// longestDrain bounds what of a replaced generation still runs, such as a stream or a sequence without an end of its own.
const longestDrain = time.Hour

// patience is how long what runs may run on when its worker is to end; patient says that nobody waits for that.
func (g *generation) patience(patient bool) time.Duration {
	g.version.mu.Lock()
	defer g.version.mu.Unlock()
	if g.replaced || patient {
		return max(g.version.drain, longestDrain)
	}
	return g.version.drain
}

// stop ends all the workers and waits for them; running batches may end first.
func (g *generation) stop(ctx context.Context) error {
	g.version.mu.Lock()
	g.ended = true
	workers, leaving := g.workers, g.leaving
	g.workers, g.leaving = nil, nil
	g.version.mu.Unlock()
	for _, w := range workers {
		w.end(g.version.pool)
	}
	for _, w := range leaving {
		w.recall()
	}
	return awaitGone(ctx, append(workers, leaving...))
}

// release gives back what the generation used, once its workers have ended. forget is for a model that is removed: its fetched copy goes, too.
func (g *generation) release(forget bool) error {
	if g.provided.Release != nil {
		g.provided.Release()
	}
	if forget {
		return g.archive.Forget()
	}
	return g.archive.Close()
}

// prepare gets ready what the workers need. On failure nothing is left of it but the archive, which stays the caller's.
func (m *Manager) prepare(ctx context.Context, g *generation) error {
	begun := time.Now()
	provided, err := m.provide(ctx, g)
	if err != nil {
		return err
	}
	g.provided = provided
	if took := time.Since(begun); provided.Installed || took > time.Millisecond {
		g.before = append(g.before, Step{stepDependencies, took})
	}
	if m.opts.WarmUp == WarmUpOff {
		return nil
	}
	if g.samples, err = g.archive.Samples(); err != nil {
		if provided.Release != nil {
			provided.Release()
		}
		f := fault.New(fault.InvalidModel, "the model's warm-up samples cannot be read", err)
		f.Hint = "correct the key warmup of its configuration file and the folder warmup/ of the archive, or set model_warmup=off"
		return f
	}
	return nil
}

// discard forgets an archive that nobody will use, also its fetched copy, which would be in the way of the next try; it gives err.
func discard(a *archive.Archive, err error) error {
	if cleanup := a.Forget(); cleanup != nil {
		return errors.Join(err, cleanup)
	}
	return err
}
