// Package crashes keeps the last crashes of each model version.
package crashes

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// Bounds of what is kept.
const (
	Kept         = 10      // crashes of a model version
	mostModels   = 200     // model versions: the one that crashed the longest time ago goes first
	mostRequests = 100     // of a crash
	mostText     = 1 << 10 // bytes of a line
)

// Record is a crash and whose it was.
type Record struct {
	Model      string `json:"model"`
	Version    string `json:"version"`
	Worker     int    `json:"worker"`
	Generation int    `json:"generation"` // which load of the version it was
	Restarts   int    `json:"restarts"`   // of the worker before
	backend.Crash

	LeftOut int `json:"requests_left_out,omitempty"` // requests that are not listed
}

// Book keeps records in memory. Its methods are safe for concurrent use; its zero value is empty.
type Book struct {
	mu      sync.Mutex                  // guards records
	records map[infer.ModelRef][]Record // the oldest first
}

// Add keeps a crash, shortened to what is worth its memory.
func (b *Book) Add(r Record) {
	if n := len(r.Requests) - mostRequests; n > 0 {
		r.LeftOut = n
		r.Requests = r.Requests[:mostRequests]
	}
	r.Requests = slices.Clone(r.Requests)
	r.Lines = slices.Clone(r.Lines)
	for i := range r.Lines {
		if text := r.Lines[i].Text; len(text) > mostText {
			r.Lines[i].Text = strings.ToValidUTF8(text[:mostText], "") + "…"
		}
	}
	ref := infer.ModelRef{Name: r.Model, Version: r.Version}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.records == nil {
		b.records = map[infer.ModelRef][]Record{}
	}
	all := append(b.records[ref], r)
	b.records[ref] = slices.Delete(all, 0, max(0, len(all)-Kept))
	if len(b.records) > mostModels {
		var oldest infer.ModelRef
		for ref, all := range b.records {
			if last := b.records[oldest]; last == nil || all[len(all)-1].At.Before(last[len(last)-1].At) {
				oldest = ref
			}
		}
		delete(b.records, oldest)
	}
}

// List gives the crashes of a model's version, the latest first; without a version those of all its versions, and without a name those of all models.
func (b *Book) List(model infer.ModelRef) []Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	found := []Record{}
	for ref, all := range b.records {
		if (model.Name == "" || model.Name == ref.Name) && (model.Version == "" || model.Version == ref.Version) {
			found = append(found, all...)
		}
	}
	slices.SortStableFunc(found, func(a, b Record) int {
		return cmp.Or(b.At.Compare(a.At), strings.Compare(a.Model, b.Model), strings.Compare(a.Version, b.Version), cmp.Compare(a.Worker, b.Worker))
	})
	return found
}

// Forget forgets the crashes of a model version.
func (b *Book) Forget(model infer.ModelRef) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.records, model)
}

// Restore adds what List gave in another life of the server.
func (b *Book) Restore(records []Record) {
	for _, r := range slices.Backward(records) {
		b.Add(r)
	}
}
