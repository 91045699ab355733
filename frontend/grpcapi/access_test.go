package grpcapi

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/flambeau-serve/flambeau/internal/fault"
	pb "github.com/flambeau-serve/flambeau/proto/openinference/v2"
)

// told notes the access log, the counters and what is held.
type told struct {
	mu       sync.Mutex
	lines    []AccessEntry
	statuses []int
	limit    int64
	held     int64
	most     int64
}

func (w *told) log(e AccessEntry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, e)
}

// CountUnread implements Metrics.
func (w *told) CountUnread(string) {}

// CountResponse implements Metrics.
func (w *told) CountResponse(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.statuses = append(w.statuses, status)
}

// TakeBytes implements Budget.
func (w *told) TakeBytes(n int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held+n > w.limit {
		return false
	}
	w.held += n
	w.most = max(w.most, w.held)
	return true
}

// GiveBytes implements Budget.
func (w *told) GiveBytes(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held -= n
}

// all waits for so many calls, which are told when their clients have the answers already.
func (w *told) all(t *testing.T, n int) ([]AccessEntry, []int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		w.mu.Lock()
		lines, statuses, held := slices.Clone(w.lines), slices.Clone(w.statuses), w.held
		w.mu.Unlock()
		if len(lines) >= n && len(statuses) >= n && held == 0 {
			return lines, statuses
		}
		if ctx.Err() != nil {
			t.Fatalf("%d calls were told, and %d bytes are held: %+v", len(lines), held, lines)
		}
	}
}

func watched(t *testing.T, limit int64) (*told, pb.GRPCInferenceServiceClient) {
	t.Helper()
	w := &told{limit: limit}
	_, conn, _ := start(t, func(o *Options) { o.AccessLog, o.Metrics, o.Budget = w.log, w, w })
	return w, pb.NewGRPCInferenceServiceClient(conn)
}

func TestAccessLog(t *testing.T) {
	w, c := watched(t, 1<<20)
	if _, err := c.ServerLive(t.Context(), &pb.ServerLiveRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ModelInfer(t.Context(), addRequest()); err != nil {
		t.Fatal(err)
	}
	unknown := addRequest()
	unknown.ModelName = "nope"
	_, err := c.ModelInfer(t.Context(), unknown)
	wantCode(t, err, codes.NotFound, "nope")
	large := addRequest()
	large.RawInputContents[0] = make([]byte, 200_000)
	_, err = c.ModelInfer(t.Context(), large)
	wantCode(t, err, codes.ResourceExhausted, "")
	s, err := c.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, req := range []*pb.ModelInferRequest{addRequest(), wordsRequest("fail")} {
		if err := s.Send(req); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	lines, statuses := w.all(t, 6)
	slices.Sort(statuses)
	if diff := cmp.Diff([]int{200, 200, 200, 400, 404, 413}, statuses); diff != "" {
		t.Error(diff)
	}
	codesOf := map[string][]int{}
	for _, l := range lines {
		codesOf[l.Method] = append(codesOf[l.Method], l.Code)
		if l.Peer == "" || l.At.IsZero() {
			t.Errorf("%+v", l)
		}
		if isInfer := l.Method != "inference.GRPCInferenceService/ServerLive"; isInfer && l.Code != int(codes.ResourceExhausted) && l.RequestID == "" {
			t.Errorf("an inference without an identifier: %+v", l)
		}
	}
	for _, all := range codesOf {
		slices.Sort(all)
	}
	want := map[string][]int{
		"inference.GRPCInferenceService/ServerLive": {0}, "inference.GRPCInferenceService/ModelInfer": {0, 5, 8}, "inference.GRPCInferenceService/ModelStreamInfer": {0, 3},
	}
	if diff := cmp.Diff(want, codesOf); diff != "" {
		t.Error(diff)
	}
	line := AccessEntry{Took: 1500 * time.Microsecond, Peer: "127.0.0.1:5", Method: "a.B/C\n", Code: 5}.Line()
	if line != `/127.0.0.1:5 "gRPC a.B/C\n HTTP/2.0" 5 1` {
		t.Error(line)
	}
}

func TestBytesInFlight(t *testing.T) {
	w, c := watched(t, 20)
	_, err := c.ModelInfer(t.Context(), addRequest())
	wantCode(t, err, codes.ResourceExhausted, "as many bytes of requests as it may")
	if info, retry := detailsOf(t, err); info.GetReason() != "SERVER_BYTES" || info.GetMetadata()["setting"] == "" || retry.GetRetryDelay().AsDuration() != time.Second {
		t.Errorf("over the wire: %v %v", info, retry)
	}
	s, err := c.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(addRequest()); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Recv(); err != nil || r.GetErrorMessage() == "" {
		t.Errorf("%v %v", r, err)
	}
	w.mu.Lock()
	w.limit = 1000
	w.mu.Unlock()
	if _, err := c.ModelInfer(t.Context(), addRequest()); err != nil {
		t.Error(err)
	}
	w.all(t, 3)
	if w.most == 0 {
		t.Error("nothing was taken")
	}
}

func TestStatuses(t *testing.T) {
	for _, tc := range []struct {
		err  error
		code codes.Code
		http int
	}{
		{nil, codes.OK, 200},
		{fault.New(fault.ModelNotFound, "", nil), codes.NotFound, 404},
		{status.Error(codes.Unimplemented, ""), codes.Unimplemented, 404},
		{status.Error(codes.Canceled, ""), codes.Canceled, 499},
		{status.Error(codes.DeadlineExceeded, ""), codes.DeadlineExceeded, 504},
		{status.Error(codes.Unavailable, ""), codes.Unavailable, 503},
		{errors.New("a bug"), codes.Unknown, 500},
	} {
		if got := httpStatusOf(tc.err); got != tc.http {
			t.Errorf("%v: %d, want %d", tc.err, got, tc.http)
		}
		if got := codeOf(tc.err); got != int(tc.code) {
			t.Errorf("%v: %d, want %d", tc.err, got, tc.code)
		}
	}
}
