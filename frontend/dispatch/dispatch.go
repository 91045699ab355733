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
	"github.com/flambeau-serve/flambeau/frontend/batch/policy"
	"github.com/flambeau-serve/flambeau/frontend/poison"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// Models finds model versions; rollout.Manager implements it.
type Models interface {
	Resolve(ref infer.ModelRef) (*rollout.Version, error)
	Describe(ref infer.ModelRef) (rollout.Description, error)
	// Route is Resolve for a request, which its header, or the sequence that it belongs to, may lead to another version than the default one.
	Route(ref infer.ModelRef, header func(name string) string, sequence func() string) (*rollout.Version, error)
}

// Observation is what is known of a request once it was answered.
type Observation struct {
	Ref    infer.ModelRef // as the client named it: Version is "" when it named none
	Taken  infer.ModelRef // with the version that it went to
	ID     string
	Begun  time.Time     // when it arrived
	Times  batch.Times   // where its time went
	Total  time.Duration // from its arrival to its answer
	Status int           // that the handler set, 0 for none
	Err    error         // nil when it was answered

	BytesIn, BytesOut int64 // payload; of an answer in pieces the last one
}

// Options are what a Dispatcher needs. Models is required.
type Options struct {
	Models Models
	// QueueBytes is how many payload bytes may wait for one model version; 0 for no limit.
	QueueBytes int64
	// ServerBytes is how many payload bytes may wait for all of them together; 0 for no limit.
	ServerBytes int64
	// Fairness is how the clients of a model share its queue whose settings do not say.
	Fairness infer.Fairness
	// Sequence are the names of the headers that carry sequences.
	Sequence SequenceHeaders
	// Observe is called after each answer; it must not block. May be nil.
	Observe func(Observation)
	// Tuned is called for each step that a version's queue takes toward its latency goal; it must not block. May be nil.
	Tuned func(infer.ModelRef, policy.Step)
	// Panicked is told of each panic that was contained in what works for a version: it has cost a batch its answers, or what waited. It must not block.
	// May be nil.
	Panicked func(infer.ModelRef, error)
	// Poison remembers the requests that have ended workers. Nil: a batch whose worker dies is answered with that, and nothing is remembered.
	Poison *poison.Book
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

	budget *batch.Budget // of all queues; nil for no limit

	mu       sync.Mutex // guards what follows
	lines    map[*rollout.Version]*line
	windows  map[*rollout.Version]*window // of the versions that have been asked
	retiring map[*line]*rollout.Version   // queues that take nothing any more and still answer: of removed versions, and those that were replaced
	draining bool                         // nothing is taken from outside
	drained  bool                         // nothing is taken at all

	together sync.WaitGroup // requests for ensembles; it grows, under mu, only before draining
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
	Oldest() time.Duration
	Soonest() (after time.Duration, known bool)
	Tuning() (batch.Tuning, bool)
	Freeze(on bool) bool
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
	d := &Dispatcher{opts: opts, lines: map[*rollout.Version]*line{}, windows: map[*rollout.Version]*window{}, retiring: map[*line]*rollout.Version{}}
	if opts.ServerBytes > 0 {
		d.budget = batch.NewBudget(opts.ServerBytes)
	}
	d.life, d.end = context.WithCancelCause(context.Background())
	return d, nil
}

// Submit waits for the answer to item by the version that ref names. A failed item is an error.
func (d *Dispatcher) Submit(ctx context.Context, ref infer.ModelRef, item infer.Item) (infer.Result, error) {
	begun := time.Now()
	sequence := d.sequenceOf(&item)
	route := func() (*rollout.Version, error) {
		return d.opts.Models.Route(ref, func(name string) string { return headerOf(item.Header, name) }, sequence)
	}
	v, err := route()
	if err != nil {
		return infer.Result{}, err //nolint:wrapcheck // the model store's words are the client's
	}
	result, times, err := d.submit(ctx, v, item, begun, sequence)
	for err != nil && d.missed(ref, v, times, err) {
		other, none := route() // the one that has taken its place meanwhile
		if none != nil || other == v {
			break
		}
		v = other
		result, times, err = d.submit(ctx, v, item, begun, sequence)
	}
	total := time.Since(begun)
	if err != nil {
		err = explain(ref, v, err)
	}
	d.answered(v, begun, &item, times, err)
	if d.opts.Observe != nil {
		d.opts.Observe(Observation{
			Ref: ref, Taken: v.Ref(), ID: item.ID, Begun: begun, Times: times, Total: total, Status: result.Status, Err: err,
			BytesIn: item.Size(), BytesOut: int64(len(result.Body)),
		})
	}
	return result, err
}

