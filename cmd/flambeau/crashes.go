package main

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/argparse"
	"github.com/flambeau-serve/flambeau/plugins/crashes"
)

// shownLines is how many of the last lines of a crash are shown; --json has all that is kept.
const shownLines = 20

// showCrashes is `flambeau show --crashes`.
func (p *program) showCrashes(ctx context.Context, prog string, parsed *argparse.Args, name, version string) int {
	query := url.Values{}
	if version != "" {
		query.Set("version", version)
	}
	return printList(ctx, p, parsed, listing[crashes.Record]{
		prog: prog, ask: listAt[crashes.Record]("crashes", query, "admin", "models", name, "crashes"), none: "no worker has crashed",
		table: func(w *tabwriter.Writer, all []crashes.Record) {
			for i := range all {
				if i > 0 {
					printf(w, "\n")
				}
				p.printCrash(w, &all[i])
			}
		},
	})
}

func (p *program) printCrash(w *tabwriter.Writer, r *crashes.Record) {
	printf(w, "crash\t%s: %s\n", printable(string(r.Reason)), oneLine(r.Crash.String()))
	printf(w, "model\t%s %s, generation %d\n", printable(r.Model), printable(r.Version), r.Generation)
	printf(w, "worker\t%d (pid %d), started again %d times before\n", r.Worker, r.PID, r.Restarts)
	printf(w, "ended\t%s (%s), after %s and %d batches%s\n", r.At.Local().Format(time.DateTime), p.ago(r.At),
		time.Duration(r.Ran*float64(time.Second)).Round(time.Millisecond), r.Served, map[bool]string{true: ", while it loaded the model"}[r.Loading])
	printf(w, "memory\t%s\n", memoryText(r))
	for i := range r.Requests {
		q := &r.Requests[i]
		parts := make([]string, len(q.Parts))
		for n, part := range q.Parts {
			parts[n] = fmt.Sprintf("%s (%s, %d bytes)", printable(part.Name), cmp.Or(printable(part.ContentType), "no content type"), part.Bytes)
		}
		printf(w, "request\t%s, batch %d, for %s: %s\n", printable(q.ID), q.Batch, time.Duration(q.Ran*float64(time.Second)).Round(time.Millisecond), strings.Join(parts, ", "))
	}
	if r.LeftOut > 0 {
		printf(w, "\tand %d requests more\n", r.LeftOut)
	}
	lines := r.Lines
	if len(lines) > shownLines {
		lines = lines[len(lines)-shownLines:]
	}
	for _, l := range lines {
		printf(w, "%s\t%s\n", printable(l.Stream), printable(l.Text))
	}
}

func memoryText(r *crashes.Record) string {
	m := &r.Memory
	text := "not known"
	if m.Peak > 0 {
		text = bytesText(m.Peak) + " at most"
	}
	if m.Limit > 0 {
		text += fmt.Sprintf("; a limit of %s (%s)", bytesText(m.Limit), printable(m.LimitOf))
	}
	if m.Evidence != "" {
		text += "; " + oneLine(m.Evidence)
	}
	return text
}
