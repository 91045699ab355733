// Package fault is the one vocabulary of what can go wrong, and what each caller is told about it.
package fault

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Kind says what went wrong. The table in status.go says what each protocol makes of it.
type Kind int

// The kinds. Their order is not part of any interface.
const (
	Internal           Kind = iota // a bug, or something unforeseen
	BadRequest                     // the request cannot be understood
	BadEscape                      // a percent escape in the path is wrong
	BadForm                        // a form body cannot be decoded
	BadJSON                        // a JSON body of the management API cannot be decoded
	RouteNotFound                  // no such route
	MethodNotAllowed               // the route exists, the method does not
	ModelNotFound                  // no model of that name, or no archive at that place
	VersionNotFound                // the model has no such version
	InvalidKey                     // token authorization failed
	TooLarge                       // the request body is over the limit
	Conflict                       // the version is registered already
	InvalidModel                   // the archive cannot be used
	InvalidVersion                 // the operation is not allowed on that version
	DownloadFailed                 // an archive could not be fetched
	DependencyFailed               // a model's requirements could not be installed
	StartFailed                    // a worker's process did not come up
	LoadFailed                     // the handler refused to load
	NoDevices                      // the version wants more GPUs than there are
	NoWorker                       // the version has no workers at all
	Overloaded                     // the queue is full, by items or by bytes
	Draining                       // the server or the version is shutting down
	HandlerFailed                  // the handler raised, or answered what cannot be sent; Code tells
	ResponseTooLarge               // the handler's answer is over the limit
	ResponseTimeout                // the worker did not answer within its response timeout
	ClientTimeout                  // the time that the client was given is over
	BackendDied                    // the worker's process ended while it had the request
	BackendOutOfMemory             // the same, and there is evidence that memory ran out
	MemoryGuard                    // new workers would not fit into memory
	Cancelled                      // the client went away
	Poisoned                       // the same request has ended workers a moment ago
	NoReadyWorker                  // the queue is full, and none of the workers is ready: they start, or start again
	ConcurrencyLimit               // the version has as many requests as it may have at the same time
	ClientShare                    // one client has its share of the queue, and others want the rest
	ServerBytes                    // the server holds as many bytes of requests as it may, of all models
	QueueTimeout                   // the time that the client was given is over, and no worker had taken the request
	kinds                          // their number
)

// Error is an error with a kind. Message is for the client, Detail (a traceback, a worker's last words) is for the log only.
type Error struct {
	Kind    Kind
	Message string
	Detail  string
	Hint    string // what the reader can do about it, "" if nothing
	Code    int    // HTTP status that overrides the table's; 0 for the table's
	Cause   error

	Numbers    []Number      // that are behind it, in the order in which they are told
	Setting    string        // the setting that would change it, and where that is; "" if there is none
	RetryAfter time.Duration // when the same request may succeed, counted from now; 0 when that is not known
}

// New makes an error of a kind. cause may be nil.
func New(kind Kind, message string, cause error) *Error {
	return &Error{Kind: kind, Message: message, Cause: cause}
}

// Newf is New with a formatted message and no cause.
func Newf(kind Kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// Error gives the message and the cause.
func (e *Error) Error() string {
	if e.Cause != nil {
		return e.Message + ": " + e.Cause.Error()
	}
	return e.Message
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Cause }

// KindOf gives the kind of the first Error in err's chain, Internal if there is none.
func KindOf(err error) Kind {
	if f, ok := errors.AsType[*Error](err); ok {
		return f.Kind
	}
	return Internal
}

// Is says whether err's kind is one of kinds.
func Is(err error, kinds ...Kind) bool {
	var f *Error
	if !errors.As(err, &f) {
		return false
	}
	return slices.Contains(kinds, f.Kind)
}
