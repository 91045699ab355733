// Package logfiles writes the server's log files, with the names, places and line formats of TorchServe's.
package logfiles

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"
)

// The files, below the log folder.
const (
	ServerFile = "ts_log.log"
	ModelFile  = "model_log.log"
	AccessFile = "access_log.log"

	// In the metrics' log folder.
	ServerMetricsFile = "ts_metrics.log"
	ModelMetricsFile  = "model_metrics.log"
)

// Rotation as TorchServe has it.
const (
	megabytes = 100
	backups   = 5
)

// timeFormat is log4j's ISO8601: a comma before the milliseconds, no zone.
const timeFormat = "2006-01-02T15:04:05,000"

// Options say where the lines go. Dir is required.
type Options struct {
	Dir     string    // made if it is not there
	Metrics string    // folder of the metrics' logs; "" means Dir
	Console io.Writer // gets lines of the server's and the models' files too; nil for none
	// ConsoleLevel is the least level of lines for the console; nil for all of them.
	ConsoleLevel slog.Leveler
	Level        slog.Leveler // least level of the server's lines; nil for Info
}

// Logs are the open log files. Their methods are safe for concurrent use.
type Logs struct {
	server, model                       *file
	access, serverMetrics, modelMetrics *paced
	flusher                             *flusher
	logger                              *slog.Logger
	shows                               atomic.Pointer[Shown]
}

// Shown is what of the server's lines is written: each level by itself.
type Shown struct {
	Debug, Info, Warn, Error bool
	ISO8601                  bool // times as ISO 8601 in UTC; else as TorchServe writes them
}

func (s *Shown) has(level slog.Level) bool {
	switch {
	case level >= slog.LevelError:
		return s.Error
	case level >= slog.LevelWarn:
		return s.Warn
	case level >= slog.LevelInfo:
		return s.Info
	default:
		return s.Debug
	}
}

func (s *Shown) timeOf(t time.Time) string {
	if s.ISO8601 {
		return t.UTC().Format("2006-01-02T15:04:05.000Z")
	}
	return t.Format(timeFormat)
}

// Shown gives what is written now.
func (l *Logs) Shown() Shown { return *l.shows.Load() }

// Show changes what is written from now on.
func (l *Logs) Show(s Shown) { l.shows.Store(&s) }

// file is one log file, and the console beside it.
type file struct {
	mu      sync.Mutex // guards the lines: each is written whole
	roll    *lumberjack.Logger
	console io.Writer    // nil for none
	least   slog.Leveler // of lines for the console; nil for all of them
}

func (f *file) line(level slog.Level, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// A full disk must not stop the server: the console still has the line.
	_, _ = io.WriteString(f.roll, text)
	if f.console != nil && (f.least == nil || level >= f.least.Level()) {
		_, _ = io.WriteString(f.console, text)
	}
}

// Open makes the log folder and opens the files. An error says what to change.
func Open(opts Options) (*Logs, error) {
	if err := os.MkdirAll(opts.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("the log folder %s cannot be made: %w; set LOG_LOCATION to a folder that can be written", opts.Dir, err)
	}
	probe, err := os.OpenFile(filepath.Join(opts.Dir, ServerFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640) //nolint:gosec // log collectors read it as the group
	if err != nil {
		return nil, fmt.Errorf("the log file cannot be written: %w; set LOG_LOCATION to a folder that can be written", err)
	}
	if err := probe.Close(); err != nil {
		return nil, fmt.Errorf("the log file cannot be written: %w", err)
	}
	if opts.Metrics == "" {
		opts.Metrics = opts.Dir
	}
	open := func(dir, name string) *lumberjack.Logger {
		return &lumberjack.Logger{Filename: filepath.Join(dir, name), MaxSize: megabytes, MaxBackups: backups, Compress: true, LocalTime: true}
	}
	shown := func(name string) *file {
		return &file{console: opts.Console, least: opts.ConsoleLevel, roll: open(opts.Dir, name)}
	}
	f := newFlusher()
	l := &Logs{
		server: shown(ServerFile), model: shown(ModelFile), access: f.add(open(opts.Dir, AccessFile)),
		serverMetrics: f.add(open(opts.Metrics, ServerMetricsFile)), modelMetrics: f.add(open(opts.Metrics, ModelMetricsFile)), flusher: f,
	}
	least := slog.LevelInfo
	if opts.Level != nil {
		least = opts.Level.Level()
	}
	l.Show(Shown{Debug: least <= slog.LevelDebug, Info: least <= slog.LevelInfo, Warn: least <= slog.LevelWarn, Error: true})
	l.logger = slog.New(&handler{file: l.server, shows: &l.shows})
	go f.run() // until Close
	return l, nil
}

// Server gives the logger of the server itself.
func (l *Logs) Server() *slog.Logger { return l.logger }

// Access writes one line about an answered request, with others that come soon: entry is all of it but the time.
func (l *Logs) Access(at time.Time, entry string) {
	l.access.line(at, entry)
}

// ServerMetric writes, as Access does, a value that the server measured: entry is all of the line but the time.
func (l *Logs) ServerMetric(at time.Time, entry string) {
	l.serverMetrics.line(at, entry)
}

// ModelMetric writes, as Access does, a value that a handler measured.
func (l *Logs) ModelMetric(at time.Time, entry string) {
	l.modelMetrics.line(at, entry)
}

// Model writes one line of a worker's output. level is one of DEBUG, INFO, WARN, ERROR and FATAL. thread is TorchServe's name of the worker, as W-9000-name_1.0; stream is stdout or stderr; ids are
// the requests that were being handled.
func (l *Logs) Model(at time.Time, level, thread, stream string, ids []string, text string) {
	var b strings.Builder
	b.WriteString(at.Format(timeFormat))
	fmt.Fprintf(&b, " [%-5s] %s-%s MODEL_LOG ", level, thread, stream)
	if len(ids) > 0 {
		b.WriteString("[" + strings.Join(ids, ",") + "] ")
	}
	b.WriteString("- " + text + "\n")
	l.model.line(levelOf(level), b.String())
}

func levelOf(word string) slog.Level {
	switch word {
	case "DEBUG":
		return slog.LevelDebug
	case "WARN":
		return slog.LevelWarn
	case "ERROR", "FATAL":
		return slog.LevelError
	default:
		return slog.LevelInfo
	}
}

// Close writes what waits to be written, and closes the files. A line that comes later opens its file again.
func (l *Logs) Close() error {
	l.flusher.end()
	return errors.Join(l.server.roll.Close(), l.model.roll.Close(), l.access.close(), l.serverMetrics.close(), l.modelMetrics.close())
}

// oneLine keeps a client from writing lines of its own into a log.
func oneLine(s string) string {
	if plain(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '.'
		}
		return r
	}, s)
}

// plain says whether a text has nothing but printable ASCII.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f {
			return false
		}
	}
	return true
}
