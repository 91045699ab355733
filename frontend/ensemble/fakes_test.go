package ensemble

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/pipeline"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeModels are models in memory: each is a function of its inputs.
type fakeModels struct {
	mu      sync.Mutex // guards what follows
	changed chan struct{}
	members map[string]Member
	runs    map[string]func(ctx context.Context, c Call) (*oip.Response, error)
	whole   map[string]func(ctx context.Context, item infer.Item) (infer.Result, error)
	asked   []string
	calls   []Call
}

func newFakes() *fakeModels {
	return &fakeModels{
		changed: make(chan struct{}), members: map[string]Member{}, runs: map[string]func(context.Context, Call) (*oip.Response, error){},
		whole: map[string]func(context.Context, infer.Item) (infer.Result, error){},
	}
}

// set makes a model with ports of FP32 [-1]; "x:INT64" is of another type.
func (f *fakeModels) set(name, inputs, outputs string, run func(ctx context.Context, c Call) (*oip.Response, error)) {
	ports := func(text string) (all []backend.Port) {
		for name := range strings.FieldsSeq(text) {
			name, dtype, typed := strings.Cut(name, ":")
			if !typed {
				dtype = "FP32"
			}
			all = append(all, backend.Port{Name: name, DataType: dtype, Shape: []int64{-1}})
		}
		return all
	}
	f.put(name, Member{Ready: true, Ports: &backend.Description{Inputs: ports(inputs), Outputs: ports(outputs)}})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.runs[name] = run
}

func (f *fakeModels) put(name string, m Member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members[name] = m
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeModels) remove(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.members, name)
}

func (f *fakeModels) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

func (f *fakeModels) Member(ref infer.ModelRef) (Member, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, ok := f.members[ref.Name]
	if !ok {
		return m, fault.Newf(fault.ModelNotFound, "Model not found: %s", ref.Name)
	}
	return m, nil
}

func (f *fakeModels) Infer(ctx context.Context, ref infer.ModelRef, c Call) (*oip.Response, error) {
	f.mu.Lock()
	_, there := f.members[ref.Name]
	run := f.runs[ref.Name]
	f.asked = append(f.asked, ref.String())
	f.calls = append(f.calls, c)
	f.mu.Unlock()
	if !there {
		return nil, fault.Newf(fault.ModelNotFound, "Model not found: %s", ref.Name)
	}
	return run(ctx, c)
}

func (f *fakeModels) Submit(ctx context.Context, ref infer.ModelRef, item infer.Item) (infer.Result, error) {
	f.mu.Lock()
	run := f.whole[ref.Name]
	f.asked = append(f.asked, ref.String())
	f.mu.Unlock()
	return run(ctx, item)
}

func floats(name string, values ...float32) oip.Tensor {
	return oip.Tensor{Tensor: tensor.FromFloats(name, []int64{int64(len(values))}, values)}
}

// adds is a model that adds the first numbers of its inputs, and another number.
func adds(output string, number float32) func(context.Context, Call) (*oip.Response, error) {
	return func(_ context.Context, c Call) (*oip.Response, error) {
		sum := number
		for i := range c.Request.Inputs {
			all, err := c.Request.Inputs[i].Floats()
			if err != nil {
				return nil, err
			}
			sum += all[0]
		}
		return &oip.Response{Outputs: []oip.Tensor{floats(output, sum)}}, nil
	}
}

func launcher(t *testing.T, models Models) *Launcher {
	t.Helper()
	l, err := New(Options{Next: &backendtest.Launcher{}, Models: models, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func step(model, inputs, outputs string) pipeline.Step {
	pairs := func(text string) map[string]string {
		all := map[string]string{}
		for pair := range strings.FieldsSeq(text) {
			name, value, _ := strings.Cut(pair, "=")
			all[name] = value
		}
		return all
	}
	return pipeline.Step{Model: model, Inputs: pairs(inputs), Outputs: pairs(outputs)}
}

func launch(t *testing.T, l *Launcher, d *pipeline.Definition) backend.Instance {
	t.Helper()
	spec, err := Command(d)
	if err != nil {
		t.Fatal(err)
	}
	inst, err := l.Launch(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := inst.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		<-inst.Done()
	})
	return inst
}

func load(t *testing.T, l *Launcher, name string, d *pipeline.Definition) (backend.Instance, backend.Info) {
	t.Helper()
	inst := launch(t, l, d)
	info, err := inst.Load(t.Context(), backend.LoadSpec{Model: infer.ModelRef{Name: name, Version: "1"}})
	if err != nil {
		t.Fatal(err)
	}
	return inst, info
}

func item(body string) infer.Item {
	return infer.Item{ID: "r", Header: []infer.Field{{Name: "x-mine", Value: "1"}, {Name: "Content-Length", Value: "9"}}, Parts: []infer.Part{{Name: "body", Data: []byte(body)}}}
}

func ask(t *testing.T, inst backend.Instance, it infer.Item) infer.Result {
	t.Helper()
	results, err := inst.Predict(t.Context(), []infer.Item{it})
	if err != nil || len(results) != 1 {
		t.Fatalf("%v, %v", results, err)
	}
	return results[0]
}

const input5 = `{"id": "mine", "parameters": {"sequence_id": 3, "binary_data_output": false}, "inputs": [{"name": "A", "datatype": "FP32", "shape": [1], "data": [5]}]}`

// diamond is two steps beside each other, between two others.
func diamond() *pipeline.Definition {
	return &pipeline.Definition{Steps: []pipeline.Step{
		step("end", "l=left r=right", "y=Z"), step("one", "x=A", "y=t"), step("two", "x=t", "y=left"), step("three", "x=t", "y=right"),
	}}
}

func diamondModels() *fakeModels {
	f := newFakes()
	f.set("one", "x", "y more", adds("y", 1))
	f.set("two", "x", "y", adds("y", 2))
	f.set("three", "x", "y", adds("y", 3))
	f.set("end", "l r", "y", adds("y", 0))
	return f
}
