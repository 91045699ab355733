package oipserver

import (
	"cmp"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strconv"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/telemetry"
)

// traceBacklog is how many traces may wait to be written; more are dropped, since no request waits for a disk.
const traceBacklog = 1024

// traceParts is how many of the files with so many traces each are kept, the newest ones.
const traceParts = 1000

// defaultTraceBytes is how large all the files together may become.
const defaultTraceBytes = 256 << 20

// traceWriter writes traces into files from a goroutine of its own. Each file is a whole JSON array at any moment. A quarter of the bytes that there may be
// is for the one file of those that are all in one, a quarter for the one before it, and the rest for the files with so many each.
type traceWriter struct {
	path   string
	most   int64 // bytes of all files together
	log    *slog.Logger
	traces chan *trace
	quit   chan struct{} // closed by close
	done   chan struct{} // closed when the goroutine has ended

	// What follows is the goroutine's.
	main    *traceFile // of those that are all in one file
	part    *traceFile // the latest of those with so many each
	parts   int        // how many of those there were
	kept    []int64    // the sizes of those that are there and complete, the oldest first
	failing bool       // the last write did; told once
}

// traceFile is an array that is being written.
type traceFile struct {
	file  *os.File
	end   int64 // where its closing bracket is
	count int64 // traces in it
}

// newTraceWriter starts a writer; close must be called.
func newTraceWriter(path string, most int64, log *slog.Logger) *traceWriter {
	w := &traceWriter{path: path, most: cmp.Or(most, defaultTraceBytes), log: log, traces: make(chan *trace, traceBacklog), quit: make(chan struct{}), done: make(chan struct{})}
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

// write writes a trace; a bug in that costs this one.
func (w *traceWriter) write(t *trace) (err error) {
	if bug := fault.Contain("a trace was written", func() { err = w.add(t) }); bug != nil {
		w.log.Error("the server has a bug, which was contained: report it", slog.String(telemetry.KeyError, bug.Error()), slog.String(telemetry.KeyDetail, fault.DetailOf(bug)))
	}
	return err
}

func (w *traceWriter) add(t *trace) error {
	text, err := t.json()
	if err != nil {
		return err
	}
	if t.frequency == 0 {
		return w.writeMain(text)
	}
	if w.part != nil && w.part.end+int64(len(text)) > w.most/shareOfPart {
		if err := w.endPart(); err != nil {
			return err
		}
	}
	if w.part == nil {
		if err := w.nextPart(); err != nil {
			return err
		}
	}
	err = w.part.add(text)
	if w.part.count >= t.frequency {
		err = errors.Join(err, w.endPart())
	}
	return err
}

// endPart closes the latest file of those with so many each.
func (w *traceWriter) endPart() error {
	err := w.part.file.Close()
	w.kept = append(w.kept, w.part.end)
	w.part = nil
	return err
}

// The shares of the bytes of all files.
const (
	shareOfMain = 4 // of the file of those that are all in one, and of the one before it
	shareOfPart = 8 // of one of the files with so many each, which have two quarters together
)

// writeMain writes into the one file. When that is full it becomes the one before, and a new one is begun.
func (w *traceWriter) writeMain(text []byte) error {
	if w.main != nil && w.main.end+int64(len(text)) > w.most/shareOfMain {
		full := w.main
		w.main = nil
		if err := errors.Join(full.file.Close(), os.Rename(w.path, w.path+".old")); err != nil && !errors.Is(err, fs.ErrNotExist) { // somebody may have taken it away
			return err
		}
	}
	if w.main == nil {
		var err error
		if w.main, err = createTraceFile(w.path); err != nil {
			return err
		}
	}
	return w.main.add(text)
}

// nextPart begins a file, and removes the oldest ones when there are too many, or they are too large together.
func (w *traceWriter) nextPart() (err error) {
	var sum int64
	for _, size := range w.kept {
		sum += size
	}
	for len(w.kept) >= traceParts || len(w.kept) > 0 && sum+w.most/shareOfPart > w.most/2 {
		if err := os.Remove(w.partPath(w.parts - len(w.kept))); err != nil && !errors.Is(err, fs.ErrNotExist) { // the same
			return err
		}
		sum -= w.kept[0]
		w.kept = w.kept[1:]
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
