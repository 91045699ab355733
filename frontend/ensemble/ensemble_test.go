package ensemble

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/pipeline"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

func TestDiamond(t *testing.T) {
	t.Parallel()
	f := diamondModels()
	var together sync.WaitGroup // the two in the middle meet: they run at the same time
	together.Add(2)
	meet := func(number float32) func(context.Context, Call) (*oip.Response, error) {
		return func(ctx context.Context, c Call) (*oip.Response, error) {
			together.Done()
			together.Wait()
			return adds("y", number)(ctx, c)
		}
	}
	f.set("two", "x", "y", meet(2))
	f.set("three", "x", "y", meet(3))
	inst, info := load(t, launcher(t, f), "e", diamond())
	want := &backend.Description{
		Platform: "ensemble", Inputs: []backend.Port{{Name: "A", DataType: "FP32", Shape: []int64{-1}}}, Outputs: []backend.Port{{Name: "Z", DataType: "FP32", Shape: []int64{-1}}},
		Labels: map[string][]string{}, Accepts: []string{"application/json"},
	}
	steps := info.Description.Steps
	info.Description.Steps = nil
	if diff := cmp.Diff(want, info.Description); diff != "" || len(steps) != 4 || steps[1].Model != "one" || !info.Concurrent || !info.Features["oip_binary"] {
		t.Error(diff, steps, info)
	}
	r := ask(t, inst, item(input5))
	if r.Err != nil || string(r.Body) != `{"id":"mine","model_name":"e","model_version":"1","outputs":[{"name":"Z","datatype":"FP32","shape":[1],"data":[17]}]}` {
		t.Errorf("%s, %v", r.Body, r.Err)
	}
	for _, c := range f.calls {
		if id, _ := c.Request.Params.Int("sequence_id"); id != 3 || len(c.Request.Params) != 1 || !slices.Equal(c.Header, []infer.Field{{Name: "x-mine", Value: "1"}}) || c.Request.ID != "mine" {
			t.Errorf("a step has seen %+v %+v", c, c.Request)
		}
	}
	if o := f.calls[0].Request.Outputs; len(o) != 1 || o[0].Name != "y" { // of two outputs one is wanted
		t.Errorf("the first step was asked for %+v", o)
	}
}

func TestBinaryAnswer(t *testing.T) {
	t.Parallel()
	inst, _ := load(t, launcher(t, diamondModels()), "e", diamond())
	text := `{"parameters": {"binary_data_output": true}, "inputs": [{"name": "A", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}]}`
	raw := floats("A", 1).Data
	it := item(text + string(raw))
	it.Header = append(it.Header, infer.Field{Name: "inference-header-content-length", Value: strconv.Itoa(len(text))})
	r := ask(t, inst, it)
	want := floats("Z", 9).Data
	if r.Err != nil || !strings.HasSuffix(string(r.Body), string(want)) || r.Header[0].Name != oip.HeaderLength {
		t.Errorf("%q %v %v", r.Body, r.Header, r.Err)
	}
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	inst, _ := load(t, launcher(t, diamondModels()), "e", diamond())
	for body, want := range map[string]string{
		`x`: "takes requests of the Open Inference Protocol",
		`{"inputs": [{"name": "B", "datatype": "FP32", "shape": [1], "data": [5]}]}`:                                                               "unexpected inference input 'B'",
		`{"inputs": [{"name": "A", "datatype": "INT8", "shape": [1], "data": [5]}]}`:                                                               "data-type is 'INT8'",
		`{"inputs": [{"name": "A", "datatype": "FP32", "shape": [1, 1], "data": [5]}]}`:                                                            "unexpected shape",
		`{"inputs": [{"name": "A", "datatype": "FP32", "shape": [2], "data": [5]}]}`:                                                               "2",
		`{"outputs": [{"name": "nope"}], "inputs": [{"name": "A", "datatype": "FP32", "shape": [1], "data": [5]}]}`:                                "unexpected inference output 'nope'",
		`{"inputs": [{"name": "A", "datatype": "FP32", "shape": [1], "data": [5]}, {"name": "A", "datatype": "FP32", "shape": [1], "data": [5]}]}`: "already exists",
	} {
		if r := ask(t, inst, item(body)); !fault.Is(r.Err, fault.BadRequest) || !strings.Contains(r.Err.Error(), want) {
			t.Errorf("%s: %v, want %q", body, r.Err, want)
		}
	}
}

