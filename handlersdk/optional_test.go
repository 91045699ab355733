package handlersdk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
)

// able is a handler with everything that is optional.
type able struct {
	scripted

	stream func(ctx context.Context, items []Item, emit Emit) ([]Result, error)
	inside chan struct{} // gets a value for each Handle that is in
	leave  chan struct{}
}

func (a *able) Concurrent() bool   { return true }
func (a *able) Features() []string { return []string{FeatureOIPBinary} }

func (a *able) Describe() Description {
	return Description{
		Platform: "p", MaxBatch: 8, Inputs: []Port{{Name: "x", DataType: tensor.FP32, Shape: []int64{-1, 3}}}, Outputs: []Port{{Name: "y", DataType: tensor.Bytes, Shape: []int64{-1}}},
		Labels: map[string][]string{"y": {"cat", "dog"}},
	}
}

func (a *able) HandleStream(ctx context.Context, items []Item, emit Emit) ([]Result, error) {
	if a.stream != nil {
		return a.stream(ctx, items, emit)
	}
	a.inside <- struct{}{}
	<-a.leave
	return make([]Result, len(items)), nil
}

func TestIntroduction(t *testing.T) {
	t.Parallel()
	resp, err := (&adapter{handler: &able{}}).Load(t.Context(), &backendv1.LoadRequest{})
	if err != nil || resp.GetFailure() != nil {
		t.Fatal(resp, err)
	}
	if diff := cmp.Diff([]string{FeatureOIPBinary, "streams", "concurrent"}, resp.GetFeatures()); diff != "" {
		t.Error(diff)
	}
	// The names are the border's, and stay.
	const want = `{"platform":"p","max_batch":8,"inputs":[{"name":"x","datatype":"FP32","shape":[-1,3]}],"outputs":[{"name":"y","datatype":"BYTES","shape":[-1]}],"labels":{"y":["cat","dog"]}}`
	if got := string(resp.GetDescriptionJson()); got != want {
		t.Errorf("described as %s", got)
	}
	resp, err = (&adapter{handler: &scripted{}}).Load(t.Context(), &backendv1.LoadRequest{})
	if err != nil || len(resp.GetFeatures()) > 0 || len(resp.GetDescriptionJson()) > 0 {
		t.Error("a handler without abilities told of some:", resp, err)
	}
}

func TestStream(t *testing.T) {
	t.Parallel()
	var frames []string
	give := func(last bool, f frame.Buffers) error {
		head, results, err := frame.DecodeResults(f.Join())
		if err != nil || head.BatchID != 3 || last != (head.Kind == frame.KindResults) {
			t.Errorf("%+v, last %t, %v", head, last, err)
		}
		text := ""
		var textSb78 strings.Builder
		for _, r := range results {
			textSb78.WriteString("[" + string(r.Body) + "]")
		}
		text += textSb78.String()
		frames = append(frames, text)
		return nil
	}
	a := &adapter{handler: &able{stream: func(ctx context.Context, items []Item, emit Emit) ([]Result, error) {
		if got := RequestIDs(ctx); len(got) != 2 || got[1] != "b" {
			t.Errorf("request ids %q", got)
		}
		for _, index := range []int{1, 0, 1} {
			if err := emit(index, Result{Body: []byte(items[index].ID + "!")}); err != nil {
				t.Error(err)
			}
		}
		if emit(2, Result{}) == nil || emit(-1, Result{}) == nil {
			t.Error("a piece was taken for an item that is not there")
		}
		return []Result{{Body: []byte("end a")}, {}}, nil
	}}}
	if err := a.Run(t.Context(), frame.EncodeBatch(3, []frame.Item{{ID: "a"}, {ID: "b"}}).Join(), give); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"[][b!]", "[a!][]", "[][b!]", "[end a][]"}, frames); diff != "" {
		t.Error(diff)
	}
}

