package handlersdk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"

	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
)

const envServe = "FLAMBEAU_TEST_SERVE"

func TestMain(m *testing.M) {
	if os.Getenv(envServe) != "" {
		Serve(&scripted{})
	}
	os.Exit(m.Run())
}

// scripted is a handler that does what the test says.
type scripted struct {
	model      Model
	initialize func() error
	warmUp     func() error
	handle     func(ctx context.Context, items []Item) ([]Result, error)
	closed     int
}

func (s *scripted) Initialize(_ context.Context, m Model) error {
	s.model = m
	if s.initialize != nil {
		return s.initialize()
	}
	return nil
}

func (s *scripted) WarmUp(context.Context) error {
	if s.warmUp != nil {
		return s.warmUp()
	}
	return nil
}

func (s *scripted) Handle(ctx context.Context, items []Item) ([]Result, error) {
	return s.handle(ctx, items)
}

func (s *scripted) Close() error { s.closed++; return nil }

// Whoever starts a plugin by hand is told what it is, and nothing is killed.
func TestServeByHand(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		env  []string
		text string
	}{
		"without anything":     {nil, "started by it, not by hand"},
		"with the cookie only": {[]string{backendv1.CookieKey + "=" + backendv1.CookieValue}, backendv1.EnvMaxMessageBytes},
		"without a lifeline": {
			[]string{backendv1.CookieKey + "=" + backendv1.CookieValue, backendv1.EnvMaxMessageBytes + "=1000"},
			"lifeline",
		},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0]) //nolint:gosec // this binary
		cmd.Env = append(append(os.Environ(), envServe+"=1"), tc.env...)
		out, err := cmd.CombinedOutput()
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok || exit.ExitCode() != 1 || !strings.Contains(string(out), tc.text) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// Every field of the request gets into Model.
func TestModelIsTotal(t *testing.T) {
	t.Parallel()
	req := &backendv1.LoadRequest{}
	fields := req.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Name() == "frames_fd" {
			continue // it is pluginserver's
		}
		switch f.Kind() { //nolint:exhaustive // the kinds that are there
		case protoreflect.StringKind:
			req.ProtoReflect().Set(f, protoreflect.ValueOfString(string(f.Name())))
		case protoreflect.BoolKind:
			req.ProtoReflect().Set(f, protoreflect.ValueOfBool(true))
		case protoreflect.Int32Kind:
			req.ProtoReflect().Set(f, protoreflect.ValueOfInt32(int32(f.Number())))
		case protoreflect.Int64Kind:
			req.ProtoReflect().Set(f, protoreflect.ValueOfInt64(int64(f.Number())))
		default:
			t.Errorf("the test cannot set %s", f.Name())
		}
	}
	got := modelFrom(req)
	want := Model{
		Name: "model_name", Version: "model_version", Dir: "model_dir", Handler: "handler", Envelope: "envelope",
		GPU: 6, BatchSize: 7, LimitMaxImagePixels: true, MaxResponseBytes: 9,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if n := reflect.TypeFor[Model]().NumField() + 1; n != fields.Len() {
		t.Errorf("Model has %d fields, the message %d, of which one is not for it", n-1, fields.Len())
	}
	if m := modelFrom(&backendv1.LoadRequest{}); m.GPU != NoGPU {
		t.Errorf("no GPU became %d", m.GPU)
	}
}

// run runs a batch on a handler, and gives the decoded answer.
func run(t *testing.T, h Handler, items []frame.Item) []frame.Result {
	t.Helper()
	var results []frame.Result
	give := func(last bool, f frame.Buffers) error {
		head, r, err := frame.DecodeResults(f.Join())
		if err != nil || !last || head.BatchID != 7 || head.Kind != frame.KindResults {
			t.Errorf("%+v, last %t, %v", head, last, err)
		}
		results = r
		return nil
	}
	a := &adapter{handler: h}
	if err := a.Run(t.Context(), frame.EncodeBatch(7, items).Join(), give); err != nil {
		t.Fatal(err)
	}
	return results
}

