// Package wire stands between a socket and net/http: it reads the heads of HTTP/1 requests as they were sent, keeps them for
// the handlers, and hands net/http plain ones instead, so that names keep their spelling and no request is refused or understood
// otherwise than TorchServe does.
package wire

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// state is what the next byte of the input belongs to.
type state int

const (
	inHead      state = iota
	inBody            // of known length
	inChunkSize       // the line before a chunk
	inChunk           // a chunk's data
	inChunkEnd        // the line end after it
	inTrailer         // the lines after the last chunk
	broken            // nothing more is read
)

const (
	mostHeads = 4   // heads that may wait for their handlers: net/http asks for one after the other
	spaceSize = 128 // the longest plain head, with room to spare
)

// errMore says that the input must be read on before it can be understood.
var errMore = errors.New("more input is needed")

// errBehind is a bug in the user of a Conn: heads are not taken.
var errBehind = errors.New("too many request heads wait for their handlers")

// Conn is a connection whose Read gives net/http requests of the simplest form: a method that is HEAD or POST, a number for a
// target, and a body of the length that the client's head says. Take gives the head that belongs to a number.
//
// As for any connection that net/http serves, Read is called by one goroutine at a time; the other methods may be called by any.
type Conn struct {
	net.Conn
	owner *Listener

	// of the goroutine that reads
	page     *page
	in       []byte // what has come and is not handed on: in[r:], in page as long as it fits
	r        int
	scan     headScan
	state    state
	left     int64 // bytes of the body or chunk still to come
	overhead int   // bytes of the chunked body that are not data
	ticking  bool  // limit is set
	last     bool  // the latest head was the client's last one
	out      []byte
	space    [spaceSize]byte // what out is made of
	seq      uint64

	stopped atomic.Bool // nothing more is to be read

	mu     sync.Mutex       // guards heads, first, waits, asked, limit, unread
	heads  [mostHeads]*Head // a ring: waiting ones from first on
	first  int
	waits  int
	asked  time.Time // the read deadline that net/http set
	limit  time.Time // ours: of a head or of a pause within a body
	unread bool      // the client has sent, or will send, what nobody has read
}

// Take gives the head of the request with that number, nil if there is none. Heads before it are forgotten.
func (c *Conn) Take(number uint64) *Head {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.waits > 0 {
		h := c.heads[c.first]
		c.heads[c.first] = nil
		c.first = (c.first + 1) % mostHeads
		c.waits--
		if h.seq == number {
			return h
		}
	}
	return nil
}

// StopReading lets reads end at once. It is for a client that waits for leave to send a body and does not get it: net/http would
// wait for that body all the same.
func (c *Conn) StopReading() { c.stopped.Store(true) }

// Read gives the next bytes of plain requests.
func (c *Conn) Read(p []byte) (int, error) {
	switch {
	case len(p) == 0:
		return 0, nil
	case c.stopped.Load():
		return 0, io.EOF
	}
	for {
		if len(c.out) > 0 {
			n := copy(p, c.out)
			c.out = c.out[n:]
			return n, nil
		}
		var n int
		var err error
		switch c.state {
		case inHead:
			err = c.readHead(len(p) > 1)
		case inBody, inChunk:
			n, err = c.readData(p)
		case inChunkSize, inChunkEnd, inTrailer:
			err = c.readFrame()
		case broken:
			return 0, io.EOF
		}
		switch {
		case n > 0:
			return n, nil
		case errors.Is(err, errMore):
			if err = c.fill(p); err != nil {
				return 0, err
			}
		case err != nil:
			return 0, err
		}
	}
}

// readHead looks for a whole head in the buffered input and takes it off. The time for a head counts only when net/http asks
// for one, not when it listens (with a buffer of one byte) for the client to go away while a handler runs.
//
// TorchServe keeps connections open whatever the client asks for. So does this, but not for long when the client has said that it
// is done: it may be waiting for the end of the connection.
func (c *Conn) readHead(wanted bool) error {
	buffered := c.in[c.r:]
	end, problem := c.scan.find(buffered, c.owner.limits)
	if end == 0 && problem == "" {
		switch {
		case !wanted || c.ticking:
		case len(buffered) > 0:
			c.startClock(c.owner.limits.Head)
		case c.last:
			c.startClock(farewell)
		}
		return errMore
	}
	c.stopClock()
	h := &Head{Malformed: problem}
	if problem == "" {
		h = parseHead(buffered[c.scan.skipped:end])
		c.consume(end)
	}
	c.scan = headScan{}
	return c.handOn(h)
}

