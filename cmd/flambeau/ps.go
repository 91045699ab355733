package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/argparse"
	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/client"
	"github.com/flambeau-serve/flambeau/internal/malformed"
)

// ps is `flambeau ps`.
func (p *program) ps(ctx context.Context, args []string) int {
	const prog = "flambeau ps"
	parsed, status := p.parse(&argparse.Command{
		Prog: prog, Options: clientOptions(),
		About: "List the models of a server: their versions (* is the default one), their workers (ready/all), the queue (waiting/room), the 99th " +
			"percentile of the time to an answer, memory, since when they serve, and why something is not as it should be.",
	}, args)
	if parsed == nil {
		return status
	}
	return printList(ctx, p, parsed, listing[client.Model]{prog: prog, ask: p.models, none: "no models", table: p.modelTable})
}

func (p *program) modelTable(w *tabwriter.Writer, models []client.Model) {
	printf(w, "NAME\tVERSION\tSTATE\tWORKERS\tQUEUE\tBATCH\tP99\tMEM\tSINCE\tREASON\n")
	for i := range models {
		m := &models[i]
		p99 := "-"
		if m.P99 != nil {
			p99 = millisText(*m.P99)
		}
		printf(w, "%s\t%s\t%s\t%d/%d\t%d/%d\t%d\t%s\t%s\t%s\t%s\n", printable(m.Name), starred(m.Version, m.Default), printable(m.State), m.Workers.Ready,
			m.Workers.Total, m.Queue.Waiting, m.Queue.Limit, m.BatchSize, p99, bytesText(m.Memory), p.ago(m.Since), p.reason(m))
	}
}

// reason is the last column of ps: what is wrong, else what goes on.
func (p *program) reason(m *client.Model) string {
	switch {
	case m.Reason != "":
		return oneLine(m.Reason)
	case m.Updating != nil:
		return fmt.Sprintf("generation %d is %s, for %s", m.Updating.Generation, printable(m.Updating.State), spanText(p.clock().Sub(m.Updating.Since)))
	case m.LastFailure != nil:
		return "the update of " + p.ago(m.LastFailure.At) + " failed: " + oneLine(m.LastFailure.Reason)
	case m.Refused != nil:
		return fmt.Sprintf("refused %d lately, the last one %s: %s", m.Refused.Count, p.ago(m.Refused.At), printable(m.Refused.Reason))
	}
	return "-"
}

func starred(version string, isDefault bool) string {
	if isDefault {
		return printable(version) + " *"
	}
	return printable(version)
}

// models gives all the versions of all models, and the server's JSON of them: from /admin, or as a TorchServe tells it.
func (p *program) models(ctx context.Context, c *client.Client) ([]client.Model, []json.RawMessage, error) {
	models, raw, err := listAt[client.Model]("models", nil, "admin", "models")(ctx, c)
	if refused, ok := errors.AsType[*client.RefusedError](err); ok && refused.Absent() {
		return p.describedModels(ctx, c)
	}
	return models, raw, err
}

// describedModels makes of TorchServe's descriptions what /admin/models has. A version serves there since its oldest worker was started.
func (p *program) describedModels(ctx context.Context, c *client.Client) ([]client.Model, []json.RawMessage, error) {
	raw, err := everything(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	all, err := p.decode(ctx, c, raw)
	if err != nil {
		return nil, nil, err
	}
	models := make([]client.Model, len(all))
	for i := range all {
		d, m := &all[i], &models[i]
		m.Name, m.Version, m.Default, m.State = d.Name, d.Version, d.Default != nil && *d.Default, d.Summary()
		m.Workers.Ready, m.Workers.Total = d.Ready(), len(d.Workers)
		m.Queue.Waiting, m.Queue.Limit = d.Queue.Pending, d.Queue.Pending+d.Queue.Remaining
		m.BatchSize, m.Memory, m.Reason = d.BatchSize, d.Memory(), d.Reason
		for _, w := range d.Workers {
			if begun, err := time.Parse(time.RFC3339, w.Started); err == nil && w.Status == "READY" && (m.Since.IsZero() || begun.Before(m.Since)) {
				m.Since = begun
			}
		}
	}
	return models, raw, nil
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
			return nil, fmt.Errorf("the server's description cannot be read: %s", malformed.JSON(err))
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
		return "", fmt.Errorf("the server's description cannot be read: %s", malformed.JSON(err))
	}
	return d.Version, nil
}
