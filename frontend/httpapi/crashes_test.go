package httpapi

import (
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/crashes"
)

// fakeCrashes has one crash of the model echo.
type fakeCrashes struct{ asked []infer.ModelRef }

func (f *fakeCrashes) Crashes(ref infer.ModelRef) []crashes.Record {
	f.asked = append(f.asked, ref)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return []crashes.Record{{Model: ref.Name, Version: "1.0", Worker: 9000, Generation: 2, Restarts: 1, Crash: backend.Crash{
		PID: 7, At: at, Reason: backend.CrashSignal, How: "signal: segmentation fault", Signal: "SIGSEGV", ExitCode: -1, Requests: []backend.CrashRequest{{ID: "a"}},
	}}}
}

func TestAdminCrashes(t *testing.T) {
	book := &fakeCrashes{}
	f := serve(t, func(o *Options) { o.Admin = &Admin{Crashes: book} })
	f.check(t, Management, []exchange{
		{"GET", "/admin/models/echo/crashes", 200, `{"crashes":[{"model":"echo","version":"1.0","worker":9000,"generation":2,"restarts":1,`},
		{"GET", "/admin/models/echo/crashes?version=1.0", 200, `"signal":"SIGSEGV"`},
		{"GET", "/admin/models/nomodel/crashes", 404, noModel},
		{"GET", "/admin/models/echo/crashes?limit=1", 400, "Parameter limit is not known here."},
		{"POST", "/admin/models/echo/crashes", 405, ""},
	})
	if len(book.asked) != 2 || book.asked[0].Version != "" || book.asked[1].Version != "1.0" {
		t.Errorf("asked for %v", book.asked)
	}
	f, _ = serveAdmin(t)
	f.check(t, Management, []exchange{{"GET", "/admin/models/echo/crashes", 404, noRoute}})
}
