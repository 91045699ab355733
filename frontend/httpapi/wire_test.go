package httpapi

import (
	"fmt"
	"strings"
	"testing"
)

// TestWire sends requests byte for byte and compares the answers' bytes with a golden file.
func TestWire(t *testing.T) {
	f := serve(t, func(o *Options) { o.MaxRequestSize = 100 })
	echo := "POST /predictions/echo HTTP/1.1\r\nHost: h\r\n"
	respond := func(ask string) string {
		return fmt.Sprintf("POST /predictions/respond HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(ask), ask)
	}
	var text strings.Builder
	for _, tc := range []struct {
		name    string
		port    Port
		request string
	}{
		{"no Host", Inference, "GET /ping HTTP/1.1\r\n\r\n"},
		{"HTTP/1.0", Inference, "GET /ping HTTP/1.0\r\n\r\n"},
		{"Connection: close is not heeded", Inference, "GET /ping HTTP/1.1\r\nConnection: close\r\n\r\n"},
		{"bare line ends", Inference, "GET /ping HTTP/1.1\nX: y\n\n"},
		{"line ends of two kinds", Inference, "GET /ping HTTP/1.1\r\nX: y\n\r\n"},
		{"unknown method", Inference, "brew /ping HTTP/1.1\r\n\r\n"},
		{"HEAD", Inference, "HEAD /ping HTTP/1.1\r\n\r\n"},
		{"HEAD runs the model", Inference, "HEAD /predictions/echo HTTP/1.1\r\n\r\n"},
		{"HEAD error", Inference, "HEAD /predictions/none HTTP/1.1\r\n\r\n"},
		{"absolute form", Inference, "GET http://h/ping HTTP/1.1\r\n\r\n"},
		{"asterisk", Inference, "OPTIONS * HTTP/1.1\r\n\r\n"},
		{"authority", Inference, "CONNECT h:1 HTTP/1.1\r\n\r\n"},
		{"bad escape", Inference, "GET /predictions/ec%zzho HTTP/1.1\r\n\r\n"},
		{"cut escape", Inference, "GET /ping%4 HTTP/1.1\r\n\r\n"},
		{"escape that is no text", Inference, "GET /predictions/%ff%C3%A9 HTTP/1.1\r\n\r\n"},
		{"bytes in the target", Inference, "GET /predictions/\xc3\xa9 HTTP/1.1\r\n\r\n"},
		{"markup in a name", Inference, "GET /predictions/<b>'&=\"\\%00%e2%80%a8 HTTP/1.1\r\n\r\n"},
		{"root", Inference, "GET / HTTP/1.1\r\n\r\n"},
		{"malformed line", Inference, "GET /ping\r\n\r\n"},
		{"malformed field", Inference, "GET /ping HTTP/1.1\r\nX : y\r\n\r\n"},
		{"line too long", Inference, "GET /" + strings.Repeat("a", 5000) + " HTTP/1.1\r\n\r\n"},
		{"two lengths", Inference, echo + "Content-Length: 2\r\nContent-Length: 2\r\n\r\nab"},
		{"length and chunks", Inference, echo + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		{"chunks", Inference, echo + "Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n1\r\nc\r\n0\r\nT: u\r\n\r\n"},
		{"malformed chunk", Inference, echo + "Transfer-Encoding: chunked\r\n\r\nzz\r\n"},
		{"unknown expectation", Inference, echo + "Expect: tea\r\nContent-Length: 2\r\n\r\nab"},
		{"too large", Inference, echo + "Content-Length: 101\r\n\r\n" + strings.Repeat("a", 101)},
		{"as large as may be", Inference, echo + "Content-Length: 100\r\n\r\n" + strings.Repeat("a", 100)},
		{"too large in chunks", Inference, echo + "Transfer-Encoding: chunked\r\n\r\n65\r\n" + strings.Repeat("a", 101) + "\r\n0\r\n\r\n"},
		{"too large for a route that does not exist", Management, "POST /nowhere HTTP/1.1\r\nContent-Length: 101\r\n\r\n" + strings.Repeat("a", 101)},
		{"204", Inference, respond(`{"status":204,"return":"x"}`)},
		{"205", Inference, respond(`{"status":205,"return":"x"}`)},
		{"304", Inference, respond(`{"status":304,"return":"x"}`)},
		{"404 of a handler", Inference, respond(`{"status":404,"return":"x"}`)},
		{"413 of a handler", Inference, respond(`{"status":413,"return":"x"}`)},
		{"status that is none", Inference, respond(`{"status":1000,"return":"x"}`)},
		{"headers of a handler", Inference, respond(`{"headers":{"X_y":"é中","x-request-id":"forged","Connection":"close","Date":"d"},"return":"x"}`)},
		{"content type of a handler", Inference, respond(`{"content_type":"","headers":{"bad name":"v"},"return":"x"}`)},
		{"list", Management, "GET /models?limit=1 HTTP/1.1\r\n\r\n"},
		{"metrics", MetricsPort, "POST /metrics/x?name[]=a&name%5B%5D=b HTTP/1.1\r\n\r\n"},
	} {
		c := dial(t, f.addr[tc.port])
		c.send(tc.request)
		method, _, _ := strings.Cut(tc.request, " ")
		r := c.receive(method)
		fmt.Fprintf(&text, "=== %s\n%s\n", tc.name, strings.TrimSuffix(readable(c.seen.Bytes()), "\n"))
		fmt.Fprintf(&text, "--- closed: %v\n", c.ended(r))
	}
	golden(t, "wire.golden", text.String())
}

func TestPipelinedRequests(t *testing.T) {
	f := serve(t)
	c := dial(t, f.addr[Inference])
	c.send("POST /predictions/echo HTTP/1.1\r\nContent-Length: 1\r\n\r\nA" +
		"POST /predictions/echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nB\r\n0\r\n\r\n" +
		"HEAD /ping HTTP/1.1\r\n\r\nGET /nope HTTP/1.1\r\n\r\nGET /ping HTTP/1.1\r\n\r\n")
	for i, want := range []struct {
		method string
		status int
		has    string
	}{{"POST", 200, `"A"`}, {"POST", 200, `"B"`}, {"HEAD", 200, ""}, {"GET", 404, "ResourceNotFound"}} {
		r := c.receive(want.method)
		if r.status != want.status || !strings.Contains(r.body, want.has) {
			t.Errorf("answer %d: %+v", i, r)
		}
		if want.status == 404 && !c.ended(r) {
			t.Error("an error must end the connection")
		}
	}
}

func TestExpectContinue(t *testing.T) {
	f := serve(t, func(o *Options) { o.MaxRequestSize = 10 })
	c := dial(t, f.addr[Inference])
	head := "POST /predictions/ctxinfo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: "
	c.send(head + "2\r\n\r\n")
	if r := c.receive("POST"); r.status != 100 {
		t.Fatalf("%+v", r)
	}
	c.send("hi")
	if r := c.receive("POST"); r.status != 200 || strings.Contains(r.body, "Expect") {
		t.Errorf("%+v", r)
	}
	c.send(head + "11\r\n\r\n")
	if r := c.receive("POST"); r.status != 413 || r.body != "" || !c.ended(r) {
		t.Errorf("%+v", r)
	}
}

// TestHeadersAsSent checks what the handler sees.
func TestHeadersAsSent(t *testing.T) {
	f := serve(t)
	do(t, f.addr[Inference], "POST", "/explanations/ctxinfo/1.0/a%20b/c", "x", "X-Dup: a", "x-dup: b", "X-Dup: c", "explain: zz", "Latin: \xe9", "Authorization: Bearer k")
	var got []string
	for _, h := range f.last(t).Header {
		got = append(got, h.Name+"="+h.Value)
	}
	want := "Host=h X-Dup=a x-dup=b X-Dup=c explain=zz Latin=é Authorization=Bearer k Content-Length=1 url_path=a b/c explain=True"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
	do(t, f.addr[Inference], "POST", "/v2/models/ctxinfo/infer", "x", "url_path: mine")
	if it := f.last(t); header(it, "explain") != "False" || header(it, "url_path") != "mine" {
		t.Errorf("%+v", it.Header)
	}
	do(t, f.addr[Inference], "POST", "/models/ctxinfo/invoke", "x", "explain: mine", "describe: True")
	if it := f.last(t); header(it, "explain") != "mine" || header(it, "describe") != "True" {
		t.Errorf("%+v", it.Header)
	}
}

func TestRequestID(t *testing.T) {
	f := serve(t)
	r := do(t, f.addr[Inference], "POST", "/predictions/echo", "x", "x-request-id: mine")
	id := r.header.Get("X-Request-Id")
	if !uuidForm.MatchString(id) || f.last(t).ID != id {
		t.Errorf("answer has %q, the handler saw %q", id, f.last(t).ID)
	}
	if other := do(t, f.addr[Inference], "GET", "/ping", ""); other.header.Get("X-Request-Id") == id {
		t.Error("two requests have one id")
	}
}
