package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"

	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/argparse"
	"github.com/flambeau-serve/flambeau/internal/malformed"
)

// tune is `flambeau tune`.
func (p *program) tune(ctx context.Context, args []string) int {
	const prog = "flambeau tune"
	parsed, status := p.parse(&argparse.Command{
		Prog: prog, Positional: "MODEL", Least: 1, Most: 1,
		About: "Show the batch size and delay that were found for a model's latency goal (slo in model-config.yaml). flambeau events tells each step and why. " +
			"With sequenceBatching each worker has its own, and the smallest of them are what is kept.",
		Options: clientOptions(
			argparse.Option{Names: []string{"--version"}, Kind: argparse.Value, Metavar: "V", Help: "The version; not given: the default one."},
			argparse.Option{Names: []string{"--print"}, Help: "Print only the lines of model-config.yaml that keep them for good."},
			argparse.Option{Names: []string{"--freeze"}, Help: "Keep them as they are, until the server ends or the model's settings change."},
			argparse.Option{Names: []string{"--release"}, Help: "Let them move again."},
		),
	}, args)
	if parsed == nil {
		return status
	}
	if parsed.Has("--freeze") && parsed.Has("--release") {
		printf(p.stderr, "%s: --freeze and --release exclude each other\n", prog)
		return exitUsage
	}
	c, err := p.client(parsed, askLimit)
	if err != nil {
		return p.fail(prog, err)
	}
	method, query := http.MethodGet, url.Values{}
	if parsed.Has("--version") {
		query.Set("version", parsed.Get("--version"))
	}
	if parsed.Has("--freeze") || parsed.Has("--release") {
		method = http.MethodPut
		query.Set("frozen", strconv.FormatBool(parsed.Has("--freeze")))
	}
	raw, err := c.Ask(ctx, method, query, nil, "admin", "models", parsed.Rest[0], "tuning")
	if err != nil {
		return p.askFailed(prog, err)
	}
	if parsed.Has("--json") {
		return p.printObject(prog, raw)
	}
	var t tuning
	if err := json.Unmarshal(raw, &t); err != nil {
		return p.fail(prog, fmt.Errorf("the server's answer cannot be read: %s", malformed.JSON(err)))
	}
	if parsed.Has("--print") {
		printf(p.stdout, "%s", t.Config)
		return exitOK
	}
	moves := "moves"
	if t.Frozen {
		moves = "frozen"
	}
	printf(p.stdout, "%s %s, p99 of %g ms (%s)\n", printable(t.Model), printable(t.Version), t.P99Ms, moves)
	printf(p.stdout, "batch size  %d of at most %d\n", t.Now.BatchSize, t.Bounds.BatchSize)
	printf(p.stdout, "delay       %g ms of at most %g ms\n", t.Now.MaxBatchDelay, t.Bounds.MaxBatchDelay)
	return p.printTuned(prog, t.Workers)
}

// tuning is the server's answer about the batches of a version.
type tuning struct {
	Model, Version, Config string
	P99Ms                  float64
	Now, Bounds            tunedLimits
	Frozen                 bool
	Workers                []tunedWorker
}

type tunedLimits struct {
	BatchSize     int
	MaxBatchDelay float64
}

type tunedWorker struct {
	Worker int
	tunedLimits
}

// printTuned shows what each worker has, where they are tuned one by one.
func (p *program) printTuned(prog string, workers []tunedWorker) int {
	if len(workers) == 0 {
		return exitOK
	}
	printf(p.stdout, "\nThese are the smallest of its workers, which are tuned one by one:\n")
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	printf(w, "WORKER\tBATCH SIZE\tDELAY\n")
	for i := range workers {
		printf(w, "%d\t%d\t%g ms\n", workers[i].Worker, workers[i].BatchSize, workers[i].MaxBatchDelay)
	}
	return p.flush(prog, w)
}
