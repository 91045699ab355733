package source

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

func gzipped(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestFetchOverHTTP(t *testing.T) {
	t.Parallel()
	data := content(5000, 1)
	packed := gzipped(t, data)
	mux := http.NewServeMux()
	mux.HandleFunc("/good.mar", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) })
	mux.HandleFunc("/empty.mar", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/encoded/", func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Accept-Encoding"); got != "identity" {
			t.Errorf("Accept-Encoding %q", got)
		}
		w.Header().Set("Content-Encoding", r.URL.Query().Get("as"))
		if strings.Contains(r.URL.Path, "plain") {
			_, _ = w.Write(data)
			return
		}
		_, _ = w.Write(packed)
	})
	for path, target := range map[string]string{"/to-good.mar": "/good.mar", "/loop.mar": "/loop.mar", "/a.mar": "/b.mar", "/b.mar": "/a.mar", "/tofile.mar": "file:///etc/passwd"} {
		mux.Handle(path, http.RedirectHandler(target, http.StatusFound))
	}
	for _, status := range []int{201, 204, 300, 304, 400, 401, 403, 404, 410, 501} {
		mux.HandleFunc(fmt.Sprint("/status/", status, ".mar"), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	}
	mux.HandleFunc("/half.mar", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusPartialContent) })
	mux.HandleFunc("/announced-large.mar", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "100000000") })
	mux.HandleFunc("/endless.mar", func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	})
	srv := serve(t, mux.ServeHTTP)
	host := strings.TrimPrefix(srv.URL, "http://")
	bad := strings.Repeat("0", 64)
	tests := []struct {
		name, url string
		want      []byte
		cause     string // "": it works
	}{
		{name: "works", url: srv.URL + "/good.mar", want: data},
		{name: "scheme in capitals", url: "HTTP://" + host + "/good.mar", want: data},
		{name: "query and fragment", url: srv.URL + "/good.mar?x=1/y.mar#z/w.mar", want: data},
		{name: "pinned", url: srv.URL + "/good.mar" + pinOf(data), want: data},
		{name: "pinned in capitals", url: srv.URL + "/good.mar#sha256=" + strings.ToUpper(strings.TrimPrefix(pinOf(data), "#sha256=")), want: data},
		{name: "redirected", url: srv.URL + "/to-good.mar", want: data},
		{name: "empty", url: srv.URL + "/empty.mar", want: []byte{}},
		{name: "201", url: srv.URL + "/status/201.mar", want: []byte{}},
		{name: "204", url: srv.URL + "/status/204.mar", want: []byte{}},
		{name: "a gzip file that is said to be encoded", url: srv.URL + "/encoded/x.tar.gz?as=gzip", want: packed},
		{name: "a plain file that is said to be encoded", url: srv.URL + "/encoded/plain.mar?as=x-gzip", want: data},
		{name: "encoded by nothing", url: srv.URL + "/encoded/plain.mar?as=identity", want: data},
		{name: "left by an upload in pieces", url: srv.URL + "/encoded/plain.mar?as=aws-chunked", want: data},

		{name: "compressed on the way", url: srv.URL + "/encoded/x.mar?as=gzip", cause: `the Content-Encoding "gzip" although it was asked for it as it is; let the server`},
		{name: "compressed by brotli", url: srv.URL + "/encoded/plain.mar?as=br", cause: `the Content-Encoding "br"`},
		{name: "another pin", url: srv.URL + "/good.mar#sha256=" + bad, cause: strings.TrimPrefix(pinOf(data), "#") + " and not sha256=" + bad},
		{name: "a short pin", url: srv.URL + "/good.mar#sha256=abc", cause: "no digest of the form sha256= and 64 hex digits"},
		{name: "a pin with a colon", url: srv.URL + "/good.mar#sha256:" + bad, cause: "no digest of the form"},
		{name: "a pin of another kind", url: srv.URL + "/good.mar#md5=d41d8cd98f00b204e9800998ecf8427e", cause: "no digest of the form"},
		{name: "a pin that is no hex", url: srv.URL + "/good.mar#sha256=" + strings.Repeat("g", 64), cause: "other letters than hex digits"},
		{name: "in a circle", url: srv.URL + "/loop.mar", cause: "it redirects more than 10 times"},
		{name: "in a larger circle", url: srv.URL + "/a.mar", cause: "it redirects more than 10 times"},
		{name: "to a file", url: srv.URL + "/tofile.mar", cause: `it redirects to the scheme "file"`},
		{name: "300", url: srv.URL + "/status/300.mar", cause: "the server answered 300 Multiple Choices"},
		{name: "304", url: srv.URL + "/status/304.mar", cause: "the server answered 304 Not Modified"},
		{name: "400", url: srv.URL + "/status/400.mar", cause: "the server answered 400 Bad Request"},
		{name: "401", url: srv.URL + "/status/401.mar", cause: "the server answered 401 Unauthorized"},
		{name: "403", url: srv.URL + "/status/403.mar", cause: "the server answered 403 Forbidden"},
		{name: "404", url: srv.URL + "/status/404.mar", cause: "the server answered 404 Not Found"},
		{name: "410", url: srv.URL + "/status/410.mar", cause: "the server answered 410 Gone"},
		{name: "501", url: srv.URL + "/status/501.mar", cause: "the server answered 501 Not Implemented"},
		{name: "a part that nobody asked for", url: srv.URL + "/half.mar", cause: "the server answered 206 Partial Content"},
		{name: "too large", url: srv.URL + "/announced-large.mar", cause: "larger than 1048576 bytes; raise archive_max_download_size"},
		{name: "endless", url: srv.URL + "/endless.mar", cause: "larger than 1048576 bytes; raise archive_max_download_size"},
		{name: "no name", url: srv.URL + "/", cause: "the URL does not name a file"},
		{name: "no host", url: "http:///x.mar", cause: "the URL does not name a host"},
		{name: "no URL", url: "http://[bad/x.mar", cause: "it cannot be read as a URL: missing ']' in host"},
		{name: "nobody listens", url: "http://127.0.0.1:1/x.mar", cause: "connection refused (it was tried 4 times)"},
		{name: "no such host", url: "http://flambeau-nobody.invalid/x.mar", cause: "lookup flambeau-nobody.invalid"},
		{name: "TLS where there is none", url: "https://" + host + "/good.mar", cause: "server gave HTTP response to HTTPS client"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, func(o *Options) {
				everywhere(o)
				o.MaxBytes = 1 << 20
			})
			got, err := b.get(t, tt.url)
			if tt.cause != "" {
				refused(t, err, fault.DownloadFailed, failedFrom(tt.url), tt.cause)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, tt.want) {
				t.Errorf("%d bytes came, and they are not the %d that were sent", len(got), len(tt.want))
			}
		})
	}
}

