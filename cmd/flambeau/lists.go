package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"text/tabwriter"

	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/argparse"
	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/client"
	"github.com/flambeau-serve/flambeau/internal/malformed"
)

// listing is a list that a server has: how it is asked for, and how people read it.
type listing[T any] struct {
	prog  string
	ask   func(ctx context.Context, c *client.Client) ([]T, []json.RawMessage, error)
	none  string // what is said of an empty one
	table func(w *tabwriter.Writer, all []T)
}

// printList asks for a list and prints it: with --json as the server has it, else as a table.
func printList[T any](ctx context.Context, p *program, args *argparse.Args, l listing[T]) int {
	c, err := p.client(args, askLimit)
	if err != nil {
		return p.fail(l.prog, err)
	}
	all, raw, err := l.ask(ctx, c)
	switch {
	case err != nil:
		return p.askFailed(l.prog, err)
	case args.Has("--json"):
		return p.printJSON(l.prog, raw)
	case len(all) == 0:
		printf(p.stdout, "%s\n", l.none)
		return exitOK
	}
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	l.table(w, all)
	return p.flush(l.prog, w)
}

// listAt asks for the list that an object of /admin has as its one member.
func listAt[T any](member string, query url.Values, segments ...string) func(context.Context, *client.Client) ([]T, []json.RawMessage, error) {
	return func(ctx context.Context, c *client.Client) ([]T, []json.RawMessage, error) {
		answer, err := c.Ask(ctx, http.MethodGet, query, nil, segments...)
		if err != nil {
			return nil, nil, err //nolint:wrapcheck // the client's words are the user's
		}
		var object map[string][]json.RawMessage
		if err := json.Unmarshal(answer, &object); err != nil || object[member] == nil {
			return nil, nil, fmt.Errorf("the server's answer cannot be read: it has no list of %s", member)
		}
		raw := object[member]
		all := make([]T, len(raw))
		for i := range raw {
			if err := json.Unmarshal(raw[i], &all[i]); err != nil {
				return nil, nil, fmt.Errorf("the server's answer cannot be read: %s", malformed.JSON(err))
			}
		}
		return all, raw, nil
	}
}
