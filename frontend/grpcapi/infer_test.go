package grpcapi

import (
	"bytes"
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"

	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	pb "github.com/flambeau-serve/flambeau/proto/openinference/v2"
)

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
			r.Inputs[0].Parameters, r.RawInputContents = valuesOf(oip.Parameters{"shared_memory_region": "r", "shared_memory_byte_size": int64(8)}), nil
		}, codes.Unimplemented, "shared memory"},
		{"region without size", func(r *pb.ModelInferRequest) {
			r.Inputs[0].Parameters = valuesOf(oip.Parameters{"shared_memory_region": "r"})
		}, codes.InvalidArgument, "shared_memory_byte_size"},
		{"raw for a region", func(r *pb.ModelInferRequest) {
			r.Inputs[0].Parameters = valuesOf(oip.Parameters{"shared_memory_region": "r", "shared_memory_byte_size": int64(8)})
		}, codes.InvalidArgument, "1 raw_input_contents for 0 inputs"},
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

// TestParametersOfTheWrongChoice has what a real Triton refuses, too, and what it takes.
func TestParametersOfTheWrongChoice(t *testing.T) {
	_, conn, _ := start(t)
	c := pb.NewGRPCInferenceServiceClient(conn)
	text, whole := &pb.InferParameter{ParameterChoice: &pb.InferParameter_StringParam{StringParam: "5"}}, &pb.InferParameter{ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: 9_000_000}}
	below, broken := &pb.InferParameter{ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: -1}}, &pb.InferParameter{ParameterChoice: &pb.InferParameter_DoubleParam{DoubleParam: 7}}
	nan, none := &pb.InferParameter{ParameterChoice: &pb.InferParameter_DoubleParam{DoubleParam: math.NaN()}}, &pb.InferParameter{}
	unsigned, truth := &pb.InferParameter{ParameterChoice: &pb.InferParameter_Uint64Param{Uint64Param: math.MaxUint64}}, &pb.InferParameter{ParameterChoice: &pb.InferParameter_BoolParam{BoolParam: true}}
	for _, tc := range []struct {
		name   string
		value  *pb.InferParameter
		output bool
		want   string // "" for what is taken
	}{
		{"timeout", text, false, `the parameter timeout is the string "5", and has to be a whole number of microseconds`},
		{"timeout", broken, false, "timeout is 7,"},
		{"timeout", nan, false, "timeout is NaN,"},
		{"timeout", none, false, "timeout is without a value,"},
		{"timeout", truth, false, "timeout is true,"},
		{"timeout", whole, false, ""},
		{"timeout", below, false, ""},
		{"priority", text, false, `the parameter priority is the string "5", and has to be a whole number`},
		{"priority", below, false, "priority is -1,"},
		{"priority", unsigned, false, ""},
		{"sequence_id", broken, false, "the parameter sequence_id is 7, and has to be a whole number without a point or an exponent, or a string"},
		{"sequence_id", none, false, "sequence_id is without a value,"},
		{"sequence_id", text, false, ""},
		{"sequence_start", text, false, `the parameter sequence_start is the string "5", and has to be true or false`},
		{"sequence_end", whole, false, "sequence_end is 9000000,"},
		{"sequence_end", truth, false, ""},
		{"triton_enable_empty_final_response", text, false, "has to be true or false"},
		{"binary_data_output", text, false, ""}, // it has no meaning here
		{"custom", none, false, ""},
		{"custom", broken, false, ""},
		{"classification", text, true, `the parameter classification of output 'X' is the string "5", and has to be a whole number of classes`},
		{"classification", below, true, "is -1,"},
		{"classification", none, true, "is without a value,"},
		{"classification", whole, true, ""},
		{"shared_memory_region", none, true, "the parameter shared_memory_region of output 'X' is without a value, and has to be the name of a region"},
		{"shared_memory_region", whole, true, "the parameter shared_memory_region is 9000000,"},
		{"binary_data", text, true, ""}, // the same
	} {
		req := addRequest()
		params := map[string]*pb.InferParameter{tc.name: tc.value}
		if tc.output {
			req.Outputs = []*pb.ModelInferRequest_InferRequestedOutputTensor{{Name: "X", Parameters: params}}
		} else {
			req.Parameters = params
		}
		_, err := c.ModelInfer(t.Context(), req)
		if tc.want != "" {
			wantCode(t, err, codes.InvalidArgument, tc.want)
		} else if err != nil {
			t.Errorf("%s %v: %v", tc.name, tc.value, err)
		}
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
