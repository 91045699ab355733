package host

import (
	"os"
	"strconv"
	"strings"
)

// vitals are signs of life of a process that the kernel sees.
type vitals struct {
	state  string // its letter: R, S, D, T, t, Z
	ticks  uint64 // processor time of all its threads
	traced bool   // a debugger has it
	eager  bool   // a thread of it has a processor or waits for one; told only of a process that is suspected
}

// readVitals reads a process's vitals; ok is false when there is none to read.
func readVitals(pid int) (v vitals, ok bool) {
	proc := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(proc + "/stat")
	if err != nil {
		return vitals{}, false
	}
	status, err := os.ReadFile(proc + "/status")
	if err != nil {
		return vitals{}, false
	}
	return parseVitals(string(stat), string(status))
}

func parseVitals(stat, status string) (v vitals, ok bool) {
	// The command, in parentheses, may hold anything.
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	const state, user, system = 0, 11, 12
	if len(fields) <= system {
		return vitals{}, false
	}
	userTicks, err := strconv.ParseUint(fields[user], 10, 64)
	if err != nil {
		return vitals{}, false
	}
	systemTicks, err := strconv.ParseUint(fields[system], 10, 64)
	if err != nil {
		return vitals{}, false
	}
	tracer := statusValue(status, "TracerPid:")
	return vitals{state: fields[state], ticks: userTicks + systemTicks, traced: tracer != "" && tracer != "0"}, true
}

// isEager says whether a thread of a process has a processor or waits for one: where there are too few for all, a process that works may get none for long.
func isEager(pid int) bool {
	tasks := "/proc/" + strconv.Itoa(pid) + "/task"
	threads, err := os.ReadDir(tasks)
	if err != nil {
		return false
	}
	for _, t := range threads {
		stat, err := os.ReadFile(tasks + "/" + t.Name() + "/stat")
		if err != nil {
			continue // it has just ended
		}
		if v, ok := parseVitals(string(stat), ""); ok && v.state == "R" {
			return true
		}
	}
	return false
}

// statusValue is the first word after a key of /proc/PID/status.
func statusValue(status, key string) string {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			if words := strings.Fields(rest); len(words) > 0 {
				return words[0]
			}
		}
	}
	return ""
}

// peakOf is the most resident memory that a living process has had, in bytes; 0 when not known.
func peakOf(pid int) int64 {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(statusValue(string(status), "VmHWM:"), 10, 64)
	if err != nil {
		return 0
	}
	return n << 10
}

// addressLimitOf is the limit of a process's address space (RLIMIT_AS) in bytes, 0 for none.
func addressLimitOf(pid int) int64 {
	limits, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(statusValue(string(limits), "Max address space"), 10, 64)
	if err != nil {
		return 0 // "unlimited"
	}
	return n
}
