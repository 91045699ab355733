package host

import (
	"sync"
	"time"

	"github.com/flambeau-serve/flambeau/internal/cgroup"
)

// rememberKill is for how long a kill of the out-of-memory killer may be that of a process that is found dead: one with much memory takes its time to
// end.
const rememberKill = 30 * time.Second

// killWatch tells whether a process that was killed was killed for memory. The kernel only counts, for each control group, and the workers of a server
// are usually in one: so each rise of the count is the death of one process.
type killWatch struct {
	system cgroup.System

	mu     sync.Mutex // guards groups
	groups map[cgroup.Group]*killCount
}

// killCount is what was seen of a group's count.
type killCount struct {
	users int         // processes in it
	known bool        // the kernel counts
	seen  int64       // the count when it was read last
	rises []time.Time // kills that nobody has claimed, the oldest first
}

func newKillWatch(system cgroup.System) *killWatch {
	return &killWatch{system: system, groups: map[cgroup.Group]*killCount{}}
}

// membership is the control group that a process is counted in; the zero value is for one that is not known.
type membership struct {
	group cgroup.Group
	known bool
}

// follow counts a process in the group where it is now, and no longer in the one where it was.
func (w *killWatch) follow(pid int, was membership) membership {
	group, err := w.system.Memory(pid)
	if err != nil {
		return was // it is gone, or this machine has no groups
	}
	if was.known && (was.group == group || group.Name == "/") { // of version 1, the kernel names the root for a process that is ending
		w.read(was.group)
		return was
	}
	w.leave(was)
	w.mu.Lock()
	c := w.groups[group]
	if c == nil {
		c = &killCount{}
		w.groups[group] = c
	}
	c.users++
	w.mu.Unlock()
	w.read(group)
	return membership{group: group, known: true}
}

// leave is called once for a process that is gone.
func (w *killWatch) leave(m membership) {
	if !m.known {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.groups[m.group]; c != nil {
		if c.users--; c.users <= 0 {
			delete(w.groups, m.group)
		}
	}
}

// read takes over a group's count.
func (w *killWatch) read(group cgroup.Group) {
	kills, ok := group.OutOfMemoryKills()
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.groups[group]
	if c == nil || !ok {
		return
	}
	if !c.known {
		c.known, c.seen = true, kills // what was before is nobody's
	}
	for ; c.seen < kills; c.seen++ {
		c.rises = append(c.rises, now)
	}
	for len(c.rises) > 0 && now.Sub(c.rises[0]) > rememberKill {
		c.rises = c.rises[1:]
	}
}

// claim says whether a process of the group that has been killed was killed for memory, and how many of the group have been; counted is false where the
// kernel does not tell.
func (w *killWatch) claim(m membership) (killed bool, kills int64, counted bool) {
	if !m.known {
		return false, 0, false
	}
	w.read(m.group)
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.groups[m.group]
	if c == nil || !c.known {
		return false, 0, false
	}
	if len(c.rises) == 0 {
		return false, c.seen, true
	}
	c.rises = c.rises[1:]
	return true, c.seen, true
}
