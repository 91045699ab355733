package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/flambeau-serve/flambeau/handlersdk/pluginserver"
	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
)

// The kinds of jobs, as flambeau_take gives them.
const (
	kindStop   = 0
	kindLoad   = 1
	kindBatch  = 2
	kindUnload = 3
)

// job is something for the caller of flambeau_take to do.
type job struct {
	id   uint64
	kind int
	data []byte
	give func(answer []byte, last bool) error
	pin  runtime.Pinner // keeps data in place while C has its address
	done chan struct{}  // closed at the last give
	err  error          // what was wrong with the last give; set before done is closed
}

// library turns what the server asks for into jobs, and answers into what the server waits for.
type library struct {
	jobs    chan *job     // unbuffered: a job that nobody has taken can be withdrawn
	stopped chan struct{} // closed by stop

	mu   sync.Mutex // guards the fields below
	last uint64     // id of the last job that was taken
	live map[uint64]*job
}

var _ pluginserver.Backend = (*library)(nil)

func newLibrary() *library {
	return &library{jobs: make(chan *job), stopped: make(chan struct{}), live: make(map[uint64]*job)}
}

// stop lets take return without a job, now and from now on.
func (l *library) stop() { close(l.stopped) }

// take waits for the next job; nil means that no more will come.
func (l *library) take() *job {
	select {
	case j := <-l.jobs:
		if len(j.data) > 0 {
			j.pin.Pin(&j.data[0])
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.last++
		j.id = l.last
		l.live[j.id] = j
		return j
	case <-l.stopped:
		return nil
	}
}

// give hands in an answer of a job that was taken.
func (l *library) give(id uint64, answer []byte, last bool) error {
	l.mu.Lock()
	j := l.live[id]
	if last {
		delete(l.live, id)
	}
	l.mu.Unlock()
	if j == nil {
		return fmt.Errorf("flambeau_give: there is no job %d, or its last answer was given before", id)
	}
	err := j.give(answer, last)
	if last {
		j.pin.Unpin()
		j.err = err
		close(j.done)
	}
	return err
}

// do waits until a job was taken and answered. When ctx ends first, the job is withdrawn; what its taker still gives is
// given to nobody.
func (l *library) do(ctx context.Context, kind int, data []byte, give func([]byte, bool) error) error {
	j := &job{kind: kind, data: data, give: give, done: make(chan struct{})}
	select {
	case l.jobs <- j:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-j.done:
		return j.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run implements pluginserver.Backend.
func (l *library) Run(ctx context.Context, batch []byte, give pluginserver.Give) error {
	want, err := frame.DecodeHead(batch)
	if err != nil {
		return err
	}
	return l.do(ctx, kindBatch, batch, func(answer []byte, last bool) error {
		// A frame that the server cannot read would end the stream, and the process with it.
		head, results, err := frame.DecodeResults(answer)
		switch {
		case err != nil:
		case head.BatchID != want.BatchID:
			err = fmt.Errorf("the answer is to batch %d, the job is batch %d", head.BatchID, want.BatchID)
		case last != (head.Kind == frame.KindResults):
			err = fmt.Errorf("last is %t with a frame of kind %d", last, head.Kind)
		case head.Count != want.Count:
			err = fmt.Errorf("%d results for %d items", len(results), want.Count)
		default:
			return give(last, frame.Buffers{answer})
		}
		return err
	})
}

// loadJob is what a load job carries: the fields of LoadRequest by their names in the proto file.
type loadJob struct {
	ModelName           string `json:"model_name"`
	ModelVersion        string `json:"model_version"`
	ModelDir            string `json:"model_dir"`
	Handler             string `json:"handler"`
	Envelope            string `json:"envelope"`
	GPU                 *int32 `json:"gpu"`
	BatchSize           int32  `json:"batch_size"`
	LimitMaxImagePixels bool   `json:"limit_max_image_pixels"`
	MaxResponseBytes    int64  `json:"max_response_bytes"`
}

// loadAnswer is what a load job is answered with.
type loadAnswer struct {
	Features []string `json:"features"`
	Failure  *struct {
		Message     string `json:"message"`
		Detail      string `json:"detail"`
		OutOfMemory bool   `json:"out_of_memory"`
	} `json:"failure"`
}

// Load implements pluginserver.Backend.
func (l *library) Load(ctx context.Context, req *backendv1.LoadRequest) (*backendv1.LoadResponse, error) {
	data, err := json.Marshal(loadJob{
		ModelName: req.GetModelName(), ModelVersion: req.GetModelVersion(), ModelDir: req.GetModelDir(),
		Handler: req.GetHandler(), Envelope: req.GetEnvelope(), GPU: req.Gpu,
		BatchSize: req.GetBatchSize(), LimitMaxImagePixels: req.GetLimitMaxImagePixels(), MaxResponseBytes: req.GetMaxResponseBytes(),
	})
	if err != nil {
		return nil, err
	}
	var resp *backendv1.LoadResponse
	err = l.do(ctx, kindLoad, data, func(answer []byte, last bool) error {
		var a loadAnswer
		if !last {
			return errors.New("the answer to a load has no pieces")
		}
		if err := json.Unmarshal(answer, &a); err != nil {
			return fmt.Errorf("the answer to a load is no JSON object as it should be: %w", err)
		}
		resp = &backendv1.LoadResponse{Features: a.Features}
		if f := a.Failure; f != nil {
			resp.Failure = &backendv1.LoadFailure{Message: f.Message, Detail: f.Detail, OutOfMemory: f.OutOfMemory}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// Unload implements pluginserver.Backend.
func (l *library) Unload(ctx context.Context) error {
	return l.do(ctx, kindUnload, nil, func([]byte, bool) error { return nil })
}
