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
	c, err := p.client(parsed, askLimit)
	if err != nil {
		return p.fail(prog, err)
	}
	raw, err := askList(ctx, c, "entries", "admin", "store")
	if err != nil {
		return p.askFailed(prog, err)
	}
	if parsed.Has("--json") {
		return p.printJSON(prog, raw)
	}
	entries, err := decoded[client.StoreEntry](raw)
	if err != nil {
		return p.fail(prog, err)
	}
	if len(entries) == 0 {
		printf(p.stdout, "the model store is empty\n")
		return exitOK
	}
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	printf(w, "PATH\tKIND\tSTATE\tSIZE\tSINCE\tMODEL\tVERSION\tDIGEST\tDECISION\tREASON\n")
	for _, e := range entries {
		why := e.Why
		if why == "" {
			why = e.Reason
		}
		printf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", printable(e.Path), printable(e.Kind), printable(e.State), sizeText(e.Bytes), p.ago(e.Since),
			orDash(printable(e.Model)), orDash(printable(e.Version)), orDash(shortDigest(e.Digest)), orDash(printable(e.Decision)), orDash(oneLine(why)))
	}
	return p.flush(prog, w)
}
