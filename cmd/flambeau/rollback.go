package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/argparse"
	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/client"
	"github.com/flambeau-serve/flambeau/internal/malformed"
)

// changeLimit is how long a server may take to load something: as long as it gives itself.
const changeLimit = time.Hour + askLimit

// rollback is `flambeau rollback`.
func (p *program) rollback(ctx context.Context, args []string) int {
	const prog = "flambeau rollback"
	parsed, status := p.parse(&argparse.Command{
		Prog: prog, Positional: "MODEL[/VERSION]", Least: 1, Most: 1,
		About: "Make an earlier archive of a model serve again, beside the one of now, which is then drained. The file in the model store is left alone, and " +
			"not loaded again until it changes. It returns when the archive serves.",
		Options: clientOptions(
			argparse.Option{Names: []string{"--to"}, Kind: argparse.Value, Metavar: "DIGEST", Help: "The beginning of the archive's digest, as history shows it. Not given: the one before."},
			argparse.Option{Names: []string{"--yes", "-y"}, Help: "Do not ask."},
		),
	}, args)
	if parsed == nil {
		return status
	}
	c, err := p.client(parsed, changeLimit)
	if err != nil {
		return p.fail(prog, err)
	}
	name, version, _ := strings.Cut(parsed.Rest[0], "/")
	if !parsed.Has("--yes") {
		if status, sure := p.sure(ctx, prog, c, name, version, parsed.Get("--to")); !sure {
			return status
		}
	}
	query := url.Values{}
	for key, value := range map[string]string{"version": version, "to": parsed.Get("--to")} {
		if value != "" {
			query.Set(key, value)
		}
	}
	raw, err := c.Ask(ctx, http.MethodPost, query, nil, "admin", "models", name, "rollback")
	if err != nil {
		return p.askFailed(prog, err)
	}
	if parsed.Has("--json") {
		return p.printObject(prog, raw)
	}
	var done client.RolledBack
	if err := json.Unmarshal(raw, &done); err != nil {
		return p.fail(prog, fmt.Errorf("the server's answer cannot be read: %s", malformed.JSON(err)))
	}
	printf(p.stdout, "%s %s serves %s again%s\n", printable(done.Model), printable(done.Version), orDash(shortDigest(done.Digest)), inBrackets(done.Source))
	return exitOK
}

func inBrackets(s string) string {
	if s == "" {
		return ""
	}
	return " (" + printable(s) + ")"
}

// errNotSure means that nobody could be asked.
var errNotSure = errors.New("nobody can be asked here whether this is meant; say so by --yes")

// sure shows what serves, and asks. When the answer is no, there is an exit status.
func (p *program) sure(ctx context.Context, prog string, c *client.Client, name, version, to string) (status int, sure bool) {
	if p.stdin == nil {
		p.fail(prog, errNotSure)
		return exitUsage, false
	}
	models, _, err := p.models(ctx, c)
	if err != nil {
		return p.askFailed(prog, err), false
	}
	for i := range models {
		if m := &models[i]; m.Name == name && (m.Version == version || version == "" && m.Default) {
			printf(p.stderr, "%s %s serves %s%s since %s\n", printable(m.Name), printable(m.Version), orDash(shortDigest(m.Digest)), inBrackets(m.Source), p.ago(m.Since))
		}
	}
	target := "the archive before"
	if to != "" {
		target = "the archive " + printable(to)
	}
	printf(p.stderr, "go back to %s? [y/N] ", target)
	answer, _ := bufio.NewReader(p.stdin).ReadString('\n') // an end of the input is a no
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return exitOK, true
	}
	printf(p.stderr, "nothing was changed\n")
	return exitFailed, false
}

// reload is `flambeau reload`.
func (p *program) reload(ctx context.Context, args []string) int {
	const prog = "flambeau reload"
	parsed, status := p.parse(&argparse.Command{
		Prog: prog, Options: clientOptions(), Positional: "MODEL", Least: 1, Most: 1,
		About: "Look at the files of a model again, now: also at an archive that failed before, or that was rolled back from. It returns when they serve.",
	}, args)
	if parsed == nil {
		return status
	}
	c, err := p.client(parsed, changeLimit)
	if err != nil {
		return p.fail(prog, err)
	}
	raw, err := c.Ask(ctx, http.MethodPost, nil, nil, "admin", "models", parsed.Rest[0], "reload")
	if err != nil {
		return p.askFailed(prog, err)
	}
	if parsed.Has("--json") {
		return p.printObject(prog, raw)
	}
	printf(p.stdout, "%s serves what is in the model store\n", printable(parsed.Rest[0]))
	return exitOK
}
