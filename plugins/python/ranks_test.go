package python

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/plugins/backend"
)

func TestRanks(t *testing.T) {
	spec := backend.ProcessSpec{Path: "python", Args: []string{"main.py"}, Env: []string{"A=1"}, Dir: "/m"}
	env := []string{"A=1", "LOGLEVEL=INFO", "OMP_NUM_THREADS=3"}
	for _, tc := range []struct {
		name  string
		ranks Ranks
		args  []string
	}{
		{
			"one machine has a rendezvous of its own",
			Ranks{Number: 2, EveryRank: true, ID: "m_29500", Nodes: 1, Backend: "c10d", OMPThreads: 3},
			[]string{
				"main.py", "leader", "all", "2", "--nnodes", "1", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
				"--rdzv-id", "m_29500", "--max-restarts", "0",
			},
		},
		{
			"several machines meet where they are told to",
			Ranks{Number: 4, ID: "m_29500", Nodes: 2, Backend: "etcd", Endpoint: "h:1", MasterAddr: "h", MasterPort: 7, OMPThreads: 3},
			[]string{
				"main.py", "leader", "first", "4", "--nnodes", "2", "--nproc-per-node", "4", "--rdzv-backend", "etcd", "--rdzv-endpoint", "h:1",
				"--rdzv-id", "m_29500", "--master-addr", "h", "--master-port", "7", "--max-restarts", "0",
			},
		},
		{
			"several machines without an endpoint",
			Ranks{Number: 1, ID: "i", Nodes: 2, Backend: "c10d", OMPThreads: 3},
			[]string{
				"main.py", "leader", "first", "1", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "i",
				"--max-restarts", "0",
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := tc.ranks.Add(spec)
			if diff := cmp.Diff(backend.ProcessSpec{Path: "python", Args: tc.args, Env: env, Dir: "/m"}, got); diff != "" {
				t.Error(diff)
			}
			if len(spec.Args) != 1 || len(spec.Env) != 1 {
				t.Errorf("the spec that all commands share was changed: %+v", spec)
			}
		})
	}
}

func TestWithDevices(t *testing.T) {
	for _, tc := range []struct {
		name    string
		env     []string
		devices []int
		want    string
	}{
		{"the server sees all", nil, []int{2, 3}, "2,3"},
		{"the server sees some", []string{"CUDA_VISIBLE_DEVICES=4, 5,GPU-6"}, []int{1, 2}, "5,GPU-6"},
		{"more than it sees", []string{"CUDA_VISIBLE_DEVICES=4"}, []int{0, 1}, "4,1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := WithDevices(backend.ProcessSpec{Env: tc.env}, tc.devices).Env
			if last := got[len(got)-1]; last != "CUDA_VISIBLE_DEVICES="+tc.want || len(got) != len(tc.env)+1 {
				t.Errorf("%q, want %s at the end", got, tc.want)
			}
		})
	}
}
