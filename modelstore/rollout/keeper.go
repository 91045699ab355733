package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// keeper looks after the versions whose workers are not always the same ones: it adds and ends workers as the load wants it, has the first one started
// by a request, and replaces those that are due. One goroutine does it, from the first such version to the end of the Manager.
type keeper struct {
	once   sync.Once
	roused chan struct{}   // holds one: somebody waits for a worker where there is none
	ctx    context.Context //nolint:containedctx // a life-long "done", not a call's context
	cancel context.CancelFunc
	done   sync.WaitGroup
}

func newKeeper() *keeper {
	k := &keeper{roused: make(chan struct{}, 1)}
	k.ctx, k.cancel = context.WithCancel(WithActor(context.Background(), Actor{Who: "autoscale"}))
	return k
}

// end ends the goroutine, if there is one, and waits for it.
func (k *keeper) end() {
	k.cancel()
	k.once.Do(func() {}) // none begins any more
	k.done.Wait()
}

// rouse has the keeper look at once.
func (k *keeper) rouse() {
	select {
	case k.roused <- struct{}{}:
	default: // it does already
	}
}

// tended is what the keeper knows about a version.
type tended struct {
	generation int
	scaler     *scaler
	seen       time.Time // the last look
	use        usage     // as it was then
	refused    time.Time // when it was told last that workers were not added; zero since some were
	recycling  recycling
}

// look begins the goroutine when the version wants it.
func (m *Manager) look(g *generation) {
	if !m.scales(g) && !g.settings.toZero && g.settings.recycle.none() {
		return
	}
	m.keeper.once.Do(func() {
		m.keeper.done.Go(func() { m.tend(m.keeper.ctx) })
	})
}

// scales says whether the generation's number of workers follows the load; the version's mu is held.
func (m *Manager) scales(g *generation) bool {
	return m.opts.Autoscale != nil && m.opts.Demand != nil && g.max > g.min
}

func (m *Manager) tend(ctx context.Context) {
	tick := time.NewTicker(tendEvery)
	defer tick.Stop()
	known := map[*Version]*tended{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.keeper.roused:
			for _, v := range m.versions() {
				if v.pool.isCalled() {
					_ = m.contain("a worker was woken", func() { v.wake(ctx) }) // whoever waits comes by again
				}
			}
			continue
		case <-tick.C:
		}
		all := m.versions()
		for _, v := range all {
			t := known[v]
			if t == nil {
				t = &tended{}
				known[v] = t
			}
			_ = m.contain("a version was looked after", func() { v.tend(ctx, t, time.Now()) })
		}
		for v := range known {
			if !slices.Contains(all, v) {
				delete(known, v)
			}
		}
	}
}

// versions gives all the versions that can be found.
func (m *Manager) versions() []*Version {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*Version
	for _, mod := range m.models {
		for _, v := range mod.versions {
			all = append(all, v)
		}
	}
	return all
}

// tend looks at a version, and does what is due.
func (v *Version) tend(ctx context.Context, t *tended, now time.Time) {
	m := v.manager
	if v.pool.isCalled() {
		v.wake(ctx)
		return
	}
	g := v.current.Load()
	v.mu.Lock()
	scales := m.scales(g) || m.opts.Autoscale != nil && g.zeroable()
	v.mu.Unlock()
	if t.generation != g.number {
		*t = tended{generation: g.number}
	}
	v.replaceDue(ctx, g, &t.recycling, now)
	if !scales {
		t.scaler = nil
		return
	}
	use := v.pool.usage()
	if t.scaler == nil || t.seen.IsZero() {
		t.scaler, t.seen, t.use = newScaler(*m.opts.Autoscale), now, use
		return
	}
	x := v.sample(g, t, use, now)
	t.seen, t.use = now, use
	if v.pool.hasConcurrent() { // such a worker takes all that comes, and nothing waits: workers that do nothing end
		x.demand.Oldest, x.peak = 0, x.ready
		if x.busy > 0 {
			x.busy = float64(x.ready)
		}
	}
	to, why := t.scaler.decide(&x)
	if to != x.workers {
		v.follows(ctx, g, t, x.workers, to, why)
	}
}

