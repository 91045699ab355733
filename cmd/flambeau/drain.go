package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/httpapi"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// drain says whether the server is to get no more traffic, while it still serves what comes, and counts the requests that are under way.
type drain struct {
	open   atomic.Int64
	ending chan struct{} // closed when the server begins to end

	mu      sync.Mutex // guards what follows
	since   time.Time  // zero while it is not draining
	forever bool       // the server ends
}

func newDrain() *drain { return &drain{ending: make(chan struct{})} }

var _ httpapi.Drain = (*drain)(nil)

// Begin implements httpapi.Drain.
func (d *drain) Begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.begin()
}

// begin does so; mu is held.
func (d *drain) begin() {
	if d.since.IsZero() {
		d.since = time.Now()
	}
}

// beginForGood drains a server that ends: it is not ready ever again.
func (d *drain) beginForGood() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.begin()
	if !d.forever {
		d.forever = true
		close(d.ending)
	}
}

// End implements httpapi.Drain.
func (d *drain) End() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.forever {
		f := fault.New(fault.Conflict, "The server was asked to end, and cannot be made ready again.", nil)
		f.Hint = "Send requests to another server, or to this one once it was started again."
		return f
	}
	d.since = time.Time{}
	return nil
}

// Ending implements httpapi.Drain.
func (d *drain) Ending() <-chan struct{} { return d.ending }

// State implements httpapi.Drain.
func (d *drain) State() (since time.Time, open int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.since, d.open.Load()
}

// on says whether the server is to get no more traffic.
func (d *drain) on() bool {
	since, _ := d.State()
	return !since.IsZero()
}

// drainedModels are models that are not ready while the server drains.
type drainedModels struct {
	httpapi.Models

	drain *drain
}

// Healthy implements httpapi.Models.
func (m drainedModels) Healthy() bool { return !m.drain.on() && m.Models.Healthy() }

// countedPredictor counts the requests that are under way.
type countedPredictor struct {
	httpapi.Predictor

	open *atomic.Int64
}

// Submit implements httpapi.Predictor.
func (p countedPredictor) Submit(ctx context.Context, ref infer.ModelRef, item infer.Item) (infer.Result, error) {
	p.open.Add(1)
	defer p.open.Add(-1)
	return p.Predictor.Submit(ctx, ref, item) //nolint:wrapcheck // the predictor's faults are the client's
}

// progressEvery is how often the log says what a server that ends still waits for.
const progressEvery = 5 * time.Second

// accept keeps the server serving for a while after it was asked to end, so that whoever spreads the traffic notices that it is not ready any more.
func (s *server) accept(ctx context.Context, log *slog.Logger) {
	s.drain.beginForGood()
	if s.cfg.DrainAccept <= 0 || s.stopped == nil {
		return
	}
	log.Info("not ready any more, requests are still taken", "drain_accept_for", s.cfg.DrainAccept)
	timer := time.NewTimer(s.cfg.DrainAccept)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// countdown writes how many requests are left to the log, until ctx ends.
func (s *server) countdown(ctx context.Context, log *slog.Logger) {
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			log.Info("still waiting for answers", "requests", s.drain.open.Load())
		case <-ctx.Done():
			return
		}
	}
}

// errAskedTwice ends the context of secondSignal.
var errAskedTwice = errors.New("the server was asked to end a second time")

// answerAll refuses what arrives, and lets the requests that wait and run be answered until ctx ends. The error says how many were not.
func (s *server) answerAll(ctx context.Context) error {
	limit, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	left := make(chan int64, 1)
	stop := context.AfterFunc(ctx, func() {
		left <- s.drain.open.Load() // before they are answered with errors
		end()
	})
	defer stop()
	if s.core.dispatcher.Drain(limit) == nil {
		return nil
	}
	if n := <-left; n > 0 {
		return fmt.Errorf("requests were cut off: %d (%w)", n, context.Cause(ctx))
	}
	return nil
}

// secondSignal gives a context that ends when the server is asked to stop once more: then nothing is waited for. One more signal ends the process. The
// function must be called at the end.
func secondSignal(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, stopSignals()...)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-signals:
			cancel(errAskedTwice)
		case <-ctx.Done():
		}
		signal.Stop(signals)
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}
