package rollout

import (
	"bytes"
	"os"
	"strconv"
	"strings"

	"github.com/flambeau-serve/flambeau/internal/cgroup"
)

// resident gives the resident memory of a process in bytes, 0 if it is not known.
func resident(pid int) int64 {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return 0 // the process is gone, or this system has no /proc
	}
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// private gives the memory that the worker's process shares with no other, in bytes; 0 if there is none.
func (w *worker) private() int64 {
	w.mu.Lock()
	inst := w.inst
	w.mu.Unlock()
	if inst == nil || dead(inst) {
		return 0
	}
	return privateBytes(inst.PID())
}

// privateBytes sums up the private pages of a process, or takes all its resident ones where the kernel does not tell.
func privateBytes(pid int) int64 {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	if err != nil {
		return resident(pid)
	}
	return kilobytes(string(text), "Private_Clean:", "Private_Dirty:")
}

// kilobytes sums up lines such as "Private_Dirty:   12 kB" and gives bytes.
func kilobytes(text string, keys ...string) int64 {
	var sum int64
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		for _, key := range keys {
			if fields[0] != key {
				continue
			}
			if n, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
				sum += n << 10
			}
		}
	}
	return sum
}

// Available gives the memory that is left for new processes: what the kernel says, bounded by the limit of the server's own control group.
func Available() (bytes int64, known bool) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	left := kilobytes(string(text), "MemAvailable:")
	if left == 0 {
		return 0, false
	}
	if group, err := (cgroup.System{}).Memory(os.Getpid()); err == nil { // else there are no groups
		if room, limited := group.MemoryRoom(); limited {
			left = min(left, room)
		}
	}
	return left, true
}