// missed says whether a request came to a version in the moment in which that was removed, or in which a version lost its workers that gets requests
// by its weight only while it has some; and was not run.
func (d *Dispatcher) missed(ref infer.ModelRef, v *rollout.Version, times batch.Times, err error) bool {
	if times.Run != nil || !fault.Is(err, fault.ModelNotFound, fault.NoWorker) {
		return false
	}
	select {
	case <-v.Retired():
		return true
	default:
	}
	standard, none := d.opts.Models.Resolve(infer.ModelRef{Name: ref.Name})
	return none == nil && ref.Version == "" && standard != v
}

// headerOf gives a header's value. Only cookies may come in several lines that mean one.
func headerOf(fields []infer.Field, name string) string {
	value := ""
	for i := range fields {
		f := &fields[i]
		if len(f.Name) != len(name) || !strings.EqualFold(f.Name, name) {
			continue
		}
		if name != "cookie" {
			return f.Value
		}
		if value != "" {
			value += "; "
		}
		value += f.Value
	}
	return value
}

func (d *Dispatcher) submit(
	ctx context.Context, v *rollout.Version, item infer.Item, begun time.Time, sequence func() string,
) (infer.Result, batch.Times, error) {
	leave, err := d.admit(ctx, v)
	if err != nil {
		return infer.Result{}, batch.Times{}, err
	}
	defer leave()
	if !v.HasWorkers() {
		return infer.Result{}, batch.Times{}, d.without(ctx, v)
	}
	ctx, cancel, err := bound(ctx, v, &item, begun)
	if err != nil {
		return infer.Result{}, batch.Times{}, err
	}
	defer cancel()
	item.Gone = ctx.Done()
	item.Client = d.fairness(v).Key.Of(&item)
	depart, err := d.attend(v, &item)
	if err != nil {
		return infer.Result{}, batch.Times{}, err
	}
	defer depart()
	for {
		l, err := d.line(v)
		if err != nil {
			return infer.Result{}, batch.Times{}, err
		}
		if _, ordered := l.queue.(*batch.Sequences); ordered {
			d.assign(&item, sequence)
		}
		result, times, err := l.queue.Submit(ctx, item)
		if errors.Is(err, batch.ErrBroken) {
			d.setAside(v, l)
		}
		if !errors.Is(err, errReplaced) { // else there is another one, which takes it
			return result, times, err //nolint:wrapcheck // the queue's faults are the client's
		}
	}
}

// line gives the queue of a version, and makes it at the first request.
func (d *Dispatcher) line(v *rollout.Version) (*line, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l := d.lines[v]; l != nil {
		return l, nil
	}
	if d.drained {
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
	if d.windows[v] == nil {
		d.windows[v] = newWindow()
	}
	go func() {
		defer close(l.done)
		d.run(v, q)
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.retiring, l)
		if d.lines[v] == l { // it is broken, and the next request makes another one
			delete(d.lines, v)
		}
	}()
	return l, nil
}

// setAside lets a queue end that takes nothing more, with what runs: the next request makes another one.
func (d *Dispatcher) setAside(v *rollout.Version, l *line) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lines[v] == l {
		delete(d.lines, v)
		d.retiring[l] = v
	}
}

// run runs a queue until it has answered everything.
func (d *Dispatcher) run(v *rollout.Version, q queue) {
	err := fault.Contain("a queue was run", func() { q.Run(d.life) })
	if err == nil {
		return
	}
	if tell := d.panicked(v); tell != nil {
		tell(err)
	}
	_ = fault.Contain("a queue was given up", func() {
		q.Close(err)
		q.Fail(err)
	})
}

// panicked gives whom to tell of the panics of a version, nil for nobody.
func (d *Dispatcher) panicked(v *rollout.Version) func(error) {
	if d.opts.Panicked == nil {
		return nil
	}
	ref := v.Ref()
	return func(err error) { d.opts.Panicked(ref, err) }
}

// newQueue makes a queue of the kind that the version wants.
func (d *Dispatcher) newQueue(v *rollout.Version) (queue, error) {
	if policy, ok := d.sequencePolicy(v); ok {
		return batch.NewSequences(v.Pool(), policy) //nolint:wrapcheck // the caller says what it is about
	}
	return batch.New(v.Pool(), d.policy(v)) //nolint:wrapcheck // the same
}

func (d *Dispatcher) policy(v *rollout.Version) batch.Policy {
	return batch.Policy{
		MaxItems: v.QueueSize(), MaxBytes: d.opts.QueueBytes, MaxBatch: v.BatchSize(), MaxDelay: v.MaxBatchDelay(), IdleOnly: v.IdleOnly(),
		Priorities: priorities(v), Guard: d.guard(v), Share: d.share(v), Budget: d.budget, Batching: d.batching(v), Panicked: d.panicked(v),
	}
}

