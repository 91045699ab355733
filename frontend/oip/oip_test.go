package oip

import (
	"bytes"
	"encoding/binary"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/fault"
)

// floats writes the raw form of an FP32 tensor.
func floats(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func TestDecodeRequest(t *testing.T) {
	text := `{"id":"42","parameters":{"binary_data_output":true,"priority":18446744073709551615,"timeout":5,"f":1.5,"s":"x","no":null},` +
		`"inputs":[{"name":"A","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}},` +
		`{"name":"B","shape":[2,2],"datatype":"INT64","data":[[1,2],[3,4]]},{"name":"C","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":6}}],` +
		`"outputs":[{"name":"X","parameters":{"binary_data":false}},{"name":"Y","parameters":{"classification":3}},{"name":"Z"}]}`
	body := append([]byte(text), floats(1, 2)...)
	body = append(body, tensor.AppendElement(nil, []byte("hi"))...)
	r, err := DecodeRequest(body, strconv.Itoa(len(text)))
	if err != nil {
		t.Fatal(err)
	}
	if r.ID != "42" || len(r.Inputs) != 3 || len(r.Outputs) != 3 {
		t.Fatalf("%+v", r)
	}
	want := Parameters{"binary_data_output": true, "priority": uint64(math.MaxUint64), "timeout": int64(5), "f": 1.5, "s": "x"}
	if diff := cmp.Diff(want, r.Params); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(floats(1, 2), r.Inputs[0].Data); diff != "" {
		t.Error(diff)
	}
	if err := r.Inputs[1].Resolve(); err != nil {
		t.Fatal(err)
	}
	if got := len(r.Inputs[1].Data); got != 32 {
		t.Errorf("four INT64 are %d bytes", got)
	}
	if string(r.Inputs[2].Data[4:]) != "hi" {
		t.Errorf("%q", r.Inputs[2].Data)
	}
	if r.IsBinary("X") || !r.IsBinary("Y") || !r.IsBinary("Z") || !r.IsBinary("other") || !r.WantsBinary() || !r.WantsClasses() || r.Outputs[1].Classes() != 3 {
		t.Error("what is wanted of the outputs was not understood")
	}
}

func TestBadRequests(t *testing.T) {
	input := `{"inputs":[{"name":"A","shape":[1,2],"datatype":"FP32"`
	for _, tc := range []struct{ name, body, header, want string }{
		{name: "no JSON", body: "{", want: "failed to parse"},
		{name: "something behind", body: input + `,"data":[1,2]}]} x`, want: "failed to parse"},
		{name: "null", body: "null", want: "no inputs"},
		{name: "no inputs", body: "{}", want: "no inputs"},
		{name: "id is a number", body: `{"id":1,"inputs":[]}`, want: "failed to parse"},
		{name: "header too long", body: "{}", header: "9999", want: "inference header size should be in range (0, 2), got: 9999"},
		{name: "header negative", body: "{}", header: "-1", want: "should be in range"},
		{name: "header is no number", body: "{}", header: "x", want: "should be in range"},
		{name: "raw", body: "abcd", header: "0", want: "nothing says of which input"},
		{name: "no shape", body: `{"inputs":[{"name":"A","datatype":"FP32","data":[1]}]}`, want: "no shape"},
		{name: "negative shape", body: `{"inputs":[{"name":"A","shape":[-1],"datatype":"FP32","data":[1]}]}`, want: "negative"},
		{name: "datatype", body: `{"inputs":[{"name":"A","shape":[1],"datatype":"FP8","data":[1]}]}`, want: "FP8"},
		{name: "no data", body: input + `}]}`, want: "neither data nor"},
		{name: "data twice", body: input + `,"data":[1,2],"parameters":{"binary_data_size":8}}]}`, want: "both data and"},
		{name: "size without data", body: input + `,"parameters":{"binary_data_size":8}}]}`, want: "0 bytes are there"},
		{name: "size is a text", body: input + `,"parameters":{"binary_data_size":"8"}}]}`, want: "0 bytes are there"},
		{name: "twice", body: input + `,"data":[1,2]},{"name":"A","shape":[1],"datatype":"FP32","data":[1]}]}`, want: "already exists"},
		{name: "region without size", body: input + `,"parameters":{"shared_memory_region":"r"}}]}`, want: "shared_memory_byte_size is without a value"},
		{name: "region without size, out", body: input + `,"data":[1,2]}],"outputs":[{"name":"X","parameters":{"shared_memory_region":"r"}}]}`, want: "shared_memory_byte_size"},
		{name: "region is no text", body: input + `,"parameters":{"shared_memory_region":1,"shared_memory_byte_size":8}}]}`, want: "name of a region"},
		{name: "negative size", body: input + `,"parameters":{"shared_memory_region":"r","shared_memory_byte_size":-8}}]}`, want: "number of bytes"},
		{name: "negative offset", body: input + `,"parameters":{"shared_memory_region":"r","shared_memory_byte_size":8,"shared_memory_offset":-1}}]}`, want: "shared_memory_offset is -1"},
		{name: "overflow", body: input + `,"parameters":{"shared_memory_region":"r","shared_memory_byte_size":9223372036854775807,"shared_memory_offset":1}}]}`, want: "larger than any region"},
		{name: "region and data", body: input + `,"parameters":{"shared_memory_region":"r","shared_memory_byte_size":8},"data":[1,2]}]}`, want: "data beside it"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := DecodeRequest([]byte(tc.body), tc.header)
			if !fault.Is(err, fault.BadRequest) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

func TestRawDataHasToFit(t *testing.T) {
	text := `{"inputs":[{"name":"A","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":SIZE}}]}`
	for size, want := range map[string]string{"4": "8 bytes", "8": "unexpected additional input data", "12": "8 bytes", "16": "12 bytes are there", "-8": "12 bytes are there"} {
		head := strings.Replace(text, "SIZE", size, 1)
		_, err := DecodeRequest(append([]byte(head), make([]byte, 12)...), strconv.Itoa(len(head)))
		if !fault.Is(err, fault.BadRequest) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", size, err, want)
		}
	}
}

func TestRawRequest(t *testing.T) {
	for _, tc := range []struct {
		name, datatype string
		shape          []int64
		body           []byte
		batched        bool
		want           []int64 // nil: refused
	}{
		{name: "rows", datatype: "FP32", shape: []int64{-1, 2}, body: floats(1, 2), batched: true, want: []int64{1, 2}},
		{name: "rows and length", datatype: "FP32", shape: []int64{-1, -1}, body: floats(1, 2, 3), batched: true, want: []int64{1, 3}},
		{name: "length", datatype: "INT8", shape: []int64{-1, 2}, body: []byte("abcd"), want: []int64{2, 2}},
		{name: "text", datatype: "BYTES", shape: []int64{-1, 1}, body: []byte("hello"), batched: true, want: []int64{1, 1}},
		{name: "does not fit", datatype: "FP32", shape: []int64{2}, body: []byte("abc")},
		{name: "not whole", datatype: "FP32", shape: []int64{-1}, body: []byte("abcde")},
		{name: "two open", datatype: "FP32", shape: []int64{-1, -1}, body: floats(1)},
		{name: "texts", datatype: "BYTES", shape: []int64{-1}, body: []byte("x")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := RawRequest(tc.body, "A", tc.datatype, tc.shape, tc.batched)
			if tc.want == nil {
				if !fault.Is(err, fault.BadRequest) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, r.Inputs[0].Shape); diff != "" {
				t.Error(diff)
			}
			if !r.IsBinary("any") || !r.WantsBinary() {
				t.Error("the outputs of a raw request are raw")
			}
		})
	}
}

func TestRequestsComeBackAsTheyWere(t *testing.T) {
	r := &Request{
		ID: "1", Params: Parameters{"p": "v"},
		Inputs: []Tensor{
			{Tensor: tensor.FromFloats("A", []int64{1, 2}, []float32{1, 2.5})},
			{Tensor: tensor.Tensor{Name: "B", DType: tensor.Bytes, Shape: []int64{2}, Data: tensor.AppendElement(tensor.AppendElement(nil, []byte("x")), []byte(""))}},
			{Tensor: tensor.Tensor{Name: "C", DType: tensor.Int8, Shape: []int64{}, Data: []byte{255}}},
		},
		Outputs: []Requested{{Name: "X", Params: Parameters{"classification": int64(2), "binary_data": false, "k": true}}},
	}
	body, n, err := r.EncodeBinary()
	if err != nil {
		t.Fatal(err)
	}
	back, err := DecodeRequest(body, strconv.Itoa(n))
	if err != nil {
		t.Fatal(err)
	}
	for i := range back.Inputs {
		back.Inputs[i].Params = nil
	}
	if diff := cmp.Diff(r.Inputs, back.Inputs); diff != "" {
		t.Error(diff)
	}
	if !back.IsBinary("X") || back.WantsClasses() || back.Params["p"] != "v" || back.Outputs[0].Params["k"] != true {
		t.Errorf("%+v", back)
	}
	text, err := r.EncodeJSON("m")
	if err != nil {
		t.Fatal(err)
	}
	want := `{"id":"1","model_name":"m","parameters":{"p":"v"},"inputs":[{"name":"A","datatype":"FP32","shape":[1,2],"data":[1,2.5]},` +
		`{"name":"B","datatype":"BYTES","shape":[2],"data":["x",""]},{"name":"C","datatype":"INT8","shape":[],"data":[-1]}],` +
		`"outputs":[{"name":"X","parameters":{"binary_data":false,"classification":2,"k":true}}]}`
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Error(diff)
	}
}

func TestResponses(t *testing.T) {
	r := &Response{Model: "m", Version: "1", ID: "7", Outputs: []Tensor{
		{Tensor: tensor.FromFloats("X", []int64{2}, []float32{1, 2})}, {Tensor: tensor.FromFloats("Y", []int64{1}, []float32{3})},
	}}
	body, n, err := r.Encode(func(name string) bool { return name == "Y" })
	if err != nil {
		t.Fatal(err)
	}
	want := `{"id":"7","model_name":"m","model_version":"1","outputs":[{"name":"X","datatype":"FP32","shape":[2],"data":[1,2]},` +
		`{"name":"Y","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}`
	if diff := cmp.Diff(want, string(body[:n])); diff != "" {
		t.Error(diff)
	}
	if !bytes.Equal(body[n:], floats(3)) {
		t.Errorf("% x", body[n:])
	}
	back, err := DecodeResponse(body, strconv.Itoa(n))
	if err != nil {
		t.Fatal(err)
	}
	if back.Model != "m" || back.Version != "1" || back.ID != "7" || !bytes.Equal(back.Outputs[0].Data, floats(1, 2)) || !bytes.Equal(back.Outputs[1].Data, floats(3)) {
		t.Errorf("%+v", back)
	}
	if _, n, err := r.Encode(func(string) bool { return false }); err != nil || n != -1 {
		t.Errorf("%d %v: without raw outputs there is no header", n, err)
	}
}

// TestWhatHandlersAnswer has answers of Python handlers, which are not always those of the specification.
func TestWhatHandlersAnswer(t *testing.T) {
	r, err := DecodeResponse([]byte(`{"id":3,"model_version":2,"outputs":[{"name":"a","datatype":"INT64","data":[[1,2],[3,4]]},`+
		`{"name":"b","datatype":"BYTES","shape":[3],"data":["x",1,{"k":null}]}]}`), "")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int64{2, 2}, r.Outputs[0].Shape); diff != "" {
		t.Error(diff)
	}
	elements, err := r.Outputs[1].Elements()
	if err != nil {
		t.Fatal(err)
	}
	if got := string(bytes.Join(elements, []byte("|"))); got != `x|1|{"k":null}` || r.ID != "3" || r.Version != "2" {
		t.Errorf("%s %+v", got, r)
	}
	for _, body := range []string{"", "[1]", "text", "{}", `{"outputs":[]} x`, `{"outputs":[{"name":"a","datatype":"FP32","shape":[2],"data":[1]}]}`} {
		if _, err := DecodeResponse([]byte(body), ""); !fault.Is(err, fault.HandlerFailed) {
			t.Errorf("%s: %v", body, err)
		}
	}
	if r, err := DecodeResponse([]byte(`{"outputs":[]}`), ""); err != nil || len(r.Outputs) != 0 {
		t.Errorf("%v", err)
	}
}