// TestResumeAtEveryPlace breaks the connection after each number of bytes, once and twice.
func TestResumeAtEveryPlace(t *testing.T) {
	t.Parallel()
	data := content(100, 2)
	old := http.Header{"Last-Modified": {"Tue, 01 Jul 2025 12:00:00 GMT"}}
	tag := http.Header{"Etag": {`"one"`}}
	for cut := range data {
		for name, c := range map[string]*cutter{
			"by ETag":            {data: data, head: tag, cuts: []int{cut}},
			"by time":            {data: data, head: old, cuts: []int{cut}},
			"twice":              {data: data, head: tag, cuts: []int{cut / 2, cut - cut/2}},
			"not at all":         {data: data, head: tag, cuts: []int{cut}, plain: true},
			"without a version":  {data: data, cuts: []int{cut}},
			"by a weak ETag":     {data: data, head: http.Header{"Etag": {`W/"one"`}}, cuts: []int{cut}},
			"by a time just now": {data: data, head: http.Header{"Last-Modified": {time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)}}, cuts: []int{cut}},
		} {
			srv := serve(t, c.ServeHTTP)
			got, err := newBench(t, everywhere).get(t, srv.URL+"/x.mar")
			srv.Close()
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%s, cut after %d: %v, %d bytes", name, cut, err, len(got))
			}
			resumed := map[string]bool{"by ETag": true, "by time": true, "twice": true}[name]
			want := int64(len(data))
			if !resumed {
				want += int64(cut)
			}
			if sent := c.sent.Load(); sent != want {
				t.Errorf("%s, cut after %d: %d bytes were sent, and %d are needed", name, cut, sent, want)
			}
		}
	}
}

