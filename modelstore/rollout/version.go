package rollout

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/pipeline"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// Version is one registered version of a model: the queue's view of it, which outlives every change of its archive. What runs is its current generation.
// It lives from its registration to its removal.
type Version struct {
	ref      infer.ModelRef
	pool     *pool
	launcher backend.Launcher
	limits   backend.Limits
	drain    time.Duration
	log      *slog.Logger
	manager  *Manager
	retired  chan struct{} // closed when it was removed from the models
	current  atomic.Pointer[generation]
	lastGood atomic.Pointer[infer.Item] // a request that was answered well; nil for none
	turn     chan struct{}              // holds one while an update runs

	mu          sync.Mutex // guards what follows, and the workers of its generations
	spec        Spec       // what its registration asked for
	min, max    int
	scaled      bool // min and max were set by hand
	generations int  // how many there were
	next        *generation
	void        context.CancelCauseFunc // ends the update that runs or waits for its turn
	ticket      int                     // of that update
	closing     bool
	atStart     bool
	failure     *Failure
	sleepless   int   // how often in a row a worker did not come up that a request had started
	groups      []int // of a parallel version with GPUs: how many workers have each group of devices; nil before the first
}

// Ref names the version; its Version is never empty.
func (v *Version) Ref() infer.ModelRef { return v.ref }

// Pool hands out its workers' slots.
func (v *Version) Pool() backend.Pool { return v.pool }

// HasWorkers says whether it has a worker that is, or may get, ready. Without one a request would wait for ever.
func (v *Version) HasWorkers() bool { return v.pool.hasWorkers() }

// Retired is closed when the version was removed.
func (v *Version) Retired() <-chan struct{} { return v.retired }

// set gives the settings of the generation that serves.
func (v *Version) set() *settings { return &v.current.Load().settings }

// QueueSize is how many requests may wait.
func (v *Version) QueueSize() int { return v.set().queueSize }

// BatchSize is the largest batch, as it was configured: TorchServe accepts and shows values below 1, which count as 1.
func (v *Version) BatchSize() int { return v.set().batchSize }

// MaxBatchDelay is how long a request may wait for others to fill its batch.
func (v *Version) MaxBatchDelay() time.Duration { return v.set().maxBatchDelay }

// BatchingSettings say how a version's batches are made within its batch size and delay.
type BatchingSettings struct {
	Rule      string // archive.BatchingAdaptive or archive.BatchingTorchServe
	Preferred []int  // sizes at which the model is at its best; not to be changed
	Padded    bool   // the model pads a batch to the next preferred size
	Goal      time.Duration
}

// Batching gives how batches are made (batching, preferredBatchSizes, paddedBatchSizes, slo).
func (v *Version) Batching() BatchingSettings { return v.set().batching }

// ClientTimeout is how long a client waits for an answer, 0 for no limit.
func (v *Version) ClientTimeout() time.Duration { return v.set().clientTimeout }

// IsEnsemble says whether the version is made of other models.
func (v *Version) IsEnsemble() bool { return v.set().runtime == pipeline.Runtime }

// IdleOnly says that a request is refused unless a worker is idle (useJobTicket).
func (v *Version) IdleOnly() bool { return v.set().useJobTicket }

// Retries says that a request may be given to a second worker when the one that had it has died (the model's setting retry, on if it does not say).
func (v *Version) Retries() bool { return !v.current.Load().settings.noRetry }

// MaxConcurrency is how many requests may wait and run at the same time, 0 for no such limit (the model's setting maxConcurrency).
func (v *Version) MaxConcurrency() int { return v.set().maxConcurrency }

// Fairness says how clients share its queue, if the model says so (its setting fairness).
func (v *Version) Fairness() (infer.Fairness, bool) {
	if f := v.set().fairness; f != nil {
		return *f, true
	}
	return infer.Fairness{}, false
}

// Priorities gives how many classes of priority its requests have, and which is that of a request that asks for none (priorityLevels,
// defaultPriorityLevel).
func (v *Version) Priorities() (levels, standard int) {
	s := v.set()
	return s.priorityLevels, s.defaultPriority
}

// SequenceSettings are the settings of a version whose requests belong to sequences (sequenceBatching).
type SequenceSettings struct {
	MaxSequences, MaxItems int
	Idle, Total            time.Duration
}

// Sequences gives the settings of sequences, and whether the version has any. TorchServe reads them only beside an idle time.
func (v *Version) Sequences() (SequenceSettings, bool) {
	s := v.set()
	return SequenceSettings{
		MaxSequences: max(s.maxNumSequence, 1), MaxItems: max(s.maxSequenceJobQueue, 1), Idle: s.sequenceMaxIdle, Total: s.sequenceTimeout,
	}, s.sequenceBatching && s.sequenceMaxIdle > 0
}

func (v *Version) event(e Event) { v.manager.event(e) }

func (v *Version) loaded(workerID int, took time.Duration) { v.manager.loaded(v.ref, workerID, took) }

// changed tells about a change of the version.
func (v *Version) changed(ctx context.Context, g *generation, c Change) {
	c.At, c.Ref, c.Actor = time.Now(), v.ref, ActorOf(ctx)
	if g != nil {
		c.Generation, c.Digest, c.Source = g.number, g.archive.Digest, g.source()
	}
	v.manager.changed(c)
}

// resize sets the numbers of workers. It returns the workers that are wanted now, and a function that waits until the removed ones are gone.
// byHand says that they hold for the generations that follow.
func (v *Version) resize(minWorkers, maxWorkers int, byHand bool) (wanted []*worker, removed func(context.Context) error, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closing {
		return nil, nil, fault.Newf(fault.ModelNotFound, "Model not found: %s", v.ref.Name)
	}
	g := v.current.Load()
	if byHand && g.ended { // it makes room for another one, which gets the numbers, or it itself again
		v.min, v.max, v.scaled = minWorkers, maxWorkers, true
		return nil, func(context.Context) error { return nil }, nil
	}
	if wanted, removed, err = g.resize(minWorkers, maxWorkers); err == nil {
		v.min, v.max, v.scaled = g.min, g.max, v.scaled || byHand
		v.doze()
		v.manager.look(g)
	}
	return wanted, removed, err
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

// await waits until the workers of a generation are ready, or those of the one that has replaced it meanwhile.
func (v *Version) await(ctx context.Context, g *generation, workers []*worker) error {
	for {
		err := awaitReady(ctx, workers)
		now := v.current.Load()
		if err == nil || now == g || ctx.Err() != nil {
			return err
		}
		g = now
		v.mu.Lock()
		workers = slices.Clone(g.workers)
		v.mu.Unlock()
	}
}

// stop ends the version: the update that runs, and all the workers, for which it waits; running batches may end first.
func (v *Version) stop(ctx context.Context) error {
	v.mu.Lock()
	v.closing = true
	v.doze()
	if v.void != nil {
		v.void(errRetired)
	}
	v.mu.Unlock()
	v.turn <- struct{}{} // for good: no update begins any more, and the one that runs is void and ends by its limits
	return v.current.Load().stop(ctx)
}

// healthy is TorchServe's rule: at least the minimum of workers is, or may get, ready.
func (v *Version) healthy() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := 0
	for _, w := range v.current.Load().workers {
		if w.healthy() {
			n++
		}
	}
	return n >= v.min
}

// isCancel says that err comes from a context that ended, not from a worker.
func isCancel(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
