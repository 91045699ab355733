package httpapi

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/poison"
	"github.com/flambeau-serve/flambeau/internal/fault"
)

// fakePoison remembers one request of the model echo.
type fakePoison struct{ lifted bool }

func (p *fakePoison) List(model string) ([]Poisoned, error) {
	switch {
	case model != "echo":
		return nil, fault.Newf(fault.ModelNotFound, "Model not found: %s", model)
	case p.lifted:
		return nil, nil
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return []Poisoned{{Version: "1.0", Entry: poison.Entry{Digest: "0123456789abcdef", Bytes: 3, Deaths: 2, First: at, Last: at, Until: at, How: "signal: aborted", ID: "a", Refuse: true}}}, nil
}

func (p *fakePoison) Lift(_ context.Context, _, digest string) (int, error) {
	if p.lifted || !strings.HasPrefix("0123456789abcdef", digest) {
		return 0, nil
	}
	p.lifted = true
	return 1, nil
}

func TestAdminPoison(t *testing.T) {
	f := serve(t, func(o *Options) { o.Admin = &Admin{Poison: &fakePoison{}} })
	f.check(t, Management, []exchange{
		{"GET", "/admin/models/echo/poison", 200, `{"poison":[{"version":"1.0","digest":"0123456789abcdef","bytes":3,"deaths":2,`},
		{"GET", "/admin/models/nomodel/poison", 404, noModel},
		{"DELETE", "/admin/models/echo/poison", 400, "of 8 characters or more"},
		{"DELETE", "/admin/models/echo/poison?digest=0123", 400, "of 8 characters or more"},
		{"DELETE", "/admin/models/echo/poison?digest=ffffffff", 404, "begins with ffffffff"},
		{"DELETE", "/admin/models/echo/poison?digest=012345678", 200, `{"lifted":1}`},
		{"GET", "/admin/models/echo/poison", 200, `{"poison":[]}`},
		{"POST", "/admin/models/echo/poison", 405, ""},
	})
	f, _ = serveAdmin(t)
	f.check(t, Management, []exchange{{"GET", "/admin/models/echo/poison", 404, noRoute}})
}
