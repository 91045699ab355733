package main

import (
	"strconv"

	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/python"
)

// spread adds to a worker's command what makes it use several devices or processes, if it does.
func spread(spec backend.ProcessSpec, r *rollout.ProcessRequest) backend.ProcessSpec {
	if r.Parallel == nil {
		return spec
	}
	if len(r.Devices) > 0 {
		spec = python.WithDevices(spec, r.Devices)
	}
	run := r.Parallel.TorchRun
	if run == nil {
		return spec
	}
	return python.Ranks{
		Number:     run.ProcsPerNode,
		EveryRank:  r.Parallel.Type != "pp", // rank 0 of a pipeline feeds the others itself
		ID:         r.Ref.Name + "_" + strconv.Itoa(r.WorkerID),
		Nodes:      run.Nodes,
		Backend:    run.Backend,
		Endpoint:   run.Endpoint,
		MasterAddr: run.MasterAddr,
		MasterPort: run.MasterPort,
		OMPThreads: run.OMPThreads,
	}.Add(spec)
}