func rows(*Tensor) bool   { return true }
func noRows(*Tensor) bool { return false }

func TestSelectAndClassify(t *testing.T) {
	make1 := func() *Response {
		return &Response{Model: "m", Outputs: []Tensor{
			{Tensor: tensor.FromFloats("X", []int64{2, 3}, []float32{.1, .7, .2, 3, 2, 3})},
			{Tensor: tensor.Tensor{Name: "T", DType: tensor.Bytes, Shape: []int64{1}, Data: tensor.AppendElement(nil, []byte("t"))}},
		}}
	}
	labels := map[string][]string{"X": {"cat", "dog"}}
	r := make1()
	if err := r.Select([]Requested{{Name: "X", Params: Parameters{"classification": int64(2)}}}, labels, rows); err != nil {
		t.Fatal(err)
	}
	elements, err := r.Outputs[0].Elements()
	if err != nil {
		t.Fatal(err)
	}
	if got := string(bytes.Join(elements, []byte(" "))); got != "0.700000:1:dog 0.200000:2 3.000000:0:cat 3.000000:2" || !cmp.Equal(r.Outputs[0].Shape, []int64{2, 2}) {
		t.Errorf("%s %v", got, r.Outputs[0].Shape)
	}
	r = make1()
	if err := r.Select([]Requested{{Name: "X", Params: Parameters{"classification": int64(99)}}}, nil, noRows); err != nil || !cmp.Equal(r.Outputs[0].Shape, []int64{6}) {
		t.Errorf("%v %v", err, r.Outputs[0].Shape)
	}
	for name, params := range map[string]Parameters{"Z": nil, "T": {"classification": int64(1)}} {
		if err := make1().Select([]Requested{{Name: name, Params: params}}, nil, noRows); !fault.Is(err, fault.BadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r = make1()
	if err := r.Select([]Requested{{Name: "T"}, {Name: "X"}}, nil, noRows); err != nil || r.Outputs[0].Name != "T" || len(r.Outputs) != 2 {
		t.Errorf("%v %+v", err, r.Outputs)
	}
}

// TestMalformed has requests whose errors may not name what only this program knows.
func TestMalformed(t *testing.T) {
	tensorOf := func(rest string) string {
		return `{"inputs":[{"name":"A","shape":[1],"datatype":"FP32",` + rest + `}]}`
	}
	for body, want := range map[string]string{
		`[]`:                            `it is an array and has to be an object`,
		`{"id":5}`:                      `"id" is a number and has to be a string`,
		`{"inputs":{}}`:                 `"inputs" is an object and has to be an array`,
		`{"inputs":[{"shape":["1"]}]}`:  `"inputs.shape" is a string and has to be a whole number`,
		`{"inputs":[{"shape":[1.5]}]}`:  `"inputs.shape" is the number 1.5 and has to be a whole number`,
		`{"inputs":[{"shape":[true]}]}`: `"inputs.shape" is true or false and has to be a whole number`,
		`{"parameters":[1]}`:            `"parameters" is an array and has to be an object`,
		tensorOf(`"parameters":{"binary_data_size":4.0}`):                                                                    "has to be a whole number of bytes, without a point",
		tensorOf(`"data":[1]`)[:len(tensorOf(`"data":[1]`))-1] + `,"parameters":{"binary_data_output":"yes"}}`:               `binary_data_output is the string "yes", and has to be true or false`,
		tensorOf(`"data":[1]`)[:len(tensorOf(`"data":[1]`))-1] + `,"outputs":[{"name":"X","parameters":{"binary_data":1}}]}`: "binary_data is 1, and has to be true or false",
	} {
		header := ""
		whole := body
		if strings.Contains(body, "binary_data_size") {
			whole, header = body+"abcd", strconv.Itoa(len(body))
		}
		_, err := DecodeRequest([]byte(whole), header)
		if !fault.Is(err, fault.BadRequest) || !strings.Contains(fault.Message(err), want) || strings.Contains(fault.Message(err), "Go ") {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
}

func TestClassesOfEveryDatatype(t *testing.T) {
	for _, tc := range []struct {
		dtype tensor.DType
		data  string
		want  string
	}{
		{tensor.Int64, "[9007199254740992,9007199254740993,-9223372036854775808]", "9007199254740993:1 9007199254740992:0 -9223372036854775808:2"},
		{tensor.Uint64, "[18446744073709551614,18446744073709551615,0]", "18446744073709551615:1 18446744073709551614:0 0:2"},
		{tensor.Int32, "[16777216,16777217,-5]", "16777217:1 16777216:0 -5:2"},
		{tensor.Int8, "[-128,127,-1]", "127:1 -1:2 -128:0"},
		{tensor.Uint8, "[200,255,3]", "255:1 200:0 3:2"},
		{tensor.Bool, "[false,true,false]", "1:1 0:0 0:2"},
		{tensor.FP64, "[1,1.000000000001,0.5]", "1.000000:1 1.000000:0 0.500000:2"},
		{tensor.FP16, "[0.5,2,1]", "2.000000:1 1.000000:2 0.500000:0"},
	} {
		in, err := tensor.ParseJSON("x", tc.dtype, []int64{3}, []byte(tc.data))
		if err != nil {
			t.Fatal(err)
		}
		out, err := Classify(&in, 3, nil, false)
		if err != nil {
			t.Fatal(err)
		}
		elements, err := out.Elements()
		if got := string(bytes.Join(elements, []byte(" "))); err != nil || got != tc.want {
			t.Errorf("%s: %q %v, want %q", tc.dtype, got, err, tc.want)
		}
	}
}

func FuzzDecodeRequest(f *testing.F) {
	head := `{"id":"1","inputs":[{"name":"A","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}}],"outputs":[{"name":"X"}]}`
	f.Add(append([]byte(head), floats(1, 2)...), strconv.Itoa(len(head)))
	f.Add([]byte(`{"inputs":[{"name":"A","shape":[2],"datatype":"BYTES","data":["a","b"]}]}`), "")
	f.Add([]byte(`{"inputs":[{"name":"A","shape":[],"datatype":"FP16","data":1.5}],"parameters":{"x":[1]}}`), "")
	f.Add([]byte("abcd"), "0")
	f.Fuzz(func(t *testing.T, body []byte, header string) {
		r, err := DecodeRequest(body, header)
		if err != nil {
			if !fault.Is(err, fault.BadRequest) {
				t.Fatalf("%v is not the client's fault", err)
			}
			return
		}
		if r.UsesShared() {
			return // its elements are not there
		}
		out, n, err := r.EncodeBinary()
		if err != nil { // the JSON of an input is read only here
			if !fault.Is(err, fault.BadRequest) {
				t.Fatalf("%v is not the client's fault", err)
			}
			return
		}
		back, err := DecodeRequest(out, strconv.Itoa(n))
		if err != nil {
			t.Fatalf("what was written cannot be read: %v\n%q", err, out)
		}
		for i := range r.Inputs {
			if !bytes.Equal(r.Inputs[i].Data, back.Inputs[i].Data) || r.Inputs[i].Name != back.Inputs[i].Name || len(r.Inputs[i].Shape) != len(back.Inputs[i].Shape) {
				t.Fatalf("input %d has changed", i)
			}
		}
		if _, err := r.EncodeJSON("m"); err != nil {
			t.Fatalf("it cannot be written as JSON: %v", err)
		}
	})
}

func FuzzDecodeResponse(f *testing.F) {
	head := `{"model_name":"m","outputs":[{"name":"A","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}}]}`
	f.Add(append([]byte(head), floats(1, 2)...), strconv.Itoa(len(head)), int64(2))
	f.Add([]byte(`{"outputs":[{"name":"A","datatype":"BYTES","data":["a",{}]}]}`), "", int64(0))
	f.Fuzz(func(t *testing.T, body []byte, header string, classes int64) {
		r, err := DecodeResponse(body, header)
		if err != nil {
			if !fault.Is(err, fault.HandlerFailed) {
				t.Fatalf("%v is not the handler's fault", err)
			}
			return
		}
		out, n, err := r.Encode(func(string) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		if n >= 0 {
			if _, err := DecodeResponse(out, strconv.Itoa(n)); err != nil {
				t.Fatalf("what was written cannot be read: %v\n%q", err, out)
			}
		}
		for i := range r.Outputs {
			_ = r.Select([]Requested{{Name: r.Outputs[i].Name, Params: Parameters{"classification": classes}}}, nil, rows)
			break
		}
	})
}

func TestSharedMemory(t *testing.T) {
	r, err := DecodeRequest([]byte(`{"inputs":[{"name":"A","shape":[1,2],"datatype":"FP32","parameters":{"shared_memory_region":"in","shared_memory_byte_size":8,"shared_memory_offset":4,"k":1}}],`+
		`"outputs":[{"name":"X","parameters":{"shared_memory_region":"out","shared_memory_byte_size":16}}]}`), "")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&Shared{Region: "in", Offset: 4, Size: 8}, r.Inputs[0].Shared); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(&Shared{Region: "out", Size: 16}, r.Outputs[0].Shared); diff != "" {
		t.Error(diff)
	}
	if !cmp.Equal(r.Inputs[0].Params, Parameters{"k": int64(1)}) || len(r.Outputs[0].Params) != 0 || !r.UsesShared() {
		t.Errorf("%+v", r)
	}
	answer := Response{Model: "m", Outputs: []Tensor{
		{Tensor: tensor.Tensor{Name: "X", DType: tensor.FP32, Shape: []int64{2}}, Shared: r.Outputs[0].Shared}, {Tensor: tensor.FromFloats("Y", []int64{1}, []float32{3})},
	}}
	body, n, err := answer.Encode(func(string) bool { return true })
	want := `{"model_name":"m","outputs":[{"name":"X","datatype":"FP32","shape":[2]},{"name":"Y","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}`
	if err != nil || string(body[:n]) != want || len(body) != n+4 {
		t.Errorf("%v %s", err, body)
	}
	if _, err := DecodeResponse([]byte(`{"outputs":[{"name":"A","shape":[1],"datatype":"FP32","parameters":{"shared_memory_region":"in","shared_memory_byte_size":4}}]}`), ""); !fault.Is(err, fault.HandlerFailed) {
		t.Errorf("%v", err)
	}
}
