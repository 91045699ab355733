package frame_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
)

const linkLimit = 64 << 20

// sockets gives the two ends of a pair.
func sockets(t testing.TB) (a, b *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fds[0]), "a"), os.NewFile(uintptr(fds[1]), "b")
}

func newLink(t testing.TB, end *os.File, limit int) *frame.Link {
	t.Helper()
	l, err := frame.NewLink(end, limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func batchOf(size int) frame.Buffers {
	data := bytes.Repeat([]byte{1, 2, 3, 4, 5}, size/5+1)[:size]
	return frame.EncodeBatch(7, []frame.Item{{ID: "an id", Parts: []frame.Part{{Name: "body", Data: data}}}})
}

// TestLinkCarriesFrames sends frames of many sizes one after another, some larger than what a socket holds, and takes them at the other end as they are, with
// the data where numbers may begin.
func TestLinkCarriesFrames(t *testing.T) {
	t.Parallel()
	a, b := sockets(t)
	from, to := newLink(t, a, linkLimit), newLink(t, b, linkLimit)
	sizes := []int{0, 1, 4095, 4096, frame.TryLimit, 70_000, 602_112, 5 << 20, 40 << 20, 3}
	sent := make(chan error, 1)
	go func() {
		for _, size := range sizes {
			if err := from.Send(batchOf(size)); err != nil {
				sent <- err
				return
			}
		}
		sent <- from.Close()
	}()
	for _, size := range sizes {
		got, err := to.Receive()
		if err != nil || !bytes.Equal(got, batchOf(size).Join()) {
			t.Fatalf("size %d: %d bytes, %v", size, len(got), err)
		}
		_, items, err := frame.DecodeBatch(got)
		if err != nil {
			t.Fatal(err)
		}
		if data := items[0].Parts[0].Data; len(data) > 0 && uintptr(unsafe.Pointer(&data[0]))%8 != 0 { //nolint:gosec // its address is what is looked at
			t.Errorf("size %d: the data lies at %p", size, &data[0])
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if got, err := to.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %x, %v", got, err)
	}
}

// TestTrySendDoesNotWait fills a socket that nobody reads: TrySend refuses what does not fit any more, and everything that it took arrives, in order.
func TestTrySendDoesNotWait(t *testing.T) {
	t.Parallel()
	a, b := sockets(t)
	from, to := newLink(t, a, linkLimit), newLink(t, b, linkLimit)
	if sent, rest, err := from.TrySend(batchOf(frame.TryLimit)); sent || rest != nil || err != nil {
		t.Errorf("a frame over the limit: sent %v, rest %d, %v", sent, len(rest), err)
	}
	taken := 0
	for {
		sent, rest, err := from.TrySend(batchOf(100))
		if err != nil || rest != nil {
			t.Fatalf("rest %d, %v: the socket takes a small frame as a whole, or not at all", len(rest), err)
		}
		if !sent {
			break
		}
		taken++
	}
	if taken == 0 {
		t.Fatal("nothing was taken")
	}
	for range taken {
		if got, err := to.Receive(); err != nil || !bytes.Equal(got, batchOf(100).Join()) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
	if sent, _, err := from.TrySend(batchOf(10)); !sent || err != nil {
		t.Errorf("when there is room again: %v, %v", sent, err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	if sent, _, err := from.TrySend(batchOf(10)); sent || err == nil {
		t.Errorf("to nobody: sent %v, %v", sent, err)
	}
}

// TestRestOfAFrame sends the rest of a frame of which a socket that holds little took a part only.
func TestRestOfAFrame(t *testing.T) {
	t.Parallel()
	a, b := sockets(t)
	for _, end := range []*os.File{a, b} {
		if err := unix.SetsockoptInt(int(end.Fd()), unix.SOL_SOCKET, unix.SO_SNDBUF, 1); err != nil { // it becomes the least that there is
			t.Fatal(err)
		}
		if err := unix.SetNonblock(int(end.Fd()), true); err != nil { // Fd has made it block
			t.Fatal(err)
		}
	}
	from, to := newLink(t, a, linkLimit), newLink(t, b, linkLimit)
	want := batchOf(frame.TryLimit - 1000)
	sent, rest, err := from.TrySend(want)
	if !sent || err != nil || len(rest) == 0 || len(rest) >= want.Len() {
		t.Fatalf("sent %v, rest %d of %d, %v: want a part", sent, len(rest), want.Len(), err)
	}
	done := make(chan error, 1)
	go func() { done <- from.SendRest(rest) }()
	if got, err := to.Receive(); err != nil || !bytes.Equal(got, want.Join()) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestCloseEndsCopies: the other end sees the end also while somebody else holds the socket.
func TestCloseEndsCopies(t *testing.T) {
	t.Parallel()
	a, b := sockets(t)
	held, err := unix.Dup(int(a.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(held) //nolint:errcheck // it has nothing to lose
	from, to := newLink(t, a, linkLimit), newLink(t, b, linkLimit)
	if err := from.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := to.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("%x, %v", got, err)
	}
}

func TestLinkRefuses(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close() //nolint:errcheck // it has nothing to lose
	if _, err := frame.NewLink(r, linkLimit); err == nil {
		t.Error("a pipe was taken for a socket")
	}
	a, b := sockets(t)
	from, to := newLink(t, a, linkLimit), newLink(t, b, 100)
	if err := to.Send(batchOf(200)); err == nil {
		t.Error("a frame over the limit was sent")
	}
	if err := from.Send(batchOf(200)); err != nil {
		t.Fatal(err)
	}
	if _, err := to.Receive(); !errors.Is(err, frame.ErrMalformed) {
		t.Errorf("a frame over the limit: %v", err)
	}
}

// FuzzLink: whatever comes is frames, and then an end or an error; never more memory than the limit says.
func FuzzLink(f *testing.F) {
	whole := batchOf(20).Join()
	f.Add(append(binary.LittleEndian.AppendUint32(nil, uint32(len(whole))), whole...))
	f.Add([]byte{1, 0, 0})
	f.Add([]byte{255, 255, 255, 255, 1})
	f.Add([]byte{0, 0, 0, 0, 16, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 1 << 12
		if len(b) > 2*limit {
			return
		}
		mine, theirs := sockets(t)
		l := newLink(t, mine, limit)
		if _, err := theirs.Write(b); err != nil {
			t.Fatal(err)
		}
		if err := theirs.Close(); err != nil {
			t.Fatal(err)
		}
		for read := 0; ; {
			got, err := l.Receive()
			if err != nil {
				if clean := errors.Is(err, io.EOF); clean && read != len(b) {
					t.Fatalf("an end after %d of %d bytes", read, len(b))
				}
				return
			}
			if want := b[read+4:]; !bytes.Equal(got, want[:len(got)]) {
				t.Fatal("another frame came than was sent")
			}
			read += 4 + len(got)
		}
	})
}
