package host

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
)

func loadRequest(m backend.LoadSpec) *backendv1.LoadRequest {
	req := &backendv1.LoadRequest{
		ModelName: m.Model.Name, ModelVersion: m.Model.Version, ModelDir: m.Dir,
		Handler: m.Handler, Envelope: m.Envelope,
		BatchSize:           int32(m.BatchSize),
		LimitMaxImagePixels: m.LimitMaxImagePixels,
		MaxResponseBytes:    m.MaxResponseBytes,
		FramesFd:            backendv1.FramesFD,
	}
	if m.GPU != backend.NoGPU {
		gpu := int32(m.GPU)
		req.Gpu = &gpu
	}
	return req
}

// description reads what a backend says about its model; without that it is nil.
func description(text []byte) (*backend.Description, error) {
	if len(text) == 0 {
		return nil, nil //nolint:nilnil // saying nothing is no error
	}
	d := &backend.Description{}
	if err := json.Unmarshal(text, d); err != nil {
		return nil, err
	}
	return d, nil
}

func loadFault(f *backendv1.LoadFailure) error {
	e := fault.New(fault.LoadFailed, f.GetMessage(), nil)
	e.Detail = f.GetDetail()
	if f.GetOutOfMemory() {
		e.Code = outOfMemoryStatus()
	}
	return e
}

// outOfMemoryStatus is the HTTP status for memory that ran out while the process lives on.
func outOfMemoryStatus() int { return fault.HTTPStatus(&fault.Error{Kind: fault.BackendOutOfMemory}) }

// frameItems makes the items of a batch frame, each with the earlier one of its own deadline and that of ctx. The payloads are not copied.
func frameItems(ctx context.Context, items []infer.Item) []frame.Item {
	end, bounded := ctx.Deadline()
	out := make([]frame.Item, len(items))
	for i := range items {
		it := &items[i]
		out[i] = frame.Item{
			ID: it.ID, Deadline: deadlineOf(it.Deadline, end, bounded),
			Header: make([]frame.Field, len(it.Header)), Parts: make([]frame.Part, len(it.Parts)),
		}
		for n, h := range it.Header {
			out[i].Header[n] = frame.Field(h)
		}
		for n, p := range it.Parts {
			out[i].Parts[n] = frame.Part(p)
		}
	}
	return out
}

// deadlineOf is a deadline as frames have it: own or that of the batch, 0 for none.
func deadlineOf(own, batch time.Time, bounded bool) int64 {
	switch {
	case !own.IsZero() && (!bounded || own.Before(batch)):
		return own.UnixNano()
	case bounded:
		return batch.UnixNano()
	}
	return 0
}

// inferResults makes results of a results frame. maxBytes is the largest body that is accepted, 0 for any.
func inferResults(in []frame.Result, maxBytes int64) []infer.Result {
	out := make([]infer.Result, len(in))
	for i := range in {
		r := &in[i]
		out[i] = infer.Result{Status: int(r.Status), Header: make([]infer.Field, len(r.Header))}
		for n, h := range r.Header {
			out[i].Header[n] = infer.Field(h)
		}
		switch {
		case r.Failure != nil:
			out[i].Err = resultFault(r)
		case maxBytes > 0 && int64(len(r.Body)) > maxBytes:
			out[i].Err = tooLarge(fmt.Sprintf("the model's answer has %d bytes, over the limit of %d", len(r.Body), maxBytes))
		default:
			out[i].Body = r.Body
		}
	}
	return out
}

// resultFault is what a failed result means to its client.
func resultFault(r *frame.Result) error {
	f := fault.New(fault.HandlerFailed, r.Failure.Message, nil)
	switch r.Failure.Reason {
	case frame.ReasonHandlerFailed:
	case frame.ReasonInvalidOutput:
		f.Hint = r.Failure.Detail // what it has returned, in one line: nothing of an exception's
	case frame.ReasonOutOfMemory:
		f.Code = outOfMemoryStatus()
	case frame.ReasonTooLarge:
		return tooLarge(r.Failure.Message)
	case frame.ReasonInternal:
		f.Kind = fault.Internal
	default: // a reason of a later version
		f.Kind = fault.Internal
	}
	f.Detail = r.Failure.Detail
	if r.Status != 0 {
		f.Code = int(r.Status)
	}
	return f
}

func tooLarge(message string) error {
	f := fault.New(fault.ResponseTooLarge, message, nil)
	f.Hint = "Raise max_response_size, or let the handler answer with less."
	return f
}
