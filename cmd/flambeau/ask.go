package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/argparse"
	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/client"
	"github.com/flambeau-serve/flambeau/frontend/httpapi/token"
	"github.com/flambeau-serve/flambeau/internal/config"
)

// clientOptions are the options of commands that ask a server.
func clientOptions(more ...argparse.Option) []argparse.Option {
	const group = "which server"
	return append(more,
		argparse.Option{Names: []string{"--json"}, Help: "Print JSON, as the server has it."},
		argparse.Option{
			Names: []string{"--url"}, Group: group, Kind: argparse.Value,
			Help: "Management address of the server. Not given: FLAMBEAU_URL, else management_address of the configuration file, else http://127.0.0.1:8081.",
		},
		argparse.Option{
			Names: []string{"--ts-config"}, Group: group, Kind: argparse.Value, Metavar: "FILE",
			Help: "Configuration file of the server. Not given: TS_CONFIG_FILE, else config.properties if it is here, else the newest snapshot in logs/config.",
		},
		argparse.Option{
			Names: []string{"--token"}, Group: group, Kind: argparse.Value, Metavar: "KEY",
			Help: "Management key. Not given: FLAMBEAU_TOKEN, else that of key_file.json if it is here.",
		},
		argparse.Option{Names: []string{"--insecure"}, Group: group, Help: "Trust any certificate of an https address."},
	)
}

// askLimit is how long a server may take to answer one question.
const askLimit = 30 * time.Second

// client finds the server, which may take as long as limit for an answer.
func (p *program) client(args *argparse.Args, limit time.Duration) (*client.Client, error) {
	opts := client.Options{
		URL: cmp.Or(args.Get("--url"), p.getenv("FLAMBEAU_URL")), Token: p.managementKey(args), Insecure: args.Has("--insecure"), Timeout: limit,
		Agent: "flambeau-cli/" + version,
	}
	if !args.Has("--url") && opts.URL != "" {
		opts.Origin = "FLAMBEAU_URL"
	}
	if opts.URL == "" {
		src := config.Source{File: args.Get("--ts-config"), Environ: p.environ}
		if config.FindFile(src) == "" {
			p.lookForSnapshots(&src) // a server of the torchserve command that was started without a file
		}
		cfg, err := config.Management(src)
		if err != nil {
			return nil, fmt.Errorf("the server's address is not known: %w", err)
		}
		opts.URL, opts.RootFile = cfg.Management.String(), cfg.TLS.CertificateFile
		opts.Origin = "management_address, " + cfg.Value("management_address").Origin.String()
	}
	return client.New(opts)
}

// managementKey gives the key that the management API wants, "" if there is none to be found.
func (p *program) managementKey(args *argparse.Args) string {
	if key := cmp.Or(args.Get("--token"), p.getenv("FLAMBEAU_TOKEN")); key != "" {
		return key
	}
	text, err := os.ReadFile(token.FileName)
	if err != nil {
		return ""
	}
	var file struct {
		Management struct {
			Key string `json:"key"`
		} `json:"management"`
	}
	if json.Unmarshal(text, &file) != nil {
		return ""
	}
	return file.Management.Key
}

// askFailed tells why there is no answer, and gives the exit status.
func (p *program) askFailed(prog string, err error) int {
	if refused, ok := errors.AsType[*client.RefusedError](err); ok && refused.Absent() && refused.Hint == "" {
		err = fmt.Errorf("this server does not know what is asked for: it is a TorchServe, or an older Flambeau (it said: %w)", err)
	}
	p.fail(prog, err)
	if isUnreachable(err) {
		return exitUnreachable
	}
	return exitFailed
}

// isUnreachable says that no server answered.
func isUnreachable(err error) bool {
	_, unreachable := errors.AsType[*client.UnreachableError](err)
	return unreachable
}

func (p *program) printJSON(prog string, raw []json.RawMessage) int {
	text, err := json.MarshalIndent(raw, "", "  ")
	if err != nil {
		return p.fail(prog, err)
	}
	if _, err := fmt.Fprintln(p.stdout, string(text)); err != nil {
		return p.fail(prog, err)
	}
	return exitOK
}

// printObject prints one JSON object.
func (p *program) printObject(prog string, raw json.RawMessage) int {
	var text bytes.Buffer
	if err := json.Indent(&text, raw, "", "  "); err != nil {
		return p.fail(prog, err)
	}
	if _, err := fmt.Fprintln(p.stdout, strings.TrimSpace(text.String())); err != nil {
		return p.fail(prog, err)
	}
	return exitOK
}

// compactTo writes JSON on one line.
func compactTo(w io.Writer, raw json.RawMessage) error {
	var text bytes.Buffer
	if err := json.Compact(&text, raw); err != nil {
		return fmt.Errorf("the server's answer cannot be read: %w", err)
	}
	_, err := w.Write(text.Bytes())
	return err //nolint:wrapcheck // the caller says where it goes
}

func (p *program) flush(prog string, w *tabwriter.Writer) int {
	if err := w.Flush(); err != nil {
		return p.fail(prog, err)
	}
	return exitOK
}

// config is `flambeau config`.
func (p *program) config(_ context.Context, args []string) int {
	const prog = "flambeau config"
	parsed, status := p.parse(&argparse.Command{
		Prog: prog, About: "Check the settings that a server would be started with, and show what differs from the defaults and where it comes from.",
		Options: append(settingOptions(),
			argparse.Option{Names: []string{"--snapshots"}, Help: "For the torchserve command, which looks for a snapshot of its last run before ./config.properties."},
			argparse.Option{Names: []string{"--all"}, Help: "Show the defaults, too."},
			argparse.Option{Names: []string{"--json"}, Help: "Print JSON."}),
	}, args)
	if parsed == nil {
		return status
	}
	src := p.source(parsed)
	if parsed.Has("--snapshots") {
		p.lookForSnapshots(&src)
	}
	cfg, err := config.Load(src)
	if err != nil {
		return p.fail(prog, err)
	}
	for _, warning := range cfg.Warnings() {
		printf(p.stderr, "%s: warning: %s\n", prog, warning)
	}
	type entry struct {
		Key    string `json:"key"`
		Value  string `json:"value"`
		Origin string `json:"origin"`
	}
	entries := []entry{}
	for _, v := range cfg.Values() {
		if v.Origin.Kind != config.FromDefault || parsed.Has("--all") {
			entries = append(entries, entry{v.Key, v.Text, v.Origin.String()})
		}
	}
	if parsed.Has("--json") {
		text, err := json.MarshalIndent(entries, "", "  ")
		if err != nil {
			return p.fail(prog, err)
		}
		printf(p.stdout, "%s\n", text)
		return exitOK
	}
	printf(p.stdout, "configuration file: %s\n", orNone(absolute(cfg.File)))
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	for _, e := range entries {
		printf(w, "%s\t%s\t%s\n", e.Key, printable(e.Value), e.Origin)
	}
	return p.flush(prog, w)
}
