package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"

	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/argparse"
	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/client"
	"github.com/flambeau-serve/flambeau/internal/malformed"
)

// poison is `flambeau poison`.
func (p *program) poison(ctx context.Context, args []string) int {
	const prog = "flambeau poison"
	parsed, status := p.parse(&argparse.Command{
		Prog: prog, Positional: "MODEL", Least: 1, Most: 1,
		About: "List the requests that have ended workers of a model. After the second time such a request is refused without a try, until poison_memory is " +
			"over, another archive of the model serves, or --lift.",
		Options: clientOptions(
			argparse.Option{Names: []string{"--lift"}, Kind: argparse.Value, Metavar: "DIGEST", Help: "Let the request be tried again: the beginning of its digest, 8 characters or more."},
		),
	}, args)
	if parsed == nil {
		return status
	}
	if parsed.Has("--lift") {
		return p.lift(ctx, prog, parsed)
	}
	return printList(ctx, p, parsed, listing[client.Poisoned]{
		prog: prog, ask: listAt[client.Poisoned]("poison", nil, "admin", "models", parsed.Rest[0], "poison"),
		none: "no request has ended a worker lately", table: p.poisonTable,
	})
}

// lift is `flambeau poison --lift`.
func (p *program) lift(ctx context.Context, prog string, parsed *argparse.Args) int {
	c, err := p.client(parsed, askLimit)
	if err != nil {
		return p.fail(prog, err)
	}
	raw, err := c.Ask(ctx, http.MethodDelete, url.Values{"digest": {parsed.Get("--lift")}}, nil, "admin", "models", parsed.Rest[0], "poison")
	if err != nil {
		return p.askFailed(prog, err)
	}
	if parsed.Has("--json") {
		return p.printObject(prog, raw)
	}
	var done struct{ Lifted int }
	if err := json.Unmarshal(raw, &done); err != nil {
		return p.fail(prog, fmt.Errorf("the server's answer cannot be read: %s", malformed.JSON(err)))
	}
	printf(p.stdout, "%d may be tried again\n", done.Lifted)
	return exitOK
}

func (p *program) poisonTable(w *tabwriter.Writer, list []client.Poisoned) {
	printf(w, "VERSION\tDIGEST\tBYTES\tDEATHS\tREFUSED\tLAST\tREQUEST\tHOW\n")
	for i := range list {
		e := &list[i]
		refused := "no"
		if e.Refused {
			refused = "for " + strings.TrimSpace(spanText(e.Until.Sub(p.clock())))
		}
		printf(w, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\n", printable(e.Version), shortDigest(printable(e.Digest)), e.Bytes, e.Deaths, refused, p.ago(e.Last), printable(e.ID), oneLine(e.How))
	}
}
