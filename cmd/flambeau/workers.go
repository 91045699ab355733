package main

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"

	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/crashes"
	"github.com/flambeau-serve/flambeau/plugins/host"
	"github.com/flambeau-serve/flambeau/plugins/threads"
)

// autoscaleOf gives how the numbers of workers follow the load, nil for not at all.
func autoscaleOf(cfg *config.Config) *rollout.Autoscale {
	if !cfg.Autoscale {
		return nil
	}
	return &rollout.Autoscale{Wait: cfg.AutoscaleWait, Calm: cfg.AutoscaleCalm}
}

// demand tells what waits for a version. The dispatcher is made after the models.
func (c *core) demand(v *rollout.Version) rollout.Demand {
	if c.dispatcher == nil {
		return rollout.Demand{}
	}
	waiting, oldest := c.dispatcher.Demand(v)
	return rollout.Demand{Waiting: waiting, Oldest: oldest}
}

// heartbeat gives how wedged processes are found.
func heartbeat(cfg *config.Config) host.Heartbeat {
	if cfg.HeartbeatTimeout == 0 {
		return host.Heartbeat{Interval: -1}
	}
	return host.Heartbeat{Patience: cfg.HeartbeatTimeout}
}

// sharing says how the processors are shared between the workers of a model.
type sharing struct {
	mode threads.Mode
	cpus threads.CPUs
}

// newSharing gives the sharing of a configuration; torchserve says whose command started the server.
func newSharing(cfg *config.Config, torchserve bool, log *slog.Logger) sharing {
	s := sharing{mode: threads.Mode(cfg.WorkerThreads), cpus: threads.Find()}
	if cfg.WorkerThreads == settingAuto {
		s.mode = map[bool]threads.Mode{true: threads.Off, false: threads.Share}[torchserve]
	}
	told := slices.ContainsFunc(cfg.Env.All, func(entry string) bool { return strings.HasPrefix(entry, "OMP_NUM_THREADS=") })
	if s.mode == threads.Off && s.cpus.Quota > 0 && !told {
		log.Warn("the libraries in workers see more processors than they may use, and start a thread for each: set worker_threads=share, or OMP_NUM_THREADS",
			"cpus_seen", s.cpus.Seen, "cpus_usable", s.cpus.Usable())
	}
	return s
}

// share adds to the command of a worker how many threads it is to use. A model of several ranks says it itself (torchrun's OMP_NUMBER_THREADS).
func (s sharing) share(r *rollout.ProcessRequest, spec backend.ProcessSpec) backend.ProcessSpec {
	if r.Parallel != nil || r.Ensemble != nil {
		return spec
	}
	n := s.cpus.PerWorker(s.mode, r.Workers)
	switch r.Runtime {
	case archive.RuntimePlugin:
		spec.Env = threads.Go(spec.Env, n)
	default:
		spec.Env = threads.OpenMP(spec.Env, n)
	}
	return spec
}

// instanceChanged keeps crashes, and passes the change on.
func (c *core) instanceChanged(watch observer) func(rollout.Event) {
	return func(e rollout.Event) {
		_ = c.bugs.contain("a worker's crash was noted", func() {
			if crash := backend.CrashOf(e.Cause); e.To == rollout.Failed && crash != nil {
				c.crashes.Add(crashes.Record{
					Model: e.Ref.Name, Version: e.Ref.Version, Worker: e.WorkerID, Generation: e.Generation, Restarts: e.Restarts, Crash: *crash,
				})
			}
		})
		_ = c.bugs.contain("a worker's state was told", func() { watch.InstanceChanged(e) })
	}
}

// crashBook shows the crashes to the API: the latest first.
type crashBook struct{ book *crashes.Book }

// Crashes implements httpapi.Crashes.
func (b crashBook) Crashes(ref infer.ModelRef) []crashes.Record { return b.book.List(ref) }

// usableCPUs is how many processors native backends are told that there are.
func usableCPUs() int { return cmp.Or(int(threads.Find().Usable()), 1) }
