package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/argparse"
	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/client"
	"github.com/flambeau-serve/flambeau/internal/malformed"
)

// traffic is `flambeau traffic`.
func (p *program) traffic(ctx context.Context, args []string) int {
	const prog = "flambeau traffic"
	parsed, status := p.parse(&argparse.Command{
		Prog: prog, Positional: "MODEL", Least: 1, Most: 1,
		About: "Show or change how requests find the versions of a model: labels, which may be asked for in the place of a version; and weights, the percents of " +
			"the requests that name no version. What is not weighed goes to the default version.",
		Options: clientOptions(
			argparse.Option{Names: []string{"--clear"}, Help: "Forget all that was set, before the rest of this command line."},
			argparse.Option{Names: []string{"--label"}, Kind: argparse.Each, Metavar: "LABEL=VERSION", Help: "Set a label; LABEL= removes it, and its weight. May be given again."},
			argparse.Option{Names: []string{"--weight"}, Kind: argparse.Each, Metavar: "VERSION=PERCENT", Help: "Set the weight of a version or a label; 0 removes it. May be given again."},
			argparse.Option{Names: []string{"--header"}, Kind: argparse.Value, Metavar: "NAME", Help: "Request header that chooses a version or a label. Not set: x-flambeau-version."},
			argparse.Option{
				Names: []string{"--sticky"}, Kind: argparse.Value, Metavar: "WHERE",
				Help: "Where the key of a user is, who is then to stay with a version: cookie:NAME or header:NAME; \"none\" for nowhere.",
			},
		),
	}, args)
	if parsed == nil {
		return status
	}
	if err := checkPairs(parsed); err != nil {
		p.fail(prog, err)
		return exitUsage
	}
	c, err := p.client(parsed, askLimit)
	if err != nil {
		return p.fail(prog, err)
	}
	name := parsed.Rest[0]
	at := []string{"admin", "models", name, "traffic"}
	raw, err := c.Ask(ctx, http.MethodGet, nil, nil, at...)
	if err != nil {
		return p.askFailed(prog, err)
	}
	set, err := readTraffic(raw)
	if err != nil {
		return p.fail(prog, err)
	}
	if changeTraffic(&set, parsed) {
		if raw, err = c.Ask(ctx, http.MethodPut, nil, set, at...); err != nil {
			return p.askFailed(prog, err)
		}
		if set, err = readTraffic(raw); err != nil {
			return p.fail(prog, err)
		}
	}
	if parsed.Has("--json") {
		return p.printObject(prog, raw)
	}
	return p.printTraffic(prog, name, &set)
}

func readTraffic(raw json.RawMessage) (client.Traffic, error) {
	t := client.Traffic{}
	if err := json.Unmarshal(raw, &t); err != nil {
		return t, fmt.Errorf("the server's answer cannot be read: %s", malformed.JSON(err))
	}
	if t.Labels == nil {
		t.Labels = map[string]string{}
	}
	if t.Weights == nil {
		t.Weights = map[string]float64{}
	}
	return t, nil
}

// checkPairs checks the form of the options before anything is asked.
func checkPairs(args *argparse.Args) error {
	for _, pair := range args.All("--label") {
		if label, _, ok := strings.Cut(pair, "="); !ok || label == "" {
			return fmt.Errorf("--label is %q: it has to be LABEL=VERSION, like canary=2.0", pair)
		}
	}
	for _, pair := range args.All("--weight") {
		target, percent, ok := strings.Cut(pair, "=")
		if _, err := strconv.ParseFloat(percent, 64); !ok || target == "" || err != nil {
			return fmt.Errorf("--weight is %q: it has to be VERSION=PERCENT or LABEL=PERCENT, like canary=10", pair)
		}
	}
	return nil
}

// changeTraffic does what the options say, and tells whether they say anything.
func changeTraffic(t *client.Traffic, args *argparse.Args) bool {
	changed := false
	if args.Has("--clear") {
		*t, changed = client.Traffic{Labels: map[string]string{}, Weights: map[string]float64{}}, true
	}
	for _, pair := range args.All("--label") {
		label, version, _ := strings.Cut(pair, "=")
		t.Labels[label], changed = version, true
		if version == "" {
			delete(t.Labels, label)
			delete(t.Weights, label)
		}
	}
	for _, pair := range args.All("--weight") {
		target, text, _ := strings.Cut(pair, "=")
		percent, _ := strconv.ParseFloat(text, 64) // checkPairs has done it
		t.Weights[target], changed = percent, true
		if percent == 0 {
			delete(t.Weights, target)
		}
	}
	if args.Has("--header") {
		t.Header, changed = args.Get("--header"), true
	}
	if args.Has("--sticky") {
		t.Sticky, changed = args.Get("--sticky"), true
		if t.Sticky == "none" {
			t.Sticky = ""
		}
	}
	return changed
}

func (p *program) printTraffic(prog, name string, t *client.Traffic) int {
	if len(t.Labels)+len(t.Weights) == 0 && t.Header == "" && t.Sticky == "" {
		printf(p.stdout, "%s: all requests that name no version go to the default version\n", printable(name))
		return exitOK
	}
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	for _, label := range slices.Sorted(maps.Keys(t.Labels)) {
		printf(w, "label\t%s\t%s\n", printable(label), printable(t.Labels[label]))
	}
	rest := 100.0
	for _, target := range slices.Sorted(maps.Keys(t.Weights)) {
		printf(w, "weight\t%s\t%s\n", printable(target), percentText(t.Weights[target]))
		rest -= t.Weights[target]
	}
	printf(w, "weight\tthe default version\t%s\n", percentText(max(float64(int(rest*1000+0.5))/1000, 0)))
	printf(w, "header\t%s\t\n", printable(cmp.Or(t.Header, "x-flambeau-version")))
	printf(w, "sticky\t%s\t\n", printable(cmp.Or(t.Sticky, "none: by chance")))
	return p.flush(prog, w)
}
