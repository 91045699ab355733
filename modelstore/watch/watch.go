package watch

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// What the zero values of Options stand for.
const (
	defaultPoll         = 30 * time.Second
	defaultSettle       = 200 * time.Millisecond
	defaultFolderSettle = 2 * time.Second
)

// Watcher follows one model store. Its methods are safe for concurrent use.
type Watcher struct {
	opts    Options
	out     chan Snapshot // of one: the newest; only the goroutine of Run sends. It is never closed, as a closed channel would read like an empty store.
	again   chan struct{} // of one
	started atomic.Bool

	notify  func(notified) (notifier, error)
	inspect func(context.Context, look) verdict
}

// New checks the options. Nothing is read before Run.
func New(opts Options) (*Watcher, error) {
	switch {
	case opts.Root == "":
		return nil, errors.New("watch: Options.Root is required")
	case opts.Logger == nil:
		return nil, errors.New("watch: Options.Logger is required")
	case opts.Poll < 0 || opts.Settle < 0 || opts.FolderSettle < 0:
		return nil, errors.New("watch: a time of the Options is negative")
	}
	for _, d := range []struct {
		at  *time.Duration
		def time.Duration
	}{{&opts.Poll, defaultPoll}, {&opts.Settle, defaultSettle}, {&opts.FolderSettle, defaultFolderSettle}} {
		if *d.at == 0 {
			*d.at = d.def
		}
	}
	var err error
	if opts.Root, err = filepath.Abs(opts.Root); err != nil {
		return nil, err
	}
	return &Watcher{opts: opts, out: make(chan Snapshot, 1), again: make(chan struct{}, 1), notify: newFolders, inspect: inspect}, nil
}

// Snapshots gives the newest snapshot that was not taken yet: one soon after Run has begun, and then one whenever the store has changed. Those that
// nobody took in time are dropped. The channel is never closed.
func (w *Watcher) Snapshots() <-chan Snapshot { return w.out }

// Rescan makes the watcher read the store now, and look again into what it found to be incomplete. It does not wait for that. A snapshot follows that began
// later, also when nothing has changed.
func (w *Watcher) Rescan() {
	select {
	case w.again <- struct{}{}:
	default: // it is asked for already
	}
}

// Run follows the store until ctx ends, and gives nil then. The store may come and go meanwhile. Run may be called once.
func (w *Watcher) Run(ctx context.Context) error {
	if w.started.Swap(true) {
		return errors.New("watch: Run was called before")
	}
	r := &run{
		Watcher: w, book: newBook(w.opts.Settle, w.opts.FolderSettle), notes: noNotifier{}, results: make(chan result),
		looks: map[uint64]context.CancelFunc{}, told: map[string]bool{},
	}
	err := r.loop(ctx)
	for _, cancel := range r.looks {
		cancel()
	}
	r.lookers.Wait()
	return errors.Join(err, r.notes.close())
}

// run is what the goroutine of Run, and no other, has to itself.
type run struct {
	*Watcher
	book  *book
	notes notifier
	told  map[string]bool // what was logged and is not said again

	due     time.Time // when the store is read next
	asked   bool      // by Rescan, and the store was not read since
	began   time.Time // when the store was read last
	rested  time.Time // not before this, so that a large store that always changes does not take a whole CPU
	polled  time.Time // when the last regular reading was
	sent    *Snapshot
	trouble string // why the store could not be read the last time
	bugs    int    // in a row, by which what is done here has ended

	lookers sync.WaitGroup
	results chan result
	looks   map[uint64]context.CancelFunc // that run
	long    int                           // how many of them are long
	waiting []look
}

type result struct {
	look
	verdict
}

// Bounds of the looks into entries that run at the same time.
const (
	maxLooks     = 4
	maxLongLooks = 2
)

func (r *run) loop(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			r.attempt("the model store was read", func() { r.read(ctx) })
		case <-r.notes.hints():
			r.soon()
		case <-r.again:
			r.book.reconsider(true)
			r.asked, r.due = true, time.Now()
		case res := <-r.results:
			r.attempt("what was found in an archive was taken over", func() { r.finish(ctx, res) })
		}
		timer.Reset(time.Until(r.due))
	}
}

// soon makes the store be read when a burst of changes may be over. What still changes then is not settled, and is seen again later.
func (r *run) soon() {
	const share, most = 4, 50 * time.Millisecond
	at := time.Now().Add(min(r.opts.Settle/share, most))
	if at.Before(r.rested) {
		at = r.rested
	}
	if at.Before(r.due) {
		r.due = at
	}
}

