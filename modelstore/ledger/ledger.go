package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/flambeau-serve/flambeau/internal/atomicfile"
)

// Options say where the ledger is.
type Options struct {
	// Dir is its folder, which is made if it is not there. One server at a time has it: for a second one, and where it cannot be used, the ledger is
	// in memory only, with a warning. "": in memory only.
	Dir string
	// MaxEvents is how many records each of the two logs keeps at most; half of that may be gone after a rotation. 0: 5000.
	MaxEvents int
	// Logger is required.
	Logger *slog.Logger
	// Panicked is told of each panic that was contained. It must not block, nor call the ledger. Nil logs it.
	Panicked func(error)
}

const (
	defaultEvents = 5000
	maxPending    = 10_000 // records that wait for a disk that takes none
	stateName     = "state.json"
	brokenName    = "state.broken.json"
	lockName      = "ledger.lock"
)

// Ledger is what happened and what is to be remembered. Its methods are safe for concurrent use.
type Ledger struct {
	dir  string // "": in memory only
	lock *os.File
	keep int
	log  *slog.Logger
	bug  func(error) // told of panics; nil logs them

	mu      sync.Mutex // guards what follows; never held over I/O
	lastID  uint64
	events  []Record // the newest, in the order of their IDs
	history []Record
	pending []Record
	lost    int             // records that were left out of pending
	readers []chan struct{} // closed when what was pending as they came is written, or cannot be
	written uint64          // the last record in the files
	failing bool            // the files cannot be written
	closed  bool

	wake   chan struct{} // one token: something is pending
	quit   chan struct{} // closed by Close
	done   chan struct{} // closed when the writer has ended
	result error         // of the last writing; read after done

	eventLog, historyLog *stream // the writer's

	changing sync.Mutex // held over a change of the state and its writing; guards unsaved and ended
	unsaved  bool       // the file has an older state
	ended    bool       // the folder may be another server's
	state    atomic.Pointer[State]
}

// Open opens the ledger, or makes an empty one. Close has to be called. Broken files are no reason not to start: they are told and left out.
func Open(opts Options) (*Ledger, error) {
	if opts.Logger == nil {
		return nil, errors.New("ledger: Logger is required")
	}
	l := &Ledger{
		dir: opts.Dir, keep: opts.MaxEvents, log: opts.Logger, bug: opts.Panicked,
		wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
	if l.keep <= 0 {
		l.keep = defaultEvents
	}
	empty := &State{}
	empty.fill()
	l.state.Store(empty)
	l.eventLog, l.historyLog = &stream{}, &stream{}
	if l.dir != "" {
		if err := l.openDir(); err != nil {
			l.log.Warn("events, history and what the management API has set are kept in memory only, and are lost when the server ends; set state_dir to a folder "+
				"of this server's own", "folder", l.dir, "reason", err.Error())
			l.dir = ""
		}
	}
	go l.write()
	return l, nil
}

// openDir takes the folder and reads what it holds. On failure nothing is held.
func (l *Ledger) openDir() error {
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return err
	}
	clean, err := l.take()
	if err != nil {
		return err
	}
	eventLog, historyLog := newStream(l.dir, "events", l.keep), newStream(l.dir, "history", l.keep)
	if l.events, err = l.load(eventLog); err == nil {
		l.history, err = l.load(historyLog)
	}
	if err == nil {
		err = l.loadState()
	}
	if err != nil {
		l.events, l.history, l.lastID = nil, nil, 0
		return errors.Join(err, l.lock.Close())
	}
	if !clean {
		l.lastID += maxPending // records that nobody wrote any more may have been seen
	}
	l.written = l.lastID
	l.eventLog, l.historyLog = eventLog, historyLog
	return nil
}

