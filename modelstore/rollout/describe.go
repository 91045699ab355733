package rollout

import (
	"slices"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/internal/redact"
)

func (v *Version) describe(isDefault bool) Description {
	v.mu.Lock()
	g := v.current.Load()
	workers := slices.Clone(g.workers)
	minWorkers, maxWorkers, atStart, closing := v.min, v.max, v.atStart, v.closing
	next, failure, info := v.next, v.failure, g.info
	zeroable := g.zeroable()
	d := Description{Since: g.since, Steps: g.steps(), Handler: v.spec.Handler}
	v.mu.Unlock()
	s := &g.settings
	d.Ref, d.URL, d.Address = v.ref, redact.URL(g.url), g.url
	d.Runtime, d.MinWorkers, d.MaxWorkers, d.BatchSize = s.runtime, minWorkers, maxWorkers, s.batchSize
	d.Runs = s.handler
	d.MaxBatchDelay, d.ResponseTimeout, d.StartupTimeout = s.maxBatchDelay, s.responseTimeout, s.startupTimeout
	d.MaxRetryTimeout, d.ClientTimeout = s.maxRetry, s.clientTimeout
	d.ParallelType, d.ParallelLevel, d.DeviceType, d.DeviceIDs = s.parallelType, s.parallelLevel, s.deviceType, s.deviceIDs
	d.ContinuousBatching, d.Stateful, d.UseJobTicket, d.UseVenv = s.continuousBatching, s.sequenceBatching, s.useJobTicket, s.useVenv
	d.SequenceMaxIdle, d.SequenceTimeout = s.sequenceMaxIdle, s.sequenceTimeout
	d.MaxNumSequence, d.MaxSequenceJobQueue = s.maxNumSequence, s.maxSequenceJobQueue
	d.QueueSize, d.Default, d.LoadedAtStartup = s.queueSize, isDefault, atStart
	d.Generation, d.Digest, d.Source, d.Swap = g.number, g.archive.Digest, g.source(), s.swap
	d.Workers, d.Ports, d.Features = describeAll(workers), info.Description, info.Features
	if g.archive.Triton != nil {
		d.Triton = g.archive.Triton.JSON
	}
	d.State, d.Reason = summary(d.Workers, minWorkers, closing)
	if d.Dormant = d.State == stateIdle && zeroable; d.Dormant {
		d.Reason = "scaled to zero after " + spanText(s.keepAlive) + " without a request (keepAlive); the next one starts a worker"
	}
	if next != nil {
		d.Updating = next.update()
		if d.State == stateServing {
			d.State = "updating"
		}
	}
	if failure != nil {
		d.Failed(*failure)
	}
	return d
}

// Failed makes a failure the last one of the version, also in words, unless a later one is known.
func (d *Description) Failed(f Failure) {
	if before := d.LastFailure; before != nil {
		if before.At.After(f.At) {
			return
		}
		if d.Reason == before.text() {
			d.Reason = ""
		}
	}
	d.LastFailure = &f
	if d.Reason == "" {
		d.Reason = f.text()
	}
}

// text says for people what serves after the failure.
func (f *Failure) text() string {
	return "the last change failed and the one before it serves: " + f.Reason
}

// spanText is a time without the units that are zero at its end: 5m, not 5m0s.
func spanText(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func describeAll(workers []*worker) []Worker {
	all := make([]Worker, 0, len(workers))
	for _, w := range workers {
		all = append(all, w.describe())
	}
	return all
}

// update tells about a generation that is being started.
func (g *generation) update() *Update {
	g.version.mu.Lock()
	workers := slices.Clone(g.workers)
	g.version.mu.Unlock()
	u := &Update{Generation: g.number, Digest: g.archive.Digest, Since: g.begun, State: "preparing"}
	slowest := Stopped
	for _, w := range workers {
		if s := w.state(); s < slowest {
			slowest, u.State = s, s.String()
		}
	}
	return u
}

// steps are the parts of the generation's load: those before its workers were started, and the longest time that one of them took for each of the
// others. The version's mu is held.
func (g *generation) steps() []Step {
	all := slices.Clone(g.before)
	longest := map[string]time.Duration{}
	for _, w := range g.workers {
		for _, s := range w.timings() {
			longest[s.Name] = max(longest[s.Name], s.Took)
		}
	}
	for _, name := range []string{stepStart, stepLoad, stepWarmUp} {
		if took, ok := longest[name]; ok {
			all = append(all, Step{name, took})
		}
	}
	return all
}

// The steps of a load.
const (
	stepOpen         = "open"
	stepDependencies = "dependencies"
	stepStart        = "start"
	stepLoad         = "load"
	stepWarmUp       = "warm_up"
)

const (
	stateServing = "serving"
	stateIdle    = "idle"
)

// summary computes the version's state from its workers; it is never stored.
func summary(workers []Worker, minWorkers int, closing bool) (state, reason string) {
	ready, failed := 0, 0
	for _, w := range workers {
		switch {
		case w.Ready:
			ready++
		case w.State == "failed" || w.State == "waiting":
			failed++
			reason = w.Reason
		}
	}
	switch {
	case closing:
		return "draining", ""
	case len(workers) == 0:
		return stateIdle, "it has no workers"
	case ready >= max(1, minWorkers):
		return stateServing, reason
	case failed == 0:
		return "deploying", ""
	case ready > 0:
		return "degraded", reason
	default:
		return "failed", reason
	}
}
