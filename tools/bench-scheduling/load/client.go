package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// client sends requests on connections that it keeps as long as the server does.
type client struct {
	addr       string
	head, body []byte
	limit      time.Duration
	dials      atomic.Uint64

	mu   sync.Mutex // guards idle
	idle []*conn
}

// conn is a connection to the server.
type conn struct {
	net.Conn
	reader *bufio.Reader
	used   bool // it has had a request before
}

func newClient(o *options) (*client, error) {
	host, _, err := net.SplitHostPort(o.addr)
	if err != nil || !net.ParseIP(host).IsLoopback() {
		return nil, fmt.Errorf("%s is no address of this machine", o.addr)
	}
	head := "POST " + o.path + " HTTP/1.1\r\nHost: " + o.addr + "\r\nContent-Type: application/octet-stream\r\nContent-Length: " + strconv.Itoa(o.bytes) + "\r\n\r\n"
	return &client{addr: o.addr, head: []byte(head), body: bytes.Repeat([]byte("x"), o.bytes), limit: o.limit}, nil
}

func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.idle {
		_ = k.Close() // nothing is under way
	}
}

// take gives a connection, the one that was used last first.
func (c *client) take(ctx context.Context) (*conn, error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		k := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return k, nil
	}
	c.mu.Unlock()
	dialer := net.Dialer{LocalAddr: source(c.dials.Add(1))}
	inner, err := dialer.DialContext(ctx, "tcp", c.addr)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: inner, reader: bufio.NewReader(inner)}, nil
}

func (c *client) give(k *conn) {
	k.used = true
	c.mu.Lock()
	c.idle = append(c.idle, k)
	c.mu.Unlock()
}

// ask sends a request that was due, and records what became of it. It counts from here on, with the time for a connection. One whose connection the server had closed before it
// saw anything of the request is sent again, as any client does.
func (c *client) ask(ctx context.Context, due time.Duration, how kind, r *recorder) {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	s := sample{due: due, begun: time.Since(r.start), sent: -1, answered: -1, kind: how}
	for {
		k, err := c.take(ctx)
		if err != nil {
			r.add(s, err)
			return
		}
		again := k.used
		sent, keep, err := c.exchange(ctx, k, how, &s)
		if err == nil {
			s.answered = time.Since(r.start)
			if !sent.IsZero() {
				s.sent = sent.Sub(r.start)
			}
		}
		if err == nil && keep {
			c.give(k)
		} else {
			_ = k.Close() // it is of no use any more
		}
		if err != nil && again && errors.Is(err, errNothing) {
			continue
		}
		r.add(s, err)
		return
	}
}

// errNothing says that a connection ended before an answer began.
var errNothing = errors.New("the connection ended without an answer")

// written is how the sending of a request ended.
type written struct {
	at  time.Time
	err error
}

// exchange sends a request and reads its answer. sent is when the last byte was written, zero when the answer came first.
func (c *client) exchange(ctx context.Context, k *conn, how kind, s *sample) (sent time.Time, keep bool, err error) {
	if deadline, ok := ctx.Deadline(); ok {
		if err := k.SetDeadline(deadline); err != nil {
			return time.Time{}, false, err
		}
	}
	done := make(chan written, 1)
	write := func() {
		parts := net.Buffers{c.head, c.body}
		_, err := parts.WriteTo(k)
		done <- written{time.Now(), err}
	}
	if how == patient {
		write()
	} else {
		go write() // it ends at the latest when the connection is closed
	}
	response, err := http.ReadResponse(k.reader, nil)
	if err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			err = errNothing
		}
		return time.Time{}, false, err
	}
	_, err = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close() // it was read to its end, or to an error
	if err != nil {
		return time.Time{}, false, err
	}
	s.status = response.StatusCode
	if response.Close {
		select {
		case w := <-done:
			return w.at, false, nil
		default: // the answer came first, and the rest is not sent
			return time.Time{}, false, nil
		}
	}
	w := <-done
	return w.at, w.err == nil, nil
}
