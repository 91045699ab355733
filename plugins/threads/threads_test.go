package threads

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/cgroup"
)

func TestPerWorker(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cpus    CPUs
		mode    Mode
		workers int
		want    int
	}{
		"two share two":                    {CPUs{Seen: 2}, Share, 2, 1},
		"three share eight":                {CPUs{Seen: 8}, Share, 3, 2},
		"more workers than processors":     {CPUs{Seen: 4}, Share, 9, 1},
		"one has all, and sees that":       {CPUs{Seen: 8}, Share, 1, 0},
		"one in a quota":                   {CPUs{Seen: 64, Quota: 4}, Share, 1, 4},
		"two in a quota":                   {CPUs{Seen: 64, Quota: 3.5}, Share, 2, 1},
		"less than a processor":            {CPUs{Seen: 64, Quota: 0.5}, Share, 1, 1},
		"workers not known":                {CPUs{Seen: 8, Quota: 2}, Share, 0, 2},
		"quota":                            {CPUs{Seen: 64, Quota: 4}, Quota, 8, 4},
		"quota, less than a processor":     {CPUs{Seen: 64, Quota: 0.5}, Quota, 1, 1},
		"quota, but there is none":         {CPUs{Seen: 64}, Quota, 8, 0},
		"off":                              {CPUs{Seen: 64, Quota: 4}, Off, 8, 0},
		"nobody has said":                  {CPUs{Seen: 64, Quota: 4}, "", 8, 0},
		"a quota of all that are seen (2)": {CPUs{Seen: 2}, Quota, 2, 0},
	} {
		if got := tc.cpus.PerWorker(tc.mode, tc.workers); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

func TestEnvironments(t *testing.T) {
	t.Parallel()
	base := []string{"A=1", "MKL_NUM_THREADS=7"}
	for name, tc := range map[string]struct {
		got, want []string
	}{
		"openmp":            {OpenMP(base, 3), []string{"A=1", "MKL_NUM_THREADS=7", "OMP_NUM_THREADS=3"}},
		"openmp, nothing":   {OpenMP(base, 0), base},
		"openmp, user's":    {OpenMP([]string{"OMP_NUM_THREADS=9"}, 3), []string{"OMP_NUM_THREADS=9"}},
		"openmp, empty":     {OpenMP([]string{"OMP_NUM_THREADS="}, 3), []string{"OMP_NUM_THREADS="}},
		"openmp, not it":    {OpenMP([]string{"XOMP_NUM_THREADS=1"}, 3), []string{"XOMP_NUM_THREADS=1", "OMP_NUM_THREADS=3"}},
		"go":                {Go(base, 3), []string{"A=1", "MKL_NUM_THREADS=7", "GOMAXPROCS=3", "OMP_NUM_THREADS=3"}},
		"go, one processor": {Go(nil, 1), []string{"GOMAXPROCS=2", "OMP_NUM_THREADS=1"}},
		"go, nothing":       {Go(nil, 0), nil},
		"go, user's":        {Go([]string{"GOMAXPROCS=1"}, 4), []string{"GOMAXPROCS=1", "OMP_NUM_THREADS=4"}},
	} {
		if diff := cmp.Diff(tc.want, tc.got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
	shared := make([]string, 1, 8)
	shared[0] = "A=1"
	one, two := OpenMP(shared, 1), OpenMP(shared, 2)
	if one[1] != "OMP_NUM_THREADS=1" || two[1] != "OMP_NUM_THREADS=2" {
		t.Errorf("environments share their end: %v, %v", one, two)
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	write := func(root, name, text string) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	seen := find(cgroup.System{Root: t.TempDir()}, 7).Seen
	if seen < 1 || seen > runtime.NumCPU() {
		t.Errorf("%d processors", seen)
	}
	for quota, want := range map[string]float64{"50000 100000": 0.5, "max 100000": 0, strconv.Itoa(seen*100000) + " 100000": 0, "99900000 100000": 0} {
		root := t.TempDir()
		write(root, "proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
		write(root, "proc/7/cgroup", "0::/box\n")
		write(root, "sys/fs/cgroup/box/cpu.max", quota+"\n")
		if got := find(cgroup.System{Root: root}, 7); got.Quota != want || got.Seen != seen {
			t.Errorf("%s: %+v, want %v", quota, got, want)
		}
	}
	if c := Find(); c.Usable() <= 0 || c.Usable() > float64(c.Seen) {
		t.Errorf("this machine: %+v", c)
	}
}
