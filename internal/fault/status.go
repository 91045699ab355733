package fault

import (
	"errors"
	"net/http"

	"google.golang.org/grpc/codes"
)

// row is what the protocols make of a kind.
type row struct {
	name      string     // the reason, as in logs, metrics and answers
	http      int        // HTTP status
	grpc      codes.Code // gRPC status
	exception string     // "type" in TorchServe's error JSON
	retryable bool       // whether the same request may succeed a moment later
}

// table has one row for each kind: the only place that translates kinds.
var table = [kinds]row{
	Internal:           {"internal", http.StatusInternalServerError, codes.Internal, "InternalServerException", false},
	BadRequest:         {"bad_request", http.StatusBadRequest, codes.InvalidArgument, "BadRequestException", false},
	BadEscape:          {"bad_escape", http.StatusForbidden, codes.InvalidArgument, "IllegalArgumentException", false},
	BadForm:            {"bad_form", http.StatusInternalServerError, codes.InvalidArgument, "ErrorDataDecoderException", false},
	BadJSON:            {"bad_json", http.StatusInternalServerError, codes.InvalidArgument, "JsonSyntaxException", false},
	RouteNotFound:      {"route_not_found", http.StatusNotFound, codes.Unimplemented, "ResourceNotFoundException", false},
	MethodNotAllowed:   {"method_not_allowed", http.StatusMethodNotAllowed, codes.PermissionDenied, "MethodNotAllowedException", false},
	ModelNotFound:      {"model_not_found", http.StatusNotFound, codes.NotFound, "ModelNotFoundException", false},
	VersionNotFound:    {"version_not_found", http.StatusNotFound, codes.NotFound, "ModelVersionNotFoundException", false},
	InvalidKey:         {"invalid_key", http.StatusBadRequest, codes.PermissionDenied, "InvalidKeyException", false},
	TooLarge:           {"too_large", http.StatusRequestEntityTooLarge, codes.ResourceExhausted, "RequestEntityTooLargeException", false},
	Conflict:           {"conflict", http.StatusConflict, codes.AlreadyExists, "ConflictStatusException", false},
	InvalidModel:       {"invalid_model", http.StatusBadRequest, codes.InvalidArgument, "InvalidModelException", false},
	InvalidVersion:     {"invalid_version", http.StatusForbidden, codes.FailedPrecondition, "InvalidModelVersionException", false},
	DownloadFailed:     {"download_failed", http.StatusBadRequest, codes.InvalidArgument, "DownloadArchiveException", true},
	DependencyFailed:   {"dependency_failed", http.StatusBadRequest, codes.InvalidArgument, "ModelException", false},
	StartFailed:        {"start_failed", http.StatusInternalServerError, codes.Internal, "InternalServerException", true},
	LoadFailed:         {"load_failed", http.StatusInternalServerError, codes.Internal, "InternalServerException", false},
	NoDevices:          {"no_devices", http.StatusInternalServerError, codes.Internal, "WorkerInitializationException", false},
	NoWorker:           {"no_worker", http.StatusServiceUnavailable, codes.Unavailable, "ServiceUnavailableException", true},
	Overloaded:         {"queue_full", http.StatusServiceUnavailable, codes.ResourceExhausted, "ServiceUnavailableException", true},
	Draining:           {"draining", http.StatusServiceUnavailable, codes.Unavailable, "ServiceUnavailableException", true},
	HandlerFailed:      {"handler_failed", http.StatusServiceUnavailable, codes.Unavailable, "InternalServerException", false},
	ResponseTooLarge:   {"response_too_large", http.StatusInternalServerError, codes.ResourceExhausted, "InternalServerException", false},
	ResponseTimeout:    {"response_timeout", http.StatusInternalServerError, codes.DeadlineExceeded, "InternalServerException", false},
	ClientTimeout:      {"client_timeout", http.StatusGatewayTimeout, codes.DeadlineExceeded, "InternalServerException", true},
	BackendDied:        {"worker_died", http.StatusInternalServerError, codes.Internal, "InternalServerException", true},
	BackendOutOfMemory: {"worker_out_of_memory", http.StatusInsufficientStorage, codes.ResourceExhausted, "InternalServerException", true},
	MemoryGuard:        {"memory_guard", http.StatusInsufficientStorage, codes.ResourceExhausted, "InternalServerException", true},
	Cancelled:          {"cancelled", statusClientClosed, codes.Canceled, "InternalServerException", false},
	Poisoned:           {"poisoned", http.StatusInternalServerError, codes.Internal, "InternalServerException", false},
	NoReadyWorker:      {"no_ready_worker", http.StatusServiceUnavailable, codes.Unavailable, "ServiceUnavailableException", true},
	ConcurrencyLimit:   {"concurrency_limit", http.StatusServiceUnavailable, codes.ResourceExhausted, "ServiceUnavailableException", true},
	ClientShare:        {"client_share", http.StatusTooManyRequests, codes.ResourceExhausted, "ServiceUnavailableException", true},
	ServerBytes:        {"server_bytes", http.StatusServiceUnavailable, codes.ResourceExhausted, "ServiceUnavailableException", true},
	QueueTimeout:       {"queue_timeout", http.StatusGatewayTimeout, codes.DeadlineExceeded, "InternalServerException", true},
}

