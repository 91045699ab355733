package grpcapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/internal/fault"
	pb "github.com/flambeau-serve/flambeau/proto/openinference/v2"
)

func TestStream(t *testing.T) {
	_, conn, _ := start(t)
	s, err := pb.NewGRPCInferenceServiceClient(conn).ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	next := func() *pb.ModelStreamInferResponse {
		t.Helper()
		r, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	isFinal := func(r *pb.ModelStreamInferResponse) bool {
		return r.GetInferResponse().GetParameters()[oip.ParamFinal].GetBoolParam()
	}
	req := wordsRequest("one", "two")
	req.Parameters = valuesOf(oip.Parameters{oip.ParamEmptyFinal: true, oip.ParamSequence: int64(3)})
	if err := s.Send(req); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"one", "two"} {
		r := next()
		if got := r.GetInferResponse().GetOutputs()[0].GetContents().GetBytesContents(); len(got) != 1 || string(got[0]) != word || isFinal(r) || r.GetInferResponse().GetId() != "w" {
			t.Errorf("%v, want %s", r, word)
		}
	}
	if r := next(); !isFinal(r) || len(r.GetInferResponse().GetOutputs()) != 0 {
		t.Errorf("%v", r)
	}
	if err := s.Send(wordsRequest("fail")); err != nil {
		t.Fatal(err)
	}
	if r := next(); r.GetErrorMessage() != "refused" || r.GetInferResponse().GetId() != "w" {
		t.Errorf("%v", r)
	}
	if err := s.Send(addRequest()); err != nil {
		t.Fatal(err)
	}
	if r := next(); !isFinal(r) || !bytes.Equal(r.GetInferResponse().GetRawOutputContents()[0], raw(2, 3)) {
		t.Errorf("%v", r)
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("%v", err)
	}
}

// TestSequencesKeepTheirOrder sends many requests of one sequence, whose answers come in the order of the requests.
// TestPanicsOfAStream cost the request, and the stream and the server go on; one of what sends answers costs the stream.
func TestPanicsOfAStream(t *testing.T) {
	_, conn, _ := start(t)
	s, err := pb.NewGRPCInferenceServiceClient(conn).ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, tt := range []struct {
			req  *pb.ModelInferRequest
			want string
		}{{wordsRequest("panic"), "Internal error. (the server has a bug, which its log describes: report it)"}, {addRequest(), ""}} {
			if err := s.Send(tt.req); err != nil {
				t.Fatal(err)
			}
			if r, err := s.Recv(); err != nil || r.GetErrorMessage() != tt.want || r.GetInferResponse().GetId() != tt.req.GetId() {
				t.Errorf("%v, %v; want %q", r, err, tt.want)
			}
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	out := newOutbox(func(*pb.ModelStreamInferResponse) error { panic("a bug of the sender") }, cancel)
	out.put(&pb.ModelStreamInferResponse{ErrorMessage: "x"})
	<-ctx.Done()
	if err := out.end(); !fault.IsBug(err) || !fault.IsBug(context.Cause(ctx)) {
		t.Errorf("%v, %v", err, context.Cause(ctx))
	}
	<-out.done
}

func TestSequencesKeepTheirOrder(t *testing.T) {
	_, conn, _ := start(t)
	s, err := pb.NewGRPCInferenceServiceClient(conn).ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const n = 200
	for i := range n {
		req := addRequest()
		req.Id, req.Parameters = strconv.Itoa(i), valuesOf(oip.Parameters{oip.ParamSequence: int64(3)})
		if err := s.Send(req); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		r, err := s.Recv()
		if err != nil || r.GetInferResponse().GetId() != strconv.Itoa(i) {
			t.Fatalf("%d: %v %v", i, r, err)
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("%v", err)
	}
}

// TestShutdownEndsIdleStreams has a client that keeps a stream open, and one that waits for an answer.
func TestShutdownEndsIdleStreams(t *testing.T) {
	m, conn, s := start(t)
	m.block = make(chan struct{})
	c := pb.NewGRPCInferenceServiceClient(conn)
	idle, err := c.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := idle.Send(addRequest()); err != nil {
		t.Fatal(err)
	}
	for arrived := false; !arrived; {
		m.mu.Lock()
		arrived = len(m.seen) > 0
		m.mu.Unlock()
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Shutdown(t.Context()) }()
	<-s.closing
	close(m.block)
	if r, err := idle.Recv(); err != nil || r.GetInferResponse() == nil {
		t.Errorf("what runs is answered: %v %v", r, err)
	}
	_, err = idle.Recv()
	wantCode(t, err, codes.Unavailable, "shutting down")
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
