package handlersdk

import (
	"errors"
	"time"

	backendv1 "github.com/flambeau-serve/flambeau/handlersdk/handlertest/testdata/first/backendv1"
	"github.com/flambeau-serve/flambeau/handlersdk/handlertest/testdata/first/frame"
)

func modelFrom(req *backendv1.LoadRequest) Model {
	m := Model{
		Name: req.GetModelName(), Version: req.GetModelVersion(), Dir: req.GetModelDir(),
		Handler: req.GetHandler(), Envelope: req.GetEnvelope(), GPU: NoGPU,
		BatchSize:           int(req.GetBatchSize()),
		LimitMaxImagePixels: req.GetLimitMaxImagePixels(),
		MaxResponseBytes:    req.GetMaxResponseBytes(),
	}
	if req.Gpu != nil {
		m.GPU = int(req.GetGpu())
	}
	return m
}

func itemsFrom(in []frame.Item) []Item {
	out := make([]Item, len(in))
	for i := range in {
		it := &in[i]
		out[i] = Item{ID: it.ID, Header: make([]Field, len(it.Header)), Parts: make([]Part, len(it.Parts))}
		if it.Deadline != 0 {
			out[i].Deadline = time.Unix(0, it.Deadline)
		}
		for n, h := range it.Header {
			out[i].Header[n] = Field(h)
		}
		for n, p := range it.Parts {
			out[i].Parts[n] = Part(p)
		}
	}
	return out
}

func resultsTo(in []Result) []frame.Result {
	out := make([]frame.Result, len(in))
	for i := range in {
		out[i] = frame.Result{Status: uint32(max(0, in[i].Status)), Header: make([]frame.Field, len(in[i].Header))}
		for n, h := range in[i].Header {
			out[i].Header[n] = frame.Field(h)
		}
		if in[i].Err == nil {
			out[i].Body = in[i].Body
			continue
		}
		status, failure := failureTo(in[i].Err)
		out[i].Failure = failure
		if status != 0 {
			out[i].Status = status
		}
	}
	return out
}

// Texts that TorchServe answers with; clients may look for them.
const (
	textFailed      = "Prediction failed"
	textOutOfMemory = "Out of resources"
	textMismatch    = "number of batch response mismatched"
)

// failureTo tells the client what the author meant to tell, and the log everything.
func failureTo(err error) (status uint32, f *frame.Failure) {
	var stated *StatusError
	switch {
	case errors.As(err, &stated):
		return uint32(max(0, stated.Status)), &frame.Failure{Reason: frame.ReasonHandlerFailed, Message: stated.Text, Detail: err.Error()}
	case errors.Is(err, ErrOutOfMemory):
		return 0, &frame.Failure{Reason: frame.ReasonOutOfMemory, Message: textOutOfMemory, Detail: err.Error()}
	default:
		return 0, &frame.Failure{Reason: frame.ReasonHandlerFailed, Message: textFailed, Detail: err.Error()}
	}
}

// allFailed is one failure for a whole batch.
func allFailed(n int, status uint32, f *frame.Failure) []frame.Result {
	out := make([]frame.Result, n)
	for i := range out {
		out[i] = frame.Result{Status: status, Failure: f}
	}
	return out
}
