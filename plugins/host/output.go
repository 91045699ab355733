package host

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/flambeau-serve/flambeau/plugins/backend"
	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
)

// Sizes of what is kept of a process's output.
const (
	maxLine      = 64 << 10 // bytes of a line; a longer one comes in pieces
	keptLines    = 50       // last lines of each stream
	maxKeptBytes = 4 << 10  // of one of them
)

// splitter cuts what is written to it into lines.
type splitter struct {
	limit int // bytes of a line; a longer one comes in pieces. At least utf8.UTFMax
	buf   []byte
	emit  func(line []byte, cut bool) // cut: the rest of the line follows
}

// Write implements io.Writer; it never fails.
func (s *splitter) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		if len(s.buf) == s.limit && b[0] != '\n' {
			s.cut()
		}
		end := bytes.IndexByte(b, '\n')
		take := len(b)
		if end >= 0 {
			take = end
		}
		take = min(take, s.limit-len(s.buf))
		s.buf = append(s.buf, b[:take]...)
		b = b[take:]
		if take == end {
			b = b[1:]
			s.emit(bytes.TrimSuffix(s.buf, []byte("\r")), false)
			s.buf = s.buf[:0]
		}
	}
	return n, nil
}

// cut emits what is there, but for a character that is not whole yet.
func (s *splitter) cut() {
	n := len(s.buf)
	for back := 1; back < utf8.UTFMax; back++ {
		if utf8.RuneStart(s.buf[n-back]) {
			if !utf8.FullRune(s.buf[n-back:]) {
				n -= back
			}
			break
		}
	}
	s.emit(s.buf[:n], true)
	s.buf = append(s.buf[:0], s.buf[n:]...)
}

// flush emits a last line without a newline.
func (s *splitter) flush() {
	if len(s.buf) > 0 {
		s.emit(s.buf, false)
		s.buf = s.buf[:0]
	}
}

// lineParser makes log lines of one stream's lines: markers are taken out, and say what the lines after them belong to.
type lineParser struct {
	stream    backend.Stream
	out       func(backend.OutputLine)
	keep      *lastLines
	marker    backendv1.Marker
	continued bool // the line before was cut
	skipping  bool // it was a marker
}

func (p *lineParser) line(b []byte, cut bool) {
	isMarker := !p.continued && len(b) > 0 && b[0] == backendv1.MarkerPrefix || p.continued && p.skipping
	rest := p.continued
	p.continued, p.skipping = cut, isMarker
	switch {
	case isMarker && (rest || cut): // too long to mean anything
	case rest && len(b) == 0: // the cut was right before the newline
	case isMarker:
		var m backendv1.Marker
		if err := json.Unmarshal(b[1:], &m); err == nil {
			p.marker = m
		}
	default:
		text := strings.ToValidUTF8(string(b), "\uFFFD")
		p.keep.add(text)
		p.out(backend.OutputLine{Stream: p.stream, Level: p.marker.Level, RequestIDs: p.marker.IDs, Text: text})
	}
}

// lastLines keeps the last lines that were added, and those that say why a process ends: many more may follow them. It is safe for concurrent use.
type lastLines struct {
	mu    sync.Mutex // guards the fields below
	lines []keptLine
	fatal []keptLine // the last one that begins the report of a death, and some after it
}

// keptFatal is how many lines of such a report are kept.
const keptFatal = 5

// beginsReport knows how Go, Python and C++ begin to tell why they end.
func beginsReport(line string) bool {
	for _, begin := range []string{"panic: ", "fatal error: ", "Fatal Python error: ", "terminate called "} {
		if strings.HasPrefix(line, begin) {
			return true
		}
	}
	// Go's words for a signal that it did not expect: "SIGSEGV: segmentation violation".
	name, _, ok := strings.Cut(line, ": ")
	return ok && strings.HasPrefix(name, "SIG") && !strings.ContainsFunc(name, func(r rune) bool { return r < 'A' || r > 'Z' })
}

// keptLine is a line and when it came.
type keptLine struct {
	at   time.Time
	text string
}

func (l *lastLines) add(line string) {
	if len(line) > maxKeptBytes {
		line = strings.ToValidUTF8(line[:maxKeptBytes], "") + "…"
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if beginsReport(line) {
		l.fatal = make([]keptLine, 0, keptFatal)
	}
	if l.fatal != nil && len(l.fatal) < keptFatal {
		l.fatal = append(l.fatal, keptLine{now, line})
	}
	if len(l.lines) == keptLines {
		l.lines = slices.Delete(l.lines, 0, 1)
	}
	l.lines = append(l.lines, keptLine{now, line})
}

// timed gives the lines that are kept: of a report that is longer than what is kept, the beginning and the end.
func (l *lastLines) timed() []keptLine {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.fatal) == 0 || slices.Contains(l.lines, l.fatal[0]) {
		return slices.Clone(l.lines)
	}
	return slices.Concat(l.fatal, l.lines[min(len(l.fatal), len(l.lines)):])
}

func (l *lastLines) get() []string {
	var texts []string
	for _, line := range l.timed() {
		texts = append(texts, line.text)
	}
	return texts
}
