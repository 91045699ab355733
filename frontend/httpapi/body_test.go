package httpapi

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

func chunked(parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(p), p)
	}
	return b.String() + "0\r\n\r\n"
}

func TestBodiesArriveWhole(t *testing.T) {
	f := serve(t)
	for _, size := range []int{0, 1, 4095, 4096, 70_000, firstBuffer, firstBuffer + 1, 3 * firstBuffer, defaultMaxRequestSize} {
		body := strings.Repeat("0123456789abcdef", size/16+1)[:size]
		c := dial(t, f.addr[Inference])
		head := "POST /predictions/echo HTTP/1.1\r\n"
		c.send(fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, size, body))
		if r := c.receive("POST"); r.status != 200 {
			t.Fatalf("%d bytes: %d %.200s", size, r.status, r.body)
		}
		if part := f.last(t).Parts[0]; string(part.Data) != body || cap(part.Data) != size {
			t.Errorf("%d bytes of known length: got %d in a buffer of %d", size, len(part.Data), cap(part.Data))
		}
		if size < 2 {
			continue // an empty chunk ends a body
		}
		c.send(head + "Transfer-Encoding: chunked\r\n\r\n" + chunked(body[:size/2], body[size/2:]))
		if r := c.receive("POST"); r.status != 200 {
			t.Fatalf("%d bytes in chunks: %d %.200s", size, r.status, r.body)
		}
		it := f.last(t)
		if string(it.Parts[0].Data) != body || header(it, "content-length") != strconv.Itoa(size) || header(it, "Transfer-Encoding") != "" {
			t.Errorf("%d bytes in chunks: got %d, header %v", size, len(it.Parts[0].Data), it.Header)
		}
	}
}

func TestTooLargeIsSaidAtOnce(t *testing.T) {
	f := serve(t)
	c := dial(t, f.addr[Management])
	c.send("POST /models HTTP/1.1\r\nContent-Length: 20000000\r\n\r\n")
	r := c.receive("POST") // before any of the body has come
	if r.status != 413 || r.body != "" || r.header.Get("Content-Length") != "0" || r.header.Get("Content-Type")+r.header.Get("X-Request-Id")+r.header.Get("Date") != "" {
		t.Fatalf("%+v", r)
	}
	if h := r.header; h.Get(reasonHeader) != "too_large" || !strings.Contains(h.Get(hintHeader), "max_request_size") ||
		!strings.HasPrefix(h.Get(settingHeader), "max_request_size") || !strings.HasPrefix(h.Get(numbersHeader), "bytes_limit=") {
		t.Errorf("it does not say why: %+v", h)
	}
	c.send(strings.Repeat("x", 20_000_000) + "GET /models?limit=0 HTTP/1.1\r\n\r\n")
	if r := c.receive("GET"); r.status != 200 {
		t.Errorf("the connection does not go on: %+v", r)
	}
	if len(f.items()) != 0 {
		t.Error("it reached a model")
	}
}

// blocking lets requests to the model wait until they are let go.
func blocking(f *fixture) (started chan string, release chan struct{}) {
	started, release = make(chan string), make(chan struct{})
	f.predictor.handler = func(ctx context.Context, _ infer.ModelRef, item infer.Item) (infer.Result, error) {
		select {
		case started <- item.ID:
		case <-ctx.Done():
		}
		select {
		case <-release:
			return infer.Result{Body: []byte("done")}, nil
		case <-ctx.Done():
			return infer.Result{}, fault.New(fault.Cancelled, "gone", context.Cause(ctx))
		}
	}
	return started, release
}

