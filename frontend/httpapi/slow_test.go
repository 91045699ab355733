package httpapi

import (
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/recent"
)

func TestAdminSlow(t *testing.T) {
	const ms = time.Millisecond
	arrived := time.Now().Add(-time.Minute)
	before := &recent.Batch{Number: 12, Requests: []string{"a"}, Rows: 1, Worker: 9000, PID: 7, Begun: arrived, Ran: 310 * ms}
	book := recent.New(recent.Options{})
	book.Note(&recent.Request{
		ID: "b", Model: "echo", Version: "1.0", Arrived: arrived, Total: 321 * ms, Waited: 300 * ms, Gathered: ms, Ran: 20 * ms, Behind: before,
		Batch: &recent.Batch{Number: 13, Requests: []string{"b", "c"}, Rows: 5, Worker: 9000, PID: 7, Begun: arrived.Add(301 * ms), Ran: 20 * ms}, BytesIn: 6, BytesOut: 9,
	})
	book.Note(&recent.Request{ID: "d", Model: "echo", Version: "1.0", Arrived: arrived, Total: 2 * ms, Waited: 2 * ms, Reason: "queue_full"})
	f := serve(t, func(o *Options) { o.Admin = &Admin{Requests: book} })
	f.check(t, Management, []exchange{
		{"GET", "/admin/models/echo/slow", 200, `"total_ms":321,"waited_ms":300,"gathered_ms":1,"ran_ms":20,"batch":{"number":13,"requests":["b","c"],"rows":5,"worker":9000,"pid":7,`},
		{"GET", "/admin/models/echo/slow?limit=1", 200, `"why":"queue 300ms behind batch 12 (1 request, 310ms in worker 9000)"}]}`},
		{"GET", "/admin/models/echo/slow?seconds=5", 200, `{"requests":[]}`},
		{"GET", "/admin/models/echo/slow?seconds=600", 200, `"reason":"queue_full"`},
		{"GET", "/admin/models/echo/slow?limit=0", 400, "limit is from 1 to 1000"},
		{"GET", "/admin/models/echo/slow?seconds=9999999", 400, "seconds from 1 to 604800"},
		{"GET", "/admin/models/echo/slow?last=1", 400, "last is not known here"},
		{"GET", "/admin/models/nomodel/slow", 404, noModel},
		{"POST", "/admin/models/echo/slow", 405, ""},
		{"GET", "/admin/requests/d", 200, `"batch":null,"behind":null`},
		{"GET", "/admin/requests/e", 404, "Request not found: e"},
		{"DELETE", "/admin/requests/d", 405, ""},
	})
	f, _ = serveAdmin(t)
	f.check(t, Management, []exchange{{"GET", "/admin/requests/d", 404, noRoute}, {"GET", "/admin/models/echo/slow", 404, noRoute}})
}