// A body that is no request is the only element of an only input of texts.
func TestRawBody(t *testing.T) {
	t.Parallel()
	f := newFakes()
	f.set("upper", "text:BYTES", "out:BYTES", func(_ context.Context, c Call) (*oip.Response, error) {
		all, err := c.Request.Inputs[0].Elements()
		if err != nil {
			return nil, err
		}
		return &oip.Response{Outputs: []oip.Tensor{{Tensor: tensor.Tensor{
			Name: "out", DType: tensor.Bytes, Shape: []int64{1}, Data: tensor.AppendElement(nil, []byte(strings.ToUpper(string(all[0])))),
		}}}}, nil
	})
	inst, _ := load(t, launcher(t, f), "e", &pipeline.Definition{Steps: []pipeline.Step{step("upper", "text=T", "out=O")}})
	if r := ask(t, inst, item("hello")); r.Err != nil || !strings.Contains(string(r.Body), `"data":["HELLO"]`) {
		t.Errorf("%s %v", r.Body, r.Err)
	}
}

// A failure names its step, and what it is for the client.
func TestFailures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    error
		kind   fault.Kind
		status int
	}{
		"handler": {&fault.Error{Kind: fault.HandlerFailed, Message: "no thanks", Code: 418, Hint: "be nice"}, fault.HandlerFailed, 418},
		"request": {fault.New(fault.BadRequest, "no thanks", nil), fault.BadRequest, 400},
		"busy":    {fault.New(fault.Overloaded, "no thanks", nil), fault.HandlerFailed, 503},
		"gone":    {fault.New(fault.ModelNotFound, "no thanks", nil), fault.HandlerFailed, 503},
		"died":    {fault.New(fault.BackendDied, "no thanks", nil), fault.BackendDied, 500},
		"foreign": {errors.New("no thanks"), fault.Internal, 500},
	} {
		f := diamondModels()
		f.set("three", "x", "y", func(context.Context, Call) (*oip.Response, error) { return nil, c.err })
		inst, _ := load(t, launcher(t, f), "e", diamond())
		r := ask(t, inst, item(input5))
		if !fault.Is(r.Err, c.kind) || fault.HTTPStatus(r.Err) != c.status || fault.Message(r.Err) != "in ensemble 'e', step 4 (model 'three'): no thanks" {
			t.Errorf("%s: %v, kind %s, status %d", name, r.Err, fault.KindOf(r.Err), fault.HTTPStatus(r.Err))
		}
	}
	f := diamondModels()
	f.set("three", "x", "y", func(context.Context, Call) (*oip.Response, error) {
		return &oip.Response{Outputs: []oip.Tensor{floats("other", 1)}}, nil
	})
	inst, _ := load(t, launcher(t, f), "e", diamond())
	if r := ask(t, inst, item(input5)); !fault.Is(r.Err, fault.HandlerFailed) || !strings.Contains(r.Err.Error(), "its answer has no output 'y'; it has 'other'") {
		t.Error(r.Err)
	}
	f.remove("one")
	if r := ask(t, inst, item(input5)); fault.HTTPStatus(r.Err) != 503 || !strings.Contains(r.Err.Error(), "step 2 (model 'one')") {
		t.Error(r.Err)
	}
}

