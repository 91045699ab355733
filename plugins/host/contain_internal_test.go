package host

import (
	"context"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
)

// spoken is a stream from which frames come.
type spoken struct {
	grpc.ClientStream

	frames chan frame.Buffers // closed at its end
}

func (s *spoken) RecvMsg(m any) error {
	f, ok := <-s.frames
	if !ok {
		return io.EOF
	}
	if b, is := m.(*[]byte); is {
		*b = f.Join()
	}
	return nil
}

// TestPanicWhilePassingOn: a client that panics when it gets a piece of its answer costs its own batch the answer. The worker is told that nobody waits for
// it any more, and the answers to others are read on.
func TestPanicWhilePassingOn(t *testing.T) {
	t.Parallel()
	var told []string
	contain := func(doing string, f func()) error {
		err := fault.Contain(doing, f)
		if err != nil {
			told = append(told, fault.DetailOf(err))
		}
		return err
	}
	s := &spoken{frames: make(chan frame.Buffers, 4)}
	x := newExchange(clientStream{s}, 0, contain)
	first, second := make(chan infer.Result, 1), make(chan infer.Result, 1)
	ids := make([]uint64, 2)
	answers := make([]<-chan answer, 2)
	for i, emit := range []func(infer.Result){func(r infer.Result) { first <- r; panic("a bug of the client") }, func(r infer.Result) { second <- r }} {
		items := []infer.Item{{Emit: emit}}
		id, frames := x.next(frameItems(context.Background(), items))
		ids[i], answers[i] = id, x.submit(id, items, frames)
		if _, ok := x.pop(); !ok {
			t.Fatal("the batch is not sent")
		}
	}
	for _, id := range ids {
		s.frames <- frame.EncodeResults(frame.KindPiece, id, []frame.Result{{Body: []byte("piece")}})
	}
	s.frames <- frame.EncodeResults(frame.KindResults, ids[0], []frame.Result{{Body: []byte("too late")}})
	s.frames <- frame.EncodeResults(frame.KindResults, ids[1], []frame.Result{{Body: []byte("answer")}})
	close(s.frames)
	if err := x.receive(); err != io.EOF { //nolint:errorlint // the stream's own
		t.Error(err)
	}
	if a := <-answers[0]; !fault.Is(a.err, fault.Internal) || len(first) != 1 {
		t.Errorf("%+v, %d pieces", a, len(first))
	}
	if a := <-answers[1]; a.err != nil || string(a.results[0].Body) != "answer" || string((<-second).Body) != "piece" {
		t.Errorf("%+v", a)
	}
	if len(told) != 1 || !strings.Contains(told[0], "a bug of the client") {
		t.Errorf("%q", told)
	}
	if o, ok := x.pop(); !ok || o.id != ids[0] || o.batch {
		t.Errorf("the worker is told %+v", o)
	}
}

// narrow is a carrier that takes a part of what TrySend is given, and then nothing before it is opened.
type narrow struct {
	carrier

	tried []frame.Buffers
	rests [][]byte
	sent  []frame.Buffers
}

func (n *narrow) TrySend(f frame.Buffers) (sent bool, rest []byte, err error) {
	n.tried = append(n.tried, f)
	return true, []byte("rest"), nil
}

func (n *narrow) SendRest(rest []byte) error {
	n.rests = append(n.rests, rest)
	return nil
}

func (n *narrow) Send(f frame.Buffers) error {
	if len(n.rests) == 0 {
		panic("something was sent in the middle of a frame")
	}
	n.sent = append(n.sent, f)
	return nil
}

// TestRestComesFirst: after a frame of which a part was taken, its rest is sent before the next batch and before its own cancellation, and nothing is tried
// at once meanwhile.
func TestRestComesFirst(t *testing.T) {
	t.Parallel()
	n := &narrow{}
	x := newExchange(n, 0, fault.Contain)
	batch := func() uint64 {
		items := []infer.Item{{ID: "i"}}
		id, frames := x.next(frameItems(context.Background(), items))
		x.submit(id, items, frames)
		return id
	}
	first := batch()
	second := batch()
	x.cancel(first)
	for range 3 {
		if more, err := x.sendNext(); !more || err != nil {
			t.Fatalf("%v, %v", more, err)
		}
	}
	if more, err := x.sendNext(); more || err != nil {
		t.Errorf("there is more: %v, %v", more, err)
	}
	if len(n.tried) != 1 || len(n.rests) != 1 || len(n.sent) != 2 {
		t.Fatalf("tried %d, rests %d, sent %d", len(n.tried), len(n.rests), len(n.sent))
	}
	for i, want := range []frame.Head{{Kind: frame.KindBatch, Count: 1, BatchID: second}, {Kind: frame.KindCancel, BatchID: first}} {
		if head, err := frame.DecodeHead(n.sent[i].Join()); err != nil || head != want {
			t.Errorf("%+v, %v, want %+v", head, err, want)
		}
	}
}
