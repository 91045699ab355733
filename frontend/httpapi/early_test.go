package httpapi

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/flambeau-serve/flambeau/frontend/oipserver"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// knock is what a predictor was asked before a body had come.
type knock struct {
	ref  infer.ModelRef
	size int64
	peer string
}

// refusing serves an API whose predictor refuses everything that it is asked about, and whose protocol is there.
func refusing(t *testing.T, change ...func(*Options)) (f *fixture, asked func() []knock) {
	t.Helper()
	f = serve(t, append(change, func(o *Options) {
		p, err := oipserver.New(oipserver.Options{Predictor: o.Predictor, Models: o.Models})
		if err != nil {
			t.Fatal(err)
		}
		o.Protocol = p
	})...)
	var mu sync.Mutex
	var all []knock
	f.predictor.refuse = func(ref infer.ModelRef, item infer.Item, size int64) error {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, knock{ref, size, item.Peer})
		return fullQueue()
	}
	return f, func() []knock {
		mu.Lock()
		defer mu.Unlock()
		seen := all
		all = nil
		return seen
	}
}

// TestRefusedBeforeTheBodyHasCome sends heads only, and gets answers.
func TestRefusedBeforeTheBodyHasCome(t *testing.T) {
	f, asked := refusing(t)
	echo := infer.ModelRef{Name: "echo"}
	const size = 1_000_000
	for _, tc := range []struct {
		target, header string
		want           knock
	}{
		{"/predictions/echo", "", knock{echo, size, "127.0.0.1"}},
		{"/predictions/echo/1.0", "", knock{infer.ModelRef{Name: "echo", Version: "1.0"}, size, "127.0.0.1"}},
		{"/explanations/echo", "", knock{echo, size, "127.0.0.1"}},
		{"/models/echo/invoke", "", knock{echo, size, "127.0.0.1"}},
		{"/invocations", "", knock{echo, size, "127.0.0.1"}}, // the only one that was there at the start
		{"/echo/predict", "", knock{echo, size, "127.0.0.1"}},
		{"/v1/models/echo:predict", "", knock{echo, size, "127.0.0.1"}},
		{"/predictions/echo", "Content-Type: multipart/form-data; boundary=b\r\n", knock{echo, 0, "127.0.0.1"}},
		{"/predictions/echo", "Content-Type: application/x-www-form-urlencoded\r\n", knock{echo, 0, "127.0.0.1"}},
		{"/v2/models/echo/infer", "", knock{echo, 0, "127.0.0.1"}},
		{"/v2/models/echo/versions/1.0/generate_stream", "", knock{infer.ModelRef{Name: "echo", Version: "1.0"}, 0, "127.0.0.1"}},
	} {
		for _, port := range []Port{Inference, Joint} {
			c := dial(t, f.addr[port])
			c.send(fmt.Sprintf("POST %s HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n", tc.target, tc.header, size))
			r := c.receive("POST")
			if r.status != 503 || !r.closes || r.header.Get(reasonHeader) != "queue_full" || r.header.Get("Retry-After") == "" ||
				!strings.Contains(r.body, `"ServiceUnavailableException"`) {
				t.Errorf("%s: %+v", tc.target, r)
			}
			if got := asked(); len(got) != 1 || got[0] != tc.want {
				t.Errorf("%s: the predictor was asked %+v, want %+v", tc.target, got, tc.want)
			}
			c.send(strings.Repeat("x", size)) // a client that does not look before it has sent everything is not cut off
			if !c.ended(r) {
				t.Errorf("%s: the connection goes on", tc.target)
			}
		}
	}
	if n := len(f.items()); n != 0 {
		t.Errorf("%d requests reached the model", n)
	}
}

// TestRefusedEarlyInEveryForm refuses a client that sends everything first, one that sends chunks, and one that waits for leave to send.
func TestRefusedEarlyInEveryForm(t *testing.T) {
	f, asked := refusing(t)
	head := "POST /predictions/echo HTTP/1.1\r\n"
	for name, text := range map[string]string{
		"everything first": head + "Content-Length: 3000000\r\n\r\n" + strings.Repeat("x", 3_000_000),
		"in chunks":        head + "Transfer-Encoding: chunked\r\n\r\n" + chunked(strings.Repeat("x", 100_000), strings.Repeat("y", 2_000_000)),
		"a first chunk":    head + "Transfer-Encoding: chunked\r\n\r\n10\r\n",
		"with leave":       head + "Expect: 100-continue\r\nContent-Length: 3000000\r\n\r\n",
	} {
		c := dial(t, f.addr[Inference])
		c.send(text)
		if r := c.receive("POST"); r.status != 503 || r.header.Get(reasonHeader) != "queue_full" || !r.closes {
			t.Errorf("%s: %+v", name, r)
		}
		if got := asked(); len(got) != 1 {
			t.Errorf("%s: asked %+v", name, got)
		}
		if strings.Contains(c.seen.String(), "100 Continue") {
			t.Errorf("%s: it was told to send", name)
		}
	}
}

// TestWhatIsNotRefusedEarly: small bodies are read in any case, and what is no prediction is not the predictor's.
func TestWhatIsNotRefusedEarly(t *testing.T) {
	f, asked := refusing(t)
	large := strings.Repeat("x", smallBody+1)
	for _, tc := range []struct {
		port                 Port
		method, target, body string
		status               int
	}{
		{Inference, "POST", "/predictions/echo", strings.Repeat("x", smallBody), 200},
		{Inference, "POST", "/predictions", large, 404},
		{Inference, "POST", "/ping", large, 200},
		{Inference, "OPTIONS", "/predictions/echo", large, 200},
		{Inference, "POST", "/v2/models/echo", large, 405},
		{Management, "POST", "/models?url=nope.mar", large, 404},
	} {
		if r := do(t, f.addr[tc.port], tc.method, tc.target, tc.body); r.status != tc.status {
			t.Errorf("%s %s: %d %s", tc.method, tc.target, r.status, r.body)
		}
		if got := asked(); len(got) != 0 {
			t.Errorf("%s %s: asked %+v", tc.method, tc.target, got)
		}
	}
	f.predictor.refuse = nil
	if r := do(t, f.addr[Inference], "POST", "/predictions/echo", large); r.status != 200 || string(f.last(t).Parts[0].Data) != large {
		t.Errorf("what is not refused: %+v", r)
	}
}

// TestServerBytesAreRefusedBeforeTheBodyHasCome fills what bodies may take, and sends a head.
func TestServerBytesAreRefusedBeforeTheBodyHasCome(t *testing.T) {
	f := serve(t, func(o *Options) { o.MaxInflightBytes = 100_000 })
	c := dial(t, f.addr[Inference])
	c.send("POST /predictions/echo HTTP/1.1\r\nContent-Length: 200000\r\n\r\n")
	if r := c.receive("POST"); r.status != 503 || r.header.Get(reasonHeader) != fault.ServerBytes.String() || !r.closes {
		t.Errorf("%+v", r)
	}
}
