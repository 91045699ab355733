package rollout

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

// processes notes what the commands of workers are asked for.
type processes struct {
	mu    sync.Mutex // guards asked
	asked []ProcessRequest
}

func (p *processes) options(gpus int) func(*Options) {
	return func(o *Options) {
		o.GPUs, o.FirstParallelID = gpus, 29500
		o.Process = func(r ProcessRequest) (backend.ProcessSpec, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.asked = append(p.asked, r)
			return backend.ProcessSpec{Path: "python"}, nil
		}
	}
}

// devices gives the devices of the processes by the identifiers of their workers.
func (p *processes) devices() map[int][]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	by := map[int][]int{}
	for _, r := range p.asked {
		by[r.WorkerID] = r.Devices
	}
	return by
}

func parallelModel(name string, s archive.Settings) *archive.Archive {
	a := named(name, "1.0")
	a.Settings = s
	return a
}

func TestSetParallel(t *testing.T) {
	run := &archive.TorchRun{Nodes: 1, ProcsPerNode: 4, Backend: "c10d", OMPThreads: 2}
	for _, tc := range []struct {
		name     string
		settings archive.Settings
		want     *Parallel
		level    int
	}{
		{"nothing", archive.Settings{}, nil, 0},
		{"a type without a level", archive.Settings{ParallelType: "tp"}, nil, 0},
		{"torchrun without a type", archive.Settings{ParallelLevel: 4, TorchRun: run}, nil, 0},
		{"torchrun", archive.Settings{ParallelType: "pp", ParallelLevel: 4, TorchRun: run}, &Parallel{Type: "pp", TorchRun: run}, 4},
		{
			"a level without torchrun",
			archive.Settings{ParallelType: "tp", ParallelLevel: 2},
			&Parallel{Type: "tp", TorchRun: &archive.TorchRun{Nodes: 1, ProcsPerNode: 2, Backend: "c10d", OMPThreads: 1}}, 2,
		},
		{"custom is one process", archive.Settings{ParallelType: "custom", ParallelLevel: 4, TorchRun: run}, &Parallel{Type: "custom"}, 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s settings
			s.setParallel(&tc.settings)
			if diff := cmp.Diff(tc.want, s.parallel()); diff != "" || s.parallelLevel != tc.level || (tc.level == 0) != (s.parallelType == "") {
				t.Errorf("level %d, type %q, %s", s.parallelLevel, s.parallelType, diff)
			}
		})
	}
}

// TestParallelWorkersHaveDevicesOfTheirOwn compares groups of devices, identifiers and counts with what TorchServe 0.12.0 makes of five GPUs.
func TestParallelWorkersHaveDevicesOfTheirOwn(t *testing.T) {
	for _, tc := range []struct {
		name     string
		settings archive.Settings
		want     map[int][]int
	}{
		{"all devices", archive.Settings{ParallelType: "tp", ParallelLevel: 2}, map[int][]int{29500: {0, 1}, 29502: {2, 3}}},
		{
			"chosen devices",
			archive.Settings{ParallelType: "custom", ParallelLevel: 2, DeviceIDs: []int{3, 1, 0, 2}},
			map[int][]int{29500: {3, 1}, 29502: {0, 2}},
		},
		{"a device that is not there", archive.Settings{ParallelType: "tp", ParallelLevel: 4, DeviceIDs: []int{5}}, map[int][]int{29500: {0, 1, 2, 3}}},
		{
			"on the CPU",
			archive.Settings{ParallelType: "tp", ParallelLevel: 2, DeviceType: "cpu"},
			map[int][]int{29500: nil, 29502: nil, 29504: nil},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var p processes
				h := newHouse(t, &backendtest.Launcher{}, archives{"a.mar": parallelModel("a", tc.settings)}, p.options(5))
				register(t, h, Spec{URL: "a.mar", InitialWorkers: new(3), Synchronous: true})
				if diff := cmp.Diff(tc.want, p.devices()); diff != "" {
					t.Error(diff)
				}
				d := h.describe(t, "a")
				if d.MinWorkers != len(tc.want) || d.MaxWorkers != len(tc.want) || len(d.Workers) != len(tc.want) || d.State != "serving" {
					t.Errorf("described as %+v", d)
				}
				for i, w := range d.Workers {
					gpu, seen := backend.NoGPU, backend.NoGPU
					if devices := tc.want[w.ID]; devices != nil {
						gpu, seen = devices[0], 0
					}
					if load := h.launcher.Instances()[i].Loads()[0]; w.GPU != gpu || load.GPU != seen {
						t.Errorf("worker %d: GPU %d, as its process sees it %d; want %d and %d", w.ID, w.GPU, load.GPU, gpu, seen)
					}
				}
				h.end(t)
			})
		})
	}
}

// TestGroupIsFreeAgain scales down and up again: the new worker has the devices of the removed one.
func TestGroupIsFreeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p processes
		h := newHouse(t, &backendtest.Launcher{}, archives{
			"a.mar": parallelModel("a", archive.Settings{ParallelType: "tp", ParallelLevel: 2}),
		}, p.options(4))
		register(t, h, Spec{URL: "a.mar", InitialWorkers: new(2), Synchronous: true})
		ref := infer.ModelRef{Name: "a"}
		for _, n := range []int{1, 2} {
			if err := h.Scale(t.Context(), ref, n, n, true); err != nil {
				t.Fatal(err)
			}
		}
		want := map[int][]int{29500: {0, 1}, 29502: {2, 3}, 29504: {2, 3}}
		if diff := cmp.Diff(want, p.devices()); diff != "" {
			t.Error(diff)
		}
		h.end(t)
	})
}

// TestTooFewDevices has TorchServe's answer, which leaves the version registered and without workers.
func TestTooFewDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, &backendtest.Launcher{}, archives{
			"a.mar": parallelModel("a", archive.Settings{ParallelType: "tp", ParallelLevel: 8}),
		}, new(processes).options(5))
		_, err := h.Register(t.Context(), Spec{URL: "a.mar", InitialWorkers: new(1), Synchronous: true})
		const want = "No enough gpu devices for model:a parallelLevel:8"
		if !fault.Is(err, fault.NoDevices) || err.Error() != want {
			t.Errorf("register: %v, want %s", err, want)
		}
		if d := h.describe(t, "a"); len(d.Workers) != 0 || d.MinWorkers != 0 {
			t.Errorf("described as %+v", d)
		}
		if err := h.Scale(t.Context(), infer.ModelRef{Name: "a"}, 1, 1, true); !fault.Is(err, fault.NoDevices) {
			t.Errorf("scale: %v", err)
		}
		if err := h.Scale(t.Context(), infer.ModelRef{Name: "a"}, 0, 0, true); err != nil {
			t.Errorf("scale to nothing: %v", err)
		}
		h.end(t)
	})
}
