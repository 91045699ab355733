package httpapi

import (
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/dispatch"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// fakeTuning has found something for version 1.0 of the model echo.
type fakeTuning struct {
	frozen  bool
	workers []dispatch.WorkerTuning
}

func (f *fakeTuning) Tuning(ref infer.ModelRef) (dispatch.Tuning, error) {
	if ref.Name != "echo" {
		return dispatch.Tuning{}, fault.Newf(fault.ModelNotFound, "Model not found: %s", ref.Name)
	}
	return dispatch.Tuning{
		Size: 38, MostSize: 64, Delay: 2500 * time.Microsecond, MostDelay: 100 * time.Millisecond, Goal: 80 * time.Millisecond, Frozen: f.frozen, Workers: f.workers,
	}, nil
}

func (f *fakeTuning) Freeze(ref infer.ModelRef, on bool) error {
	f.frozen = on
	_, err := f.Tuning(ref)
	return err
}

func TestAdminTuning(t *testing.T) {
	const found = `"p99Ms":80,"now":{"batchSize":38,"maxBatchDelay":2.5},"bounds":{"batchSize":64,"maxBatchDelay":100},"frozen":`
	f := serve(t, func(o *Options) { o.Admin = &Admin{Tuning: &fakeTuning{}} })
	f.check(t, Management, []exchange{
		{"GET", "/admin/models/echo/tuning", 200, found + `false,"config":"batchSize: 38\nmaxBatchDelay: 3\n"}`},
		{"PUT", "/admin/models/echo/tuning?frozen=true", 200, found + "true"},
		{"GET", "/admin/models/echo/tuning?version=1.0", 200, found + "true"},
		{"PUT", "/admin/models/echo/tuning?frozen=false", 200, found + "false"},
		{"PUT", "/admin/models/echo/tuning?frozen=no", 400, "has to be true or false"},
		{"PUT", "/admin/models/echo/tuning", 400, "has to be true or false"},
		{"GET", "/admin/models/echo/tuning?frozen=true", 400, "Parameter frozen is not known here"},
		{"GET", "/admin/models/nomodel/tuning", 404, noModel},
		{"PUT", "/admin/models/nomodel/tuning?frozen=true", 404, noModel},
		{"POST", "/admin/models/echo/tuning", 405, ""},
	})
	f = serve(t, func(o *Options) {
		o.Admin = &Admin{Tuning: &fakeTuning{workers: []dispatch.WorkerTuning{{Worker: 9000, Size: 38, Delay: 100 * time.Millisecond}, {Worker: 9001, Size: 64, Delay: 2500 * time.Microsecond}}}}
	})
	f.check(t, Management, []exchange{
		{"GET", "/admin/models/echo/tuning", 200, found + `false,"config":"batchSize: 38\nmaxBatchDelay: 3\n","workers":[` +
			`{"worker":9000,"batchSize":38,"maxBatchDelay":100},{"worker":9001,"batchSize":64,"maxBatchDelay":2.5}]}`},
	})
	f, _ = serveAdmin(t)
	f.check(t, Management, []exchange{{"GET", "/admin/models/echo/tuning", 404, noRoute}})
}
