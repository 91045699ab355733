package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	return append(more,
		argparse.Option{
			Names: []string{"--url"}, Kind: argparse.Value,
			Help: "Management address of the server. Not given: FLAMBEAU_URL, else management_address of the configuration file, else http://127.0.0.1:8081.",
		},
		argparse.Option{
			Names: []string{"--ts-config"}, Kind: argparse.Value, Metavar: "FILE",
			Help: "Configuration file of the server. Not given: TS_CONFIG_FILE, else config.properties if it is here.",
		},
		argparse.Option{
			Names: []string{"--token"}, Kind: argparse.Value, Metavar: "KEY",
			Help: "Management key. Not given: FLAMBEAU_TOKEN, else that of key_file.json if it is here.",
		},
		argparse.Option{Names: []string{"--insecure"}, Help: "Trust any certificate of an https address."},
		argparse.Option{Names: []string{"--json"}, Help: "Print JSON, as the server has it."},
	)
}

// askLimit is how long a server may take to answer one question.
const askLimit = 30 * time.Second

// client finds the server.
func (p *program) client(args *argparse.Args) (*client.Client, error) {
	opts := client.Options{
		URL: cmp.Or(args.Get("--url"), p.getenv("FLAMBEAU_URL")), Token: p.managementKey(args), Insecure: args.Has("--insecure"), Timeout: askLimit,
	}
	if !args.Has("--url") && opts.URL != "" {
		opts.Origin = "FLAMBEAU_URL"
	}
	if opts.URL == "" {
		cfg, err := config.Management(config.Source{File: args.Get("--ts-config"), Environ: p.environ})
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
	p.fail(prog, err)
	if _, unreachable := errors.AsType[*client.UnreachableError](err); unreachable {
		return exitUnreachable
	}
	return exitFailed
}

// ps is `flambeau ps`.
func (p *program) ps(ctx context.Context, args []string) int {
	const prog = "flambeau ps"
	parsed, status := p.parse(&argparse.Command{
		Prog: prog, About: "List the models of a server: their versions, their workers and what waits for them.", Options: clientOptions(),
	}, args)
	if parsed == nil {
		return status
	}
	c, err := p.client(parsed)
	if err != nil {
		return p.fail(prog, err)
	}
	raw, err := everything(ctx, c)
	if err != nil {
		return p.askFailed(prog, err)
	}
	if parsed.Has("--json") {
		return p.printJSON(prog, raw)
	}
	all, err := p.decode(ctx, c, raw)
	if err != nil {
		return p.askFailed(prog, err)
	}
	if len(all) == 0 {
		printf(p.stdout, "no models\n")
		return exitOK
	}
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	printf(w, "MODEL\tVERSION\tSTATE\tWORKERS\tWAITING\tBATCH\tMEMORY\tURL\n")
	for _, d := range all {
		printf(w, "%s\t%s\t%s\t%d/%d\t%d/%d\t%d\t%s\t%s\n", printable(d.Name), versionText(d), d.Summary(), d.Ready(), len(d.Workers), d.Queue.Pending,
			d.Queue.Pending+d.Queue.Remaining, d.BatchSize, bytesText(d.Memory()), printable(d.URL))
	}
	if status := p.flush(prog, w); status != exitOK {
		return status
	}
	for _, d := range all {
		if d.Reason != "" && d.Summary() != "idle" {
			printf(p.stdout, "\n%s %s, %s: %s\n", printable(d.Name), printable(d.Version), d.Summary(), printable(d.Reason))
		}
	}
	return exitOK
}

// everything gives the descriptions of all versions of all models.
func everything(ctx context.Context, c *client.Client) ([]json.RawMessage, error) {
	names, err := c.Names(ctx)
	if err != nil {
		return nil, err
	}
	raw := []json.RawMessage{}
	for _, name := range names {
		versions, err := c.Describe(ctx, name, "all")
		var gone *client.RefusedError
		if errors.As(err, &gone) && gone.Kind == "ModelNotFoundException" {
			continue // unregistered meanwhile, or a name with a slash, which no URL can name
		}
		if err != nil {
			return nil, err
		}
		raw = append(raw, versions...)
	}
	return raw, nil
}

// decode reads descriptions, and asks which versions are the default ones where there is a choice.
func (p *program) decode(ctx context.Context, c *client.Client, raw []json.RawMessage) ([]client.Description, error) {
	all := make([]client.Description, len(raw))
	versions := map[string]int{}
	for i := range raw {
		if err := json.Unmarshal(raw[i], &all[i]); err != nil {
			return nil, fmt.Errorf("the server's description cannot be read: %w", err)
		}
		versions[all[i].Name]++
	}
	standard := map[string]string{}
	for i := range all {
		d := &all[i]
		if _, asked := standard[d.Name]; !asked && versions[d.Name] > 1 && d.Default == nil {
			version, err := defaultVersion(ctx, c, d.Name)
			if err != nil {
				return nil, err
			}
			standard[d.Name] = version
		}
		if d.Default == nil && standard[d.Name] != "" {
			isDefault := standard[d.Name] == d.Version
			d.Default = &isDefault
		}
	}
	return all, nil
}

func defaultVersion(ctx context.Context, c *client.Client, name string) (string, error) {
	raw, err := c.Describe(ctx, name, "")
	if err != nil || len(raw) == 0 {
		return "", err
	}
	var d client.Description
	if err := json.Unmarshal(raw[0], &d); err != nil {
		return "", fmt.Errorf("the server's description cannot be read: %w", err)
	}
	return d.Version, nil
}

func versionText(d client.Description) string {
	if d.Default != nil && *d.Default {
		return printable(d.Version) + " *"
	}
	return printable(d.Version)
}

// printable keeps names that clients chose from doing something to a terminal or a table.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, s)
}

