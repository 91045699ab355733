package main

import (
	"context"

	"github.com/flambeau-serve/flambeau/frontend/batch"
	"github.com/flambeau-serve/flambeau/frontend/dispatch"
	"github.com/flambeau-serve/flambeau/frontend/httpapi"
	"github.com/flambeau-serve/flambeau/frontend/poison"
	"github.com/flambeau-serve/flambeau/frontend/recent"
	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// newPoison makes the memory of requests that end workers. Its settings are in seconds; 0 is for none.
func newPoison(cfg *config.Config) *poison.Book {
	keep := cfg.PoisonMemory
	if keep == 0 {
		keep = -1
	}
	return poison.New(poison.Options{Keep: keep, Lift: "run `flambeau poison MODEL --lift DIGEST`"})
}

// newHistory makes the memory of the latest requests; nil when it is off.
func newHistory(cfg *config.Config) *recent.Book {
	if !cfg.RequestHistory {
		return nil
	}
	return recent.New(recent.Options{})
}

// note remembers an answered request.
func note(history *recent.Book, o *dispatch.Observation) {
	if history == nil {
		return
	}
	r := recent.Request{
		ID: o.ID, Model: o.Taken.Name, Version: o.Taken.Version, Arrived: o.Begun, Total: o.Total, Waited: o.Times.Queued - o.Times.Gathered,
		Gathered: o.Times.Gathered, Ran: o.Times.Ran, Batch: pastBatch(o.Times.Run), Behind: pastBatch(o.Times.Behind), BytesIn: o.BytesIn, BytesOut: o.BytesOut,
		Status: o.Status,
	}
	if o.Err != nil {
		r.Reason = fault.KindOf(o.Err).String()
	}
	history.Note(&r)
}

func pastBatch(e *batch.Execution) *recent.Batch {
	if e == nil {
		return nil
	}
	return &recent.Batch{Number: e.Number, Requests: e.Requests, Rows: e.Rows, Worker: e.Worker, PID: e.PID, Begun: e.Begun, Ran: e.Ran}
}

// forget drops what is remembered of a version that was removed, and of its model if that was the last one.
func (c *core) forget(v *rollout.Version) {
	ref := v.Ref()
	c.poison.Forget(ref)
	if c.history == nil {
		return
	}
	if all, err := c.models.DescribeAll(ref.Name); err != nil || len(all) == 0 {
		c.history.Forget(ref.Name)
	}
}

// poisonAdmin shows the memory of requests that end workers to the API.
type poisonAdmin struct {
	models *rollout.Manager
	book   *poison.Book
}

var _ httpapi.Poison = poisonAdmin{}

// List implements httpapi.Poison.
func (p poisonAdmin) List(name string) ([]httpapi.Poisoned, error) {
	all, err := p.models.DescribeAll(name)
	if err != nil {
		return nil, err //nolint:wrapcheck // the model store's words are the client's
	}
	var list []httpapi.Poisoned
	for i := range all {
		for _, e := range p.book.List(all[i].Ref) {
			list = append(list, httpapi.Poisoned{Version: all[i].Ref.Version, Entry: e})
		}
	}
	return list, nil
}

// Lift implements httpapi.Poison.
func (p poisonAdmin) Lift(_ context.Context, name, digest string) (int, error) {
	all, err := p.models.DescribeAll(name)
	if err != nil {
		return 0, err //nolint:wrapcheck // the same
	}
	n := 0
	for i := range all {
		ref := infer.ModelRef{Name: name, Version: all[i].Ref.Version}
		n += p.book.Lift(ref, digest)
	}
	return n, nil
}
