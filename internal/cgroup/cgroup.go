// Package cgroup finds the control groups of a process, of both versions, and reads what they allow and what they have counted.
package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// System is where the kernel's files are: "" for this machine's root, or a folder that has proc and the mounts in it.
type System struct{ Root string }

// The names of the two controllers that are of interest.
const (
	memoryController = "memory"
	cpuController    = "cpu"
)

// Group is a control group of one controller.
type Group struct {
	Name    string // as /proc/PID/cgroup has it
	dir     string // its folder
	mount   string // folder of the uppermost group that can be seen; dir is below it, or the same
	version int
	vmstat  string // the kernel's counts for the whole machine
}

// Memory gives the group that the memory of a process is counted in.
func (s System) Memory(pid int) (Group, error) { return s.find(pid, memoryController) }

// CPU gives the group that the processor time of a process is counted in.
func (s System) CPU(pid int) (Group, error) { return s.find(pid, cpuController) }

func (s System) find(pid int, controller string) (Group, error) {
	mounts, err := os.ReadFile(filepath.Join(s.Root, "/proc/self/mountinfo"))
	if err != nil {
		return Group{}, fmt.Errorf("the mounts of control groups: %w", err)
	}
	membership, err := os.ReadFile(filepath.Join(s.Root, "/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return Group{}, fmt.Errorf("the control groups of process %d: %w", pid, err)
	}
	m, ok := findMount(string(mounts), controller)
	if !ok {
		return Group{}, fmt.Errorf("no control groups for %s are mounted", controller)
	}
	name, ok := findName(string(membership), controller, m.version)
	if !ok {
		return Group{}, fmt.Errorf("process %d has no control group for %s", pid, controller)
	}
	g := Group{Name: name, mount: filepath.Join(s.Root, m.point), version: m.version, vmstat: filepath.Join(s.Root, "/proc/vmstat")}
	g.dir = filepath.Join(g.mount, m.below(name))
	return g, nil
}

// mount is a mounted hierarchy of groups.
type mount struct {
	root    string // name of the group that is its folder
	point   string
	version int
}

// below gives the path of a group below the mount: "" for one that is not there, as in a container that sees its own group as the mount's folder but
// not in its name.
func (m mount) below(name string) string {
	rest, ok := strings.CutPrefix(name, strings.TrimRight(m.root, "/"))
	if !ok || rest != "" && rest[0] != '/' || slices.Contains(strings.Split(rest, "/"), "..") {
		return ""
	}
	return rest
}

// findMount finds a controller's hierarchy in the text of mountinfo: that of version 1, if there is one, for then the controller is not in the other.
func findMount(text, controller string) (mount, bool) {
	var unified mount
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		const root, point, options = 3, 4, 2
		if !ok || len(fields) <= point || len(kind) <= options {
			continue
		}
		m := mount{root: unescape(fields[root]), point: unescape(fields[point])}
		switch {
		case kind[0] == "cgroup" && slices.Contains(strings.Split(kind[options], ","), controller):
			m.version = 1
			return m, true
		case kind[0] == "cgroup2" && unified.version == 0:
			m.version = 2
			unified = m
		}
	}
	return unified, unified.version != 0
}

// unescape gives the path that mountinfo writes with octal numbers for blanks and the like.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		const digits = 3
		if s[i] == '\\' && i+digits < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+1+digits], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += digits
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// findName finds a process's group in the text of its cgroup file.
func findName(text, controller string, version int) (string, bool) {
	for line := range strings.Lines(text) {
		_, rest, _ := strings.Cut(strings.TrimRight(line, "\n"), ":")
		controllers, name, ok := strings.Cut(rest, ":")
		if !ok || !strings.HasPrefix(name, "/") {
			continue
		}
		if version == 2 && controllers == "" || version == 1 && slices.Contains(strings.Split(controllers, ","), controller) {
			return strings.TrimSuffix(name, " (deleted)"), true
		}
	}
	return "", false
}

// lineage gives the folders of the group and of those above it, up to the mount.
func (g Group) lineage() []string {
	var all []string
	for dir := g.dir; len(dir) >= len(g.mount); dir = filepath.Dir(dir) {
		all = append(all, dir)
		if dir == filepath.Dir(dir) {
			break
		}
	}
	return all
}

