package oipserver

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// kept is a log that notes its settings.
type kept struct{ now LogLevels }

func (k *kept) Settings() LogLevels { return k.now }
func (k *kept) Change(to LogLevels) { k.now = to }

func TestLogSettings(t *testing.T) {
	log := &kept{LogLevels{Info: true, Error: true}} // as it was started
	s := serve(t, newWorld(), func(o *Options) { o.Logging = log })
	for _, tc := range []struct {
		name, value string
		want        LogLevels
	}{
		{"log_info", "false", LogLevels{Error: true}},
		{"log_warning", "true", LogLevels{Error: true, Warning: true}},
		{"log_error", "false", LogLevels{Warning: true}},
		{"log_verbose_level", "2", LogLevels{Warning: true, Verbose: true}},
		{"log_verbose_level", `"0"`, LogLevels{Warning: true}},
		{"log_format", `"ISO8601"`, LogLevels{Warning: true, ISO8601: true}},
		{"log_format", "null", LogLevels{Warning: true}},
		{"log_warning", "null", LogLevels{}},
		{"log_info", "null", LogLevels{Info: true}},
		{"log_error", "null", LogLevels{Info: true, Error: true}},
		{"log_verbose_level", "null", LogLevels{Info: true, Error: true}},
		{"log_file", `""`, LogLevels{Info: true, Error: true}},
	} {
		if err := s.ChangeLog(settings(tc.name, tc.value)); err != nil || log.now != tc.want {
			t.Errorf("%s=%s: %v %+v", tc.name, tc.value, err, log.now)
		}
	}
	for name, value := range map[string]string{
		"log_info": "1", "log_verbose_level": "-1", "log_format": `"glog"`, "log_file": `"/tmp/x"`, "other": "1", "log_error": `"yes"`, "log_warning": "{}",
	} {
		wantRefused(t, s.ChangeLog(settings(name, value)), "log")
	}
	wantRefused(t, s.ChangeLog(settings("log_info", "false", "zz", "1")), "'zz'")
	if !log.now.Info {
		t.Error("a change that is refused changes nothing")
	}
	if diff := cmp.Diff(LogSettings{Info: true, Error: true, Format: "default"}, s.LogSettings()); diff != "" {
		t.Error(diff)
	}
}

func TestSettingsNeedTheModelAPI(t *testing.T) {
	s := serve(t, newWorld(), func(o *Options) { o.ModelAPI, o.Logging, o.TraceFile = false, &kept{asStarted}, t.TempDir()+"/trace" })
	wantRefused(t, s.ChangeLog(settings("log_info", "false")), "log settings cannot be changed")
	wantRefused(t, s.ChangeTrace("", settings("trace_level", `["TIMESTAMPS"]`)), "trace settings cannot be changed")
	if err := s.ChangeLog(settings("log_info", "true")); err != nil {
		t.Errorf("what it is already: %v", err)
	}
	if err := s.ChangeTrace("adder", settings("trace_rate", "1000")); err != nil {
		t.Errorf("what it is already: %v", err)
	}
	fixed := serve(t, newWorld())
	wantRefused(t, fixed.ChangeLog(settings("log_info", "false")), "when it is started")
}
