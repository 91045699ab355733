package pluginserver

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/emptypb"

	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// A process serves once: go-plugin lets these live until its end.
		goleak.IgnoreAnyFunction("github.com/hashicorp/go-plugin.Serve.func3"), // eats interrupts
		goleak.IgnoreAnyFunction("github.com/hashicorp/go-plugin.(*GRPCBroker).Run"),
		goleak.IgnoreAnyFunction("github.com/hashicorp/go-plugin.copyChan"),
		goleak.IgnoreAnyFunction("os/signal.loop"),
		goleak.IgnoreAnyFunction("os/signal.signal_recv"),
	)
}

// scripted is a backend that does what the test says.
type scripted struct {
	run      func(ctx context.Context, batch []byte, give Give) error
	features []string // beside "f"

	mu    sync.Mutex // guards calls
	calls []string
}

func (s *scripted) call(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, name)
}

func (s *scripted) Load(_ context.Context, req *backendv1.LoadRequest) (*backendv1.LoadResponse, error) {
	s.call("load " + req.GetModelName())
	return &backendv1.LoadResponse{Features: append([]string{"f"}, s.features...)}, nil
}

func (s *scripted) Run(ctx context.Context, batch []byte, give Give) error {
	s.call("run")
	return s.run(ctx, batch, give)
}

func (s *scripted) Unload(context.Context) error { s.call("unload"); return nil }

// echo answers each item with its first part.
func echo(_ context.Context, batch []byte, give Give) error {
	head, items, err := frame.DecodeBatch(batch)
	if err != nil {
		return err
	}
	results := make([]frame.Result, len(items))
	for i := range items {
		results[i].Body = items[i].Parts[0].Data
	}
	return give(true, frame.EncodeResults(frame.KindResults, head.BatchID, results))
}

const messageLimit = 1 << 20

// session is a server that serves, and a client of it.
type session struct {
	t      *testing.T
	conn   *grpc.ClientConn
	rpc    backendv1.BackendClient
	ended  chan error // what Serve returned
	stream grpc.ClientStream
}

// serve starts a server in this process, as its environment and the host would. Not for parallel tests.
func serve(t *testing.T, b Backend) *session {
	t.Helper()
	dir, err := os.MkdirTemp("", "fl") //nolint:usetesting // short, for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv(backendv1.CookieKey, backendv1.CookieValue)
	t.Setenv(backendv1.EnvProtocolVersions, "1")
	t.Setenv(backendv1.EnvSocketDir, dir)
	stdout, stderr := os.Stdout, os.Stderr
	t.Cleanup(func() { os.Stdout, os.Stderr = stdout, stderr })
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	server, err := New(Options{Backend: b, Handshake: w, MaxMessageBytes: messageLimit, Parallel: 2})
	if err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, ended: make(chan error, 1)}
	go func() { s.ended <- server.Serve() }()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	<-server.Ready()
	fields := strings.Split(strings.TrimSpace(line), "|")
	if len(fields) < 5 || strings.Join(fields[:3], "|") != "1|1|unix" || fields[4] != "grpc" {
		t.Fatalf("handshake %q", line)
	}
	if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
		t.Errorf("after the handshake: %q, %v", rest, err)
	}
	_ = r.Close()
	s.conn, err = grpc.NewClient("unix://"+fields[3], grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageLimit)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	s.rpc = backendv1.NewBackendClient(s.conn)
	return s
}

// close ends the connection, as the end of the host does.
func (s *session) close() { _ = s.conn.Close() }

func (s *session) load() {
	s.t.Helper()
	resp, err := s.rpc.Load(s.t.Context(), &backendv1.LoadRequest{ModelName: "m", MaxResponseBytes: 1000})
	if err != nil || resp.GetFeatures()[0] != "f" {
		s.t.Fatalf("%v, %v", resp, err)
	}
	s.stream, err = s.rpc.Execute(s.t.Context(), grpc.ForceCodecV2(frame.Codec{}))
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *session) send(f frame.Buffers) {
	s.t.Helper()
	if err := s.stream.SendMsg(f); err != nil {
		s.t.Fatal(err)
	}
}

func (s *session) receive() (frame.Head, []frame.Result) {
	s.t.Helper()
	var b []byte
	if err := s.stream.RecvMsg(&b); err != nil {
		s.t.Fatal(err)
	}
	head, results, err := frame.DecodeResults(b)
	if err != nil {
		s.t.Fatal(err)
	}
	return head, results
}

func batchOf(id uint64, bodies ...string) frame.Buffers {
	items := make([]frame.Item, len(bodies))
	for i, b := range bodies {
		items[i].Parts = []frame.Part{{Data: []byte(b)}}
	}
	return frame.EncodeBatch(id, items)
}

func (s *session) end() error {
	s.t.Helper()
	select {
	case err := <-s.ended:
		return err
	case <-time.After(time.Minute):
		s.t.Fatal("Serve does not return")
		return nil
	}
}

