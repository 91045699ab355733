package host

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// Heartbeat says how processes are found that live and do nothing: stopped ones, and such that hang in the kernel. What answers is the plugin's own side
// of the border, on threads of its own, whatever the handler does: so no handler is too busy for it, and one that never ends is found by the response
// timeout instead.
type Heartbeat struct {
	Interval time.Duration // between two; below 0 there are none
	// Patience is how long nothing may come before the process is killed. A process that uses the processor meanwhile, or waits for one, is not: it is only slow.
	Patience time.Duration
}

// The defaults find a wedged process after about five seconds.
const (
	DefaultInterval = time.Second
	DefaultPatience = 5 * time.Second
)

// leastMissed is how many heartbeats at least are missed before a process is killed, so that a pause of this server is not taken for one of the process.
const leastMissed = 3

// pulse is the state of a process's heartbeats.
type pulse struct {
	missed int
	since  time.Time // when the first missed one was sent
	then   vitals    // as they were then
	told   bool      // that it is slow, since its last answer
}

// verdict is what is to be made of a missed heartbeat.
type verdict int

const (
	wait   verdict = iota // it is too early to say
	atWork                // it is slow, or a debugger has it
	wedged
)

// miss counts a missed heartbeat that was sent at sent, and judges by the vitals before it and now.
func (p *pulse) miss(sent, now time.Time, before, after vitals, patience time.Duration) verdict {
	if p.missed == 0 {
		p.since, p.then = sent, before
	}
	p.missed++
	switch {
	case after.traced || after.eager || after.ticks > p.then.ticks:
		*p = pulse{told: p.told}
		return atWork
	case p.missed < leastMissed || now.Sub(p.since) < patience:
		return wait
	}
	return wedged
}

// watch looks after the process until its connection is closed or it is asked to end. A panic costs what was known of its heartbeats so far.
func (i *instance) watch() {
	for i.launcher.contain("a worker was looked after", i.attendPulse) != nil {
		select {
		case <-i.process.done:
		case <-i.life.Done():
		case <-time.After(DefaultInterval):
		}
	}
}

// attendPulse does the work of watch.
func (i *instance) attendPulse() {
	interval := i.launcher.opts.Heartbeat.Interval
	beats := interval > 0
	if !beats {
		interval = DefaultInterval
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	health := grpc_health_v1.NewHealthClient(i.conn)
	var p pulse
	var served uint64
	i.process.observe() // its start may have put it into another control group
	for ticks := 1; ; ticks++ {
		select {
		case <-i.process.done:
			return
		case <-i.life.Done():
			return
		case <-tick.C:
		}
		if observesAt(ticks) {
			i.process.observe()
		}
		if !beats {
			continue
		}
		if now := i.served(); now != served { // an answer is a sign of life, too, and costs nothing
			p, served = pulse{}, now
			continue
		}
		if !i.beat(health, &p) {
			return
		}
	}
}

// observesAt says at which ticks a process is looked at for what only a living one tells: at each of the first ones, when most changes, and at every tenth
// later. It takes a dozen files to read, which is much beside a request.
func observesAt(tick int) bool {
	const first, rarely = 10, 10
	return tick <= first || tick%rarely == 0
}

// served counts the batches that the process has answered.
func (i *instance) served() uint64 {
	i.mu.Lock()
	x := i.exchange
	i.mu.Unlock()
	if x == nil {
		return 0
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.served
}

// beat sends a heartbeat and waits for its answer. It is false once there is nobody to send the next one to.
func (i *instance) beat(health grpc_health_v1.HealthClient, p *pulse) bool {
	opts := i.launcher.opts.Heartbeat
	sent := time.Now()
	before, ok := readVitals(i.PID())
	if !ok {
		return true // it is just ending
	}
	ctx, cancel := context.WithTimeout(i.life, opts.Interval)
	defer cancel()
	_, err := health.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: plugin.GRPCServiceName})
	if err == nil || ctx.Err() == nil { // an error that is not the time limit's is an answer, or the end
		*p = pulse{}
		return true
	}
	i.mu.Lock()
	asked := i.asked
	i.mu.Unlock()
	if asked || i.life.Err() != nil {
		return false // Stop has a limit of its own
	}
	after, ok := readVitals(i.PID())
	if !ok {
		return true
	}
	after.eager = isEager(i.PID())
	switch missed := p.missed + 1; p.miss(sent, time.Now(), before, after, opts.Patience) {
	case wait:
	case atWork:
		if p.told {
			break
		}
		p.told = true
		i.launcher.opts.Logger.Warn("worker answers no heartbeat, but is at work or held by a debugger", "worker_pid", i.PID(), "missed", missed)
	case wedged:
		i.process.kill(fmt.Errorf("%w: it answered no heartbeat for %v and neither used a processor nor waited for one (its state is %s)",
			errWedged, time.Since(p.since).Round(time.Millisecond), stateName(after.state)))
		return false
	}
	return true
}

// stateName says a process's state for people.
func stateName(letter string) string {
	switch letter {
	case "T":
		return "T: stopped by a signal"
	case "D":
		return "D: waiting in the kernel, and nothing can interrupt it"
	case "S":
		return "S: sleeping"
	}
	return letter
}
