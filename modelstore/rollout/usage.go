package rollout

import "time"

// usage counts what a pool's slots are used for; the pool's mu guards it.
type usage struct {
	slots int           // that are handed out
	peak  int           // the most at one time since usage was called
	begun uint64        // how many were, so far
	spent time.Duration // how long they were, summed up over the slots, until noted
	noted time.Time
}

// note counts a slot that is handed out, or given back.
func (u *usage) note(change int) {
	now := time.Now()
	u.spent += time.Duration(u.slots) * now.Sub(u.noted)
	u.noted = now
	u.slots += change
	if change > 0 {
		u.begun++
		u.peak = max(u.peak, u.slots)
	}
}

// usage gives the counts of this moment.
func (p *pool) usage() usage {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.use.note(0)
	use := p.use
	p.use.peak = p.use.slots
	return use
}

// whyAbsent is why there is no worker to wait for.
func (p *pool) whyAbsent() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hopeless()
}

// sleep says whether who asks for a worker where there is none is to have one started; else he hears why.
func (p *pool) sleep(dormant bool, why error) {
	p.under(func() (_ []match, orphans []*waiter) {
		p.dormant, p.absent = dormant, why
		return nil, p.vain()
	})
}

// isCalled says whether somebody waits for a worker to be started.
func (p *pool) isCalled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dormant && len(p.waiters) > 0 && !p.hopeful()
}

// hasConcurrent says whether an instance runs several batches at the same time.
func (p *pool) hasConcurrent() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.ready {
		if m.slots > 1 {
			return true
		}
	}
	return false
}
