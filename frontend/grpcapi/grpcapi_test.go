package grpcapi

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/flambeau-serve/flambeau/frontend/httpapi/token"
	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/frontend/oipserver"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	pb "github.com/flambeau-serve/flambeau/proto/openinference/v2"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// models has adder, whose backend takes raw tensors, and words, which streams.
type models struct {
	mu    sync.Mutex
	sick  bool
	names []string
	seen  []infer.Item
	block chan struct{} // adder waits for it, if there is one
}

func (m *models) Healthy() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.sick
}

func (m *models) Describe(ref infer.ModelRef) (rollout.Description, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !slices.Contains(m.names, ref.Name):
		return rollout.Description{}, fault.Newf(fault.ModelNotFound, "Model not found: %s", ref.Name)
	case ref.Version != "" && ref.Version != "1":
		return rollout.Description{}, fault.Newf(fault.VersionNotFound, "Model version: %s does not exist for model: %s", ref.Version, ref.Name)
	}
	d := rollout.Description{Ref: infer.ModelRef{Name: ref.Name, Version: "1"}, URL: ref.Name, Runtime: "python", Default: true, Workers: []rollout.Worker{{Ready: true}}}
	if ref.Name == "adder" {
		d.Features = map[string]bool{"oip_binary": true}
		d.Ports = &backend.Description{
			Platform: "test", MaxBatch: 4, Inputs: []backend.Port{{Name: "A", DataType: "FP32", Shape: []int64{-1, 2}}},
			Outputs: []backend.Port{{Name: "X", DataType: "FP32", Shape: []int64{-1, 2}}},
		}
	}
	return d, nil
}

func (m *models) DescribeAll(name string) ([]rollout.Description, error) {
	d, err := m.Describe(infer.ModelRef{Name: name})
	if err != nil {
		return nil, err
	}
	return []rollout.Description{d}, nil
}

func (m *models) List() []rollout.Listed {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []rollout.Listed
	for _, name := range m.names {
		all = append(all, rollout.Listed{Name: name})
	}
	return all
}

func (m *models) Register(_ context.Context, s rollout.Spec) (rollout.Registered, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.names = append(m.names, s.Name)
	return rollout.Registered{}, nil
}

func (m *models) Unregister(_ context.Context, ref infer.ModelRef) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.names = slices.DeleteFunc(m.names, func(n string) bool { return n == ref.Name })
	return nil
}

// Submit adds 1 to the input, or streams what words are to be streamed.
func (m *models) Submit(ctx context.Context, ref infer.ModelRef, item infer.Item) (infer.Result, error) {
	m.mu.Lock()
	m.seen = append(m.seen, item)
	block := m.block
	m.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return infer.Result{}, fault.New(fault.ClientTimeout, "too late", ctx.Err())
		}
	}
	header := ""
	for _, f := range item.Header {
		if f.Name == "inference-header-content-length" {
			header = f.Value
		}
	}
	r, err := oip.DecodeRequest(item.Parts[0].Data, header)
	if err != nil {
		return infer.Result{}, err
	}
	if err := r.Inputs[0].Resolve(); err != nil {
		return infer.Result{}, err
	}
	if ref.Name == "words" {
		return words(r, item.Emit)
	}
	values, err := r.Inputs[0].Floats()
	if err != nil {
		return infer.Result{}, err
	}
	for i := range values {
		values[i]++
	}
	answer := oip.Response{Model: "adder", Version: "1", Outputs: []oip.Tensor{{Tensor: tensor.FromFloats("X", r.Inputs[0].Shape, values)}}}
	body, n, err := answer.Encode(r.IsBinary)
	res := infer.Result{Body: body}
	if n >= 0 {
		res.Header = []infer.Field{{Name: "inference-header-content-length", Value: strconv.Itoa(n)}}
	}
	return res, err
}

func words(r *oip.Request, emit func(infer.Result)) (infer.Result, error) {
	elements, err := r.Inputs[0].Elements()
	if err != nil {
		return infer.Result{}, err
	}
	for _, e := range elements {
		switch {
		case string(e) == "panic":
			panic("as asked")
		case string(e) == "fail":
			return infer.Result{}, &fault.Error{Kind: fault.HandlerFailed, Message: "refused", Code: 400}
		case emit != nil:
			emit(infer.Result{Body: e})
		}
	}
	return infer.Result{}, nil
}