// When nobody waits any more, or the ensemble ends, the steps do, too.
func TestCancellation(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, gone chan struct{}, cancel func(), inst backend.Instance){
		"client gone": func(_ *testing.T, gone chan struct{}, _ func(), _ backend.Instance) { close(gone) },
		"context":     func(_ *testing.T, _ chan struct{}, cancel func(), _ backend.Instance) { cancel() },
		"stopped": func(t *testing.T, _ chan struct{}, _ func(), inst backend.Instance) {
			t.Helper()
			now, cancel := context.WithCancel(t.Context())
			cancel()
			if err := inst.Stop(now); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := diamondModels()
			begun := make(chan struct{})
			f.set("two", "x", "y", func(ctx context.Context, _ Call) (*oip.Response, error) {
				close(begun)
				<-ctx.Done()
				return nil, context.Cause(ctx)
			})
			inst, _ := load(t, launcher(t, f), "e", diamond())
			it, gone := item(input5), make(chan struct{})
			it.Gone = gone
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			answered := make(chan infer.Result, 1)
			go func() {
				results, err := inst.Predict(ctx, []infer.Item{it})
				if err != nil {
					results = []infer.Result{{Err: err}}
				}
				answered <- results[0]
			}()
			<-begun
			end(t, gone, cancel, inst)
			if r := <-answered; r.Err == nil {
				t.Error("it was answered")
			}
			if slices.Contains(f.asked, "end") {
				t.Error("the last step was run")
			}
		})
	}
}

func TestStopLetsRequestsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := diamondModels()
		f.set("two", "x", "y", func(ctx context.Context, c Call) (*oip.Response, error) {
			select {
			case <-time.After(time.Second):
				return adds("y", 2)(ctx, c)
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		inst, _ := load(t, launcher(t, f), "e", diamond())
		answered := make(chan infer.Result, 1)
		go func() {
			results, _ := inst.Predict(t.Context(), []infer.Item{item(input5)})
			answered <- results[0]
		}()
		synctest.Wait()
		if err := inst.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		if r := <-answered; r.Err != nil {
			t.Error(r.Err)
		}
		if _, err := inst.Predict(t.Context(), []infer.Item{item(input5)}); !fault.Is(err, fault.Draining) {
			t.Errorf("after its end: %v", err)
		}
	})
}