// sample gives how the version does.
func (v *Version) sample(g *generation, t *tended, use usage, now time.Time) sample {
	x := sample{
		at: now, batch: max(1, g.settings.batchSize), peak: use.peak, begun: use.begun != t.use.begun, keepAlive: g.settings.keepAlive,
		busy: float64(use.spent-t.use.spent) / float64(max(1, now.Sub(t.seen))),
	}
	if v.manager.opts.Demand != nil {
		x.demand = v.manager.opts.Demand(v)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	x.min, x.max = g.min, g.max
	for _, w := range g.workers {
		if !w.healthy() {
			continue
		}
		x.workers++
		switch w.standing() {
		case standsReady:
			x.ready++
		case standsAgain:
			x.again++
		case standsAway:
			x.away++
		case standsNew:
		}
	}
	if !g.zeroable() {
		x.keepAlive = 0
	}
	return x
}

// zeroable says whether the generation may be without workers until a request comes; the version's mu is held.
func (g *generation) zeroable() bool {
	return g.settings.toZero && g.min == 0 && g.max > 0 && !g.ended && !g.version.closing && g.version.manager.opts.Autoscale != nil
}

// refusalEvery is how often it is told that there is no memory for workers that the load wants.
const refusalEvery = 10 * time.Minute

// follows sets the number of workers to what the load wants, as far as the memory that is left allows it.
func (v *Version) follows(ctx context.Context, g *generation, t *tended, from, to int, why string) {
	if to > from {
		fits, refused := v.fits(to - from)
		if fits == 0 {
			if now := time.Now(); t.refused.IsZero() || now.Sub(t.refused) >= refusalEvery {
				t.refused = now
				v.log.Warn("no worker is added although requests wait", "workers", from, "reason", refused)
				v.changed(ctx, g, Change{Kind: ChangeRefused, Reason: fmt.Sprintf("%d → %d workers: %s; %s", from, to, why, refused)})
			}
			return
		}
		to = from + fits
	}
	t.refused = time.Time{}
	v.mu.Lock()
	done := v.current.Load() == g && !g.ended && !v.closing && g.stepTo(from, to) //nolint:contextcheck // a worker outlives the look that adds it
	v.mu.Unlock()
	if !done {
		return // somebody else has scaled in this moment
	}
	v.log.Info("model scaled by its load", "from", from, "to", to, "reason", why)
	v.changed(ctx, g, Change{Kind: ChangeScaled, Workers: to, Before: from, Reason: fmt.Sprintf("%d → %d workers: %s", from, to, why)})
}

// stepTo adds workers, or ends those that do not come up and then the newest ones; the version's mu is held.
func (g *generation) stepTo(from, to int) bool {
	healthy := 0
	for _, w := range g.workers {
		if w.healthy() {
			healthy++
		}
	}
	if healthy != from || to < g.min || to > g.max {
		return false
	}
	for ; healthy < to; healthy++ {
		g.workers = append(g.workers, g.newWorker())
	}
	for _, wanted := range []func(*worker) bool{(*worker).isAbsent, (*worker).healthy} {
		for at := len(g.workers) - 1; at >= 0 && healthy > to; at-- {
			if w := g.workers[at]; w.healthy() && wanted(w) {
				g.workers = slices.Delete(g.workers, at, at+1)
				g.letGo(w)
				healthy--
			}
		}
	}
	return true
}

// fits says how many workers more the memory has room for, and why not more when that is none.
func (v *Version) fits(more int) (fits int, why string) {
	if v.manager.opts.Available == nil {
		return more, ""
	}
	left, known := v.manager.opts.Available()
	if !known {
		return more, ""
	}
	most := v.largest()
	if most == 0 || most*int64(more) <= left {
		return more, ""
	}
	const mega = 1 << 20
	return int(left / most), fmt.Sprintf("a worker has about %d MiB, and %d MiB are left (swap_memory_guard)", most/mega, left/mega)
}

// largest is how much memory the largest worker has for itself.
func (v *Version) largest() int64 {
	v.mu.Lock()
	workers := slices.Clone(v.current.Load().workers)
	v.mu.Unlock()
	var most int64
	for _, w := range workers {
		most = max(most, w.private())
	}
	return most
}

// wake starts a worker of a version that has none and for which a request waits. It does not wait for it.
func (v *Version) wake(ctx context.Context) {
	v.mu.Lock()
	g := v.current.Load()
	g.endHopeless()
	if len(g.workers) > 0 || !g.zeroable() {
		v.mu.Unlock()
		return
	}
	w := g.newWorker() //nolint:contextcheck // a worker outlives the look that adds it
	g.workers = append(g.workers, w)
	v.manager.retiring.Add(1) // Close waits for it only once all its versions are closing
	v.mu.Unlock()
	v.log.Info("a request has a worker started", "worker", w.id)
	v.changed(ctx, g, Change{Kind: ChangeScaled, Workers: 1, Reason: "0 → 1 workers: a request came"})
	go func() {
		defer v.manager.retiring.Done()
		_ = v.manager.contain("a worker was waited for that a request has woken", func() { v.attendWoken(g, w) })
	}()
}

// attendWoken waits for the start of a worker that a request had started. After a failure the next request has one started once a pause is over.
func (v *Version) attendWoken(g *generation, w *worker) {
	err := w.await(v.manager.life) // its start has limits of its own
	pause := v.woken(g, w, err)
	if pause == 0 {
		return
	}
	select {
	case <-v.retired:
	case <-time.After(pause):
		v.mu.Lock()
		defer v.mu.Unlock()
		v.doze()
	}
}

// woken notes how the start of a worker went that a request had started. One that did not come up is ended, and whoever waits hears why: the next request
// has one started again after the pause that it gives.
func (v *Version) woken(g *generation, w *worker, err error) (pause time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err == nil {
		v.sleepless = 0
		return 0
	}
	at := slices.Index(g.workers, w)
	if at < 0 || errors.Is(err, errRetired) { // somebody else has ended it
		return 0
	}
	v.sleepless++
	v.pool.sleep(false, errNoStart(err))
	w.end(v.pool)
	g.workers = slices.Delete(g.workers, at, at+1)
	return delay(v.sleepless + 1)
}

// doze has the pool know whether a request is to have a worker started where there is none; v.mu is held.
func (v *Version) doze() {
	g := v.current.Load()
	v.pool.sleep(g.zeroable(), errNoWorker())
}