// handOn keeps a head for its handler and puts a plain one in its place.
func (c *Conn) handOn(h *Head) error {
	c.seq++
	h.seq = c.seq
	c.last = h.last
	c.mu.Lock()
	if c.waits == mostHeads {
		c.mu.Unlock()
		return errBehind
	}
	c.heads[(c.first+c.waits)%mostHeads] = h
	c.waits++
	c.unread = h.Malformed != "" || h.Length != 0
	c.mu.Unlock()

	b := append(c.space[:0], "POST /"...)
	if h.Method == http.MethodHead {
		b = append(c.space[:0], "HEAD /"...)
	}
	b = strconv.AppendUint(b, c.seq, 10)
	b = append(b, " HTTP/1.1\r\nHost: a\r\n"...)
	switch {
	case h.Malformed != "":
		c.state = broken
	case h.Length == Chunked:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
		c.state, c.overhead = inChunkSize, 0
	case h.Length > 0:
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, h.Length, 10)
		b = append(b, "\r\n"...)
		c.state, c.left = inBody, h.Length
	default:
		c.state = inHead
	}
	if h.expects {
		b = append(b, "Expect: 100-continue\r\n"...)
	}
	c.out = append(b, "\r\n"...)
	return nil
}

// readData hands on bytes of a body: buffered ones first, else straight from the socket.
func (c *Conn) readData(p []byte) (int, error) {
	if int64(len(p)) > c.left {
		p = p[:c.left]
	}
	n, err := copy(p, c.in[c.r:]), error(nil)
	if n > 0 {
		c.consume(n)
	} else {
		c.startClock(c.owner.limits.Pause)
		n, err = c.Conn.Read(p)
	}
	if c.left -= int64(n); c.left > 0 {
		return n, err
	}
	if c.state == inChunk {
		c.state = inChunkEnd
		return n, err
	}
	c.endBody()
	return n, err
}

// readFrame takes what is between the data of chunks off the buffered input.
func (c *Conn) readFrame() error {
	err := c.frame()
	switch {
	case errors.Is(err, errMore):
		c.startClock(c.owner.limits.Pause)
	case err != nil:
		c.state = broken
	default:
		c.consume(0)
	}
	return err
}

func (c *Conn) frame() error {
	switch c.state {
	case inChunkSize:
		n, err := c.chunkSize()
		if err != nil {
			return err
		}
		if n == 0 {
			c.state, c.overhead = inTrailer, 0
			return nil
		}
		c.out = append(strconv.AppendInt(c.space[:0], n, 16), "\r\n"...)
		c.state, c.left = inChunk, n
	case inChunkEnd:
		line, err := c.bodyLine(1)
		if err != nil {
			return err
		}
		if len(line) > 0 {
			return ErrChunked
		}
		c.out = append(c.space[:0], "\r\n"...)
		c.state = inChunkSize
	case inTrailer:
		if err := c.trailer(); err != nil {
			return err
		}
		c.out = append(c.space[:0], "0\r\n\r\n"...)
		c.endBody()
	case inHead, inBody, inChunk, broken: // not framing
	}
	return nil
}

// endBody makes the next byte a head's.
func (c *Conn) endBody() {
	c.state = inHead
	c.stopClock()
	c.mu.Lock()
	c.unread = false
	c.mu.Unlock()
}

// fill reads more input into the buffer. While there is nothing to keep, it waits with p for a buffer, so that an idle
// connection holds none.
func (c *Conn) fill(p []byte) error {
	if c.consume(0); len(c.in) == 0 {
		n, err := c.Conn.Read(p)
		if n == 0 {
			return orNoProgress(err)
		}
		c.page = c.owner.takePage()
		c.in = append(c.page[:0], p[:n]...)
		return nil
	}
	if c.r > 0 {
		c.in = c.in[:copy(c.in, c.in[c.r:])]
		c.r = 0
	}
	if len(c.in) == cap(c.in) {
		c.in = append(c.in, make([]byte, pageSize)...)[:len(c.in)]
	}
	n, err := c.Conn.Read(c.in[len(c.in):cap(c.in)])
	if n == 0 {
		return orNoProgress(err)
	}
	c.in = c.in[:len(c.in)+n]
	return nil
}

func orNoProgress(err error) error {
	if err == nil {
		return io.ErrNoProgress
	}
	return err
}

// consume takes n bytes off the buffered input, and gives the buffer back when that was all.
func (c *Conn) consume(n int) {
	if c.r += n; c.r < len(c.in) || c.page == nil {
		return
	}
	c.owner.givePage(c.page)
	c.page, c.in, c.r = nil, nil, 0
}
