// Package poison remembers requests that have ended workers, and says what becomes of the requests whose worker has died.
package poison

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// The defaults of Options.
const (
	DefaultKeep   = 10 * time.Minute
	DefaultMost   = 1000
	DefaultDeaths = 2
)

// Options say what a Book keeps. Zero values mean the defaults.
type Options struct {
	Keep   time.Duration // for how long a request is remembered after the last worker that it has ended; below 0 nothing is remembered
	Most   int           // requests that are remembered, of all models
	Deaths int           // a request is refused from so many workers on
	Lift   string        // what an operator can do to have a request tried again earlier: the end of the sentence "To have it tried at once, …"
}

// Book remembers what has ended workers: not the requests, but digests of what they hold. Its methods are safe for concurrent use.
type Book struct {
	opts  Options
	empty atomic.Bool // nothing is remembered: nothing is looked up, let alone hashed
	// version changes whenever what is remembered does: what was said of a request under the same one is still true.
	version atomic.Uint64

	mu     sync.Mutex // guards what follows
	models map[infer.ModelRef]*page
	count  int // entries of all pages
}

// page is what is remembered of one model version.
type page struct {
	entries map[digest]*Entry
	sizes   map[int64]int // how many of them have this size: others need no hash
	began   time.Time     // what was sent before is about an earlier generation
}

func newPage(began time.Time) *page {
	return &page{entries: map[digest]*Entry{}, sizes: map[int64]int{}, began: began}
}

type digest [sha256.Size]byte

// Entry is a request that has ended workers.
type Entry struct {
	Digest string    `json:"digest"` // of its parts, in hexadecimal
	Bytes  int64     `json:"bytes"`  // of its parts
	Deaths int       `json:"deaths"` // workers that it has ended
	First  time.Time `json:"first"`
	Last   time.Time `json:"last"`
	Until  time.Time `json:"until"`   // when it is forgotten
	How    string    `json:"how"`     // how the last worker ended
	ID     string    `json:"id"`      // of the last request
	Refuse bool      `json:"refused"` // it is not given to a worker
}

// Mark is what a Book knows of a request that it let through. The zero value is for one that it has not seen.
type Mark struct {
	model   infer.ModelRef
	key     *digest // nil while it was not hashed
	known   bool    // it is remembered
	version uint64  // of the Book when it was looked up
}

// Suspect says that the request has ended a worker lately: it should run alone.
func (m Mark) Suspect() bool { return m.known }

// Death is what is known about the end of a worker that a request has caused.
type Death struct {
	Workers int       // that the request has ended, this one included, since it came
	How     string    // how this one ended
	Sent    time.Time // when it was given the request
	Mark    Mark      // what Check or Again gave for it, so that it is not hashed again; may be zero
}

// New makes a Book in which nothing is written.
func New(opts Options) *Book {
	opts.Keep = cmp.Or(opts.Keep, DefaultKeep)
	opts.Most = cmp.Or(opts.Most, DefaultMost)
	opts.Deaths = cmp.Or(opts.Deaths, DefaultDeaths)
	b := &Book{opts: opts, models: map[infer.ModelRef]*page{}}
	b.empty.Store(true)
	b.version.Store(1) // the zero Mark is of none
	return b
}

// Check refuses a request like one that has ended workers of this model version, with fault.Poisoned. One that has not ended enough of them is let
// through with a mark, for Answered. While nothing is remembered it costs nothing.
func (b *Book) Check(model infer.ModelRef, item *infer.Item) (Mark, error) {
	return b.Again(model, item, Mark{})
}

// Again is Check for a request that has come by before, with the mark that it got then: it is not looked up while nothing has changed since, and not
// hashed a second time.
func (b *Book) Again(model infer.ModelRef, item *infer.Item, was Mark) (Mark, error) {
	version := b.version.Load() // before anything is looked up: what changes meanwhile is seen the next time
	now := Mark{model: model, key: was.key, version: version}
	if b.empty.Load() {
		return now, nil
	}
	if was.version == version && was.model == model {
		return was, nil
	}
	size := item.Size()
	b.mu.Lock()
	p := b.models[model]
	candidate := p != nil && p.sizes[size] > 0
	b.mu.Unlock()
	if !candidate {
		return now, nil
	}
	if now.key == nil {
		key := digestOf(item)
		now.key = &key
	}
	at := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.find(model, *now.key, at)
	if e == nil {
		return now, nil
	}
	if e.Refuse {
		now.version = 0 // whoever asks again is refused again
		return now, b.refusal(model, e, at)
	}
	now.known = true
	return now, nil
}

// refusal says everything that its reader needs to know.
func (b *Book) refusal(model infer.ModelRef, e *Entry, now time.Time) error {
	times := fmt.Sprintf("%d workers", e.Deaths)
	if e.Deaths == 1 {
		times = "a worker"
	}
	f := fault.Newf(fault.Poisoned, "Worker died. The same request has ended %s of the model %s, the last one %s ago (%s). It is refused until %s.",
		times, model, now.Sub(e.Last).Round(time.Second), e.How, e.Until.UTC().Format(time.RFC3339))
	f.Hint = fmt.Sprintf("see why request %s has ended its worker, and repair the handler or the request; a new version of the model begins with nothing remembered", e.ID)
	if b.opts.Lift != "" {
		f.Hint += ". To have it tried at once, " + b.opts.Lift
	}
	return f
}

