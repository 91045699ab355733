package oipserver

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world has the models adder, whose backend takes raw tensors and adds 1, and handler, which takes JSON and says nothing of itself.
type world struct {
	mu       sync.Mutex
	models   []rollout.Description
	seen     []infer.Item
	deployed []rollout.Spec
	refuse   error // of Deploy
	observe  func(id string)
}

func newWorld() *world {
	return &world{models: []rollout.Description{
		{
			Ref: infer.ModelRef{Name: "adder", Version: "1"}, Runtime: "onnx", Source: "adder/1", Default: true, Workers: []rollout.Worker{{Ready: true}}, BatchSize: 4,
			Features: map[string]bool{featureBinary: true},
			Ports: &backend.Description{
				MaxBatch: 4, Inputs: []backend.Port{{Name: "A", DataType: "FP32", Shape: []int64{-1, 2}}}, Outputs: []backend.Port{{Name: "X", DataType: "FP32", Shape: []int64{-1, 2}}},
				Labels: map[string][]string{"X": {"low", "high"}},
			},
		},
		{Ref: infer.ModelRef{Name: "handler", Version: "1"}, Runtime: "python", Source: "handler.mar", Default: true, Workers: []rollout.Worker{{Ready: true}}},
	}}
}

func (w *world) Healthy() bool { return true }

func (w *world) Describe(ref infer.ModelRef) (rollout.Description, error) {
	all, err := w.DescribeAll(ref.Name)
	if err != nil {
		return rollout.Description{}, err
	}
	for i := range all {
		if all[i].Ref.Version == ref.Version || ref.Version == "" && all[i].Default {
			return all[i], nil
		}
	}
	return rollout.Description{}, fault.Newf(fault.VersionNotFound, "no version %s", ref.Version)
}

func (w *world) DescribeAll(name string) ([]rollout.Description, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []rollout.Description
	for i := range w.models {
		if w.models[i].Ref.Name == name {
			all = append(all, w.models[i])
		}
	}
	if len(all) == 0 {
		return nil, fault.Newf(fault.ModelNotFound, "Model not found: %s", name)
	}
	return all, nil
}

func (w *world) List() []rollout.Listed { return nil }

func (w *world) Register(context.Context, rollout.Spec) (rollout.Registered, error) {
	return rollout.Registered{}, nil
}

func (w *world) Unregister(_ context.Context, ref infer.ModelRef) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.models = slices.DeleteFunc(w.models, func(d rollout.Description) bool { return d.Ref == ref })
	return nil
}

// Deploy notes what is wanted, and that it runs.
func (w *world) Deploy(_ context.Context, spec rollout.Spec) (rollout.Registered, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := spec.Archive.Close(); err != nil {
		return rollout.Registered{}, err
	}
	if w.refuse != nil {
		return rollout.Registered{}, w.refuse
	}
	w.deployed = append(w.deployed, spec)
	ref := infer.ModelRef{Name: spec.Name, Version: spec.Version}
	if !slices.ContainsFunc(w.models, func(d rollout.Description) bool { return d.Ref == ref }) {
		w.models = append(w.models, rollout.Description{Ref: ref, Default: true, Workers: []rollout.Worker{{Ready: true}}})
	}
	return rollout.Registered{Ref: ref}, nil
}

// Submit adds 1 to the first input and answers in the form in which it was asked.
func (w *world) Submit(_ context.Context, ref infer.ModelRef, item infer.Item) (infer.Result, error) {
	w.mu.Lock()
	w.seen = append(w.seen, item)
	w.mu.Unlock()
	if w.observe != nil {
		w.observe(item.ID)
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
	values, err := r.Inputs[0].Floats()
	if err != nil {
		return infer.Result{}, err
	}
	for i := range values {
		values[i]++
	}
	answer := oip.Response{Model: ref.Name, Outputs: []oip.Tensor{{Tensor: tensor.FromFloats("X", r.Inputs[0].Shape, values)}}}
	body, n, err := answer.Encode(r.IsBinary)
	res := infer.Result{Body: body}
	if n >= 0 {
		res.Header = []infer.Field{{Name: "inference-header-content-length", Value: strconv.Itoa(n)}}
	}
	return res, err
}

func (w *world) last(t *testing.T) infer.Item {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.seen) == 0 {
		t.Fatal("no request arrived")
	}
	return w.seen[len(w.seen)-1]
}

// serve makes a server of a world, which may change its options.
func serve(t *testing.T, w *world, change ...func(*Options)) *Server {
	t.Helper()
	opts := Options{Predictor: w, Models: w, ModelAPI: true}
	for _, c := range change {
		c(&opts)
	}
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// request asks for two numbers.
func request() *oip.Request {
	return &oip.Request{Inputs: []oip.Tensor{{Tensor: tensor.FromFloats("A", []int64{1, 2}, []float32{1, 2})}}}
}

// settings are changes, of texts that are JSON.
func settings(pairs ...string) map[string]json.RawMessage {
	all := map[string]json.RawMessage{}
	for pair := range slices.Chunk(pairs, 2) {
		all[pair[0]] = json.RawMessage(pair[len(pair)-1])
	}
	return all
}

// wantRefused requires a failure that is the client's.
func wantRefused(t *testing.T, err error, text string) {
	t.Helper()
	if fault.HTTPStatus(err) >= 500 && fault.HTTPStatus(err) != statusNotImplemented || err == nil || !contains(err.Error(), text) {
		t.Errorf("%v, want %q", err, text)
	}
}
