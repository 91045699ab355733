package fault

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
)

func TestDetailsAreFoundBehindWrapping(t *testing.T) {
	f := &Error{
		Kind: Overloaded, Numbers: []Number{Count("waiting", 3), Millis("oldest_wait_ms", 1234567*time.Nanosecond)}, Setting: "jobQueueSize", RetryAfter: 90 * time.Millisecond,
	}
	numbers, setting, after := Details(fmt.Errorf("at the edge: %w", f))
	if diff := cmp.Diff(f.Numbers, numbers); diff != "" || setting != "jobQueueSize" || after != f.RetryAfter {
		t.Errorf("%q %v %s", setting, after, diff)
	}
	if got := NumbersText(numbers); got != "waiting=3, oldest_wait_ms=1.2" {
		t.Errorf("%q", got)
	}
	if numbers, setting, after := Details(errors.New("surprise")); numbers != nil || setting != "" || after != 0 {
		t.Error("a plain error has no details")
	}
}

func TestRetryDelay(t *testing.T) {
	for name, tc := range map[string]struct {
		err     error
		after   time.Duration
		again   bool
		seconds int64
	}{
		"computed":        {&Error{Kind: Overloaded, RetryAfter: 2100 * time.Millisecond}, 2100 * time.Millisecond, true, 3},
		"not computed":    {New(Draining, "m", nil), time.Second, true, 1},
		"a short one":     {&Error{Kind: NoReadyWorker, RetryAfter: time.Millisecond}, time.Millisecond, true, 1},
		"whole seconds":   {&Error{Kind: ClientShare, RetryAfter: 2 * time.Second}, 2 * time.Second, true, 2},
		"not refused":     {&Error{Kind: BackendDied, RetryAfter: time.Second}, 0, false, 1},
		"not retryable":   {New(BadRequest, "m", nil), 0, false, 1},
		"not one of ours": {errors.New("surprise"), 0, false, 1},
	} {
		after, again := RetryDelay(tc.err)
		if after != tc.after || again != tc.again || RetrySeconds(after) != tc.seconds {
			t.Errorf("%s: %v %v %d", name, after, again, RetrySeconds(after))
		}
	}
}

// TestRefusalsAreOfOneKindOverBothProtocols pins what a client reads of each refusal.
func TestRefusalsAreOfOneKindOverBothProtocols(t *testing.T) {
	for _, tc := range []struct {
		kind   Kind
		name   string
		status int
		code   codes.Code
	}{
		{NoWorker, "no_worker", 503, codes.Unavailable},
		{NoReadyWorker, "no_ready_worker", 503, codes.Unavailable},
		{Overloaded, "queue_full", 503, codes.ResourceExhausted},
		{ConcurrencyLimit, "concurrency_limit", 503, codes.ResourceExhausted},
		{ClientShare, "client_share", 429, codes.ResourceExhausted},
		{ServerBytes, "server_bytes", 503, codes.ResourceExhausted},
		{Draining, "draining", 503, codes.Unavailable},
		{QueueTimeout, "queue_timeout", 504, codes.DeadlineExceeded},
	} {
		err := New(tc.kind, "m", nil)
		if tc.kind.String() != tc.name || HTTPStatus(err) != tc.status || GRPCCode(err) != tc.code || !Refused(err) || !Retryable(err) {
			t.Errorf("%s: %d %s %v %v", tc.kind, HTTPStatus(err), GRPCCode(err), Refused(err), Retryable(err))
		}
	}
}
