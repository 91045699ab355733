package grpcapi

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// detailsOf gives the details of a status.
func detailsOf(t *testing.T, err error) (info *errdetails.ErrorInfo, retry *errdetails.RetryInfo) {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.RetryInfo:
			retry = d
		default:
			t.Errorf("an unknown detail %T", d)
		}
	}
	return info, retry
}

func TestRefusalsHaveDetails(t *testing.T) {
	f := &fault.Error{
		Kind: fault.Overloaded, Message: "full", Hint: "send less", Setting: "jobQueueSize", RetryAfter: 120 * time.Millisecond,
		Numbers: []fault.Number{fault.Count("waiting", 4), fault.Millis("mean_service_ms", 200*time.Millisecond)},
	}
	err := statusOf(fmt.Errorf("at the edge: %w", f), "id-1")
	if s := status.Convert(err); s.Code() != codes.ResourceExhausted || s.Message() != "full (send less)" {
		t.Errorf("%v", s)
	}
	info, retry := detailsOf(t, err)
	want := map[string]string{"waiting": "4", "mean_service_ms": "200", "setting": "jobQueueSize", "hint": "send less", "request_id": "id-1"}
	if info.GetReason() != "QUEUE_FULL" || info.GetDomain() != "flambeau" {
		t.Errorf("%v", info)
	}
	if diff := cmp.Diff(want, info.GetMetadata()); diff != "" {
		t.Error(diff)
	}
	if retry.GetRetryDelay().AsDuration() != f.RetryAfter {
		t.Errorf("%v", retry)
	}
}

func TestFailuresThatAreNoRefusals(t *testing.T) {
	for want, err := range map[string]error{
		"BAD_REQUEST":   fault.New(fault.BadRequest, "m", nil),
		"QUEUE_TIMEOUT": fault.New(fault.QueueTimeout, "m", nil), // its client had its own time
		"INTERNAL":      errors.New("a bug's words"),
	} {
		info, retry := detailsOf(t, statusOf(err, ""))
		if info.GetReason() != want || retry != nil || len(info.GetMetadata()) != 0 {
			t.Errorf("%s: %v %v", want, info, retry)
		}
	}
	if m := status.Convert(statusOf(errors.New("a bug's words"), "")).Message(); m != "Internal error." {
		t.Error(m)
	}
}
