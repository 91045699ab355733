package logfiles

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

// handler writes slog records as lines of ts_log.log: "time [LEVEL] thread logger - message key=value ...".
type handler struct {
	file  *file
	shows *atomic.Pointer[Shown]
	attrs []slog.Attr
	group string // prefix of the keys
}

var _ slog.Handler = (*handler)(nil)

// Enabled implements slog.Handler.
func (h *handler) Enabled(_ context.Context, level slog.Level) bool { return h.shows.Load().has(level) }

// Handle implements slog.Handler. A value with line breaks (a traceback) stands below the line.
func (h *handler) Handle(_ context.Context, r slog.Record) error {
	var line, below strings.Builder
	fmt.Fprintf(&line, "%s [%-5s] main flambeau - %s", h.shows.Load().timeOf(r.Time), levelName(r.Level), oneLine(r.Message))
	add := func(a slog.Attr) bool {
		writeAttr(&line, &below, h.group, a)
		return true
	}
	for _, a := range h.attrs {
		writeAttr(&line, &below, "", a)
	}
	r.Attrs(add)
	line.WriteString("\n")
	line.WriteString(below.String())
	h.file.line(r.Level, line.String())
	return nil
}

func writeAttr(line, below *strings.Builder, prefix string, a slog.Attr) {
	v := a.Value.Resolve()
	if a.Equal(slog.Attr{}) {
		return
	}
	if v.Kind() == slog.KindGroup {
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, inner := range v.Group() {
			writeAttr(line, below, prefix, inner)
		}
		return
	}
	text := v.String()
	switch {
	case strings.Contains(strings.TrimRight(text, "\n"), "\n"):
		below.WriteString(prefix + a.Key + ":\n")
		for l := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
			below.WriteString("    " + oneLine(strings.TrimRight(l, "\n")) + "\n")
		}
	case text == "" || strings.ContainsAny(text, " \"=\n\t"):
		line.WriteString(" " + prefix + a.Key + "=" + strconv.Quote(text))
	default:
		line.WriteString(" " + prefix + a.Key + "=" + oneLine(text))
	}
}

// levelName is log4j's word for a level.
func levelName(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return "ERROR"
	case l >= slog.LevelWarn:
		return "WARN"
	case l >= slog.LevelInfo:
		return "INFO"
	default:
		return "DEBUG"
	}
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.attrs = slices.Clone(h.attrs)
	for _, a := range attrs {
		a.Key = h.group + a.Key
		c.attrs = append(c.attrs, a)
	}
	return &c
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	c := *h
	if name != "" {
		c.group += name + "."
	}
	return &c
}
