// Package frame is the encoding of the batches and results that cross the process border on the Execute stream
// (docs/protocol.md), and the gRPC codec that sends frames as they are.
package frame

import (
	"errors"
)

// Kind says what a frame is. Receivers ignore kinds that they do not know.
type Kind uint8

// The kinds of frames.
const (
	KindBatch   Kind = 1 // to the backend: a batch to run
	KindResults Kind = 2 // to the server: the batch's answers; the batch is over
	KindPiece   Kind = 3 // to the server: an intermediate answer to every item of the batch
	KindCancel  Kind = 4 // to the backend: nobody waits for the batch any more
)

// Head begins every frame.
type Head struct {
	Kind    Kind
	Flags   uint8 // none are known yet; receivers ignore the others
	Count   uint32
	BatchID uint64
}

// Field is one header.
type Field struct{ Name, Value string }

// Part is one named value of an item.
type Part struct {
	Name, ContentType string
	Data              []byte
}

// Item is one request of a batch.
type Item struct {
	ID       string
	Deadline int64 // Unix time in nanoseconds, 0 for none
	Header   []Field
	Parts    []Part
}

// Reason says why a result failed.
type Reason string

// The reasons of the protocol. A receiver treats another one as ReasonInternal.
const (
	ReasonHandlerFailed Reason = "handler_failed"     // the handler raised, or asked for an error answer
	ReasonOutOfMemory   Reason = "out_of_memory"      // memory of the machine or of the device ran out
	ReasonInvalidOutput Reason = "invalid_output"     // the handler answered what cannot be sent
	ReasonTooLarge      Reason = "response_too_large" // the answer is over LoadRequest.max_response_bytes
	ReasonInternal      Reason = "internal"           // a bug of the backend, not of the handler
)

// Failure tells why an item has no answer.
type Failure struct {
	Reason  Reason
	Message string // for the client
	Detail  string // for the log, for instance a traceback
}

// Result is the answer to one item.
type Result struct {
	Status  uint32 // HTTP status that the handler set, 0 for none
	Header  []Field
	Body    []byte   // of an answered item
	Failure *Failure // nil for an answered item
}

// ErrMalformed is wrapped by the errors of everything that decodes.
var ErrMalformed = errors.New("malformed frame")

// Sizes in bytes. The smallest sizes bound what a count may claim before anything is allocated for it.
const (
	headSize      = 16
	minFieldSize  = 4 + 4
	minPartSize   = 4 + 4 + 8
	minItemSize   = 4 + 8 + 4 + 4
	minResultSize = 1 + 4 + 4 + 8
)

// The outcomes of a result.
const (
	outcomeAnswered = 0
	outcomeFailed   = 1
)
