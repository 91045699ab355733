package host

import (
	"os"
	"syscall"

	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// observe notes what can be learned of the process only while it is there.
func (p *process) observe() {
	p.mu.Lock()
	if p.gone || p.cmd == nil {
		p.mu.Unlock()
		return
	}
	pid, was := p.cmd.Process.Pid, p.member
	p.mu.Unlock()
	member, peak, address := p.kills.follow(pid, was), peakOf(pid), addressLimitOf(pid)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.member, p.peak = member, max(p.peak, peak)
	if address > 0 {
		p.address = address
	}
}

// examine finds out what there is to know about the process, which has just been reaped.
func (p *process) examine() {
	p.mu.Lock()
	member, peak, address := p.member, p.peak, p.address
	p.mu.Unlock()
	p.body.addressLimit = address
	p.body.memory = backend.CrashMemory{Peak: peak}
	if usage, ok := p.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		// Its largest size as the kernel has it: up to the exec that was this server's, so what is not above that says nothing.
		if most := usage.Maxrss << 10; most > peakOf(os.Getpid()) {
			p.body.memory.Peak = max(peak, most)
		}
	}
	if !member.known {
		return
	}
	if limit := member.group.MemoryLimit(); limit.Bytes > 0 {
		p.body.memory.Limit, p.body.memory.Used = limit.Bytes, limit.Used
		p.body.memory.LimitOf = "its control group " + limit.Group
	}
	if !p.exit.killed && (p.exit.signal == syscall.SIGKILL || p.exit.code == outOfMemoryCode) {
		killed, kills, counted := p.kills.claim(member)
		p.body.killed, p.body.memory.Kills = killed, kills
		p.body.memory.Spared = counted && !killed
	}
	p.kills.leave(member)
}
