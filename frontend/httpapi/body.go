package httpapi

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"

	"github.com/flambeau-serve/flambeau/frontend/httpapi/wire"
	"github.com/flambeau-serve/flambeau/internal/fault"
)

const (
	firstBuffer = 1 << 20  // of a body, however long it says it is: memory follows what has come
	firstChunks = 8 << 10  // of a body that does not say
	drainAtMost = 64 << 20 // of a refused body, so that its client gets to read why
	scratchSize = 128 << 10
)

// What of a request may be too large, as its client reads it.
const (
	wholeRequest = "The request"
	unpackedBody = "The unpacked body of the request"
)

// budget bounds the bytes of all the bodies in memory.
type budget struct {
	limit int64 // 0 for none
	mu    sync.Mutex
	used  int64 // guarded by mu
}

// take reserves n bytes, all or nothing.
func (b *budget) take(n int64) bool {
	if b.limit <= 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+n > b.limit {
		return false
	}
	b.used += n
	return true
}

func (b *budget) give(n int64) {
	if b.limit <= 0 || n == 0 {
		return
	}
	b.mu.Lock()
	b.used -= n
	b.mu.Unlock()
}

// readBody reads the whole body before anything else is done with the request: only then does net/http notice that a client
// leaves. What it holds is taken from the budget until the request is over.
func (a *API) readBody(q *request) error {
	if q.head.Length == 0 {
		return nil
	}
	size := min(q.head.Length, firstBuffer)
	if q.head.Length == wire.Chunked {
		size = firstChunks
	}
	if err := a.hold(q, size); err != nil {
		return err
	}
	buf := make([]byte, 0, size)
	for {
		if len(buf) == cap(buf) {
			if int64(cap(buf)) > a.opts.MaxRequestSize {
				return a.tooLarge(wholeRequest)
			}
			next, err := a.larger(q, int64(cap(buf)))
			if err != nil {
				return err
			}
			buf = append(make([]byte, 0, next), buf...)
		}
		n, err := q.http.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case int64(len(buf)) > a.opts.MaxRequestSize:
			return a.tooLarge(wholeRequest)
		case errors.Is(err, io.EOF):
			q.body, q.bodyDone = buf, true
			return nil
		case err != nil:
			q.bodyDone = true // for what is left nobody knows where it ends
			return bodyError(err)
		case int64(len(buf)) == q.head.Length:
			return a.bodyEnd(q, buf)
		}
	}
}

// bodyEnd lets net/http see the end of a body of known length, which it reports after the last byte.
func (a *API) bodyEnd(q *request, buf []byte) error {
	var one [1]byte
	if n, err := q.http.Body.Read(one[:]); n != 0 || !errors.Is(err, io.EOF) {
		q.bodyDone = true
		return fault.New(fault.Internal, "the body does not end where it must", err)
	}
	q.body, q.bodyDone = buf, true
	return nil
}

// larger is the size of the next buffer after a full one: the whole of a body of known length, else twice as much, but never
// more than one byte over the limit.
func (a *API) larger(q *request, size int64) (int64, error) {
	next := q.head.Length
	if next == wire.Chunked {
		next = min(2*size, a.opts.MaxRequestSize+1)
	}
	return next, a.hold(q, next-size)
}

// hold takes n more bytes from the budget for the request.
func (a *API) hold(q *request, n int64) error {
	if !a.inflight.take(n) {
		refused := fault.TooManyBytes(n, a.opts.MaxInflightBytes)
		if a.opts.Metrics != nil {
			a.opts.Metrics.CountUnread(refused.Kind.String())
		}
		return refused
	}
	q.held += n
	return nil
}

// bodyError says why a body could not be read.
func bodyError(err error) error {
	switch {
	case errors.Is(err, wire.ErrChunked):
		return &fault.Error{Kind: fault.BadRequest, Message: invalidMessage, Hint: "what was not understood: a chunk of the body", Cause: err}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &fault.Error{Kind: fault.BadRequest, Message: invalidMessage, Hint: "the body came too slowly", Cause: err}
	}
	return fault.New(fault.Cancelled, "the client left before its request was whole", err)
}

// dropBody reads what is left of a refused body and forgets it: a client that is still sending would not read the answer, and
// closing under it could destroy the answer. A client that waits for a 100 has not begun to send.
func (a *API) dropBody(q *request) {
	if q.bodyDone || q.head.Malformed != "" {
		return
	}
	q.bodyDone = true
	if q.http.Header.Get("Expect") != "" {
		if q.conn != nil {
			q.conn.StopReading()
		}
		return
	}
	scratch, ok := a.scratch.Get().(*[scratchSize]byte)
	if !ok {
		scratch = new([scratchSize]byte)
	}
	defer a.scratch.Put(scratch)
	// io.Discard would read 8 kB at a time, whatever buffer it is given. An error means that there is nobody to read the answer.
	for left := drainAtMost; left > 0; {
		n, err := q.http.Body.Read(scratch[:])
		if left -= n; err != nil {
			return
		}
	}
}

// tooLarge refuses a request of which something has more bytes than a body may have.
func (a *API) tooLarge(what string) error {
	f := fault.Newf(fault.TooLarge, "%s is larger than %d bytes.", what, a.opts.MaxRequestSize)
	f.Hint, f.Setting = "send less, or raise max_request_size", "max_request_size in config.properties"
	f.Numbers = []fault.Number{fault.Count("bytes_limit", a.opts.MaxRequestSize)}
	return f
}

// sendTooLarge answers as TorchServe's HTTP layer does: with a status and nothing else but the headers that say why, and the protocol's clients with an error. A body in chunks
// ends the connection. One of known length is answered at once, so that its client can stop sending, then read to its end, and the connection goes on.
func (a *API) sendTooLarge(q *request, why error) {
	h := q.w.Header()
	noDefaults(h)
	h["Content-Length"] = a.fixed.zero
	setRefusal(h, problemOf(why))
	text := a.protocolTooLarge(q, why)
	if text != nil {
		h["Content-Length"], h["content-type"] = []string{strconv.Itoa(len(text))}, a.fixed.json
	}
	q.status = statusTooLarge
	control := http.NewResponseController(q.w)
	goesOn := q.head.Length != wire.Chunked && q.http.Header.Get("Expect") == "" && control.EnableFullDuplex() == nil
	if !goesOn {
		h["Connection"] = a.fixed.closing
	}
	q.w.WriteHeader(q.status)
	writeHeaderNow(q.w)
	if len(text) > 0 {
		_, _ = q.w.Write(text) // a client that is gone needs no answer
	}
	if control.Flush() == nil {
		a.dropBody(q)
	}
}

// writeHeaderNow sends the head of an answer without a body, which gin would keep back.
func writeHeaderNow(w http.ResponseWriter) {
	if now, ok := w.(interface{ WriteHeaderNow() }); ok {
		now.WriteHeaderNow()
	}
}
