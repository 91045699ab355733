package oipserver

import (
	"bytes"
	"testing"

	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

func TestPriority(t *testing.T) {
	w := newWorld()
	s := serve(t, w)
	for _, tc := range []struct {
		given any
		want  int
	}{{nil, 0}, {int64(2), 2}, {uint64(1) << 63, 1<<31 - 1}, {int64(0), 0}} {
		r := request()
		r.Params = oip.Parameters{oip.ParamPriority: tc.given}
		if _, err := s.Infer(t.Context(), infer.ModelRef{Name: "adder"}, &Call{Request: r}, false); err != nil {
			t.Fatal(err)
		}
		if got := w.last(t).Priority; got != tc.want {
			t.Errorf("%v: %d, want %d", tc.given, got, tc.want)
		}
	}
}

// TestBodiesStayAsTheyWere has a JSON request for a handler, which gets it as it was sent.
func TestBodiesStayAsTheyWere(t *testing.T) {
	w := newWorld()
	s := serve(t, w)
	body := []byte(`{ "inputs": [{"name": "A", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}], "parameters": {"priority": 1} }`)
	r, err := oip.DecodeRequest(body, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Infer(t.Context(), infer.ModelRef{Name: "handler"}, &Call{Request: r, Body: body}, false); err != nil {
		t.Fatal(err)
	}
	if got := w.last(t); !bytes.Equal(got.Parts[0].Data, body) || got.Priority != 1 {
		t.Errorf("%s %d", got.Parts[0].Data, got.Priority)
	}
}

func TestClassification(t *testing.T) {
	w := newWorld()
	s := serve(t, w)
	for model, want := range map[string]string{"adder": "3.000000:1:high", "handler": "3.000000:1"} {
		r := request()
		r.Outputs = []oip.Requested{{Name: "X", Params: oip.Parameters{"classification": int64(1)}}}
		a, err := s.Infer(t.Context(), infer.ModelRef{Name: model}, &Call{Request: r}, false)
		if err != nil {
			t.Fatal(err)
		}
		out := a.Response.Outputs[0]
		elements, err := out.Elements()
		if err != nil || len(elements) != 1 || string(elements[0]) != want || len(out.Shape) != 2 {
			t.Errorf("%s: %v %s %v", model, err, elements, out.Shape)
		}
	}
}

// TestInputsThatTheBackendCompares has a model of whose inputs some may be left out, or that takes more than it tells.
func TestInputsThatTheBackendCompares(t *testing.T) {
	for _, optional := range []bool{false, true} {
		w := newWorld()
		w.models[0].Features = map[string]bool{featureBinary: true, featureOptional: optional}
		s := serve(t, w)
		more := request()
		more.Inputs = append(more.Inputs, oip.Tensor{Tensor: tensor.FromFloats("beside", []int64{1}, []float32{1})})
		_, err := s.Infer(t.Context(), infer.ModelRef{Name: "adder"}, &Call{Request: more}, false)
		if optional && err != nil || !optional && !fault.Is(err, fault.BadRequest) {
			t.Errorf("optional %t: %v", optional, err)
		}
		wrong := request()
		wrong.Inputs[0].DType = tensor.FP64
		wrong.Inputs[0].Data = make([]byte, 2*len(wrong.Inputs[0].Data))
		if _, err := s.Infer(t.Context(), infer.ModelRef{Name: "adder"}, &Call{Request: wrong}, false); !fault.Is(err, fault.BadRequest) {
			t.Errorf("optional %t, another datatype: %v", optional, err)
		}
	}
}
