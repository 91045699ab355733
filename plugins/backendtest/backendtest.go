// Package backendtest is a backend without processes, for the tests of what is built on plugins/backend: it answers as it
// is told, and dies when it is told.
package backendtest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// Launcher is a backend.Launcher. Its zero value launches instances that load at once and echo.
type Launcher struct {
	// LaunchFunc makes the instance of a Launch; nil makes one with NewInstance. It may block, fail, or set the functions
	// of the instance that it makes. n counts the launches from 1.
	LaunchFunc func(ctx context.Context, n int, spec backend.ProcessSpec) (*Instance, error)

	mu        sync.Mutex // guards the fields below
	specs     []backend.ProcessSpec
	instances []*Instance
}

var _ backend.Launcher = (*Launcher)(nil)

// Launch implements backend.Launcher.
func (l *Launcher) Launch(ctx context.Context, spec backend.ProcessSpec) (backend.Instance, error) {
	l.mu.Lock()
	l.specs = append(l.specs, spec)
	n := len(l.specs)
	l.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, fault.New(fault.StartFailed, "the start was given up", context.Cause(ctx))
	}
	var inst *Instance
	if l.LaunchFunc != nil {
		var err error
		if inst, err = l.LaunchFunc(ctx, n, spec); err != nil {
			return nil, err
		}
	} else {
		inst = NewInstance("fake-" + strconv.Itoa(n))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.instances = append(l.instances, inst)
	return inst, nil
}

// Specs gives what Launch was called with so far, failed launches included.
func (l *Launcher) Specs() []backend.ProcessSpec {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.specs)
}

// Instances gives the instances that were launched so far, those that are gone included.
func (l *Launcher) Instances() []*Instance {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.instances)
}

// Live gives the instances that are not gone.
func (l *Launcher) Live() []*Instance {
	return slices.DeleteFunc(l.Instances(), func(i *Instance) bool {
		select {
		case <-i.Done():
			return true
		default:
			return false
		}
	})
}

// Instance is a backend.Instance. Set its functions before it is used.
type Instance struct {
	// LoadFunc answers Load; nil succeeds at once.
	LoadFunc func(ctx context.Context, m backend.LoadSpec) (backend.Info, error)
	// PredictFunc answers Predict; nil echoes the first part of each item. When it ignores its ctx, Predict returns
	// without it at ctx's end and at the instance's death, as a real one does.
	PredictFunc func(ctx context.Context, items []infer.Item) ([]infer.Result, error)
	// StopFunc runs before the instance is gone in Stop; nil takes no time. Like a polite end it is given up at ctx's end.
	StopFunc func(ctx context.Context) error
	// Process is the PID that it says it has; 0 for one that no process has.
	Process int

	id   string
	done chan struct{} // closed by end
	tell func(why error)

	mu      sync.Mutex // guards the fields below
	err     error
	loads   []backend.LoadSpec
	batches [][]infer.Item
	stops   int
}

var (
	_ backend.Instance = (*Instance)(nil)
	_ backend.Waiter   = (*Instance)(nil)
)

// NewInstance makes an instance that loads at once and echoes.
func NewInstance(id string) *Instance {
	return &Instance{id: id, done: make(chan struct{})}
}

// ID implements backend.Instance.
func (i *Instance) ID() string { return i.id }

// PID implements backend.Instance.
func (i *Instance) PID() int {
	const nobodys = 1 << 30
	return cmp.Or(i.Process, nobodys)
}

// OnWait implements backend.Waiter.
func (i *Instance) OnWait(tell func(why error)) { i.tell = tell }

// Wait is for a LoadFunc: it tells why the load waits for somebody else, or with nil that it does not any more. Somebody must have called OnWait.
func (i *Instance) Wait(why error) { i.tell(why) }

// Load implements backend.Instance.
func (i *Instance) Load(ctx context.Context, m backend.LoadSpec) (backend.Info, error) {
	i.mu.Lock()
	i.loads = append(i.loads, m)
	i.mu.Unlock()
	return call(ctx, i, func(ctx context.Context) (backend.Info, error) {
		if i.LoadFunc == nil {
			return backend.Info{}, nil
		}
		return i.LoadFunc(ctx, m)
	})
}

// Predict implements backend.Instance.
func (i *Instance) Predict(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
	i.mu.Lock()
	i.batches = append(i.batches, slices.Clone(items))
	i.mu.Unlock()
	return call(ctx, i, func(ctx context.Context) ([]infer.Result, error) {
		if i.PredictFunc == nil {
			return Echo(items), nil
		}
		return i.PredictFunc(ctx, items)
	})
}

// Echo answers each item with the data of its first part.
func Echo(items []infer.Item) []infer.Result {
	results := make([]infer.Result, len(items))
	for n := range items {
		if len(items[n].Parts) > 0 {
			results[n].Body = items[n].Parts[0].Data
		}
	}
	return results
}

// call runs f until it returns, ctx ends or the instance dies.
func call[T any](ctx context.Context, i *Instance, f func(context.Context) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer, 1)
	var zero T
	select {
	case <-i.done:
		return zero, i.gone()
	default:
	}
	go func() {
		v, err := f(ctx)
		answers <- answer{v, err}
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-i.done:
		return zero, i.gone()
	case <-ctx.Done():
		return zero, context.Cause(ctx)
	}
}

// gone is what calls get from an instance that is gone.
func (i *Instance) gone() error {
	if err := i.Err(); err != nil {
		return err
	}
	return fault.New(fault.Draining, "Worker stopped.", nil)
}

// Done implements backend.Instance.
func (i *Instance) Done() <-chan struct{} { return i.done }

// Err implements backend.Instance.
func (i *Instance) Err() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.err
}

// Stop implements backend.Instance.
func (i *Instance) Stop(ctx context.Context) error {
	i.mu.Lock()
	i.stops++
	i.mu.Unlock()
	var err error
	if i.StopFunc != nil {
		stopped := make(chan error, 1)
		go func() { stopped <- i.StopFunc(ctx) }()
		select {
		case err = <-stopped:
		case <-ctx.Done():
			err = fmt.Errorf("instance %s was killed: %w", i.id, context.Cause(ctx))
		case <-i.done:
		}
	}
	i.end(nil)
	return err
}

// Die makes the process end by itself. A nil err stands for a plain fault.BackendDied.
func (i *Instance) Die(err error) {
	if err == nil {
		err = fault.New(fault.BackendDied, "Worker died.", nil)
	}
	i.end(err)
}

// end closes done the first time.
func (i *Instance) end(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	select {
	case <-i.done:
	default:
		i.err = err
		close(i.done)
	}
}

// Loads gives what Load was called with so far.
func (i *Instance) Loads() []backend.LoadSpec {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.loads)
}

// Batches gives what Predict was called with so far.
func (i *Instance) Batches() [][]infer.Item {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.batches)
}

// Stops gives how often Stop was called.
func (i *Instance) Stops() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.stops
}
