package ensemble

import (
	"context"
	"sync"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/pipeline"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// instance is one ensemble that serves, or loads.
type instance struct {
	id       string
	launcher *Launcher
	given    *pipeline.Definition
	life     context.Context //nolint:containedctx // its requests end with it
	end      context.CancelCauseFunc
	done     chan struct{}
	running  sync.WaitGroup // requests

	tell func(why error) // why Load waits for somebody else
	plan *plan           // set by Load, before the first request

	mu      sync.Mutex // guards what follows
	stopped bool
}

var (
	_ backend.Instance = (*instance)(nil)
	_ backend.Waiter   = (*instance)(nil)
)

// ID implements backend.Instance.
func (i *instance) ID() string { return i.id }

// PID implements backend.Instance: there is no process.
func (i *instance) PID() int { return 0 }

// Done implements backend.Instance.
func (i *instance) Done() <-chan struct{} { return i.done }

// Err implements backend.Instance: an ensemble ends only when it is asked to.
func (i *instance) Err() error { return nil }

// OnWait implements backend.Waiter: a model of a step may not be there.
func (i *instance) OnWait(tell func(why error)) { i.tell = tell }

// The optional abilities of an ensemble.
const featureBinary = "oip_binary"

// Load waits for the models of the steps, and compares the definition with what they take and give.
func (i *instance) Load(ctx context.Context, m backend.LoadSpec) (backend.Info, error) {
	ctx, cancel := i.within(ctx)
	defer cancel()
	d, err := i.given.Checked()
	if err != nil {
		f := fault.New(fault.LoadFailed, "the ensemble's definition is wrong: "+err.Error(), nil)
		f.Hint = "docs/ensembles.md has the rules"
		return backend.Info{}, f
	}
	if err := i.launcher.note(i, m.Model.Name, d.Models()); err != nil {
		return backend.Info{}, err
	}
	members, err := i.launcher.await(ctx, &m, d, i.tell)
	if err != nil {
		return backend.Info{}, err
	}
	p, err := compile(d, m.Model, members)
	if err != nil {
		return backend.Info{}, err
	}
	i.plan = p
	info := backend.Info{Concurrent: true, Features: map[string]bool{}}
	if !d.Whole {
		info.Features[featureBinary] = true
		info.Description = p.description()
	}
	return info, nil
}

// within ends a context also with the instance.
func (i *instance) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(i.life, func() { cancel(context.Cause(i.life)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// Predict implements backend.Instance: each request goes its own way.
func (i *instance) Predict(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
	if !i.enter() {
		return nil, errStopped()
	}
	defer i.running.Done()
	ctx, cancel := i.within(ctx)
	defer cancel()
	results := make([]infer.Result, len(items))
	var all sync.WaitGroup
	for at := range items {
		all.Go(func() {
			ctx, cancel := wanted(ctx, &items[at])
			defer cancel()
			if end := items[at].Deadline; !end.IsZero() { // its steps have it, too
				var over context.CancelFunc
				ctx, over = context.WithDeadline(ctx, end)
				defer over()
			}
			r, err := i.answer(ctx, &items[at])
			if err != nil {
				r = infer.Result{Err: err}
			}
			results[at] = r
		})
	}
	all.Wait()
	return results, nil
}

// answer answers one request.
func (i *instance) answer(ctx context.Context, item *infer.Item) (r infer.Result, err error) {
	defer recoverTo(&err)
	return i.plan.run(ctx, i.launcher.opts.Models, item)
}

// wanted ends a context once nobody waits for the item's answer.
func wanted(ctx context.Context, item *infer.Item) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if item.Gone == nil {
		return ctx, func() { cancel(nil) }
	}
	stop := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		select {
		case <-item.Gone:
			cancel(fault.New(fault.Cancelled, "nobody waits for the answer any more", nil))
		case <-stop:
		}
	})
	return ctx, func() {
		close(stop)
		watcher.Wait()
		cancel(nil)
	}
}

func errStopped() error {
	return fault.New(fault.Draining, "the ensemble was replaced or unregistered", nil)
}

func (i *instance) enter() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.stopped || i.plan == nil {
		return false
	}
	i.running.Add(1)
	return true
}

// Stop implements backend.Instance: what runs may end within ctx.
func (i *instance) Stop(ctx context.Context) error {
	i.mu.Lock()
	first := !i.stopped
	i.stopped = true
	i.mu.Unlock()
	if !first {
		<-i.done
		return nil
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		i.running.Wait()
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	i.end(errStopped())
	<-ended
	i.launcher.forget(i)
	close(i.done)
	return nil
}
