package grpcapi

import (
	"bytes"
	"context"
	"math"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	"github.com/flambeau-serve/flambeau/frontend/httpapi/token"
	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/frontend/oipserver"
	"github.com/flambeau-serve/flambeau/internal/fault"
	pb "github.com/flambeau-serve/flambeau/proto/openinference/v2"
)

// logging is a log that notes its settings.
type logging struct{ now oipserver.LogLevels }

func (l *logging) Settings() oipserver.LogLevels { return l.now }
func (l *logging) Change(to oipserver.LogLevels) { l.now = to }

func TestSettings(t *testing.T) {
	_, conn, _ := start(t)
	c := pb.NewGRPCInferenceServiceClient(conn)
	l, err := c.LogSettings(t.Context(), &pb.LogSettingsRequest{Settings: map[string]*pb.LogSettingsRequest_SettingValue{
		"log_verbose_level": {ParameterChoice: &pb.LogSettingsRequest_SettingValue_Uint32Param{Uint32Param: 1}},
		"log_info":          {ParameterChoice: &pb.LogSettingsRequest_SettingValue_BoolParam{}},
		"log_format":        {ParameterChoice: &pb.LogSettingsRequest_SettingValue_StringParam{StringParam: "ISO8601"}},
	}})
	s := l.GetSettings()
	if err != nil || s["log_info"].GetBoolParam() || !s["log_error"].GetBoolParam() || s["log_verbose_level"].GetUint32Param() != 1 || s["log_format"].GetStringParam() != "ISO8601" {
		t.Errorf("%v %v", l, err)
	}
	_, err = c.LogSettings(t.Context(), &pb.LogSettingsRequest{Settings: map[string]*pb.LogSettingsRequest_SettingValue{
		"log_info": {ParameterChoice: &pb.LogSettingsRequest_SettingValue_Uint32Param{Uint32Param: 1}},
	}})
	wantCode(t, err, codes.InvalidArgument, "log_info")
	set := func(model, name string, values ...string) (*pb.TraceSettingResponse, error) {
		return c.TraceSetting(t.Context(), &pb.TraceSettingRequest{ModelName: model, Settings: map[string]*pb.TraceSettingRequest_SettingValue{name: {Value: values}}})
	}
	tr, err := set("adder", "trace_level", "TIMESTAMPS")
	if err != nil || !cmp.Equal(tr.GetSettings()["trace_level"].GetValue(), []string{"TIMESTAMPS"}) {
		t.Errorf("%v %v", tr, err)
	}
	if tr, err = set("adder", "trace_rate", "1"); err != nil || !cmp.Equal(tr.GetSettings()["trace_rate"].GetValue(), []string{"1"}) {
		t.Errorf("%v %v", tr, err)
	}
	if _, err := c.ModelInfer(t.Context(), addRequest()); err != nil {
		t.Error(err)
	}
	if tr, err = set("adder", "trace_level"); err != nil || !cmp.Equal(tr.GetSettings()["trace_level"].GetValue(), []string{"OFF"}) {
		t.Errorf("%v %v", tr, err)
	}
	path := tr.GetSettings()["trace_file"].GetValue()[0]
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for written := false; !written; { // by a goroutine for which no request waits
		text, err := os.ReadFile(path)
		if written = bytes.Contains(text, []byte("GRPC_WAITREAD_START")); !written && ctx.Err() != nil {
			t.Fatalf("%v %s", err, text)
		}
	}
	_, err = set("", "trace_level", "TENSORS")
	wantCode(t, err, codes.InvalidArgument, "TENSORS")
	_, err = set("nope", "trace_rate", "1")
	wantCode(t, err, codes.NotFound, "nope")
}

