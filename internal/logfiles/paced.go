package logfiles

import (
	"io"
	"sync"
	"time"
)

// The lines about requests are collected and written together: several writes for each request would cost it more than all else that is noted of it.
const (
	flushDelay = 100 * time.Millisecond // how long a line waits at most, and so how much a crash of the server loses
	mostBytes  = 1 << 20                // that wait; who adds a line to more writes them out first
)

// paced is a log file whose lines are written together, in their order and each whole. Its lines may be added at the same time.
type paced struct {
	out  io.WriteCloser
	soon func() // asks for a flush within flushDelay; it does not block

	mu     sync.Mutex // guards lines, direct
	lines  []byte     // not written yet
	direct bool       // every line is written at once: nobody flushes any more

	writing sync.Mutex // held while lines are written, so that they stay in their order: it is there for that alone, and nothing else waits for it; taken before mu
	spare   []byte     // guarded by writing: room for the next lines
}

func (p *paced) line(at time.Time, entry string) {
	p.mu.Lock()
	first := len(p.lines) == 0
	p.lines = at.AppendFormat(p.lines, timeFormat)
	p.lines = append(p.lines, " - "...)
	p.lines = append(p.lines, oneLine(entry)...)
	p.lines = append(p.lines, '\n')
	now := p.direct || len(p.lines) >= mostBytes
	p.mu.Unlock()
	switch {
	case now: // nothing is dropped: with more lines than the disk takes, requests wait for it
		p.flush()
	case first:
		p.soon()
	}
}

// flush writes what waits. A full disk must not stop the server: what cannot be written is lost.
func (p *paced) flush() {
	p.writing.Lock()
	defer p.writing.Unlock()
	p.mu.Lock()
	lines := p.lines
	p.lines = p.spare[:0]
	p.mu.Unlock()
	if len(lines) > 0 {
		_, _ = p.out.Write(lines)
	}
	p.spare = lines
}

// close writes what waits, and closes the file. What comes after it is written at once.
func (p *paced) close() error {
	p.mu.Lock()
	p.direct = true
	p.mu.Unlock()
	p.flush()
	return p.out.Close() //nolint:wrapcheck // it names the file
}

// flusher writes what waits in files. It is the one goroutine that does so unasked.
type flusher struct {
	files []*paced
	wake  chan struct{} // room for one: something waits
	stop  chan struct{}
	once  sync.Once // closes stop
	done  chan struct{}
}

func newFlusher() *flusher {
	return &flusher{wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
}

// add makes a file whose lines it looks after; call it before run.
func (f *flusher) add(out io.WriteCloser) *paced {
	p := &paced{out: out, soon: f.soon}
	f.files = append(f.files, p)
	return p
}

func (f *flusher) soon() {
	select {
	case f.wake <- struct{}{}:
	default: // it was told so already
	}
}

// run sleeps while nothing waits.
func (f *flusher) run() {
	defer close(f.done)
	timer := time.NewTimer(flushDelay)
	defer timer.Stop()
	for {
		select {
		case <-f.wake:
		case <-f.stop:
			return
		}
		timer.Reset(flushDelay)
		select {
		case <-timer.C:
		case <-f.stop:
			return
		}
		for _, p := range f.files {
			p.flush()
		}
	}
}

// end returns when run has. What waits still does.
func (f *flusher) end() {
	f.once.Do(func() { close(f.stop) })
	<-f.done
}
