package main

import (
	"bytes"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

const (
	consoleLines = 4096        // that may wait for the terminal
	consoleFlush = time.Second // that flush and close wait for a terminal that takes nothing
)

// console writes to the terminal from a goroutine of its own. A terminal that was stopped, or a pipe that nobody reads, must not stop the server:
// lines that find no room are dropped, and counted.
type console struct {
	out     io.Writer
	lines   chan []byte          // closed by close
	flushes chan<- chan struct{} // whoever sends here has his channel closed when all lines so far were written
	dropped atomic.Int64
	done    chan struct{} // closed when the goroutine has ended

	mu     sync.RWMutex // guards closed, and lines against Writes that have begun
	closed bool
}

func newConsole(out io.Writer) *console {
	flushes := make(chan chan struct{})
	c := &console{out: out, lines: make(chan []byte, consoleLines), flushes: flushes, done: make(chan struct{})}
	go c.run(flushes)
	return c
}

// Write never fails and never blocks.
func (c *console) Write(line []byte) (int, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return len(line), nil
	}
	select { // with a default: nothing waits under the lock
	case c.lines <- bytes.Clone(line):
	default:
		c.dropped.Add(1)
	}
	return len(line), nil
}

func (c *console) run(flushes <-chan chan struct{}) {
	defer close(c.done)
	for {
		select {
		case line, open := <-c.lines:
			if !open {
				return
			}
			c.write(line)
		case written := <-flushes:
			for range len(c.lines) {
				c.write(<-c.lines) // empty once close was called meanwhile
			}
			close(written)
		}
	}
}

func (c *console) write(line []byte) {
	if n := c.dropped.Swap(0); n > 0 {
		printf(c.out, "... %d lines were not written here; the log files have them\n", n)
	}
	_, _ = c.out.Write(line) // the terminal may be gone
}

// flush returns when all lines so far were written, and at the latest after consoleFlush.
func (c *console) flush() {
	timer := time.NewTimer(consoleFlush)
	defer timer.Stop()
	written := make(chan struct{})
	select {
	case c.flushes <- written:
	case <-c.done:
		return
	case <-timer.C:
		return
	}
	select {
	case <-written:
	case <-timer.C:
	}
}

// close writes what waits, and returns at the latest after consoleFlush; the goroutine of a terminal that takes nothing ends with the process.
func (c *console) close() {
	c.mu.Lock()
	c.closed = true
	close(c.lines)
	c.mu.Unlock()
	timer := time.NewTimer(consoleFlush)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
	}
}

// troubles lets through only the server's own warnings and errors, and those only once it is opened.
type troubles struct {
	out    io.Writer
	opened atomic.Bool
}

func (t *troubles) open() { t.opened.Store(true) }

// Write takes whole lines of ts_log.log.
func (t *troubles) Write(line []byte) (int, error) {
	if t.opened.Load() && (bytes.Contains(line, []byte(" [WARN ] main ")) || bytes.Contains(line, []byte(" [ERROR] main "))) {
		_, _ = t.out.Write(line) // a console's Write does not fail
	}
	return len(line), nil
}