// The load waits for what is loading, and for a while for what is not there.
func TestLoadWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := diamondModels()
		ready := f.members["three"]
		f.remove("three")
		l := launcher(t, f)
		inst := launch(t, l, diamond())
		done := make(chan error, 1)
		go func() {
			_, err := inst.Load(t.Context(), backend.LoadSpec{Model: infer.ModelRef{Name: "e"}})
			done <- err
		}()
		time.Sleep(time.Second)
		f.put("three", Member{Reason: "it is loading"})
		time.Sleep(time.Hour)
		f.put("three", ready)
		if err := <-done; err != nil {
			t.Error(err)
		}

		f.remove("two")
		begun := time.Now()
		_, err := launch(t, l, diamond()).Load(t.Context(), backend.LoadSpec{Model: infer.ModelRef{Name: "e2"}})
		if !fault.Is(err, fault.LoadFailed) || !strings.Contains(err.Error(), "step 3 of the ensemble needs the model two, which is not registered") || time.Since(begun) != defaultGrace {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
		begun = time.Now()
		anew := backend.LoadSpec{Model: infer.ModelRef{Name: "e2"}, Dir: "another"} // not the same worker once more
		if _, err = launch(t, l, diamond()).Load(t.Context(), anew); !fault.Is(err, fault.LoadFailed) || time.Since(begun) != defaultGrace {
			t.Errorf("loaded anew: %v after %s", err, time.Since(begun))
		}
		waits := launch(t, l, diamond()) // the second time
		told := make(chan error, 3)
		waiter, is := waits.(backend.Waiter)
		if !is {
			t.Fatal("an ensemble does not tell what it waits for")
		}
		waiter.OnWait(func(why error) { told <- why })
		go func() {
			_, err := waits.Load(t.Context(), anew)
			done <- err
		}()
		if why := <-told; why == nil || !strings.Contains(why.Error(), "two, which is not registered") {
			t.Errorf("it is said to wait for %v", why)
		}
		f.put("two", Member{Reason: "it is loading"})
		if why := <-told; why != nil {
			t.Errorf("while the model loads: %v", why)
		}
		f.put("two", ready)
		if err := <-done; err != nil || len(told) > 0 {
			t.Error(err, len(told))
		}
		f.put("two", Member{Reason: "no memory", Failed: true})
		_, err = launch(t, l, diamond()).Load(t.Context(), backend.LoadSpec{Model: infer.ModelRef{Name: "e3"}})
		if !fault.Is(err, fault.LoadFailed) || !strings.Contains(err.Error(), "which is not ready: no memory") {
			t.Error(err)
		}
		f.put("two", Member{Reason: "it is loading"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err = launch(t, l, diamond()).Load(ctx, backend.LoadSpec{Model: infer.ModelRef{Name: "e4"}}); !fault.Is(err, fault.LoadFailed) || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		d    pipeline.Definition
		want string
	}{
		"definition": {pipeline.Definition{}, "the ensemble has no steps"},
		"input":      {pipeline.Definition{Steps: []pipeline.Step{step("one", "z=A", "y=B")}}, `step 1 (one): the model has no input "z"; it has 'x'`},
		"output":     {pipeline.Definition{Steps: []pipeline.Step{step("one", "x=A", "z=B")}}, `the model has no output "z"; it has 'y', 'more'`},
		"unmapped":   {pipeline.Definition{Steps: []pipeline.Step{step("end", "l=A", "y=B")}}, `nothing is given for the model's input "r"`},
		"type":       {pipeline.Definition{Steps: []pipeline.Step{step("one", "x=A", "y=B"), step("texts", "t=B", "t=C")}}, `"B" is FP32 for step 1 (one), and BYTES for step 2 (texts)`},
		"declared":   {pipeline.Definition{Inputs: []pipeline.Port{{Name: "A", DataType: "INT8"}}, Steps: []pipeline.Step{step("one", "x=A", "y=B")}}, "INT8 for the ensemble"},
		"shape":      {pipeline.Definition{Inputs: []pipeline.Port{{Name: "A", Shape: []int64{-1, 2}}}, Steps: []pipeline.Step{step("one", "x=A", "y=B")}}, "has the shape [-1 2] for the ensemble"},
		"no type":    {pipeline.Definition{Inputs: []pipeline.Port{{Name: "A", DataType: "FLOAT"}}, Steps: []pipeline.Step{step("one", "x=A", "y=B")}}, "FLOAT"},
	} {
		f := diamondModels()
		f.set("texts", "t:BYTES", "t:BYTES", nil)
		_, err := launch(t, launcher(t, f), &c.d).Load(t.Context(), backend.LoadSpec{Model: infer.ModelRef{Name: "e"}})
		if !fault.Is(err, fault.LoadFailed) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// Ensembles may be made of ensembles, but not of themselves.
func TestEnsemblesOfEnsembles(t *testing.T) {
	t.Parallel()
	f := diamondModels()
	l := launcher(t, f)
	loaded, _ := load(t, l, "a", &pipeline.Definition{Steps: []pipeline.Step{step("one", "x=A", "y=B")}})
	f.set("a", "A", "B", nil)
	load(t, l, "b", &pipeline.Definition{Steps: []pipeline.Step{step("a", "A=A", "B=B")}})
	f.set("b", "A", "B", nil)
	for name, want := range map[string]string{"a": "a → b → a", "b": "b → b"} {
		_, err := launch(t, l, &pipeline.Definition{Steps: []pipeline.Step{step("b", "A=A", "B=B")}}).Load(t.Context(), backend.LoadSpec{Model: infer.ModelRef{Name: name}})
		if !fault.Is(err, fault.LoadFailed) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	if got := l.DependentsOf("b"); !slices.Equal(got, []string{"a", "one"}) {
		t.Errorf("b is made of %v", got)
	}
	load(t, l, "c", &pipeline.Definition{Steps: []pipeline.Step{step("one", "x=A", "y=B")}})
	if got := l.DependentsOf("b"); !slices.Equal(got, []string{"a"}) { // another one needs the other
		t.Errorf("b alone is made of %v", got)
	}
	if err := loaded.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if got := l.DependentsOf("one"); got != nil {
		t.Errorf("what is no ensemble is made of %v", got)
	}
}

// With a largest batch the rows of all inputs are the same, and not too many.
func TestRows(t *testing.T) {
	t.Parallel()
	f := newFakes()
	ports := []backend.Port{{Name: "x", DataType: "FP32", Shape: []int64{-1, 1}}, {Name: "z", DataType: "FP32", Shape: []int64{-1, 1}}}
	f.set("m", "", "", func(_ context.Context, c Call) (*oip.Response, error) {
		t := c.Request.Inputs[0]
		t.Name = "y"
		return &oip.Response{Outputs: []oip.Tensor{t}}, nil
	})
	f.put("m", Member{Ready: true, Ports: &backend.Description{MaxBatch: 8, Inputs: ports, Outputs: []backend.Port{{Name: "y", DataType: "FP32", Shape: []int64{-1, 1}}}}})
	inst, info := load(t, launcher(t, f), "e", &pipeline.Definition{
		MaxBatch: 2, Inputs: []pipeline.Port{{Name: "A", Shape: []int64{-1, 1}}, {Name: "B", Shape: []int64{-1, 1}}}, Steps: []pipeline.Step{step("m", "x=A z=B", "y=C")},
	})
	if info.Description.MaxBatch != 2 {
		t.Errorf("%+v", info.Description)
	}
	body := func(a, b string) string {
		return fmt.Sprintf(`{"inputs": [{"name": "A", "datatype": "FP32", "shape": [%d, 1], "data": [%s]}, {"name": "B", "datatype": "FP32", "shape": [%d, 1], "data": [%s]}]}`,
			strings.Count(a, ",")+1, a, strings.Count(b, ",")+1, b)
	}
	if r := ask(t, inst, item(body("1,2", "3,4"))); r.Err != nil {
		t.Error(r.Err)
	}
	if r := ask(t, inst, item(body("1,2,3", "1,2,3"))); r.Err == nil || !strings.Contains(r.Err.Error(), "batch-size must be <= 2 for 'e'") {
		t.Error(r.Err)
	}
	if r := ask(t, inst, item(body("1,2", "1"))); r.Err == nil || !strings.Contains(r.Err.Error(), "batch size does not match other inputs for 'e'") {
		t.Error(r.Err)
	}
}

// An ensemble that takes more rows than one of its models is refused, with both numbers; models that do not say are left alone.
func TestMoreRowsThanItsModels(t *testing.T) {
	t.Parallel()
	ports := func(rows int) *backend.Description {
		return &backend.Description{MaxBatch: rows, Inputs: []backend.Port{{Name: "x"}}, Outputs: []backend.Port{{Name: "y"}}}
	}
	for name, c := range map[string]struct {
		most  int
		small *backend.Description
		want  string
	}{
		"fewer":        {16, ports(4), "the ensemble takes up to 16 rows in a request, and step 2, the model small, only 4"},
		"as many":      {4, ports(4), ""},
		"says nothing": {16, nil, ""},
		"no rows":      {0, ports(4), ""},
		"none there":   {16, ports(0), ""},
	} {
		f := newFakes()
		f.put("large", Member{Ready: true, Ports: ports(64)})
		f.put("small", Member{Ready: true, Ports: c.small})
		d := &pipeline.Definition{MaxBatch: c.most, Steps: []pipeline.Step{step("large", "x=A", "y=B"), step("small", "x=B", "y=C")}}
		_, err := launch(t, launcher(t, f), d).Load(t.Context(), backend.LoadSpec{Model: infer.ModelRef{Name: "e"}})
		if c.want == "" && err != nil || c.want != "" && (!fault.Is(err, fault.LoadFailed) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A step may be given a time of its own, and be tried again; requests that are handed on whole are TorchServe's workflows.
func TestWhole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakes()
		for _, name := range []string{"pre", "left", "right", "post"} {
			f.put(name, Member{Ready: true})
			f.whole[name] = func(_ context.Context, it infer.Item) (infer.Result, error) {
				var parts []string
				for _, p := range it.Parts {
					parts = append(parts, p.Name+"="+string(p.Data))
				}
				return infer.Result{Body: fmt.Appendf(nil, `{"%s": %q}`, name, strings.Join(parts, "&"))}, nil
			}
		}
		tries := 0
		left := f.whole["left"]
		f.whole["left"] = func(ctx context.Context, it infer.Item) (infer.Result, error) {
			if tries++; tries < 3 {
				<-ctx.Done()
				return infer.Result{}, context.Cause(ctx)
			}
			return left(ctx, it)
		}
		slow := step("left", "body=p", "=l")
		slow.Timeout, slow.Retries = time.Second, 2
		d := &pipeline.Definition{Whole: true, Inputs: []pipeline.Port{{Name: "request"}}, Steps: []pipeline.Step{
			step("pre", "=request", "=p"), slow, step("right", "body=p", "=r"), step("post", "left=l right=r", "=out"),
		}}
		inst, info := load(t, launcher(t, f), "w", d)
		if info.Description != nil {
			t.Errorf("it tells %+v", info.Description)
		}
		it := item("x")
		it.Parts = append(it.Parts, infer.Part{Name: "k", Data: []byte("v")})
		r := ask(t, inst, it)
		want := `{"post": "left={\"left\": \"body={\\\"pre\\\": \\\"body=x&k=v\\\"}\"}&right={\"right\": \"body={\\\"pre\\\": \\\"body=x&k=v\\\"}\"}"}`
		if r.Err != nil || string(r.Body) != want {
			t.Errorf("%s, %v", r.Body, r.Err)
		}

		two := &pipeline.Definition{Whole: true, Steps: []pipeline.Step{step("pre", "=q", "=p"), step("left", "body=p", "=left"), step("right", "body=p", "=right")}}
		inst, _ = load(t, launcher(t, f), "w2", two)
		if r := ask(t, inst, item("x")); r.Err != nil || string(r.Body) != `{"left":{"left":"body={\"pre\": \"body=x\"}"},"right":{"right":"body={\"pre\": \"body=x\"}"}}` {
			t.Errorf("%s, %v", r.Body, r.Err)
		}
		f.whole["right"] = func(context.Context, infer.Item) (infer.Result, error) {
			return infer.Result{Body: []byte("no JSON")}, nil
		}
		if r := ask(t, inst, item("x")); !fault.Is(r.Err, fault.Internal) {
			t.Error(r.Err)
		}
		f.whole["right"] = func(context.Context, infer.Item) (infer.Result, error) {
			return infer.Result{Status: 500, Body: []byte("boom")}, nil
		}
		if r := ask(t, inst, item("x")); fault.Message(r.Err) != "Error executing right" || fault.HTTPStatus(r.Err) != 500 {
			t.Error(r.Err)
		}
	})
}

func TestOthersGoOn(t *testing.T) {
	t.Parallel()
	l := launcher(t, newFakes())
	inst, err := l.Launch(t.Context(), backend.ProcessSpec{Path: "/bin/true"})
	if err != nil {
		t.Fatal(err)
	}
	if _, ours := inst.(*instance); ours {
		t.Error("a process was taken for an ensemble")
	}
	if err := inst.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := New(Options{}); err == nil {
		t.Error("nothing is required")
	}
	if _, err := l.Launch(t.Context(), backend.ProcessSpec{Path: program}); err == nil {
		t.Error("an ensemble without a definition")
	}
	if _, err := l.Launch(t.Context(), backend.ProcessSpec{Path: program, Args: []string{"{"}}); err == nil {
		t.Error("an ensemble with a broken definition")
	}
}