func TestItemsAndResults(t *testing.T) {
	t.Parallel()
	deadline := time.Now().Add(time.Hour).Round(0)
	var got []Item
	var gotDeadline time.Time
	results := run(t, &scripted{handle: func(ctx context.Context, items []Item) ([]Result, error) {
		got = items
		gotDeadline, _ = ctx.Deadline()
		return []Result{
			{Status: 201, Header: []Field{{"content-type", "text/plain"}}, Body: []byte("ok")},
			{Err: Errorf(418, "no %s: %w", "coffee", os.ErrNotExist)},
			{Err: fmt.Errorf("secret: %w", ErrOutOfMemory)},
			{Err: errors.New("secret")},
		}, nil
	}}, []frame.Item{
		{
			ID: "1", Deadline: deadline.UnixNano(), Header: []frame.Field{{Name: "a", Value: "b"}},
			Parts: []frame.Part{{Name: "x", ContentType: "c", Data: []byte("1")}, {Name: "x", Data: []byte("2")}},
		},
		{ID: "2", Deadline: deadline.Add(time.Minute).UnixNano()},
		{ID: "3", Deadline: 1 + deadline.UnixNano()},
		{ID: "4", Deadline: deadline.UnixNano()},
	})
	want := Item{
		ID: "1", Deadline: deadline, Header: []Field{{"a", "b"}},
		Parts: []Part{{Name: "x", ContentType: "c", Data: []byte("1")}, {Name: "x", Data: []byte("2")}},
	}
	if diff := cmp.Diff(want, got[0]); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if p, ok := got[0].Part("x"); !ok || string(p.Data) != "2" {
		t.Errorf("the last part of a name is %q", p.Data)
	}
	if _, ok := got[0].Part("y"); ok {
		t.Error("a part that is not there was found")
	}
	if !gotDeadline.Equal(deadline.Add(time.Minute)) {
		t.Errorf("the batch's deadline is %v", gotDeadline)
	}
	wantResults := []frame.Result{
		{Status: 201, Header: []frame.Field{{Name: "content-type", Value: "text/plain"}}, Body: []byte("ok")},
		{Status: 418, Failure: &frame.Failure{Reason: frame.ReasonHandlerFailed, Message: "no coffee: file does not exist", Detail: "no coffee: file does not exist"}},
		{Failure: &frame.Failure{Reason: frame.ReasonOutOfMemory, Message: "Out of resources", Detail: "secret: out of memory"}},
		{Failure: &frame.Failure{Reason: frame.ReasonHandlerFailed, Message: "Prediction failed", Detail: "secret"}},
	}
	if diff := cmp.Diff(wantResults, results); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if !errors.Is(Errorf(500, "%w", os.ErrNotExist), os.ErrNotExist) {
		t.Error("Errorf lost its cause")
	}
}

func TestWholeBatchFails(t *testing.T) {
	t.Parallel()
	items := []frame.Item{{ID: "1"}, {ID: "2"}}
	for name, tc := range map[string]struct {
		handle func(context.Context, []Item) ([]Result, error)
		status uint32
		reason frame.Reason
		text   string // in message or detail
	}{
		"error":  {func(context.Context, []Item) ([]Result, error) { return nil, errors.New("boo") }, 0, frame.ReasonHandlerFailed, "boo"},
		"status": {func(context.Context, []Item) ([]Result, error) { return nil, Errorf(400, "bad") }, 400, frame.ReasonHandlerFailed, "bad"},
		"panic":  {func(context.Context, []Item) ([]Result, error) { panic("boo") }, 0, frame.ReasonHandlerFailed, "handlersdk_test.go"},
		"count":  {func(context.Context, []Item) ([]Result, error) { return make([]Result, 3), nil }, 0, frame.ReasonInvalidOutput, "number of batch response mismatched"},
	} {
		results := run(t, &scripted{handle: tc.handle}, items)
		if len(results) != 2 {
			t.Fatalf("%s: %d results", name, len(results))
		}
		for _, r := range results {
			if r.Failure == nil || r.Failure.Reason != tc.reason || r.Status != tc.status || !strings.Contains(r.Failure.Message+r.Failure.Detail, tc.text) {
				t.Errorf("%s: %+v, %+v", name, r, r.Failure)
			}
		}
	}
}

func TestLoadAndUnload(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		h           *scripted
		text        string // of the failure
		outOfMemory bool
		detail      string
	}{
		"well":          {h: &scripted{}},
		"error":         {h: &scripted{initialize: func() error { return errors.New("no weights") }}, text: "no weights", detail: "no weights"},
		"out of memory": {h: &scripted{initialize: func() error { return fmt.Errorf("cuda: %w", ErrOutOfMemory) }}, text: "cuda: out of memory", outOfMemory: true},
		"panic":         {h: &scripted{initialize: func() error { panic("boo") }}, text: "panic: boo", detail: "handlersdk_test.go"},
		"warm-up":       {h: &scripted{warmUp: func() error { return errors.New("cold") }}, text: "warm-up: cold"},
	} {
		a := &adapter{handler: tc.h}
		resp, err := a.Load(t.Context(), &backendv1.LoadRequest{ModelName: "m"})
		if err != nil || tc.h.model.Name != "m" {
			t.Fatalf("%s: %v, %+v", name, err, tc.h.model)
		}
		f := resp.GetFailure()
		if f.GetMessage() != tc.text || f.GetOutOfMemory() != tc.outOfMemory || !strings.Contains(f.GetDetail(), tc.detail) {
			t.Errorf("%s: %v", name, f)
		}
		if err := a.Unload(t.Context()); err != nil || tc.h.closed != 1 {
			t.Errorf("%s: closed %d times, %v", name, tc.h.closed, err)
		}
	}
}