func (s *scripted) want(t *testing.T, calls ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := strings.Join(s.calls, ", "); got != strings.Join(calls, ", ") {
		t.Errorf("calls %s, want %s", got, strings.Join(calls, ", "))
	}
}

func TestLife(t *testing.T) {
	b := &scripted{run: echo}
	s := serve(t, b)
	health, err := grpc_health_v1.NewHealthClient(s.conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "plugin"})
	if err != nil || health.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("%v, %v", health, err)
	}
	s.load()
	s.send(batchOf(5, "a", "b"))
	if head, results := s.receive(); head.BatchID != 5 || string(results[1].Body) != "b" {
		t.Errorf("%+v %v", head, results)
	}
	if _, err := s.rpc.Load(t.Context(), &backendv1.LoadRequest{}); err == nil {
		t.Error("a second load")
	}
	if second, err := s.rpc.Execute(t.Context(), grpc.ForceCodecV2(frame.Codec{})); err == nil {
		if err := second.RecvMsg(&[]byte{}); err == nil {
			t.Error("a second stream")
		}
	}
	// Kinds that are not known or not for this side are ignored.
	s.send(frame.Buffers{[]byte{99, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}})
	s.send(frame.EncodeResults(frame.KindResults, 1, nil))
	s.send(frame.EncodeCancel(77))
	s.send(batchOf(6, "c"))
	if head, _ := s.receive(); head.BatchID != 6 {
		t.Errorf("%+v", head)
	}
	if _, err := s.rpc.Unload(t.Context(), &backendv1.UnloadRequest{}); err != nil {
		t.Error(err)
	}
	_ = s.conn.Invoke(t.Context(), "/plugin.GRPCController/Shutdown", &emptypb.Empty{}, &emptypb.Empty{}) // the answer may be lost
	begin := time.Now()
	if err := s.end(); err != nil || time.Since(begin) > orphanGrace/2 {
		t.Errorf("%v after %v", err, time.Since(begin))
	}
	b.want(t, "load m", "run", "run", "unload")
}

func TestStreamEndUnloadsAndEnds(t *testing.T) {
	b := &scripted{run: echo}
	s := serve(t, b)
	s.load()
	if err := s.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
	b.want(t, "load m", "unload")
}

func TestConnectionEndUnloadsAndEnds(t *testing.T) {
	started := make(chan struct{})
	b := &scripted{run: func(ctx context.Context, _ []byte, _ Give) error {
		close(started)
		<-ctx.Done()
		return ctx.Err()
	}}
	s := serve(t, b)
	s.load()
	s.send(batchOf(1, "a"))
	<-started
	s.close()
	if err := s.end(); err != nil {
		t.Error(err)
	}
	b.want(t, "load m", "run", "unload")
}

