package wire

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/flambeau-serve/flambeau/internal/infer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scripted is a connection whose input comes in given pieces.
type scripted struct {
	net.Conn
	pieces []string
	closed bool
}

func (s *scripted) Read(p []byte) (int, error) {
	for len(s.pieces) > 0 && s.pieces[0] == "" {
		s.pieces = s.pieces[1:]
	}
	if len(s.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.pieces[0])
	s.pieces[0] = s.pieces[0][n:]
	return n, nil
}

func (s *scripted) SetReadDeadline(time.Time) error { return nil }
func (s *scripted) Close() error                    { s.closed = true; return nil }

func newConn(limits Limits, pieces ...string) (*Conn, *Listener) {
	l := NewListener(nil, limits)
	return l.wrap(&scripted{pieces: pieces}), l
}

// got is one request as it came out at the other end.
type got struct {
	Head *Head
	Body string
	Err  string
}

// serve reads requests the way net/http does.
func serve(t *testing.T, c *Conn) []got {
	t.Helper()
	var all []got
	br := bufio.NewReader(c)
	for n := uint64(1); ; n++ {
		r, err := http.ReadRequest(br)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return all
		}
		if err != nil {
			t.Fatalf("net/http does not understand a plain head: %v", err)
		}
		h := c.Take(n)
		if h == nil {
			t.Fatalf("no head for request %d", n)
		}
		wantMethod := http.MethodPost
		if h.Method == http.MethodHead {
			wantMethod = http.MethodHead
		}
		if r.Method != wantMethod || len(r.Header) > 2 || r.Close {
			t.Fatalf("plain head has %s %v close=%v", r.Method, r.Header, r.Close)
		}
		if h.Malformed == "" && (h.Length == Chunked) != (len(r.TransferEncoding) > 0) || h.Malformed == "" && h.Length >= 0 && r.ContentLength != h.Length {
			t.Fatalf("length %d became %d %v", h.Length, r.ContentLength, r.TransferEncoding)
		}
		body, err := io.ReadAll(r.Body)
		g := got{Head: h, Body: string(body)}
		if err != nil {
			g.Err = err.Error()
		}
		all = append(all, g)
		if err != nil || h.Malformed != "" {
			return all
		}
	}
}

func TestHeadsAsSent(t *testing.T) {
	c, _ := newConn(Limits{},
		"\r\n\r\nBREW /a%zz?q#f HTTP/1.0\r\nHOST: x\r\nx-a:1\r\nX-A:  2 \t\r\nEmpty:\r\nBytes: \xe9\xc3\xa9\r\nOdd(name): v\r\n\r\n",
		"HEAD\t/b \x20HTTP/1.1\r\nExpect: 100-Continue\r\nContent-Length: 3\r\n\r\nabc",
		"post /\xe9 HTTP/2.0\n\n",
		"P / HTTP/1.1\r\nExpect: tea\r\nTransfer-Encoding: CHUNKED\r\n\r\n3;x=y\r\nabc\r\n0a\r\n0123456789\r\n0\r\nT: v\r\n\r\n",
		"P / HTTP/1.1\r\n\r\n")
	want := []got{
		{Head: &Head{Method: "BREW", Target: "/a%zz?q#f", Version: "HTTP/1.0", Fields: []infer.Field{
			{Name: "HOST", Value: "x"},
			{Name: "x-a", Value: "1"},
			{Name: "X-A", Value: "2"},
			{Name: "Empty"},
			{Name: "Bytes", Value: "éÃ©"},
			{Name: "Odd(name)", Value: "v"},
		}}},
		{Head: &Head{Method: "HEAD", Target: "/b", Version: "HTTP/1.1", Length: 3, Fields: []infer.Field{{Name: "Content-Length", Value: "3"}}}, Body: "abc"},
		{Head: &Head{Method: "post", Target: "/é", Version: "HTTP/2.0", Fields: []infer.Field{}}},
		{Head: &Head{Method: "P", Target: "/", Version: "HTTP/1.1", Length: Chunked, UnknownExpect: true, Fields: []infer.Field{
			{Name: "Expect", Value: "tea"},
			{Name: "Transfer-Encoding", Value: "CHUNKED"},
		}}, Body: "abc0123456789"},
		{Head: &Head{Method: "P", Target: "/", Version: "HTTP/1.1", Fields: []infer.Field{}}},
	}
	if diff := cmp.Diff(want, serve(t, c), cmpopts.IgnoreUnexported(Head{})); diff != "" {
		t.Error(diff)
	}
}