// statusClientClosed is what nginx made the custom for a client that went away; nobody is left to read it but the log.
const statusClientClosed = 499

// String is the kind's reason: the same word in the log, the metric and the answer.
func (k Kind) String() string { return table[k].name }

// Kinds lists all the kinds.
func Kinds() []Kind {
	all := make([]Kind, kinds)
	for i := range all {
		all[i] = Kind(i)
	}
	return all
}

// HTTPStatus is the status that err is answered with over HTTP.
func HTTPStatus(err error) int {
	var f *Error
	if errors.As(err, &f) && f.Code != 0 {
		return f.Code
	}
	return table[KindOf(err)].http
}

// GRPCCode is the code that err is answered with over gRPC: that of the HTTP status which overrides the table's, as TorchServe translates those that
// handlers give.
func GRPCCode(err error) codes.Code {
	if f, ok := errors.AsType[*Error](err); ok && f.Code != 0 {
		return codeOf(f.Code)
	}
	return table[KindOf(err)].grpc
}

// codeOf translates an HTTP status.
func codeOf(status int) codes.Code {
	switch status {
	case http.StatusBadRequest:
		return codes.InvalidArgument
	case http.StatusUnauthorized:
		return codes.Unauthenticated
	case http.StatusForbidden:
		return codes.PermissionDenied
	case http.StatusNotFound:
		return codes.NotFound
	case http.StatusConflict:
		return codes.Aborted
	case http.StatusRequestEntityTooLarge, http.StatusTooManyRequests:
		return codes.ResourceExhausted
	case http.StatusRequestedRangeNotSatisfiable:
		return codes.OutOfRange
	case statusClientClosed:
		return codes.Canceled
	case http.StatusNotImplemented:
		return codes.Unimplemented
	case http.StatusServiceUnavailable:
		return codes.Unavailable
	case http.StatusGatewayTimeout:
		return codes.DeadlineExceeded
	}
	switch status / 100 {
	case 4:
		return codes.FailedPrecondition
	case 5:
		return codes.Internal
	}
	return codes.Unknown
}

// KindOfCode gives the kind of a failure that gRPC itself has found: a message that is too large, a method that there is not.
func KindOfCode(code codes.Code) Kind {
	switch code { //nolint:exhaustive // others are its bugs, or ours
	case codes.ResourceExhausted:
		return TooLarge
	case codes.Unimplemented:
		return RouteNotFound
	case codes.Canceled:
		return Cancelled
	case codes.DeadlineExceeded:
		return ClientTimeout
	case codes.InvalidArgument:
		return BadRequest
	case codes.Unavailable:
		return Draining
	}
	return Internal
}

// Exception is the "type" of TorchServe's error JSON for err.
func Exception(err error) string { return table[KindOf(err)].exception }

// Retryable says whether the same request may succeed a moment later.
func Retryable(err error) bool { return table[KindOf(err)].retryable }

// Message is what the client reads: the first Error's message, without causes or details.
func Message(err error) string {
	if f, ok := errors.AsType[*Error](err); ok {
		return f.Message
	}
	return err.Error()
}