func (m *models) last(t *testing.T) infer.Item {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.seen) == 0 {
		t.Fatal("no request arrived")
	}
	return m.seen[len(m.seen)-1]
}

// start starts a server and gives a client of it.
func start(t *testing.T, change ...func(*Options)) (*models, *grpc.ClientConn, *Server) {
	t.Helper()
	m := &models{names: []string{"adder", "words"}}
	p, err := oipserver.New(oipserver.Options{Predictor: m, Models: m, ModelAPI: true, Version: "9"})
	if err != nil {
		t.Fatal(err)
	}
	opts := Options{Protocol: p, MaxRequestSize: 100_000}
	for _, c := range change {
		c(&opts)
	}
	s, err := Listen(t.Context(), "127.0.0.1:0", opts)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	conn, err := grpc.NewClient(s.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return m, conn, s
}

func raw(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// addRequest asks adder for two numbers.
func addRequest() *pb.ModelInferRequest {
	return &pb.ModelInferRequest{
		ModelName: "adder", Id: "7", Inputs: []*pb.ModelInferRequest_InferInputTensor{{Name: "A", Datatype: "FP32", Shape: []int64{1, 2}}},
		RawInputContents: [][]byte{raw(1, 2)},
	}
}

func wordsRequest(words ...string) *pb.ModelInferRequest {
	c := &pb.InferTensorContents{}
	for _, w := range words {
		c.BytesContents = append(c.BytesContents, []byte(w))
	}
	return &pb.ModelInferRequest{
		ModelName: "words", Id: "w", Inputs: []*pb.ModelInferRequest_InferInputTensor{{Name: "T", Datatype: "BYTES", Shape: []int64{int64(len(words))}, Contents: c}},
	}
}

func wantCode(t *testing.T, err error, want codes.Code, text string) {
	t.Helper()
	if status.Code(err) != want || !strings.Contains(err.Error(), text) {
		t.Errorf("%v, want %s with %q", err, want, text)
	}
}

func TestReads(t *testing.T) {
	m, conn, _ := start(t)
	c, ctx := pb.NewGRPCInferenceServiceClient(conn), t.Context()
	if r, err := c.ServerLive(ctx, &pb.ServerLiveRequest{}); err != nil || !r.GetLive() {
		t.Errorf("%v %v", r, err)
	}
	if r, err := c.ServerReady(ctx, &pb.ServerReadyRequest{}); err != nil || !r.GetReady() {
		t.Errorf("%v %v", r, err)
	}
	m.mu.Lock()
	m.sick = true
	m.mu.Unlock()
	if r, err := c.ServerReady(ctx, &pb.ServerReadyRequest{}); err != nil || r.GetReady() {
		t.Errorf("%v %v", r, err)
	}
	for name, want := range map[string]bool{"adder": true, "nope": false} {
		if r, err := c.ModelReady(ctx, &pb.ModelReadyRequest{Name: name}); err != nil || r.GetReady() != want {
			t.Errorf("%s: %v %v", name, r, err)
		}
	}
	if r, err := c.ServerMetadata(ctx, &pb.ServerMetadataRequest{}); err != nil || r.GetName() != "flambeau" || r.GetVersion() != "9" || !slices.Contains(r.GetExtensions(), "statistics") {
		t.Errorf("%v %v", r, err)
	}
	if r, err := c.ModelMetadata(ctx, &pb.ModelMetadataRequest{Name: "adder"}); err != nil || r.GetPlatform() != "test" || !cmp.Equal(r.GetInputs()[0].GetShape(), []int64{-1, 2}) {
		t.Errorf("%v %v", r, err)
	}
	if r, err := c.ModelConfig(ctx, &pb.ModelConfigRequest{Name: "adder", Version: "1"}); err != nil || r.GetConfig().GetMaxBatchSize() != 4 ||
		r.GetConfig().GetInput()[0].GetDataType() != pb.DataType_TYPE_FP32 || !cmp.Equal(r.GetConfig().GetInput()[0].GetDims(), []int64{2}) ||
		r.GetConfig().GetInstanceGroup()[0].GetKind() != pb.ModelInstanceGroup_KIND_CPU {
		t.Errorf("%v %v", r, err)
	}
	if r, err := c.ModelStatistics(ctx, &pb.ModelStatisticsRequest{}); err != nil || len(r.GetModelStats()) != 2 {
		t.Errorf("%v %v", r, err)
	}
	if r, err := c.RepositoryIndex(ctx, &pb.RepositoryIndexRequest{}); err != nil || len(r.GetModels()) != 2 || r.GetModels()[0].GetState() != "READY" {
		t.Errorf("%v %v", r, err)
	}
	_, err := c.ModelMetadata(ctx, &pb.ModelMetadataRequest{Name: "nope"})
	wantCode(t, err, codes.NotFound, "nope")
	_, err = c.ModelConfig(ctx, &pb.ModelConfigRequest{Name: "adder", Version: "5"})
	wantCode(t, err, codes.NotFound, "5")
}

func TestInfer(t *testing.T) {
	m, conn, _ := start(t)
	c := pb.NewGRPCInferenceServiceClient(conn)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-tenant", "a", "x-raw-bin", "b")
	var header metadata.MD
	r, err := c.ModelInfer(ctx, addRequest(), grpc.Header(&header), grpc.UseCompressor(gzip.Name))
	if err != nil {
		t.Fatal(err)
	}
	if r.GetId() != "7" || r.GetModelName() != "adder" || r.GetModelVersion() != "1" || !bytes.Equal(r.GetRawOutputContents()[0], raw(2, 3)) || r.GetOutputs()[0].GetContents() != nil {
		t.Errorf("%v", r)
	}
	item := m.last(t)
	if !slices.Contains(item.Header, infer.Field{Name: "x-tenant", Value: "a"}) || slices.ContainsFunc(item.Header, func(f infer.Field) bool { return f.Name == "x-raw-bin" }) {
		t.Errorf("%v", item.Header)
	}
	if got := header.Get(requestIDKey); len(got) != 1 || got[0] != item.ID {
		t.Errorf("%v, want %s", got, item.ID)
	}
	req := addRequest()
	req.RawInputContents, req.Inputs[0].Contents = nil, &pb.InferTensorContents{Fp32Contents: []float32{5, 6}}
	if r, err = c.ModelInfer(ctx, req); err != nil || !cmp.Equal(r.GetOutputs()[0].GetContents().GetFp32Contents(), []float32{6, 7}) || r.GetRawOutputContents() != nil {
		t.Errorf("%v %v", r, err)
	}
	req = addRequest()
	req.Outputs = []*pb.ModelInferRequest_InferRequestedOutputTensor{{Name: "X", Parameters: valuesOf(oip.Parameters{"classification": int64(1)})}}
	if r, err = c.ModelInfer(ctx, req); err != nil || string(r.GetRawOutputContents()[0][4:]) != "3.000000:1" {
		t.Errorf("%v %v", r, err)
	}
}

func TestBadCalls(t *testing.T) {
	_, conn, _ := start(t)
	c := pb.NewGRPCInferenceServiceClient(conn)
	for _, tc := range []struct {
		name   string
		change func(*pb.ModelInferRequest)
		code   codes.Code
		want   string
	}{
		{"model", func(r *pb.ModelInferRequest) { r.ModelName = "nope" }, codes.NotFound, "nope"},
		{"no inputs", func(r *pb.ModelInferRequest) { r.Inputs = nil }, codes.InvalidArgument, "no inputs"},
		{"datatype", func(r *pb.ModelInferRequest) { r.Inputs[0].Datatype = "X" }, codes.InvalidArgument, "datatype"},
		{"shape", func(r *pb.ModelInferRequest) { r.Inputs[0].Shape = []int64{-1, 2} }, codes.InvalidArgument, "negative"},
		{"size", func(r *pb.ModelInferRequest) { r.RawInputContents[0] = []byte("abc") }, codes.InvalidArgument, "8 bytes"},
		{"number of raw", func(r *pb.ModelInferRequest) { r.RawInputContents = append(r.RawInputContents, nil) }, codes.InvalidArgument, "2 raw_input_contents"},
		{"both", func(r *pb.ModelInferRequest) {
			r.Inputs[0].Contents = &pb.InferTensorContents{Fp32Contents: []float32{1, 2}}
		}, codes.InvalidArgument, "one of them"},
		{"twice", func(r *pb.ModelInferRequest) {
			r.Inputs = append(r.Inputs, r.GetInputs()[0])
			r.RawInputContents = append(r.RawInputContents, raw(1, 2))
		}, codes.InvalidArgument, "already exists"},
		{"shared memory", func(r *pb.ModelInferRequest) {
			r.Inputs[0].Parameters = valuesOf(oip.Parameters{"shared_memory_region": "r"})
		}, codes.Unimplemented, "shared memory"},
		{"output", func(r *pb.ModelInferRequest) {
			r.Outputs = []*pb.ModelInferRequest_InferRequestedOutputTensor{{Name: "Z"}}
		}, codes.InvalidArgument, "'Z'"},
		{"too large", func(r *pb.ModelInferRequest) { r.RawInputContents[0] = make([]byte, 200_000) }, codes.ResourceExhausted, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req := addRequest()
			tc.change(req)
			_, err := c.ModelInfer(t.Context(), req)
			wantCode(t, err, tc.code, tc.want)
		})
	}
	_, err := c.ModelInfer(t.Context(), wordsRequest("panic"))
	wantCode(t, err, codes.Internal, "Internal error")
	_, err = c.ModelInfer(t.Context(), wordsRequest("fail"))
	wantCode(t, err, codes.InvalidArgument, "refused")
	_, err = c.SystemSharedMemoryRegister(t.Context(), &pb.SystemSharedMemoryRegisterRequest{Name: "r"})
	wantCode(t, err, codes.Unimplemented, "shared memory")
	if r, err := c.SystemSharedMemoryStatus(t.Context(), &pb.SystemSharedMemoryStatusRequest{}); err != nil || len(r.GetRegions()) != 0 {
		t.Errorf("%v", err)
	}
}

func TestDeadline(t *testing.T) {
	m, conn, _ := start(t)
	m.block = make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := pb.NewGRPCInferenceServiceClient(conn).ModelInfer(ctx, addRequest())
	wantCode(t, err, codes.DeadlineExceeded, "")
}

// TestTypedContents takes every datatype there and back.
func TestTypedContents(t *testing.T) {
	for _, tc := range []struct {
		dtype string
		in    *pb.InferTensorContents
	}{
		{"BOOL", &pb.InferTensorContents{BoolContents: []bool{true, false}}},
		{"INT8", &pb.InferTensorContents{IntContents: []int32{-128, 127}}},
		{"INT16", &pb.InferTensorContents{IntContents: []int32{-32768, 5}}},
		{"INT32", &pb.InferTensorContents{IntContents: []int32{math.MinInt32, 5}}},
		{"INT64", &pb.InferTensorContents{Int64Contents: []int64{math.MinInt64, 5}}},
		{"UINT8", &pb.InferTensorContents{UintContents: []uint32{255, 0}}},
		{"UINT16", &pb.InferTensorContents{UintContents: []uint32{65535, 0}}},
		{"UINT32", &pb.InferTensorContents{UintContents: []uint32{math.MaxUint32, 0}}},
		{"UINT64", &pb.InferTensorContents{Uint64Contents: []uint64{math.MaxUint64, 0}}},
		{"FP32", &pb.InferTensorContents{Fp32Contents: []float32{1.5, -2}}},
		{"FP64", &pb.InferTensorContents{Fp64Contents: []float64{1.5, -2}}},
		{"BYTES", &pb.InferTensorContents{BytesContents: [][]byte{[]byte("a"), {}}}},
	} {
		r, err := requestOf(&pb.ModelInferRequest{Inputs: []*pb.ModelInferRequest_InferInputTensor{{Name: "A", Datatype: tc.dtype, Shape: []int64{2}, Contents: tc.in}}})
		if err != nil {
			t.Errorf("%s: %v", tc.dtype, err)
			continue
		}
		m, err := responseOf(&oip.Response{Outputs: r.Inputs}, true)
		if err != nil || m.GetOutputs()[0].GetContents().String() != tc.in.String() {
			t.Errorf("%s: %v %v", tc.dtype, err, m)
		}
	}
	for dtype, c := range map[string]*pb.InferTensorContents{
		"INT8": {IntContents: []int32{128, 0}}, "UINT8": {UintContents: []uint32{256, 0}}, "FP16": {Fp32Contents: []float32{1, 2}}, "FP32": {Fp64Contents: []float64{1, 2}},
	} {
		if _, err := requestOf(&pb.ModelInferRequest{Inputs: []*pb.ModelInferRequest_InferInputTensor{{Name: "A", Datatype: dtype, Shape: []int64{2}, Contents: c}}}); !fault.Is(err, fault.BadRequest) {
			t.Errorf("%s: %v", dtype, err)
		}
	}
}

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

func TestKeys(t *testing.T) {
	keys, err := token.New(token.Options{Dir: t.TempDir(), Expiration: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	m, conn, _ := start(t, func(o *Options) { o.Keys = keys })
	c := pb.NewGRPCInferenceServiceClient(conn)
	_, err = c.ModelInfer(t.Context(), addRequest())
	wantCode(t, err, codes.PermissionDenied, "Token Authorization failed")
	s, err := c.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Recv()
	wantCode(t, err, codes.PermissionDenied, "Token Authorization failed")
	if _, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil {
		t.Errorf("probes have no key: %v", err)
	}
	with := func(kind token.Kind) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+keyOf(t, keys, kind))
	}
	if _, err := c.ModelInfer(with(token.Inference), addRequest()); err != nil {
		t.Error(err)
	}
	_, err = c.ModelInfer(with(token.Management), addRequest())
	wantCode(t, err, codes.PermissionDenied, "Token")
	_, err = c.RepositoryModelUnload(with(token.Inference), &pb.RepositoryModelUnloadRequest{ModelName: "adder"})
	wantCode(t, err, codes.PermissionDenied, "Token")
	if _, err := c.RepositoryModelUnload(with(token.Management), &pb.RepositoryModelUnloadRequest{ModelName: "adder"}); err != nil {
		t.Error(err)
	}
	if _, err := m.Describe(infer.ModelRef{Name: "adder"}); err == nil {
		t.Error("it is still there")
	}
	if _, err := c.RepositoryModelLoad(with(token.Management), &pb.RepositoryModelLoadRequest{ModelName: "adder"}); err != nil {
		t.Error(err)
	}
	if _, err := m.Describe(infer.ModelRef{Name: "adder"}); err != nil {
		t.Error(err)
	}
}

func TestHealthAndReflection(t *testing.T) {
	m, conn, _ := start(t)
	h := healthv1.NewHealthClient(conn)
	if r, err := h.Check(t.Context(), &healthv1.HealthCheckRequest{Service: "inference.GRPCInferenceService"}); err != nil || r.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("%v %v", r, err)
	}
	_, err := h.Check(t.Context(), &healthv1.HealthCheckRequest{Service: "other"})
	wantCode(t, err, codes.NotFound, "other")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w, err := h.Watch(ctx, &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := w.Recv(); err != nil || r.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("%v %v", r, err)
	}
	m.mu.Lock()
	m.sick = true
	m.mu.Unlock()
	if r, err := w.Recv(); err != nil || r.GetStatus() != healthv1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("%v %v", r, err)
	}
	rc, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := rc.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	r, err := rc.Recv()
	if err != nil || !strings.Contains(r.String(), "inference.GRPCInferenceService") {
		t.Errorf("%v %v", r, err)
	}
}

// keyOf reads a key out of the key file.
func keyOf(t *testing.T, keys *token.Keys, kind token.Kind) string {
	t.Helper()
	text, err := os.ReadFile(keys.Path())
	if err != nil {
		t.Fatal(err)
	}
	var all map[token.Kind]struct {
		Key string `json:"key"`
	}
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	return all[kind].Key
}
