package batch

import "sync"

// Budget bounds the payload bytes that wait in several queues together. Its methods are safe for concurrent use.
type Budget struct {
	limit int64

	mu   sync.Mutex // guards what follows; it is taken under the queues' own
	used int64
}

// NewBudget makes a budget of so many bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// Used tells how many bytes wait, and how many may.
func (b *Budget) Used() (used, limit int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used, b.limit
}

// take reserves n bytes if there is room; a request that waits alone always has room. A nil Budget has room for anything.
func (b *Budget) take(n int64) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used > 0 && b.used+n > b.limit {
		return false
	}
	b.used += n
	return true
}

// fits says whether take would reserve n bytes now.
func (b *Budget) fits(n int64) bool {
	if b == nil {
		return true
	}
	used, limit := b.Used()
	return used == 0 || used+n <= limit
}

// add counts n bytes, or with a negative n gives them back, whatever the limit.
func (b *Budget) add(n int64) {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.used += n
	b.mu.Unlock()
}