// Who does not wait any more gets no pieces, and the handler is told.
func TestStreamIsGivenUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	a := &adapter{handler: &able{stream: func(_ context.Context, items []Item, emit Emit) ([]Result, error) {
		cancel(gone)
		if err := emit(0, Result{Body: []byte("x")}); !errors.Is(err, gone) {
			t.Errorf("emit: %v", err)
		}
		return make([]Result, len(items)), nil
	}}}
	err := a.Run(ctx, frame.EncodeBatch(1, []frame.Item{{}}).Join(), func(last bool, _ frame.Buffers) error {
		if !last {
			t.Error("a piece was sent")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestWhole(t *testing.T) {
	t.Parallel()
	h := &able{stream: func(_ context.Context, _ []Item, emit Emit) ([]Result, error) {
		for _, text := range []string{"a", "b"} {
			if err := emit(0, Result{Status: 201, Header: []Field{{"k", "v"}}, Body: []byte(text)}); err != nil {
				return nil, err
			}
		}
		return []Result{{Body: []byte("c")}, {Body: []byte("alone")}}, nil
	}}
	results, err := Whole(t.Context(), h, make([]Item, 2))
	if err != nil || string(results[0].Body) != "abc" || results[0].Status != 201 || len(results[0].Header) != 1 || string(results[1].Body) != "alone" {
		t.Errorf("%+v, %v", results, err)
	}
}

// A concurrent handler is in two batches at once; Unload waits for both.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	h := &able{inside: make(chan struct{}), leave: make(chan struct{})}
	a := &adapter{handler: h}
	if _, err := a.Load(t.Context(), &backendv1.LoadRequest{}); err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 2)
	for range 2 {
		go func() {
			ran <- a.Run(t.Context(), frame.EncodeBatch(1, []frame.Item{{}}).Join(), func(bool, frame.Buffers) error { return nil })
		}()
	}
	<-h.inside
	<-h.inside
	close(h.leave)
	for range 2 {
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}
}

func TestItemHelpers(t *testing.T) {
	t.Parallel()
	item := Item{Header: []Field{{"X-One", "1"}, {"x-one", "2"}}, Parts: []Part{{Name: "first", Data: []byte("f")}}}
	if item.Get("x-ONE") != "1" || item.Get("none") != "" {
		t.Error("headers")
	}
	for _, step := range []struct{ add, want string }{{"", "f"}, {"body", "body"}, {"data", "data"}, {"body", "data"}} {
		if step.add != "" {
			item.Parts = append(item.Parts, Part{Name: step.add, Data: []byte(step.add)})
		}
		if got := string(item.Body().Data); got != step.want {
			t.Errorf("after %q: %q, want %q", step.add, got, step.want)
		}
	}
	if p := (&Item{}).Body(); p.Data != nil {
		t.Errorf("%+v", p)
	}
}

func TestLog(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(newLogHandler(func() io.Writer { return &out }, &slog.HandlerOptions{Level: slog.LevelDebug}))
	ctx := withRequestIDs(t.Context(), []frame.Item{{ID: "a"}, {ID: "b"}})
	log.With("k", "v").WithGroup("g").WarnContext(ctx, "careful", "n", 1)
	log.Debug("small")
	log.ErrorContext(ForItem(ctx, &Item{ID: "b"}), "bad\nnews")
	log.Log(ctx, slog.LevelError+4, "worse")
	var levels, texts, ids []string
	now := backendv1.Marker{}
	for line := range strings.Lines(out.String()) {
		if text, ok := strings.CutPrefix(line, string(backendv1.MarkerPrefix)); ok {
			now = backendv1.Marker{}
			if err := json.Unmarshal([]byte(text), &now); err != nil {
				t.Fatal(err)
			}
			continue
		}
		texts, levels, ids = append(texts, strings.TrimSpace(line)), append(levels, now.Level), append(ids, strings.Join(now.IDs, " "))
	}
	if now.Level != "" || len(now.IDs) > 0 {
		t.Errorf("what is printed next would be %+v", now)
	}
	if diff := cmp.Diff([]string{"msg=careful k=v g.n=1", "msg=small", `msg="bad\nnews"`, "msg=worse"}, texts); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"WARNING", "DEBUG", "ERROR", "CRITICAL"}, levels); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"a b", "", "b", "a b"}, ids); diff != "" {
		t.Error(diff)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	m := NewMetrics(Model{Name: "m"})
	m.host, m.out, m.now = "h", func() io.Writer { return &out }, func() time.Time { return time.Unix(5, 0) }
	ctx := withRequestIDs(t.Context(), []frame.Item{{ID: "a"}, {ID: "b"}})
	for _, err := range []error{
		m.Counter("Cats", Count, "Colour").Report(ctx, 2, "black"), m.Gauge("Heat", "").Report(t.Context(), -1.5), m.Histogram("Took", Milliseconds).Report(ctx, 0.25),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	want := "[METRICS]Cats.Count:2|#ModelName:m,Level:Model,Colour:black|#type:COUNTER|#hostname:h,5,a,b\n" +
		"[METRICS]Heat.unit:-1.5|#ModelName:m,Level:Model|#type:GAUGE|#hostname:h,5\n" +
		"[METRICS]Took.Milliseconds:0.25|#ModelName:m,Level:Model|#type:HISTOGRAM|#hostname:h,5,a,b\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	for name, err := range map[string]error{
		"a counter that falls": m.Counter("Cats", Count).Report(ctx, -1), "no value": m.Counter("Cats", Count, "Colour").Report(ctx, 1),
		"too many values": m.Gauge("Heat", "").Report(ctx, 1, "x"), "a comma": m.Counter("Cats", Count, "Colour").Report(ctx, 1, "a,b"),
		"a newline": m.Counter("Cats", Count, "Colour").Report(ctx, 1, "a\n[METRICS]"), "a name": m.Counter("Ca|ts", Count).Report(ctx, 1), "no name": m.Counter("", Count).Report(ctx, 1),
	} {
		if err == nil {
			t.Errorf("%s was reported", name)
		}
	}
	if out.String() != want {
		t.Errorf("more was written: %s", out.String())
	}
}