func bytesText(n int64) string {
	const mega = 1 << 20
	if n == 0 {
		return "-"
	}
	return fmt.Sprintf("%d MiB", (n+mega/2)/mega)
}

// show is `flambeau show`.
func (p *program) show(ctx context.Context, args []string) int {
	const prog = "flambeau show"
	parsed, status := p.parse(&argparse.Command{
		Prog: prog, About: "Show everything about a model: of all its versions, or of the one that is named.", Options: clientOptions(),
		Positional: "MODEL[/VERSION]", Least: 1, Most: 1,
	}, args)
	if parsed == nil {
		return status
	}
	c, err := p.client(parsed)
	if err != nil {
		return p.fail(prog, err)
	}
	name, number, named := strings.Cut(parsed.Rest[0], "/")
	if !named {
		number = "all"
	}
	raw, err := c.Describe(ctx, name, number)
	if err != nil {
		return p.askFailed(prog, err)
	}
	if parsed.Has("--json") {
		return p.printJSON(prog, raw)
	}
	all, err := p.decode(ctx, c, raw)
	if err != nil {
		return p.askFailed(prog, err)
	}
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	for i := range all {
		if i > 0 {
			printf(w, "\n")
		}
		if err := describe(w, &all[i], raw[i]); err != nil {
			return p.fail(prog, err)
		}
	}
	return p.flush(prog, w)
}

// describe writes a version: a head line, the settings as the server has them, and a table of workers.
func describe(w *tabwriter.Writer, d *client.Description, raw json.RawMessage) error {
	printf(w, "%s %s: %s", printable(d.Name), versionText(*d), d.Summary())
	if d.Reason != "" {
		printf(w, " (%s)", printable(d.Reason))
	}
	printf(w, "\n")
	settings, err := inOrder(raw)
	if err != nil {
		return err
	}
	for _, s := range settings {
		switch s.key {
		case "modelName", "modelVersion", "workers", "jobQueueStatus", "state", "reason", "default":
			continue
		}
		printf(w, "  %s\t%s\n", s.key, printable(s.value))
	}
	printf(w, "  waiting\t%d of %d\n", d.Queue.Pending, d.Queue.Pending+d.Queue.Remaining)
	if len(d.Workers) == 0 {
		printf(w, "  no workers\n")
		return nil
	}
	printf(w, "\n  WORKER\tPID\tSTATE\tMEMORY\tRESTARTS\tSTARTED\t\n")
	for _, worker := range d.Workers {
		printf(w, "  %s\t%d\t%s\t%s\t%d\t%s\t%s\n", worker.ID, worker.PID, cmp.Or(worker.State, strings.ToLower(worker.Status)), bytesText(worker.Memory),
			worker.Restarts, worker.Started, printable(worker.Reason))
	}
	return nil
}

// setting is one key of a description.
type setting struct{ key, value string }

// inOrder lists an object's keys in the order of the text.
func inOrder(raw json.RawMessage) ([]setting, error) {
	d := json.NewDecoder(strings.NewReader(string(raw)))
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("the server's description cannot be read: %w", err)
	}
	var all []setting
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("the server's description cannot be read: %w", err)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, fmt.Errorf("the server's description cannot be read: %w", err)
		}
		all = append(all, setting{fmt.Sprint(key), strings.Trim(string(value), `"`)})
	}
	return all, nil
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
			argparse.Option{Names: []string{"--all"}, Help: "Show the defaults, too."},
			argparse.Option{Names: []string{"--json"}, Help: "Print JSON."}),
	}, args)
	if parsed == nil {
		return status
	}
	cfg, err := config.Load(p.source(parsed))
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