// sharedDir is a folder with an object that has two numbers, and room for two more.
func sharedDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x"), append(raw(1, 2), raw(0, 0)...), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestSharedMemory(t *testing.T) {
	m, conn, _ := start(t)
	c := pb.NewGRPCInferenceServiceClient(conn)
	if _, err := c.SystemSharedMemoryRegister(t.Context(), &pb.SystemSharedMemoryRegisterRequest{Name: "r", Key: "/x", ByteSize: 16}); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*pb.SystemSharedMemoryRegisterRequest{
		{Name: "s", Key: "/x", Offset: math.MaxUint64, ByteSize: 1}, {Name: "s", Key: "/x", Offset: 1, ByteSize: math.MaxUint64}, {Name: "s", Key: "/x", ByteSize: 17}, {Name: "s", Key: "/../x", ByteSize: 8},
	} {
		_, err := c.SystemSharedMemoryRegister(t.Context(), r)
		wantCode(t, err, codes.InvalidArgument, "")
	}
	all, err := c.SystemSharedMemoryStatus(t.Context(), &pb.SystemSharedMemoryStatusRequest{})
	if err != nil || len(all.GetRegions()) != 1 || all.GetRegions()["r"].GetByteSize() != 16 || all.GetRegions()["r"].GetKey() != "/x" {
		t.Errorf("%v %v", all, err)
	}
	req := addRequest()
	req.RawInputContents = nil
	req.Inputs[0].Parameters = valuesOf(oip.Parameters{"shared_memory_region": "r", "shared_memory_byte_size": int64(8)})
	req.Outputs = []*pb.ModelInferRequest_InferRequestedOutputTensor{{
		Name: "X", Parameters: valuesOf(oip.Parameters{"shared_memory_region": "r", "shared_memory_byte_size": int64(8), "shared_memory_offset": int64(8)}),
	}}
	r, err := c.ModelInfer(t.Context(), req)
	if err != nil || len(r.GetRawOutputContents()) != 1 || len(r.GetRawOutputContents()[0]) != 0 || r.GetOutputs()[0].GetContents() != nil {
		t.Fatalf("%v %v", r, err)
	}
	if got, err := os.ReadFile(filepath.Join(m.memory, "x")); err != nil || !bytes.Equal(got, append(raw(1, 2), raw(2, 3)...)) {
		t.Errorf("%v % x", err, got)
	}
	if _, err := c.SystemSharedMemoryUnregister(t.Context(), &pb.SystemSharedMemoryUnregisterRequest{}); err != nil {
		t.Error(err)
	}
	_, err = c.ModelInfer(t.Context(), req)
	wantCode(t, err, codes.InvalidArgument, "Unable to find shared memory region")
	_, err = c.CudaSharedMemoryRegister(t.Context(), &pb.CudaSharedMemoryRegisterRequest{Name: "c"})
	wantCode(t, err, codes.Unimplemented, "CUDA")
}

// TestSharedMemoryIsForThisMachine has it neither registered nor shown over the network.
func TestSharedMemoryIsForThisMachine(t *testing.T) {
	_, _, s := start(t)
	c := &service{server: s, protocol: s.opts.Protocol}
	for _, tc := range []struct {
		from  net.Addr
		taken bool
	}{
		{&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 5}, false},
		{nil, false},
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 5}, true},
		{&net.TCPAddr{IP: net.IPv6loopback, Port: 5}, true},
		{&net.UnixAddr{Net: "unix"}, true},
	} {
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: tc.from})
		_, registered := c.SystemSharedMemoryRegister(ctx, &pb.SystemSharedMemoryRegisterRequest{Name: "r", Key: "/x", ByteSize: 16})
		_, shown := c.SystemSharedMemoryStatus(ctx, &pb.SystemSharedMemoryStatusRequest{})
		_, gone := c.SystemSharedMemoryUnregister(ctx, &pb.SystemSharedMemoryUnregisterRequest{})
		for _, err := range []error{registered, shown, gone} {
			if (err == nil) != tc.taken || err != nil && fault.GRPCCode(err) != codes.PermissionDenied {
				t.Errorf("%v: %v", tc.from, err)
			}
		}
	}
}

func TestSharedMemoryNeedsTheManagementKey(t *testing.T) {
	for _, method := range []string{
		pb.GRPCInferenceService_SystemSharedMemoryStatus_FullMethodName, pb.GRPCInferenceService_SystemSharedMemoryRegister_FullMethodName,
		pb.GRPCInferenceService_SystemSharedMemoryUnregister_FullMethodName,
	} {
		if got := rightsOf(method, nil); got != token.Management {
			t.Errorf("%s is open to the %s key", method, got)
		}
	}
}
