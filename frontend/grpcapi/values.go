package grpcapi

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/fault"
	pb "github.com/flambeau-serve/flambeau/proto/openinference/v2"
)

// Bounds of what one request may have, as over HTTP.
const (
	maxTensors    = 4096
	maxDimensions = 64
)

func bad(format string, args ...any) error { return fault.Newf(fault.BadRequest, format, args...) }

// requestOf reads a request. Its raw tensors share the message's memory.
func requestOf(m *pb.ModelInferRequest) (*oip.Request, error) {
	inputs, raw := m.GetInputs(), m.GetRawInputContents()
	switch {
	case len(inputs) == 0:
		return nil, bad("the request has no inputs")
	case len(inputs) > maxTensors || len(m.GetOutputs()) > maxTensors:
		return nil, bad("the request has more than %d inputs or outputs", maxTensors)
	}
	params, err := requestParameters(m.GetParameters())
	if err != nil {
		return nil, err
	}
	r := &oip.Request{ID: m.GetId(), Params: params}
	seen, left := map[string]bool{}, raw
	for _, in := range inputs {
		if seen[in.GetName()] {
			return nil, bad("input '%s' already exists in request", in.GetName())
		}
		seen[in.GetName()] = true
		t, err := inputOf(in)
		if err != nil {
			return nil, err
		}
		if left, err = elementsOf(&t, in, raw, left); err != nil {
			return nil, err
		}
		r.Inputs = append(r.Inputs, t)
	}
	if len(left) > 0 {
		return nil, bad("there are %d raw_input_contents for %d inputs that take one", len(raw), len(raw)-len(left))
	}
	for _, o := range m.GetOutputs() {
		one, err := requestedOf(o)
		if err != nil {
			return nil, err
		}
		r.Outputs = append(r.Outputs, one)
	}
	return r, nil
}

// requestParameters reads the parameters of a request. A timeout below 0 is none: Triton takes it over gRPC, and only there.
func requestParameters(all map[string]*pb.InferParameter) (oip.Parameters, error) {
	p := parametersOf(all)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		value := valueOf(all[name])
		if n, signed := value.(int64); name == oip.ParamTimeout && signed && n < 0 {
			delete(p, name)
			continue
		}
		if err := oip.CheckParameter(name, value); err != nil {
			return nil, err //nolint:wrapcheck // its faults are the client's
		}
	}
	return p, nil
}

func requestedOf(o *pb.ModelInferRequest_InferRequestedOutputTensor) (oip.Requested, error) {
	for _, name := range slices.Sorted(maps.Keys(o.GetParameters())) {
		if err := oip.CheckOutput(o.GetName(), name, valueOf(o.GetParameters()[name])); err != nil {
			return oip.Requested{}, err //nolint:wrapcheck // its faults are the client's
		}
	}
	params := parametersOf(o.GetParameters())
	shared, err := oip.TakeShared(params)
	return oip.Requested{Name: o.GetName(), Params: params, Shared: shared}, err //nolint:wrapcheck // the same
}

// elementsOf gives an input its elements: those of its contents, or the first of the raw ones that are left. It returns what is left then.
func elementsOf(t *oip.Tensor, in *pb.ModelInferRequest_InferInputTensor, raw, left [][]byte) ([][]byte, error) {
	switch {
	case t.Shared != nil && in.GetContents() != nil:
		return nil, bad("input '%s' is in shared memory, and has contents beside it", t.Name)
	case t.Shared != nil:
		return left, nil
	case len(raw) > 0 && in.GetContents() != nil:
		return nil, bad("input '%s' has contents, and there are raw_input_contents: use one of them", t.Name)
	case len(raw) > 0 && len(left) == 0:
		return nil, bad("there are %d raw_input_contents, and none is left for input '%s'", len(raw), t.Name)
	case len(raw) > 0:
		t.Data, left = left[0], left[1:]
	default:
		if err := fill(&t.Tensor, in.GetContents()); err != nil {
			return nil, err
		}
	}
	if err := t.Check(); err != nil {
		return nil, fault.New(fault.BadRequest, err.Error(), nil)
	}
	return left, nil
}

