package wire

import (
	"io"
	"net"
	"sync"
	"time"
)

// Limits bound what a client may send before a handler is asked.
type Limits struct {
	Line   int           // bytes of the request line; 0 means TorchServe's 4096
	Fields int           // bytes of the header fields; 0 means TorchServe's 8192
	Head   time.Duration // from a head's first byte to its last; 0 for no limit
	Pause  time.Duration // between two parts of a body, and of writing; 0 for no limit
}

const (
	pageSize     = 4096
	lingerFor    = 500 * time.Millisecond
	lingerAtMost = 256 << 10
	farewell     = 5 * time.Second // a connection's rest after its client's last request
	slowest      = 16 << 10        // bytes that a client must take in a second, on top of the pause
)

type page [pageSize]byte

// Listener makes a Conn of each connection that it accepts.
type Listener struct {
	net.Listener
	limits    Limits
	pages     sync.Pool
	lingering sync.WaitGroup
}

// NewListener wraps a listener of a stream protocol.
func NewListener(inner net.Listener, limits Limits) *Listener {
	if limits.Line <= 0 {
		limits.Line = 4096
	}
	if limits.Fields <= 0 {
		limits.Fields = 8192
	}
	return &Listener{Listener: inner, limits: limits}
}

// Accept waits for the next connection.
func (l *Listener) Accept() (net.Conn, error) {
	inner, err := l.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // net/http looks at the error's type
	}
	return l.wrap(inner), nil
}

// Wait returns when the last connection that was closed before its client had read the answer is gone: half a second after
// that Close at most.
func (l *Listener) Wait() { l.lingering.Wait() }

func (l *Listener) wrap(inner net.Conn) *Conn { return &Conn{Conn: inner, owner: l} }

func (l *Listener) takePage() *page {
	if p, ok := l.pages.Get().(*page); ok {
		return p
	}
	return new(page)
}

func (l *Listener) givePage(p *page) { l.pages.Put(p) }

// linger ends a connection whose client may still be sending. A plain close would reset it, and the reset can destroy the
// answer before the client has read it: so only our half is closed at first.
func (l *Listener) linger(conn net.Conn) {
	l.lingering.Go(func() {
		defer func() { _ = conn.Close() }()
		half, ok := conn.(interface{ CloseWrite() error })
		if !ok || half.CloseWrite() != nil || conn.SetReadDeadline(time.Now().Add(lingerFor)) != nil {
			return
		}
		_, _ = io.CopyN(io.Discard, conn, lingerAtMost) // whatever comes, and any error, ends it
	})
}
