// Package handlersdk lets an author write a backend for the Flambeau model server in Go: implement Handler, and call Serve
// in main. The program is started by the server, one process for each worker.
package handlersdk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
)

// Handler runs a model. Its methods are never called at the same time, unless it is Concurrent.
type Handler interface {
	// Initialize gets the model ready; nothing is handled before it has returned nil.
	Initialize(ctx context.Context, m Model) error
	// Handle answers a batch: one result for each item, in their order. An error answers them all. ctx ends when nobody
	// waits for the batch any more. What Handle has returned must not be changed afterwards.
	Handle(ctx context.Context, items []Item) ([]Result, error)
}

// WarmUpper is a Handler that runs once by itself before it is given to clients.
type WarmUpper interface {
	// WarmUp is called after Initialize. An error fails the load.
	WarmUp(ctx context.Context) error
}

// Closer is a Handler that holds something to be closed at the end.
type Closer interface {
	// Close is called once, when nothing is being handled any more. It is not called when the process is killed.
	Close() error
}

// Streamer is a Handler that can answer in pieces.
type Streamer interface {
	Handler
	// HandleStream is called in place of Handle. Before it returns it may give pieces of the answers by emit; what it returns ends each answer, and may
	// be empty then. ctx ends when nobody reads any more.
	HandleStream(ctx context.Context, items []Item, emit Emit) ([]Result, error)
}

// Emit gives a piece of the answer to the item at index, at once. Status and headers count in an answer's first piece, and a piece without body and
// headers is dropped. An error means that the server cannot be reached, or that there is no such item.
type Emit func(index int, piece Result) error

// Concurrent is a Handler that handles several batches at the same time, each in a goroutine of its own. The server bounds their number.
type Concurrent interface {
	Handler
	// Concurrent is asked once, after Initialize.
	Concurrent() bool
}

// Overlapping is a Handler that may be called while it handles another batch, in a goroutine of its own: it reads the next requests while the model runs,
// say, and keeps the model to one batch at a time by itself. Where batches are of one request and the model has one worker, the server sends the next
// one ahead then: the worker need not wait for it.
type Overlapping interface {
	Handler
	// Overlaps is asked once, after Initialize.
	Overlaps() bool
}

// Featured is a Handler with optional abilities that the server knows by name (docs/protocol.md).
type Featured interface {
	// Features is asked once, after Initialize.
	Features() []string
}

// FeatureOIPBinary says that a request of the Open Inference Protocol may be handed over as it came: the part "body" is JSON, or JSON and raw tensors
// behind it if the item has the header inference-header-content-length, and the answer has the same form.
const FeatureOIPBinary = backendv1.FeatureOIPBinary

// Describer is a Handler that tells what its model takes and gives. Clients of the Open Inference Protocol ask for that.
type Describer interface {
	// Describe is called once, after Initialize.
	Describe() Description
}

// Description is what a model takes and gives, in the words of the Open Inference Protocol.
type Description struct {
	Platform string              `json:"platform,omitempty"`  // for instance onnxruntime_onnx; "" for none
	MaxBatch int                 `json:"max_batch,omitempty"` // rows that an input may have; 0: no input has a dimension for them
	Inputs   []Port              `json:"inputs,omitempty"`
	Outputs  []Port              `json:"outputs,omitempty"`
	Labels   map[string][]string `json:"labels,omitempty"` // names of the classes, by output
	// Accepts are the media types of the bodies that Handle takes from /predictions, the usual one first: /openapi.json tells them. Nil says nothing.
	Accepts []string `json:"accepts,omitempty"`
}

// Port is one input or output.
type Port struct {
	Name     string       `json:"name"`
	DataType tensor.DType `json:"datatype"`
	Shape    []int64      `json:"shape"` // -1 for a dimension of any size
}

// NoGPU is Model.GPU on a machine or for a model without one.
const NoGPU = -1

// Model says what to load.
type Model struct {
	Name, Version       string
	Dir                 string // the unpacked archive
	Handler             string // as the manifest or the registration names it
	Envelope            string // service envelope, "" for none
	GPU                 int    // device number, NoGPU for CPU
	BatchSize           int    // largest batch that Handle is given
	LimitMaxImagePixels bool   // whether image decoders are to refuse very large images
	MaxResponseBytes    int64  // largest Result.Body that the server accepts; 0 for no limit
}

// Field is one header.
type Field struct{ Name, Value string }

// Part is one named value of a request: the body, or a field of a form. ContentType is "" when the data is not to be decoded.
type Part struct {
	Name, ContentType string
	Data              []byte
}

// Item is one request of a batch.
type Item struct {
	ID       string    // the request id
	Deadline time.Time // when nobody waits for the answer any more; zero for none
	Header   []Field   // in the order sent, duplicates kept
	Parts    []Part    // in the order sent, duplicates kept
}

// Part gives the last part of a name.
func (i *Item) Part(name string) (Part, bool) {
	for _, p := range slices.Backward(i.Parts) {
		if p.Name == name {
			return p, true
		}
	}
	return Part{}, false
}

// Body gives what a request is about, as most TorchServe handlers find it: the part "data" (a form's field), else "body" (the whole request), else the
// first part. Without any part it is empty.
func (i *Item) Body() Part {
	for _, name := range []string{"data", "body"} {
		if p, ok := i.Part(name); ok {
			return p
		}
	}
	if len(i.Parts) > 0 {
		return i.Parts[0]
	}
	return Part{}
}

// Get gives the first value of a header, "" without one. The name may be in any case.
func (i *Item) Get(name string) string {
	for _, h := range i.Header {
		if strings.EqualFold(h.Name, name) {
			return h.Value
		}
	}
	return ""
}

// Result is the answer to one item.
type Result struct {
	Status int     // HTTP status; 0 for 200
	Header []Field // headers of the answer, "content-type" among them
	Body   []byte
	Err    error // set: this item failed, its neighbours did not
}

// ErrOutOfMemory is to be wrapped by an error that means that memory of the machine or of the device ran out.
var ErrOutOfMemory = errors.New("out of memory")

// StatusError is an error that a client is told about: with the HTTP status and the text as they are.
type StatusError struct {
	Status int
	Text   string
	cause  error
}

// Errorf makes a StatusError; a %w verb works as in fmt.Errorf. Other errors reach the log only.
func Errorf(status int, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &StatusError{Status: status, Text: err.Error(), cause: errors.Unwrap(err)}
}

// Error gives the text.
func (e *StatusError) Error() string { return e.Text }

// Unwrap gives what the text's %w wrapped.
func (e *StatusError) Unwrap() error { return e.cause }