// take locks the folder against another server. clean says whether the last server has closed it in order.
func (l *Ledger) take() (clean bool, err error) {
	l.lock, err = os.OpenFile(filepath.Join(l.dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return false, err
	}
	switch err := syscall.Flock(int(l.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return false, errors.Join(errors.New("another server has it"), l.lock.Close())
	case err != nil: // several network file systems have no locks
		l.log.Warn("the folder of events and state cannot be locked; see to it that no other server has the same state_dir", "folder", l.dir, "reason", err.Error())
	}
	info, err := l.lock.Stat()
	if err == nil {
		_, err = l.lock.WriteAt([]byte("open\n"), 0)
	}
	if err != nil {
		return false, errors.Join(err, l.lock.Close())
	}
	return info.Size() == 0, nil
}

// load reads one of the logs.
func (l *Ledger) load(s *stream) ([]Record, error) {
	records, bad, err := s.load()
	if err != nil {
		return nil, err
	}
	if bad > 0 {
		l.log.Info("lines that are no records were left out; the last one is torn when a server was killed", "file", s.path, "lines", bad)
	}
	if n := len(records); n > 0 {
		l.lastID = max(l.lastID, records[n-1].ID)
	}
	return newest(records, l.keep), nil
}

// loadState reads the state. A file that cannot be read is set aside.
func (l *Ledger) loadState() error {
	path := filepath.Join(l.dir, stateName)
	if err := atomicfile.Sweep(stateName, l.dir, 0); err != nil {
		l.log.Warn("leftovers of a killed server could not be removed", "folder", l.dir, "reason", err.Error())
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	state, err := decodeState(data)
	if err != nil {
		aside := filepath.Join(l.dir, brokenName)
		if err := os.Rename(path, aside); err != nil {
			return err
		}
		l.log.Error("what was set by hand is forgotten, since its file cannot be read: what was unregistered or rolled back may be loaded again",
			"reason", err.Error(), "file", aside)
		return nil
	}
	l.state.Store(state)
	return nil
}

// Dir is the folder that the ledger has for itself, "" when it is in memory only.
func (l *Ledger) Dir() string { return l.dir }

// Add notes a record and gives it back with its ID, and the time if it had none. It never waits for a disk.
func (l *Ledger) Add(r Record) Record {
	if r.At.IsZero() {
		r.At = time.Now()
	}
	r = r.bounded()
	l.mu.Lock()
	l.lastID++
	r.ID = l.lastID
	l.events = newest(append(l.events, r), l.keep)
	if changesServing(&r) {
		l.history = newest(append(l.history, r), l.keep)
	}
	if l.dir != "" && !l.closed {
		l.pending = append(l.pending, r)
		if len(l.pending) > 2*maxPending {
			l.lost += maxPending
			l.pending = slices.Delete(l.pending, 0, maxPending)
		}
	}
	l.mu.Unlock()
	l.poke()
	return r
}

// newest gives the last keep records or a few more; it copies only now and then.
func newest(records []Record, keep int) []Record {
	if len(records) <= keep+keep/4+1 {
		return records
	}
	return slices.Clone(records[len(records)-keep:])
}

// mostRead is how long a reader waits for a slow disk.
const mostRead = time.Second

// settle waits until what was added is in the files, unless they cannot be written: what a reader is told is told after a kill, too.
func (l *Ledger) settle() {
	l.mu.Lock()
	if l.dir == "" || l.failing || l.closed || l.written == l.lastID {
		l.mu.Unlock()
		return
	}
	done := make(chan struct{})
	l.readers = append(l.readers, done)
	l.mu.Unlock()
	l.poke()
	timer := time.NewTimer(mostRead)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// Events gives what happened, the oldest first. It may wait for a disk for a moment: what it tells survives the end of the process.
func (l *Ledger) Events(f Filter) []Record {
	l.settle()
	l.mu.Lock()
	records := l.events // what is in it is never changed, and what is appended lies behind its length
	l.mu.Unlock()
	return f.pick(records)
}

// History gives what changed what serves, or was to, the oldest first: the newest limit records of a model, or of all models with "". 0 is for no limit.
// It waits as Events does.
func (l *Ledger) History(model string, limit int) []Record {
	l.settle()
	l.mu.Lock()
	records := l.history
	l.mu.Unlock()
	return Filter{Model: model, Limit: limit}.pick(records)
}

// State gives a copy of the state.
func (l *Ledger) State() State { return *l.state.Load().clone() }

// Change applies a function to the state, and returns when the result is on the disk. When it cannot be written, it holds until the server ends all the
// same, and is tried again by itself. The function must not use the ledger.
func (l *Ledger) Change(change func(*State)) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	before := l.state.Load()
	after := before.clone()
	change(after) // should it have a bug, nothing of it is taken
	after.fill()
	old, err := encodeState(before)
	if err != nil {
		return err
	}
	text, err := encodeState(after)
	if err != nil {
		return err // a raw message that is no JSON: nothing of it is taken
	}
	l.state.Store(after.clone()) // the function may have kept a part of its own
	if string(old) == string(text) && !l.unsaved {
		return nil
	}
	return l.save(text)
}

// save writes the state; l.changing is held.
func (l *Ledger) save(text []byte) error {
	if l.dir == "" || l.ended {
		return nil
	}
	if err := atomicfile.Write(filepath.Join(l.dir, stateName), text, 0o600); err != nil {
		l.unsaved = true
		l.poke()
		return fmt.Errorf("what was set holds only until the server ends: %w", err)
	}
	l.unsaved = false
	return nil
}

func (l *Ledger) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Close writes what is pending, and gives the folder up. What is added or changed afterwards is in memory only.
func (l *Ledger) Close() error {
	l.mu.Lock()
	again := l.closed
	l.closed = true
	l.mu.Unlock()
	if !again {
		close(l.quit)
	}
	<-l.done
	return l.result
}