// read reads the whole store.
func (r *run) read(ctx context.Context) {
	const rest = 5 // times as long as the reading took
	began := time.Now()
	if regular := r.polled.IsZero() || began.Sub(r.polled) >= r.opts.Poll; regular {
		r.polled = began
		r.connect()
		r.book.reconsider(false)
	}
	s := &scanner{watch: r.watch, versioned: r.book.versioned, plugin: r.book.plugin, about: r.opts.Repository}
	all, err := s.scan(ctx, r.opts.Root)
	if ctx.Err() != nil {
		return
	}
	r.began = began
	now := time.Now()
	r.notes.sweep()
	r.rested = now.Add(rest * now.Sub(began))
	r.due, r.bugs = now.Add(r.opts.Poll), 0
	if err != nil {
		const retry = 5 * time.Second // a store that is mounted again tells nobody
		r.due = now.Add(min(r.opts.Poll, retry))
	} else {
		r.book.take(now, all)
		r.look(ctx, began)
	}
	asked := r.asked
	r.asked = false
	r.publish(now, err, asked)
	r.schedule()
}

// schedule makes the store be read when the next entry may have settled.
func (r *run) schedule() {
	at := r.book.next()
	if at.IsZero() || r.trouble != "" {
		return
	}
	if at.Before(r.rested) {
		at = r.rested
	}
	if at.Before(r.due) {
		r.due = at
	}
}

// connect makes the operating system tell of changes, unless it does.
func (r *run) connect() {
	if _, none := r.notes.(noNotifier); !none {
		return
	}
	notes, err := r.notify(notified{r.opts.Logger, r.contain})
	if err != nil {
		r.tell(err)
		return
	}
	r.notes = notes
}

func (r *run) watch(dir string, only ...string) {
	if err := r.notes.watch(dir, only...); err != nil && !transient(err) {
		r.tell(err)
	}
}

// tell logs once that changes are noticed late.
func (r *run) tell(err error) {
	problem, hint := whyNot(err)
	if r.told[problem] {
		return
	}
	r.told[problem] = true
	r.opts.Logger.Warn("the system does not tell of all changes of the model store; it is read regularly instead", slog.String("problem", problem),
		slog.String("hint", hint), slog.Duration("interval", r.opts.Poll), slog.String("store", r.opts.Root))
}

// look begins to look into the entries that have been quiet for long enough at a time.
func (r *run) look(ctx context.Context, at time.Time) {
	r.waiting = append(r.waiting, r.book.ready(at)...)
	r.waiting = slices.DeleteFunc(r.waiting, func(l look) bool { return !r.book.wanted(l) })
	r.waiting = slices.DeleteFunc(r.waiting, func(l look) bool {
		if len(r.looks) >= maxLooks || l.long() && r.long >= maxLongLooks {
			return false
		}
		ctx, cancel := context.WithCancel(ctx)
		r.looks[l.id] = cancel
		if l.long() {
			r.long++
		}
		r.lookers.Go(func() {
			v := r.inspected(ctx, l)
			select {
			case r.results <- result{l, v}:
			case <-ctx.Done():
			}
		})
		return true
	})
}

// finish takes over what a look has given, and begins the next.
func (r *run) finish(ctx context.Context, res result) {
	r.looks[res.id]()
	delete(r.looks, res.id)
	if res.long() {
		r.long--
	}
	now := time.Now()
	r.book.looked(now, res.look, res.verdict)
	r.look(ctx, now)
	r.publish(now, nil, false)
	r.schedule()
	if res.changed {
		r.soon()
	}
}

// publish sends a snapshot if it says something new, or was asked for.
func (r *run) publish(now time.Time, err error, asked bool) {
	snap := Snapshot{At: now, Began: r.began, Err: err}
	if err == nil {
		snap.Entries = r.book.entries()
	}
	r.report(err)
	if r.sent != nil && !asked && !news(*r.sent, snap, false) {
		if next := r.sent.At.Add(tellProgress); news(*r.sent, snap, true) && next.Before(r.due) {
			r.due = next
		}
		return
	}
	r.sent = &snap
	select {
	case <-r.out: // nobody took it; this one is newer
	default:
	}
	r.out <- Snapshot{At: now, Began: r.began, Entries: slices.Clone(snap.Entries), Err: err}
}

// report logs when the store goes and comes.
func (r *run) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch text {
	case r.trouble:
	case "":
		r.opts.Logger.Info("the model store can be read again", slog.String("store", r.opts.Root))
	default:
		r.opts.Logger.Warn("the model store cannot be read; the models that run stay", slog.String("store", r.opts.Root), slog.Any("error", err))
	}
	r.trouble = text
}

// tellProgress is how often it is told how far an entry has got that is being written or read.
const tellProgress = time.Second

// news says whether a snapshot differs from the one before, by more than the progress of entries that are changing if that was told just now.
func news(before, now Snapshot, progress bool) bool {
	if before.Err != nil || now.Err != nil {
		return before.Err == nil || now.Err == nil || before.Err.Error() != now.Err.Error()
	}
	progress = progress || now.At.Sub(before.At) >= tellProgress
	return !slices.EqualFunc(before.Entries, now.Entries, func(a, b Entry) bool {
		if a.State == Changing && b.State == Changing && !progress {
			a.Fingerprint, a.Bytes, a.Reason, a.Since = b.Fingerprint, b.Bytes, b.Reason, b.Since
		}
		return a == b
	})
}
