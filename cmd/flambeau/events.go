package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/argparse"
	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/client"
)

const (
	followPause = time.Second // between two looks for new events
	mostEvents  = 1000        // that a server gives at once
)

// events is `flambeau events`.
func (p *program) events(ctx context.Context, args []string) int {
	const prog = "flambeau events"
	parsed, status := p.parse(&argparse.Command{
		Prog: prog, About: "Tell what happened to the models of a server, the oldest first: loads, swaps, failures, refusals, changes of traffic, and who " +
			"asked for them.",
		Options: clientOptions(
			argparse.Option{Names: []string{"--model"}, Kind: argparse.Value, Help: "Only events of this model."},
			argparse.Option{Names: []string{"--kind"}, Kind: argparse.Value, Help: "Only events of this kind: swapped, swap_failed, refused, ..."},
			argparse.Option{Names: []string{"--after"}, Kind: argparse.Value, Metavar: "ID", Help: "Only events after the one with this id."},
			argparse.Option{Names: []string{"--limit"}, Kind: argparse.Value, Metavar: "N", Help: "How many at most: 100 if not given, 1000 at most; the newest ones."},
			argparse.Option{Names: []string{"--follow", "-f"}, Help: "Go on and tell new events as they happen, until Ctrl-C."},
		),
	}, args)
	if parsed == nil {
		return status
	}
	query := url.Values{}
	for _, name := range []string{"model", "kind", "after", "limit"} {
		if parsed.Has("--" + name) {
			query.Set(name, parsed.Get("--"+name))
		}
	}
	if parsed.Has("--follow") {
		c, err := p.client(parsed, askLimit)
		if err != nil {
			return p.fail(prog, err)
		}
		return p.follow(ctx, prog, c, query, parsed.Has("--json"))
	}
	return p.printEvents(ctx, prog, parsed, listAt[client.Event]("events", query, "admin", "events"))
}

// history is `flambeau history`.
func (p *program) history(ctx context.Context, args []string) int {
	const prog = "flambeau history"
	parsed, status := p.parse(&argparse.Command{
		Prog: prog, About: "Tell what changed what serves of a model, the oldest first: what, when, who asked for it, and why. It is kept across restarts.",
		Options: clientOptions(
			argparse.Option{Names: []string{"--limit"}, Kind: argparse.Value, Metavar: "N", Help: "How many at most: 100 if not given, 1000 at most; the newest ones."}),
		Positional: "MODEL", Least: 1, Most: 1,
	}, args)
	if parsed == nil {
		return status
	}
	query := url.Values{}
	if parsed.Has("--limit") {
		query.Set("limit", parsed.Get("--limit"))
	}
	return p.printEvents(ctx, prog, parsed, listAt[client.Event]("history", query, "admin", "models", parsed.Rest[0], "history"))
}

func (p *program) printEvents(
	ctx context.Context, prog string, parsed *argparse.Args, ask func(context.Context, *client.Client) ([]client.Event, []json.RawMessage, error),
) int {
	return printList(ctx, p, parsed, listing[client.Event]{prog: prog, ask: ask, none: "no events", table: func(w *tabwriter.Writer, events []client.Event) {
		printf(w, "ID\tWHEN\tMODEL\tVERSION\tWHAT\tGEN\tDIGEST\tTOOK\tWHO\tDETAILS\n")
		for i := range events {
			e := &events[i]
			printf(w, "%d\t%s\n", e.ID, strings.Join(append([]string{p.ago(e.At)}, eventFields(e)...), "\t"))
		}
	}})
}

// eventFields are the columns of an event but its id and its time.
func eventFields(e *client.Event) []string {
	generation, took := "-", "-"
	if e.Generation > 0 {
		generation = strconv.Itoa(e.Generation)
	}
	if e.TookMS > 0 {
		took = millisText(e.TookMS)
	}
	var details []string
	for _, text := range []string{e.Source, e.Why, e.Reason} {
		if text != "" {
			details = append(details, oneLine(text))
		}
	}
	return []string{
		orDash(printable(e.Model)), orDash(printable(e.Version)), printable(e.Kind), generation, orDash(shortDigest(e.Digest)), took,
		orDash(printable(e.Who)), orDash(strings.Join(details, "; ")),
	}
}

// follow tells events as they happen, until a signal or ctx ends it. A server that is gone for a while is asked again.
func (p *program) follow(ctx context.Context, prog string, c *client.Client, query url.Values, asJSON bool) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	ticks := time.NewTicker(followPause)
	defer ticks.Stop()
	ask := listAt[client.Event]("events", query, "admin", "events")
	asked := false
	for {
		events, raw, err := ask(ctx, c)
		switch {
		case ctx.Err() != nil:
			return exitOK
		case err != nil && !asked:
			return p.askFailed(prog, err)
		case err != nil && !isUnreachable(err):
			return p.askFailed(prog, err)
		}
		asked = true
		for i := range events {
			if err := p.printEvent(raw[i], &events[i], asJSON); err != nil {
				return exitOK // whoever read it has gone
			}
			query.Set("after", strconv.FormatUint(events[i].ID, 10))
		}
		if len(events) > 0 {
			query.Set("limit", strconv.Itoa(mostEvents))
		}
		select {
		case <-ctx.Done():
			return exitOK
		case <-ticks.C:
		}
	}
}

// printEvent writes one event on a line of its own, with the time of day: the line stays while time goes on.
func (p *program) printEvent(raw json.RawMessage, e *client.Event, asJSON bool) error {
	if asJSON {
		var line strings.Builder
		if err := compactTo(&line, raw); err != nil {
			return err
		}
		_, err := fmt.Fprintln(p.stdout, line.String())
		return err //nolint:wrapcheck // nobody reads it
	}
	f := eventFields(e)
	_, err := fmt.Fprintf(p.stdout, "%s  %-24s %-10s %-14s %-4s %-12s %-7s %-18s %s\n", e.At.Local().Format(time.TimeOnly), f[0], f[1], f[2], f[3], f[4], f[5],
		f[6], cmp.Or(f[7], "-"))
	return err //nolint:wrapcheck // nobody reads it
}
