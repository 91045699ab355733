package httpapi

import (
	"sync"
	"testing"
	"time"
)

// fakeDrain is a drain without a server.
type fakeDrain struct {
	mu sync.Mutex // guards on
	on bool
}

func (d *fakeDrain) Begin() { d.set(true) }
func (d *fakeDrain) End()   { d.set(false) }

func (d *fakeDrain) set(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.on = on
}

func (d *fakeDrain) State() (since time.Time, open int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.on {
		since = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	}
	return since, 2
}

func TestAdminDrain(t *testing.T) {
	f, _ := serveAdmin(t)
	f.check(t, Management, []exchange{{"GET", "/admin/drain", 404, "is not found"}})

	f = serve(t, func(o *Options) { o.Admin = &Admin{Drain: &fakeDrain{}} })
	const on, off = `{"draining":true,"since":"2026-01-02T03:04:05Z","requests":2}`, `{"draining":false,"since":null,"requests":2}`
	f.check(t, Management, []exchange{
		{"GET", "/admin/drain", 200, off},
		{"POST", "/admin/drain", 200, on},
		{"POST", "/admin/drain?wait=0", 200, on},
		{"GET", "/admin/drain", 200, on},
		{"DELETE", "/admin/drain", 200, off},
		{"POST", "/admin/drain?wait=601", 400, "600 are the most"},
		{"POST", "/admin/drain?wait=x", 400, "wait"},
		{"DELETE", "/admin/drain?wait=1", 400, "wait is not known here"},
		{"PUT", "/admin/drain", 405, ""},
		{"GET", "/admin/drain", 200, off},
	})
}
