package rollout

import (
	"slices"
	"sync"
	"time"

	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// takesAhead says whether an instance gets the next batch while it runs one, so that it need not wait for it: where it says that it can, and where nothing is
// lost by it. A larger batch would better wait for more, and a request that must not be tried again would die with one that is none of its business.
func (r *settings) takesAhead(info backend.Info) bool {
	return info.Ahead && !info.Concurrent && r.batchSize <= 1 && !r.continuousBatching && !r.sequenceBatching && !r.useJobTicket && !r.noRetry
}

// room is how many batches an instance may be given now. One batch more than it runs goes to the only one alone: of several, another one might have
// been free earlier. p.mu is held.
func (p *pool) room(m *member) int {
	if !m.terms.ahead || m.apart || len(p.ready) != 1 || slices.ContainsFunc(p.waiters, func(w *waiter) bool { return w.alone > 0 }) {
		return m.slots
	}
	return m.slots + 1
}

// handed counts a batch that an instance is given. One that is sent ahead takes the slot of another one later. p.mu is held.
func (p *pool) handed(m *member) {
	if m.used++; m.used <= m.slots {
		p.use.note(1)
	}
}

// limitTimer calls late when a batch has had its time. For one that was sent ahead the time begins when the batch before it ends.
func (m *member) limitTimer(limit time.Duration, late func()) *time.Timer {
	var timer *time.Timer
	var set sync.Mutex // guards timer
	set.Lock()
	defer set.Unlock()
	again := false // there is one batch before it at most
	timer = time.AfterFunc(limit, func() {
		set.Lock()
		defer set.Unlock()
		switch left := limit - m.silence(); {
		case m.terms.ahead && m.isOverdue(): // the one before it hangs, and the instance is just being ended with both
		case m.terms.ahead && left > 0 && !again:
			again = true
			timer.Reset(left)
		default:
			late()
		}
	})
	return timer
}
