package frame

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// Link carries frames over a unix socket of its own, each after its length (u32, little endian): what the Execute stream does, with less on the way
// (docs/protocol.md). One goroutine may receive while others send; Send and TrySend are for one at a time.
type Link struct {
	conn  *net.UnixConn
	raw   syscall.RawConn
	in    *bufio.Reader
	limit int
	small []byte // that TrySend puts a frame together in
	close func() error
}

const (
	lengthSize = 4
	linkBuffer = 64 << 10
	// atOnce is for how much of a frame memory is taken before it has come: beyond that what the length says is believed as far as bytes follow.
	atOnce = 16 << 20
	// TryLimit is the size of the largest frame that TrySend tries to send.
	TryLimit = 32 << 10
)

// NewLink takes over one end of a pair of connected unix sockets of the stream type; limit is the size of the largest frame, in bytes. file is closed in
// any case.
func NewLink(file *os.File, limit int) (*Link, error) {
	defer file.Close() //nolint:errcheck // the connection has a descriptor of its own
	c, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("the socket for frames: %w", err)
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("the descriptor for frames is a %s connection, and no unix socket", c.LocalAddr().Network()), c.Close())
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Link{
		conn: conn, raw: raw, in: bufio.NewReaderSize(conn, linkBuffer), limit: limit, small: make([]byte, 0, lengthSize+TryLimit),
		close: sync.OnceValue(func() error {
			_ = errors.Join(conn.CloseWrite(), conn.CloseRead()) // it may have ended already
			return conn.Close()
		}),
	}, nil
}

// Close ends the link, also where another process has a copy of the socket: what waits in Receive and Send returns, here and at the other end. It may be
// called more than once.
func (l *Link) Close() error { return l.close() }

// Receive gives the next frame, which belongs to the caller and lies as Codec's Unmarshal lays it. The error is io.EOF when the other end has closed the link
// between two frames.
func (l *Link) Receive() ([]byte, error) {
	head, err := l.in.Peek(lengthSize)
	if err != nil {
		if len(head) > 0 && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	size := int64(binary.LittleEndian.Uint32(head))
	if size > int64(l.limit) {
		return nil, fmt.Errorf("%w: it has %d bytes, over the limit of %d", ErrMalformed, size, l.limit)
	}
	if _, err := l.in.Discard(lengthSize); err != nil {
		return nil, err
	}
	begin, err := l.in.Peek(int(min(size, linkBuffer)))
	if err != nil {
		return nil, unexpected(err)
	}
	frame, read := aligned(int(min(size, atOnce)), begin), 0
	for {
		if _, err := io.ReadFull(l.in, frame[read:]); err != nil {
			return nil, unexpected(err)
		}
		if int64(len(frame)) == size {
			return frame, nil
		}
		read = len(frame)
		larger := aligned(int(min(size, 2*int64(read))), frame[:linkBuffer])
		copy(larger, frame)
		frame = larger
	}
}

// unexpected is an error in the middle of a frame.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Send sends a frame, and waits until the socket has taken it.
func (l *Link) Send(f Buffers) error {
	if err := l.fits(f); err != nil {
		return err
	}
	var length [lengthSize]byte
	binary.LittleEndian.PutUint32(length[:], uint32(f.Len()))
	all := make(net.Buffers, 0, len(f)+1)
	all = append(append(all, length[:]), f...)
	_, err := all.WriteTo(l.conn)
	return err
}

// TrySend sends a frame of up to TryLimit bytes if the socket takes it without a wait, and says whether it did. Where it took a part of it, rest is to
// be sent before anything else, by SendRest.
func (l *Link) TrySend(f Buffers) (sent bool, rest []byte, err error) {
	if f.Len() > min(TryLimit, l.limit) {
		return false, nil, nil
	}
	b := binary.LittleEndian.AppendUint32(l.small[:0], uint32(f.Len()))
	for _, s := range f {
		b = append(b, s...)
	}
	var n int
	var failed error
	err = l.raw.Write(func(fd uintptr) bool {
		for {
			n, failed = syscall.Write(int(fd), b)
			if !errors.Is(failed, syscall.EINTR) {
				return true // whatever came of it: nobody waits here
			}
		}
	})
	switch {
	case err != nil:
		return false, nil, err
	case errors.Is(failed, syscall.EAGAIN):
		return false, nil, nil
	case failed != nil:
		return false, nil, os.NewSyscallError("write", failed)
	case n < len(b):
		return true, append([]byte(nil), b[n:]...), nil
	}
	return true, nil, nil
}

// SendRest sends what TrySend has left, and waits until the socket has taken it.
func (l *Link) SendRest(rest []byte) error {
	_, err := l.conn.Write(rest)
	return err
}

func (l *Link) fits(f Buffers) error {
	if n := f.Len(); n > l.limit || int64(n) > int64(^uint32(0)) {
		return fmt.Errorf("a frame has %d bytes, over the limit of %d for a message", n, l.limit)
	}
	return nil
}
