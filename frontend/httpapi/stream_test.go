package httpapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// streaming serves echo by a handler that emits pieces.
func streaming(t *testing.T, handler func(ctx context.Context, item infer.Item) (infer.Result, error)) *fixture {
	t.Helper()
	f := serve(t)
	f.predictor.handler = func(ctx context.Context, _ infer.ModelRef, item infer.Item) (infer.Result, error) {
		return handler(ctx, item)
	}
	return f
}

func ask(t *testing.T, f *fixture) *client {
	t.Helper()
	c := dial(t, f.addr[Inference])
	c.send("POST /predictions/echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx")
	return c
}

func TestStreamIsOneChunkForEachPiece(t *testing.T) {
	big := strings.Repeat("b", 100_000)
	f := streaming(t, func(_ context.Context, item infer.Item) (infer.Result, error) {
		item.Emit(infer.Result{Status: 202, Header: []infer.Field{{Name: "ts_stream_next", Value: "true"}}, Body: []byte("one;")})
		item.Emit(infer.Result{Status: 500, Body: []byte(big)})
		return infer.Result{Header: []infer.Field{{Name: "late", Value: "x"}}, Body: []byte("last;")}, nil
	})
	c := ask(t, f)
	var text strings.Builder
	for !strings.HasSuffix(text.String(), "\r\n0\r\n\r\n") {
		b := make([]byte, 4096)
		n, err := c.Read(b)
		text.Write(b[:n])
		if err != nil {
			t.Fatalf("%v after %q", err, text.String())
		}
	}
	head, body, _ := strings.Cut(text.String(), "\r\n\r\n")
	if !strings.HasPrefix(head, "HTTP/1.1 202 ") || !strings.Contains(head, "ts_stream_next: true") || strings.Contains(strings.ToLower(head), "content-length") ||
		strings.Contains(head, "late") || !strings.Contains(head, "Transfer-Encoding: chunked") || !strings.Contains(head, "x-request-id: ") {
		t.Errorf("head:\n%s", head)
	}
	if want := "4\r\none;\r\n186a0\r\n" + big + "\r\n5\r\nlast;\r\n0\r\n\r\n"; body != want {
		t.Errorf("body of %d bytes is not the three chunks: %.80q", len(body), body)
	}
	c.send("GET /ping HTTP/1.1\r\nHost: h\r\n\r\n") // the connection goes on
	b := make([]byte, len("HTTP/1.1 200"))
	if _, err := io.ReadFull(c.Conn, b); err != nil || string(b) != "HTTP/1.1 200" {
		t.Errorf("after the stream: %q, %v", b, err)
	}
}

func TestStreamThatFailsHasNoEnd(t *testing.T) {
	for name, handler := range map[string]func(context.Context, infer.Item) (infer.Result, error){
		"the handler raises": func(_ context.Context, item infer.Item) (infer.Result, error) {
			item.Emit(infer.Result{Body: []byte("one;")})
			return infer.Result{}, errors.New("boom")
		},
		"a piece fails": func(_ context.Context, item infer.Item) (infer.Result, error) {
			item.Emit(infer.Result{Body: []byte("one;")})
			item.Emit(infer.Result{Err: errors.New("boom")})
			return infer.Result{Body: []byte("last;")}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := io.ReadAll(ask(t, streaming(t, handler)).Conn)
			if strings.HasSuffix(string(text), "0\r\n\r\n") || strings.Contains(string(text), "last;") {
				t.Errorf("%q, %v: it looks whole", text, err)
			}
		})
	}
}

func TestFirstPieceThatCannotBeSentIsAnOrdinaryFailure(t *testing.T) {
	f := streaming(t, func(_ context.Context, item infer.Item) (infer.Result, error) {
		item.Emit(infer.Result{Status: 42, Body: []byte("one;")})
		return infer.Result{Body: []byte("last;")}, nil
	})
	text, _ := io.ReadAll(ask(t, f).Conn) // the server closes after an error
	if !strings.HasPrefix(string(text), "HTTP/1.1 500 ") || strings.Contains(string(text), "one;") {
		t.Errorf("%q", text)
	}
}

// badWriter is a client's side with a bug.
type badWriter struct{ http.ResponseWriter }

func (badWriter) Header() http.Header { panic("a bug of the header") }

// TestPanicOfAStreamsGoroutine is the stream's failure, for which nobody waits in vain.
func TestPanicOfAStreamsGoroutine(t *testing.T) {
	s := &stream{api: serve(t).api, request: &request{w: badWriter{}}}
	s.emit(infer.Result{Body: []byte("one;")})
	if !s.end() {
		t.Error("there was no piece")
	}
	if _, err := s.last(infer.Result{Body: []byte("last;")}, nil); !fault.IsBug(err) || !strings.Contains(fault.DetailOf(err), "a bug of the header") {
		t.Errorf("%v", err)
	}
}

// TestClientThatDoesNotReadCostsBoundedMemory has a handler that streams more than may wait, to a client that reads nothing.
func TestClientThatDoesNotReadCostsBoundedMemory(t *testing.T) {
	piece := make([]byte, 1<<20)
	f := streaming(t, func(_ context.Context, item infer.Item) (infer.Result, error) {
		for range 64 {
			item.Emit(infer.Result{Body: piece})
		}
		return infer.Result{Body: []byte("last;")}, nil
	})
	c := ask(t, f)
	text, _ := io.ReadAll(c.Conn)
	if len(text) > 64<<20 || strings.HasSuffix(string(text), "0\r\n\r\n") {
		t.Errorf("%d bytes came: the stream should have been given up", len(text))
	}
}

func TestPiecesAfterTheClientLeftAreDropped(t *testing.T) {
	emit := make(chan func(infer.Result), 1)
	f := streaming(t, func(ctx context.Context, item infer.Item) (infer.Result, error) {
		emit <- item.Emit
		<-ctx.Done()
		return infer.Result{}, context.Cause(ctx)
	})
	c := ask(t, f)
	late := <-emit
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		late(infer.Result{Body: []byte("late")}) // the race detector looks on
	}
}
