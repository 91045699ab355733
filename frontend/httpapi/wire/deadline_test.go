package wire

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipe gives a client's end of a connection and ours, and where to start the client's goroutines. Its deadlines work with a
// bubble's clock.
func pipe(t *testing.T, limits Limits) (client net.Conn, c *Conn, wg *sync.WaitGroup) {
	t.Helper()
	client, server := net.Pipe()
	l := NewListener(nil, limits)
	c = l.wrap(server)
	wg = new(sync.WaitGroup)
	t.Cleanup(func() {
		_ = client.Close()
		_ = c.Close()
		l.Wait()
		wg.Wait()
	})
	return client, c, wg
}

func send(t *testing.T, w io.Writer, text string) {
	t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		t.Errorf("sending %q: %v", text, err)
	}
}

func TestSlowHeadIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, c, wg := pipe(t, Limits{Head: 10 * time.Second})
		start := time.Now()
		wg.Go(func() {
			time.Sleep(time.Minute) // an idle connection has its time
			for _, b := range "GET / HTTP/1.1\r\nX: abcdefgh" {
				if _, err := client.Write([]byte{byte(b)}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		})
		_, err := c.Read(make([]byte, 100))
		if took := time.Since(start); !errors.Is(err, os.ErrDeadlineExceeded) || took != 70*time.Second {
			t.Errorf("ended after %v with %v, want 70 s and a deadline", took, err)
		}
	})
}

func TestHeadLimitEndsWithTheHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, c, wg := pipe(t, Limits{Head: 10 * time.Second})
		wg.Go(func() {
			send(t, client, "GET / HTTP/1.1\r\n")
			time.Sleep(9 * time.Second)
			send(t, client, "\r\n")
			time.Sleep(time.Minute)
			send(t, client, "GET / HTTP/1.1\r\n\r\n")
		})
		for range 2 {
			if _, err := c.Read(make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestHeadClockStopsForTheListeningRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, c, wg := pipe(t, Limits{Head: 10 * time.Second})
		wg.Go(func() {
			send(t, client, "GET / HTTP/1.1\r\n")
			time.Sleep(time.Hour) // while a handler runs
			send(t, client, "\r\n")
		})
		if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Errorf("got %d %v", n, err)
		}
	})
}

func TestAbortedReadLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, c, wg := pipe(t, Limits{Head: time.Minute})
		wg.Go(func() { send(t, client, "GET /a HTTP/1.1\r\nX: ") })
		done := make(chan error)
		go func() {
			_, err := c.Read(make([]byte, 1))
			done <- err
		}()
		synctest.Wait()
		if err := c.SetReadDeadline(time.Unix(1, 0)); err != nil { // as net/http ends its listening read
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		if err := c.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { send(t, client, "y\r\n\r\n") })
		if _, err := c.Read(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		if h := c.Take(1); h == nil || h.Target != "/a" || h.Get("X") != "y" {
			t.Errorf("head %+v", h)
		}
	})
}

func TestPauseInABody(t *testing.T) {
	for name, in := range map[string]string{
		"length": "POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc",
		"chunk":  "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc",
		"chunks": "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, c, wg := pipe(t, Limits{Pause: 5 * time.Second})
				start := time.Now()
				wg.Go(func() {
					send(t, client, in[:len(in)-1])
					time.Sleep(4 * time.Second)
					send(t, client, in[len(in)-1:])
				})
				_, err := io.Copy(io.Discard, c)
				if took := time.Since(start); !errors.Is(err, os.ErrDeadlineExceeded) || took != 9*time.Second {
					t.Errorf("ended after %v with %v, want 9 s and a deadline", took, err)
				}
			})
		})
	}
}

func TestEarlierDeadlineHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, c, wg := pipe(t, Limits{Head: time.Minute})
		start := time.Now()
		if err := c.SetReadDeadline(start.Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { send(t, client, "GET") })
		_, err := c.Read(make([]byte, 100))
		if took := time.Since(start); !errors.Is(err, os.ErrDeadlineExceeded) || took != time.Second {
			t.Errorf("ended after %v with %v", took, err)
		}
	})
}

func TestFarewell(t *testing.T) {
	for _, tc := range []struct {
		head string
		open bool
	}{
		{"GET / HTTP/1.1\r\n\r\n", true},
		{"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", false},
		{"GET / HTTP/1.0\r\n\r\n", false},
		{"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", true},
	} {
		synctest.Test(t, func(t *testing.T) {
			client, c, wg := pipe(t, Limits{})
			wg.Go(func() { send(t, client, tc.head) })
			if _, err := c.Read(make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			if err := c.SetReadDeadline(start.Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
			_, err := c.Read(make([]byte, 100))
			if took := time.Since(start); !errors.Is(err, os.ErrDeadlineExceeded) || (took == time.Hour) != tc.open {
				t.Errorf("%q: ended after %v with %v", tc.head, took, err)
			}
		})
	}
}

func TestClientThatDoesNotReadLosesTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, _ := pipe(t, Limits{Pause: 5 * time.Second})
		start := time.Now()
		_, err := c.Write(make([]byte, 10*slowest))
		if took := time.Since(start); !errors.Is(err, os.ErrDeadlineExceeded) || took != 15*time.Second {
			t.Errorf("ended after %v with %v", took, err)
		}
	})
}

// TestCloseLeavesTheAnswerReadable closes a TCP connection whose client is still sending: a reset would destroy the answer.
func TestCloseLeavesTheAnswerReadable(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := NewListener(inner, Limits{})
	defer func() { _ = l.Close() }()
	var wg sync.WaitGroup
	wg.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		c, ok := conn.(*Conn)
		if !ok {
			t.Error("not a Conn")
			return
		}
		if _, err := c.Read(make([]byte, 100)); err != nil {
			t.Error(err)
		}
		if h := c.Take(1); h == nil || h.Malformed == "" {
			t.Errorf("head %+v", h)
		}
		send(t, c, "answer")
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	client, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	send(t, client, "nonsense\r\n\r\n"+string(make([]byte, 100_000)))
	wg.Wait()
	text, err := io.ReadAll(client)
	if string(text) != "answer" || err != nil {
		t.Errorf("read %q, %v", text, err)
	}
	_ = client.Close()
	l.Wait()
}
