package watch

import (
	"context"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// contain calls f, and tells of a panic in it, which it gives.
func (w *Watcher) contain(doing string, f func()) error {
	return fault.ContainAndTell(doing, f, w.opts.Panicked, w.opts.Logger)
}

// afterBug is the pause before the store is read again after a bug; it doubles, up to the regular time between two readings.
const afterBug = time.Second

// attempt calls f. When a bug ends it, nothing is taken for known or told of what it has left half done: the store is soon read once more, and all of it
// told.
func (r *run) attempt(doing string, f func()) {
	if r.contain(doing, f) == nil {
		return
	}
	const mostDoublings = 16
	r.due = time.Now().Add(min(afterBug<<min(r.bugs, mostDoublings), max(r.opts.Poll, afterBug)))
	r.bugs++
	r.sent, r.waiting = nil, nil
	r.book.release(func(id uint64) bool { return r.looks[id] != nil })
}

// inspected looks into an entry. A bug in that is no reason to take what lies there, nor to look into it no more.
func (r *run) inspected(ctx context.Context, l look) (v verdict) {
	if bug := r.contain("an archive was looked into", func() { v = r.inspect(ctx, l) }); bug != nil {
		v = verdict{problem: "it cannot be looked into: the server has a bug, which its log describes", passing: true}
	}
	return v
}