func (d *Dispatcher) sequencePolicy(v *rollout.Version) (batch.SequencePolicy, bool) {
	s, ok := v.Sequences()
	return batch.SequencePolicy{
		MaxSequences: s.MaxSequences, MaxItems: s.MaxItems, Idle: s.Idle, Total: s.Total, MaxBytes: d.opts.QueueBytes, EndHeader: d.opts.Sequence.End,
		MaxBatch: v.BatchSize(), MaxDelay: v.MaxBatchDelay(), Priorities: priorities(v), Guard: d.guard(v), Budget: d.budget, Batching: d.batching(v),
		Panicked: d.panicked(v),
	}, ok
}

// batching gives how the batches of a version are made.
func (d *Dispatcher) batching(v *rollout.Version) batch.Batching {
	s, ref := v.Batching(), v.Ref()
	b := batch.Batching{Rule: policy.Rule(s.Rule), Preferred: s.Preferred, Padded: s.Padded, Goal: s.Goal}
	if d.opts.Tuned != nil {
		b.Moved = func(step policy.Step) { d.opts.Tuned(ref, step) }
	}
	return b
}

// guard looks after the requests of a version whose worker dies.
func (d *Dispatcher) guard(v *rollout.Version) *batch.Guard {
	if d.opts.Poison == nil {
		return nil
	}
	return &batch.Guard{Book: d.opts.Poison, Model: v.Ref(), Retry: v.Retries()}
}

func priorities(v *rollout.Version) batch.Priorities {
	levels, standard := v.Priorities()
	return batch.Priorities{Levels: levels, Default: standard}
}

// Refresh takes over what another generation of a version wants. What waits is not touched; a queue of another kind takes what comes from now on, and the
// old one answers what it has.
func (d *Dispatcher) Refresh(v *rollout.Version) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.lines[v]
	if l == nil {
		return nil // it is made at the first request
	}
	sequences, ordered := d.sequencePolicy(v)
	switch q := l.queue.(type) {
	case *batch.Sequences:
		if ordered {
			return q.SetPolicy(sequences) //nolint:wrapcheck // the caller says what it is about
		}
	case *batch.Queue:
		if !ordered {
			return q.SetPolicy(d.policy(v)) //nolint:wrapcheck // the same
		}
	}
	delete(d.lines, v)
	d.retiring[l] = v
	l.queue.Close(errReplaced)
	return nil
}

// errReplaced is what a queue says that another one has taken the place of.
var errReplaced = errors.New("the queue was replaced")

// sequenceOf gives what finds the sequence of a request: by its header, or a new one for a request that has none and would begin one.
func (d *Dispatcher) sequenceOf(item *infer.Item) func() string {
	var fresh string
	return func() string {
		id := item.Sequence
		for i := range item.Header {
			if f := &item.Header[i]; len(f.Name) == len(d.opts.Sequence.ID) && strings.EqualFold(f.Name, d.opts.Sequence.ID) {
				id = f.Value
			}
		}
		if id != "" || item.Alone {
			return id
		}
		if fresh == "" {
			fresh = "ts-seq-" + uuid.NewString()
		}
		return fresh
	}
}

// assign gives a request its sequence. A request without one begins a sequence of its own, and the handler is told so by the two headers that
// TorchServe adds. Handlers look the headers up by their exact names, which many HTTP clients spell in their own way.
func (d *Dispatcher) assign(item *infer.Item, sequence func() string) {
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
		item.Sequence = sequence()
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
	if l := d.lines[v]; l != nil {
		d.retiring[l] = v
	}
	delete(d.lines, v)
	delete(d.windows, v)
	var lines []*line // with those that another one has taken the place of
	for l, of := range d.retiring {
		if of == v {
			lines = append(lines, l)
		}
	}
	d.mu.Unlock()
	finish(ctx, lines, gone(v))
}

// finish closes queues and waits until they have answered everything; what still waits when ctx ends is answered with reason.
func finish(ctx context.Context, lines []*line, reason error) {
	for _, l := range lines {
		l.queue.Close(reason)
	}
	for _, l := range lines {
		select {
		case <-l.done:
		case <-ctx.Done():
			l.queue.Fail(reason)
		}
	}
}

// Drain refuses what arrives, and returns when everything that waits or runs was answered, or answers what still waits with an error when ctx
// ends.
func (d *Dispatcher) Drain(ctx context.Context) error {
	d.mu.Lock()
	d.draining = true
	d.mu.Unlock()
	d.awaitEnsembles(ctx)
	d.mu.Lock()
	d.drained = true
	lines := d.all()
	d.mu.Unlock()
	finish(ctx, lines, errDraining())
	return ctx.Err()
}

// all gives the queues, those of removed versions included; d.mu is held.
func (d *Dispatcher) all() []*line {
	return slices.AppendSeq(slices.Collect(maps.Values(d.lines)), maps.Keys(d.retiring))
}

// Close ends all the queues: what still waits or runs is answered with an error.
func (d *Dispatcher) Close() {
	d.mu.Lock()
	d.draining, d.drained = true, true
	lines := d.all()
	d.mu.Unlock()
	d.end(errDraining())
	for _, l := range lines {
		<-l.done
	}
}
