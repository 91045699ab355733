package handlersdk

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"

	"github.com/flambeau-serve/flambeau/handlersdk/pluginserver"
	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
)

// idsKey is the context's key for request ids.
type idsKey struct{}

func withRequestIDs(ctx context.Context, items []frame.Item) context.Context {
	ids := make([]string, len(items))
	for i := range items {
		ids[i] = items[i].ID
	}
	return context.WithValue(ctx, idsKey{}, ids)
}

// RequestIDs gives the ids of the requests that the context of a Handle is for.
func RequestIDs(ctx context.Context) []string {
	ids, _ := ctx.Value(idsKey{}).([]string)
	return slices.Clone(ids)
}

// ForItem gives a context whose log lines are about one item of a batch only.
func ForItem(ctx context.Context, item *Item) context.Context {
	return context.WithValue(ctx, idsKey{}, []string{item.ID})
}

// NewLogHandler gives a handler for log/slog whose lines keep their level in the server's log of the model, and carry the ids of the requests when they
// are written with the context of Handle (slog's InfoContext and the like). A nil opts is as in slog.NewTextHandler.
//
//	slog.SetDefault(slog.New(handlersdk.NewLogHandler(nil)))
func NewLogHandler(opts *slog.HandlerOptions) slog.Handler {
	if pluginserver.CheckCookie() != nil { // started by hand: there is nobody to read markers
		return slog.NewTextHandler(os.Stderr, opts)
	}
	// Not os.Stderr itself: it is another file once the server is connected.
	return newLogHandler(func() io.Writer { return os.Stderr }, opts)
}

func newLogHandler(out func() io.Writer, opts *slog.HandlerOptions) slog.Handler {
	o := slog.HandlerOptions{}
	if opts != nil {
		o = *opts
	}
	replace := o.ReplaceAttr
	o.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
			return slog.Attr{} // the server's log has both
		}
		if replace != nil {
			return replace(groups, a)
		}
		return a
	}
	line := &logLine{out: out}
	return &logHandler{line: line, text: slog.NewTextHandler(&line.buf, &o)}
}

// logLine is where the handlers of one NewLogHandler write; the text handler fills buf.
type logLine struct {
	out func() io.Writer

	mu  sync.Mutex // guards buf, and keeps lines apart
	buf bytes.Buffer
}

type logHandler struct {
	line *logLine
	text slog.Handler
}

var _ slog.Handler = (*logHandler)(nil)

// Enabled implements slog.Handler.
func (h *logHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.text.Enabled(ctx, level)
}

// WithAttrs implements slog.Handler.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logHandler{line: h.line, text: h.text.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h *logHandler) WithGroup(name string) slog.Handler {
	return &logHandler{line: h.line, text: h.text.WithGroup(name)}
}

// Handle implements slog.Handler. A marker goes before the line, and one that takes it back after it: what others print is not of this level. All three
// go out in one write, so that nothing comes between them.
func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	h.line.mu.Lock()
	defer h.line.mu.Unlock()
	ids, _ := ctx.Value(idsKey{}).([]string)
	h.line.buf.Reset()
	marker(&h.line.buf, backendv1.Marker{IDs: ids, Level: levelName(r.Level)})
	if err := h.text.Handle(ctx, r); err != nil {
		return err
	}
	marker(&h.line.buf, backendv1.Marker{})
	_, err := h.line.out().Write(h.line.buf.Bytes())
	return err
}

func marker(to *bytes.Buffer, m backendv1.Marker) {
	if m.IDs == nil {
		m.IDs = []string{}
	}
	text, err := json.Marshal(m)
	if err != nil { // texts only
		return
	}
	to.WriteByte(backendv1.MarkerPrefix)
	to.Write(text)
	to.WriteByte('\n')
}

// levelName gives the levels that the server knows.
func levelName(l slog.Level) string {
	switch {
	case l < slog.LevelInfo:
		return "DEBUG"
	case l < slog.LevelWarn:
		return "INFO"
	case l < slog.LevelError:
		return "WARNING"
	case l < slog.LevelError+4:
		return "ERROR"
	default:
		return "CRITICAL"
	}
}
