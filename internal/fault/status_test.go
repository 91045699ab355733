package fault

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
)

func TestEveryKindHasItsRow(t *testing.T) {
	names := map[string]Kind{}
	for _, k := range Kinds() {
		r := table[k]
		if r.name == "" || r.http < 400 || r.grpc == codes.OK || r.exception == "" {
			t.Errorf("kind %d: its row is incomplete: %+v", k, r)
		}
		if other, taken := names[r.name]; taken {
			t.Errorf("kinds %d and %d are both called %q", k, other, r.name)
		}
		names[r.name] = k
	}
}

// TestTorchServesAnswers pins what TorchServe 0.12.0 answers in each case.
func TestTorchServesAnswers(t *testing.T) {
	for _, tc := range []struct {
		kind      Kind
		status    int
		exception string
	}{
		{RouteNotFound, 404, "ResourceNotFoundException"},
		{MethodNotAllowed, 405, "MethodNotAllowedException"},
		{ModelNotFound, 404, "ModelNotFoundException"},
		{VersionNotFound, 404, "ModelVersionNotFoundException"},
		{InvalidKey, 400, "InvalidKeyException"},
		{BadRequest, 400, "BadRequestException"},
		{BadEscape, 403, "IllegalArgumentException"},
		{Conflict, 409, "ConflictStatusException"},
		{InvalidModel, 400, "InvalidModelException"},
		{InvalidVersion, 403, "InvalidModelVersionException"},
		{DownloadFailed, 400, "DownloadArchiveException"},
		{NoWorker, 503, "ServiceUnavailableException"},
		{Overloaded, 503, "ServiceUnavailableException"},
		{HandlerFailed, 503, "InternalServerException"},
		{BackendDied, 500, "InternalServerException"},
		{ResponseTimeout, 500, "InternalServerException"},
		{BackendOutOfMemory, 507, "InternalServerException"},
		{MemoryGuard, 507, "InternalServerException"},
		{TooLarge, 413, "RequestEntityTooLargeException"},
	} {
		err := fmt.Errorf("wrapped: %w", New(tc.kind, "m", nil))
		if HTTPStatus(err) != tc.status || Exception(err) != tc.exception {
			t.Errorf("%s: %d %s, want %d %s", tc.kind, HTTPStatus(err), Exception(err), tc.status, tc.exception)
		}
	}
}

func TestCodeOverridesTheTable(t *testing.T) {
	f := New(HandlerFailed, "teapot", nil)
	f.Code = 418
	if got := HTTPStatus(f); got != 418 {
		t.Errorf("%d, want the handler's own 418", got)
	}
}

// TestHandlersStatusesOverGRPC pins how TorchServe translates the statuses that handlers give.
func TestHandlersStatusesOverGRPC(t *testing.T) {
	for status, want := range map[int]codes.Code{
		0: codes.Unavailable, 400: codes.InvalidArgument, 401: codes.Unauthenticated, 403: codes.PermissionDenied, 404: codes.NotFound, 409: codes.Aborted,
		413: codes.ResourceExhausted, 416: codes.OutOfRange, 418: codes.FailedPrecondition, 429: codes.ResourceExhausted, 499: codes.Canceled,
		500: codes.Internal, 501: codes.Unimplemented, 503: codes.Unavailable, 504: codes.DeadlineExceeded, 507: codes.Internal, 777: codes.Unknown,
	} {
		f := New(HandlerFailed, "m", nil)
		f.Code = status
		if got := GRPCCode(fmt.Errorf("wrapped: %w", f)); got != want {
			t.Errorf("%d: %s, want %s", status, got, want)
		}
	}
}

func TestPlainErrorsAreInternal(t *testing.T) {
	err := errors.New("surprise")
	if KindOf(err) != Internal || HTTPStatus(err) != 500 || GRPCCode(err) != codes.Internal || Retryable(err) || Message(err) != "surprise" {
		t.Errorf("%v %d %v", KindOf(err), HTTPStatus(err), GRPCCode(err))
	}
	if Is(err, Internal) {
		t.Error("an error without a kind is of no kind")
	}
}

func TestMessageLeavesCausesOut(t *testing.T) {
	err := fmt.Errorf("at the edge: %w", New(LoadFailed, "Failed to start workers", errors.New("secret path")))
	if Message(err) != "Failed to start workers" {
		t.Errorf("message %q", Message(err))
	}
	if !Is(err, StartFailed, LoadFailed) || Is(err, StartFailed) {
		t.Error("Is does not find the kind")
	}
}

func TestKindOfCode(t *testing.T) {
	for code, want := range map[codes.Code]Kind{
		codes.ResourceExhausted: TooLarge, codes.Unimplemented: RouteNotFound, codes.Canceled: Cancelled, codes.DeadlineExceeded: ClientTimeout,
		codes.InvalidArgument: BadRequest, codes.Unavailable: Draining, codes.Internal: Internal, codes.DataLoss: Internal,
	} {
		if got := KindOfCode(code); got != want {
			t.Errorf("%s: %s, want %s", code, got, want)
		}
	}
}
