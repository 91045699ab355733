package backendtest

import (
	"context"
	"sync"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// Pool is a backend.Pool with a fixed number of slots. Make it with NewPool.
type Pool struct {
	// AcquireFunc stands in for the pool's own waiting; nil hands out the slots.
	AcquireFunc func(ctx context.Context) (backend.Slot, error)
	// Steps says that the instances answer in steps (TorchServe's continuousBatching).
	Steps bool

	free chan backend.Instance // the free slots

	mu       sync.Mutex // guards the fields below
	acquired int
	held     int
}

var _ backend.Pool = (*Pool)(nil)

// NewPool makes a pool with one slot for each instance; the same instance twice has two.
func NewPool(instances ...backend.Instance) *Pool {
	p := &Pool{free: make(chan backend.Instance, max(1, len(instances)))}
	for _, i := range instances {
		p.free <- i
	}
	return p
}

// Acquire implements backend.Pool.
func (p *Pool) Acquire(ctx context.Context) (backend.Slot, error) {
	if p.AcquireFunc != nil {
		return p.AcquireFunc(ctx)
	}
	select {
	case i := <-p.free:
		p.count(1)
		return &Slot{pool: p, instance: i}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// AcquireFrom implements backend.Pool: the workers of a Pool are all the same.
func (p *Pool) AcquireFrom(ctx context.Context, _ int) (backend.Slot, error) { return p.Acquire(ctx) }

// AcquireAlone implements backend.Pool. It takes one slot: an instance that is there twice may have other batches meanwhile.
func (p *Pool) AcquireAlone(ctx context.Context, _ int) ([]backend.Slot, error) {
	s, err := p.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return []backend.Slot{s}, nil
}

// Workers implements backend.Pool.
func (p *Pool) Workers() []int { return []int{0} }

// Pin implements backend.Pool: no worker of a Pool ends.
func (p *Pool) Pin(int) bool { return true }

// Unpin implements backend.Pool.
func (p *Pool) Unpin(int) {}

// Free implements backend.Pool.
func (p *Pool) Free() int { return len(p.free) }

func (p *Pool) count(held int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held += held
	p.acquired += max(0, held)
}

// Held gives how many slots are out now.
func (p *Pool) Held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// Acquired gives how many slots were handed out so far.
func (p *Pool) Acquired() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.acquired
}

// Slot is a backend.Slot of a Pool. It panics when it is used after its release: the caller has a bug.
type Slot struct {
	pool     *Pool
	instance backend.Instance

	mu       sync.Mutex // guards released
	released bool
}

var _ backend.Slot = (*Slot)(nil)

// Execute implements backend.Slot.
func (s *Slot) Execute(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
	s.use(false)
	return s.instance.Predict(ctx, items)
}

// Retiring implements backend.Slot: the instances of a Pool never retire.
func (s *Slot) Retiring() bool { return false }

// Continuous implements backend.Slot.
func (s *Slot) Continuous() bool { return s.pool.Steps }

// InTurn implements backend.Slot.
func (s *Slot) InTurn() bool { return true }

// Worker implements backend.Slot: the workers of a Pool are all the same.
func (s *Slot) Worker() (id, pid int) { return 0, s.instance.PID() }

// Release implements backend.Slot.
func (s *Slot) Release() {
	s.use(true)
	s.pool.count(-1)
	s.pool.free <- s.instance
}

func (s *Slot) use(last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		panic("backendtest: a slot was used after its release")
	}
	s.released = last
}
