package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// screen is the start-up output of `flambeau serve`: one screen with addresses and models. A model's line is written when it serves or has failed,
// so that it reads well in a file too.
type screen struct {
	s       *server
	out     io.Writer
	logDir  string
	version string
	begun   time.Time
	settled func() // called when the table is complete

	mu      sync.Mutex // guards what follows
	refused map[string]error

	started bool            // the table's goroutine was started
	written map[string]bool // versions whose line was written; the table's goroutine only
	changed chan struct{}   // one token: something changed
	done    chan struct{}   // closed when the table's goroutine has ended
}

func newScreen(s *server, out io.Writer, logDir, version string, settled func()) *screen {
	return &screen{
		s: s, out: out, logDir: logDir, version: version, begun: time.Now(), settled: settled, refused: map[string]error{}, written: map[string]bool{},
		changed: make(chan struct{}, 1), done: make(chan struct{}),
	}
}

var _ progress = (*screen)(nil)

// Listening writes the head.
func (p *screen) Listening(listeners []listener) {
	printf(p.out, "Flambeau %s\n\n", p.version)
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	for _, l := range listeners {
		printf(w, "  %s\t%s\n", l.name, l.address)
	}
	printf(w, "  model store\t%s\n", orNone(absolute(p.s.cfg.ModelStore)))
	printf(w, "  configuration\t%s\n", orNone(absolute(p.s.cfg.File)))
	printf(w, "  logs\t%s\n", absolute(p.logDir))
	printf(w, "  authorization\t%s\n", p.authorization())
	_ = w.Flush() // to a terminal or a file: there is nobody to tell
	for _, warning := range p.s.cfg.Warnings() {
		printf(p.out, "  warning: %s\n", warning)
	}
	printf(p.out, "\n")
}

func (p *screen) authorization() string {
	if !p.s.cfg.TokenAuth {
		return "off: whoever reaches these addresses may use them"
	}
	return "by the keys in " + absolute(p.s.keys.Path())
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func absolute(path string) string {
	if path == "" {
		return ""
	}
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// Registered keeps the models that could not be registered for the table.
func (p *screen) Registered(name, url string, err error) {
	if err == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused[firstText(name, url)] = err
}

// Changed looks again whether a model is ready.
func (p *screen) Changed() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Started begins to write the table, until it is complete or ctx ends.
func (p *screen) Started(ctx context.Context) {
	const columns = "%-24s %-10s %-10s %-8s %s\n"
	p.started = true
	models, _ := startedState(p.s.core.models)
	switch {
	case len(models)+len(p.refused) > 0:
		printf(p.out, columns, "MODEL", "VERSION", "STATE", "WORKERS", "")
	case p.s.cfg.Watch:
		printf(p.out, "No model yet: an archive (.mar), an .onnx file or the folder of a plugin that is put into the model store is loaded.\n")
	}
	p.mu.Lock()
	for _, url := range slices.Sorted(maps.Keys(p.refused)) {
		printf(p.out, columns, url, "-", "refused", "-", refusalText(p.refused[url]))
	}
	p.mu.Unlock()
	go func() {
		defer close(p.done)
		if p.s.core.bugs.contain("the table of the models was written", func() { p.table(ctx, columns) }) != nil {
			p.settled() // what goes wrong is told on the terminal from now on
		}
	}()
}

// Ended waits until nothing is written any more; the context of Started has ended.
func (p *screen) Ended() {
	if p.started {
		<-p.done
	}
}

func (p *screen) table(ctx context.Context, columns string) {
	for {
		models, pending := startedState(p.s.core.models)
		for _, d := range models {
			if d.State != "deploying" && !p.written[refText(d.Ref)] {
				p.written[refText(d.Ref)] = true
				printf(p.out, columns, d.Ref.Name, d.Ref.Version, d.State, workersText(d), p.remark(d))
			}
		}
		if !pending {
			printf(p.out, "\n%s after %s; stop with Ctrl-C\n", summary(models), p.since())
			p.settled()
			return
		}
		select {
		case <-p.changed:
		case <-ctx.Done():
			return
		}
	}
}

// summary sums the table up.
func summary(models []rollout.Description) string {
	serving := 0
	for _, d := range models {
		if d.State == "serving" {
			serving++
		}
	}
	if serving == len(models) {
		return "ready"
	}
	return fmt.Sprintf("%d of %d model versions serve", serving, len(models))
}

func (p *screen) since() string { return time.Since(p.begun).Round(100 * time.Millisecond).String() }

func (p *screen) remark(d rollout.Description) string {
	if d.State == "serving" {
		return "after " + p.since()
	}
	return strings.SplitN(d.Reason, "\n", 2)[0]
}

// refusalText is why a model could not be registered and what can be done about it, on one line.
func refusalText(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Hint != "" {
		text += " (" + f.Hint + ")"
	}
	return text
}

func workersText(d rollout.Description) string {
	ready := 0
	for _, w := range d.Workers {
		if w.Ready {
			ready++
		}
	}
	return fmt.Sprintf("%d/%d", ready, len(d.Workers))
}

func firstText(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

// announcement is the start-up output of the torchserve command: TorchServe's one line, and the log for the rest.
type announcement struct{ out io.Writer }

var _ progress = announcement{}

// Listening, Registered and Changed are in the log.
func (announcement) Listening([]listener)             {}
func (announcement) Registered(string, string, error) {}
func (announcement) Changed()                         {}

// Ended has nothing to wait for.
func (announcement) Ended() {}

// Started writes what scripts wait for.
func (a announcement) Started(context.Context) { printf(a.out, "Model server started.\n") }
