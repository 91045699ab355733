package wire

import (
	"bytes"
	"errors"
)

// ErrChunked is what a body's reader gets when the chunks are not as they must be. The connection cannot go on after it.
var ErrChunked = errors.New("malformed chunked body")

// limits of a chunked body's own lines.
const (
	maxChunkLine   = 4096    // a size with its extensions
	maxChunkDigits = 15      // hexadecimal digits of a size
	maxTrailer     = 8192    // all the trailer lines
	maxOverhead    = 1 << 20 // extensions of one body, all chunks together
)

// chunkSize takes a line with a chunk's size off the buffered input. Extensions are dropped. It gives errMore when the line is
// not there yet.
func (c *Conn) chunkSize() (int64, error) {
	line, err := c.bodyLine(maxChunkLine)
	if err != nil {
		return 0, err
	}
	if ext := bytes.IndexByte(line, ';'); ext >= 0 {
		if c.overhead += len(line) - ext; c.overhead > maxOverhead {
			return 0, ErrChunked
		}
		line = bytes.TrimRight(line[:ext], " \t")
	}
	if len(line) == 0 || len(line) > maxChunkDigits {
		return 0, ErrChunked
	}
	var n int64
	for _, d := range line {
		switch {
		case digit(d):
			n = n<<4 | int64(d-'0')
		case d >= 'a' && d <= 'f':
			n = n<<4 | int64(d-'a'+10)
		case d >= 'A' && d <= 'F':
			n = n<<4 | int64(d-'A'+10)
		default:
			return 0, ErrChunked
		}
	}
	return n, nil
}

// trailer takes the lines after the last chunk off the buffered input, to the empty one, and drops them.
func (c *Conn) trailer() error {
	for {
		line, err := c.bodyLine(maxTrailer)
		if err != nil {
			return err
		}
		if len(line) == 0 {
			return nil
		}
		if c.overhead += len(line); c.overhead > maxTrailer {
			return ErrChunked
		}
	}
}

// bodyLine takes a line off the buffered input, without its end. The line must end with CR LF: a bare LF is how one message
// becomes two.
func (c *Conn) bodyLine(most int) ([]byte, error) {
	buffered := c.in[c.r:]
	i := bytes.IndexByte(buffered, '\n')
	if i < 0 {
		if len(buffered) > most {
			return nil, ErrChunked
		}
		return nil, errMore
	}
	if i > most || i == 0 || buffered[i-1] != '\r' || bytes.IndexByte(buffered[:i-1], '\r') >= 0 {
		return nil, ErrChunked
	}
	c.r += i + 1
	return buffered[:i-1], nil
}
