package python

import (
	"slices"
	"strconv"
	"strings"

	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// Ranks say how a worker is spread over processes: the one that the server starts is the leader, and has torchrun start a process with the
// handler for each rank.
type Ranks struct {
	Number     int    // of this machine
	EveryRank  bool   // batches go to each of them, not to rank 0 alone
	ID         string // of the group; no two groups have the same
	Nodes      int    // machines
	Backend    string // of the rendezvous
	Endpoint   string // of the rendezvous, "" for one of this group's own
	MasterAddr string // "" for torchrun's choice
	MasterPort int
	OMPThreads int
}

// ownRendezvous is a port of torchrun's own choice. Without an endpoint all the groups of a machine would meet at port 29400, in the first one's
// process: TorchServe's models of several ranks all go down with that one.
const ownRendezvous = "localhost:0"

// Add gives the command with the ranks. The variables are TorchServe's.
func (r Ranks) Add(spec backend.ProcessSpec) backend.ProcessSpec {
	batches := "first"
	if r.EveryRank {
		batches = "all"
	}
	endpoint := r.Endpoint
	if endpoint == "" && r.Nodes <= 1 && r.Backend == "c10d" {
		endpoint = ownRendezvous
	}
	spec.Args = append(slices.Clone(spec.Args), "leader", batches, strconv.Itoa(r.Number),
		"--nnodes", strconv.Itoa(r.Nodes), "--nproc-per-node", strconv.Itoa(r.Number), "--rdzv-backend", r.Backend)
	if endpoint != "" {
		spec.Args = append(spec.Args, "--rdzv-endpoint", endpoint)
	}
	spec.Args = append(spec.Args, "--rdzv-id", r.ID)
	if r.MasterAddr != "" {
		spec.Args = append(spec.Args, "--master-addr", r.MasterAddr, "--master-port", strconv.Itoa(r.MasterPort))
	}
	spec.Args = append(spec.Args, "--max-restarts", "0") // a worker is started anew as a whole, and by the server
	spec.Env = append(slices.Clone(spec.Env), "LOGLEVEL=INFO", "OMP_NUM_THREADS="+strconv.Itoa(r.OMPThreads))
	return spec
}

const visibleDevices = "CUDA_VISIBLE_DEVICES"

// WithDevices gives the command with only these devices to be seen, which are numbered as the server itself sees them: if it sees some only,
// number 0 is the first of those.
func WithDevices(spec backend.ProcessSpec, devices []int) backend.ProcessSpec {
	var seen []string
	for _, entry := range spec.Env {
		if list, ok := strings.CutPrefix(entry, visibleDevices+"="); ok {
			seen = strings.Split(list, ",")
		}
	}
	names := make([]string, len(devices))
	for i, device := range devices {
		names[i] = strconv.Itoa(device)
		if device < len(seen) {
			names[i] = strings.TrimSpace(seen[device])
		}
	}
	spec.Env = append(slices.Clone(spec.Env), visibleDevices+"="+strings.Join(names, ","))
	return spec
}
