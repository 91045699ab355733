package main

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

const (
	consoleLines = 4096        // that may wait for the terminal
	consoleFlush = time.Second // that close waits for a terminal that takes nothing
)

// console writes to the terminal from a goroutine of its own. A terminal that was stopped, or a pipe that nobody reads, must not stop the server:
// lines that find no room are dropped, and counted.
type console struct {
	out     io.Writer
	lines   chan []byte
	dropped atomic.Int64
	done    chan struct{}
	mu      sync.RWMutex // guards closed against Writes that have begun
	closed  bool
}

func newConsole(out io.Writer) *console {
	c := &console{out: out, lines: make(chan []byte, consoleLines), done: make(chan struct{})}
	go c.run()
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

func (c *console) run() {
	defer close(c.done)
	for line := range c.lines {
		if n := c.dropped.Swap(0); n > 0 {
			_, _ = fmt.Fprintf(c.out, "... %d lines were not written here; the log files have them\n", n) // there is nobody to tell
		}
		_, _ = c.out.Write(line) // the terminal may be gone
	}
}

// close writes what waits, and returns at the latest after consoleFlush.
func (c *console) close() {
	c.mu.Lock()
	c.closed = true
	close(c.lines)
	c.mu.Unlock()
	timer := time.NewTimer(consoleFlush)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C: // the goroutine ends with the process
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
