package host

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
)

// Every field of LoadSpec gets into the message, and every field of the message is set.
func TestLoadRequestIsTotal(t *testing.T) {
	t.Parallel()
	spec := backend.LoadSpec{
		Model: infer.ModelRef{Name: "n", Version: "v"}, Dir: "d", Handler: "h", Envelope: "e", GPU: 1,
		BatchSize: 2, LimitMaxImagePixels: true, MaxResponseBytes: 3,
	}
	for i := range reflect.TypeFor[backend.LoadSpec]().NumField() {
		if reflect.ValueOf(spec).Field(i).IsZero() {
			t.Errorf("the test does not set %s", reflect.TypeFor[backend.LoadSpec]().Field(i).Name)
		}
	}
	m := loadRequest(spec).ProtoReflect()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if !m.Has(fields.Get(i)) {
			t.Errorf("%s is not set", fields.Get(i).Name())
		}
	}
	for name, v := range map[protoreflect.Name]any{
		"model_name": "n", "model_version": "v", "model_dir": "d", "handler": "h", "envelope": "e", "gpu": int32(1),
		"batch_size": int32(2), "limit_max_image_pixels": true, "max_response_bytes": int64(3),
	} {
		if got := m.Get(fields.ByName(name)).Interface(); got != v {
			t.Errorf("%s is %v, want %v", name, got, v)
		}
	}
	spec.GPU = backend.NoGPU
	if req := loadRequest(spec); req.Gpu != nil {
		t.Errorf("no GPU became %d", req.GetGpu())
	}
	spec.GPU = 0
	if req := loadRequest(spec); req.Gpu == nil {
		t.Error("GPU 0 got lost")
	}
}

func TestItems(t *testing.T) {
	t.Parallel()
	deadline := time.Unix(1_700_000_000, 5)
	ctx, cancel := context.WithDeadline(t.Context(), deadline)
	defer cancel()
	data := []byte("data")
	items := []infer.Item{{ID: "i", Header: []infer.Field{{Name: "a", Value: "b"}}, Parts: []infer.Part{{Name: "n", ContentType: "c", Data: data}}}}
	got := frameItems(ctx, items)
	want := []frame.Item{{
		ID: "i", Deadline: deadline.UnixNano(), Header: []frame.Field{{Name: "a", Value: "b"}},
		Parts: []frame.Part{{Name: "n", ContentType: "c", Data: data}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if &got[0].Parts[0].Data[0] != &data[0] {
		t.Error("the payload was copied")
	}
	if d := frameItems(t.Context(), items)[0].Deadline; d != 0 {
		t.Errorf("deadline %d of a context without one", d)
	}
	earlier, later := deadline.Add(-time.Second), deadline.Add(time.Second)
	items = []infer.Item{{Deadline: earlier}, {Deadline: later}, {}}
	for i, want := range []time.Time{earlier, deadline, deadline} { // the earlier one of its own and the batch's
		if d := frameItems(ctx, items)[i].Deadline; d != want.UnixNano() {
			t.Errorf("item %d: deadline %d, want %d", i, d, want.UnixNano())
		}
	}
	if d := frameItems(t.Context(), items)[1].Deadline; d != later.UnixNano() {
		t.Errorf("deadline %d of an item with its own", d)
	}
}

func TestFailedResults(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		reason frame.Reason
		status uint32
		kind   fault.Kind
		http   int
	}{
		{frame.ReasonHandlerFailed, 0, fault.HandlerFailed, 503},
		{frame.ReasonHandlerFailed, 404, fault.HandlerFailed, 404},
		{frame.ReasonOutOfMemory, 0, fault.HandlerFailed, 507},
		{frame.ReasonOutOfMemory, 500, fault.HandlerFailed, 500},
		{frame.ReasonInvalidOutput, 0, fault.HandlerFailed, 503},
		{frame.ReasonTooLarge, 0, fault.ResponseTooLarge, 500},
		{frame.ReasonInternal, 0, fault.Internal, 500},
		{"of a later version", 0, fault.Internal, 500},
	} {
		in := []frame.Result{{Status: tc.status, Failure: &frame.Failure{Reason: tc.reason, Message: "m", Detail: "d"}}, {Body: []byte("ok")}}
		got := inferResults(in, 0)
		if k, s := fault.KindOf(got[0].Err), fault.HTTPStatus(got[0].Err); k != tc.kind || s != tc.http || fault.Message(got[0].Err) != "m" {
			t.Errorf("%s %d: %v, status %d", tc.reason, tc.status, got[0].Err, s)
		}
		failed, is := errors.AsType[*fault.Error](got[0].Err)
		if !is || (failed.Hint == "d") != (tc.reason == frame.ReasonInvalidOutput) { // an exception's words are for the log only
			t.Errorf("%s: the client is told %+v", tc.reason, failed)
		}
		if got[1].Err != nil || string(got[1].Body) != "ok" {
			t.Errorf("%s: the neighbour failed: %v", tc.reason, got[1].Err)
		}
	}
	e := loadFault(&backendv1.LoadFailure{Message: "m", Detail: "d", OutOfMemory: true})
	if fault.KindOf(e) != fault.LoadFailed || fault.HTTPStatus(e) != 507 {
		t.Errorf("%v, status %d", e, fault.HTTPStatus(e))
	}
}
