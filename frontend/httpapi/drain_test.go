package httpapi

import (
	"sync"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// fakeDrain is a drain without a server.
type fakeDrain struct {
	begun  chan struct{} // has something after the first Begin
	ending chan struct{}

	mu sync.Mutex // guards on
	on bool
}

func newFakeDrain() *fakeDrain {
	return &fakeDrain{begun: make(chan struct{}, 1), ending: make(chan struct{})}
}

func (d *fakeDrain) Begin() {
	d.set(true)
	select {
	case d.begun <- struct{}{}:
	default:
	}
}

func (d *fakeDrain) End() error {
	select {
	case <-d.ending:
		return fault.New(fault.Conflict, "asked to end", nil)
	default:
	}
	d.set(false)
	return nil
}

func (d *fakeDrain) Ending() <-chan struct{} { return d.ending }

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

	f = serve(t, func(o *Options) { o.Admin = &Admin{Drain: newFakeDrain()} })
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

// TestWaitEndsWithTheServer has POST not hold up a server that was asked to end, which DELETE cannot take back.
func TestWaitEndsWithTheServer(t *testing.T) {
	d := newFakeDrain()
	f := serve(t, func(o *Options) { o.Admin = &Admin{Drain: d} })
	done := make(chan reply, 1)
	begun := time.Now()
	go func() { done <- do(t, f.addr[Management], "POST", "/admin/drain?wait=600", "") }()
	<-d.begun
	close(d.ending)
	if r := <-done; r.status != 200 || time.Since(begun) > time.Minute {
		t.Errorf("%d %s after %s", r.status, r.body, time.Since(begun))
	}
	f.check(t, Management, []exchange{{"DELETE", "/admin/drain", 409, "asked to end"}, {"POST", "/admin/drain?wait=600", 200, "true"}})
}
