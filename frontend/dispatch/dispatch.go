// Package dispatch takes a request to the queue of the right model version, and its answer back.
package dispatch

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/flambeau-serve/flambeau/frontend/batch"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// Models finds model versions; rollout.Manager implements it.
type Models interface {
	Resolve(ref infer.ModelRef) (*rollout.Version, error)
}

// Observation is what is known of a request once it was answered.
type Observation struct {
	Ref    infer.ModelRef // as the client named it: Version is "" when it named none
	ID     string
	Times  batch.Times   // where its time went
	Total  time.Duration // from its arrival to its answer
	Status int           // that the handler set, 0 for none
	Err    error         // nil when it was answered
}

// Options are what a Dispatcher needs. Models is required.
type Options struct {
	Models Models
	// QueueBytes is how many payload bytes may wait for one model version; 0 for no limit.
	QueueBytes int64
	// Sequence are the names of the headers that carry sequences.
	Sequence SequenceHeaders
	// Observe is called after each answer; it must not block. May be nil.
	Observe func(Observation)
}

// SequenceHeaders are the names of the headers that carry sequences: which one a request belongs to, that it begins there, and in an answer the
// sequences that end. Empty ones mean TorchServe's.
type SequenceHeaders struct{ ID, Start, End string }

// Dispatcher holds the queues of all model versions. Its methods are safe for concurrent use.
type Dispatcher struct {
	opts Options
	// life ends when Close is called: it is what the queues' goroutines live by.
	life context.Context //nolint:containedctx // a life-long "done", not a call's context
	end  context.CancelCauseFunc

	mu       sync.Mutex // guards what follows
	lines    map[*rollout.Version]*line
	retiring map[*line]bool // queues of removed versions that still answer
	draining bool
}

// line is the queue of a version and its goroutine.
type line struct {
	queue queue
	done  chan struct{} // closed when the queue has answered everything
}

// queue is what both kinds of queues do.
type queue interface {
	Submit(ctx context.Context, item infer.Item) (infer.Result, batch.Times, error)
	Waiting() (waiting, limit int)
	Run(ctx context.Context)
	Close(reason error)
	Fail(err error)
}

// New makes a Dispatcher.
func New(opts Options) (*Dispatcher, error) {
	if opts.Models == nil {
		return nil, errors.New("dispatch: Models is required")
	}
	opts.Sequence.ID = cmp.Or(opts.Sequence.ID, "ts_request_sequence_id")
	opts.Sequence.Start = cmp.Or(opts.Sequence.Start, "ts_request_sequence_start")
	opts.Sequence.End = cmp.Or(opts.Sequence.End, "ts_request_sequence_end")
	d := &Dispatcher{opts: opts, lines: map[*rollout.Version]*line{}, retiring: map[*line]bool{}}
	d.life, d.end = context.WithCancelCause(context.Background())
	return d, nil
}

// Submit waits for the answer to item by the version that ref names. A failed item is an error.
func (d *Dispatcher) Submit(ctx context.Context, ref infer.ModelRef, item infer.Item) (infer.Result, error) {
	begun := time.Now()
	v, err := d.opts.Models.Resolve(ref)
	if err != nil {
		return infer.Result{}, err
	}
	result, times, err := d.submit(ctx, v, item)
	if err != nil {
		err = explain(ref, err)
	}
	if d.opts.Observe != nil {
		d.opts.Observe(Observation{
			Ref: ref, ID: item.ID, Times: times, Total: time.Since(begun), Status: result.Status, Err: err,
		})
	}
	return result, err
}

func (d *Dispatcher) submit(ctx context.Context, v *rollout.Version, item infer.Item) (infer.Result, batch.Times, error) {
	if !v.HasWorkers() {
		return infer.Result{}, batch.Times{}, fault.New(fault.NoWorker, "the model has no worker", nil)
	}
	l, err := d.line(v)
	if err != nil {
		return infer.Result{}, batch.Times{}, err
	}
	if limit := v.ClientTimeout(); limit > 0 {
		late := fault.Newf(fault.ClientTimeout, "the request was not answered within the client timeout of %s", limit)
		late.Hint = "raise clientTimeoutInMills in model-config.yaml if clients may wait longer"
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, late)
		defer cancel()
	}
	if _, ok := v.Sequences(); ok {
		d.assign(&item)
	}
	return l.queue.Submit(ctx, item) //nolint:wrapcheck // the queue's faults are the client's
}

// explain makes a fault of every error and words those that TorchServe words by the model's name.
func explain(ref infer.ModelRef, err error) error {
	switch {
	case fault.Is(err, fault.NoWorker, fault.Overloaded):
		return noWorker(ref, err)
	case errors.Is(err, context.Canceled):
		return fault.New(fault.Cancelled, "the client went away", err)
	case errors.Is(err, context.DeadlineExceeded) && !fault.Is(err, fault.ResponseTimeout, fault.ClientTimeout):
		return fault.New(fault.ClientTimeout, "the request's deadline is over", err)
	default:
		return err
	}
}

// noWorker has TorchServe's text for both a version without workers and a full queue; the kind tells the two apart, and the hint says which it was.
func noWorker(ref infer.ModelRef, err error) error {
	name := `Model "` + ref.Name + `"`
	if ref.Version != "" {
		name += ` Version ` + ref.Version + `"` // TorchServe leaves the opening quote out
	}
	f := fault.New(fault.KindOf(err), name+" has no worker to serve inference request. Please use scale workers API to add workers. "+
		"If this is a sequence inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize", err)
	f.Hint = fault.Message(err)
	if f.Kind == fault.Overloaded {
		f.Hint += "; raise jobQueueSize or job_queue_size, add workers, or send less"
	}
	return f
}

