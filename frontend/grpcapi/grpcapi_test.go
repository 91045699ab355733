package grpcapi

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
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
	mu     sync.Mutex
	sick   bool
	names  []string
	seen   []infer.Item
	block  chan struct{} // adder waits for it, if there is one
	memory string        // folder of shared memory, "" for none
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
	if strings.HasPrefix(t.Name(), "TestSharedMemory") {
		m.memory = sharedDir(t)
	}
	p, err := oipserver.New(oipserver.Options{
		Predictor: m, Models: m, ModelAPI: true, Version: "9", Logging: &logging{oipserver.LogLevels{Info: true, Warning: true, Error: true}},
		TraceFile: filepath.Join(t.TempDir(), "trace"), SharedMemory: m.memory,
	})
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
		if err := p.Close(); err != nil {
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
	_, err = c.RepositoryModelUnload(with(token.Management), &pb.RepositoryModelUnloadRequest{ModelName: "adder", Parameters: map[string]*pb.ModelRepositoryParameter{
		"unload_dependents": {ParameterChoice: &pb.ModelRepositoryParameter_StringParam{StringParam: "yes"}},
	}})
	wantCode(t, err, codes.InvalidArgument, "unload_dependents has to be true or false")
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
