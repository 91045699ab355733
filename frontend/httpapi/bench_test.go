package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/internal/infer"
)

// BenchmarkRoundTrip compares a prediction through the whole API with the least that a net/http server can do with the same
// request: read the body, write an answer. The ratio of the two is what the API costs.
func BenchmarkRoundTrip(b *testing.B) {
	models := newFakeModels("echo")
	answer := []byte("0123456789abcdef")
	predictor := &fakePredictor{models: models}
	api, err := New(Options{Predictor: instant{predictor, answer}, Models: models})
	if err != nil {
		b.Fatal(err)
	}
	ours, err := api.Listen(b.Context(), "127.0.0.1:0", Inference, nil)
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = ours.Serve() }()
	defer func() { _ = ours.Shutdown(context.Background()) }()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	plain := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { //nolint:gosec // no limits: it is compared with
		_, _ = io.ReadAll(r.Body)
		_, _ = w.Write(answer)
	})}
	go func() { _ = plain.Serve(listener) }()
	defer func() { _ = plain.Close() }()

	for _, size := range []int{100, 10_000, 1_000_000} {
		head := "POST /predictions/echo HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nUser-Agent: python-requests/2.32.3\r\nAccept-Encoding: gzip, deflate\r\n" +
			"Accept: */*\r\nConnection: keep-alive\r\nContent-Type: application/octet-stream\r\n"
		bodies := map[string]string{
			"length": fmt.Sprintf("Content-Length: %d\r\n\r\n%s", size, strings.Repeat("x", size)),
			"chunks": "Transfer-Encoding: chunked\r\n\r\n" + chunked(strings.Repeat("x", size/2), strings.Repeat("x", size-size/2)),
		}
		for _, framing := range []string{"length", "chunks"} {
			for _, s := range []struct{ name, addr string }{{"plain", listener.Addr().String()}, {"ours", ours.Addr()}} {
				b.Run(fmt.Sprintf("%s/%d/%s", framing, size, s.name), func(b *testing.B) {
					roundTrips(b, s.addr, head+bodies[framing])
				})
			}
		}
	}
}

func roundTrips(b *testing.B, addr, request string) {
	b.Helper()
	b.SetBytes(int64(len(request)))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			b.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		br := bufio.NewReader(conn)
		for pb.Next() {
			if _, err := io.WriteString(conn, request); err != nil {
				b.Error(err)
				return
			}
			length := 0
			for {
				line, err := br.ReadSlice('\n')
				if err != nil {
					b.Error(err)
					return
				}
				if len(line) == 2 {
					break
				}
				if len(line) > 16 && string(line[:15]) == "Content-Length:" {
					_, _ = fmt.Sscanf(string(line[15:]), "%d", &length)
				}
			}
			if _, err := br.Discard(length); err != nil || length == 0 {
				b.Errorf("answer of %d bytes: %v", length, err)
				return
			}
		}
	})
}

type instant struct {
	*fakePredictor
	answer []byte
}

func (p instant) Submit(context.Context, infer.ModelRef, infer.Item) (infer.Result, error) {
	return infer.Result{Body: p.answer}, nil
}