// TestChangedBetween: a part of one version and the rest of another never become one file.
func TestChangedBetween(t *testing.T) {
	t.Parallel()
	first, second := content(4000, 3), content(4100, 4)
	same := content(4000, 5)
	head := func(c net.Conn, lines ...string) {
		_, _ = fmt.Fprint(c, strings.Join(lines, "\r\n")+"\r\n\r\n")
	}
	begin := func(c net.Conn) {
		head(c, "HTTP/1.1 200 OK", `ETag: "a"`, "Content-Length: 4000")
		_, _ = c.Write(first[:1500])
	}
	whole := func(c net.Conn, data []byte) {
		head(c, "HTTP/1.1 200 OK", `ETag: "b"`, fmt.Sprint("Content-Length: ", len(data)))
		_, _ = c.Write(data)
	}
	tests := map[string]struct {
		want []byte
		then func(n int, c net.Conn)
	}{
		"the server says so":      {second, func(_ int, c net.Conn) { whole(c, second) }},
		"it is as long as before": {same, func(_ int, c net.Conn) { whole(c, same) }},
		"another ETag with the part": {second, func(n int, c net.Conn) {
			if n == 1 {
				head(c, "HTTP/1.1 206 Partial Content", `ETag: "b"`, "Content-Range: bytes 1500-4099/4100", "Content-Length: 2600")
				_, _ = c.Write(second[1500:])
				return
			}
			whole(c, second)
		}},
		"another size with the part": {second, func(n int, c net.Conn) {
			if n == 1 {
				head(c, "HTTP/1.1 206 Partial Content", "Content-Range: bytes 1500-4099/4100", "Content-Length: 2600")
				_, _ = c.Write(second[1500:])
				return
			}
			whole(c, second)
		}},
		"another part": {second, func(n int, c net.Conn) {
			if n == 1 {
				head(c, "HTTP/1.1 206 Partial Content", `ETag: "a"`, "Content-Range: bytes 1000-3999/4000", "Content-Length: 3000")
				_, _ = c.Write(first[1000:])
				return
			}
			whole(c, second)
		}},
		"a part that does not say which": {second, func(n int, c net.Conn) {
			if n == 1 {
				head(c, "HTTP/1.1 206 Partial Content", `ETag: "a"`, "Content-Length: 2500")
				_, _ = c.Write(first[1500:])
				return
			}
			whole(c, second)
		}},
		"parts in one body": {second, func(n int, c net.Conn) {
			if n == 1 {
				head(c, "HTTP/1.1 206 Partial Content", "Content-Type: multipart/byteranges; boundary=x", "Content-Length: 3", "Connection: close")
				_, _ = c.Write([]byte("--x"))
				return
			}
			whole(c, second)
		}},
		"it became shorter": {first[:100], func(n int, c net.Conn) {
			if n == 1 {
				head(c, "HTTP/1.1 416 Range Not Satisfiable", "Content-Range: bytes */100", "Content-Length: 0")
				return
			}
			whole(c, first[:100])
		}},
		"it is the same": {first, func(_ int, c net.Conn) {
			head(c, "HTTP/1.1 206 Partial Content", `ETag: "a"`, "Content-Range: bytes 1500-3999/4000", "Content-Length: 2500")
			_, _ = c.Write(first[1500:])
		}},
		"its size is no longer known": {first, func(_ int, c net.Conn) {
			head(c, "HTTP/1.1 206 Partial Content", "Content-Range: bytes 1500-3999/*", "Content-Length: 2500")
			_, _ = c.Write(first[1500:])
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := rawServer(t, func(n int, c net.Conn) {
				if n == 0 {
					begin(c)
					return
				}
				tt.then(n, c)
			})
			got, err := newBench(t, everywhere).get(t, srv+"/x.mar")
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, tt.want) {
				t.Errorf("%d bytes came, and they are not those of one version", len(got))
			}
		})
	}
}

