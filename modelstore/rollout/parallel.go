package rollout

import (
	"slices"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// Parallel says how each worker of a version is spread over devices and processes.
type Parallel struct {
	Type string // pp, tp or pptp: torchrun starts a process for each rank; custom: one process sees all its devices
	// TorchRun is how the ranks are started; nil for one process.
	TorchRun *archive.TorchRun
}

const parallelCustom = "custom"

// setParallel takes what the archive says about it. TorchServe looks at a type only beside a level, and at a level only beside a type.
func (r *settings) setParallel(y *archive.Settings) {
	if y.ParallelType == "" || y.ParallelLevel <= 0 {
		return
	}
	r.parallelType, r.parallelLevel = y.ParallelType, y.ParallelLevel
	if y.ParallelType == parallelCustom {
		return
	}
	r.torchRun = y.TorchRun
	if r.torchRun == nil { // TorchServe starts no worker then
		r.torchRun = &archive.TorchRun{Nodes: 1, ProcsPerNode: y.ParallelLevel, Backend: "c10d", OMPThreads: 1}
	}
}

// parallel gives nil for a version whose workers are one process on one device.
func (r *settings) parallel() *Parallel {
	if r.parallelLevel == 0 {
		return nil
	}
	return &Parallel{Type: r.parallelType, TorchRun: r.torchRun}
}

// devices are those that the generation's workers share.
func (g *generation) devices() []int {
	switch {
	case g.settings.deviceType != deviceGPU:
		return nil
	case len(g.settings.deviceIDs) > 0:
		return g.settings.deviceIDs
	}
	all := make([]int, g.version.manager.opts.GPUs)
	for i := range all {
		all[i] = i
	}
	return all
}

// fit bounds the numbers of workers by the groups of devices that there are for a parallel version, as TorchServe does.
func (g *generation) fit(minWorkers, maxWorkers int) (fitMin, fitMax int, err error) {
	level := g.settings.parallelLevel
	if level == 0 || g.settings.deviceType != deviceGPU || maxWorkers == 0 {
		return minWorkers, maxWorkers, nil
	}
	groups := len(g.devices()) / level
	if groups == 0 {
		f := fault.Newf(fault.NoDevices, "No enough gpu devices for model:%s parallelLevel:%d", g.version.ref.Name, level)
		f.Hint = "lower parallelLevel or nproc-per-node, name more deviceIds, or set deviceType to cpu in the model's configuration file"
		return 0, 0, f
	}
	if minWorkers > groups || maxWorkers > groups {
		g.version.log.Warn("fewer workers than asked for: each needs devices of its own", "min_workers", minWorkers, "max_workers", maxWorkers,
			"most_workers", groups, "devices", len(g.devices()), "parallel_level", level)
	}
	return min(minWorkers, groups), min(maxWorkers, groups), nil
}

// takeGroup gives the devices of a new worker of a parallel version: the group that fewest workers have. One that is still being removed counts,
// so that nobody gets in its way. v.mu is held, and the worker calls leaveGroup at its end.
func (g *generation) takeGroup() (group int, devices []int) {
	v := g.version
	level, all := g.settings.parallelLevel, g.devices()
	if level == 0 || len(all) < level {
		return noGroup, nil
	}
	if n := len(all) / level; len(v.groups) < n { // another generation may have had fewer
		v.groups = append(v.groups, make([]int, n-len(v.groups))...)
	}
	mine := v.groups[:len(all)/level]
	group = slices.Index(mine, slices.Min(mine))
	v.groups[group]++
	return group, all[group*level : (group+1)*level]
}

const noGroup = -1

func (v *Version) leaveGroup(group int) {
	if group == noGroup {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.groups[group]--
}

// loadGPU is the number of the worker's device as its process sees it: of a parallel model's it sees its own only, and they count from 0.
// TorchServe gives the first one's number on the machine, which the process cannot see unless it is 0.
func (w *worker) loadGPU() int {
	if len(w.devices) > 0 {
		return 0
	}
	return w.gpu
}

// nextWorkerID counts the identifiers of parallel workers by their level, from a number of their own, as TorchServe counts its ports.
func (m *Manager) nextWorkerID(level int) int {
	if level > 0 {
		return int(m.nextParallel.Add(int64(level))) - level
	}
	return int(m.lastWorker.Add(1))
}

// nextGPU deals the devices out in turn: over the server's devices for all models together (TorchServe begins with the second one), or over
// the devices that the version chose.
func (m *Manager) nextGPU(g *generation) int {
	switch {
	case g.settings.deviceType != deviceGPU:
		return backend.NoGPU
	case len(g.settings.deviceIDs) > 0:
		return g.settings.deviceIDs[len(g.workers)%len(g.settings.deviceIDs)]
	default:
		return int(m.lastGPU.Add(1)) % m.opts.GPUs
	}
}
