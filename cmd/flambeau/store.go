package main

import (
	"context"
	"text/tabwriter"

	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/argparse"
	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/client"
)

// store is `flambeau store`.
func (p *program) store(ctx context.Context, args []string) int {
	const prog = "flambeau store"
	parsed, status := p.parse(&argparse.Command{
		Prog: prog, Options: clientOptions(),
		About: "List the archives of a server's model store, what state they are in, and what the server has decided about them.",
	}, args)
	if parsed == nil {
		return status
	}
	return printList(ctx, p, parsed, listing[client.StoreEntry]{
		prog: prog, ask: listAt[client.StoreEntry]("entries", nil, "admin", "store"), none: "the model store is empty", table: p.storeTable,
	})
}

func (p *program) storeTable(w *tabwriter.Writer, entries []client.StoreEntry) {
	printf(w, "PATH\tKIND\tSTATE\tSIZE\tSINCE\tMODEL\tVERSION\tDIGEST\tDECISION\tREASON\n")
	for _, e := range entries {
		why := e.Why
		if why == "" {
			why = e.Reason
		}
		printf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", printable(e.Path), printable(e.Kind), printable(e.State), sizeText(e.Bytes), p.ago(e.Since),
			orDash(printable(e.Model)), orDash(printable(e.Version)), orDash(shortDigest(e.Digest)), orDash(printable(e.Decision)), orDash(oneLine(why)))
	}
}