// TestUnsteadyServers: what a server announces and what it sends are not always the same.
func TestUnsteadyServers(t *testing.T) {
	t.Parallel()
	answer := func(text string) func(int, net.Conn) { return func(_ int, c net.Conn) { _, _ = c.Write([]byte(text)) } }
	tests := map[string]struct {
		answer func(n int, c net.Conn)
		want   string
		cause  string // "": it works
	}{
		"more than announced": {answer("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef"), "abc", ""},
		"less than announced": {answer("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"), "", "it broke off after 3 bytes: unexpected EOF (it was tried 8 times)"},
		"nothing announced":   {answer("HTTP/1.0 200 OK\r\n\r\nabc"), "abc", ""},
		"chunks that end early": {
			answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"), "", "it broke off after 3 bytes: unexpected EOF",
		},
		"chunks": {answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"), "abc", ""},
		"two lengths": {
			answer("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"), "", "Content-Length",
		},
		"a negative length": {answer("HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\nabcd"), "", "bad Content-Length"},
		"no HTTP":           {answer("220 ftp.example ready\r\n"), "", "malformed HTTP"},
		"nothing":           {answer(""), "", "EOF (it was tried 4 times)"},
		"an endless header": {answer("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20)), "", "header"},
		"a redirect to itself by a broken URL": {
			answer("HTTP/1.1 302 Found\r\nLocation: http://[::1\r\nContent-Length: 0\r\n\r\n"), "", "Location",
		},
		"a cut and a good answer": {func(n int, c net.Conn) {
			text := "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc"
			if n > 0 {
				text += "def"
			}
			answer(text)(n, c)
		}, "abcdef", ""},
		"unavailable for a moment": {func(n int, c net.Conn) {
			if n < 3 {
				answer("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 0\r\n\r\n")(n, c)
				return
			}
			answer("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")(n, c)
		}, "abc", ""},
		"unavailable": {
			answer("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"), "", "the server answered 503 Service Unavailable (it was tried 4 times)",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := rawServer(t, tt.answer)
			got, err := newBench(t, everywhere).get(t, srv+"/x.mar")
			if tt.cause != "" {
				refused(t, err, fault.DownloadFailed, failedFrom(srv+"/x.mar"), tt.cause)
				return
			}
			if err != nil || string(got) != tt.want {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// TestStandsStill: a byte now and then does not keep a download going, but a slow line does.
func TestStandsStill(t *testing.T) {
	t.Parallel()
	const piece = 2 * trickleBytes
	tests := map[string]struct {
		first, piece, pieces int
		works                bool
	}{
		"sends nothing more":    {first: 10},
		"a byte now and then":   {first: 10, piece: 1, pieces: 1 << 20},
		"slow but never silent": {piece: piece, pieces: 20, works: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const pause = 20 * time.Millisecond
			srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Length", strconv.Itoa(max(tt.piece*tt.pieces, 1000)))
				_, _ = w.Write(make([]byte, tt.first))
				tick := time.NewTicker(pause)
				defer tick.Stop()
				for range tt.pieces {
					_, _ = w.Write(make([]byte, tt.piece))
					w.(http.Flusher).Flush() //nolint:errcheck,forcetypeassert // a test
					select {
					case <-tick.C:
					case <-r.Context().Done():
						return
					}
				}
				if !tt.works {
					w.(http.Flusher).Flush() //nolint:errcheck,forcetypeassert // a test
					<-r.Context().Done()
				}
			})
			b := newBench(t, func(o *Options) {
				everywhere(o)
				o.Stall = 10 * pause
			})
			_, err := b.get(t, srv.URL+"/x.mar")
			if tt.works && err != nil {
				t.Fatal(err)
			}
			if !tt.works {
				refused(t, err, fault.DownloadFailed, failedFrom(srv.URL+"/x.mar"), "nothing arrived for 200ms")
			}
		})
	}
}

func TestSilentFromTheStart(t *testing.T) {
	t.Parallel()
	for name, accept := range map[string]bool{"no answer": true, "no header's end": false} {
		srv := rawServer(t, func(_ int, c net.Conn) {
			if !accept {
				_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nX: y\r\n"))
			}
			_, _ = c.Read(make([]byte, 1)) // until the client goes
		})
		b := newBench(t, func(o *Options) {
			everywhere(o)
			o.Stall = 100 * time.Millisecond
		})
		if _, err := b.get(t, srv+"/x.mar"); err == nil {
			t.Error(name, "was fetched")
		} else {
			refused(t, err, fault.DownloadFailed, failedFrom(srv+"/x.mar"), "")
		}
	}
}

// TestFarApart: new tries are earned by bytes that came further than ever, so that a large file gets there over a bad line, and one that is cut at the same place again and
// again does not go on for ever.
func TestFarApart(t *testing.T) {
	t.Parallel()
	data := content(40*progressBytes, 6)
	cuts := make([]int, 38)
	for i := range cuts {
		cuts[i] = progressBytes + 1
	}
	c := &cutter{data: data, head: http.Header{"Etag": {`"one"`}}, cuts: cuts}
	got, err := newBench(t, everywhere).get(t, serve(t, c.ServeHTTP).URL+"/x.mar")
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	for i := range cuts {
		cuts[i] = 3 * progressBytes
	}
	c = &cutter{data: data, cuts: cuts, plain: true}
	if _, err = newBench(t, everywhere).get(t, serve(t, c.ServeHTTP).URL+"/x.mar"); err == nil || c.asked.Load() != triesLater {
		t.Errorf("%v after %d tries", err, c.asked.Load())
	}
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	reason := errors.New("the server is stopping")
	for _, when := range []string{"in a body", "in a pause", "before"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				if when == "in a pause" {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				_, _ = w.Write(make([]byte, 5000))
				w.(http.Flusher).Flush() //nolint:errcheck,forcetypeassert // a test
				<-r.Context().Done()
			})
			b := newBench(t, func(o *Options) {
				everywhere(o)
				o.Pause = time.Hour
			})
			ctx, cancel := context.WithCancelCause(t.Context())
			if when == "before" {
				cancel(reason)
			}
			done := make(chan error, 1)
			go func() {
				_, _, _, err := b.Fetch(ctx, srv.URL+"/x.mar", b.dir, func(int64, int64) { cancel(reason) })
				done <- err
			}()
			if when == "in a pause" {
				await(t, func() bool { return strings.Contains(b.log.String(), "tried again") })
				cancel(reason)
			}
			err := <-done
			if fault.KindOf(err) != fault.Cancelled || !errors.Is(err, reason) {
				t.Errorf("%v: %v", fault.KindOf(err), err)
			}
			if left := b.files(t); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func await(t testing.TB, what func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !what() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("it did not happen within 20 seconds")
		}
	}
}

// TestProgress: the log says how far it is, and no line of it has a secret.
func TestProgress(t *testing.T) {
	t.Parallel()
	data := content(3<<20, 7)
	c := &cutter{data: data, head: http.Header{"Etag": {`"one"`}}, cuts: []int{1 << 20, 1 << 19}}
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch user, password, _ := r.BasicAuth(); {
		case user != "tom" || password != "hush1":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/go.mar":
			http.Redirect(w, r, "/x.mar?X-Amz-Signature=hush3", http.StatusFound)
		case r.URL.Path == "/away.mar":
			http.Redirect(w, r, "ftp://tom:hush4@elsewhere/x.mar?hush5", http.StatusFound)
		case r.Header.Get("Referer") != "":
			t.Errorf("Referer: %s", r.Header.Get("Referer"))
		case r.URL.Path == "/broken.mar":
			w.WriteHeader(http.StatusBadGateway)
		default:
			c.ServeHTTP(w, r)
		}
	})
	b := newBench(t, func(o *Options) {
		everywhere(o)
		o.Report = time.Nanosecond
	})
	base := strings.Replace(srv.URL, "http://", "http://tom:hush1@", 1)
	if _, err := b.get(t, base+"/go.mar?X-Amz-Signature=hush2"); err != nil {
		t.Error(err)
	}
	for _, part := range []string{`msg="fetching a model archive"`, "percent=100", `MB/s"`, "total=3145728", "a download was broken off", "left=0s"} {
		if !strings.Contains(b.log.String(), part) {
			t.Errorf("the log does not say %s:\n%s", part, b.log)
		}
	}
	for _, path := range []string{"/away.mar?sig=hush6", "/broken.mar?sig=hush7", "/x.mar?sig=hush8#sha256=" + strings.Repeat("0", 64)} {
		_, err := b.get(t, base+path)
		if err == nil {
			t.Fatalf("%s was fetched", path)
		}
		if text := fmt.Sprintf("%v %+v", err, err); strings.Contains(text, "hush") {
			t.Errorf("the error tells a secret: %s", text)
		}
		f, _ := err.(*fault.Error) //nolint:errorlint // what Fetch gives is a fault itself
		if strings.Contains(f.Hint, "hush") {
			t.Errorf("the hint tells a secret: %s", f.Hint)
		}
	}
	if strings.Contains(b.log.String(), "hush") {
		t.Errorf("the log tells a secret:\n%s", b.log)
	}
}
