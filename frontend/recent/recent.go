// Package recent remembers the latest requests of each model, and the slowest ones, for the question why one of them was slow.
package recent

import (
	"container/heap"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Defaults of Options.
const (
	DefaultLatest  = 1000
	DefaultSlowest = 100
	DefaultModels  = 1000
	DefaultAge     = time.Hour
)

// Request is a request that was answered, well or with an error.
type Request struct {
	ID      string
	Model   string
	Version string    // that it went to
	Arrived time.Time // when the queue was asked to take it

	// Total is the time from Arrived to the answer. It is Waited, Gathered and Ran together, and the little that is between them.
	Total    time.Duration
	Waited   time.Duration // in the queue until a worker was free for it
	Gathered time.Duration // with its batch, until that was full or had waited for its delay
	Ran      time.Duration // in the worker

	Batch  *Batch // that it ran in; nil when it did not get to a worker
	Behind *Batch // that its worker had while it waited; nil when it found a free worker

	BytesIn, BytesOut int64  // payload
	Status            int    // that the handler set, 0 for none
	Reason            string // fault.Kind's word for an error, "" when it was answered well
}

// Batch is a run of one batch, which its requests share.
type Batch struct {
	Number   uint64   // counted from 1 since the server started; 0 is never used
	Requests []string // the IDs of its requests
	Rows     int      // samples in it
	Worker   int      // as TorchServe numbers them
	PID      int
	Begun    time.Time
	Ran      time.Duration
}

// Options are the bounds of what is remembered for each model, and of how many models. Zero values mean the defaults.
type Options struct {
	Latest  int           // latest requests
	Slowest int           // slowest ones
	Age     time.Duration // how long ago a slow one may be
	Models  int           // models, those that were asked last
}

// Book remembers. Its methods are safe for concurrent use.
type Book struct {
	opts Options

	mu     sync.RWMutex // guards models, not what it points to
	models map[string]*page
}

// page is what is remembered of one model.
type page struct {
	used atomic.Int64 // when its latest request arrived, in nanoseconds since 1970

	mu     sync.Mutex // guards what follows
	latest []Request  // a ring once it is full
	next   int        // where the next one goes then
	slow   slowest
	first  time.Time // not after the arrival of any of slow
}

// New makes a Book.
func New(opts Options) *Book {
	if opts.Latest < 1 {
		opts.Latest = DefaultLatest
	}
	if opts.Slowest < 1 {
		opts.Slowest = DefaultSlowest
	}
	if opts.Age <= 0 {
		opts.Age = DefaultAge
	}
	if opts.Models < 1 {
		opts.Models = DefaultModels
	}
	return &Book{opts: opts, models: map[string]*page{}}
}

// Note remembers a request of a model. One that was removed while the request was answered has a page again, until there are pages enough of others. r.Batch and r.Behind may be shared and are not changed any more.
func (b *Book) Note(r *Request) {
	p := b.page(r.Model)
	p.used.Store(r.Arrived.UnixNano())
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.latest) < b.opts.Latest {
		p.latest = append(p.latest, *r)
	} else {
		p.latest[p.next] = *r
		p.next = (p.next + 1) % len(p.latest)
	}
	p.noteSlow(r, &b.opts)
}

// noteSlow keeps r if it is one of the slowest.
func (p *page) noteSlow(r *Request, opts *Options) {
	if since := r.Arrived.Add(-opts.Age); p.first.Before(since) && len(p.slow) > 0 {
		p.slow = slices.DeleteFunc(p.slow, func(s Request) bool { return s.Arrived.Before(since) })
		heap.Init(&p.slow)
		p.first = r.Arrived
		for i := range p.slow {
			if p.slow[i].Arrived.Before(p.first) {
				p.first = p.slow[i].Arrived
			}
		}
	}
	switch {
	case len(p.slow) < opts.Slowest:
		heap.Push(&p.slow, *r)
	case p.slow[0].Total < r.Total:
		p.slow[0] = *r
		heap.Fix(&p.slow, 0)
	default:
		return
	}
	if len(p.slow) == 1 || r.Arrived.Before(p.first) {
		p.first = r.Arrived
	}
}

func (b *Book) page(model string) *page {
	b.mu.RLock()
	p := b.models[model]
	b.mu.RUnlock()
	if p != nil {
		return p
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if p = b.models[model]; p == nil {
		if len(b.models) >= b.opts.Models {
			b.forgetOldest()
		}
		p = &page{}
		b.models[model] = p
	}
	return p
}

// forgetOldest drops the page of the model that was not asked for the longest time; mu is held.
func (b *Book) forgetOldest() {
	oldest, since := "", int64(math.MaxInt64)
	for model, p := range b.models {
		if used := p.used.Load(); used < since {
			oldest, since = model, used
		}
	}
	delete(b.models, oldest)
}

// Forget drops what is known of a model that was removed.
func (b *Book) Forget(model string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.models, model)
}

// Slow gives a model's slowest requests since the given time, the slowest first, at most limit of them.
func (b *Book) Slow(model string, since time.Time, limit int) []Request {
	b.mu.RLock()
	p := b.models[model]
	b.mu.RUnlock()
	if p == nil {
		return nil
	}
	p.mu.Lock()
	all := slices.Clone(p.slow)
	p.mu.Unlock()
	all = slices.DeleteFunc(all, func(r Request) bool { return r.Arrived.Before(since) })
	slices.SortFunc(all, func(a, b Request) int { return int(b.Total - a.Total) })
	return all[:min(limit, len(all))]
}

// Find gives the requests that had an ID, the oldest first: a client may have used it more than once.
func (b *Book) Find(id string) []Request {
	b.mu.RLock()
	pages := make([]*page, 0, len(b.models))
	for _, p := range b.models {
		pages = append(pages, p)
	}
	b.mu.RUnlock()
	var all []Request
	for _, p := range pages {
		all = p.find(id, all)
	}
	slices.SortFunc(all, func(a, b Request) int { return a.Arrived.Compare(b.Arrived) })
	return all
}

// find appends the requests of the page with an ID to all: those of the latest, and the slow ones that are not among them any more.
func (p *page) find(id string, all []Request) []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.latest {
		if p.latest[i].ID == id {
			all = append(all, p.latest[i])
		}
	}
	for i := range p.slow {
		s := &p.slow[i]
		if s.ID == id && !slices.ContainsFunc(all, func(r Request) bool { return r.Model == s.Model && r.Arrived.Equal(s.Arrived) }) {
			all = append(all, *s)
		}
	}
	return all
}

// slowest is a heap whose first is the fastest.
type slowest []Request

func (s slowest) Len() int           { return len(s) }
func (s slowest) Less(i, j int) bool { return s[i].Total < s[j].Total }
func (s slowest) Swap(i, j int)      { s[i], s[j] = s[j], s[i] }

func (s *slowest) Push(x any) {
	if r, ok := x.(Request); ok {
		*s = append(*s, r)
	}
}

func (s *slowest) Pop() any {
	last := (*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return last
}