func TestMalformedHeads(t *testing.T) {
	post := "POST / HTTP/1.1\r\n"
	for _, tc := range []struct{ in, why string }{
		{"GET /\r\n\r\n", "request line"},
		{"GET\r\n\r\n", "request line"},
		{" GET / HTTP/1.1\r\n\r\n", "request line"},
		{"GET /a b HTTP/1.1\r\n\r\n", "request line"},
		{"GET / HTTP/1.1x\r\n\r\n", "request line"},
		{"GET / FTP//1.1\r\n\r\n", "request line"},
		{"GET /\x00 HTTP/1.1\r\n\r\n", "request line"},
		{"GET / HTTP/1.1\r\nX: a\nY: b\r\n\r\n", "line end"},
		{"GET / HTTP/1.1\nX: a\r\nY: b\n\n", "header field"},
		{"GET / HTTP/1.1\r\nX: a\rb\r\n\r\n", "header field"},
		{"GET / HTTP/1.1\r\nX: a\r\n b\r\n\r\n", "header field"},
		{"GET / HTTP/1.1\r\nX : a\r\n\r\n", "header field"},
		{"GET / HTTP/1.1\r\n: a\r\n\r\n", "header field"},
		{"GET / HTTP/1.1\r\nXa\r\n\r\n", "header field"},
		{"GET / HTTP/1.1\r\nX\xe9: a\r\n\r\n", "header field"},
		{"GET / HTTP/1.1\r\nX: a\x00\r\n\r\n", "header field"},
		{post + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", "body length"},
		{post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "body length"},
		{post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "body length"},
		{"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "body length"},
		{post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "Transfer-Encoding"},
		{post + "Transfer-Encoding: identity\r\n\r\n", "Transfer-Encoding"},
		{post + "Transfer-Encoding: \x0bchunked\r\n\r\n", "header field"},
		{post + "Content-Length: +3\r\n\r\nabc", "Content-Length"},
		{post + "Content-Length: -3\r\n\r\nabc", "Content-Length"},
		{post + "Content-Length: 3,3\r\n\r\nabc", "Content-Length"},
		{post + "Content-Length: 0x3\r\n\r\nabc", "Content-Length"},
		{post + "Content-Length:\r\n\r\nabc", "Content-Length"},
		{post + "Content-Length: 9999999999999999999\r\n\r\n", "Content-Length"},
		{"GET /" + strings.Repeat("a", 4096-len("GET / HTTP/1.1\r")+1) + " HTTP/1.1\r\n\r\n", "request line too long"},
		{"GET /" + strings.Repeat("a", 5000), "request line too long"},
		{"GET / HTTP/1.1\r\nX: " + strings.Repeat("a", 8192-len("X: \r")+1) + "\r\n\r\n", "header block too long"},
		{"GET / HTTP/1.1\r\nY: 1\r\nX: " + strings.Repeat("a", 9000), "header block too long"},
		{strings.Repeat("\r\n", 2500) + "GET / HTTP/1.1\r\n\r\n", "empty lines"},
	} {
		for _, pieces := range [][]string{{tc.in}, strings.Split(tc.in, "")} {
			c, l := newConn(Limits{}, pieces...)
			all := serve(t, c)
			if len(all) != 1 || all[0].Head.Malformed != tc.why {
				t.Errorf("%.60q in %d pieces: got %+v, want malformed: %s", tc.in, len(pieces), all, tc.why)
			}
			if n, err := c.Read(make([]byte, 10)); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("%.60q: something comes after it: %d %v", tc.in, n, err)
			}
			_ = c.Close()
			l.Wait()
		}
	}
}

func TestLimitsAreInclusive(t *testing.T) {
	for _, in := range []string{
		"GET /" + strings.Repeat("a", 4096-len("GET / HTTP/1.1\r")) + " HTTP/1.1\r\n\r\n",
		"GET / HTTP/1.1\r\nX: " + strings.Repeat("a", 8192-len("X: \r")) + "\r\n\r\n",
		"GET / HTTP/1.1\r\nY: b\r\nX: " + strings.Repeat("a", 8192-len("Y: b\r")-len("X: \r")) + "\r\n\r\n",
	} {
		for _, pieces := range [][]string{{in}, strings.Split(in, "")} {
			c, _ := newConn(Limits{}, pieces...)
			if all := serve(t, c); len(all) != 1 || all[0].Head.Malformed != "" {
				t.Errorf("%.40q: %+v", in, all)
			}
		}
	}
}

func TestMalformedChunks(t *testing.T) {
	head := "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, body := range []string{
		"zz\r\n", "\r\n", "3\nabc\r\n0\r\n\r\n", "3\r\nabc\n0\r\n\r\n", "3\r\nabcd\r\n0\r\n\r\n", "+3\r\nabc\r\n0\r\n\r\n", "-1\r\n", "0x3\r\nabc\r\n0\r\n\r\n",
		" 3\r\nabc\r\n0\r\n\r\n", "1000000000000000\r\n", "3\r\r\nabc\r\n0\r\n\r\n", "3\r\nabc\r\n0\r\nT: a\n\r\n", "3\r\nabc\r\n0\r\nT: " + strings.Repeat("a", 9000) + "\r\n\r\n",
		"3;" + strings.Repeat("x", 5000) + "\r\nabc\r\n0\r\n\r\n", "3;a\nb\r\nabc\r\n0\r\n\r\n",
	} {
		for _, pieces := range [][]string{{head + body}, strings.Split(head+body, "")} {
			c, l := newConn(Limits{}, pieces...)
			all := serve(t, c)
			if len(all) != 1 || all[0].Err != ErrChunked.Error() {
				t.Errorf("%.40q: got %+v", body, all)
			}
			_ = c.Close()
			l.Wait()
		}
	}
}