func TestBytesInFlightAreBounded(t *testing.T) {
	f := serve(t, func(o *Options) { o.MaxInflightBytes = 100_000 })
	started, release := blocking(f)
	first := dial(t, f.addr[Inference])
	post := "POST /predictions/echo HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s"
	first.send(fmt.Sprintf(post, 60_000, strings.Repeat("a", 60_000)))
	<-started
	r := do(t, f.addr[Inference], "POST", "/predictions/echo", strings.Repeat("b", 60_000))
	if r.status != 503 || r.header.Get("X-Flambeau-Reason") != "server_bytes" || r.header.Get("Retry-After") != "1" || r.header.Get("X-Flambeau-Hint") == "" ||
		!strings.Contains(r.body, `"ServiceUnavailableException"`) {
		t.Errorf("over the budget: %+v", r)
	}
	c := dial(t, f.addr[Inference])
	c.send("POST /predictions/echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(strings.Repeat("c", 30_000), strings.Repeat("c", 30_000)))
	if r := c.receive("POST"); r.status != 503 {
		t.Errorf("over the budget in chunks: %+v", r)
	}
	if r := do(t, f.addr[Inference], "POST", "/predictions/echo", strings.Repeat("x", 2*firstBuffer)); r.status != 503 {
		t.Errorf("far over the budget: %+v", r)
	}
	second := dial(t, f.addr[Inference])
	second.send(fmt.Sprintf(post, 30_000, strings.Repeat("d", 30_000)))
	<-started
	close(release)
	for _, c := range []*client{first, second} {
		if r := c.receive("POST"); r.status != 200 {
			t.Errorf("within the budget: %+v", r)
		}
	}
	go func() { <-started }()
	if r := do(t, f.addr[Inference], "POST", "/predictions/echo", strings.Repeat("e", 100_000)); r.status != 200 {
		t.Errorf("the budget was not given back: %+v", r)
	}
}

func TestSlowBodyIsRefused(t *testing.T) {
	f := serve(t, func(o *Options) { o.BodyPause = 30 * time.Millisecond })
	c := dial(t, f.addr[Inference])
	c.send("POST /predictions/echo HTTP/1.1\r\nContent-Length: 3\r\n\r\nab")
	if r := c.receive("POST"); r.status != 400 || !strings.Contains(r.header.Get("X-Flambeau-Hint"), "slowly") || !c.ended(r) {
		t.Errorf("%+v", r)
	}
	if len(f.items()) != 0 {
		t.Error("half a request reached a model")
	}
}

// waitAccess waits for the access log to have n entries.
func (f *fixture) waitAccess(t *testing.T, n int) []AccessEntry {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		f.mu.Lock()
		all := append([]AccessEntry(nil), f.access...)
		f.mu.Unlock()
		if len(all) >= n {
			return all
		}
	}
	t.Fatalf("the access log does not get %d entries", n)
	return nil
}

func TestClientThatLeaves(t *testing.T) {
	f := serve(t, func(o *Options) { o.MaxInflightBytes = 1000 })
	c := dial(t, f.addr[Inference])
	c.send("POST /predictions/echo HTTP/1.1\r\nContent-Length: 1000\r\n\r\nab")
	_ = c.Close()
	if e := f.waitAccess(t, 1)[0]; e.Status != 499 || len(f.items()) != 0 {
		t.Errorf("left while sending: %+v, %d items", e, len(f.items()))
	}
	started, _ := blocking(f)
	c = dial(t, f.addr[Inference])
	c.send("POST /predictions/echo HTTP/1.1\r\nContent-Length: 1000\r\n\r\n" + strings.Repeat("a", 1000))
	<-started
	_ = c.Close()
	if e := f.waitAccess(t, 2)[1]; e.Status != 499 || e.Target != "/predictions/echo" {
		t.Errorf("left while waiting: %+v", e)
	}
	f.predictor.handler = nil
	if r := do(t, f.addr[Inference], "POST", "/predictions/echo", strings.Repeat("a", 1000)); r.status != 200 {
		t.Errorf("the budget was not given back: %+v", r)
	}
}

func TestSlowHeadIsCutOff(t *testing.T) {
	f := serve(t, func(o *Options) { o.HeadTimeout = 30 * time.Millisecond })
	c := dial(t, f.addr[Inference])
	c.send("GET /ping HTTP/1.1\r\nX: y")
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("got %d bytes, %v", n, err)
	} else if ne, ok := err.(net.Error); ok && ne.Timeout() { //nolint:errorlint // a net.Error is not wrapped
		t.Error("the connection stays open")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.access) != 0 {
		t.Error("the access log has a request that never was")
	}
}

func TestBudget(t *testing.T) {
	b := budget{limit: 10}
	if !b.take(10) || b.take(1) {
		t.Error("the limit does not hold")
	}
	b.give(4)
	if !b.take(4) || b.take(1) {
		t.Error("what was given back cannot be taken")
	}
	if none := (&budget{}); !none.take(1 << 60) {
		t.Error("without a limit there is one")
	}
}
