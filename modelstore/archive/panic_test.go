package archive

import (
	"context"
	"log/slog"
	"testing"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// badLog has a bug with each warning.
type badLog struct{ slog.Handler }

func (badLog) Enabled(context.Context, slog.Level) bool { return true }

func (badLog) Handle(context.Context, slog.Record) error { panic("a bug of the log") }

// TestPanicOfAnOpen removes what was unpacked, and goes on to whoever has asked; the store can be closed.
func TestPanicOfAnOpen(t *testing.T) {
	p := newPlace(t)
	entries := goodEntries()
	entries[0].text = `{"runtime": "python", "model": {"modelName": "m", "modelVersion": "1.0", "handler": "handler.py"}}` // old, which the log hears of
	p.write(t, "store/m.mar", makeZip(t, entries))
	s := p.open(t, func(o *Options) { o.Logger = slog.New(badLog{slog.DiscardHandler}) })
	for range 2 {
		err := fault.Contain("an archive was opened", func() { _, _ = s.OpenEntry(t.Context(), "m.mar") })
		if !fault.Is(err, fault.Internal) {
			t.Errorf("%v", err)
		}
		s.mu.Lock()
		if n, opens := len(s.open), len(s.cancels); n > 0 || opens > 0 {
			t.Errorf("%d folders and %d opens are left", n, opens)
		}
		s.mu.Unlock()
	}
}
