package httpapi

import (
	"errors"
	"net/http"
	"sync"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// stream writes an answer that comes in pieces: chunked, one HTTP chunk for each piece, as TorchServe does. Its goroutine exists only while there
// are pieces to write.
type stream struct {
	api     *API
	request *request
	writing sync.WaitGroup

	mu     sync.Mutex // guards what follows
	queue  []infer.Result
	bytes  int64 // of the queue
	busy   bool  // the goroutine runs
	closed bool  // nothing is taken any more
	begun  bool  // there was a piece
	broken error // why the stream cannot go on
}

// errSlowReader is why a stream whose client does not read is given up.
var errSlowReader = errors.New("the client does not read what is streamed to it")

// unreadLimit is how many bytes of pieces may wait for a client.
const unreadLimit = 16 << 20

// emit takes a piece and never blocks.
func (s *stream) emit(r infer.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.broken != nil {
		return
	}
	s.begun = true
	switch {
	case r.Err != nil:
		s.broken = r.Err
	case s.bytes > 0 && s.bytes+int64(len(r.Body)) > unreadLimit: // one piece may be larger than the limit
		s.broken = errSlowReader
	}
	s.bytes += int64(len(r.Body))
	if s.broken != nil {
		s.queue = nil
		return
	}
	s.queue = append(s.queue, r)
	if !s.busy {
		s.busy = true
		s.writing.Go(s.drain)
	}
}

func (s *stream) drain() {
	for {
		r, some := s.next()
		if !some {
			return
		}
		var err error
		if bug := fault.Contain("a piece of an answer was written", func() { err = s.write(r) }); bug != nil {
			err = bug // it costs this stream
		}
		if err != nil {
			s.mu.Lock()
			s.broken, s.queue = err, nil
			s.mu.Unlock()
		}
	}
}

// next gives the next piece; without one the goroutine is to end.
func (s *stream) next() (r infer.Result, some bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		s.busy = false
		return r, false
	}
	r = s.queue[0]
	s.queue = s.queue[1:]
	s.bytes -= int64(len(r.Body))
	return r, true
}

// write writes one piece as one chunk; the first one brings status and headers.
func (s *stream) write(r infer.Result) error {
	q := s.request
	if q.status == 0 {
		ans, err := handlerAnswer(r)
		if err != nil {
			return err
		}
		if ans.status == 0 {
			ans.status = statusOK
		}
		h := q.w.Header()
		noDefaults(h)
		s.api.setHeaders(q, h, ans)
		q.status = ans.status
		q.w.WriteHeader(ans.status)
		writeHeaderNow(q.w)
	}
	if q.head.Method != http.MethodHead {
		if _, err := q.w.Write(r.Body); err != nil {
			return err //nolint:wrapcheck // only whether there is one counts
		}
	}
	return http.NewResponseController(q.w).Flush() //nolint:wrapcheck // the same
}

// end takes nothing more and waits until every piece is written. It says whether there was one.
func (s *stream) end() bool {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.writing.Wait()
	return s.begun
}

// last writes the answer that ends the stream. Once a piece was written, a failure can only be told by cutting the stream off.
func (s *stream) last(res infer.Result, err error) (answer, error) {
	if err == nil {
		err = s.broken
	}
	if err == nil {
		err = s.write(res)
	}
	switch {
	case err == nil:
		return answer{sent: true}, nil
	case s.request.status == 0:
		return answer{}, err
	}
	if s.request.http.Context().Err() == nil {
		s.api.logFailure(s.request.http.Context(), s.request, problemOf(err))
	}
	return answer{sent: true, broken: true}, nil
}
