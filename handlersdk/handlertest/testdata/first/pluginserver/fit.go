package pluginserver

import (
	"fmt"

	"github.com/flambeau-serve/flambeau/handlersdk/handlertest/testdata/first/frame"
)

// fit gives f, or when it is larger than maxMessage the same frame with answers replaced by failures: those over maxBody
// (0: no limit), then the largest ones, until it fits. So a large answer costs its own request and not the stream.
func fit(f frame.Buffers, maxMessage int, maxBody int64) (frame.Buffers, error) {
	if f.Len() <= maxMessage {
		return f, nil
	}
	head, results, err := frame.DecodeResults(f.Join())
	if err != nil {
		return nil, err
	}
	for i := range results {
		if maxBody > 0 && int64(len(results[i].Body)) > maxBody {
			tooLarge(&results[i], maxBody)
		}
	}
	for {
		f = frame.EncodeResults(head.Kind, head.BatchID, results)
		if f.Len() <= maxMessage {
			return f, nil
		}
		largest := -1
		for i := range results {
			if size(&results[i]) > tinyResult && (largest < 0 || size(&results[i]) > size(&results[largest])) {
				largest = i
			}
		}
		if largest < 0 {
			return nil, fmt.Errorf("%d results without bodies need %d bytes, over the message limit of %d", len(results), f.Len(), maxMessage)
		}
		tooLarge(&results[largest], int64(maxMessage))
	}
}

// tinyResult is the size that replacing cannot get below.
const tinyResult = 200

func size(r *frame.Result) int {
	n := len(r.Body)
	for _, h := range r.Header {
		n += len(h.Name) + len(h.Value)
	}
	if r.Failure != nil {
		n += len(r.Failure.Message) + len(r.Failure.Detail)
	}
	return n
}

func tooLarge(r *frame.Result, limit int64) {
	*r = frame.Result{Failure: &frame.Failure{
		Reason:  frame.ReasonTooLarge,
		Message: fmt.Sprintf("the answer has %d bytes, over the limit of %d", size(r), limit),
	}}
}
