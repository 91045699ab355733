package httpapi

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// Statuses that are not errors, and those that only HTTP itself has a use for. What errors are answered with is internal/fault's.
const (
	statusOK              = 200
	statusAccepted        = 202
	statusNoContent       = 204
	statusResetContent    = 205
	statusNotModified     = 304
	statusExpectation     = 417
	statusNotImplemented  = 501
	statusUnsupported     = 415
	statusUnavailable     = 503
	firstErrorStatus      = 400 // from here on TorchServe closes the connection
	firstServerError      = 500
	lowestStatus          = 200 // of an answer's end
	highestStatus         = 999
	statusTooLarge        = 413
	statusOutOfResources  = 507
	reasonHeader          = "X-Flambeau-Reason"
	hintHeader            = "X-Flambeau-Hint"
	invalidMessage        = "Invalid HTTP message."
	notFoundMessage       = "Requested resource is not found, please refer to API document."
	methodMessage         = "Requested method is not allowed, please refer to API document."
	illegalArgumentStatus = 403
)

// problem is an answer's error in TorchServe's terms: where its words are a Java exception's, they cannot come from fault's table.
type problem struct {
	status    int
	exception string
	message   string
	reason    string
	hint      string
	retryable bool
	cause     error

	behind
}

// Error gives the message.
func (p *problem) Error() string { return p.message }

// Unwrap gives the error that the problem was made of.
func (p *problem) Unwrap() error { return p.cause }

// javaError is a problem that TorchServe reports by a Java exception.
func javaError(kind fault.Kind, status int, exception, message string) *problem {
	return &problem{status: status, exception: exception, message: message, reason: kind.String()}
}

func notFound() error { return fault.New(fault.RouteNotFound, notFoundMessage, nil) }

func methodNotAllowed() error { return fault.New(fault.MethodNotAllowed, methodMessage, nil) }

// problemOf makes a problem of any error.
func problemOf(err error) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	p = &problem{
		status: fault.HTTPStatus(err), exception: fault.Exception(err), message: fault.Message(err),
		reason: fault.KindOf(err).String(), retryable: fault.Retryable(err), cause: err, behind: behindOf(err),
	}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		p.hint = f.Hint
	} else { // a bug's words are for the log
		p.message = "Internal error."
	}
	switch {
	case p.status == statusTooLarge: // TorchServe keeps 413 for what it says itself
		p.status = statusOutOfResources
	case p.status < lowestStatus || p.status > highestStatus: // what no HTTP client could read as an answer
		p.hint = fmt.Sprintf("The handler asked for status %d, which is none of an HTTP answer.", p.status)
		p.status = fault.HTTPStatus(fault.New(fault.Internal, "", nil))
	}
	return p
}

// unavailable gives a refusal TorchServe's words, which blame missing workers whatever the reason. The reason and the hint say
// what is true.
func unavailable(err error, ref infer.ModelRef, request, more string) error {
	if !fault.Is(err, fault.NoWorker, fault.NoReadyWorker, fault.Overloaded, fault.Draining) {
		return err
	}
	p := problemOf(err)
	if p.hint == "" && fault.KindOf(err) != fault.NoWorker {
		p.hint = p.message
	}
	of := `"` + ref.Name + `"`
	if ref.Version != "" {
		of = `"` + ref.Name + `" Version ` + ref.Version + `"`
	}
	p.message = "Model " + of + " has no worker to serve " + request + " request. Please use scale workers API to add workers." + more
	return p
}

// errorJSON is TorchServe's error object.
func errorJSON(p *problem) []byte {
	b := make([]byte, 0, 64+len(p.exception)+len(p.message))
	b = append(b, "{\n  \"code\": "...)
	b = strconv.AppendInt(b, int64(p.status), 10)
	b = append(b, ",\n  \"type\": "...)
	b = appendJSONString(b, p.exception)
	b = append(b, ",\n  \"message\": "...)
	b = appendJSONString(b, p.message)
	return append(b, "\n}\n"...)
}

// protocolErrorJSON is the same with the member that clients of the Open Inference Protocol read, and what is known of a refusal. id is the request's.
func protocolErrorJSON(p *problem, id string) []byte {
	b := appendJSONString([]byte("{\n  \"error\": "), p.message)
	return appendRefusal(append(append(b, ",\n  "...), errorJSON(p)[len("{\n  "):]...), p, id)
}

// appendJSONString writes a string as TorchServe does: nothing escaped but what must be, and the two line separators.
func appendJSONString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r == '\b':
			b = append(b, `\b`...)
		case r == '\f':
			b = append(b, `\f`...)
		case r < ' ' || r == '\u2028' || r == '\u2029':
			b = append(b, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

// detailOf is what an error knows that only the log may say.
func detailOf(err error) string {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f.Detail
	}
	return ""
}
