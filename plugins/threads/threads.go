// Package threads shares the processors that the server may use between the workers of a model.
package threads

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flambeau-serve/flambeau/internal/cgroup"
)

// Mode says how many threads a worker's libraries are told to use.
type Mode string

// The modes.
const (
	// Off tells them nothing: each takes as many threads as there are processors (TorchServe's way).
	Off Mode = "off"
	// Quota tells them about a processor quota that they do not see by themselves, and nothing where there is none.
	Quota Mode = "quota"
	// Share gives each worker of a model its part of the processors.
	Share Mode = "share"
)

// CPUs are the processors that a process may use.
type CPUs struct {
	Seen  int     // that its libraries see and count: those that it may run on
	Quota float64 // how many of them its control groups let it keep busy; 0 for all
}

// Find gives the processors that this process, and the workers that it starts, may use.
func Find() CPUs { return find(cgroup.System{}, os.Getpid()) }

func find(system cgroup.System, pid int) CPUs {
	c := CPUs{Seen: runtime.NumCPU()}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err == nil && set.Count() > 0 {
		c.Seen = set.Count() // cpuset and taskset are in it
	}
	if group, err := system.CPU(pid); err == nil {
		if quota := group.Quota(); quota > 0 && quota < float64(c.Seen) {
			c.Quota = quota
		}
	}
	return c
}

// Usable is how many processors can be kept busy.
func (c CPUs) Usable() float64 {
	if c.Quota > 0 {
		return c.Quota
	}
	return float64(c.Seen)
}

// PerWorker is how many threads each of a model's workers is told to use; 0: it is told nothing. It is rounded down: a thread more than there are
// processors makes all the others wait for it.
func (c CPUs) PerWorker(mode Mode, workers int) int {
	switch {
	case mode == Share && (workers > 1 || c.Quota > 0):
		return max(1, int(c.Usable()/float64(max(1, workers))))
	case mode == Quota && c.Quota > 0:
		return max(1, int(c.Quota))
	}
	return 0
}

// The variables by which libraries are told. OpenMP's is enough for Python: MKL, OpenBLAS, NumExpr and PyTorch read it as well, and each of them goes by
// its own variable first, so what a user has set for one of them holds.
const (
	openMPVariable = "OMP_NUM_THREADS"
	goVariable     = "GOMAXPROCS"
)

// leastGo is the least number of processors that a Go program is told: with one, what looks after the handler would wait for it.
const leastGo = 2

// OpenMP gives an environment in which C libraries, and those of Python, use n threads, unless it says something else already. 0 changes nothing.
func OpenMP(env []string, n int) []string { return with(env, openMPVariable, n) }

// Go gives an environment in which a Go program uses n processors, and C libraries in it as many threads, unless it says something else already. 0
// changes nothing.
func Go(env []string, n int) []string {
	if n > 0 {
		env = with(env, goVariable, max(n, leastGo))
	}
	return with(env, openMPVariable, n)
}

func with(env []string, name string, n int) []string {
	if n <= 0 || has(env, name) {
		return env
	}
	return append(slices.Clip(env), name+"="+strconv.Itoa(n)) // the environment may be shared by all commands
}

// has says whether a variable is set, be it to nothing.
func has(env []string, name string) bool {
	for _, entry := range env {
		if strings.HasPrefix(entry, name+"=") {
			return true
		}
	}
	return false
}
