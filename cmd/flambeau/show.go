package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/argparse"
	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/client"
	"github.com/flambeau-serve/flambeau/internal/malformed"
)

// show is `flambeau show`.
func (p *program) show(ctx context.Context, args []string) int {
	const prog = "flambeau show"
	parsed, status := p.parse(&argparse.Command{
		Prog: prog, Positional: "MODEL[/VERSION]", Least: 1, Most: 1,
		Options: clientOptions(argparse.Option{Names: []string{"--crashes"}, Help: "Show the last crashes of its workers instead, the latest first: how, when, with which requests, and their last words."}),
		About:   "Show everything about a model: of all its versions, or of the one that is named by its number or a label.",
	}, args)
	if parsed == nil {
		return status
	}
	name, number, named := strings.Cut(parsed.Rest[0], "/")
	if parsed.Has("--crashes") {
		return p.showCrashes(ctx, prog, parsed, name, number)
	}
	c, err := p.client(parsed, askLimit)
	if err != nil {
		return p.fail(prog, err)
	}
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
		if err := p.describe(w, &all[i], raw[i]); err != nil {
			return p.fail(prog, err)
		}
	}
	return p.flush(prog, w)
}

// describe writes a version: a head line, its rollout, the settings as the server has them, and a table of workers.
func (p *program) describe(w *tabwriter.Writer, d *client.Description, raw json.RawMessage) error {
	printf(w, "%s %s: %s", printable(d.Name), starred(d.Version, d.Default != nil && *d.Default), printable(d.Summary()))
	if d.Reason != "" {
		printf(w, " (%s)", oneLine(d.Reason))
	}
	printf(w, "\n")
	p.rollout(w, d)
	settings, err := inOrder(raw)
	if err != nil {
		return err
	}
	for _, s := range settings {
		switch s.key {
		case "modelName", "modelVersion", "workers", "jobQueueStatus", "state", "reason", "default":
			continue
		case "generation", "digest", "source", "since", "swap", "labels", "weight", "updating", "lastFailure", "refused", "steps":
			continue // rollout has written them
		}
		printf(w, "  %s\t%s\n", printable(s.key), printable(s.value))
	}
	printf(w, "  waiting\t%d of %d\n", d.Queue.Pending, d.Queue.Pending+d.Queue.Remaining)
	if len(d.Workers) == 0 {
		printf(w, "  no workers\n")
		return nil
	}
	printf(w, "\n  WORKER\tPID\tSTATE\tMEMORY\tRESTARTS\tSTARTED\t\n")
	for _, worker := range d.Workers {
		printf(w, "  %s\t%d\t%s\t%s\t%d\t%s\t%s\n", printable(worker.ID), worker.PID, printable(cmp.Or(worker.State, strings.ToLower(worker.Status))),
			bytesText(worker.Memory), worker.Restarts, printable(worker.Started), oneLine(worker.Reason))
	}
	return nil
}

// rollout writes what serves, how it came there, and what is to follow it. A TorchServe knows nothing of it.
func (p *program) rollout(w *tabwriter.Writer, d *client.Description) {
	if d.Generation > 0 {
		printf(w, "  generation\t%d", d.Generation)
		if !d.Since.IsZero() {
			printf(w, ", serves since %s", p.ago(d.Since))
		}
		printf(w, "\n  traffic\t%s of what names no version", percentText(d.Weight))
		if len(d.Labels) > 0 {
			printf(w, "; labels: %s", printable(strings.Join(d.Labels, ", ")))
		}
		printf(w, "\n")
	}
	lines := []setting{{"source", d.Source}, {"digest", d.Digest}, {"swap", d.Swap}, {"last load", stepsText(d.Steps)}}
	if u := d.Updating; u != nil {
		lines = append(lines, setting{"updating", fmt.Sprintf("generation %d (%s) is %s, since %s", u.Generation, shortDigest(u.Digest), u.State, p.ago(u.Since))})
	}
	if r := d.Refused; r != nil {
		lines = append(lines, setting{"refused lately", fmt.Sprintf("%d, the last one %s: %s", r.Count, p.ago(r.At), r.Reason)})
	}
	if f := d.LastFailure; f != nil {
		lines = append(lines, setting{"last failure", fmt.Sprintf("%s, at the %s try%s: %s", p.ago(f.At), ordinal(f.Attempts), ofDigest(f.Digest), f.Reason)})
	}
	for _, l := range lines {
		if l.value != "" {
			printf(w, "  %s\t%s\n", l.key, oneLine(l.value))
		}
	}
}

// stepsText is a load in a line: its parts, and their sum.
func stepsText(steps []client.Step) string {
	var parts []string
	var sum float64
	for _, s := range steps {
		parts = append(parts, s.Name+" "+millisText(s.TookMS))
		sum += s.TookMS
	}
	if len(parts) == 0 {
		return ""
	}
	return strings.Join(parts, ", ") + "; " + millisText(sum) + " in all"
}

func percentText(percent float64) string { return fmt.Sprintf("%g %%", percent) }

// ofDigest names the archive of a failure, which has no digest when it could not be read.
func ofDigest(digest string) string {
	if digest == "" {
		return ""
	}
	return " of " + shortDigest(digest)
}

// ordinal is 1st, 2nd, 3rd and so on.
func ordinal(n int) string {
	suffix := "th"
	if tens := n / 10 % 10; tens != 1 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return strconv.Itoa(n) + suffix
}

// setting is one key of a description.
type setting struct{ key, value string }

// inOrder lists an object's keys in the order of the text.
func inOrder(raw json.RawMessage) ([]setting, error) {
	d := json.NewDecoder(strings.NewReader(string(raw)))
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("the server's description cannot be read: %s", malformed.JSON(err))
	}
	var all []setting
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("the server's description cannot be read: %s", malformed.JSON(err))
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, fmt.Errorf("the server's description cannot be read: %s", malformed.JSON(err))
		}
		all = append(all, setting{fmt.Sprint(key), strings.Trim(string(value), `"`)})
	}
	return all, nil
}
