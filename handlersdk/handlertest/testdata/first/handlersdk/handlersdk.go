// Package handlersdk lets an author write a backend for the Flambeau model server in Go: implement Handler, and call Serve
// in main. The program is started by the server, one process for each worker.
package handlersdk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Handler runs a model. Its methods are never called at the same time.
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
