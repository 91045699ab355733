package rollout

import (
	"bytes"
	"os"
	"strconv"
	"strings"
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
	if room, limited := groupRoom("/sys/fs/cgroup", "/proc/self/cgroup"); limited {
		left = min(left, room)
	}
	return left, true
}

// groupRoom gives what the memory limits of a process's control group (version 2), and of those above it, leave.
func groupRoom(mount, membership string) (room int64, limited bool) {
	text, err := os.ReadFile(membership)
	if err != nil {
		return 0, false
	}
	_, group, found := strings.Cut(strings.TrimSpace(string(text)), "0::")
	if !found {
		return 0, false
	}
	for dir := mount + strings.TrimRight(group, "/"); len(dir) >= len(mount); dir = dir[:strings.LastIndexByte(dir, '/')] {
		limit, err := readNumber(dir + "/memory.max")
		used, usedErr := readNumber(dir + "/memory.current")
		if err != nil || usedErr != nil {
			continue // no limit here, or no such file: the root has none
		}
		stat, _ := os.ReadFile(dir + "/memory.stat") // without it nothing counts as reclaimable
		left := limit - used + statOf(string(stat), "inactive_file")
		if !limited || left < room {
			room, limited = left, true
		}
	}
	return max(room, 0), limited
}

func readNumber(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// statOf gives a value of memory.stat, 0 if it is not there.
func statOf(text, key string) int64 {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, key+" "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return n
		}
	}
	return 0
}
