package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// system makes a machine of files.
func system(t *testing.T, files map[string]string) System {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return System{Root: root}
}

const (
	mountsOfTwo = "25 1 0:22 / /proc rw - proc proc rw\n31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
	mountsOfOne = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n" +
		"32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
		"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		files map[string]string
		group string
		limit Limit
		kills int64 // -1: not known
	}{
		"version 2, limit above": {
			map[string]string{
				"proc/self/mountinfo":                     mountsOfTwo,
				"proc/7/cgroup":                           "0::/pod/box\n",
				"sys/fs/cgroup/pod/memory.max":            "67108864\n",
				"sys/fs/cgroup/pod/memory.peak":           "67000000\n",
				"sys/fs/cgroup/pod/memory.current":        "5\n",
				"sys/fs/cgroup/pod/box/memory.max":        "max\n",
				"sys/fs/cgroup/pod/box/memory.current":    "5\n",
				"sys/fs/cgroup/pod/box/memory.events":     "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n",
				"sys/fs/cgroup/memory.max":                "not a number",
				"sys/fs/cgroup/pod/box/memory.events.odd": "oom_kill 9",
			},
			"/pod/box",
			Limit{67108864, 67000000, "/pod"},
			2,
		},
		"version 2, own limit is the lowest, no peak": {
			map[string]string{
				"proc/self/mountinfo":                  mountsOfTwo,
				"proc/7/cgroup":                        "0::/pod/box\n",
				"sys/fs/cgroup/pod/memory.max":         "900\n",
				"sys/fs/cgroup/pod/box/memory.max":     "800\n",
				"sys/fs/cgroup/pod/box/memory.current": "799\n",
			},
			"/pod/box",
			Limit{800, 799, "/pod/box"},
			-1,
		},
		"version 2, namespaced": {
			map[string]string{
				"proc/self/mountinfo":         mountsOfTwo,
				"proc/7/cgroup":               "0::/\n",
				"sys/fs/cgroup/memory.max":    "100\n",
				"sys/fs/cgroup/memory.events": "oom_kill 1\n",
			},
			"/",
			Limit{Bytes: 100, Group: "/"},
			1,
		},
		"version 2, the machine's root": {
			map[string]string{
				"proc/self/mountinfo": mountsOfTwo, "proc/7/cgroup": "0::/\n", "proc/vmstat": "pgfault 5\noom_kill 7\n",
			},
			"/",
			Limit{},
			7,
		},
		"version 2, outside of the namespace": {
			map[string]string{
				"proc/self/mountinfo":         mountsOfTwo,
				"proc/7/cgroup":               "0::/../other\n",
				"sys/fs/cgroup/memory.events": "oom_kill 4\n",
			},
			"/../other",
			Limit{},
			4,
		},
		"version 1": {
			map[string]string{
				"proc/self/mountinfo": mountsOfOne, "proc/7/cgroup": "4:memory:/box\n3:cpu,cpuacct:/other\n0::/\n",
				"sys/fs/cgroup/memory/memory.limit_in_bytes":         "9223372036854771712\n",
				"sys/fs/cgroup/memory/box/memory.limit_in_bytes":     "4096\n",
				"sys/fs/cgroup/memory/box/memory.max_usage_in_bytes": "4095\n",
				"sys/fs/cgroup/memory/box/memory.oom_control":        "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
			},
			"/box",
			Limit{4096, 4095, "/box"},
			5,
		},
		"version 1, an old kernel": {
			map[string]string{
				"proc/self/mountinfo":                     mountsOfOne,
				"proc/7/cgroup":                           "4:memory:/\n",
				"sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n",
			},
			"/",
			Limit{},
			-1,
		},
		"version 1, in a container without namespace, with a blank": {
			map[string]string{
				"proc/self/mountinfo":                        `35 31 0:32 /docker/ab /sys/fs/my\040groups rw - cgroup cgroup rw,memory` + "\n",
				"proc/7/cgroup":                              "4:memory:/docker/ab/in (deleted)\n",
				"sys/fs/my groups/in/memory.oom_control":     "oom_kill 6\n",
				"sys/fs/my groups/in/memory.limit_in_bytes":  "10",
				"sys/fs/my groups/memory.limit_in_bytes":     "10",
				"sys/fs/my groups/memory.usage_in_bytes":     "1",
				"sys/fs/my groups/in/memory.usage_in_bytes":  "bad",
				"sys/fs/my groups/in/memory.max_usage_bytes": "",
			},
			"/docker/ab/in",
			Limit{Bytes: 10, Group: "/docker/ab/in"},
			6,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, err := system(t, tc.files).Memory(7)
			if err != nil || g.Name != tc.group {
				t.Fatalf("%q, %v", g.Name, err)
			}
			if got := g.MemoryLimit(); got != tc.limit {
				t.Errorf("limit %+v, want %+v", got, tc.limit)
			}
			kills, ok := g.OutOfMemoryKills()
			if ok != (tc.kills >= 0) || ok && kills != tc.kills {
				t.Errorf("kills %d, %t, want %d", kills, ok, tc.kills)
			}
		})
	}
}