func inputOf(in *pb.ModelInferRequest_InferInputTensor) (oip.Tensor, error) {
	t := oip.Tensor{Tensor: tensor.Tensor{Name: in.GetName(), Shape: in.GetShape()}, Params: parametersOf(in.GetParameters())}
	var err error
	if t.DType, err = tensor.ParseDType(in.GetDatatype()); err != nil {
		return t, bad("input '%s': %v", t.Name, err)
	}
	if _, err := tensor.Count(t.Shape); err != nil || len(t.Shape) > maxDimensions {
		return t, bad("input '%s': the shape is negative, or too large", t.Name)
	}
	if t.Shape == nil {
		t.Shape = []int64{}
	}
	delete(t.Params, "binary_data_size") // clients of KServe leave it there
	t.Shared, err = oip.TakeShared(t.Params)
	return t, err //nolint:wrapcheck // its faults are the client's
}

// fill writes typed contents as raw data.
func fill(t *tensor.Tensor, c *pb.InferTensorContents) error {
	switch t.DType {
	case tensor.Bool:
		for _, v := range c.GetBoolContents() {
			b := byte(0)
			if v {
				b = 1
			}
			t.Data = append(t.Data, b)
		}
	case tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64, tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64:
		return fillIntegers(t, c)
	case tensor.FP32:
		for _, v := range c.GetFp32Contents() {
			t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(v))
		}
	case tensor.FP64:
		for _, v := range c.GetFp64Contents() {
			t.Data = binary.LittleEndian.AppendUint64(t.Data, math.Float64bits(v))
		}
	case tensor.Bytes:
		for _, v := range c.GetBytesContents() {
			t.Data = tensor.AppendElement(t.Data, v)
		}
	case tensor.FP16, tensor.BF16:
		if n, err := tensor.Count(t.Shape); err != nil || n > 0 {
			return bad("input '%s': %s goes in raw_input_contents only", t.Name, t.DType)
		}
	}
	return nil
}

func fillIntegers(t *tensor.Tensor, c *pb.InferTensorContents) error {
	switch t.DType { //nolint:exhaustive // the others are none
	case tensor.Int8, tensor.Int16, tensor.Int32:
		for _, v := range c.GetIntContents() {
			if bits := 8 * t.DType.Size(); int64(v) != int64(v)<<(64-bits)>>(64-bits) {
				return bad("input '%s': %d is no %s", t.Name, v, t.DType)
			}
			t.Data = put(t.Data, uint64(v), t.DType.Size())
		}
	case tensor.Int64:
		for _, v := range c.GetInt64Contents() {
			t.Data = put(t.Data, uint64(v), t.DType.Size())
		}
	case tensor.Uint8, tensor.Uint16, tensor.Uint32:
		for _, v := range c.GetUintContents() {
			if uint64(v)>>(8*t.DType.Size()) != 0 {
				return bad("input '%s': %d is no %s", t.Name, v, t.DType)
			}
			t.Data = put(t.Data, uint64(v), t.DType.Size())
		}
	case tensor.Uint64:
		for _, v := range c.GetUint64Contents() {
			t.Data = put(t.Data, v, t.DType.Size())
		}
	}
	return nil
}

func put(data []byte, v uint64, size int) []byte {
	for range size {
		data = append(data, byte(v))
		v >>= 8
	}
	return data
}

// responseOf writes a response: raw, or in typed contents for a client that does so itself, unless a tensor has no such form.
func responseOf(r *oip.Response, typed bool) (*pb.ModelInferResponse, error) {
	m := &pb.ModelInferResponse{ModelName: r.Model, ModelVersion: r.Version, Id: r.ID, Parameters: valuesOf(r.Params)}
	for i := range r.Outputs {
		t := &r.Outputs[i]
		if t.Shared != nil {
			continue
		}
		if err := t.Resolve(); err != nil {
			return nil, err //nolint:wrapcheck // its faults are the client's
		}
		if err := t.Check(); err != nil {
			return nil, fault.New(fault.HandlerFailed, err.Error(), nil)
		}
		typed = typed && t.DType != tensor.FP16 && t.DType != tensor.BF16
	}
	for i := range r.Outputs {
		t := &r.Outputs[i]
		out := &pb.ModelInferResponse_InferOutputTensor{Name: t.Name, Datatype: string(t.DType), Shape: t.Shape, Parameters: valuesOf(t.Params)}
		switch {
		case typed && t.Shared == nil:
			var err error
			if out.Contents, err = contentsOf(&t.Tensor); err != nil {
				return nil, err
			}
		case !typed:
			m.RawOutputContents = append(m.RawOutputContents, t.Data) // nothing for one in shared memory: clients count
		}
		m.Outputs = append(m.Outputs, out)
	}
	return m, nil
}