// Killed remembers a request that has ended a worker. One without any payload is not remembered: nothing tells it from others, whose headers may be
// what their handler makes its answers of.
func (b *Book) Killed(model infer.ModelRef, item *infer.Item, d Death) {
	if b.opts.Keep < 0 || item.Size() == 0 {
		return
	}
	var key digest
	if d.Mark.key != nil {
		key = *d.Mark.key
	} else {
		key = digestOf(item)
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.models[model]
	if p == nil {
		p = newPage(time.Time{})
		b.models[model] = p
	}
	if !d.Sent.IsZero() && d.Sent.Before(p.began) {
		return
	}
	e := b.find(model, key, now)
	if e == nil {
		b.makeRoom(now)
		e = &Entry{Digest: hex.EncodeToString(key[:]), Bytes: item.Size(), First: now}
		p.entries[key] = e
		p.sizes[e.Bytes]++
		b.count++
	}
	e.Deaths += max(d.Workers, 1)
	e.Last, e.Until, e.How, e.ID = now, now.Add(b.opts.Keep), d.How, item.ID
	e.Refuse = e.Deaths >= b.opts.Deaths
	b.empty.Store(false)
	b.version.Add(1)
}

// Answered forgets a marked request that a worker has answered: it is not what ends workers.
func (b *Book) Answered(m Mark) {
	if !m.known {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.remove(m.model, *m.key)
}

// Begin forgets what is remembered of a model version, and what its workers of now will have ended by: another generation of it begins. It says how many
// requests there were.
func (b *Book) Begin(model infer.ModelRef) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.clear(model)
	b.models[model] = newPage(time.Now())
	return n
}

// Forget forgets all about a model version, which is gone. It says how many requests were remembered.
func (b *Book) Forget(model infer.ModelRef) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.clear(model)
	delete(b.models, model)
	return n
}

// Lift forgets one request by its digest, or the beginning of it, and says how many these were.
func (b *Book) Lift(model infer.ModelRef, prefix string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	if p := b.models[model]; p != nil {
		for key, e := range p.entries {
			if len(prefix) > 0 && len(prefix) <= len(e.Digest) && e.Digest[:len(prefix)] == prefix {
				b.remove(model, key)
				n++
			}
		}
	}
	return n
}

// List gives what is remembered of a model version, the latest first.
func (b *Book) List(model infer.ModelRef) []Entry {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []Entry
	if p := b.models[model]; p != nil {
		for _, e := range p.entries {
			if now.Before(e.Until) {
				all = append(all, *e)
			}
		}
	}
	slices.SortFunc(all, func(a, b Entry) int { return cmp.Or(b.Last.Compare(a.Last), cmp.Compare(a.Digest, b.Digest)) })
	return all
}

// find gives an entry whose time is not over; b.mu is held.
func (b *Book) find(model infer.ModelRef, key digest, now time.Time) *Entry {
	p := b.models[model]
	if p == nil {
		return nil
	}
	e := p.entries[key]
	if e != nil && !now.Before(e.Until) {
		b.remove(model, key)
		return nil
	}
	return e
}

// makeRoom forgets what is over, and if that does not suffice the request that was remembered the longest time ago; b.mu is held.
func (b *Book) makeRoom(now time.Time) {
	if b.count < b.opts.Most {
		return
	}
	var oldest *Entry
	var of infer.ModelRef
	var oldestKey digest
	for model, p := range b.models {
		for key, e := range p.entries {
			switch {
			case !now.Before(e.Until):
				b.remove(model, key)
			case oldest == nil || e.Last.Before(oldest.Last):
				oldest, of, oldestKey = e, model, key
			}
		}
	}
	if b.count >= b.opts.Most && oldest != nil {
		b.remove(of, oldestKey)
	}
}

// clear removes the entries of a page and gives their number; b.mu is held.
func (b *Book) clear(model infer.ModelRef) int {
	p := b.models[model]
	if p == nil {
		return 0
	}
	n := len(p.entries)
	for key := range p.entries {
		b.remove(model, key)
	}
	return n
}

// remove removes an entry, if it is there; b.mu is held.
func (b *Book) remove(model infer.ModelRef, key digest) {
	p := b.models[model]
	if p == nil {
		return
	}
	e := p.entries[key]
	if e == nil {
		return
	}
	delete(p.entries, key)
	if p.sizes[e.Bytes]--; p.sizes[e.Bytes] <= 0 {
		delete(p.sizes, e.Bytes)
	}
	b.count--
	b.empty.Store(b.count == 0)
	b.version.Add(1)
}

// digestOf hashes what a handler makes its answer of: the parts, and not the headers and the id, which differ each time that a request is sent again.
func digestOf(item *infer.Item) digest {
	h := sha256.New()
	write := func(s []byte) {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(s)))
		_, _ = h.Write(n[:]) // a hash takes everything
		_, _ = h.Write(s)
	}
	for i := range item.Parts {
		p := &item.Parts[i]
		_, _ = io.WriteString(h, "part")
		write([]byte(p.Name))
		write([]byte(p.ContentType))
		write(p.Data)
	}
	return digest(h.Sum(nil))
}