// Limit is the memory limit that a group lives under.
type Limit struct {
	Bytes int64  // 0 for none
	Used  int64  // the most that the limited group has used, or what it uses now where the kernel does not keep the most; 0 when not known
	Group string // name of the limited group: this one or one above it
}

// MemoryLimit gives the lowest limit of the group and of those above it.
func (g Group) MemoryLimit() Limit {
	files := [...]string{"memory.max", "memory.peak", "memory.current"}
	if g.version == 1 {
		files = [...]string{"memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.usage_in_bytes"}
	}
	var lowest Limit
	for _, dir := range g.lineage() {
		limit, ok := number(filepath.Join(dir, files[0]))
		if !ok || limit <= 0 || limit >= unlimited || lowest.Bytes > 0 && limit >= lowest.Bytes {
			continue
		}
		lowest = Limit{Bytes: limit, Group: "/" + strings.Trim(strings.TrimPrefix(dir, g.mount), "/")}
		if dir == g.dir {
			lowest.Group = g.Name
		}
		for _, file := range files[1:] {
			if used, ok := number(filepath.Join(dir, file)); ok {
				lowest.Used = used
				break
			}
		}
	}
	return lowest
}

// unlimited is where numbers begin that mean no limit: version 1 writes a huge one.
const unlimited = 1 << 50

// MemoryRoom gives what the memory limits of the group, and of those above it, leave now; what the kernel would give back of its file cache counts as left. limited
// is false where there is no limit.
func (g Group) MemoryRoom() (bytes int64, limited bool) {
	limitFile, usedFile, cached := "memory.max", "memory.current", "inactive_file"
	if g.version == 1 {
		limitFile, usedFile, cached = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
	}
	for _, dir := range g.lineage() {
		limit, ok := number(filepath.Join(dir, limitFile))
		used, known := number(filepath.Join(dir, usedFile))
		if !ok || !known || limit >= unlimited {
			continue // no limit here, or no such file: the root of version 2 has none
		}
		text, _ := os.ReadFile(filepath.Join(dir, "memory.stat")) // without it nothing counts as what can be given back
		if left := limit - used + statOf(string(text), cached); !limited || left < bytes {
			bytes, limited = left, true
		}
	}
	return max(bytes, 0), limited
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

// OutOfMemoryKills is how many processes of the group the kernel's out-of-memory killer has ended since the group was made; for the root of version 2,
// where no group counts, how many of the whole machine. Kernels before 4.13 do not count them.
func (g Group) OutOfMemoryKills() (int64, bool) {
	file := "memory.events"
	if g.version == 1 {
		file = "memory.oom_control"
	}
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	if g.version != 1 && errors.Is(err, os.ErrNotExist) {
		text, err = os.ReadFile(g.vmstat)
	}
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// Quota is how many processors the group, and those above it, may keep busy; 0 for any number.
func (g Group) Quota() float64 {
	var lowest float64
	for _, dir := range g.lineage() {
		if n := g.quotaOf(dir); n > 0 && (lowest == 0 || n < lowest) {
			lowest = n
		}
	}
	return lowest
}

func (g Group) quotaOf(dir string) float64 {
	var quota, period int64
	var ok bool
	if g.version == 1 {
		var known bool
		quota, known = number(filepath.Join(dir, "cpu.cfs_quota_us"))
		period, ok = number(filepath.Join(dir, "cpu.cfs_period_us"))
		ok = ok && known
	} else {
		text, err := os.ReadFile(filepath.Join(dir, "cpu.max"))
		fields := strings.Fields(string(text))
		if err != nil || len(fields) != 2 {
			return 0
		}
		var errQuota, errPeriod error
		quota, errQuota = strconv.ParseInt(fields[0], 10, 64) // "max" is none
		period, errPeriod = strconv.ParseInt(fields[1], 10, 64)
		ok = errQuota == nil && errPeriod == nil
	}
	if !ok || quota <= 0 || period <= 0 {
		return 0
	}
	return float64(quota) / float64(period)
}

func number(path string) (int64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}