// contentsOf gives the elements in the list of their type.
func contentsOf(t *tensor.Tensor) (*pb.InferTensorContents, error) {
	c := &pb.InferTensorContents{}
	if t.DType == tensor.Bytes {
		var err error
		if c.BytesContents, err = t.Elements(); err != nil {
			return nil, fault.New(fault.HandlerFailed, err.Error(), nil)
		}
		return c, nil
	}
	size := t.DType.Size()
	for at := 0; at+size <= len(t.Data); at += size {
		d := t.Data[at:]
		switch t.DType {
		case tensor.Bool:
			c.BoolContents = append(c.BoolContents, d[0] != 0)
		case tensor.Int8:
			c.IntContents = append(c.IntContents, int32(int8(d[0])))
		case tensor.Int16:
			c.IntContents = append(c.IntContents, int32(int16(binary.LittleEndian.Uint16(d))))
		case tensor.Int32:
			c.IntContents = append(c.IntContents, int32(binary.LittleEndian.Uint32(d)))
		case tensor.Int64:
			c.Int64Contents = append(c.Int64Contents, int64(binary.LittleEndian.Uint64(d)))
		case tensor.Uint8:
			c.UintContents = append(c.UintContents, uint32(d[0]))
		case tensor.Uint16:
			c.UintContents = append(c.UintContents, uint32(binary.LittleEndian.Uint16(d)))
		case tensor.Uint32:
			c.UintContents = append(c.UintContents, binary.LittleEndian.Uint32(d))
		case tensor.Uint64:
			c.Uint64Contents = append(c.Uint64Contents, binary.LittleEndian.Uint64(d))
		case tensor.FP32:
			c.Fp32Contents = append(c.Fp32Contents, math.Float32frombits(binary.LittleEndian.Uint32(d)))
		case tensor.FP64:
			c.Fp64Contents = append(c.Fp64Contents, math.Float64frombits(binary.LittleEndian.Uint64(d)))
		case tensor.Bytes, tensor.FP16, tensor.BF16: // above, and never typed
		}
	}
	return c, nil
}

func parametersOf(all map[string]*pb.InferParameter) oip.Parameters {
	if len(all) == 0 {
		return nil
	}
	p := make(oip.Parameters, len(all))
	for name, v := range all {
		switch v := valueOf(v).(type) {
		case nil:
		case float64:
			if !math.IsNaN(v) && !math.IsInf(v, 0) { // JSON has neither
				p[name] = v
			}
		default:
			p[name] = v
		}
	}
	return p
}

// valueOf gives a parameter's value, nil for none.
func valueOf(p *pb.InferParameter) any {
	switch v := p.GetParameterChoice().(type) {
	case *pb.InferParameter_BoolParam:
		return v.BoolParam
	case *pb.InferParameter_Int64Param:
		return v.Int64Param
	case *pb.InferParameter_StringParam:
		return v.StringParam
	case *pb.InferParameter_DoubleParam:
		return v.DoubleParam
	case *pb.InferParameter_Uint64Param:
		if v.Uint64Param <= math.MaxInt64 {
			return int64(v.Uint64Param)
		}
		return v.Uint64Param
	}
	return nil
}

func valuesOf(p oip.Parameters) map[string]*pb.InferParameter {
	if len(p) == 0 {
		return nil
	}
	all := make(map[string]*pb.InferParameter, len(p))
	for name, v := range p {
		value := &pb.InferParameter{}
		switch v := v.(type) {
		case bool:
			value.ParameterChoice = &pb.InferParameter_BoolParam{BoolParam: v}
		case int64:
			value.ParameterChoice = &pb.InferParameter_Int64Param{Int64Param: v}
		case uint64:
			value.ParameterChoice = &pb.InferParameter_Uint64Param{Uint64Param: v}
		case float64:
			value.ParameterChoice = &pb.InferParameter_DoubleParam{DoubleParam: v}
		case string:
			value.ParameterChoice = &pb.InferParameter_StringParam{StringParam: v}
		default:
			continue
		}
		all[name] = value
	}
	return all
}