func TestMalformedFrameEndsTheStream(t *testing.T) {
	b := &scripted{run: echo}
	s := serve(t, b)
	s.load()
	s.send(frame.Buffers{[]byte("short")})
	if err := s.stream.RecvMsg(&[]byte{}); err == nil {
		t.Error("the stream goes on")
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
	b.want(t, "load m", "unload")
}

func TestBatches(t *testing.T) {
	running := make(chan uint64)
	release := make(chan struct{})
	b := &scripted{run: func(ctx context.Context, batch []byte, give Give) error {
		head, items, err := frame.DecodeBatch(batch)
		if err != nil {
			return err
		}
		switch string(items[0].Parts[0].Data) {
		case "error":
			return errors.New("the backend's own words")
		case "nothing":
			return nil
		case "twice":
			if err := echo(ctx, batch, give); err != nil {
				return err
			}
			if err := echo(ctx, batch, give); err == nil {
				return errors.New("a second last answer was taken")
			}
			return nil
		case "pieces":
			for range 2 {
				if err := give(false, frame.EncodeResults(frame.KindPiece, head.BatchID, []frame.Result{{Body: []byte("piece")}})); err != nil {
					return err
				}
			}
			return echo(ctx, batch, give)
		case "large":
			big := make([]byte, messageLimit)
			return give(true, frame.EncodeResults(frame.KindResults, head.BatchID, []frame.Result{{Body: big}, {Body: big[:900]}, {Body: big[:1001]}}))
		case "wait":
			select {
			case running <- head.BatchID:
			case <-ctx.Done():
			}
			select {
			case <-ctx.Done():
			case <-release:
			}
			return echo(ctx, batch, give)
		default:
			return echo(ctx, batch, give)
		}
	}}
	s := serve(t, b)
	s.load()
	for _, text := range []string{"error", "nothing"} {
		s.send(batchOf(1, text, "x"))
		_, results := s.receive()
		for _, r := range results {
			if r.Failure == nil || r.Failure.Reason != frame.ReasonInternal || len(results) != 2 {
				t.Errorf("%s: %+v", text, r)
			}
		}
	}
	s.send(batchOf(2, "twice"))
	if _, results := s.receive(); string(results[0].Body) != "twice" {
		t.Errorf("%v", results)
	}
	s.send(batchOf(3, "pieces"))
	for _, want := range []frame.Kind{frame.KindPiece, frame.KindPiece, frame.KindResults} {
		if head, _ := s.receive(); head.Kind != want || head.BatchID != 3 {
			t.Errorf("%+v, want kind %d", head, want)
		}
	}
	s.send(batchOf(4, "large", "", ""))
	_, results := s.receive()
	if results[0].Failure.Reason != frame.ReasonTooLarge || len(results[1].Body) != 900 || results[2].Failure.Reason != frame.ReasonTooLarge {
		t.Errorf("%+v", results)
	}
	// Two run at once, the others wait; one of each is cancelled.
	for id := uint64(10); id < 14; id++ {
		s.send(batchOf(id, "wait"))
	}
	first, second := <-running, <-running
	s.send(frame.EncodeCancel(first))
	if third := <-running; third != 12 {
		t.Errorf("batch %d runs third", third)
	}
	s.send(frame.EncodeCancel(13))
	s.send(batchOf(20, "x")) // behind the cancellation
	close(release)
	answered := map[uint64]bool{}
	for range 3 {
		head, _ := s.receive()
		answered[head.BatchID] = true
	}
	if !answered[second] || !answered[12] || !answered[20] {
		t.Errorf("answered %v, cancelled %d and 13", answered, first)
	}
	s.close()
	if err := s.end(); err != nil {
		t.Error(err)
	}
}

// TestConcurrentBackendGetsEverythingAtOnce sends more batches than the options' Parallel and the inbox have room for. They meet, one is cancelled,
// and the others are answered in the opposite order.
func TestConcurrentBackendGetsEverythingAtOnce(t *testing.T) {
	const n = 2 * inbox
	inside := make(chan uint64, n)
	var answer [n]chan struct{}
	for i := range answer {
		answer[i] = make(chan struct{})
	}
	b := &scripted{features: []string{backendv1.FeatureConcurrent}, run: func(ctx context.Context, batch []byte, give Give) error {
		head, err := frame.DecodeHead(batch)
		if err != nil {
			return err
		}
		inside <- head.BatchID
		select {
		case <-answer[head.BatchID]:
			return echo(ctx, batch, give)
		case <-ctx.Done():
			answer[head.BatchID] <- struct{}{}
			return ctx.Err()
		}
	}}
	s := serve(t, b)
	s.load()
	for id := range uint64(n) {
		s.send(batchOf(id, "x"))
	}
	for range n {
		<-inside
	}
	s.send(frame.EncodeCancel(0))
	<-answer[0]
	for id := n - 1; id > 0; id-- {
		close(answer[id])
		if head, _ := s.receive(); head.BatchID != uint64(id) {
			t.Fatalf("the answer of batch %d came, not that of %d", head.BatchID, id)
		}
	}
	if _, err := s.rpc.Unload(t.Context(), &backendv1.UnloadRequest{}); err != nil {
		t.Error(err)
	}
	s.close()
	if err := s.end(); err != nil {
		t.Error(err)
	}
}

func TestNewChecks(t *testing.T) {
	ok := Options{Backend: &scripted{}, Handshake: io.Discard, MaxMessageBytes: 1}
	if _, err := New(ok); !errors.Is(err, ErrByHand) {
		t.Errorf("without a cookie: %v", err)
	}
	t.Setenv(backendv1.CookieKey, backendv1.CookieValue)
	for name, change := range map[string]func(*Options){
		"backend":   func(o *Options) { o.Backend = nil },
		"handshake": func(o *Options) { o.Handshake = nil },
		"size":      func(o *Options) { o.MaxMessageBytes = 0 },
	} {
		o := ok
		change(&o)
		if _, err := New(o); err == nil {
			t.Errorf("without %s", name)
		}
	}
	t.Setenv(backendv1.EnvMaxMessageBytes, "-1")
	if _, err := MaxMessageBytes(); err == nil {
		t.Error("a limit of -1")
	}
	t.Setenv(backendv1.EnvMaxMessageBytes, "77")
	if n, err := MaxMessageBytes(); err != nil || n != 77 {
		t.Errorf("%d, %v", n, err)
	}
	if err := WatchLifeline(os.NewFile(99, "no such descriptor")); err == nil {
		t.Error("a lifeline that is not open")
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	if err := WatchLifeline(null); err == nil {
		t.Error("a lifeline that is no pipe")
	}
}

// No socket can be made: Serve says so instead of waiting.
func TestServeWithoutSocket(t *testing.T) {
	t.Setenv(backendv1.CookieKey, backendv1.CookieValue)
	t.Setenv(backendv1.EnvProtocolVersions, "1")
	t.Setenv(backendv1.EnvSocketDir, "/nonexistent")
	stdout, stderr := os.Stdout, os.Stderr
	defer func() { os.Stdout, os.Stderr = stdout, stderr }()
	server, err := New(Options{Backend: &scripted{}, Handshake: io.Discard, MaxMessageBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Serve(); err == nil || !strings.Contains(err.Error(), "socket") {
		t.Errorf("%v", err)
	}
}
