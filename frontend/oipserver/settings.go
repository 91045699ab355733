package oipserver

import (
	"bytes"
	"encoding/json"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// Settings are settings of Triton, as a JSON object, that can be read and are not to be changed: their values are what this server does.
type Settings string

// What is logged, and what is traced.
const (
	LogSettings   Settings = `{"log_file":"","log_info":true,"log_warning":true,"log_error":true,"log_verbose_level":0,"log_format":"default"}`
	TraceSettings Settings = `{"trace_level":["OFF"],"trace_rate":"1000","trace_count":"-1","log_frequency":"0","trace_file":"","trace_mode":"triton"}`
)

// Check refuses changes, but for those to what a setting is already, or to null, its default.
func (s Settings) Check(changes map[string]json.RawMessage) error {
	var have map[string]json.RawMessage
	if err := json.Unmarshal([]byte(s), &have); err != nil {
		return fault.New(fault.Internal, "the settings cannot be read", err)
	}
	for name, value := range changes {
		is, known := have[name]
		if !known {
			return fault.Newf(fault.BadRequest, "there is no setting '%s'", name)
		}
		var b bytes.Buffer
		if err := json.Compact(&b, value); err != nil || !bytes.Equal(b.Bytes(), is) && b.String() != "null" {
			f := fault.Newf(fault.BadRequest, "the setting '%s' is %s and cannot be changed over this API", name, is)
			f.Hint = "Logs and levels are set when the server is started; requests are not traced."
			return f
		}
	}
	return nil
}