func TestCutBodyIsAnError(t *testing.T) {
	for _, in := range []string{
		"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabc",
		"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
		"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
	} {
		c, l := newConn(Limits{}, in)
		if all := serve(t, c); len(all) != 1 || all[0].Err != io.ErrUnexpectedEOF.Error() {
			t.Errorf("%q: %+v", in, all)
		}
		_ = c.Close()
		l.Wait()
	}
}

func TestIdleConnectionHoldsNoBuffer(t *testing.T) {
	c, _ := newConn(Limits{}, "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")
	serve(t, c)
	if c.in != nil || c.page != nil {
		t.Errorf("still holds %d bytes", cap(c.in))
	}
}

func TestTakeForgetsEarlierHeads(t *testing.T) {
	c, _ := newConn(Limits{}, "A /1 HTTP/1.1\r\n\r\nB /2 HTTP/1.1\r\n\r\n")
	_, _ = io.Copy(io.Discard, c)
	if h := c.Take(2); h == nil || h.Method != "B" {
		t.Errorf("second head: %+v", h)
	}
	if h := c.Take(1); h != nil {
		t.Errorf("first head is still there: %+v", h)
	}
}

func TestHeadsNobodyTakesAreBounded(t *testing.T) {
	c, _ := newConn(Limits{}, strings.Repeat("A / HTTP/1.1\r\n\r\n", mostHeads+1))
	if _, err := io.Copy(io.Discard, c); !errors.Is(err, errBehind) {
		t.Errorf("got %v", err)
	}
}

func TestHeadGet(t *testing.T) {
	h := &Head{Fields: []infer.Field{{Name: "A", Value: "1"}, {Name: "a", Value: "2"}}}
	if h.Get("a") != "1" || h.Get("b") != "" {
		t.Errorf("Get gives %q %q", h.Get("a"), h.Get("b"))
	}
}

// FuzzConn feeds any input in any pieces, and compares what comes out with what net/http itself makes of the same input:
// where both accept a request they must agree about it, above all about where its body ends.
func FuzzConn(f *testing.F) {
	for _, seed := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\nHost: b\r\n\r\n",
		"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;e\r\nabc\r\n00\r\nT: 1\r\n\r\nGET / HTTP/1.0\n\n",
		"HEAD / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nX: y\n\r\nGET / HTTP/1.1\r\n\r\n",
		"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n fold\r\n\r\n",
	} {
		f.Add([]byte(seed), byte(3))
	}
	f.Fuzz(func(t *testing.T, in []byte, piece byte) {
		var pieces []string
		for rest := in; len(rest) > 0; {
			n := min(int(piece)+1, len(rest))
			pieces = append(pieces, string(rest[:n]))
			rest = rest[n:]
		}
		c, l := newConn(Limits{}, pieces...)
		ours := serve(t, c)
		_ = c.Close()
		l.Wait()

		whole, wl := newConn(Limits{}, string(in))
		again := serve(t, whole)
		_ = whole.Close()
		wl.Wait()
		if diff := cmp.Diff(again, ours, cmp.AllowUnexported(Head{})); diff != "" {
			t.Fatalf("pieces make a difference: %s", diff)
		}
		compare(t, in, ours)
	})
}

func compare(t *testing.T, in []byte, ours []got) {
	t.Helper()
	br := bufio.NewReader(bytes.NewReader(in))
	for i, g := range ours {
		r, err := http.ReadRequest(br)
		if err != nil || g.Head.Malformed != "" || g.Err != "" {
			return // one of the two refuses: nothing after it counts
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if string(body) != g.Body {
			t.Fatalf("request %d: body %q, net/http reads %q", i, g.Body, body)
		}
		if latin1(r.Method) != g.Head.Method || latin1(r.RequestURI) != g.Head.Target {
			t.Fatalf("request %d: %q %q, net/http reads %q %q", i, g.Head.Method, g.Head.Target, r.Method, r.RequestURI)
		}
	}
}
