package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/dispatch"
	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/logfiles"
	"github.com/flambeau-serve/flambeau/internal/telemetry"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// measures passes what happens on to the metrics.
type measures struct {
	metrics *telemetry.Metrics
	changed func() // an instance changed its state
	core    *core  // set before the first request

	cancel context.CancelFunc // ends the system's metrics; nil when there are none
	done   chan struct{}      // closed when they have ended
}

var _ observer = (*measures)(nil)

// metricsMode says where the metrics of a configuration go, and whether those of handlers are kept that nobody has listed; torchserve says whose command started the server.
func metricsMode(cfg *config.Config, torchserve bool) (mode telemetry.Mode, detect bool) {
	switch {
	case cfg.MetricsMode != settingAuto:
		return telemetry.Mode(cfg.MetricsMode), cfg.MetricsAutoDetect
	case torchserve:
		return telemetry.ModeLog, cfg.MetricsAutoDetect
	default:
		unsaid := cfg.MetricsConfig == "" && cfg.Value("model_metrics_auto_detect").Origin.Kind == config.FromDefault
		return telemetry.ModePrometheus, cfg.MetricsAutoDetect || unsaid
	}
}

// newMeasures makes the metrics of a configuration, and begins to measure the system.
func newMeasures(ctx context.Context, cfg *config.Config, torchserve bool, logs *logfiles.Logs, changed func()) (*measures, error) {
	m := &measures{changed: changed}
	mode, detect := metricsMode(cfg, torchserve)
	opts := telemetry.Options{
		Mode: mode, AutoDetect: detect, Logger: logs.Server(), State: m.state,
		Store:     m.store,
		ServerLog: func(line string) { logs.ServerMetric(time.Now(), line) },
		ModelLog:  func(line string) { logs.ModelMetric(time.Now(), line) },
	}
	if cfg.MetricsConfig != "" {
		text, err := os.ReadFile(cfg.MetricsConfig)
		if err != nil {
			return nil, fmt.Errorf("metrics_config: %w", err)
		}
		if opts.Catalog, err = telemetry.ParseCatalog(text); err != nil {
			return nil, fmt.Errorf("metrics_config %s: %w", cfg.MetricsConfig, err)
		}
	}
	var err error
	if m.metrics, err = telemetry.New(opts); err != nil {
		return nil, fmt.Errorf("the metrics: %w", err)
	}
	if cfg.SystemMetrics {
		system, cancel := context.WithCancel(ctx)
		m.cancel, m.done = cancel, make(chan struct{})
		go func() {
			defer close(m.done)
			if err := m.metrics.CollectSystem(system, telemetry.SystemOptions{Interval: cfg.MetricsInterval}); err != nil {
				logs.Server().Error("no system metrics", "reason", err.Error())
			}
		}()
	}
	return m, nil
}

// stop ends the measuring of the system.
func (m *measures) stop() {
	if m.cancel != nil {
		m.cancel()
		<-m.done
	}
}

// state tells how the models are at this moment.
func (m *measures) state() []telemetry.ModelState {
	if m.core == nil {
		return nil
	}
	all, _ := startedState(m.core.models)
	states := make([]telemetry.ModelState, 0, len(all))
	for _, d := range all {
		waiting, capacity, err := m.core.dispatcher.Queue(d.Ref)
		if err != nil {
			continue // it was unregistered in this moment
		}
		s := telemetry.ModelState{Ref: d.Ref, Waiting: waiting, Capacity: capacity, Workers: map[string]int{}}
		for _, w := range d.Workers {
			s.Workers[w.State]++
		}
		states = append(states, s)
	}
	return states
}

// Answered implements observer.
func (m *measures) Answered(o dispatch.Observation) {
	asked := o.Ref
	if asked.Version != "" {
		asked = o.Taken // a label counts as the version that it leads to
	}
	m.metrics.Predicted(telemetry.Prediction{ID: o.ID, Ref: asked, Taken: o.Taken, Queue: o.Times.Queued, Backend: o.Times.Ran, Total: o.Total, Err: o.Err})
}

// WorkerReady implements observer.
func (m *measures) WorkerReady(ref infer.ModelRef, workerID int, took time.Duration) {
	m.metrics.WorkerLoaded(ref, workerID, took)
}

// InstanceChanged implements observer.
func (m *measures) InstanceChanged(e rollout.Event) {
	switch {
	case e.To == rollout.Failed:
		m.metrics.WorkerFailed(e.Ref, fault.KindOf(e.Cause).String())
	case e.To == rollout.Stopped && e.From == rollout.Stopping:
		m.metrics.WorkerGone(e.Ref, e.WorkerID)
	}
	m.changed()
}

// store counts the archives of the model store.
func (m *measures) store() map[string]int {
	if m.core == nil || m.core.deployer == nil {
		return nil
	}
	return storeStates(m.core.deployer)
}

// Changed implements observer.
func (m *measures) Changed(c rollout.Change) {
	change := telemetry.ModelChange{Ref: c.Ref, At: c.At, Took: c.Took}
	switch c.Kind {
	case rollout.ChangeRegistered:
		change.Generation = c.Generation
	case rollout.ChangeSwapped:
		change.Swap, change.Generation = telemetry.SwapDone, c.Generation
	case rollout.ChangeSwapFailed:
		change.Swap = telemetry.SwapFailed
	case rollout.ChangeSuperseded:
		change.Swap = telemetry.SwapSuperseded
	case rollout.ChangeRefused:
		change.Swap = telemetry.SwapRefused
	case rollout.ChangeRecycled, rollout.ChangeRecycleFailed: // its workers change, and the version does not
		m.metrics.WorkerRecycled(c.Ref, c.Kind == rollout.ChangeRecycled)
		return
	case rollout.ChangeScaled:
		if c.Actor.Who == "autoscale" {
			m.metrics.Autoscaled(c.Ref, c.Workers > c.Before)
		}
	case rollout.ChangeDefault, rollout.ChangeRolledBack, rollout.ChangeTuned:
	case rollout.ChangeUpdating, rollout.ChangeDrained, rollout.ChangeWorkerFailed: // something else says what came of it
		return
	case rollout.ChangeUnregistered, rollout.ChangeTraffic: // the first has no metrics any more, the second is of no version
		return
	}
	m.metrics.ModelChanged(change)
}

// WorkerLine implements observer.
func (m *measures) WorkerLine(line backend.OutputLine) bool {
	return line.Stream == backend.Stdout && m.metrics.ModelLine(line.Text)
}

// Panicked implements observer.
func (m *measures) Panicked(part telemetry.Part) { m.metrics.Panicked(part) }

// Retired implements observer.
func (m *measures) Retired(ref infer.ModelRef) {
	m.metrics.Forget(ref)
	if _, err := m.core.models.Resolve(infer.ModelRef{Name: ref.Name}); err != nil { // it was the last version
		m.metrics.Forget(infer.ModelRef{Name: ref.Name})
	}
}
