package main

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/argparse"
	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/client"
)

// slow is `flambeau slow`.
func (p *program) slow(ctx context.Context, args []string) int {
	const prog = "flambeau slow"
	parsed, status := p.parse(&argparse.Command{
		Prog: prog, About: "List the slowest requests of a model, and where their time went: waiting for a worker, waiting for the rest of the batch, in the worker.",
		Options: clientOptions(
			argparse.Option{Names: []string{"--limit"}, Kind: argparse.Value, Metavar: "N", Help: "How many at most: 10 if not given."},
			argparse.Option{Names: []string{"--since"}, Kind: argparse.Value, Metavar: "TIME", Help: "Only those of the last TIME: 90s, 15m, 1h. An hour at most is remembered."},
		),
		Positional: "MODEL", Least: 1, Most: 1,
	}, args)
	if parsed == nil {
		return status
	}
	query := url.Values{}
	if parsed.Has("--limit") {
		query.Set("limit", parsed.Get("--limit"))
	}
	if parsed.Has("--since") {
		past, err := time.ParseDuration(parsed.Get("--since"))
		if err != nil || past < time.Second {
			printf(p.stderr, "%s: --since %s: a time of a second or more is wanted, as 90s, 15m or 1h\n", prog, parsed.Get("--since"))
			return exitUsage
		}
		query.Set("seconds", strconv.FormatInt(int64(past/time.Second), 10))
	}
	return printList(ctx, p, parsed, listing[client.Request]{
		prog: prog, ask: listAt[client.Request]("requests", query, "admin", "models", parsed.Rest[0], "slow"), none: noRequests, table: p.slowTable,
	})
}

const noRequests = "no requests"

func (p *program) slowTable(w *tabwriter.Writer, requests []client.Request) {
	printf(w, "WHEN\tVERSION\tTOTAL\tWAITED\tGATHERED\tRAN\tBATCH\tREASON\tID\tWHY\n")
	for i := range requests {
		r := &requests[i]
		printf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.ago(r.Arrived), printable(r.Version), millisText(r.TotalMS), millisText(r.WaitedMS),
			millisText(r.GatheredMS), millisText(r.RanMS), sizeOf(r.Batch), orDash(printable(r.Reason)), printable(r.ID), oneLine(r.Why))
	}
}

func sizeOf(b *client.Batch) string {
	if b == nil {
		return "-"
	}
	return strconv.Itoa(len(b.Requests))
}

// trace is `flambeau trace`.
func (p *program) trace(ctx context.Context, args []string) int {
	const prog = "flambeau trace"
	parsed, status := p.parse(&argparse.Command{
		Prog: prog, About: "Tell where the time of one request went. Its id is that of the answer's header x-request-id. Of each model the latest 1000 requests and " +
			"the slowest of the last hour are remembered.",
		Options: clientOptions(), Positional: "ID", Least: 1, Most: 1,
	}, args)
	if parsed == nil {
		return status
	}
	return printList(ctx, p, parsed, listing[client.Request]{
		prog: prog, ask: listAt[client.Request]("requests", nil, "admin", "requests", parsed.Rest[0]), none: noRequests,
		table: func(w *tabwriter.Writer, requests []client.Request) {
			for i := range requests {
				if i > 0 {
					printf(w, "\n")
				}
				p.printRequest(w, &requests[i])
			}
		},
	})
}

func (p *program) printRequest(w *tabwriter.Writer, r *client.Request) {
	outcome := "answered"
	switch {
	case r.Reason != "":
		outcome = "failed: " + printable(r.Reason)
	case r.Status != 0:
		outcome = "answered with status " + strconv.Itoa(r.Status)
	}
	printf(w, "request\t%s\n", printable(r.ID))
	printf(w, "model\t%s %s\n", printable(r.Model), printable(r.Version))
	printf(w, "arrived\t%s (%s)\n", r.Arrived.Local().Format(time.DateTime+".000"), p.ago(r.Arrived))
	printf(w, "outcome\t%s\n", outcome)
	printf(w, "bytes\t%d in, %d out\n", r.BytesIn, r.BytesOut)
	printf(w, "total\t%s\n", millisText(r.TotalMS))
	printf(w, "  for a worker\t%s\n", millisText(r.WaitedMS))
	printf(w, "  for its batch\t%s\n", millisText(r.GatheredMS))
	printf(w, "  in the worker\t%s\n", millisText(r.RanMS))
	printBatch(w, "batch", r.Batch)
	printBatch(w, "behind", r.Behind)
	printf(w, "why\t%s\n", oneLine(r.Why))
}

func printBatch(w *tabwriter.Writer, name string, b *client.Batch) {
	if b == nil {
		return
	}
	ids := make([]string, len(b.Requests))
	for i, id := range b.Requests {
		ids[i] = printable(id)
	}
	printf(w, "%s\tnumber %d, worker %d (pid %d), %s: %s\n", name, b.Number, b.Worker, b.PID, millisText(b.RanMS), strings.Join(ids, " "))
}
