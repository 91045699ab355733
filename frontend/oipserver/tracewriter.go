package oipserver

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strconv"

	"github.com/flambeau-serve/flambeau/internal/telemetry"
)

// traceBacklog is how many traces may wait to be written; more are dropped, since no request waits for a disk.
const traceBacklog = 1024

// traceParts is how many of the files with so many traces each are kept, the newest ones.
const traceParts = 1000

// traceWriter writes traces into files from a goroutine of its own. Each file is a whole JSON array at any moment.
type traceWriter struct {
	path   string
	log    *slog.Logger
	traces chan *trace
	quit   chan struct{} // closed by close
	done   chan struct{} // closed when the goroutine has ended

	// What follows is the goroutine's.
	main    *traceFile // of those that are all in one file
	part    *traceFile // the latest of those with so many each
	parts   int        // how many of those there were
	failing bool       // the last write did; told once
}

// traceFile is an array that is being written.
type traceFile struct {
	file  *os.File
	end   int64 // where its closing bracket is
	count int64 // traces in it
}

// newTraceWriter starts a writer; close must be called.
func newTraceWriter(path string, log *slog.Logger) *traceWriter {
	w := &traceWriter{path: path, log: log, traces: make(chan *trace, traceBacklog), quit: make(chan struct{}), done: make(chan struct{})}
	go w.run()
	return w
}

func (w *traceWriter) put(t *trace) {
	select {
	case w.traces <- t:
	default:
	}
}

func (w *traceWriter) run() {
	defer close(w.done)
	for {
		select {
		case t := <-w.traces:
			w.tell(w.write(t))
			continue
		case <-w.quit:
		}
		for { // what has come before
			select {
			case t := <-w.traces:
				w.tell(w.write(t))
			default:
				return
			}
		}
	}
}

// tell logs the first of several failures.
func (w *traceWriter) tell(err error) {
	if err != nil && !w.failing {
		w.log.Error("a trace cannot be written", slog.String(telemetry.KeyError, err.Error()))
	}
	w.failing = err != nil
}

func (w *traceWriter) write(t *trace) error {
	text, err := t.json()
	if err != nil {
		return err
	}
	if t.frequency == 0 {
		if w.main == nil {
			if w.main, err = createTraceFile(w.path); err != nil {
				return err
			}
		}
		return w.main.add(text)
	}
	if w.part == nil {
		if err := w.nextPart(); err != nil {
			return err
		}
	}
	err = w.part.add(text)
	if w.part.count >= t.frequency {
		err = errors.Join(err, w.part.file.Close())
		w.part = nil
	}
	return err
}

// nextPart begins a file, and removes the oldest one when there are too many.
func (w *traceWriter) nextPart() (err error) {
	if old := w.parts - traceParts; old >= 0 {
		if err := os.Remove(w.partPath(old)); err != nil && !errors.Is(err, fs.ErrNotExist) { // somebody may have taken it away
			return err
		}
	}
	if w.part, err = createTraceFile(w.partPath(w.parts)); err != nil {
		return err
	}
	w.parts++
	return nil
}

func (w *traceWriter) partPath(number int) string { return w.path + "." + strconv.Itoa(number) }

func createTraceFile(path string) (*traceFile, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o640) //nolint:gosec // log collectors read it as the group
	if err != nil {
		return nil, err
	}
	return &traceFile{file: file}, nil
}

// add writes objects in the place of the closing bracket.
func (f *traceFile) add(objects []byte) error {
	between := byte(',')
	if f.count == 0 {
		between = '['
	}
	text := append([]byte{between}, objects...)
	if _, err := f.file.WriteAt(append(text, ']'), f.end); err != nil {
		return err
	}
	f.end += int64(len(text))
	f.count++
	return nil
}

// close writes what is left. Traces that are put afterwards are dropped. It may be called once.
func (w *traceWriter) close() error {
	close(w.quit)
	<-w.done
	var errs []error
	for _, f := range []*traceFile{w.main, w.part} {
		if f != nil {
			errs = append(errs, f.file.Close())
		}
	}
	return errors.Join(errs...)
}
