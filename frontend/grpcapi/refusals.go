package grpcapi

import (
	"errors"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// errorDomain is whose reasons they are, in google.rpc.ErrorInfo.
const errorDomain = "flambeau"

// mostMetadata bounds a text of the details, which travel in a header.
const mostMetadata = 1000

// statusOf makes a gRPC status of an error: with the reason, the numbers behind it and what to do as a google.rpc.ErrorInfo and, where trying again makes
// sense, when to do so as a google.rpc.RetryInfo. id is the request's, "" if it has none.
func statusOf(err error, id string) error {
	s := status.New(fault.GRPCCode(err), messageOf(err))
	info := &errdetails.ErrorInfo{Reason: strings.ToUpper(fault.KindOf(err).String()), Domain: errorDomain, Metadata: map[string]string{}}
	numbers, setting, _ := fault.Details(err)
	for _, n := range numbers {
		info.Metadata[n.Name] = n.Text()
	}
	hint := ""
	if f, ok := errors.AsType[*fault.Error](err); ok {
		hint = f.Hint
	}
	for name, text := range map[string]string{"setting": setting, "hint": hint, "request_id": id} {
		if text != "" {
			info.Metadata[name] = strings.ToValidUTF8(text[:min(len(text), mostMetadata)], "")
		}
	}
	details := []protoadapt.MessageV1{info}
	if after, again := fault.RetryDelay(err); again {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
	}
	if explained, failed := s.WithDetails(details...); failed == nil {
		s = explained
	}
	return s.Err() //nolint:wrapcheck // it is the end of the way
}
