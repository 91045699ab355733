package ledger

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/flambeau-serve/flambeau/internal/atomicfile"
)

// file is an open log file.
type file interface {
	io.WriteCloser
	Sync() error
}

// stream is one log: a file that grows, and the one before it.
type stream struct {
	path, old string // "" for one that is in memory only
	maxLines  int    // of the file that grows
	maxBytes  int64
	open      func(path string) (file, error)

	// The rest is the writer's.
	file  file // nil: to be opened
	lines int
	bytes int64
	queue []Record
	lost  int // records that are left out because they could not be written for too long
}

const (
	maxFileBytes = 8 << 20 // of one file; two of them make a log
	maxLineBytes = 1 << 20 // a longer line is none of ours
	maxID        = 1 << 53 // identifiers are JSON numbers, and exact in every reader
)

func newStream(dir, name string, keep int) *stream {
	return &stream{
		path: filepath.Join(dir, name+".jsonl"), old: filepath.Join(dir, name+".1.jsonl"), maxLines: max(1, keep/2), maxBytes: maxFileBytes,
		open: openAppend,
	}
}

func openAppend(path string) (file, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}

// load reads what the files hold; bad is the number of lines that are no records.
func (s *stream) load() (records []Record, bad int, err error) {
	for _, path := range []string{s.old, s.path} {
		found, badHere, size, err := readFile(path, s.maxBytes*2)
		if err != nil {
			return records, bad, err
		}
		if path == s.path {
			s.lines, s.bytes = len(found), size
		}
		records, bad = append(records, found...), bad+badHere
	}
	slices.SortStableFunc(records, func(a, b Record) int { return cmp.Compare(a.ID, b.ID) })
	// A line that was written again after a failed sync is there twice.
	return slices.CompactFunc(records, func(a, b Record) bool { return a.ID == b.ID }), bad, nil
}

// readFile reads the records of a file; of one that is larger than most, only its end.
func readFile(path string, most int64) (records []Record, bad int, size int64, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, 0, nil
	}
	if err != nil {
		return nil, 0, 0, err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return nil, 0, 0, err
	}
	if size = info.Size(); size > most {
		if _, err := f.Seek(size-most, io.SeekStart); err != nil {
			return nil, 0, 0, err
		}
	}
	records, bad, err = readRecords(f)
	return records, bad, size, err
}

// readRecords reads lines. Those that are no record are counted and left out: a line that was torn when the server was killed, say.
func readRecords(r io.Reader) (records []Record, bad int, err error) {
	reader := bufio.NewReaderSize(r, maxLineBytes)
	for {
		line, err := reader.ReadSlice('\n')
		tooLong := errors.Is(err, bufio.ErrBufferFull)
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = reader.ReadSlice('\n')
		}
		var record Record
		switch {
		case len(bytes.TrimSpace(line)) == 0:
		case tooLong, json.Unmarshal(line, &record) != nil, record.ID == 0, record.ID > maxID, record.Kind == "":
			bad++
		default:
			records = append(records, record)
		}
		if errors.Is(err, io.EOF) {
			return records, bad, nil
		}
		if err != nil {
			return records, bad, err
		}
	}
}

// add puts records into the queue; the oldest are left out when too many cannot be written.
func (s *stream) add(records []Record) {
	s.queue = append(s.queue, records...)
	if over := len(s.queue) - maxPending; over > 0 {
		s.lost += over
		s.queue = slices.Delete(s.queue, 0, over)
	}
}

// flush writes the queue and syncs it. What it could not write stays in the queue.
func (s *stream) flush() error {
	if len(s.queue) == 0 || s.path == "" {
		s.queue = nil
		return nil
	}
	if s.lines >= s.maxLines || s.bytes >= s.maxBytes {
		if err := s.rotate(); err != nil {
			return err
		}
	}
	if err := s.reopen(); err != nil {
		return err
	}
	text, ends, err := encodeLines(s.queue)
	if err != nil {
		return err
	}
	n, err := s.file.Write(text)
	s.bytes += int64(n)
	whole := 0 // lines that are in the file
	for whole < len(ends) && ends[whole] <= n {
		whole++
	}
	if err == nil {
		err = s.file.Sync()
	}
	if err != nil {
		s.queue = slices.Delete(s.queue, 0, whole)
		s.lines += whole
		_ = s.file.Close() // the file is opened anew; the cause is already known
		s.file = nil
		return err
	}
	s.lines += len(s.queue)
	s.queue = nil
	return nil
}

// encodeLines gives the lines of records and where each of them ends.
func encodeLines(records []Record) (text []byte, ends []int, err error) {
	for i := range records {
		line, err := json.Marshal(records[i])
		if err != nil {
			return nil, nil, fmt.Errorf("record %d: %w", records[i].ID, err)
		}
		text = append(append(text, line...), '\n')
		ends = append(ends, len(text))
	}
	return text, ends, nil
}

// reopen opens the file if it is not open, and ends a line in it that was torn.
func (s *stream) reopen() error {
	if s.file != nil {
		return nil
	}
	f, err := s.open(s.path)
	if err != nil {
		return err
	}
	if torn(s.path) {
		if _, err := f.Write([]byte{'\n'}); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	s.file = f
	return atomicfile.SyncDir(filepath.Dir(s.path))
}

// torn says whether the last line of a file has no end.
func torn(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil || info.Size() == 0 || !info.Mode().IsRegular() {
		return false
	}
	var last [1]byte
	_, err = f.ReadAt(last[:], info.Size()-1)
	return err == nil && last[0] != '\n'
}

// rotate makes the file the old one.
func (s *stream) rotate() error {
	if err := s.close(); err != nil {
		return err
	}
	if err := os.Rename(s.path, s.old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.lines, s.bytes = 0, 0
	return atomicfile.SyncDir(filepath.Dir(s.path))
}

func (s *stream) close() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	s.file = nil
	return err
}