// line gives the queue of a version, and makes it at the first request.
func (d *Dispatcher) line(v *rollout.Version) (*line, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l := d.lines[v]; l != nil {
		return l, nil
	}
	if d.draining {
		return nil, errDraining()
	}
	select {
	case <-v.Retired():
		return nil, gone(v)
	default:
	}
	q, err := d.newQueue(v)
	if err != nil {
		return nil, fault.New(fault.Internal, "the model's queue cannot be made", err)
	}
	l := &line{queue: q, done: make(chan struct{})}
	d.lines[v] = l
	go func() {
		defer close(l.done)
		q.Run(d.life)
	}()
	return l, nil
}

// newQueue makes a queue of the kind that the version wants.
func (d *Dispatcher) newQueue(v *rollout.Version) (queue, error) {
	if s, ok := v.Sequences(); ok {
		return batch.NewSequences(v.Pool(), batch.SequencePolicy{ //nolint:wrapcheck // the caller says what it is about
			MaxSequences: s.MaxSequences, MaxItems: s.MaxItems, Idle: s.Idle, Total: s.Total, MaxBytes: d.opts.QueueBytes, EndHeader: d.opts.Sequence.End,
			MaxBatch: v.BatchSize(), MaxDelay: v.MaxBatchDelay(), Continuous: v.Continuous(),
		})
	}
	return batch.New(v.Pool(), batch.Policy{ //nolint:wrapcheck // the same
		MaxItems: v.QueueSize(), MaxBytes: d.opts.QueueBytes, MaxBatch: v.BatchSize(), MaxDelay: v.MaxBatchDelay(), IdleOnly: v.IdleOnly(),
		Continuous: v.Continuous(),
	})
}

// assign finds the sequence of a request by its header. A request without one begins a sequence of its own, and the handler is told so by the two
// headers that TorchServe adds. Handlers look the headers up by their exact names, which many HTTP clients spell in their own way.
func (d *Dispatcher) assign(item *infer.Item) {
	h := &d.opts.Sequence
	item.Header = slices.Clone(item.Header)
	for i := range item.Header {
		f := &item.Header[i]
		for _, name := range []string{h.ID, h.Start, h.End} {
			if strings.EqualFold(f.Name, name) {
				f.Name = name
			}
		}
		if f.Name == h.ID {
			item.Sequence = f.Value
		}
	}
	if item.Sequence == "" && !item.Alone {
		item.Sequence = "ts-seq-" + uuid.NewString()
		item.Header = append(item.Header, infer.Field{Name: h.ID, Value: item.Sequence}, infer.Field{Name: h.Start, Value: "true"})
	}
}

func gone(v *rollout.Version) error {
	return fault.Newf(fault.ModelNotFound, "Model not found: %s", v.Ref().Name)
}

func errDraining() error {
	f := fault.New(fault.Draining, "the server is shutting down", nil)
	f.Hint = "send the request to another server, or again once this one is back"
	return f
}

// Queue tells how many requests wait for the version that ref names, and how many may.
func (d *Dispatcher) Queue(ref infer.ModelRef) (waiting, limit int, err error) {
	v, err := d.opts.Models.Resolve(ref)
	if err != nil {
		return 0, 0, err
	}
	d.mu.Lock()
	l := d.lines[v]
	d.mu.Unlock()
	if l == nil {
		return 0, v.QueueSize(), nil
	}
	waiting, limit = l.queue.Waiting()
	return waiting, limit, nil
}

// Retire lets what waits for a removed version be answered, and refuses what comes. It returns when everything was answered, or answers the rest
// with an error when ctx ends.
func (d *Dispatcher) Retire(ctx context.Context, v *rollout.Version) {
	d.mu.Lock()
	l := d.lines[v]
	delete(d.lines, v)
	if l != nil {
		d.retiring[l] = true
	}
	d.mu.Unlock()
	if l == nil {
		return
	}
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.retiring, l)
	}()
	l.queue.Close(gone(v))
	select {
	case <-l.done:
	case <-ctx.Done():
		l.queue.Fail(gone(v))
	}
}

// Drain refuses what arrives, and returns when everything that waits or runs was answered, or answers what still waits with an error when ctx
// ends.
func (d *Dispatcher) Drain(ctx context.Context) error {
	d.mu.Lock()
	d.draining = true
	lines := d.all()
	d.mu.Unlock()
	for _, l := range lines {
		l.queue.Close(errDraining())
	}
	for _, l := range lines {
		select {
		case <-l.done:
		case <-ctx.Done():
			l.queue.Fail(errDraining())
		}
	}
	return ctx.Err()
}

// all gives the queues, those of removed versions included; d.mu is held.
func (d *Dispatcher) all() []*line {
	return slices.AppendSeq(slices.Collect(maps.Values(d.lines)), maps.Keys(d.retiring))
}

// Close ends all the queues: what still waits or runs is answered with an error.
func (d *Dispatcher) Close() {
	d.mu.Lock()
	d.draining = true
	lines := d.all()
	d.mu.Unlock()
	d.end(errDraining())
	for _, l := range lines {
		<-l.done
	}
}