// TestTextsOfLimits are what a file of a limit may say.
func TestTextsOfLimits(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"1073741824\n": 1 << 30, "max\n": 0, "9223372036854771712\n": 0, "0": 0, "": 0} {
		s := system(t, map[string]string{"proc/self/mountinfo": mountsOfTwo, "proc/7/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": text})
		g, err := s.Memory(7)
		if err != nil {
			t.Fatal(err)
		}
		if got := g.MemoryLimit().Bytes; got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestMemoryRoom(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		files   map[string]string
		room    int64
		limited bool
	}{
		"version 2, the group above leaves less": {map[string]string{
			"proc/self/mountinfo": mountsOfTwo, "proc/7/cgroup": "0::/pod/box\n",
			"sys/fs/cgroup/pod/memory.max": "1000\n", "sys/fs/cgroup/pod/memory.current": "900\n", "sys/fs/cgroup/pod/memory.stat": "anon 5\ninactive_file 50\n",
			"sys/fs/cgroup/pod/box/memory.max": "800\n", "sys/fs/cgroup/pod/box/memory.current": "100\n",
		}, 150, true},
		"version 2, no limit": {map[string]string{
			"proc/self/mountinfo": mountsOfTwo, "proc/7/cgroup": "0::/box\n",
			"sys/fs/cgroup/box/memory.max": "max\n", "sys/fs/cgroup/box/memory.current": "100\n",
		}, 0, false},
		"version 2, over its limit": {map[string]string{
			"proc/self/mountinfo": mountsOfTwo, "proc/7/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "100\n", "sys/fs/cgroup/memory.current": "120\n",
		}, 0, true},
		"version 1, cache of the groups below": {map[string]string{
			"proc/self/mountinfo": mountsOfOne, "proc/7/cgroup": "4:memory:/box\n0::/other\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "9000\n",
			"sys/fs/cgroup/memory/box/memory.limit_in_bytes": "4096\n", "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "4000\n",
			"sys/fs/cgroup/memory/box/memory.stat": "inactive_file 1\ntotal_inactive_file 4\n",
		}, 100, true},
		"version 1, no limit": {map[string]string{
			"proc/self/mountinfo": mountsOfOne, "proc/7/cgroup": "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "9000\n",
		}, 0, false},
	} {
		g, err := system(t, tc.files).Memory(7)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if room, limited := g.MemoryRoom(); room != tc.room || limited != tc.limited {
			t.Errorf("%s: %d, %t", name, room, limited)
		}
	}
}

func TestQuota(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		files map[string]string
		want  float64
	}{
		"version 2, lowest above": {map[string]string{
			"proc/self/mountinfo": mountsOfTwo, "proc/7/cgroup": "0::/pod/box\n",
			"sys/fs/cgroup/pod/cpu.max": "150000 100000\n", "sys/fs/cgroup/pod/box/cpu.max": "400000 100000\n",
		}, 1.5},
		"version 2, none": {map[string]string{
			"proc/self/mountinfo": mountsOfTwo, "proc/7/cgroup": "0::/box\n", "sys/fs/cgroup/box/cpu.max": "max 100000\n",
		}, 0},
		"version 2, no file": {map[string]string{"proc/self/mountinfo": mountsOfTwo, "proc/7/cgroup": "0::/box\n"}, 0},
		"version 1": {map[string]string{
			"proc/self/mountinfo": mountsOfOne, "proc/7/cgroup": "3:cpu,cpuacct:/box\n",
			"sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "50000\n", "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
		}, 0.5},
	} {
		g, err := system(t, tc.files).CPU(7)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := g.Quota(); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestNoGroups(t *testing.T) {
	t.Parallel()
	for name, files := range map[string]map[string]string{
		"mounts":          {"proc/7/cgroup": "0::/\n"},
		"process 7":       {"proc/self/mountinfo": mountsOfTwo},
		"are mounted":     {"proc/self/mountinfo": "25 1 0:22 / /proc rw - proc proc rw\nbad\n", "proc/7/cgroup": "0::/\n"},
		"has no control ": {"proc/self/mountinfo": mountsOfTwo, "proc/7/cgroup": "4:memory:/\nbad\n0::relative\n"},
	} {
		if g, err := system(t, files).Memory(7); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %+v, %v", name, g, err)
		}
	}
}

// The kernel of this machine is understood.
func TestThisMachine(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/cgroup"); err != nil {
		t.Skip("no control groups here")
	}
	s := System{}
	if g, err := s.Memory(os.Getpid()); err != nil {
		t.Log(err)
	} else if _, err := os.Stat(g.dir); err != nil {
		t.Errorf("the folder of %q: %v", g.Name, err)
	}
	if g, err := s.CPU(os.Getpid()); err == nil && g.Quota() < 0 {
		t.Errorf("quota %v", g.Quota())
	}
}

// FuzzFind: whatever the kernel's files hold, a group is below its mount.
func FuzzFind(f *testing.F) {
	f.Add(mountsOfOne, "4:memory:/box\n")
	f.Add(mountsOfTwo, "0::/../x\n")
	f.Add(`1 1 0:1 /a\040 /m\134 rw - cgroup2 c rw`+"\n", "0::/a /b\n")
	f.Fuzz(func(t *testing.T, mounts, membership string) {
		for _, controller := range []string{memoryController, cpuController} {
			m, ok := findMount(mounts, controller)
			if !ok {
				continue
			}
			name, ok := findName(membership, controller, m.version)
			if !ok {
				continue
			}
			base := filepath.Join("/base", m.point)
			if dir := filepath.Join(base, m.below(name)); dir != base && !strings.HasPrefix(dir, strings.TrimRight(base, "/")+"/") {
				t.Errorf("%q in %q: %s is not below %s", name, mounts, dir, base)
			}
		}
	})
}
