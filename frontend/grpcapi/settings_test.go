package grpcapi

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	pb "github.com/flambeau-serve/flambeau/proto/openinference/v2"
)

func TestSettings(t *testing.T) {
	_, conn, _ := start(t)
	c := pb.NewGRPCInferenceServiceClient(conn)
	l, err := c.LogSettings(t.Context(), &pb.LogSettingsRequest{Settings: map[string]*pb.LogSettingsRequest_SettingValue{
		"log_verbose_level": {ParameterChoice: &pb.LogSettingsRequest_SettingValue_Uint32Param{Uint32Param: 0}},
	}})
	if err != nil || !l.GetSettings()["log_info"].GetBoolParam() {
		t.Errorf("%v %v", l, err)
	}
	_, err = c.LogSettings(t.Context(), &pb.LogSettingsRequest{Settings: map[string]*pb.LogSettingsRequest_SettingValue{
		"log_info": {ParameterChoice: &pb.LogSettingsRequest_SettingValue_BoolParam{}},
	}})
	wantCode(t, err, codes.InvalidArgument, "log_info")
	tr, err := c.TraceSetting(t.Context(), &pb.TraceSettingRequest{Settings: map[string]*pb.TraceSettingRequest_SettingValue{"trace_level": {Value: []string{"OFF"}}, "trace_rate": {}}})
	if err != nil || !cmp.Equal(tr.GetSettings()["trace_level"].GetValue(), []string{"OFF"}) {
		t.Errorf("%v %v", tr, err)
	}
	_, err = c.TraceSetting(t.Context(), &pb.TraceSettingRequest{Settings: map[string]*pb.TraceSettingRequest_SettingValue{"trace_level": {Value: []string{"TIMESTAMPS"}}}})
	wantCode(t, err, codes.InvalidArgument, "trace_level")
	_, err = c.TraceSetting(t.Context(), &pb.TraceSettingRequest{ModelName: "nope"})
	wantCode(t, err, codes.NotFound, "nope")
}
